"""A view that was killed and updated equals one that is rebuilt from scratch."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from millpond.testing import Pond

Rows = list[tuple[str, str, int]]


def rows(path: Path) -> Rows:
    with sqlite3.connect(path, timeout=10) as table:
        return table.execute("SELECT * FROM products ORDER BY id").fetchall()


def expected(millpond: Pond, count: int) -> dict[str, bytes]:
    """The last value of each key, without deleted keys."""
    last = {message.key: message.value for message in millpond.consume("products", count)}
    return {key.decode(): value for key, value in last.items() if value is not None}


def test_a_view_rebuilt_from_scratch_is_equal(millpond: Pond, example: Any, tmp_path: Path) -> None:
    millpond.create_topic("products", 3, cleanup_policy="compact")
    shop, again = tmp_path / "shop.db", tmp_path / "again.db"
    example.run("catalogue.py", "season", "500")
    follower = example.start("view.py", str(shop), "follow")
    example.run("catalogue.py", "season", "300", "1")
    follower.kill()
    example.run("catalogue.py", "set", "product-1", "golden product", "99")
    example.run("catalogue.py", "drop", "product-2")
    example.run("view.py", str(shop), "update")
    assert example.run("view.py", str(shop), "query", "golden") == ["product-1\tgolden product\t99"]
    rows_of_view = rows(shop)
    assert {row[0] for row in rows_of_view} == expected(millpond, 802).keys()
    assert "product-2" not in {row[0] for row in rows_of_view}

    example.run("view.py", str(again), "update")
    assert rows(again) == rows_of_view
