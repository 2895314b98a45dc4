"""A study file's declarations, and the plan of cells they mean. No torch, no Optuna."""

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import harness
from harness.errors import ConfigError, did_you_mean
from harness.fields import read_list
from harness.training.config import Config, canonical, parse, read_toml, with_value

ROOT = Path(harness.__file__).resolve().parents[1]


@dataclass(frozen=True)
class Study:
    """What a study file declares: a base config (a TOML file beside the study or in configs/, or a
    table) and the values of each axis, by dotted config path."""

    base: str | Mapping[str, Any]
    axes: Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Cell:
    """One combination of the axes, seed included."""

    config: Config
    values: tuple[Any, ...]  # one an axis

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
    """The cells of a study in order: what `run` completes and runs.csv holds."""

    name: str
    source: Path
    code: str  # what the source held when it was read
    axes: tuple[str, ...]
    cells: tuple[Cell, ...]
    chosen: frozenset[str]  # keys that --only leaves
    figures: tuple[Any, ...]  # of harness.analysis.figures, which this room must not import
    words: str  # by which the command line names it: the study's argument and its --set

    @property
    def command(self) -> str:
        """What runs it."""
        return self.named("run")

    def named(self, command: str) -> str:
        return f"harness {command} {self.words}"

    @cached_property
    def by_key(self) -> dict[str, Cell]:
        return {cell.key: cell for cell in self.cells}


def load(argument: str, sets: Sequence[str] = (), only: Sequence[str] = ()) -> Plan:
    """The plan of a built-in study's name or a study file's path; else a ConfigError of one line.

    `sets` and `only` are command-line texts 'path=v[,v]'.
    """
    source = _locate(argument)
    try:
        code = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: cannot be read: {error}") from None
    module = execute(source, code)
    study = getattr(module, "STUDY", None)
    if not isinstance(study, Study):
        raise ConfigError(f"{source}: STUDY: missing; declare STUDY = Study(base=..., axes=...)")
    figures = getattr(module, "FIGURES", ())
    if not isinstance(figures, list | tuple) or not all(hasattr(f, "render") for f in figures):
        raise ConfigError(f"{source}: FIGURES: expected functions of harness.analysis.figures")
    if not isinstance(study.axes, Mapping) or not all(isinstance(p, str) for p in study.axes):
        raise ConfigError(f"{source}: axes: expected a table of lists by config path")
    base = _base(study, source)
    axes: dict[str, list[Any]] = {}
    for path, values in study.axes.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigError(f"{source}: axes: {path}: expected a list of values, got {values!r}")
        axes[path] = list(values)
    assigned = _assignments("--set", sets)
    variant = sorted(path for path in assigned if path not in axes)
    axes |= {path: assigned[path] for path in sorted(assigned)}
    for path in axes:
        for other in axes:
            if other.startswith(f"{path}."):
                raise ConfigError(f"{source}: axes: {path} holds {other}; keep one of the two")
    cells = _cells(base, axes, source)
    places = {path: list(axes).index(path) for path in variant}
    spelled = {
        path: dict.fromkeys(spelling(c.values[i]) for c in cells) for path, i in places.items()
    }
    # Spelled as parsed, in one order: 64 and 64.0 are one variant.
    name = "".join([source.stem, *(f"+{path}={','.join(v)}" for path, v in spelled.items())])
    return Plan(
        name=name.replace("/", "_"),
        source=source,
        code=code,
        axes=tuple(axes),
        cells=cells,
        chosen=_filter(cells, list(axes), _assignments("--only", only), source),
        figures=tuple(figures),
        words=" ".join([argument, *(f"--set {text}" for text in sets)]),
    )


