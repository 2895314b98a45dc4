"""Whole commands on a tiny study: run, resume, grow, redraw, and what they leave behind."""

import csv
import gzip
import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from mlflow import MlflowClient

from tests.commands import Command, run

FIGURES = ("depth_curve", "outcome_map", "gradient_depth", "loss_traces")
COST_AND_PROVENANCE = ("seconds", "peak_memory_mb", "attempts", "commit", "finished")

STUDY = '''"""Does a tiny study run?"""
from harness.analysis.figures import depth_curve, gradient_depth, loss_traces, outcome_map
from harness.schemes import Place, Wiring, on, scheme
from harness.sweep import Study

@scheme("none")
def broken(at: Place) -> Wiring:
    """x, until layer 2"""
    if at.layer > 1:
        raise ZeroDivisionError("no second layer")
    return Wiring(norms=on("sum"))

STUDY = Study(
    base={
        "scheme": "deepnorm", "seed": 0,
        "model": {"family": "decoder", "depth": 1, "width": 8, "heads": 2, "ffn": 16},
        "data": {"name": "recall", "valid_sequences": 16},
        "optim": {"lr": 1e-2},
        "train": {"steps": 12, "batch": 4, "length": 9},
    },
    axes={"scheme": SCHEMES, "model.depth": [1, 2], "seed": [0, 1]},
)
FIGURES = [depth_curve, outcome_map, gradient_depth, loss_traces]
'''


class Done(NamedTuple):
    stdout: str
    stderr: str


Harness = Callable[..., Done]


def write_study(folder: Path, schemes: list[str]) -> None:
    (folder / "tiny.py").write_text(STUDY.replace("SCHEMES", repr(schemes)))


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "results/tiny/runs.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def measured(folder: Path) -> list[dict[str, str]]:
    return [{k: v for k, v in r.items() if k not in COST_AND_PROVENANCE} for r in rows(folder)]


