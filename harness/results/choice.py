"""What the rows of a tuning choose, and what a study's cells are then. No torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Context, Decimal
from statistics import fmean

from harness.errors import ConfigError
from harness.sweep.plan import Cell, Plan, Point, Values, changed, tried_over

Row = Mapping[str, str]
Tried = dict[Values, list[Cell]]  # a cell for each seed
FAILED_AS = 2.0  # baselines that a diverged run counts as


def resolved(plan: Plan, rows: Mapping[str, Row]) -> Plan:
    """The plan with the values that the rows of its tuning, by run_id, have chosen, and with what
    these rows make the tuning try beyond its grid; cells of a point whose tuning is not complete go
    on waiting."""
    if plan.tuning is None:
        return plan
    tuning = grown(plan.tuning, rows)
    best = {point: best_of(_rows_of(each, rows)) for point, each in _tried(tuning).items()}
    cells: list[Cell] = []
    waiting: list[Cell] = []
    for cell in plan.waiting:
        chosen = best[plan.point(cell)]
        if chosen is None:
            waiting.append(cell)
        else:
            given = dict(zip(plan.tuned, chosen, strict=True))
            cells.append(replace(cell, config=changed(plan, cell.config, given)))
    plan = replace(plan, tuning=tuning, tried=tuning.tried)
    return replace(plan, cells=tuple(cells), waiting=tuple(waiting))


def grown(tuning: Plan, rows: Mapping[str, Row]) -> Plan:
    """The tuning with the values beyond its grid that these rows ask for: while the best value of a
    point stands at an end of what was tried, the next one beyond that end, at most `extend`."""
    if not tuning.extend:
        return tuning
    cells: list[Cell] = []
    for each in _tried(tuning).values():
        for _ in range(tuning.extend):
            best = best_of(_rows_of(each, rows))
            added = best and _next(tuning, each, best)
            if not added:
                break
            each |= added
        cells += [cell for own in each.values() for cell in own]
    return tried_over(tuning, cells)


def possible(plan: Plan) -> frozenset[str]:
    """Keys that the plan may get from its tuning: of waiting cells, of a tuning those of values
    beyond its grid."""
    tuning = plan.tuning or plan
    if not plan.waiting and (plan.tuning or not plan.extend):
        return frozenset()
    tried = _tried(tuning)
    for each in tried.values() if tuning.extend else ():
        for end in (min, max):
            for _ in range(tuning.extend):
                each |= _next(tuning, each, end(each)) or {}
    if not plan.tuning:
        return frozenset(c.key for each in tried.values() for own in each.values() for c in own)
    return frozenset(
        replace(
            cell, config=changed(plan, cell.config, dict(zip(plan.tuned, values, strict=True)))
        ).key
        for cell in plan.waiting
        for values in tried[plan.point(cell)]
    )


def _next(tuning: Plan, tried: Tried, best: Values) -> Tried:
    """The cells of the value beyond the best one, if that is an end of those tried; none if there
    is no such value, or if no config can have it."""
    (path,), numbers = tuning.tuned, [value for (value,) in tried]
    if best[0] not in (min(numbers), max(numbers)):
        return {}
    value = beyond(numbers, upwards=best[0] == max(numbers))
    if value is None:
        return {}
    try:
        configs = [changed(tuning, cell.config, {path: value}) for cell in tried[best]]
    except ConfigError:
        return {}
    cells = [replace(cell, config=c) for cell, c in zip(tried[best], configs, strict=True)]
    values = (configs[0].at(path),)
    return {} if values in tried else {values: cells}


def beyond(values: Sequence[float], *, upwards: bool) -> float | None:
    """The next value beyond the largest or the smallest of at least two positive numbers.

    If the end repeats a value of the decade before (1, 3, 10 or 1, 2, 5, 10), it goes on as that
    decade did: 30, 20. Else it is end * end / neighbour, with as many significant digits as the
    values have, at least two: 1, 2, 4 goes on with 8. Integers stay integers. None if that is not
    beyond the end.
    """
    whole = all(isinstance(value, int) for value in values)
    found = sorted({Decimal(repr(value)) for value in values}, reverse=not upwards)
    end, decade = found[-1], Decimal("10") if upwards else Decimal("0.1")
    if end / decade in found:
        following = found[found.index(end / decade) + 1] * decade
    else:
        digits = max(2, *(len(value.normalize().as_tuple().digits) for value in found))
        following = Context(prec=digits).divide(end * end, found[-2])
    if whole:
        following = following.to_integral_value()
    if not following or (following > end) != upwards or following == end:
        return None
    return int(following) if whole else float(following)


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


def _tried(tuning: Plan) -> dict[Point, Tried]:
    """The cells of a tuning by point and values."""
    found: dict[Point, Tried] = {}
    for cell in tuning.cells:
        values = tuple(cell.config.at(path) for path in tuning.tuned)
        found.setdefault(tuning.point(cell), {}).setdefault(values, []).append(cell)
    return found


def _rows_of(tried: Tried, rows: Mapping[str, Row]) -> dict[Values, list[Row | None]]:
    return {values: [rows.get(cell.key) for cell in cells] for values, cells in tried.items()}
