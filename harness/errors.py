"""What can go wrong through no fault of ours: both reach the user as one line and exit code 2."""

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from urllib.parse import unquote, urlsplit


class ConfigError(Exception):
    """The user's input is wrong; the message names file, field, value and remedy."""


class MissingRuns(Exception):  # noqa: N818  the name says what is the matter
    """Runs that are asked for do not exist; the message names the command that makes them."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' (did you mean 'x'?)' for a near miss, else ' (known: a, b)'."""
    names = sorted(known)
    near = get_close_matches(word, names, n=1)
    return f" (did you mean '{near[0]}'?)" if near else f" (known: {', '.join(names)})"


class Disagreement(Exception):  # noqa: N818
    """Ledger and results tell different stories of a cell; the message names both."""


def surroundings(error: BaseException) -> str | None:
    """One line for what the machine does to us: a full disk, a locked, broken or absent store.

    None for what it does not know: that is ours to mend, and wants its traceback.
    """
    again = "then give the same command again: what is finished is kept"
    chain = [error]
    while cause := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(cause)
    for each in chain:
        if isinstance(each, OSError) and each.errno is not None and each.strerror:
            where = f"{each.filename}: " if each.filename else ""
            return f"{where}{each.strerror}; put that right, {again}"
    names = {kind.__name__ for each in chain for kind in type(each).__mro__}
    if names & {"SQLAlchemyError", "StorageInternalError", "MlflowException"}:
        words = str(chain[-1]).split("\n")[0]
        return f"a store (ledger or tracker) says: {words}; put that right, {again}"
    return None


def redacted(text: str) -> str:
    """The text without user names and passwords of the URLs that the environment gives us."""
    for variable in ("HARNESS_STORAGE", "MLFLOW_TRACKING_URI"):
        url = urlsplit(os.environ.get(variable, ""))
        for secret in (url.password, url.username):
            for form in {secret, unquote(secret)} if secret else ():
                text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", "***", text)
    return re.sub(r"(?<=://)[^/@\s]+@", "***@", text)
