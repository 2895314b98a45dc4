"""Variants of a study on disk, and rows that one study may take over from another. No torch.

The folder of a variant holds variant.json, which names the study and the values that make it.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

from harness.errors import ConfigError, did_you_mean
from harness.fields import write_list
from harness.results import rows
from harness.results.columns import REUSED, Row
from harness.results.files import replace
from harness.sweep.plan import Plan

FILES = ("runs.csv", "tuning.csv", "retired.csv")
ALL = "all"  # every study's rows may be taken over
HINTS = 3  # most variants that a message names


def check(folder: Path, plan: Plan) -> None:
    """ConfigError if the plan's folder holds results of another study or variant."""
    found, own = _origin(folder / plan.name), _own(plan)
    if found == own:
        return
    # Without the file: nothing yet, or a study's results, which only a name of one's own can meet.
    occupied = plan.invocation.name and rows.read(folder / plan.name / "runs.csv")
    if found is None and not occupied:
        return
    what = f"{folder / plan.name}: holds results of {_named(found)}"
    raise ConfigError(f"{what}; choose another --name" if own else f"{what}; rename the study file")


def note(folder: Path, plan: Plan) -> None:
    """Writes what makes the variant into its folder; nothing for a study itself."""
    if own := _own(plan):
        text = json.dumps(own, indent=2, ensure_ascii=False) + "\n"
        replace(folder / plan.name / "variant.json", text.encode())


def related(folder: Path, plan: Plan, reused: Sequence[str]) -> list[Path]:
    """Folders of the plan's study and its variants, and of the studies `reused`, or `all`.

    ConfigError for a study without results.
    """
    others = _folders(folder)
    known = {path.name: path for path in others if path.name != plan.name}
    for name in reused:
        if name != ALL and name not in known:
            raise ConfigError(f"--reuse {name}: no results in {folder}{did_you_mean(name, known)}")
    return [
        path
        for name, path in known.items()
        if name == plan.study
        or (_origin(path) or {}).get("study") == plan.study
        or ALL in reused
        or name in reused
    ]


def offers(folders: Iterable[Path]) -> Mapping[str, list[Row]]:
    """Completed rows in these folders by run_id, each with the name of the folder it is from."""
    found: defaultdict[str, list[Row]] = defaultdict(list)
    for folder in folders:
        for name in FILES:
            for r in rows.read(folder / name):
                if r["outcome"] != "crashed":
                    # Without the axes of the other study, which are config paths with a dot.
                    kept = {column: value for column, value in r.items() if "." not in column}
                    found[r["run_id"]].append({**kept, REUSED: r.get(REUSED) or folder.name})
    return found


def hint(folder: Path, plan: Plan) -> str:
    """'; of its variants there are: COMMANDS' where a plan without runs has variants with some."""
    commands = []
    for path in _folders(folder):
        origin = _origin(path) or {}
        if origin.get("study") != plan.study or path.name == plan.name:
            continue
        sets = tuple(f"{axis}={write_list(values)}" for axis, values in origin["set"].items())
        invocation = changed(plan.invocation, sets=sets, only=(), name=origin.get("name", ""))
        commands.append(f"'{invocation.command('table')}'")
    more = ", ..." if len(commands) > HINTS else ""
    return f"; of its variants there are: {', '.join(commands[:HINTS])}{more}" if commands else ""


def _folders(folder: Path) -> list[Path]:
    """Folders with rows, in the order of their names."""
    found = {path.parent for name in FILES for path in folder.glob(f"*/{name}")}
    return sorted(found)


def _own(plan: Plan) -> dict[str, Any] | None:
    """What makes the plan a variant; None for a study itself."""
    if not plan.variation:
        return None
    own = {"study": plan.study, "set": {p: list(v) for p, v in plan.variation.items()}}
    return {**own, "name": plan.invocation.name} if plan.invocation.name else own


def _origin(folder: Path) -> dict[str, Any] | None:
    path = folder / "variant.json"
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise ConfigError(f"{path}: not readable: {error}; restore or remove it") from None


def _named(origin: Mapping[str, Any] | None) -> str:
    if not origin:
        return "another study"
    values = " ".join(f"--set {p}={','.join(v)}" for p, v in origin.get("set", {}).items())
    return f"'{' '.join(filter(None, [str(origin.get('study')), values]))}'"
