"""The mirror equals the table after inserts, updates and deletes, and so does a new mirror."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from millpond.testing import Pond


def test_the_mirror_follows_the_table(millpond: Pond, example: Any, tmp_path: Path) -> None:
    millpond.create_topic("customers", 2, cleanup_policy="compact")
    path = tmp_path / "crm.db"
    example.run("capture.py", str(path), "--once")
    table = sqlite3.connect(path, timeout=10)
    with table:
        table.executemany("INSERT INTO customers VALUES (?, ?, ?)", [(n, f"name {n}", "Bern") for n in range(30)])

    def shows_the_table(lines: list[str]) -> bool:
        rows = table.execute("SELECT id, name, city FROM customers").fetchall()
        return bool(lines) and json.loads(lines[-1]) == {
            str(customer): {"name": name, "city": city} for customer, name, city in rows
        }

    capture, mirror = example.start("capture.py", str(path)), example.start("mirror.py")
    mirror.wait_for(shows_the_table)
    with table:
        table.execute("UPDATE customers SET city = 'Basel' WHERE id < 5")
        table.execute("DELETE FROM customers WHERE id >= 25")
    mirror.wait_for(shows_the_table)
    assert len(json.loads(mirror.lines[-1])) == 25

    capture.kill()
    with table:
        table.execute("DELETE FROM customers WHERE id = 0")
    example.run("capture.py", str(path), "--once")
    mirror.wait_for(shows_the_table)
    assert "0" not in json.loads(mirror.lines[-1])
    example.start("mirror.py").wait_for(shows_the_table)
    table.close()