def harness_in(folder: Path) -> Harness:
    return lambda *words, code=0: Done(*run(folder, *words, code=code))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the study has run with two workers. Tests that change it copy it."""
    folder = tmp_path_factory.mktemp("finished")
    write_study(folder, ["post_norm", "rezero"])
    harness_in(folder)("run", "./tiny.py", "--workers", "2")
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """Results and study without the state, as in a clone."""
    shutil.copy(finished / "tiny.py", tmp_path)
    shutil.copytree(finished / "results", tmp_path / "results")
    return tmp_path


def test_every_cell_has_one_row_in_the_plans_order(finished: Path) -> None:
    found = [(r["scheme"], r["model.depth"], r["seed"]) for r in rows(finished)]
    expected = [(s, d, n) for s in ("post_norm", "rezero") for d in "12" for n in "01"]
    assert found == expected
    assert {r["outcome"] for r in rows(finished)} <= {"trained", "stalled", "diverged"}


def test_columns_are_those_of_the_contract(finished: Path) -> None:
    with (finished / "results/tiny/runs.csv").open() as file:
        columns = file.readline().strip().split(",")
    both = ("encoder", "decoder")
    assert columns == [
        *("study", "run_id", "scheme", "scheme_options", "family"),
        *("encoder_layers", "decoder_layers", "seed", "model.depth", "tuned_over"),
        *("outcome", "reason", "diverged_at", "final_loss", "best_loss"),
        *("baseline_loss", "reference_loss", "metric_accuracy"),
        *(f"grad_norm_first_{stack}_init" for stack in both),
        *(f"grad_norm_first_{stack}" for stack in both),
        *(f"grad_norm_first_{stack}_matrices" for stack in both),
        *(f"grad_norm_ratio_{stack}" for stack in both),
        *(f"grad_ratio_stream_{stack}" for stack in both),
        *("update_norm", "steps", "tokens", "parameters", "flops", "seconds", "peak_memory_mb"),
        *("attempts", "spikes", "skipped_steps", "data_sha", "wiring_sha", "protocol", "commit"),
        *("torch", "device", "precision", "threads", "finished"),
    ]


def test_a_finished_study_trains_nothing_and_leaves_its_files_as_they_are(finished: Path) -> None:
    files = sorted((finished / "results/tiny").iterdir())
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
    harness_in(finished)("run", "./tiny.py")
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files} == before


def test_one_worker_gives_the_same_record_bit_for_bit(finished: Path, tmp_path: Path) -> None:
    write_study(tmp_path, ["post_norm", "rezero"])
    harness_in(tmp_path)("run", "./tiny.py", "--workers", "1")
    assert measured(tmp_path) == measured(finished)
    assert rows(tmp_path) != rows(finished)  # in cost and provenance
    for name in ("curves.csv.gz", *(f"{figure}.json" for figure in FIGURES)):
        path = f"results/tiny/{name}"
        assert (tmp_path / path).read_bytes() == (finished / path).read_bytes(), name


def test_a_grown_axis_trains_only_its_new_cells(copy: Path) -> None:
    before = rows(copy)
    write_study(copy, ["post_norm", "rezero", "deepnorm"])
    dry = harness_in(copy)("run", "./tiny.py", "--dry-run")
    assert dry.stderr == "4 of 12 cells would run\n"
    assert all("scheme=deepnorm" in line for line in dry.stdout.splitlines())
    harness_in(copy)("run", "./tiny.py")
    after = rows(copy)
    assert [r for r in after if r["scheme"] != "deepnorm"] == before
    assert len(after) == 12
    status = json.loads(harness_in(copy)("status", "./tiny.py", "--json").stdout)
    assert status["imported"] == 8


def test_only_runs_a_part_and_status_counts_the_rest_as_missing(tmp_path: Path) -> None:
    write_study(tmp_path, ["rezero"])
    harness_in(tmp_path)("run", "./tiny.py", "--only", "model.depth=1")
    assert [(r["model.depth"], r["seed"]) for r in rows(tmp_path)] == [("1", "0"), ("1", "1")]
    status = json.loads(harness_in(tmp_path)("status", "./tiny.py", "--json").stdout)
    six = ("trained", "stalled", "diverged", "crashed", "running", "missing")
    assert status["missing"] == 2
    assert sum(status[name] for name in six) == status["cells"] == 4
    assert status["seconds_left"] > 0
    refused = harness_in(tmp_path)("plot", "./tiny.py", code=2)
    assert refused.stderr == (
        "tiny: 2 of 4 cells have no run; make them with 'harness run ./tiny.py', "
        "or draw what is there with --partial\n"
    )
    harness_in(tmp_path)("plot", "./tiny.py", "--partial")


def test_cells_that_leave_the_plan_retire_and_return_untrained(copy: Path) -> None:
    before = (copy / "results/tiny/runs.csv").read_bytes()
    write_study(copy, ["rezero"])
    harness_in(copy)("run", "./tiny.py")
    assert {r["scheme"] for r in rows(copy)} == {"rezero"}
    status = json.loads(harness_in(copy)("status", "./tiny.py", "--json").stdout)
    assert (status["cells"], status["retired"]) == (4, 4)
    write_study(copy, ["post_norm", "rezero"])
    harness_in(copy)("run", "./tiny.py")
    assert (copy / "results/tiny/runs.csv").read_bytes() == before


def test_a_clone_redraws_the_same_bytes_without_state(copy: Path, finished: Path) -> None:
    for path in [*(copy / "results/tiny").glob("*.svg"), *(copy / "results/tiny").glob("*.png")]:
        path.unlink()
    drawn = harness_in(copy)("plot", "./tiny.py").stdout.split()
    assert tuple(Path(line).stem for line in drawn) == FIGURES
    for line in drawn:
        for suffix in (".svg", ".png", ".json"):
            path = Path(line).with_suffix(suffix)
            assert (copy / path).read_bytes() == (finished / path).read_bytes()


def test_workers_find_the_neighbour_that_a_study_imports(tmp_path: Path) -> None:
    head, found, rest = STUDY.partition('@scheme("none")')
    code, ends, rest = (found + rest).partition("\nSTUDY")
    (tmp_path / "neighbour.py").write_text(head.partition("\n")[2] + code)
    (tmp_path / "tiny.py").write_text(
        f"{head}import neighbour\n{ends}{rest}".replace("SCHEMES", "['broken']")
    )
    only = ("--only", "model.depth=1", "--only", "seed=0")
    harness_in(tmp_path)("run", "./tiny.py", "--workers", "1", *only)
    assert [r["scheme"] for r in rows(tmp_path)] == ["broken"]


def test_a_crashed_cell_is_an_error_that_waits_for_retry(tmp_path: Path) -> None:
    write_study(tmp_path, ["broken"])
    call = harness_in(tmp_path)
    first = call("run", "./tiny.py", code=1)
    outcomes = [(r["outcome"], r["reason"]) for r in rows(tmp_path)]
    assert outcomes[2:] == [("crashed", "ZeroDivisionError")] * 2
    assert "crashed" not in [outcome for outcome, _ in outcomes[:2]]
    progress = [line for line in first.stderr.splitlines() if line.startswith("tiny: 4/4 cells")]
    failed = Counter(outcome for outcome, _ in outcomes if outcome != "trained")
    told = [f"{failed[name]} {name}" for name in ("stalled", "diverged", "crashed") if failed[name]]
    assert progress[0].startswith(", ".join(["tiny: 4/4 cells", *told]))
    assert first.stderr.count("(ZeroDivisionError: no second layer); try again with --retry") == 2
    place = "tiny.py: scheme 'broken': decoder layer 2 of 2, self"
    told = f"{place}: ZeroDivisionError: no second layer; such cells crash\n"
    dry = ("run", "./tiny.py", "--dry-run")
    assert call(*dry).stderr == f"{told}0 of 4 cells would run\n"
    assert call(*dry, "--retry").stderr == f"{told}2 of 4 cells would run\n"
    call("run", "./tiny.py", code=1)  # not tried again
    assert [r["attempts"] for r in rows(tmp_path)[2:]] == ["1", "1"]
    call("run", "./tiny.py", "--retry", code=1)
    assert [r["attempts"] for r in rows(tmp_path)[2:]] == ["2", "2"]
    runs = tracked(tmp_path)
    assert sorted(run.info.status for run in runs) == ["FAILED"] * 4 + ["FINISHED"] * 2


def tracked(folder: Path) -> list:  # type: ignore[type-arg]
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / '.harness/mlflow.db'}")
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


def test_the_tracker_holds_one_run_a_cell_with_tags_scalars_and_artifacts(finished: Path) -> None:
    runs = tracked(finished)
    assert len(runs) == 8
    by_id = {r["run_id"]: r for r in rows(finished)}
    for each in runs:
        row = by_id.pop(each.data.tags["run_id"])
        assert each.info.status == "FINISHED"
        assert each.data.tags["outcome"] == row["outcome"]
        assert each.data.tags["study"] == "tiny"
        assert float(row["final_loss"]) == pytest.approx(each.data.metrics["loss/valid"], rel=1e-5)
        assert {"loss/train", "lr", "grad_norm/first_decoder", "update_norm"} <= set(
            each.data.metrics
        )
        artifacts = Path(each.info.artifact_uri.removeprefix("file://"))
        assert artifacts.is_relative_to(finished / ".harness")
        assert {path.name for path in artifacts.iterdir()} == {"curves.npz", "config.json"}
    assert not by_id
    assert not (finished / "mlruns").exists()


OWN = """@scheme("none")
def gated(at: Place) -> Wiring:
    \"\"\"x + a F(LN(x)), a learned from l / 10 for the feed-forwards of layers from 2 on\"\"\"
    learns = at.sublayer == "ffn" and at.layer > 1
    return Wiring(norms=on("input"), branch=Learned(at.layer / 10) if learns else 1.0)

