"""runs.csv is read in one way: what loses nothing is taken, all else is one line."""

import io
from pathlib import Path

import pandas as pd
import pytest

from harness.errors import ConfigError
from harness.results import rows
from harness.results.columns import INTEGERS, REALS

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "results/depth_reverse/runs.csv"
TUNING = ROOT / "results/depth_reverse/tuning.csv"


def placed(folder: Path, content: str | bytes, name: str = "runs.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def through_pandas(path: Path, *, index: bool = False, read_index: bool = False) -> str:
    """The file as a user's script leaves it that reads it, and writes it again."""
    frame = pd.read_csv(path)
    for name in frame.columns.intersection(["steps", "tokens", "threads", "spikes", "flops"]):
        frame[name] = frame[name].astype(float)  # as of a column with an empty cell
    text = frame.to_csv(index=index)
    return pd.read_csv(io.StringIO(text)).to_csv(index=False) if read_index else text


@pytest.mark.parametrize("path", [COMMITTED, TUNING], ids=["runs", "tuning"])
@pytest.mark.parametrize("index", [False, True])
def test_a_file_that_went_through_pandas_is_the_same_rows(
    path: Path, index: bool, tmp_path: Path
) -> None:
    for again in (False, index):
        text = through_pandas(path, index=index, read_index=again)
        assert text != path.read_text()
        assert rows.read(placed(tmp_path, text)) == rows.read(path)


def test_a_byte_order_mark_and_other_line_ends_change_nothing(tmp_path: Path) -> None:
    text = COMMITTED.read_text()
    whole = rows.read(COMMITTED)
    assert rows.read(placed(tmp_path, text.encode("utf-8-sig"), "a.csv")) == whole
    assert rows.read(placed(tmp_path, text.replace("\n", "\r\n"), "b.csv")) == whole
    assert rows.read(placed(tmp_path, text + "\n\n", "c.csv")) == whole


def test_a_further_column_stays_with_its_rows(tmp_path: Path) -> None:
    head, *lines = COMMITTED.read_text().splitlines()
    noted = [f"{head},note", *(f'{line},"run {i}, odd"' for i, line in enumerate(lines))]
    found = rows.read(placed(tmp_path, "\n".join(noted)))
    assert [r["note"] for r in found] == [f"run {i}, odd" for i in range(len(lines))]
    kept = [{k: v for k, v in r.items() if k != "note"} for r in found]
    assert kept == list(rows.read(COMMITTED))


def test_every_committed_number_is_spelled_as_it_is_read() -> None:
    for path in sorted((ROOT / "results").glob("*/*.csv")):
        if path.parent.name == "paper":
            continue
        head, *lines = path.read_text().splitlines()
        assert len(lines) == len(found := rows.read(path))
        written = pd.read_csv(path, dtype=str, keep_default_na=False)
        for name in {*INTEGERS, *REALS} & {*head.split(",")}:
            assert [r[name] for r in found] == written[name].tolist(), name


HEAD = "run_id,scheme,outcome,final_loss,steps,seconds,grad_norm_first_decoder,data_sha"
GOOD = "0123456789ab,rezero,trained,2.5,150,1.25,0.1,cf617ff3a18d"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (GOOD.replace("2.5", '"2,5"'), "final_loss: expected a number, got '2,5'"),
        (GOOD.replace("2.5", ""), "final_loss: missing"),
        (GOOD.replace("2.5", "low"), "final_loss: expected a number, got 'low'"),
        (GOOD.replace("2.5", "2_5"), "final_loss: expected a number, got '2_5'"),
        (GOOD.replace("150", "150.5"), "steps: expected an integer, got '150.5'"),
        (GOOD.replace("150", "inf"), "steps: expected a number, got 'inf'"),
        (GOOD.replace("1.25", "nan"), "seconds: expected a number, got 'nan'"),
        (GOOD.replace("trained", "fine"), "outcome: unknown value 'fine'"),
        (
            GOOD.replace("0123456789ab", "123456789"),
            "run_id: expected 12 hexadecimal digits, got '123456789'",
        ),
        (
            GOOD.replace("0123456789ab", "1.23e+55"),
            "run_id: expected 12 hexadecimal digits, got '1.23e+55'",
        ),
        (GOOD.replace("cf617ff3a18d", ""), "data_sha: expected 12 hexadecimal digits, got ''"),
        (
            GOOD.replace("cf617ff3a18d", "1234567890.0"),
            "data_sha: expected 12 hexadecimal digits, got '1234567890.0'",
        ),
        (GOOD[:30], "not a whole row"),
        (GOOD, "run 0123456789ab stands twice"),
    ],
)
def test_what_is_no_row_is_named_by_line_column_and_value(
    line: str, words: str, tmp_path: Path
) -> None:
    path = placed(tmp_path, f"{HEAD}\n{GOOD}\n\n{line}\n", "tuning.csv")
    with pytest.raises(ConfigError) as caught:
        rows.read(path)
    assert str(caught.value) == f"{path}: line 4: {words}; restore the file"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "line 1: not the columns of runs"),
        (f"{HEAD};x\n".replace(",", ";").encode(), "line 1: not the columns of runs"),
        (f"{HEAD},steps\n".encode(), "line 1: column 'steps' stands twice"),
        (f"{HEAD}\n{GOOD}".encode("utf-16"), "not readable as CSV: "),
        (f'{HEAD}\n"{GOOD}\n'.encode(), "not readable as CSV: "),
    ],
)
def test_what_is_no_table_is_one_line(content: bytes, words: str, tmp_path: Path) -> None:
    path = placed(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        rows.read(path)
    assert str(caught.value).startswith(f"{path}: {words}")
    assert str(caught.value).endswith("; restore the file") and "\n" not in str(caught.value)


def test_a_value_with_more_digits_than_are_written_is_not_rounded(tmp_path: Path) -> None:
    (found,) = rows.read(placed(tmp_path, f"{HEAD}\n{GOOD.replace('2.5', '2.5000001')}\n"))
    assert found["final_loss"] == "2.5000001"


def test_gradients_that_are_not_finite_are_measurements(tmp_path: Path) -> None:
    text = "\n".join(
        [
            HEAD,
            *(
                GOOD.replace("0123", f"012{i}").replace("0.1,", f"{value},")
                for i, value in enumerate(("inf", "nan", "-inf", ""))
            ),
        ]
    )
    found = rows.read(placed(tmp_path, text))
    column = "grad_norm_first_decoder"
    assert [r[column] for r in found] == ["inf", "nan", "-inf", ""]


def test_a_file_that_is_replaced_is_read_anew(tmp_path: Path) -> None:
    path = placed(tmp_path, f"{HEAD}\n{GOOD}\n")
    assert rows.read(path)[0]["seconds"] == "1.25"
    rows.write(path, HEAD.split(","), [{**rows.read(path)[0], "seconds": "9.25"}])
    assert rows.read(path)[0]["seconds"] == "9.25"
    path.unlink()
    assert rows.read(path) == ()


def test_an_older_name_of_a_column_is_read_under_the_new_one(tmp_path: Path) -> None:
    old, new = "branch_variance_cross", "branch_mean_square_ratio_cross"
    (found,) = rows.read(placed(tmp_path, f"{HEAD},{old}\n{GOOD},0.25\n"))
    assert (found[new], old in found) == ("0.25", False)
    path = placed(tmp_path, f"{HEAD},{new}\n{GOOD},0.25\n")
    assert rows.read(path) == (found,)
    both = placed(tmp_path, f"{HEAD},{old},{new}\n{GOOD},0.25,0.5\n")
    with pytest.raises(ConfigError, match=f"line 1: column '{new}' stands twice"):
        rows.read(both)
    read = rows.read(ROOT / "results/grad_init/runs.csv")
    assert {r[new] != "" for r in read} == {True, False}
