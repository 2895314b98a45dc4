"""What `run`, `status` and `ui` do: plan, ledger, workers and results brought together."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from harness.analysis import figures
from harness.analysis.records import Results, Row, row
from harness.data.tasks import data_sha
from harness.errors import ConfigError
from harness.sweep.study import Cell, Plan, load, shown

FAILED = ("stalled", "diverged", "crashed")


def run_study(
    study: str,
    sets: Sequence[str],
    only: Sequence[str],
    workers: int | None,
    retry: bool,
    dry_run: bool,
    state: Path,
    results: Path,
    data: Path,
    storage: str | None,
) -> int:
    """Runs a study's missing cells and writes all that follows from them; the exit code."""
    plan = load(study, sets, only)
    _check_precision(plan)
    found = Results(results, plan)
    shas = _shas(plan, data)
    rows = found.rows(shas)
    if dry_run:
        wanted = _wanted(plan, rows, {})
        for cell in wanted:
            print(cell.key, *(f"{a}={v}" for a, v in zip(plan.axes, cell.values, strict=True)))
        print(f"{len(wanted)} of {len(plan.cells)} cells would run", file=sys.stderr)
        return 0

    from harness.sweep.ledger import Ledger
    from harness.sweep.worker import Job, commit, cores, supervise

    ledger = Ledger(plan.name, state, storage, shas)
    if retry:
        ledger.retry()
    ledger.recover()
    standing = ledger.standing()
    rows = _merge(plan, rows, standing)
    found.write(rows)
    wanted = _wanted(plan, rows, standing.crashed)
    try:
        if wanted:
            keys = tuple(cell.key for cell in wanted)
            job = Job(study, tuple(sets), keys, shas, state, data, storage, commit())
            with Bar(plan, rows, wanted) as told:
                for standing in supervise(ledger, job, min(workers or cores(), len(wanted))):
                    rows = _merge(plan, rows, standing)
                    found.write(rows)
                    told(rows)
            standing = ledger.standing()
            rows = _merge(plan, rows, standing)
            found.write(rows)
    finally:
        _write_curves(plan, standing.accepted, found, state)
    if rows:
        table = found.table()
        for figure in plan.figures:
            if figures.stale(figure, table, found.folder):
                figures.draw(figure, table, found.folder)
    return _conclude(plan, rows, wanted, study)


def study_status(
    study: str, sets: Sequence[str], state: Path, results: Path, data: Path, storage: str | None
) -> dict[str, Any]:
    """Counts of a study's cells; reads and writes nothing else."""
    plan = load(study, sets)
    found = Results(results, plan)
    shas = _shas(plan, data)
    rows = found.rows(shas)
    running: set[str] = set()
    accepted: Mapping[str, Any] = {}
    if storage or (state / "ledger.db").exists():
        from harness.sweep.ledger import Ledger

        standing = Ledger(plan.name, state, storage, shas).standing()
        running, accepted = standing.running & plan.by_key.keys(), standing.accepted
        rows = _merge(plan, rows, standing)
    outcomes = [r["outcome"] for r in rows.values()]
    running -= rows.keys()
    counts = {name: outcomes.count(name) for name in ("trained", *FAILED)}
    missing = [cell for cell in plan.cells if cell.key not in rows and cell.key not in running]
    return {
        "study": plan.name,
        "cells": len(plan.cells),
        **counts,
        "running": len(running),
        "missing": len(missing),
        "retired": len(found.retired()),
        "imported": sum(
            key not in accepted for key, r in rows.items() if r["outcome"] != "crashed"
        ),
        "seconds_left": _seconds_left(plan, rows, missing),
    }


def serve(state: Path, port: int) -> int:
    from harness.sweep.tracking import tracking_uri

    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", tracking_uri(state)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    return subprocess.run(command, check=False).returncode


