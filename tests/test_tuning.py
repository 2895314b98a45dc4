"""A tuned study from end to end: tuned once, run at what was chosen, the same from its results."""

import csv
import json
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from harness.results.columns import COST, PROVENANCE
from harness.sweep.ledger import Ledger, cell_of
from harness.sweep.tracking import Tracker
from tests.commands import Command, run

STUDY = '''"""Which rate does each scheme want?"""
from harness.schemes import Place, Wiring, on, scheme
from harness.sweep import Study
{before}
@scheme("none")
def broken(at: Place) -> Wiring:
    """no layer at all"""
    raise ZeroDivisionError("no layer")

STUDY = Study(
    base={{
        "scheme": "deepnorm", "seed": 0,
        "model": {{"family": "decoder", "depth": 1, "width": 8, "heads": 2, "ffn": 16}},
        "data": {data},
        "optim": {{"lr": 1.0}},
        "train": {{"steps": 3, "batch": 4, "length": 4}},
    }},
    axes={{"scheme": {schemes}, "model.depth": [1], "seed": [0, 1]}},
    tune={{"optim.lr": {rates}, "seeds": [8, 9]{more}}},
)
'''
SCHEMES, RATES = ("post_norm", "rezero"), (1e-4, 1e-2)  # the second is the better for both
REVERSE = {"name": "reverse", "valid_sequences": 8}
TUNING, RUNS = "results/tuned/tuning.csv", "results/tuned/runs.csv"


def write(
    folder: Path,
    *,
    schemes: tuple[str, ...] = SCHEMES,
    rates: tuple[float, ...] = RATES,
    data: dict[str, object] = REVERSE,
    before: str = "",
    more: str = "",
) -> None:
    given = {"data": data, "before": before, "more": more}
    text = STUDY.format(schemes=list(schemes), rates=list(rates), **given)
    (folder / "tuned.py").write_text(text)


def call(folder: Path, word: str, *words: str, code: int = 0) -> str:
    """What the command says, on stdout and stderr."""
    return "".join(run(folder, word, "./tuned.py", *words, code=code))


def status(folder: Path, *words: str) -> dict[str, int]:
    out, _ = run(folder, "status", "./tuned.py", "--json", *words)
    return json.loads(out)  # type: ignore[no-any-return]


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def measured(folder: Path, name: str) -> list[dict[str, str]]:
    """Rows as text, column by column, without cost and provenance."""
    kept = (*COST, *PROVENANCE)
    return [{k: v for k, v in r.items() if k not in kept} for r in rows(folder, name)]


def keys(folder: Path, name: str) -> list[str]:
    return [r["run_id"] for r in rows(folder, name)]


def attempted(folder: Path, study: str = "tuned") -> list[str]:
    """Cells that were trained here, in order."""
    ledger = Ledger(study, folder / ".harness", None, {})
    return [cell_of(trial) for trial in ledger.attempts()]


def files(folder: Path) -> dict[Path, tuple[int, bytes]]:
    found = [path for path in (folder / "results").rglob("*") if path.is_file()]
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


def same_as(finished: Path, folder: Path) -> None:
    for name in (TUNING, RUNS):
        assert measured(folder, name) == measured(finished, name)
    curves = "results/tuned/curves.csv.gz"
    assert (folder / curves).read_bytes() == (finished / curves).read_bytes()


@pytest.fixture(scope="module")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state whose databases have been made, which takes two seconds, and hold nothing yet."""
    state = tmp_path_factory.mktemp("blank")
    Ledger("other", state, None, {})
    Tracker("other", state)
    return state


@pytest.fixture
def place(tmp_path: Path, blank: Path) -> Path:
    """A folder with the study, not yet run."""
    shutil.copytree(blank, tmp_path / ".harness")
    write(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run with two workers, from nothing. Tests that change it copy it."""
    folder = tmp_path_factory.mktemp("finished")
    write(folder)
    call(folder, "run", "--workers", "2")
    return folder


@pytest.fixture
def clone(finished: Path, place: Path) -> Path:
    """Its study and results, with a state that knows of nothing."""
    shutil.copytree(finished / "results", place / "results")
    return place


