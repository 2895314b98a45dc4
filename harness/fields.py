"""Strict field types of configs, and one-line messages for what does not fit them. No torch.

A TOML number is a number and its text is not; on the command line all is text, marked as Typed.
"""

import json
import math
import re
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
        grouped = whole and isinstance(value, Typed) and DOTTED.fullmatch(value)
        fits = (
            read is not None
            and not grouped
            and (read > low if open_low else read >= low)
            and read < high
            and not (whole and read != int(read))
        )
        if not fits or read is None:
            raise PydanticCustomError("expected", "expected {words}", {"words": words})
        return int(read) if whole else float(read) + 0.0  # -0.0 is 0.0

    return BeforeValidator(check)


DOTTED = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")  # 1.000: a thousand, or one?
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


STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
GROUPED = re.compile(r"(?<![\w.])[1-9]\d*(?:,\d+)*?,0\d+(?!\w)")
GROUPS = re.compile(r"[+-]?([1-9]\d{0,2}),(\d{3})(?:,\d{3})*(?:\.\d*)?")
DECIMAL = re.compile(r"[+-]?(?:\d+|[1-9]\d{0,2}(?:\.\d{3})+),\d+(?:[eE][+-]?\d+)?")
PADDED = re.compile(r"(?<![\w.])\d+,0\d+(?!\w)")
APART = 8  # a list whose second number is more than so many times the first is rarely meant


def read_list(text: str, *, real: bool = False) -> list[Typed]:
    """The values of 'v,v' on a command line, as `split_list` parts them.

    A value in double quotes is a JSON string and stands for its text: `"a,b.txt"`. A comma between
    digits, without a space, that may belong to one number is refused with ConfigError:

    - before a group of digits that begins with 0, behind whole numbers of which the first of all
      values does not: 1,000; 3,064; 1,00,000; but not 01,12,02;
    - if all is groups of three digits behind the first, which does not begin with 0, and the second
      is more than 8 times the first: 1,500; 16,384; but not 64,128;
    - in a field that holds a `real` number, if all is two whole numbers (1,0; 0,5; 1,5e-3; also
      1.000,5), before a group that begins with 0 (0,05,0,1), or if whole numbers repeat one
      (0,5,0,7).

    With a space behind the comma they are several values: '1, 0'.
    """
    words = split_list(text)
    bare = ",".join("_" if "," in word else word for word in words).strip()
    groups = GROUPS.fullmatch(bare)
    far = groups is not None and int(groups[2]) > APART * int(groups[1])
    repeat = all(map(str.isdecimal, words)) and len({*words}) < len(words)
    decimal = real and (DECIMAL.fullmatch(bare) or PADDED.search(bare) or repeat)
    padded = re.match(r"0\d", bare)
    if far or decimal or (GROUPED.search(bare) and not padded):
        forms = [bare.replace(",", "")] if groups else []
        forms += [bare.replace(".", "").replace(",", ".")] if decimal and len(words) == 2 else []
        form = f"as {' or '.join(forms)}" if forms else "without a comma"
        apart = ", ".join(map(str.strip, words))
        raise ConfigError(
            f"'{text}': one number or several values? write one {form}, several as '{apart}'"
        )
    return [Typed(unquoted(word)) for word in words]


def split_list(text: str) -> list[str]:
    """The words between commas; commas within brackets, braces and double quotes part nothing.

    A quote counts at the beginning of a word, or within brackets. ConfigError for an empty word,
    and for a bracket or quote without its partner.
    """
    words, depth, lone, word, at = [], 0, False, "", 0
    while at < len(text):
        letter = text[at]
        quoted = letter == '"' and (depth or not word.strip())
        if quoted and not (string := STRING.match(text, at)):
            raise ConfigError(f"'{text}': a quote without its end; write \"a,b\"")
        piece = string[0] if quoted and string else letter
        at += len(piece)
        depth += (piece in ("[", "{")) - (piece in ("]", "}"))
        lone |= depth < 0
        if piece == "," and depth == 0:
            words.append(word)
            word = ""
        else:
            word += piece
    words.append(word)
    if (depth or lone) and "," in text:
        raise ConfigError(f"'{text}': a bracket without its partner; write such text as \"a[,b\"")
    if not all(map(str.strip, words)):
        raise ConfigError(f"'{text}': an empty value; write v or v,v")
    return words


def unquoted(word: str) -> str:
    """The text of a word; ConfigError if it begins with a quote and is not a JSON string."""
    word = word.strip()
    if not word.startswith('"'):
        return word
    try:
        return str(json.loads(word))
    except ValueError:
        raise ConfigError(
            f"'{word}': not a JSON string; write \\\\ for \\ and nothing behind the quotes"
        ) from None


def write_list(values: Iterable[str]) -> str:
    """The text that `read_list` reads as these values."""
    return ", ".join(value if _is_bare(value) else json.dumps(value) for value in values)


def _is_bare(value: str) -> bool:
    try:
        return [unquoted(word) for word in split_list(f"{value}, _")] == [value, "_"]
    except ConfigError:
        return False
