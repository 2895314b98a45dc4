"""Strict field types of configs, and one-line messages for what does not fit them. No torch.

A TOML number is a number and its text is not; on the command line all is text, marked as Typed.
"""

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import ErrorDetails, PydanticCustomError

from harness.errors import ConfigError, did_you_mean


class Typed(str):
    """A value as typed on a command line: read as the type of the field that it meets."""


class Strict(BaseModel):
    """Frozen, and no field but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def number(value: Any) -> float | int | None:
    """A finite number, from a number, NumPy's too, or from text typed on a command line; else
    None."""
    if isinstance(value, bool) or not isinstance(value, Real | Typed):
        return None
    if isinstance(value, Typed):
        try:
            value = int(value)
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                return None
    try:
        if not math.isfinite(value):
            return None
        return int(value) if isinstance(value, Integral) else float(value)
    except OverflowError:  # an integer beyond any float
        return None


def plain(value: Any) -> Any:
    """NumPy's numbers and arrays as numbers and lists."""
    return value.tolist() if hasattr(value, "tolist") else value


def _reader(
    words: str, low: float, *, whole: bool, open_low: bool = False, high: float = math.inf
) -> Any:
    def check(value: Any) -> Any:
        read = number(value)
        fits = (
            read is not None
            and (read > low if open_low else read >= low)
            and read < high
            and not (whole and read != int(read))
        )
        if not fits or read is None:
            raise PydanticCustomError("expected", "expected {words}", {"words": words})
        return int(read) if whole else float(read) + 0.0  # -0.0 is 0.0

    return BeforeValidator(check)


LARGEST = 2**63  # beyond it an integer fits no table


def _flag(value: Any) -> Any:
    value = {"true": True, "false": False}.get(value, value) if isinstance(value, Typed) else value
    if isinstance(value, bool):
        return value
    raise PydanticCustomError("expected", "expected true or false")


Flag = Annotated[bool, BeforeValidator(_flag)]
Positive = Annotated[int, _reader("a positive integer", 1, whole=True, high=LARGEST)]
Count = Annotated[int, _reader("an integer from 0 on", 0, whole=True, high=LARGEST)]
Rate = Annotated[float, _reader("a positive number", 0, whole=False, open_low=True)]
Level = Annotated[float, _reader("a number from 0 on", 0, whole=False)]
Share = Annotated[float, _reader("a number from 0 to below 1", 0, whole=False, high=1.0)]


def one_line(error: ErrorDetails, known: Mapping[str, Iterable[str]]) -> str:
    """What is wrong, as in `model.depth: expected a positive integer, got '12x'`.

    `known` lists the fields of each section.
    """
    path = [str(part) for part in error["loc"]]
    if path[:1] == ["data"]:
        del path[1:2]  # pydantic inserts the name of the task
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    field = ".".join(path)
    if kind == "extra_forbidden":
        section = ".".join(path[:-1])
        hint = did_you_mean(path[-1], known.get(section, ()))
        return f"{section}{': ' if section else ''}unknown field {path[-1]!r}{hint}"
    if kind == "missing":
        return f"{field}: missing; it has no default, so name a value"
    if kind == "union_tag_not_found":
        return f"{field}.name: missing; name a task"
    if kind == "union_tag_invalid":
        tasks = [tag.strip("'") for tag in context["expected_tags"].split(", ")]
        return f"{field}.name: unknown task {context['tag']!r}{did_you_mean(context['tag'], tasks)}"
    if kind == "literal_error":
        choices = [c.strip("'") for c in context["expected"].replace(" or ", ", ").split(", ")]
        return f"{field}: unknown value {_plain(value)}{did_you_mean(str(value), choices)}"
    words = error["msg"] if kind == "expected" else _WORDS.get(kind, error["msg"])
    return f"{field}: {words}, got {_plain(value)}"


_WORDS = {
    "string_type": "expected text",
    "model_type": "expected a table",
    "model_attributes_type": "expected a table",
    "dict_type": "expected a table",
    "tuple_type": "expected a list",
    "too_long": "expected two numbers",
    "too_short": "expected one value or more",
}


def _plain(value: Any) -> str:
    return repr(str(value)) if isinstance(value, str) else repr(value)


def read_list(text: str) -> list[Typed]:
    """The values of 'v,v' on a command line; commas within brackets and braces do not part them."""
    values, depth, word = [], 0, ""
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            values.append(word)
            word = ""
        else:
            word += letter
    values.append(word)
    if any(not value.strip() for value in values):
        raise ConfigError(f"'{text}': an empty value; write v or v,v")
    return [Typed(value.strip()) for value in values]