def test_every_point_is_tuned_and_runs_at_what_its_tuning_chose(finished: Path) -> None:
    tried = [(r["scheme"], r["optim.lr"], r["seed"]) for r in rows(finished, TUNING)]
    assert tried == [(s, lr, n) for s in SCHEMES for lr in ("0.0001", "0.01") for n in "89"]
    ran = [(r["scheme"], r["optim.lr"], r["seed"]) for r in rows(finished, RUNS)]
    assert ran == [(s, "0.01", n) for s in SCHEMES for n in "01"]
    assert {r["tuned_over"] for name in (TUNING, RUNS) for r in rows(finished, name)} == {"2"}
    assert {r["study"] for name in (TUNING, RUNS) for r in rows(finished, name)} == {"tuned"}


def test_the_chosen_rate_has_the_lowest_mean_in_the_rows_on_file(finished: Path) -> None:
    for scheme in SCHEMES:
        mine = [r for r in rows(finished, TUNING) if r["scheme"] == scheme]
        assert "diverged" not in {r["outcome"] for r in mine}
        stalled = Counter(r["optim.lr"] for r in mine if r["outcome"] == "stalled")
        sums = {
            rate: (
                stalled[rate],
                sum(float(r["final_loss"]) for r in mine if r["optim.lr"] == rate),
            )
            for rate in ("0.0001", "0.01")
        }
        ran_at = {r["optim.lr"] for r in rows(finished, RUNS) if r["scheme"] == scheme}
        assert ran_at == {min(sums, key=sums.__getitem__)}


def test_columns_of_the_tuning_are_those_of_runs(finished: Path) -> None:
    columns = [list(rows(finished, name)[0]) for name in (TUNING, RUNS)]
    assert columns[0] == columns[1]
    place = columns[1].index("seed")
    expected = ["seed", "model.depth", "optim.lr", "tuned_over", "outcome"]
    assert columns[1][place : place + 5] == expected


def test_verify_finds_no_difference_and_no_waste(finished: Path) -> None:
    assert call(finished, "verify") == "0 differences, 0 wasted attempts\n"


def test_the_table_shows_what_was_chosen(finished: Path) -> None:
    lines = [line.split(",") for line in call(finished, "table", "--format", "csv").splitlines()]
    assert lines[0][:4] == ["scheme", "model.depth", "optim.lr", "n"]
    assert [line[:4] for line in lines[1:]] == [[s, "1", "0.01", "2"] for s in SCHEMES]
    assert [line[-1] for line in lines] == ["edge", "True", "True"]
    *_, first, second, note = call(finished, "table").splitlines()
    assert [line.split()[2] for line in (first, second)] == ["0.01*"] * 2
    assert note == (
        "*: 2 of 2 points have the smallest or largest optim.lr that was tried: the best may lie "
        "beyond"
    )


def test_one_worker_gives_the_same_rows_and_rates(finished: Path, place: Path) -> None:
    call(place, "run", "--workers", "1")
    same_as(finished, place)


def test_workers_on_their_own_and_collect_give_the_same(finished: Path, place: Path) -> None:
    workers = [Command(place, "worker", "./tuned.py") for _ in range(2)]
    for each in workers:
        code, _, said = each.wait()
        assert code == 0, said
    assert not (place / "results/tuned/tuning.csv").exists()
    call(place, "collect")
    same_as(finished, place)
    assert call(place, "verify") == "0 differences, 0 wasted attempts\n"


