"""Databases of the stores: SQLite files, created completely or not at all, and servers."""

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from alembic.script import ScriptDirectory
from filelock import FileLock
from sqlalchemy import URL, Engine, event, make_url
from sqlalchemy.exc import SQLAlchemyError

from harness.errors import ConfigError

BESIDE = ("-journal", "-wal", "-shm")  # SQLite applies such files to the database of that name


@dataclass(frozen=True)
class Schema:
    """Properties of a library's database: how to create it, and how to tell its version."""

    package: str
    migrations: Path  # alembic's folder; the last migration gives the present schema
    holds: str  # the table whose rows must not be lost
    upgrade: str  # the command that upgrades an older database
    make: Callable[[str], None]  # creates a database at a URL and leaves no connection open
    stamp: tuple[str, str, int] | None = None  # table, column and value of a second version number

    @cached_property
    def _script(self) -> ScriptDirectory:
        return ScriptDirectory(str(self.migrations))

    @property
    def head(self) -> str | None:
        return self._script.get_current_head()

    def older(self, found: str | None) -> bool:
        """Returns True for a revision that can be upgraded; None, no revision, counts as one."""
        return found is None or found in {each.revision for each in self._script.walk_revisions()}


class Database:
    """The database that `variable` names with `url`, by default the SQLite file `path`.

    `file` is None for a server. SQLite waits up to `seconds` for the lock of another process.
    """

    def __init__(self, variable: str, url: str | None, path: Path, seconds: float = 60.0) -> None:
        self.own = not url  # in the state folder
        self.url = url or url_of(path)
        self.file = path.resolve() if self.own else _file(self.url)
        self.seconds = seconds
        self._shown = str(path) if self.own else variable
        # A new database is made by one process; several at once crash (measured, optuna 5.0.0).
        self._lock = (self.file or path).with_suffix(".lock")

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of SQLAlchemy's engine."""
        return {"connect_args": {"timeout": self.seconds}} if _is_sqlite(self.url) else {}

    @property
    def read_only(self) -> bool:
        """True if the file exists but it, or its folder (for SQLite's journal), is not writable."""
        return self.file is not None and self.file.exists() and not _writable(self.file)

    @contextmanager
    def opening(self, schema: Schema) -> Iterator[None]:
        """Holds a lock while the database is opened; creates the file if there is none.

        A file whose creation was interrupted, and that holds no rows, is created again. Raises
        ConfigError for a file of another version. A read-only file is opened without the lock.
        """
        locked = not self.read_only if self.file else _writable(self._lock)
        with FileLock(self._lock) if locked else nullcontext():
            if self.file and not self._sound(schema) and locked:
                self._make(self.file, schema)
            yield

    def checked(self, schema: Schema, found: str | None) -> None:
        """Raises ConfigError unless `found` is the present schema's revision."""
        if found == schema.head:
            return
        mend = f"install the {schema.package} that made it"
        if schema.older(found):
            mend = f"upgrade it with '{schema.upgrade} {self.url}'"
        if self.file:
            mend += ", or move the file away: results stay"
        raise ConfigError(
            f"{self._shown}: schema of {schema.package}: found {found or 'none'}, "
            f"expected {schema.head} ({schema.package} {version(schema.package)}); {mend}"
        )

    def _sound(self, schema: Schema) -> bool:
        """Returns False if the file is missing or its creation was interrupted."""
        found = self._first("alembic_version").get("version_num")
        if schema.stamp:
            table, column, value = schema.stamp
            if (row := self._first(table)) and row.get(column) != value:
                found = f"{column} {row.get(column)}"
        if found != schema.head and schema.older(found) and not self._first(schema.holds):
            return False
        self.checked(schema, found)
        return True

    def _make(self, file: Path, schema: Schema) -> None:
        part = file.with_name(f".{file.name}.part")  # a fixed name: the next start removes it
        try:
            _remove(part)
            schema.make(url_of(part))
            _remove(file)
            part.replace(file)
        except SQLAlchemyError as error:
            reason = str(error.__cause__ or error)
            raise OSError(errno.EIO, f"cannot be made: {reason}", self._shown) from error
        finally:
            _remove(part)

    @contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """A connection to the file, committed at the end. Raises OSError with the file's name."""
        assert self.file
        try:
            opened = sqlite3.connect(self.file, timeout=self.seconds)
            with closing(opened) as connection, connection:
                yield connection
        except sqlite3.Error as error:
            raise OSError(errno.EIO, str(error), self._shown) from error

    def _first(self, table: str) -> dict[str, Any]:
        """The first row of a table; empty if there is no row, no table or no file."""
        if not self.file or not self.file.exists():
            return {}
        with self.connected() as connection:
            known = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
            if not connection.execute(known, [table]).fetchone():
                return {}
            connection.row_factory = sqlite3.Row
            return dict(connection.execute(f"SELECT * FROM {table} LIMIT 1").fetchone() or {})


def url_of(path: Path) -> str:
    """The URL of an SQLite file; its path may hold any character."""
    # With the driver, because MLflow creates the folders of a sqlite:/// URL without unquoting it.
    return URL.create("sqlite+pysqlite", database=str(path.resolve())).render_as_string()


def begin_immediate(engine: Engine, file: Path | None) -> None:
    """Takes SQLite's write lock when a transaction begins: read-then-write is atomic only then.

    Raises FileNotFoundError at the next transaction if the file was removed or replaced.
    """
    if engine.dialect.name != "sqlite":
        return
    opened = _identity(file)

    @event.listens_for(engine, "connect")
    def no_implicit_begin(dbapi: Any, _: Any) -> None:
        dbapi.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        if _identity(file) != opened:
            raise FileNotFoundError(errno.ENOENT, "removed under way", str(file))
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _identity(file: Path | None) -> tuple[int, int] | None:
    if file is None or not file.exists():
        return None
    found = file.stat()
    return found.st_dev, found.st_ino


def _is_sqlite(url: str) -> bool:
    return url.startswith("sqlite")


def _writable(path: Path) -> bool:
    places = [path.parent, path] if path.exists() else [path.parent]
    return all(os.access(place, os.W_OK) for place in places)


def _file(url: str) -> Path | None:
    """The file of an SQLite URL; None for a server, for memory and for SQLite's file: URIs."""
    if not _is_sqlite(url):
        return None
    name = make_url(url).database or ":memory:"
    return None if name.startswith((":memory:", "file:")) else Path(name).resolve()


def _remove(path: Path) -> None:
    for ending in ("", *BESIDE):
        path.with_name(path.name + ending).unlink(missing_ok=True)
