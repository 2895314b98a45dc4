"""What can go wrong through no fault of ours: each reaches the user as one line."""

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from urllib.parse import parse_qsl, unquote, urlsplit


class ConfigError(Exception):
    """The user's input is wrong; the message names file, field, value and remedy. Exit code 2."""


class MissingRuns(Exception):  # noqa: N818  the name says what is the matter
    """Runs asked for do not exist; the message names the command that makes them. Exit code 2."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' (did you mean 'x'?)' for a near miss, else ' (known: a, b)' or ' (known: none)'."""
    names = sorted(known)
    near = get_close_matches(word, names, n=1)
    return f" (did you mean '{near[0]}'?)" if near else f" (known: {', '.join(names) or 'none'})"


class Disagreement(Exception):  # noqa: N818
    """Ledger and results differ on a cell; the message names both values. Exit code 1."""


class WorkersFailed(Exception):  # noqa: N818
    """Workers end before an attempt does; the message is what one of them said. Exit code 1."""


class Terminated(SystemExit):
    """SIGTERM came. Not the exit of a study file that calls exit()."""


def surroundings(error: BaseException) -> str | None:
    """One line for what the machine does to us: a full disk, a locked, broken or absent store.

    None for what it does not know: that is ours to mend, and wants its traceback.
    """
    again = "put that right, then give the same command again: what is finished is kept"
    chain = [error]
    while cause := chain[-1].__cause__:
        chain.append(cause)
    for each in chain:
        if isinstance(each, OSError) and each.errno is not None and each.strerror:
            where = f"{each.filename}: " if each.filename else ""
            return f"{where}{each.strerror}; {again}"
    names = {kind.__name__ for each in chain for kind in type(each).__mro__}
    if names & {"SQLAlchemyError", "StorageInternalError", "MlflowException"}:
        words = str(chain[-1]).split("\n")[0]
        return f"ledger or tracker: {words}; {again}"
    return None


def redacted(text: str) -> str:
    """The text without the user names and passwords of the stores that the environment names."""
    for variable in ("HARNESS_STORAGE", "MLFLOW_TRACKING_URI"):
        url = urlsplit(os.environ.get(variable, ""))
        said = parse_qsl(url.query)
        secrets = [url.password, *(v for k, v in said if re.search("user|pass|token|key", k))]
        for secret in (s for s in secrets if s and len(s) > 2):
            for form in {secret, unquote(secret)}:
                text = text.replace(form, "***")
        for name in filter(None, {url.username, unquote(url.username or "")}):
            # A name may be a word like any other: only where it is said as one.
            text = re.sub(rf"(user(?: ?name)?[ =:]*[\"']?){re.escape(name)}\b", r"\1***", text)
    return re.sub(r"(?<=://)[^/@\s]+@", "***@", text)
