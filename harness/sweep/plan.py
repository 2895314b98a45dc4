"""What a study means: its cells, and those of its tuning. No torch, no Optuna."""

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.training.config import PROTOCOL, Config, canonical, parse, with_value

Values = tuple[Any, ...]
Point = tuple[str, ...]  # a cell's values without its seed, spelled

HELD_OUT = "train.held_out"  # what the runs of a tuning change beside tuned values and seed
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
    protocol: int = PROTOCOL

    @cached_property
    def key(self) -> str:
        config = self.config  # which keeps today's
        return config.run_id if self.protocol == PROTOCOL else config.run_id_of(self.protocol)

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
    tried: Mapping[Point, int] = field(default_factory=dict)  # how many values of each point
    extend: int = 0  # how many values beyond its grid the tuning may try for a point
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

    def of(self, protocol: int) -> "Plan":
        """The plan with its cells as a protocol named them."""
        return replace(
            self,
            cells=tuple(replace(cell, protocol=protocol) for cell in self.cells),
            waiting=tuple(replace(cell, protocol=protocol) for cell in self.waiting),
            tuning=self.tuning and self.tuning.of(protocol),
        )

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

    def point(self, cell: Cell) -> Point:
        """A cell's values without its seed."""
        named = zip(self.axes, cell.values, strict=True)
        return tuple(spelling(value) for axis, value in named if axis != "seed")


def with_tuning(
    plan: Plan,
    values: Mapping[str, Sequence[Any]],
    seeds: Sequence[int],
    extend: int = 0,
) -> Plan:
    """The plan as it is before anything is tuned: every point runs every value on every seed, and
    validates on what a tuning holds out. Rows decide which values beyond these are tried, at most
    `extend` for a point."""
    combinations: list[dict[str, Any]] = [{}]
    for path, each in values.items():
        combinations = [{**given, path: value} for given in combinations for value in each]
    cells: dict[str, Cell] = {}
    for point in _one_a_point(plan):
        for given in combinations:
            for seed in seeds:
                chosen_on = {"seed": seed, HELD_OUT: "tuning"}
                config = changed(plan, point.config, {**given, **chosen_on})
                named = zip(plan.axes, point.values, strict=True)
                at = tuple(seed if axis == "seed" else value for axis, value in named)
                cell = Cell(config, at, point.selected)
                cells.setdefault(cell.key, cell)
    plan = replace(plan, tuned=tuple(values), extend=extend)
    tuning = tried_over(replace(plan, file="tuning.csv"), list(cells.values()))
    return replace(plan, cells=(), waiting=plan.cells, tuning=tuning, tried=tuning.tried)


def tried_over(tuning: Plan, cells: Sequence[Cell]) -> Plan:
    """The tuning with these cells, and with how many values they try for each point."""
    found: dict[Point, set[Values]] = {}
    for cell in cells:
        values = tuple(cell.config.at(path) for path in tuning.tuned)
        found.setdefault(tuning.point(cell), set()).add(values)
    tried = {point: len(each) for point, each in found.items()}
    return replace(tuning, cells=tuple(cells), tried=tried)


def _one_a_point(plan: Plan) -> list[Cell]:
    """A cell of each point, selected if any of the point's is."""
    points: dict[Point, Cell] = {}
    for cell in plan.cells:
        first = points.setdefault(plan.point(cell), cell)
        if cell.selected and not first.selected:
            points[plan.point(cell)] = cell
    return list(points.values())


def changed(plan: Plan, config: Config, values: Mapping[str, Any]) -> Config:
    """The config with these values by path; ConfigError for one that it cannot have."""
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
