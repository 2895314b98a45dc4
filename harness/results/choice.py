"""What the rows of a tuning choose, and what a study's cells are then. No torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from harness.sweep.plan import Cell, Plan, Values, changed

Row = Mapping[str, str]
FAILED_AS = 2.0  # baselines that a diverged run counts as


def resolved(plan: Plan, rows: Mapping[str, Row]) -> Plan:
    """The plan with the values that the rows of its tuning, by run_id, have chosen; cells of a
    point whose tuning is not complete go on waiting."""
    if plan.tuning is None:
        return plan
    best = {
        point: best_of(
            {values: [rows.get(cell.key) for cell in cells] for values, cells in each.items()}
        )
        for point, each in _tried(plan).items()
    }
    cells: list[Cell] = []
    waiting: list[Cell] = []
    for cell in plan.waiting:
        chosen = best[plan.point(cell)]
        if chosen is None:
            waiting.append(cell)
        else:
            given = dict(zip(plan.tuned, chosen, strict=True))
            cells.append(replace(cell, config=changed(plan, cell.config, given)))
    return replace(plan, cells=tuple(cells), waiting=tuple(waiting))


def possible(plan: Plan) -> frozenset[str]:
    """Keys that waiting cells may get from the tuning."""
    if not plan.waiting or not plan.tuning:
        return frozenset()
    tried = _tried(plan)
    return frozenset(
        changed(plan, cell.config, dict(zip(plan.tuned, values, strict=True))).run_id
        for cell in plan.waiting
        for values in tried[plan.point(cell)]
    )


def best_of(tried: Mapping[Values, Sequence[Row | None]]) -> Values | None:
    """The values with the fewest diverged runs, of these with the fewest stalled, of these with the
    lowest mean validation loss, a diverged run counting as twice its baseline; of equals the
    smaller. None while a run is missing or crashed.

    Reads what rows say, not what runs measured: a clone chooses as the first run did.
    """
    complete: dict[Values, list[Row]] = {}
    for values, rows in tried.items():
        complete[values] = [r for r in rows if r is not None and r["outcome"] != "crashed"]
        if len(complete[values]) < len(rows):
            return None
    return min(complete, key=lambda values: (*_badness(complete[values]), values))


def _badness(rows: Sequence[Row]) -> tuple[int, int, float]:
    outcomes = [r["outcome"] for r in rows]
    return outcomes.count("diverged"), outcomes.count("stalled"), fmean(map(_loss, rows))


def _loss(r: Row) -> float:
    if r["outcome"] == "diverged":
        return FAILED_AS * float(r.get("baseline_loss") or math.inf)
    return float(r["final_loss"])


def _tried(plan: Plan) -> dict[tuple[str, ...], dict[Values, list[Cell]]]:
    """The cells of the tuning by point and values."""
    assert plan.tuning
    found: dict[tuple[str, ...], dict[Values, list[Cell]]] = {}
    for cell in plan.tuning.cells:
        values = tuple(cell.config.at(path) for path in plan.tuned)
        found.setdefault(plan.point(cell), {}).setdefault(values, []).append(cell)
    return found
