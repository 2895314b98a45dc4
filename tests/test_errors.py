"""What surroundings say is one line, and no line says a secret."""

import errno

import pytest

from harness.errors import did_you_mean, redacted, surroundings


@pytest.mark.parametrize(
    "text",
    [
        "could not connect to postgresql+psycopg://anna:s3cr%40t@db/study",
        'FATAL: password authentication failed for user "anna"',
        "tried s3cr@t, then s3cr%40t",
        "https://anna:other@elsewhere/x?token=abcdef",
        "connection to postgresql://db/study?user=anna&password=hunter2 failed",
    ],
)
def test_user_names_and_passwords_of_stores_are_not_said(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_STORAGE", "postgresql+psycopg://anna:s3cr%40t@db/study")
    monkeypatch.setenv(
        "MLFLOW_TRACKING_URI", "postgresql://db/study?user=anna&password=hunter2&token=abcdef"
    )
    said = redacted(text)
    for secret in ("anna", "s3cr", "hunter2", "abcdef", "other@"):
        assert secret not in said, said


def test_a_user_name_that_is_a_word_spoils_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_STORAGE", "postgresql://run:x9@db/study")
    assert redacted("harness run quick") == "harness run quick"


def test_an_error_of_the_machine_is_one_line_even_deep_in_a_chain() -> None:
    try:
        try:
            raise OSError(errno.ENOSPC, "No space left on device", "a/b")
        except OSError as inner:
            raise RuntimeError("lost") from inner
    except RuntimeError as error:
        line = surroundings(error)
    assert line == (
        "a/b: No space left on device; put that right, then give the same command again: "
        "what is finished is kept"
    )


def test_a_mistake_of_ours_keeps_its_traceback() -> None:
    try:
        try:
            open("/nowhere/at/all")  # noqa: PTH123, SIM115
        except FileNotFoundError:
            {}["no such key"]
    except KeyError as error:
        assert surroundings(error) is None


def test_where_nothing_is_known_the_line_says_so() -> None:
    assert did_you_mean("nowhere.toml", []) == " (known: none)"
