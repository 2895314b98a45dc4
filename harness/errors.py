"""What can go wrong through no fault of ours: both reach the user as one line and exit code 2."""

from collections.abc import Iterable
from difflib import get_close_matches


class ConfigError(Exception):
    """The user's input is wrong; the message names file, field, value and remedy."""


class MissingRuns(Exception):  # noqa: N818  the name says what is the matter
    """Runs that are asked for do not exist; the message names the command that makes them."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' (did you mean 'x'?)' for a near miss, else ' (known: a, b)'."""
    names = sorted(known)
    near = get_close_matches(word, names, n=1)
    return f" (did you mean '{near[0]}'?)" if near else f" (known: {', '.join(names)})"
