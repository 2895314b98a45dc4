"""Variants of a study on disk, and rows that one study may take over from another. No torch.

The folder of a variant holds variant.json, which names the study and the values that make it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import TypeVar

from harness.errors import ConfigError, did_you_mean
from harness.fields import Strict, write_list
from harness.results import rows
from harness.results.columns import REUSED, Row, measured
from harness.results.files import replace
from harness.sweep.plan import Plan

FILES = ("runs.csv", "tuning.csv", "retired.csv")
T = TypeVar("T")
ALL = "all"  # every study's rows may be taken over
HINTS = 3  # most variants that a message names


def check(folder: Path, plan: Plan) -> None:
    """ConfigError if the plan's folder holds results of another study or variant."""
    found, own = _origin(folder / plan.name), _own(plan)
    if found == own:
        return
    # Without the file: nothing yet, or a study's results, which only a name of one's own can meet.
    occupied = plan.invocation.name and any((folder / plan.name / name).exists() for name in FILES)
    if found is None and not occupied:
        return
    what = f"{folder / plan.name}: holds results of {_named(found)}"
    raise ConfigError(f"{what}; choose another --name" if own else f"{what}; rename the study file")


def note(folder: Path, plan: Plan) -> None:
    """Writes what makes the variant into its folder; nothing for a study itself."""
    if own := _own(plan):
        text = own.model_dump_json(indent=2) + "\n"
        replace(folder / plan.name / "variant.json", text.encode())


def related(folder: Path, plan: Plan, reused: Sequence[str]) -> list[Path]:
    """Folders of the plan's study and its variants, and of the studies `reused`, or `all`.

    ConfigError for a study without results.
    """
    known = {path.name: path for path in _folders(folder) if path.name != plan.name}
    for name in reused:
        if name == plan.name:
            raise ConfigError(f"--reuse {name}: is this study itself; name another one")
        if name != ALL and name not in known:
            raise ConfigError(f"--reuse {name}: no results in {folder}{did_you_mean(name, known)}")
    return [
        path
        for name, path in known.items()
        if name == plan.study or _study_of(path) == plan.study or ALL in reused or name in reused
    ]


def offers(folders: Iterable[Path]) -> Mapping[str, list[Row]]:
    """Completed rows in these folders by run_id, each with the study that trained it."""
    found: defaultdict[str, list[Row]] = defaultdict(list)
    for folder in folders:
        for name in FILES:
            for r in rows.read(folder / name):
                if r["outcome"] != "crashed":
                    # Without the axes of the other study, which are config paths with a dot.
                    kept = {column: value for column, value in r.items() if "." not in column}
                    found[r["run_id"]].append({**kept, REUSED: r.get(REUSED) or folder.name})
    return found


def shared(
    wanted: Mapping[str, Row], folders: Iterable[Path], read: Callable[[Path], Mapping[str, T]]
) -> dict[str, T]:
    """What other folders have, by run_id, of runs whose rows they have too: each from the first
    folder that has both."""
    values = {key: measured(r) for key, r in wanted.items()}
    found: dict[str, T] = {}
    for folder in folders if values else ():
        same = {
            r["run_id"]
            for name in FILES
            for r in rows.read(folder / name)
            if measured(r) == values.get(r["run_id"])
        }
        there = read(folder)
        found |= {key: there[key] for key in same & there.keys() - found.keys()}
    return found


def hint(folder: Path, plan: Plan) -> str:
    """'; of its variants there are: COMMANDS' where a plan without runs has variants with some."""
    commands = []
    for path in _folders(folder):
        if _study_of(path) != plan.study or path.name == plan.name:
            continue
        origin = _origin(path)
        assert origin
        sets = tuple(f"{axis}={write_list(values)}" for axis, values in origin.set.items())
        invocation = changed(plan.invocation, sets=sets, only=(), name=origin.name)
        commands.append(f"'{invocation.command('table')}'")
    more = ", ..." if len(commands) > HINTS else ""
    return f"; of its variants there are: {', '.join(commands[:HINTS])}{more}" if commands else ""


def _folders(folder: Path) -> list[Path]:
    """Folders with rows, in the order of their names."""
    found = {path.parent for name in FILES for path in folder.glob(f"*/{name}")}
    return sorted(found)


class Origin(Strict):
    """What makes a variant, as its folder keeps it in variant.json."""

    study: str
    set: dict[str, list[str]]  # values by path, spelled and sorted
    name: str = ""  # empty if the folder is named by the values


def _own(plan: Plan) -> Origin | None:
    """What makes the plan a variant; None for a study itself."""
    if not plan.variation:
        return None
    values = {path: sorted(each) for path, each in plan.variation.items()}
    return Origin(study=plan.study, set=values, name=plan.invocation.name)


def _origin(folder: Path) -> Origin | None:
    """What the folder's variant.json says; None without one, ConfigError for any other content."""
    path = folder / "variant.json"
    try:
        return Origin.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        raise ConfigError(f"{path}: not the study and values of a variant; restore it") from None


def _study_of(folder: Path) -> str:
    """The study that a folder holds a variant of; '' for none, and for one that is not readable:
    only commands on that variant need it."""
    try:
        origin = _origin(folder)
    except ConfigError:
        return ""
    return origin.study if origin else ""


def _named(origin: Origin | None) -> str:
    if not origin:
        return "another study"
    values = " ".join(f"--set {path}={','.join(each)}" for path, each in origin.set.items())
    return f"'{origin.study} {values}'"
