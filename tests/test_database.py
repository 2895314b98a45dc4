"""A store is whole or not there, of this version, and where its path says."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from optuna.storages._rdb import models
from sqlalchemy import create_engine, make_url

from harness.database import Database, Schema, url_of
from harness.errors import ConfigError

MIGRATIONS = Path(models.__file__).with_name("alembic")  # any that alembic can read


def made(url: str, *, rows: bool = False, revision: bool = True) -> None:
    with closing(sqlite3.connect(make_url(url).database or "")) as connection, connection:
        connection.execute("CREATE TABLE things (name)")
        if rows:
            connection.execute("INSERT INTO things VALUES ('kept')")
        if revision:
            connection.execute("CREATE TABLE alembic_version (version_num)")
            connection.execute("INSERT INTO alembic_version VALUES (?)", [SCHEMA.head])


SCHEMA = Schema("optuna", MIGRATIONS, holds="things", upgrade="upgrade", make=made)


def things(path: Path) -> list[tuple[str]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT name FROM things").fetchall()


def opened(path: Path, schema: Schema = SCHEMA) -> None:
    with Database("VARIABLE", None, path).opening(schema):
        assert path.exists()


def test_a_database_that_cannot_be_made_is_not_there(tmp_path: Path) -> None:
    def full(url: str) -> None:
        made(url)
        raise OSError("full")

    path = tmp_path / "a.db"
    with pytest.raises(OSError, match="full"):
        opened(path, Schema("optuna", MIGRATIONS, "things", "upgrade", full))
    assert [p.name for p in tmp_path.iterdir()] == ["a.lock"]
    opened(path)
    assert things(path) == []


def test_what_a_kill_left_spoils_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    for name in (".a.db.part", ".a.db.part-journal", "a.db-journal", "a.db-wal"):
        (tmp_path / name).write_bytes(b"half" * 1000)
    opened(path)
    assert things(path) == []
    assert {p.name for p in tmp_path.iterdir()} == {"a.db", "a.lock"}


@pytest.mark.parametrize("left", ["empty", "tables", "older"])
def test_one_made_by_half_and_empty_is_made_anew(left: str, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.touch()
    if left != "empty":
        made(url_of(path), revision=left == "older")
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("ALTER TABLE things ADD old")
            if left == "older":
                connection.execute("UPDATE alembic_version SET version_num = 'v2.6.0.a'")
    opened(path)
    assert things(path) == []
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM things").description == (("name", *[None] * 6),)


@pytest.mark.parametrize(
    ("revision", "rows", "mend"),
    [
        ("v9.0.0.a", False, "install the optuna that made it"),
        ("v2.6.0.a", True, "upgrade it with 'upgrade sqlite+pysqlite:///"),
        ("", True, "install the optuna that made it"),
    ],
)
def test_another_version_is_one_line_and_stays(
    revision: str, rows: bool, mend: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.db"
    made(url_of(path), rows=rows)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", [revision])
    before = path.read_bytes()
    with pytest.raises(ConfigError) as caught:
        opened(path)
    said = str(caught.value)
    found = f"found {revision or 'none'}, expected {SCHEMA.head}"
    assert said.startswith(f"{path}: schema of optuna: {found} (optuna ") and mend in said
    assert said.endswith("or move the file away: results stay")
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["a?b", "a%20b", "a b", "a#b", "a{b}", "größe", "a'b:c"])
def test_a_path_is_taken_at_its_word(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    opened(folder / "a.db")
    engine = create_engine(url_of(folder / "a.db"))
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT * FROM things").fetchall() == []
    engine.dispose()
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert {p.name for p in folder.iterdir()} == {"a.db", "a.lock"}


def test_the_file_that_a_url_names_is_made_whole_too(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Database("VARIABLE", f"sqlite:///{path}", tmp_path / "other.db").opening(SCHEMA):
        assert things(path) == []
    server = Database("VARIABLE", "postgresql://host/name", tmp_path / "other.db")
    with server.opening(SCHEMA):
        assert server.file is None
    assert not (tmp_path / "other.db").exists()
