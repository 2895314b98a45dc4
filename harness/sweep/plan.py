"""What a study means: its cells, and how its tuning decides what they are. No torch, no Optuna."""

import hashlib
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from harness.training.config import Config, canonical, parse, with_value

Row = Mapping[str, str]
Values = tuple[Any, ...]

LONGEST_NAME = 80  # bytes of the name of a variant or of a selection
# Options of a study's commands beside --set and --name, which all of them take.
SELECTING = ("only",)
FOLDERS = ("state", "results", "data")
TAKES = {
    **dict.fromkeys(("run", "worker"), (*SELECTING, *FOLDERS)),
    **dict.fromkeys(("collect", "recover", "verify"), FOLDERS),
    "status": (*SELECTING, *FOLDERS),
    **dict.fromkeys(("table", "plot"), (*SELECTING, "results")),
    "translations": (*SELECTING, "state", "results"),
}


@dataclass(frozen=True)
class Invocation:
    """How a command line names a study: what a command that a message advises has to repeat."""

    study: str
    sets: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    name: str = ""
    folders: Mapping[str, str] = field(default_factory=dict)  # those that are not the default

    def command(self, command: str) -> str:
        """A command line on the same study, for a shell."""
        words = ["harness", command, self.study]
        words += [word for text in self.sets for word in ("--set", text)]
        words += ["--name", self.name] if self.name else []
        if "only" in TAKES[command]:
            words += [word for text in self.only for word in ("--only", text)]
        for option in TAKES[command]:
            if folder := self.folders.get(option):
                words += [f"--{option}", folder]
        return " ".join(map(_quoted, words))


@dataclass(frozen=True)
class Cell:
    """One combination of the axes, seed included. While its tuned values are not chosen, its
    config holds the first of them."""

    config: Config
    values: Values  # one an axis
    selected: bool = True  # by --only, and by --set with values of the study file

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
    invocation: Invocation
    study: str = ""  # the study file's stem: the name of the study that this is, or varies
    variation: Mapping[str, Sequence[str]] = field(default_factory=dict)  # values that --set gives
    selection: str = ""  # spells the selected values; empty if all cells are selected
    file: str = "runs.csv"
    tuned: tuple[str, ...] = ()  # paths whose values `tuning` chooses for each point
    tried: int = 0  # how many values of them
    waiting: tuple[Cell, ...] = ()  # cells whose tuned values are not chosen
    tuning: "Plan | None" = None  # the cells that choose

    @property
    def command(self) -> str:
        """The command that runs it."""
        return self.invocation.command("run")

    @property
    def size(self) -> int:
        """Runs that it ends with, not counting those of its tuning."""
        return len(self.cells) + len(self.waiting)

    @property
    def selected(self) -> tuple[Cell, ...]:
        """The cells that this command runs, prints and draws."""
        return tuple(cell for cell in self.cells if cell.selected)

    @property
    def selected_waiting(self) -> tuple[Cell, ...]:
        """Selected cells whose tuned values are not chosen."""
        return tuple(cell for cell in self.waiting if cell.selected)

    @property
    def first_seeds(self) -> tuple[Cell, ...]:
        """The cell of each point that has the first seed of the axis."""
        points: dict[tuple[str, ...], Cell] = {}
        for cell in self.cells:
            points.setdefault(self.point(cell), cell)
        return tuple(points.values())

    @cached_property
    def by_key(self) -> dict[str, Cell]:
        return {cell.key: cell for cell in self.cells}

    @cached_property
    def possible(self) -> frozenset[str]:
        """Keys that waiting cells may get from the tuning."""
        if not self.waiting or not self.tuning:
            return frozenset()
        tried: dict[tuple[str, ...], dict[Values, None]] = {}
        for cell in self.tuning.cells:
            values = tuple(cell.config.at(path) for path in self.tuned)
            tried.setdefault(self.point(cell), {})[values] = None
        return frozenset(
            _changed(self, cell.config, dict(zip(self.tuned, values, strict=True))).run_id
            for cell in self.waiting
            for values in tried[self.point(cell)]
        )

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
                cell = Cell(config, at, point.selected)
                cells.setdefault(cell.key, cell)
    tuned, seeds_tried = tuple(values), len(dict.fromkeys(seeds))
    tried = len(cells) // seeds_tried // len(_one_a_point(plan))
    plan = replace(plan, tuned=tuned, tried=tried)
    tuning = replace(plan, cells=tuple(cells.values()), file="tuning.csv")
    return replace(plan, cells=(), waiting=plan.cells, tuning=tuning)


def _one_a_point(plan: Plan) -> list[Cell]:
    """A cell of each point, selected if any of the point's is."""
    points: dict[tuple[str, ...], Cell] = {}
    for cell in plan.cells:
        first = points.setdefault(plan.point(cell), cell)
        if cell.selected and not first.selected:
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


def _quoted(word: str) -> str:
    """The word for a shell. In double quotes if they do: messages put commands in single ones."""
    if re.fullmatch(r"[\w@%+=:,./~-]+", word):
        return word
    return shlex.quote(word) if set(word) & set("\"$`\\!'") else f'"{word}"'


def spelled(values: Mapping[str, Sequence[str]]) -> str:
    """'+path=v,v+path=v' of values by path."""
    return "".join(f"+{path}={','.join(each)}" for path, each in values.items())


def short(name: str) -> str:
    """The name as a file can have it: without '/', and of at most 80 bytes.

    A name that had to be changed ends with a hash of what it was, so that no two names become one.
    """
    plain = name.replace("/", "_")
    if plain == name and len(name.encode()) <= LONGEST_NAME:
        return name
    end = f"~{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return plain.encode()[: LONGEST_NAME - len(end)].decode(errors="ignore") + end
