"""Ids in SQLite: once means once, with the effect or not at all."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millpond import ConfigError, SqliteIds


@pytest.fixture
def ids(tmp_path: Path):  # type: ignore[no-untyped-def]
    store = SqliteIds(tmp_path / "ids.db")
    yield store
    store.close()


def test_the_second_time_there_is_nothing_to_do(ids: SqliteIds) -> None:
    with ids.once("a") as unit:
        assert unit is not None
    with ids.once("a") as unit:
        assert unit is None
    with ids.once("b") as unit:
        assert unit is not None


def test_a_failure_undoes_the_effect_and_the_note(ids: SqliteIds, tmp_path: Path) -> None:
    with ids.once("make") as unit:
        unit.execute("CREATE TABLE effects (name TEXT)")

    def fail() -> None:
        with ids.once("a") as unit:
            unit.execute("INSERT INTO effects VALUES ('a')")
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    with sqlite3.connect(tmp_path / "ids.db") as database:
        assert database.execute("SELECT count(*) FROM effects").fetchone() == (0,)
    with ids.once("a") as unit:
        assert unit is not None


def test_it_lasts_and_is_shared_by_processes(ids: SqliteIds, tmp_path: Path) -> None:
    with ids.once("a"):
        pass
    other = SqliteIds(tmp_path / "ids.db")
    with other.once("a") as unit:
        assert unit is None
    other.close()


def test_of_many_threads_one_gets_it(ids: SqliteIds) -> None:
    def attempt(number: int) -> bool:
        with ids.once(f"id-{number % 5}") as unit:
            return unit is not None

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(80))) == 5


def test_old_ids_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.client.processed_ids.FORGET_BATCH", 2)
    store = SqliteIds(tmp_path / "ids.db", keep_s=-1)
    for name in ("a", "b"):
        with store.once(name):
            pass
    with store.once("a") as unit:
        assert unit is not None
    store.close()


def test_a_table_must_have_a_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="table"):
        SqliteIds(tmp_path / "ids.db", table="x; DROP")


def _with_db(db: sqlite3.Connection) -> None:
    with db:
        db.execute("UPDATE account SET balance = balance + 1")


def _commit(db: sqlite3.Connection) -> None:
    db.execute("UPDATE account SET balance = balance + 1")
    db.commit()


def _sql_commit(db: sqlite3.Connection) -> None:
    db.execute("UPDATE account SET balance = balance + 1")
    db.execute("commit")


def _rollback(db: sqlite3.Connection) -> None:
    db.rollback()
    db.execute("UPDATE account SET balance = balance + 1")


def _sql_rollback(db: sqlite3.Connection) -> None:
    db.execute("ROLLBACK")
    db.execute("UPDATE account SET balance = balance + 1")


def _script(db: sqlite3.Connection) -> None:
    db.execute("UPDATE account SET balance = balance + 1")
    db.executescript("SELECT 1;")


@pytest.mark.parametrize("effect", [_with_db, _commit, _sql_commit, _rollback, _sql_rollback, _script])
def test_a_handler_that_ends_the_transaction_itself_is_refused(ids: SqliteIds, tmp_path: Path, effect: Any) -> None:
    with ids.once("make") as unit:
        unit.execute("CREATE TABLE account (balance INTEGER)")
        unit.execute("INSERT INTO account VALUES (0)")

    def attempt() -> None:
        with ids.once("a") as unit:
            effect(unit)

    for _ in range(3):
        with pytest.raises(ConfigError, match="must not end the transaction"):
            attempt()
    with sqlite3.connect(tmp_path / "ids.db") as database:
        assert database.execute("SELECT balance FROM account").fetchone() == (0,)
    with ids.once("a") as unit:
        unit.execute("SAVEPOINT part")
        unit.execute("UPDATE account SET balance = balance + 1")
        unit.execute("RELEASE part")
    with sqlite3.connect(tmp_path / "ids.db") as database:
        assert database.execute("SELECT balance FROM account").fetchone() == (1,)


ROLLS_BACK = {
    "or rollback": "INSERT OR ROLLBACK INTO taken VALUES ('a')",
    "on conflict rollback": "INSERT INTO strict VALUES ('a')",
    "raise rollback": "INSERT INTO guarded VALUES ('a')",
}


@pytest.mark.parametrize("through", ["connection", "cursor", "many", "nothing"])
@pytest.mark.parametrize("statement", ROLLS_BACK)
def test_a_unit_that_sqlite_rolled_back_goes_no_further(
    ids: SqliteIds, tmp_path: Path, statement: str, through: str
) -> None:
    database = sqlite3.connect(tmp_path / "ids.db")
    database.executescript("""
        CREATE TABLE effects (name TEXT); CREATE TABLE taken (key TEXT PRIMARY KEY); INSERT INTO taken VALUES ('a');
        CREATE TABLE strict (key TEXT UNIQUE ON CONFLICT ROLLBACK); INSERT INTO strict VALUES ('a');
        CREATE TABLE guarded (key TEXT);
        CREATE TRIGGER guard BEFORE INSERT ON guarded BEGIN SELECT RAISE(ROLLBACK, 'no'); END;
    """)

    def handle(unit: Any) -> None:
        with pytest.raises(sqlite3.IntegrityError):
            unit.execute(ROLLS_BACK[statement])
        effect = "INSERT INTO effects VALUES (?)"
        if through == "connection":
            unit.execute(effect, ("a",))
        elif through == "cursor":
            unit.cursor().execute(effect, ("a",))
        elif through == "many":
            unit.executemany(effect, [("a",)])

    def attempt() -> None:
        with ids.once("record") as unit:
            handle(unit)

    with pytest.raises(ConfigError, match="SAVEPOINT"):
        attempt()
    assert database.execute("SELECT count(*) FROM effects").fetchone() == (0,)
    database.close()
    with ids.once("record") as unit:
        assert unit is not None, "the record was noted as processed"
