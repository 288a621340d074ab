"""Averages of prices, in one event loop."""

from __future__ import annotations

import json
from typing import Any

from millpond.testing import Pond


def test_every_price_has_an_average(millpond: Pond, example: Any) -> None:
    millpond.create_topic("prices")
    millpond.create_topic("averages")
    prices = [b'{"symbol": "ACME", "price": %d}' % price for price in (10, 11, 15, 40)]
    millpond.produce("prices", *prices)
    assert example.run("averages.py", "4")[-1] == "4 prices"
    averages = [json.loads(each.value)["average"] for each in millpond.consume("averages", 4)]
    assert averages == [10, 10.5, 12, 22]
    assert "averages" in "".join(example.millpond("group", "list"))
