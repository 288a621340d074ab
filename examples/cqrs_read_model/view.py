"""The read side: a SQLite table that is updated from the topic of products.

Usage: view.py FILE follow        keep FILE up to date until SIGTERM
       view.py FILE update        bring FILE up to date and exit
       view.py FILE query NAME    products whose name has NAME in it, cheapest first

The position of the view is in the same file and is written in the same transaction as the rows: after a crash no
change is lost or applied twice. A new FILE is built from the beginning of the topic.
"""

from __future__ import annotations

import signal
import sqlite3
import sys

from millpond import Consumer, Message

PRODUCTS = "products"
TABLES = """
CREATE TABLE IF NOT EXISTS products (id TEXT PRIMARY KEY, name TEXT NOT NULL, cents INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS products_by_price ON products (cents);
CREATE TABLE IF NOT EXISTS positions (partition INTEGER PRIMARY KEY, next INTEGER NOT NULL);
"""


class View:
    def __init__(self, path: str) -> None:
        self.tables = sqlite3.connect(path)
        self.tables.executescript(TABLES)

    def take(self, changes: list[Message]) -> None:
        """Apply all records and the new position in one transaction."""
        with self.tables:
            for change in changes:
                self._take(change)

    def _take(self, change: Message) -> None:
        product = (change.key or b"").decode()
        if change.value is None:
            self.tables.execute("DELETE FROM products WHERE id = ?", (product,))
        else:
            told = change.json()
            row = (product, told["name"], told["cents"])
            self.tables.execute("INSERT OR REPLACE INTO products VALUES (?, ?, ?)", row)
        self.tables.execute("INSERT OR REPLACE INTO positions VALUES (?, ?)", (change.partition, change.offset + 1))

    def update(self, *, follow: bool) -> None:
        with Consumer(topics=[PRODUCTS]) as consumer:
            for partition, next_offset in self.tables.execute("SELECT partition, next FROM positions"):
                consumer.seek(PRODUCTS, partition, next_offset)
            while (changes := consumer.poll(timeout_s=1.0)) or follow:
                self.take(changes)

    def query(self, name: str) -> None:
        rows = "SELECT id, name, cents FROM products WHERE name LIKE ? ORDER BY cents, id"
        for row in self.tables.execute(rows, (f"%{name}%",)):
            print(*row, sep="\t")


def main(path: str, verb: str, name: str = "") -> None:
    view = View(path)
    if verb == "query":
        view.query(name)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        view.update(follow=verb == "follow")


if __name__ == "__main__":
    main(*sys.argv[1:])