"""


def test_a_learned_coefficient_of_ones_own_is_in_curves_and_tracker_by_block(
    finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished / ".harness", tmp_path / ".harness")
    study = STUDY.replace("import Place", "import Learned, Place").replace(
        "STUDY =", f"{OWN}STUDY ="
    )
    for old, new in (("SCHEMES", '["gated"]'), ("[1, 2]", "[4]"), ("[0, 1]", "[0]")):
        study = study.replace(old, new)
    (tmp_path / "gates.py").write_text(study)
    harness_in(tmp_path)("run", "./gates.py")
    with gzip.open(tmp_path / "results/gates/curves.csv.gz", "rt") as file:
        curves = [r for r in csv.DictReader(file) if r["series"].startswith("coefficient")]
    assert {r["series"] for r in curves} == {"coefficient/decoder/ffn.branch"}
    assert [(int(r["step"]), int(r["block"])) for r in curves] == [
        (step, block) for step in range(13) for block in (2, 3, 4)
    ]
    assert [float(r["value"]) for r in curves[:3]] == [0.2, 0.3, 0.4]
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / '.harness/mlflow.db'}")
    experiment = client.get_experiment_by_name("gates")
    assert experiment is not None
    (run_,) = client.search_runs([experiment.experiment_id])
    for end, block in (("first", "2"), ("last", "4")):
        name = f"coefficient/{end}_decoder/ffn.branch"
        history = client.get_metric_history(run_.info.run_id, name)
        own = [float(r["value"]) for r in curves if r["block"] == block]
        assert [m.step for m in history] == list(range(13))
        assert [m.value for m in history] == pytest.approx(own, rel=1e-3)
        assert own[-1] != own[0]


def test_an_interrupted_run_continues_where_it_was(tmp_path: Path) -> None:
    write_study(tmp_path, ["post_norm", "rezero"])
    text = (tmp_path / "tiny.py").read_text().replace('"steps": 12', '"steps": 200')
    (tmp_path / "tiny.py").write_text(text)
    for stop, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        command = Command(tmp_path, "run", "./tiny.py", "--workers", "2")
        while "minutes left" not in command.errors():  # a cell has ended, others are under way
            assert not command.ended(), command.errors()
            time.sleep(0.02)
        command.kill(stop)
        assert command.wait()[0] == code
    finished_before = len(rows(tmp_path))
    assert 1 <= finished_before < 8
    harness_in(tmp_path)("run", "./tiny.py")
    assert len(rows(tmp_path)) == 8
    assert {run.info.status for run in tracked(tmp_path)} <= {"FINISHED", "KILLED"}


def test_the_page_of_the_tracker_opens_on_loopback(finished: Path) -> None:
    from urllib.error import URLError
    from urllib.request import urlopen

    command = [sys.executable, "-m", "harness", "ui", "--port", "5917"]
    process = subprocess.Popen(
        command,
        cwd=finished,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                page = urlopen("http://127.0.0.1:5917/", timeout=5).read()
                break
            except OSError:
                time.sleep(0.5)
        else:
            pytest.fail("no page within a minute")
        assert b"MLflow" in page
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 143
    with pytest.raises(URLError, match="refused"):  # the server is gone, too
        urlopen("http://127.0.0.1:5917/", timeout=5)
