"""`harness translations` prints from results alone or from the tracker, and sacrebleu's own command
gives the BLEU of a row from what it prints."""

import csv
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import parallel
from tests.commands import run

STUDY = '''"""Who reads the source?"""
from harness.sweep import Study

STUDY = Study(
    base={
        "scheme": "rezero", "seed": 0,
        "model": {"family": "encoder_decoder", "depth": 1, "width": 16, "heads": 2, "ffn": 32},
        "data": {"name": "translation", "corpus": "pairs", "pieces": 80},
        "optim": {"lr": 1e-2},
        "train": {"steps": 60, "batch": 300, "length": 40},
    },
    axes={"scheme": ["post_norm", "rezero"], "seed": [3, 1]},
)
'''
FILE = "results/read/translations.tsv"


def call(folder: Path, *words: str, code: int = 0) -> str:
    """Stdout of `harness translations ./read.py`, or stderr of a call that fails."""
    out, err = run(folder, "translations", "./read.py", *words, code=code)
    return err if code else out


def rows(folder: Path, study: str = "read") -> list[dict[str, str]]:
    with (folder / "results" / study / "runs.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def table(text: str) -> list[dict[str, str]]:
    head, *lines = (line.split("\t") for line in text.splitlines())
    return [dict(zip(head, line, strict=True)) for line in lines]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the study has run. Tests that change it copy it."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "read.py").write_text(STUDY)
    (folder / "data").mkdir()
    parallel.write(folder / "data", "pairs")
    run(folder, "run", "./read.py")
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def clone(finished: Path, tmp_path: Path) -> Path:
    """Results and study, without state and corpus."""
    shutil.copy(finished / "read.py", tmp_path)
    shutil.copytree(finished / "results", tmp_path / "results")
    return tmp_path


def test_a_clone_prints_the_first_run_of_each_point_side_by_side(clone: Path) -> None:
    pairs = parallel.pairs()[230:254]  # the test split
    paragraphs = [each.splitlines() for each in call(clone).split("\n\n")]
    assert len(paragraphs) == 24
    for (source, reference), lines in zip(pairs, paragraphs, strict=True):
        assert lines[0] == f"src>tgt source    {source}"
        assert lines[1] == f"reference         {reference}"
        assert [line.split()[0] for line in lines[2:]] == ["scheme=post_norm", "scheme=rezero"]
    found = table(call(clone, "--format", "tsv"))
    first = [r["run_id"] for r in rows(clone) if r["seed"] == "3"]
    assert [r["run_id"] for r in found] == [first[0]] * 24 + [first[1]] * 24
    assert {(r["run_id"], r["scheme"], r["seed"]) for r in found} == {
        (first[0], "post_norm", "3"),
        (first[1], "rezero", "3"),
    }
    assert [(r["source"], r["reference"]) for r in found] == pairs * 2
    shown = [lines[3].removeprefix("scheme=rezero").strip() for lines in paragraphs]
    assert shown == [r["hypothesis"] for r in found[24:]]
    assert len(set(shown)) > 5
    assert not (clone / ".harness").exists()


def test_points_and_runs_are_selected(clone: Path) -> None:
    whole = call(clone, "--format", "tsv").splitlines()
    rezero = [r["run_id"] for r in rows(clone) if r["scheme"] == "rezero"]
    part = [whole[0], *whole[25:]]
    for words in (
        ("--only", "scheme=rezero"),
        ("--only", "scheme=rezero", "--only", "seed=1"),  # the point of that run
        ("--set", "scheme=rezero"),
        ("--run", rezero[0]),
    ):
        assert call(clone, *words, "--format", "tsv").splitlines() == part
    assert call(clone, "--run", rezero[1], code=2) == (
        f"--run {rezero[1]}: the results have translations of the first run of each point "
        f"({whole[1].split(chr(9))[4]}, {rezero[0]}); add --full for those of the tracker\n"
    )


@pytest.mark.parametrize("seed", ["3", "1"])
def test_sacrebleus_own_command_gives_the_bleu_of_the_row(
    seed: str, finished: Path, tmp_path: Path
) -> None:
    (r,) = [r for r in rows(finished) if (r["scheme"], r["seed"]) == ("rezero", seed)]
    text = call(finished, "--run", r["run_id"], "--full", "--format", "tsv")
    assert text.startswith("direction\tsource\treference\thypothesis\t")  # as the README cuts it
    found = table(text)
    for name in ("reference", "hypothesis"):
        (tmp_path / name).write_text("".join(f"{each[name]}\n" for each in found))
    command = [sys.executable, "-m", "sacrebleu", "reference", "-i", "hypothesis"]
    done = subprocess.run(
        [*command, "-m", "bleu", "-b", "-w", "4"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert 5 < float(r["metric_bleu"]) < 100
    assert done.stdout.strip() == f"{float(r['metric_bleu']):.4f}"
    only = ("--only", "scheme=rezero", "--only", f"seed={seed}")
    assert table(call(finished, *only, "--full", "--format", "tsv")) == found


def test_what_cannot_be_printed_is_one_line_with_a_remedy(clone: Path) -> None:
    key = rows(clone)[0]["run_id"]
    assert call(clone, "--format", "txt", code=2).startswith("--format: unknown format 'txt'")
    assert call(clone, "--run", "x" + key[1:], code=2) == (
        f"--run x{key[1:]}: no such run has translated (did you mean '{key}'?)\n"
    )
    assert call(clone, "--full", code=2).startswith("--full: of which run? add --run (")
    assert call(clone, "--full", "--run", key, code=2) == (
        f".harness: no translations of run {key} of study read; name the state that it was trained "
        "in with --state\n"
    )
    assert not (clone / ".harness").exists()
    assert call(clone, "--set", "seed=9", code=2).startswith(
        "results/read+seed=9: no runs yet; make them with 'harness run ./read.py --set seed=9'"
    )
    path = clone / "results/read/runs.csv"
    head, *lines = path.read_text().splitlines()
    at = head.split(",").index("metric_bleu")
    blank = [",".join("" if i == at else c for i, c in enumerate(x.split(","))) for x in lines]
    path.write_text("\n".join([head, *blank]) + "\n")
    assert call(clone, code=2) == (
        "results/read/runs.csv: none of 4 runs has translated a test split: they diverged, or "
        "their corpus has none; name others with --only\n"
    )
    _, refused = run(clone, "translations", "smoke", code=2)
    assert refused.endswith(
        "smoke.py: data.name: no cell of the study translates; name a study that does\n"
    )


def test_what_the_results_lack_is_taken_from_the_tracker_by_the_command_that_is_named(
    copy: Path,
) -> None:
    before = (copy / FILE).read_bytes()
    (copy / FILE).unlink()
    first = [r["run_id"] for r in rows(copy) if r["seed"] == "3"]
    remedy = "take them from the tracker with 'harness collect ./read.py'"
    assert call(copy, code=2) == f"{FILE}: no translations of {', '.join(first)}; {remedy}\n"
    said, _ = run(copy, "verify", "./read.py", code=1)
    lack = [f"{key}: no translations; mend it with 'harness collect ./read.py'" for key in first]
    assert said.splitlines() == sorted(lack)
    run(copy, "collect", "./read.py")
    assert (copy / FILE).read_bytes() == before
    run(copy, "verify", "./read.py")
    kept = before.splitlines(keepends=True)
    (copy / FILE).write_bytes(b"".join(line for line in kept if first[0].encode() not in line))
    out, err = run(copy, "translations", "./read.py", "--format", "tsv")
    assert {r["run_id"] for r in table(out)} == {first[1]}
    assert err == f"{FILE}: no translations of {first[0]}; {remedy}\n"


def test_translations_that_the_tracker_has_lost_are_named_and_stay_empty(copy: Path) -> None:
    first = [r["run_id"] for r in rows(copy) if r["seed"] == "3"]
    for path in (copy / ".harness").rglob("translations.tsv"):
        path.write_text("damaged")
    _, err = run(copy, "run", "./read.py")
    assert "translations" not in err  # the results have them
    (copy / FILE).unlink()
    _, err = run(copy, "run", "./read.py")
    assert f"the tracker has no translations of {', '.join(first)}: they stay empty\n" in err
    assert not (copy / FILE).exists()


def test_a_variant_takes_over_translations_with_the_rows(copy: Path) -> None:
    artifacts, words = copy / ".harness/artifacts/read", ("--set", "data.beam=1", "--name", "again")
    artifacts.rename(copy / "away")
    run(copy, "run", "./read.py", *words)
    assert {r["reused_from"] for r in rows(copy, "again")} == {"read"}
    assert (copy / "results/again/translations.tsv").read_bytes() == (copy / FILE).read_bytes()
    (copy / "away").rename(artifacts)
    (key,) = [r["run_id"] for r in rows(copy) if (r["scheme"], r["seed"]) == ("rezero", "1")]
    whole = call(copy, "--full", "--run", key)  # which the study has trained that it varies
    assert call(copy, *words, "--full", "--run", key) == whole
