"""A FastStream application against a node."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.testing import Pond


def test_orders_become_bills(millpond: Pond, example: Any) -> None:
    pytest.importorskip("faststream.confluent", reason="pip install 'faststream[confluent]'")
    millpond.create_topic("faststream.orders")
    millpond.create_topic("faststream.bills")
    example.start("stream_app.py")
    millpond.produce("faststream.orders", b'{"id": "o-1", "total": 7}')
    (bill,) = millpond.consume("faststream.bills", 1, timeout=60)
    assert bill.json() == {"order": "o-1", "amount": 7.0}