def _locate(argument: str) -> Path:
    built_in = {path.stem: path for path in sorted((ROOT / "studies").glob("*.py"))}
    if "/" not in argument and not argument.endswith(".py"):
        if argument not in built_in:
            raise ConfigError(
                f"study '{argument}': not in studies/{did_you_mean(argument, built_in)}"
            )
        return built_in[argument]
    path = Path(argument).resolve()
    if not path.is_file():
        raise ConfigError(f"{argument}: no such study file; name a study or a path to one")
    shadowed = built_in.get(path.stem)
    if shadowed and shadowed != path:
        raise ConfigError(
            f"{argument}: the built-in study '{path.stem}' has this name; rename the file"
        )
    return path


def execute(source: Path, code: str) -> Any:
    """The study file as a module; what it raises is its author's to mend, and said in one line.

    `code` is what it held when the command began: workers that begin later must not see it edited.
    """
    module = ModuleType(f"studies.{source.stem}")
    module.__file__ = str(source)
    sys.modules[module.__name__] = module  # where dataclasses look for their annotations
    try:
        exec(compile(code, str(source), "exec"), module.__dict__)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    except (Exception, SystemExit) as error:  # a study file is the user's input
        line = error.lineno if isinstance(error, SyntaxError) else _line(error, source)
        raise ConfigError(f"{source}: line {line}: {type(error).__name__}: {error}") from None
    return module


def _line(error: BaseException, source: Path) -> int | None:
    found, trace = None, error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == str(source):
            found = trace.tb_lineno
        trace = trace.tb_next
    return found


def _base(study: Study, source: Path) -> Mapping[str, Any]:
    if isinstance(study.base, Mapping):
        return study.base
    if not isinstance(study.base, str):
        raise ConfigError(f"{source}: base: expected a file's name or a table, got {study.base!r}")
    beside = source.parent / study.base
    return read_toml(beside if beside.is_file() else ROOT / "configs" / study.base)


def _assignments(option: str, texts: Sequence[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for text in texts:
        path, equals, values = text.partition("=")
        if not equals or not path:
            raise ConfigError(f"{option} {text}: expected path=v or path=v,v")
        if path in found:
            raise ConfigError(f"{option} {path}: given twice; write {option} {path}=v,v")
        found[path] = list(read_list(values))
    return found


def _cells(
    base: Mapping[str, Any], axes: Mapping[str, list[Any]], source: Path
) -> tuple[Cell, ...]:
    cells: dict[str, Cell] = {}
    where = shown(source)
    for combination in itertools.product(*axes.values()):
        given: Mapping[str, Any] = base
        for path, value in zip(axes, combination, strict=True):
            given = with_value(given, path, value)
        config = parse(given, where)
        cell = Cell(config, tuple(config.at(path) for path in axes))
        cells.setdefault(cell.key, cell)  # 64 and 64.0 are one cell
    return tuple(cells.values())


def _filter(
    cells: tuple[Cell, ...], axes: list[str], only: Mapping[str, list[Any]], source: Path
) -> frozenset[str]:
    kept = list(cells)
    for path, texts in only.items():
        if path not in axes:
            raise ConfigError(
                f"--only {path}: not an axis of {source.stem}{did_you_mean(path, axes)}"
            )
        place = axes.index(path)
        present = dict.fromkeys(spelling(cell.values[place]) for cell in cells)
        wanted = set()
        for text in texts:
            # Read as the field's own type, in a config of the study that is known to be valid.
            given = with_value(cells[0].config.model_dump(), path, text)
            if path == "scheme":
                given["scheme_options"] = {}
            value = spelling(parse(given, f"--only {path}").at(path))
            if value not in present:
                known = ", ".join(present)
                raise ConfigError(f"--only {path}={text}: no cell has it (cells have: {known})")
            wanted.add(value)
        kept = [cell for cell in kept if spelling(cell.values[place]) in wanted]
    return frozenset(cell.key for cell in kept)


def spelling(value: Any) -> str:
    """A config value as it stands in rows: text bare, tables as canonical JSON, numbers by repr."""
    if isinstance(value, str):
        return value
    return canonical(value) if isinstance(value, Mapping | list | tuple) else repr(value)


def shown(path: Path) -> str:
    """Relative to where the user stands, when it is below."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
