"""Which records have been processed: the other way to exactly once, for effects outside the log.

A store remembers the id of each processed record. `once` wraps the handler's run: what the handler does through the
unit it is given and the note that the record is done become one transaction of the store. Effects elsewhere are not
in it; for them a crash between effect and note still means a second effect.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import local
from typing import Any, Protocol

BUSY_SECONDS = 30.0
FORGET_BATCH = 1_000


class ProcessedIds(Protocol):
    """One interface for all stores. Called from several threads."""

    def once(self, record_id: str) -> AbstractContextManager[Any]:
        """Enter to process a record: gives None when it was processed before, else the unit to work through.

        Leaving without an error makes the unit's work and the id last together; leaving with one undoes both.
        """
        ...

    def close(self) -> None: ...


class SqliteIds:
    """Ids in a SQLite file. The unit is a connection in a transaction: write your own tables through it.

    SQLite has one writer at a time, so handlers with one store run one after the other, over all processes.
    Ids older than `keep_s` are forgotten; keep them longer than the topic's retention and the longest outage.
    """

    def __init__(self, path: str | Path, *, table: str = "processed_ids", keep_s: float = 14 * 86_400) -> None:
        if not table.isidentifier():
            raise ValueError(f"{table!r} cannot name a table")
        self._path = str(path)
        self._table = table
        self._keep_s = keep_s
        self._local = local()
        self._all: list[sqlite3.Connection] = []
        with self._connection() as connection:
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {table} (id TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID"
            )
            connection.execute(f"CREATE INDEX IF NOT EXISTS {table}_at ON {table} (at)")
        self._count = 0

    @contextmanager
    def once(self, record_id: str) -> Iterator[sqlite3.Connection | None]:
        connection = self._connection()
        # Taking the writer's place first: two workers with the same record must not both find it new.
        connection.execute("BEGIN IMMEDIATE")
        try:
            known = connection.execute(f"SELECT 1 FROM {self._table} WHERE id = ?", (record_id,)).fetchone()
            if known:
                yield None
            else:
                yield connection
                connection.execute(f"INSERT INTO {self._table} (id, at) VALUES (?, ?)", (record_id, time.time()))
                self._forget_some(connection)
        except BaseException:
            connection.rollback()
            raise
        connection.commit()

    def close(self) -> None:
        for connection in self._all:
            connection.close()
        self._all.clear()
        self._local = local()

    def _connection(self) -> sqlite3.Connection:
        """One for each thread, as SQLite likes it."""
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            found.execute("PRAGMA journal_mode=WAL")
            found.execute("PRAGMA synchronous=FULL")
            self._local.connection = found
            self._all.append(found)
        return found

    def _forget_some(self, connection: sqlite3.Connection) -> None:
        self._count += 1
        if self._count % FORGET_BATCH == 0:
            connection.execute(f"DELETE FROM {self._table} WHERE at < ?", (time.time() - self._keep_s,))
