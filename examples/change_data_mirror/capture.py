"""Publishes the changes of a SQLite table: the current row with its id as the key, no value if it was deleted.

Usage: capture.py FILE [--once]

Triggers record in the table `changes` which rows changed, in the same transaction, so no change is missed. An entry
is removed when its record is acknowledged. After a crash in between the change is published again, which is harmless,
because the record has the row and not the change.
"""

from __future__ import annotations

import sqlite3
import sys
import time

from millpond import Producer

CUSTOMERS = "customers"
TABLES = """
CREATE TABLE IF NOT EXISTS customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT);
CREATE TABLE IF NOT EXISTS changes (number INTEGER PRIMARY KEY AUTOINCREMENT, id INTEGER NOT NULL);
CREATE TRIGGER IF NOT EXISTS added AFTER INSERT ON customers BEGIN INSERT INTO changes (id) VALUES (new.id); END;
CREATE TRIGGER IF NOT EXISTS altered AFTER UPDATE ON customers BEGIN INSERT INTO changes (id) VALUES (new.id); END;
CREATE TRIGGER IF NOT EXISTS removed AFTER DELETE ON customers BEGIN INSERT INTO changes (id) VALUES (old.id); END;
"""


def publish(table: sqlite3.Connection, producer: Producer) -> int:
    """Publish what has changed since the last call; the number of changes."""
    notes = table.execute("SELECT number, id FROM changes ORDER BY number LIMIT 1000").fetchall()
    sent = []
    for customer in dict.fromkeys(each for _, each in notes):
        row = table.execute("SELECT name, city FROM customers WHERE id = ?", (customer,)).fetchone()
        value = None if row is None else {"name": row[0], "city": row[1]}
        sent.append(producer.send(CUSTOMERS, value, key=str(customer)))
    for future in sent:
        future.result()
    with table:
        table.executemany("DELETE FROM changes WHERE number = ?", [(number,) for number, _ in notes])
    return len(notes)


def main(path: str, *options: str) -> None:
    table = sqlite3.connect(path)
    table.executescript(TABLES)
    with Producer(linger_ms=0) as producer:
        while publish(table, producer) or "--once" not in options:
            time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
