"""Avro written and read, and a value that is not Avro."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.testing import Pond


def test_orders_in_avro(millpond: Pond, example: Any) -> None:
    pytest.importorskip("fastavro", reason="pip install fastavro")
    millpond.create_topic("orders.avro")
    millpond.create_topic("orders.avro.dlq")
    assert example.run("avro_orders.py", "send", "3") == ["3 orders are sent"]
    millpond.produce("orders.avro", b"\xff")
    assert example.run("avro_orders.py", "charge") == [
        "ann pays 0.00 for o-0",
        "ann pays 1.50 for o-1",
        "ann pays 3.00 for o-2",
    ]
    assert millpond.consume("orders.avro.dlq", 1)[0].value == b"\xff"
    pytest.importorskip("pyspark", reason="pip install 'millpond[spark]'")
    output = example.millpond("pipeline", "check", str(example.folder / "orders.toml"))
    assert any("The declaration is valid" in line for line in output)
