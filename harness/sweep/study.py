"""Study files: what they declare, and how a command line changes it. No torch, no Optuna."""

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import harness
from harness.errors import ConfigError, Terminated, did_you_mean
from harness.fields import number, read_list
from harness.sweep.plan import Cell, Plan, spelling, with_tuning
from harness.training.config import parse, read_toml, with_value

ROOT = Path(harness.__file__).resolve().parents[1]


@dataclass(frozen=True)
class Study:
    """What a study file declares: a base config (a TOML file beside the study or in configs/, or a
    table) and the values of each axis, by dotted config path. `tune` gives values to choose from
    for every point, by path, and under "seeds" the seeds to try them on."""

    base: str | Mapping[str, Any]
    axes: Mapping[str, Sequence[Any]]
    tune: Mapping[str, Sequence[Any]] | None = None


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
    axes = {path: _listed(source, f"axes: {path}", each) for path, each in study.axes.items()}
    assigned = _assignments("--set", sets)
    variant = sorted(path for path in assigned if path not in axes)
    axes |= {path: assigned[path] for path in sorted(assigned)}
    tune, seeds = _tuning(study, source, axes)
    for path, other in itertools.permutations([*axes, *tune], 2):
        if other.startswith(f"{path}."):
            where = "tune" if tune.keys() & {path, other} else "axes"
            raise ConfigError(f"{source}: {where}: {path} holds {other}; keep one of the two")
    for path, values in tune.items():
        base = with_value(base, path, values[0])
    cells = _cells(base, axes, source)
    places = {path: list(axes).index(path) for path in variant}
    spelled = {
        path: dict.fromkeys(spelling(c.values[i]) for c in cells) for path, i in places.items()
    }
    # Spelled as parsed, in one order: 64 and 64.0 are one variant.
    name = "".join([source.stem, *(f"+{path}={','.join(v)}" for path, v in spelled.items())])
    plan = Plan(
        name=name.replace("/", "_"),
        source=source,
        code=code,
        axes=tuple(axes),
        cells=_filtered(cells, list(axes), _assignments("--only", only), source),
        figures=tuple(figures),
        words=" ".join([argument, *(f"--set {text}" for text in sets)]),
    )
    if not tune:
        return plan
    if shared := {cell.config.seed for cell in cells}.intersection(seeds):
        raise ConfigError(f"{source}: tune: seeds: {min(shared)} is reported; tune on others")
    return with_tuning(plan, tune, seeds)


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
    except Terminated:
        raise
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


def _listed(source: Path, what: str, values: Any) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise ConfigError(f"{source}: {what}: expected a list of values, got {values!r}")
    return list(values)


def _tuning(
    study: Study, source: Path, axes: Mapping[str, Any]
) -> tuple[dict[str, list[Any]], list[int]]:
    """The values to choose from and the seeds to try them on; nothing for what --set has fixed."""
    if study.tune is None:
        return {}, []
    if not isinstance(study.tune, Mapping) or not all(isinstance(p, str) for p in study.tune):
        raise ConfigError(f"{source}: tune: expected a table of lists by config path")
    tune = {path: _listed(source, f"tune: {path}", each) for path, each in study.tune.items()}
    if "seeds" not in tune:
        raise ConfigError(f"{source}: tune: seeds: missing; name seeds that are not reported")
    seeds = tune.pop("seeds")
    if not tune:
        raise ConfigError(f"{source}: tune: no path; name one and its values, as optim.lr")
    for seed in seeds:
        if (read := number(seed)) is None or read < 0 or read != int(read):
            raise ConfigError(f"{source}: tune: seeds: expected integers from 0 on, got {seed!r}")
    for path, values in tune.items():
        if path in study.axes or path == "seed":
            raise ConfigError(f"{source}: tune: {path}: is an axis already; keep one of the two")
        if any(isinstance(value, Mapping) for value in values):  # of equals which is the smaller?
            raise ConfigError(f"{source}: tune: {path}: is a table; name each path that it holds")
    left = {path: values for path, values in tune.items() if path not in axes}
    return left, [int(seed) for seed in seeds]


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


def _filtered(
    cells: tuple[Cell, ...], axes: list[str], only: Mapping[str, list[Any]], source: Path
) -> tuple[Cell, ...]:
    """The cells, those chosen that have one of the wanted values of each axis."""
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
        cells = tuple(
            replace(cell, chosen=cell.chosen and spelling(cell.values[place]) in wanted)
            for cell in cells
        )
    return cells


def shown(path: Path) -> str:
    """Relative to where the user stands, when it is below."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
