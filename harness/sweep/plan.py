"""What a study means: its cells, and how its tuning decides what they are. No torch, no Optuna."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from harness.training.config import Config, canonical, parse, with_value

Row = Mapping[str, str]
Values = tuple[Any, ...]


@dataclass(frozen=True)
class Cell:
    """One combination of the axes, seed included. While its tuned values are not chosen, its
    config holds the first of them."""

    config: Config
    values: Values  # one an axis
    chosen: bool = True  # by --only

    @property
    def key(self) -> str:
        return self.config.run_id

    @property
    def cost(self) -> float:
        """Grows with the seconds a run takes; only ratios mean anything."""
        model, train = self.config.model, self.config.train
        tokens = max(1, train.steps) * train.accumulation * train.batch * train.length
        return (
            tokens * (model.encoders + model.decoders) * (model.width**2 + model.width * model.ffn)
        )


@dataclass(frozen=True)
class Plan:
    """The cells of a study in order: what `run` completes and `file` holds."""

    name: str
    source: Path
    code: str  # what the source held when it was read
    axes: tuple[str, ...]
    cells: tuple[Cell, ...]
    figures: tuple[Any, ...]  # of harness.analysis.figures, which this room must not import
    words: str  # by which the command line names it: the study's argument and its --set
    file: str = "runs.csv"
    tuned: tuple[str, ...] = ()  # paths whose values `tuning` chooses for each point
    tried: int = 0  # how many values of them
    waiting: tuple[Cell, ...] = ()  # cells whose tuned values are not chosen
    tuning: "Plan | None" = None  # the cells that choose

    @property
    def command(self) -> str:
        """What runs it."""
        return self.named("run")

    def named(self, command: str) -> str:
        return f"harness {command} {self.words}"

    @property
    def size(self) -> int:
        """Runs that it ends with, those of its tuning not counted."""
        return len(self.cells) + len(self.waiting)

    @cached_property
    def by_key(self) -> dict[str, Cell]:
        return {cell.key: cell for cell in self.cells}

    @cached_property
    def chosen(self) -> frozenset[str]:
        """Keys that --only leaves."""
        return frozenset(cell.key for cell in self.cells if cell.chosen)

    def point(self, cell: Cell) -> tuple[str, ...]:
        """A cell's values without its seed."""
        named = zip(self.axes, cell.values, strict=True)
        return tuple(spelling(value) for axis, value in named if axis != "seed")


def with_tuning(plan: Plan, values: Mapping[str, Sequence[Any]], seeds: Sequence[int]) -> Plan:
    """The plan as it is before anything is tuned: every point runs every value on every seed."""
    combinations: list[dict[str, Any]] = [{}]
    for path, each in values.items():
        combinations = [{**given, path: value} for given in combinations for value in each]
    cells: dict[str, Cell] = {}
    for point in _one_a_point(plan):
        for given in combinations:
            for seed in seeds:
                config = _changed(plan, point.config, {**given, "seed": seed})
                at = tuple(config.at(path) for path in plan.axes)
                cell = Cell(config, at, point.chosen)
                cells.setdefault(cell.key, cell)
    tuned, seeds_tried = tuple(values), len(dict.fromkeys(seeds))
    tried = len(cells) // seeds_tried // len(_one_a_point(plan))
    plan = replace(plan, tuned=tuned, tried=tried)
    tuning = replace(plan, cells=tuple(cells.values()), file="tuning.csv")
    return replace(plan, cells=(), waiting=plan.cells, tuning=tuning)


def _one_a_point(plan: Plan) -> list[Cell]:
    """A cell of each point, chosen if any of the point's is."""
    points: dict[tuple[str, ...], Cell] = {}
    for cell in plan.cells:
        first = points.setdefault(plan.point(cell), cell)
        if cell.chosen and not first.chosen:
            points[plan.point(cell)] = cell
    return list(points.values())


def resolved(plan: Plan, rows: Mapping[str, Row]) -> Plan:
    """The plan with the values that the rows of its tuning, by run_id, have chosen; cells of a
    point whose tuning is not complete go on waiting."""
    if plan.tuning is None:
        return plan
    tried: dict[tuple[str, ...], dict[Values, list[Row | None]]] = {}
    for cell in plan.tuning.cells:
        values = tuple(cell.config.at(path) for path in plan.tuned)
        tried.setdefault(plan.point(cell), {}).setdefault(values, []).append(rows.get(cell.key))
    best = {point: best_of(each) for point, each in tried.items()}
    cells: list[Cell] = []
    waiting: list[Cell] = []
    for cell in plan.waiting:
        chosen = best[plan.point(cell)]
        if chosen is None:
            waiting.append(cell)
        else:
            given = dict(zip(plan.tuned, chosen, strict=True))
            cells.append(replace(cell, config=_changed(plan, cell.config, given)))
    return replace(plan, cells=tuple(cells), waiting=tuple(waiting))


def best_of(tried: Mapping[Values, Sequence[Row | None]]) -> Values | None:
    """The values with the lowest mean final loss, a failed run counting as infinity; if all fail,
    with the lowest mean last finite loss; of equals the smaller. None while a run is missing.

    Reads what rows say, not what runs measured: a clone chooses as the first run did.
    """
    complete: dict[Values, list[Row]] = {}
    for values, rows in tried.items():
        complete[values] = [r for r in rows if r is not None and r["outcome"] != "crashed"]
        if len(complete[values]) < len(rows):
            return None
    scores: list[Callable[[Row], float]] = [_final_loss, _last_loss]
    for score in scores:
        means = {values: fmean(map(score, rows)) for values, rows in complete.items()}
        lowest = min(means.values())
        if math.isfinite(lowest):
            break
    return min(values for values, mean in means.items() if mean == lowest)


def _final_loss(r: Row) -> float:
    return float(r["final_loss"]) if r["outcome"] == "trained" else math.inf


def _last_loss(r: Row) -> float:
    return float(r.get("last_loss") or math.inf)


def _changed(plan: Plan, config: Config, values: Mapping[str, Any]) -> Config:
    given = config.model_dump(mode="json")
    for path, value in values.items():
        given = with_value(given, path, value)
    return parse(given, str(plan.source))


def spelling(value: Any) -> str:
    """A config value as it stands in rows: text bare, tables as canonical JSON, numbers by repr."""
    if isinstance(value, str):
        return value
    return canonical(value) if isinstance(value, Mapping | list | tuple) else repr(value)
