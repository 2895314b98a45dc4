"""A study, its variants and other studies in one folder of results: who trains, who takes over."""

import csv
import gzip
import json
import shutil
from pathlib import Path

import pytest

from harness.sweep.ledger import Ledger, cell_of
from tests.commands import run

STUDY = '''"""Who trains what?"""
from harness.analysis.figures import depth_curve
from harness.sweep import Study

STUDY = Study(
    base={
        "scheme": "deepnorm", "seed": 0,
        "model": {"family": "decoder", "depth": 1, "width": 8, "heads": 2, "ffn": 16},
        "data": {"name": "reverse", "valid_sequences": 8},
        "optim": {"lr": 1e-2},
        "train": {"steps": 3, "batch": 4, "length": 4},
    },
    axes={"scheme": ["post_norm", "rezero"], "seed": SEEDS},
)
FIGURES = [depth_curve]
'''


def write(folder: Path, name: str = "one", seeds: str = "[0, 1]") -> None:
    (folder / f"{name}.py").write_text(STUDY.replace("SEEDS", seeds))


def call(folder: Path, word: str, *words: str, code: int = 0) -> str:
    return "".join(run(folder, word, *words, code=code))


def rows(folder: Path, study: str = "one") -> list[dict[str, str]]:
    with (folder / "results" / study / "runs.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def trained(folder: Path, study: str) -> list[str]:
    """The cells that were trained under this name, in order."""
    ledger = Ledger(study, folder / ".harness", None, {})
    return [cell_of(trial) for trial in ledger.attempts()]


def files(folder: Path, study: str = "one") -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (folder / "results" / study).iterdir()}


