"""Inherited settings that must not break a command: warnings as errors, TMPDIR, the locale."""

import io
import os
import sys
import tempfile
import warnings
from pathlib import Path

from harness.errors import ConfigError

LONGEST = 75  # bytes of TMPDIR: a socket's path has at most 107, and multiprocessing adds 32
FOLDERS = ("TMPDIR", "TEMP", "TMP")  # where tempfile looks
QUIET = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)


def settle() -> None:
    """Neutralises them; raises ConfigError for a non-ASCII path where UTF-8 is not in use."""
    if any(option.startswith("error") for option in sys.warnoptions):
        # Third parties warn while they are imported, here and in the workers.
        os.environ.pop("PYTHONWARNINGS", None)
        sys.warnoptions.clear()
        warnings.resetwarnings()
        for category in QUIET:
            warnings.simplefilter("ignore", category)
    if any(len(os.fsencode(os.environ.get(name, ""))) > LONGEST for name in FOLDERS):
        from multiprocessing import util  # --help is to be quick

        before, tempfile.tempdir = tempfile.tempdir, "/tmp"
        util.get_temp_dir()  # multiprocessing keeps this folder for its sockets
        tempfile.tempdir = before
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if (encoding := sys.getfilesystemencoding()) != "utf-8":
        for text in (str(Path.cwd()), *sys.argv[1:]):
            if not text.isascii():
                spelled = os.fsencode(text).decode(errors="replace")
                raise ConfigError(
                    f"{spelled}: needs UTF-8, and this locale has {encoding}; set PYTHONUTF8=1"
                )
