"""What a command inherits is harmless, or one line."""

import io
import os
import sys
import tempfile
import warnings
from multiprocessing import process, util
from pathlib import Path

import pytest

from harness.cli import main
from harness.environment import settle


def test_warnings_as_errors_are_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setattr(sys, "warnoptions", ["error"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settle()
        warnings.warn("of a third party", DeprecationWarning, stacklevel=1)
    assert sys.warnoptions == [] and "PYTHONWARNINGS" not in os.environ  # nor for workers


def test_a_long_folder_for_temporary_files_is_none_for_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(process.current_process()._config, "tempdir", None)  # type: ignore[attr-defined]
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setattr(tempfile, "tempdir", None)
    settle()
    folder = util.get_temp_dir()
    assert len(f"{folder}/listener-12345678") < 108
    assert tempfile.gettempdir() == str(long)


def test_what_an_ascii_terminal_cannot_show_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    settle()
    print("größe", flush=True)
    assert shown.getvalue() == b"gr\\xf6\\xdfe\n"


def test_a_path_that_the_locale_cannot_spell_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    monkeypatch.setattr(sys, "argv", ["harness", "schemes"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("gc.set_threshold", lambda *_: None)
    (folder := tmp_path / "größe").mkdir()
    monkeypatch.chdir(tmp_path)
    settle()
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said == f"{folder}: needs UTF-8, and this locale has ascii; set PYTHONUTF8=1\n"
