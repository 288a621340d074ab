"""Stores of processed ids: exactly once for effects outside the log.

A store keeps the id of each processed record. `once` wraps a run of the handler: what the handler does through its
unit of work and the storing of the id become one transaction of the store. Effects elsewhere are not part of it: a
crash between the effect and the commit repeats them.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Final, Protocol, Self

from millpond.client.errors import ConfigError, StoreFailed

BUSY_SECONDS = 30.0
OPEN_AGAIN_SECONDS = 0.02
FORGET_BATCH = 1_000


class ProcessedIds(Protocol):
    """A store of processed ids. Called from several threads."""

    def once(self, record_id: str) -> AbstractContextManager[Any]:
        """Enter to process a record: yields None if it was already processed, else the unit of work.

        Leaving without an error commits the unit and the id together; leaving with one rolls both back. Any error on
        entering, and StoreFailed on leaving, is the store's fault and not the record's.
        """
        ...

    def close(self) -> None: ...


OWN_TRANSACTION: Final = (
    "a handler must not end the transaction of its unit (with db:, commit, rollback or executescript), or its effect "
    "would last without the record's id and be repeated: use db.execute alone, and raise to undo it; for a part that "
    "may fail use SAVEPOINT"
)
ROLLED_BACK: Final = (
    "SQLite has rolled back the transaction of the unit (OR ROLLBACK, ON CONFLICT ROLLBACK, RAISE(ROLLBACK), or an "
    f"error such as a full disk), and the handler went on; {OWN_TRANSACTION}"
)


class _UnitCursor(sqlite3.Cursor):
    """Refuses statements outside the transaction: SQLite would commit each of them by itself."""

    def execute(self, *arguments: Any) -> Self:
        _connection_of(self).check_transaction()
        return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> Self:
        _connection_of(self).check_transaction()
        return super().executemany(*arguments)

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        _connection_of(self).check_own()
        return super().executescript(script)


def _connection_of(cursor: _UnitCursor) -> _UnitConnection:
    connection = cursor.connection
    assert isinstance(connection, _UnitConnection)
    return connection


class _UnitConnection(sqlite3.Connection):
    """A store's connection. While a handler has it, only the store may end the transaction."""

    is_in_unit = False
    was_denied = False

    @contextmanager
    def unit(self) -> Iterator[None]:
        self.is_in_unit, self.was_denied = True, False
        try:
            yield
            self.check_transaction()
        except sqlite3.DatabaseError as fault:
            if self.was_denied:
                raise ConfigError(OWN_TRANSACTION) from fault
            raise
        finally:
            self.is_in_unit = False

    def check_transaction(self) -> None:
        if self.is_in_unit and not self.in_transaction:
            raise ConfigError(ROLLED_BACK)

    def cursor(self, *arguments: Any, **keywords: Any) -> Any:
        return super().cursor(*arguments, **keywords) if arguments or keywords else super().cursor(_UnitCursor)

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        self.check_transaction()
        return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        self.check_transaction()
        return super().executemany(*arguments)

    def authorize(self, action: int, *_: object) -> int:
        """SQLite calls this for each statement it compiles, so it also catches db.execute("COMMIT")."""
        if action == sqlite3.SQLITE_TRANSACTION and self.is_in_unit:
            self.was_denied = True
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def __enter__(self) -> Self:
        self.check_own()
        return super().__enter__()

    def commit(self) -> None:
        self.check_own()
        super().commit()

    def rollback(self) -> None:
        self.check_own()
        super().rollback()

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        self.check_own()
        return super().executescript(script)

    def check_own(self) -> None:
        if self.is_in_unit:
            raise ConfigError(OWN_TRANSACTION)


class SqliteIds:
    """Ids in a SQLite file. The unit is a connection in a transaction: write your own tables through it.

    The store commits: a handler that calls `commit`, or uses `with db:`, is refused with ConfigError.

    SQLite has one writer at a time, so handlers that share a store run one by one, across all processes. Ids older
    than `keep_s` are deleted; keep them longer than the topic's retention and the longest outage.
    """

    def __init__(self, path: str | Path, *, table: str = "processed_ids", keep_s: float = 14 * 86_400) -> None:
        if not table.isidentifier():
            raise ValueError(f"{table!r} cannot name a table")
        self._path = str(path)
        self._table = table
        self._keep_s = keep_s
        self._writer = Lock()
        self._count = 0
        self._connection = sqlite3.connect(
            self._path,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            factory=_UnitConnection,
        )
        self._connection.set_authorizer(self._connection.authorize)
        self._begin_write_ahead_log()
        self._connection.execute("PRAGMA synchronous=FULL")
        with self._connection as connection:
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {table} (id TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID"
            )
            connection.execute(f"CREATE INDEX IF NOT EXISTS {table}_at ON {table} (at)")

    def _begin_write_ahead_log(self) -> None:
        # Once per file. SQLite does not wait for another connection that does the same at this moment.
        give_up = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as fault:
                if fault.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                    raise
            time.sleep(OPEN_AGAIN_SECONDS)

    @contextmanager
    def once(self, record_id: str) -> Iterator[sqlite3.Connection | None]:
        # Threads wait here however long a handler takes: SQLite's own wait has a limit and is unfair.
        with self._writer:
            connection = self._connection
            try:
                # A write transaction from the start: two workers with the same record must not both see it as new.
                connection.execute("BEGIN IMMEDIATE")
                if connection.execute(f"SELECT 1 FROM {self._table} WHERE id = ?", (record_id,)).fetchone():
                    connection.rollback()
                    yield None
                else:
                    with connection.unit():
                        yield connection
                    self._note(connection, record_id)
            except BaseException:
                connection.rollback()
                raise

    def close(self) -> None:
        with self._writer:
            self._connection.close()

    def _note(self, connection: sqlite3.Connection, record_id: str) -> None:
        now = time.time()
        try:
            connection.execute(f"INSERT INTO {self._table} (id, at) VALUES (?, ?)", (record_id, now))
            self._count += 1
            if self._count % FORGET_BATCH == 0:
                connection.execute(f"DELETE FROM {self._table} WHERE at < ?", (now - self._keep_s,))
            connection.commit()
        except sqlite3.Error as fault:
            raise StoreFailed(f"{self._path} did not note {record_id} as processed: {fault}") from fault