def curves(folder: Path, study: str) -> dict[str, list[str]]:
    path = folder / "results" / study / "curves.csv.gz"
    found: dict[str, list[str]] = {}
    for line in gzip.decompress(path.read_bytes()).decode().splitlines()[1:]:
        key, _, rest = line.partition(",")
        found.setdefault(key, []).append(rest)
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the study has run. Tests copy it."""
    folder = tmp_path_factory.mktemp("finished")
    write(folder)
    call(folder, "run", "./one.py")
    return folder


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("option", ["--set", "--only"])
def test_a_selection_trains_prints_and_draws_itself_and_leaves_the_rest_alone(
    option: str, place: Path
) -> None:
    before = files(place)
    part = (option, "scheme=rezero", option, "seed=1")
    said = call(place, "run", "./one.py", *part)
    assert said.endswith("one: 1/1 cells in results/one\n")
    assert len(trained(place, "one")) == 4
    after = files(place)
    assert {name: after[name] for name in before} == before
    stem = "depth_curve+scheme=rezero+seed=1"
    assert after.keys() - before.keys() == {f"{stem}{end}" for end in (".svg", ".png", ".json")}
    assert json.loads(after[f"{stem}.json"])["study"] == "one+scheme=rezero+seed=1"
    status = json.loads(call(place, "status", "./one.py", "--json", *part))
    assert (status["cells"], status["missing"], status["retired"]) == (1, 0, 0)
    assert len(call(place, "table", "./one.py", "--format", "csv", *part).splitlines()) == 2
    assert call(place, "plot", "./one.py", *part) == f"results/one/{stem}.svg\n"


def test_a_variant_takes_over_what_its_study_has_measured(place: Path) -> None:
    before = files(place)
    norms = ("--set", "model.norm=layernorm,rmsnorm")
    name = "one+model.norm=layernorm,rmsnorm"
    assert call(place, "run", "./one.py", *norms, "--dry-run").endswith("2 of 6 cells would run\n")
    call(place, "run", "./one.py", *norms)
    found = rows(place, name)
    new = [r["run_id"] for r in found if r["model.norm"] == "rmsnorm"]
    # ReZero has no norm whose kind could be another: its cells are those of LayerNorm.
    assert len(found) == 6 and sorted(trained(place, name)) == sorted(new)
    assert {r["scheme"] for r in found if r["model.norm"] == "rmsnorm"} == {"post_norm"}
    assert {r["model.norm"]: r["reused_from"] for r in found} == {"layernorm": "one", "rmsnorm": ""}
    old = {r["run_id"]: r for r in rows(place)}
    for r in found:
        if r["reused_from"]:
            same = old[r["run_id"]].keys() - {"study"}
            assert {k: r[k] for k in same} == {k: old[r["run_id"]][k] for k in same}
            assert curves(place, name)[r["run_id"]] == curves(place, "one")[r["run_id"]]
    assert files(place) == before
    assert call(place, "verify", "./one.py", *norms) == "0 differences, 0 wasted attempts\n"
    status = json.loads(call(place, "status", "./one.py", "--json", *norms))
    assert (status["imported"], status["missing"]) == (4, 0)


def test_a_study_that_grows_takes_over_what_its_variants_have_measured(place: Path) -> None:
    call(place, "run", "./one.py", "--set", "seed=1,2", "--name", "more")
    assert [r["reused_from"] for r in rows(place, "more")] == ["one", "", "one", ""]
    write(place, seeds="[0, 1, 2]")
    said = call(place, "run", "./one.py")
    assert said.endswith("one: 6/6 cells in results/one\n")
    assert len(trained(place, "one")) == 4
    assert [(r["seed"], r["reused_from"]) for r in rows(place)] == [
        *(("0", ""), ("1", ""), ("2", "more")),
        *(("0", ""), ("1", ""), ("2", "more")),
    ]


def test_another_study_takes_over_only_when_it_is_told_to(place: Path) -> None:
    write(place, "two")
    assert call(place, "run", "./two.py", "--dry-run").endswith("4 of 4 cells would run\n")
    refused = call(place, "run", "./two.py", "--reuse", "on", code=2)
    assert refused == "--reuse on: no results in results (did you mean 'one'?)\n"
    assert not (place / "results/two").exists()
    for others in ("one", "all"):
        dry = call(place, "run", "./two.py", "--dry-run", "--reuse", others)
        assert dry == "0 of 4 cells would run\n"
    call(place, "run", "./two.py", "--reuse", "one")
    assert trained(place, "two") == []
    assert {(r["study"], r["reused_from"]) for r in rows(place, "two")} == {("two", "one")}
    assert curves(place, "two") == curves(place, "one")
    call(place, "run", "./two.py")  # now its own
    assert trained(place, "two") == []


def test_a_row_of_another_corpus_or_scheme_is_not_taken_over(place: Path) -> None:
    found = rows(place)
    found[0]["wiring_sha"], found[1]["data_sha"] = "0" * 12, "1" * 12
    with (place / "results/one/runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    write(place, "two")
    said = call(place, "run", "./two.py", "--dry-run", "--reuse", "one")
    assert said.endswith("2 of 4 cells would run\n")


def test_a_row_that_left_the_file_is_counted(place: Path) -> None:
    write(place, seeds="[0]")
    said = call(place, "run", "./one.py")
    assert "one: 2 rows moved to retired.csv: the study no longer has their values\n" in said
    assert "moved" not in call(place, "run", "./one.py")


def test_one_name_is_one_variant(place: Path) -> None:
    call(place, "run", "./one.py", "--set", "optim.lr=0.1", "--name", "mine")
    before = files(place, "mine")
    assert json.loads(before["variant.json"]) == {
        "study": "one",
        "set": {"optim.lr": ["0.1"]},
        "name": "mine",
    }
    said = call(place, "run", "./one.py", "--set", "optim.lr=0.2", "--name", "mine", code=2)
    assert said == (
        "results/mine: holds results of 'one --set optim.lr=0.1'; choose another --name\n"
    )
    write(place, "mine")
    said = call(place, "run", "./mine.py", code=2)
    assert said == (
        "results/mine: holds results of 'one --set optim.lr=0.1'; rename the study file\n"
    )
    write(place, "two")
    said = call(place, "table", "./two.py", "--set", "seed=7", "--name", "one", code=2)
    assert said == "results/one: holds results of another study; choose another --name\n"
    assert files(place, "mine") == before


def test_a_name_that_any_results_have_is_taken(place: Path) -> None:
    folder = place / "results/half"
    folder.mkdir()
    (folder / "tuning.csv").write_text("a study that was stopped while it tuned")
    said = call(place, "run", "./one.py", "--set", "seed=7", "--name", "half", code=2)
    assert said == "results/half: holds results of another study; choose another --name\n"


def test_the_order_of_values_makes_no_other_variant(place: Path) -> None:
    for seeds in ("1,2", "2,1"):
        call(place, "run", "./one.py", "--set", f"seed={seeds}", "--name", "two")
    assert len(trained(place, "two")) == 2


@pytest.mark.parametrize("content", ["", "5", "null", '{"study": "one"}', '{"set": {"seed": 5}}'])
def test_a_broken_note_of_a_variant_stops_that_variant_alone(content: str, place: Path) -> None:
    shutil.copytree(place / "results/one", place / "results/broken")
    (place / "results/broken/variant.json").write_text(content)
    call(place, "status", "./one.py")
    said = call(place, "table", "./one.py", "--set", "seed=7", "--name", "broken", code=2)
    path = "results/broken/variant.json"
    assert said == f"{path}: not the study and values of a variant; restore it\n"


def test_curves_come_from_the_folder_that_has_them(place: Path) -> None:
    call(place, "run", "./one.py", "--set", "seed=1,2", "--name", "a")
    kept = curves(place, "a")
    shutil.rmtree(place / "results/one")
    call(place, "run", "./one.py", "--set", "seed=1", "--set", "optim.lr=0.01,0.1", "--name", "b")
    (old,) = [r for r in rows(place, "b") if r["scheme"] == "rezero" and r["reused_from"]]
    assert old["reused_from"] == "one"
    assert curves(place, "b")[old["run_id"]] == kept[old["run_id"]]
    call(place, "run", "./one.py", "--state", "other")
    assert [r["seed"] for r in rows(place) if r.get("reused_from", "")] == []
    back = {r["run_id"] for r in rows(place)} & kept.keys()
    assert len(back) == 2 and all(curves(place, "one")[key] == kept[key] for key in back)


def test_a_study_does_not_reuse_itself(place: Path) -> None:
    said = call(place, "run", "./one.py", "--reuse", "one", code=2)
    assert said == "--reuse one: is this study itself; name another one\n"


def test_a_value_of_any_length_runs(place: Path) -> None:
    many = "seed=" + ",".join(map(str, range(2, 60)))
    call(place, "run", "./one.py", "--set", many, "--only", "seed=2", "--only", "scheme=rezero")
    (folder,) = (p for p in (place / "results").iterdir() if p.name != "one")
    assert folder.name.startswith("one+seed=2,3,4,") and len(folder.name) == 80
    assert len(rows(place, folder.name)) == 1


def test_an_edited_scheme_is_measured_anew_and_a_restored_one_is_not(tmp_path: Path) -> None:
    own = (
        "from harness.schemes import Place, Wiring, on, scheme\n\n"
        '@scheme("mine")\ndef own(at: Place) -> Wiring:\n    """LN(x + F(x) / 2)"""\n'
        '    return Wiring(norms=on("sum"), branch=0.5)\n\nSTUDY ='
    )

    def define(branch: str) -> None:
        text = STUDY.replace("SEEDS", "[0]").replace("STUDY =", own.replace("0.5", branch))
        (tmp_path / "one.py").write_text(text.replace("rezero", "own"))

    define("0.5")
    call(tmp_path, "run", "./one.py")
    first = rows(tmp_path)
    define("5.0")
    dry, note = run(tmp_path, "run", "./one.py", "--dry-run")
    assert dry.split()[1:] == ["scheme=own", "seed=0"]
    assert note.startswith(
        "results/one/runs.csv: 1 runs were made with another definition of scheme 'own' and do not "
        "count; measure them anew with 'harness run ./one.py', or restore the definition\n"
    )
    assert note.endswith("1 of 2 cells would run\n")
    table, note = run(tmp_path, "table", "./one.py", "--format", "csv")
    assert "own" not in table and "another definition of scheme 'own'" in note
    call(tmp_path, "run", "./one.py")
    second = rows(tmp_path)
    assert second[0] == first[0] and second[1]["final_loss"] != first[1]["final_loss"]
    assert call(tmp_path, "verify", "./one.py") == "0 differences, 0 wasted attempts\n"
    define("0.5")
    call(tmp_path, "run", "./one.py")
    assert rows(tmp_path) == first
    assert len(trained(tmp_path, "one")) == 3
    assert call(tmp_path, "verify", "./one.py") == "0 differences, 0 wasted attempts\n"
