"""Selections of a study's cells, and variants of the study, from --set and --only. No torch."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from harness.data.tasks import TASKS
from harness.errors import ConfigError, did_you_mean
from harness.fields import Strict, read_list
from harness.schemes import all_schemes
from harness.sweep.plan import LONGEST_NAME, Cell, short, spelled, spelling
from harness.training.config import Config, parse, with_value


def assignments(option: str, texts: Sequence[str]) -> dict[str, list[Any]]:
    """The values by path of texts 'path=v[,v]'; ConfigError, naming the option, for any other."""
    found: dict[str, list[Any]] = {}
    for text in texts:
        path, equals, values = text.partition("=")
        if not equals or not path:
            raise ConfigError(f"{option} {text}: expected path=v or path=v,v")
        if path in found:
            raise ConfigError(f"{option} {path}: given twice; write {option} {path}=v,v")
        try:
            found[path] = list(read_list(values, real=_holds_real(path)))
        except ConfigError as error:
            raise ConfigError(f"{option} {path}: {error}") from None
    return found


def present(cells: Sequence[Cell], axes: Collection[str]) -> dict[str, list[str]]:
    """The values that the cells have on each axis, spelled, in their order."""
    columns = zip(*(cell.values for cell in cells), strict=True)
    return {
        path: list(dict.fromkeys(map(spelling, column)))
        for path, column in zip(axes, columns, strict=True)
    }


def varied(
    cells: Sequence[Cell], axes: Collection[str], path: str, values: Sequence[Any]
) -> list[str]:
    """The values that make a variant, spelled, as far as its cells have them. Cells may have others
    than those that were given, as model.norm of a scheme without norms."""
    found = present(cells, axes)[path]
    try:
        given = dict.fromkeys(_spelled_as(cells, path, value, "--set") for value in values)
    except ConfigError:  # another cell may have the value
        return found
    return [text for text in given if text in found] or found


def of_axes(
    assigned: Mapping[str, list[Any]],
    axes: Mapping[str, list[Any]],
    declared: Callable[[], Sequence[Cell]],
) -> tuple[dict[str, list[str]], dict[str, list[Any]]]:
    """The assigned values of axes whose `declared` cells have them all: spelled, and as the axes
    have them."""
    spelled_values, own = dict[str, list[str]](), dict[str, list[Any]]()
    if not (paths := [path for path in assigned if path in axes]):
        return spelled_values, own
    cells = declared()
    known = present(cells, axes)
    for path in paths:
        try:
            values = [_spelled_as(cells, path, text, "--set") for text in assigned[path]]
        except ConfigError:
            continue  # these cells cannot have it; those of a variant may, or say what is wrong
        if set(values) <= set(known[path]):
            spelled_values[path] = values
            own[path] = [v for v in axes[path] if _spelled_as(cells, path, v, "axes") in values]
    return spelled_values, own


def select(
    cells: Sequence[Cell],
    axes: Sequence[str],
    selecting: Mapping[str, Sequence[str]],
    only: Mapping[str, list[Any]],
    study: str,
) -> tuple[tuple[Cell, ...], str]:
    """The cells, each marked as selected or not, and the selection spelled: empty if that is all.

    `selecting` are spelled values that cells have; `only` are texts of a command line. ConfigError
    for an unknown axis, a value that no cell has, and a selection of nothing.
    """
    known = present(cells, axes)
    wanted = {path: set(values) for path, values in selecting.items()}
    for path, texts in only.items():
        if path not in axes:
            raise ConfigError(f"--only {path}: not an axis of {study}{did_you_mean(path, axes)}")
        values = set()
        for text in texts:
            value = _spelled_as(cells, path, text, f"--only {path}")
            if value not in known[path]:
                has = ", ".join(known[path])
                raise ConfigError(f"--only {path}={text}: no cell has it (cells have: {has})")
            values.add(value)
        wanted[path] = wanted.get(path, values) & values
    marked = tuple(
        replace(
            cell,
            selected=all(
                spelling(value) in wanted[path]
                for path, value in zip(axes, cell.values, strict=True)
                if path in wanted
            ),
        )
        for cell in cells
    )
    if all(cell.selected for cell in marked):
        return marked, ""
    if not any(cell.selected for cell in marked):
        raise ConfigError(f"{study}: no cell has all of the selected values; leave one out")
    kept = {path: [v for v in known[path] if v in wanted[path]] for path in axes if path in wanted}
    return marked, spelled(kept)


def variant(
    study: str, variation: Mapping[str, Sequence[str]], name: str, built_in: Collection[str]
) -> str:
    """The study's name, or its variant's: `name` if it is given, else its values spelled.

    ConfigError if nothing makes a variant, if no folder can have the name, or if a study has it.
    """
    if not name:
        return short(study + spelled(variation)) if variation else study
    if not variation:
        raise ConfigError(f"--name {name}: nothing makes a variant of {study}; add --set")
    if not re.fullmatch(r"\w[\w.+=,~-]*", name) or len(name.encode()) > LONGEST_NAME:
        raise ConfigError(
            f"--name {name}: not a name for a folder; use letters, digits, '-' and '_', "
            f"at most {LONGEST_NAME} bytes"
        )
    if name == study or name in built_in:
        raise ConfigError(f"--name {name}: is the name of a study; choose another")
    return name


def _spelled_as(cells: Sequence[Cell], path: str, value: Any, where: str) -> str:
    """A value from a command line as a row spells it: read as the field's type in a config that is
    known to be valid. ConfigError, beginning with `where`, if the field cannot have it.

    A config may have one value whatever it is given, as model.norm of a scheme without norms: then
    the config of another scheme or family is asked.
    """
    text = _read_in(cells[0], path, value, where)
    if text.casefold() == str(value).casefold():
        return text
    others = {(cell.config.scheme, cell.config.model.family): cell for cell in cells[1:]}
    for cell in others.values():
        with suppress(ConfigError):
            if (found := _read_in(cell, path, value, where)).casefold() == str(value).casefold():
                return found
    return text


def _read_in(cell: Cell, path: str, value: Any, where: str) -> str:
    given = cell.config.model_dump()
    if path in ("scheme", "scheme_options"):
        given["scheme_options"] = {}
    return spelling(parse(with_value(given, path, value), where).at(path))


def _holds_real(path: str) -> bool:
    """Whether a field, or an option of any scheme, holds a real number. False for unknown paths."""
    section, _, name = path.partition(".")
    if section == "scheme_options":
        return any(isinstance(each.options.get(name), float) for each in all_schemes().values())
    field = Config.model_fields.get(section)
    kinds = [*TASKS.values()] if section == "data" else [field.annotation] if field else []
    return any(
        isinstance(kind, type)
        and issubclass(kind, Strict)
        and name in kind.model_fields
        and kind.model_fields[name].annotation is float
        for kind in kinds
    )
