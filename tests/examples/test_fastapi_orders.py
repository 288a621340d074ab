"""Orders over HTTP are in the log before they are confirmed, or refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.testing import Pond
from millpond.testing.ports import free_port
from support.web import post


def test_an_order_is_in_the_log_before_it_is_confirmed(millpond: Pond, example: Any) -> None:
    pytest.importorskip("fastapi", reason="pip install fastapi")
    millpond.create_topic("fastapi.orders")
    address = f"127.0.0.1:{free_port()}"
    example.start("orders_api.py", address.partition(":")[2])
    status, body = post(f"{address}/orders", {"id": "o-1", "customer": "ann", "total": 7})
    assert (status, body) == (201, {"topic": "fastapi.orders", "partition": 0, "offset": 0})
    assert millpond.consume("fastapi.orders", 1)[0].key == b"ann"
    assert post(f"{address}/orders", b"nothing")[0] in (400, 422)
    millpond.stop()
    status, body = post(f"{address}/orders", {"id": "o-2", "customer": "ann", "total": 7})
    assert status == 503
    assert "fastapi.orders" in str(body)