def test_a_dry_run_lists_what_waits_for_the_tuning_and_writes_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    said = call(tmp_path, "run", "--dry-run", "--only", "scheme=rezero").splitlines()
    assert [line.split(" ", 1)[1] for line in said[:4]] == [
        f"scheme=rezero model.depth=1 seed={seed} optim.lr={rate}"
        for rate in RATES
        for seed in (8, 9)
    ]
    assert said[4:] == [
        "when tuned   scheme=rezero model.depth=1 seed=0",
        "when tuned   scheme=rezero model.depth=1 seed=1",
        "6 of 12 cells would run",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["tuned.py"]


def test_a_corpus_too_small_for_the_tuning_is_refused_before_anything_runs(tmp_path: Path) -> None:
    write(tmp_path, data={"name": "text", "path": "a.txt"})
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_text("to be, or not to be: that is the question. " + "?" * 12)
    assert call(tmp_path, "run", "--dry-run", code=2) == (
        "tuned.py: data: 55 characters are too few for train.length 4 and a tuning, which "
        "validates on a tenth of the training part; name more text\n"
    )


def test_only_tunes_and_runs_the_chosen_points(place: Path) -> None:
    call(place, "run", "--only", "scheme=rezero", "--only", "seed=1")
    assert {r["scheme"] for r in rows(place, TUNING)} == {"rezero"}
    assert [(r["scheme"], r["seed"]) for r in rows(place, RUNS)] == [("rezero", "1")]
    assert status(place)["missing"] == 7


def test_results_without_state_train_nothing_and_stay_as_they_are(clone: Path) -> None:
    (clone / ".harness").rename(clone / "aside")
    found = status(clone)
    assert (found["cells"], found["missing"], found["imported"], found["retired"]) == (12, 0, 12, 0)
    assert found["seconds_left"] == 0
    before = files(clone)
    assert call(clone, "run", "--dry-run") == "0 of 12 cells would run\n"
    (clone / "aside").rename(clone / ".harness")  # holds nothing, and need not be made
    call(clone, "run")
    assert files(clone) == before
    assert attempted(clone) == []


def test_one_more_seed_runs_at_the_committed_rates_and_is_not_tuned(clone: Path) -> None:
    before = files(clone)
    more = ("--set", "seed=0,1,2", "--name", "three")
    assert status(clone, *more)["missing"] == 2
    call(clone, "run", *more)
    ran = rows(clone, "results/three/runs.csv")
    new = [r for r in ran if r["seed"] == "2"]
    assert [(r["scheme"], r["optim.lr"]) for r in new] == [(s, "0.01") for s in SCHEMES]
    assert attempted(clone, "three") == [r["run_id"] for r in new]
    assert [r["run_id"] for r in ran if r["seed"] != "2"] == keys(clone, RUNS)
    assert keys(clone, "results/three/tuning.csv") == keys(clone, TUNING)
    assert {path: content for path, content in files(clone).items() if path in before} == before


def rewrite(folder: Path, scheme: str, rate: str, **told: str) -> None:
    """The tuning on file says something else of a rate."""
    found = rows(folder, TUNING)
    for r in found:
        if (r["scheme"], r["optim.lr"]) == (scheme, rate):
            r |= told
    with (folder / TUNING).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


def test_the_file_decides_not_what_would_be_measured(clone: Path) -> None:
    rewrite(clone, "rezero", "0.0001", outcome="trained", final_loss="0.1")
    assert status(clone)["missing"] == 2
    call(clone, "run")
    assert [(r["scheme"], r["optim.lr"]) for r in rows(clone, RUNS)] == [
        *[("post_norm", "0.01")] * 2,
        *[("rezero", "0.0001")] * 2,
    ]
    assert len(attempted(clone)) == 2
    assert status(clone)["retired"] == 2


def test_a_tuning_that_differs_from_the_ledger_needs_a_preference(
    finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    rewrite(tmp_path, "rezero", "0.01", final_loss="99")
    differing = call(tmp_path, "verify", code=1).splitlines()
    assert len(differing) == 2 + 1
    assert all("final_loss is 99 in tuning.csv, " in line for line in differing[:2])
    said = call(tmp_path, "run", code=1)
    assert "final_loss is 99 in tuning.csv and " in said
    assert said.endswith("in the ledger; say --prefer results or --prefer ledger\n")
    call(tmp_path, "run", "--prefer", "ledger")
    for name in (TUNING, RUNS):
        assert (tmp_path / name).read_bytes() == (finished / name).read_bytes()


def test_a_row_that_is_lost_is_tried_again_and_no_other(clone: Path) -> None:
    before, runs = rows(clone, TUNING), (clone / RUNS).read_bytes()
    lines = (clone / TUNING).read_bytes().splitlines(keepends=True)
    (clone / TUNING).write_bytes(b"".join([*lines[:2], *lines[3:]]))
    found = status(clone)
    assert (found["missing"], found["retired"]) == (1 + 2, 0)
    would = call(clone, "run", "--dry-run").splitlines()
    assert [line.split()[0] for line in would] == [before[1]["run_id"], "when", "when", "3"]
    call(clone, "run")
    assert attempted(clone) == [before[1]["run_id"]]
    assert (clone / RUNS).read_bytes() == runs
    assert [r for i, r in enumerate(rows(clone, TUNING)) if i != 1] == before[:1] + before[2:]
    assert measured(clone, TUNING)[1] == {
        k: v for k, v in before[1].items() if k not in (*COST, *PROVENANCE)
    }
    assert call(clone, "verify") == "0 differences, 0 wasted attempts\n"


def test_one_more_value_tries_only_that_and_runs_nothing_again(clone: Path) -> None:
    tuning, runs = rows(clone, TUNING), rows(clone, RUNS)
    write(clone, rates=(*RATES, 1e-6))
    assert status(clone)["missing"] == 4 + 4
    call(clone, "run")
    new = [r for r in rows(clone, TUNING) if r["optim.lr"] == "1e-06"]
    assert sorted(attempted(clone)) == sorted(r["run_id"] for r in new)
    assert len(new) == 4
    assert rows(clone, RUNS) == [{**r, "tuned_over": "3"} for r in runs]
    assert [r for r in rows(clone, TUNING) if r not in new] == [
        {**r, "tuned_over": "3"} for r in tuning
    ]


def test_values_and_schemes_that_leave_the_study_return_untrained(clone: Path) -> None:
    before = {name: (clone / name).read_bytes() for name in (TUNING, RUNS)}
    write(clone, schemes=("rezero",), rates=(1e-4,))
    call(clone, "run", "--only", "seed=0")  # at the rate that is left
    assert [(r["optim.lr"], r["tuned_over"]) for r in rows(clone, RUNS)] == [("0.0001", "1")]
    write(clone)
    assert (status(clone)["missing"], status(clone)["retired"]) == (0, 1)
    call(clone, "run")
    assert len(attempted(clone)) == 1
    assert {name: (clone / name).read_bytes() for name in (TUNING, RUNS)} == before


STOP = """
import multiprocessing, os, time
from pathlib import Path
if multiprocessing.current_process().name != "command":
    from harness.sweep.ledger import Ledger
    from harness.sweep.worker import Interrupts
    pending, done, ended = Interrupts.pending, Ledger.done, []

    def count(*words):
        ended.append(words)
        return done(*words)

    def stop(self):
        signs = Path("signs").read_text().split()
        if len(ended) == 3 and signs:
            Path("signs").write_text(" ".join(signs[1:]))
            os.kill(multiprocessing.parent_process().pid, int(signs[0]))
            while not pending(self):
                time.sleep(0.02)
        return pending(self)

    Ledger.done, Interrupts.pending = count, stop
"""


def test_a_run_stopped_and_killed_while_it_tunes_continues_to_the_same_end(
    finished: Path, place: Path
) -> None:
    write(place, before=STOP)
    (place / "signs").write_text(f"{signal.SIGTERM:d} {signal.SIGKILL:d}")
    for ended, code in ((3, 143), (6, -signal.SIGKILL)):
        call(place, "run", "--workers", "1", code=code)
        assert len(attempted(place)) == ended
        assert not (place / RUNS).exists() or rows(place, RUNS) == []
    call(place, "run", "--workers", "1")
    same_as(finished, place)
    assert len(attempted(place)) == 12
    assert call(place, "verify") == "0 differences, 0 wasted attempts\n"


def test_a_point_whose_tuning_crashes_waits_and_the_others_are_finished(place: Path) -> None:
    write(place, schemes=("broken", "rezero"))
    said = call(place, "run", code=1)
    assert said.count("(ZeroDivisionError: no layer); try again with --retry") == 4
    assert said.endswith("2 cells wait for the tuning of their points\n")
    assert [(r["scheme"], r["outcome"]) for r in rows(place, TUNING)[:4]] == [
        ("broken", "crashed")
    ] * 4
    assert [(r["scheme"], r["seed"]) for r in rows(place, RUNS)] == [
        ("rezero", "0"),
        ("rezero", "1"),
    ]
    found = status(place)
    six = ("trained", "stalled", "diverged", "crashed", "running", "missing")
    assert (found["crashed"], found["missing"]) == (4, 2)
    assert sum(found[name] for name in six) == found["cells"] == 12
    assert "2 of 12 cells would run" in call(place, "run", "--dry-run")
    call(place, "run", code=1)  # not tried again
    assert len(attempted(place)) == 4 + 4 + 2


def test_another_corpus_is_tuned_and_run_anew(place: Path) -> None:
    text = {"name": "text", "path": "a.txt", "valid_windows": 4}
    write(place, schemes=("rezero",), rates=(1e-2,), data=text)
    (place / "data").mkdir()
    (place / "data/a.txt").write_text("to be, or not to be: that is the question. " * 40)
    call(place, "run")
    before = rows(place, RUNS)
    (place / "data/a.txt").write_text("whether it is nobler in the mind to suffer, " * 40)
    assert status(place)["missing"] == 4
    call(place, "run")
    assert len(attempted(place)) == 8
    after = rows(place, RUNS)
    assert [r["run_id"] for r in after] == [r["run_id"] for r in before]
    assert {r["data_sha"] for r in after}.isdisjoint(r["data_sha"] for r in before)


# Values beyond the grid

BEYOND = ("1e-05", "0.0001", "0.001", "0.01")  # each better than the one before


def write_extended(folder: Path, before: str = "") -> None:
    """Two rates, and two more while the largest is the best."""
    write(folder, schemes=("rezero",), rates=(1e-5, 1e-4), before=before, more=', "extend": 2')


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory, blank: Path) -> Path:
    """Run with one worker, from nothing."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(blank, folder / ".harness")
    write_extended(folder)
    call(folder, "run", "--workers", "1")
    return folder


def test_rates_beyond_the_grid_are_tried_round_by_round_and_counted(extended: Path) -> None:
    tried = [(r["optim.lr"], r["seed"]) for r in rows(extended, TUNING)]
    assert tried == [(rate, seed) for rate in BEYOND for seed in "89"]
    assert [r["optim.lr"] for r in rows(extended, RUNS)] == ["0.01"] * 2
    assert {r["tuned_over"] for name in (TUNING, RUNS) for r in rows(extended, name)} == {"4"}
    assert attempted(extended) == [*keys(extended, TUNING), *keys(extended, RUNS)]
    found = status(extended)
    assert (found["cells"], found["missing"], found["retired"]) == (10, 0, 0)
    assert found["seconds_left"] == 0
    assert call(extended, "verify") == "0 differences, 0 wasted attempts\n"
    assert call(extended, "run", "--dry-run") == "0 of 10 cells would run\n"


def test_workers_and_collect_extend_a_grid_as_well(extended: Path, place: Path) -> None:
    write_extended(place)
    call(place, "worker")
    assert not (place / TUNING).exists()
    call(place, "collect")
    same_as(extended, place)


def test_a_search_beyond_the_grid_that_was_killed_goes_on_where_it_was(
    extended: Path, place: Path
) -> None:
    # After the grid, which its command has written, and one run beyond it.
    written = f"Path({TUNING!r}).exists() and Path({TUNING!r}).read_text().count('rezero') > 3"
    write_extended(place, STOP.replace("len(ended) == 3", f"len(ended) == 1 and {written}"))
    (place / "signs").write_text(f"{signal.SIGKILL:d}")
    call(place, "run", "--workers", "1", code=-signal.SIGKILL)
    assert len(attempted(place)) == 5
    found = status(place)
    assert (found["cells"], found["missing"]) == (6 + 2, 1 + 2)
    call(place, "run", "--workers", "1", "--only", "seed=1")
    assert [(r["optim.lr"], r["seed"]) for r in rows(place, RUNS)] == [("0.01", "1")]
    call(place, "run", "--workers", "1")
    same_as(extended, place)
    assert len(attempted(place)) == 10


def test_a_dry_run_asks_for_the_next_rate_alone(extended: Path, place: Path) -> None:
    write_extended(place)
    (place / "results/tuned").mkdir(parents=True)
    lines = (extended / TUNING).read_text().splitlines(keepends=True)
    (place / TUNING).write_text("".join(lines[:5]))
    assert [line.split(" ", 1)[1] for line in call(place, "run", "--dry-run").splitlines()] == [
        *(f"scheme=rezero model.depth=1 seed={seed} optim.lr=0.001" for seed in (8, 9)),
        *(f"tuned   scheme=rezero model.depth=1 seed={seed}" for seed in (0, 1)),
        "of 8 cells would run",
    ]


def test_rows_beyond_the_grid_stay_while_one_of_the_grid_is_lost(
    extended: Path, place: Path
) -> None:
    write_extended(place)
    shutil.copytree(extended / "results", place / "results")
    tuning, runs = ((place / name).read_bytes() for name in (TUNING, RUNS))
    lines = tuning.splitlines(keepends=True)
    (place / TUNING).write_bytes(b"".join([*lines[:1], *lines[2:]]))
    assert status(place)["retired"] == 0
    said = call(place, "run", "--workers", "1")
    assert "retired" not in said and not (place / "results/tuned/retired.csv").exists()
    assert attempted(place) == [keys(extended, TUNING)[0]]
    assert (place / RUNS).read_bytes() == runs
    assert keys(place, TUNING) == keys(extended, TUNING)
