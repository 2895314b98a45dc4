"""Study files: what they declare, and how a command line changes it. No torch, no Optuna."""

import importlib
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import harness
from harness.errors import ConfigError, Terminated, did_you_mean
from harness.fields import number, plain
from harness.schemes import all_schemes
from harness.sweep import selection
from harness.sweep.plan import HELD_OUT, Cell, Invocation, Plan, with_tuning
from harness.training.config import parse, read_toml, with_value

# The folder that holds studies/, configs/ and results/paper/: the repository, or what an installed
# package has of it.
_HERE = Path(harness.__file__).resolve().parent
ROOT = _HERE / "_data" if (_HERE / "_data").is_dir() else _HERE.parent


@dataclass(frozen=True)
class Study:
    """What a study file declares: a base config (a TOML file beside the study or in configs/, or a
    table) and the values of each axis, by dotted config path. `tune` gives values to choose from
    for every point, by path, and under "seeds" the seeds to try them on. Runs that choose validate
    on tokens of their own. With "extend" at most so many values beyond an end of the list
    are tried, while the best is there."""

    base: str | Mapping[str, Any]
    axes: Mapping[str, Sequence[Any]]
    tune: Mapping[str, Any] | None = None


def load(
    argument: str,
    sets: Sequence[str] = (),
    only: Sequence[str] = (),
    name: str = "",
    folders: Mapping[str, str] | None = None,
) -> Plan:
    """The plan of a built-in study's name or a study file's path; else a ConfigError of one line.

    `sets` and `only` are command-line texts 'path=v[,v]'. `sets` with values that an axis of the
    study file has selects cells, as `only` does; with others it makes a variant, which is called
    `name` or as it is spelled. `folders` are those of the command line that are not the default.
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
    assigned = selection.assignments("--set", sets)
    tune, seeds, extend = _tuning(study, source, {**axes, **assigned})
    for path, other in itertools.permutations([*axes, *assigned, *tune], 2):
        if other.startswith(f"{path}."):
            where = "tune" if tune.keys() & {path, other} else "axes"
            raise ConfigError(f"{source}: {where}: {path} holds {other}; keep one of the two")
    for path, values in tune.items():
        base = with_value(base, path, values[0])
    selecting, needed = selection.of_axes(assigned, axes, lambda: _cells(base, axes, source))
    changed = {path: assigned[path] for path in sorted(assigned) if path not in selecting}
    axes |= changed
    cells = _cells(base, axes, source, needed if changed else {})
    variation = {path: selection.varied(cells, axes, path, changed[path]) for path in changed}
    wanted = selection.assignments("--only", only)
    cells, selected = selection.select(cells, list(axes), selecting, wanted, source.stem)
    plan = Plan(
        name=selection.variant(source.stem, variation, name, _built_in()),
        source=source,
        code=code,
        axes=tuple(axes),
        cells=cells,
        figures=tuple(figures),
        invocation=Invocation(argument, tuple(sets), tuple(only), name, folders or {}),
        study=source.stem,
        variation=variation,
        selection=selected,
    )
    if not tune:
        return plan
    if shared := {cell.config.seed for cell in cells}.intersection(seeds):
        raise ConfigError(f"{source}: tune: seeds: {min(shared)} is reported; tune on others")
    return with_tuning(plan, tune, seeds, extend)


def _built_in() -> dict[str, Path]:
    return {path.stem: path for path in sorted((ROOT / "studies").glob("*.py"))}


def _locate(argument: str) -> Path:
    built_in = _built_in()
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
    all_schemes()  # a name of theirs is taken
    module = ModuleType(f"studies.{source.stem}")
    module.__file__ = str(source)
    sys.modules[module.__name__] = module  # where dataclasses look for their annotations
    try:
        with _beside(source.parent):
            exec(compile(code, str(source), "exec"), module.__dict__)
    except Terminated:
        raise
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    except (Exception, SystemExit) as error:  # a study file is the user's input
        line = error.lineno if isinstance(error, SyntaxError) else _line(error, source)
        raise ConfigError(f"{source}: line {line}: {type(error).__name__}: {error}") from None
    return module


@contextmanager
def _beside(folder: Path) -> Iterator[None]:
    """A study imports its neighbours, as a script does, however the command was started; another
    folder's study, or this one read again, imports its own anew."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()  # a neighbour may be new
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(str(folder))
        new = sys.modules.keys() - before
        neighbours = {name for name in new if _stands_in(folder, sys.modules[name])}
        for name in new:
            if name.partition(".")[0] in neighbours:
                del sys.modules[name]


def _stands_in(folder: Path, module: ModuleType) -> bool:
    spec = getattr(module, "__spec__", None)
    if spec is None:
        return False
    places = spec.submodule_search_locations or [spec.origin or ""]
    return any(Path(place).parent == folder for place in places)


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
    values = plain(values)
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise ConfigError(f"{source}: {what}: expected a list of values, got {values!r}")
    return [plain(value) for value in values]


def _tuning(
    study: Study, source: Path, axes: Mapping[str, Any]
) -> tuple[dict[str, list[Any]], list[int], int]:
    """The values to choose from, without what --set has fixed; the seeds to try them on; and how
    many values beyond an end may be tried."""
    if study.tune is None:
        return {}, [], 0
    if not isinstance(study.tune, Mapping) or not all(isinstance(p, str) for p in study.tune):
        raise ConfigError(f"{source}: tune: expected a table of lists by config path")
    given = dict(study.tune)
    extend = given.pop("extend", 0)
    if (beyond := number(extend)) is None or beyond < 0 or beyond != int(beyond):
        raise ConfigError(f"{source}: tune: extend: expected an integer from 0 on, got {extend!r}")
    tune = {path: _listed(source, f"tune: {path}", each) for path, each in given.items()}
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
    if beyond and not (len(tune) == 1 and all(map(_goes_on, tune.values()))):
        raise ConfigError(
            f"{source}: tune: extend: needs one tuned path with two or more positive numbers, got "
            f"{', '.join(f'{path}={values!r}' for path, values in tune.items())}; leave it out"
        )
    left = {path: values for path, values in tune.items() if path not in axes}
    if left and HELD_OUT in {*left, *axes}:
        raise ConfigError(
            f"{source}: tune: {HELD_OUT}: differs between the runs that choose and the others; "
            "leave it out"
        )
    return left, [int(seed) for seed in seeds], int(beyond)


def _goes_on(values: list[Any]) -> bool:
    """True for a list of at least two different positive numbers."""
    read = {number(value) for value in values}
    return len(read) > 1 and all(value is not None and value > 0 for value in read)


def _cells(
    base: Mapping[str, Any],
    axes: Mapping[str, list[Any]],
    source: Path,
    needed: Mapping[str, list[Any]] = MappingProxyType({}),
) -> tuple[Cell, ...]:
    """A cell per combination of values. One that no config can have is a ConfigError, unless it has
    another value of a path than those that are `needed`: a variant has no such cell."""
    cells: dict[str, Cell] = {}
    where = shown(source)
    for combination in itertools.product(*axes.values()):
        given: Mapping[str, Any] = base
        for path, value in zip(axes, combination, strict=True):
            given = with_value(given, path, value)
        try:
            config = parse(given, where)
        except ConfigError:
            named = dict(zip(axes, combination, strict=True))
            if all(named[path] in values for path, values in needed.items()):
                raise
            continue
        cell = Cell(config, tuple(config.at(path) for path in axes))
        cells.setdefault(cell.key, cell)  # 64 and 64.0 are one cell
    return tuple(cells.values())


def shown(path: Path) -> str:
    """Relative to where the user stands, when it is below."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