def _check_precision(plan: Plan) -> None:
    if any(cell.config.train.precision == "16-mixed" for cell in plan.cells):
        import torch

        if not torch.cuda.is_available():
            where = f"{shown(plan.source)}: train.precision"
            raise ConfigError(f"{where}: 16-mixed needs a GPU, got none; use bf16-mixed")


def _shas(plan: Plan, data: Path) -> dict[str, str]:
    """By cell: the hash of its corpus as it is at hand."""
    options = {cell.config.data for cell in plan.cells}
    at_hand = {option: data_sha(option, data) for option in options}
    return {cell.key: at_hand[cell.config.data] for cell in plan.cells}


def _merge(plan: Plan, rows: Mapping[str, Row], standing: Any) -> dict[str, Row]:
    """The rows with what the ledger has added; a crash never replaces a result."""
    merged = {key: r for key, r in rows.items() if r["outcome"] != "crashed"}
    for key, record in {**standing.crashed, **standing.accepted}.items():
        if key in plan.by_key and key not in merged:
            merged[key] = row(plan, plan.by_key[key], record)
    return merged


def _wanted(plan: Plan, rows: Mapping[str, Row], crashed: Mapping[str, Any]) -> list[Cell]:
    done = {key for key, r in rows.items() if r["outcome"] != "crashed"} | crashed.keys()
    return [cell for cell in plan.cells if cell.key in plan.chosen and cell.key not in done]


def _write_curves(plan: Plan, accepted: Mapping[str, Any], found: Results, state: Path) -> None:
    absent = [key for key in accepted if key in plan.by_key and key not in found.runs_with_curves()]
    if absent:
        from harness.sweep.tracking import Tracker

        tracker = Tracker(plan.name, state)
        found.write_curves({key: tracker.curves(accepted[key]["tracked"]) for key in absent})


def _seconds_left(plan: Plan, rows: Mapping[str, Row], missing: list[Cell]) -> float | None:
    """Seconds of training that one worker has left, by what finished runs took; None before any."""
    done = [
        (plan.by_key[key].cost, float(r["seconds"])) for key, r in rows.items() if r.get("seconds")
    ]
    if not done:
        return None if missing else 0.0
    rate = sum(seconds for _, seconds in done) / sum(cost for cost, _ in done)
    return round(rate * sum(cell.cost for cell in missing), 1)


class Bar:
    """Progress on stderr: cells done, failed, time left; line by line without a terminal."""

    def __init__(self, plan: Plan, rows: Mapping[str, Row], wanted: list[Cell]) -> None:
        self.plan, self.wanted, self.shown = plan, wanted, ""
        console = Console(stderr=True)
        self.live = console.is_terminal
        columns = (TextColumn(plan.name), BarColumn(), TextColumn("{task.description}"))
        self.bar = Progress(*columns, console=console, disable=not self.live)
        self.task = self.bar.add_task("", total=len(plan.cells))
        self(rows)

    def __enter__(self) -> "Bar":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, rows: Mapping[str, Row]) -> None:
        failed = sum(r["outcome"] in FAILED for r in rows.values())
        left = _seconds_left(self.plan, rows, [c for c in self.wanted if c.key not in rows])
        words = f"{len(rows)}/{len(self.plan.cells)} cells, {failed} failed"
        words += "" if left is None else f", {left / 60:.1f} min of training left"
        self.bar.update(self.task, completed=len(rows), description=words)
        if words != self.shown and not self.live:
            print(f"{self.plan.name}: {words}", file=sys.stderr, flush=True)
        self.shown = words


def _conclude(plan: Plan, rows: Mapping[str, Row], wanted: list[Cell], study: str) -> int:
    crashed = [r for r in rows.values() if r["outcome"] == "crashed"]
    for r in crashed:
        print(f"crashed: {r['run_id']} ({r['reason']}); try again with --retry", file=sys.stderr)
    unfinished = [cell for cell in wanted if cell.key not in rows]
    if unfinished:
        print(
            f"{len(unfinished)} cells are unfinished; continue with 'harness run {study}'",
            file=sys.stderr,
        )
    return 1 if crashed or unfinished else 0
