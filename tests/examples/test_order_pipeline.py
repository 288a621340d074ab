"""Good orders pass, bad ones go to the dead letters, and can be redriven once the pipeline is changed."""

from __future__ import annotations

import json
from typing import Any

from millpond.testing import Pond


def charged(lines: list[str]) -> set[int]:
    return {int(line.split()[-1]) for line in lines if line.startswith("charged")}


def packed(lines: list[str]) -> set[int]:
    return {int(line.split()[-1]) for line in lines if line.startswith("packed")}


def test_orders_dead_letters_and_a_redrive(millpond: Pond, example: Any) -> None:
    for topic in ("shop.orders", "shop.payments", "shop.parcels"):
        millpond.create_topic(topic, 2)
    good = {number for number in range(30) if number % 10 not in (3, 5, 7)}
    francs = {7, 17, 27}
    pipeline = example.start("pipeline.py")
    example.run("shoppers.py", "30")
    pipeline.wait_for(lambda lines: packed(lines) == charged(lines) == good)
    assert len(millpond.consume("shop.orders.dlq", 9)) == 9
    stats = json.loads("".join(example.millpond("dlq", "stats", "shop.orders.dlq", "--json")))
    kinds = {name.rpartition(".")[2]: count for name, count in stats["errors"].items()}
    assert kinds == {"DecodeFailed": 3, "Reject": 3, "UnknownCurrency": 3}
    assert stats["origins"] == {"shop.orders": 9}
    assert pipeline.stop() == 0

    wiser = example.start("pipeline.py", "EUR", "CHF")
    redrive = ("dlq", "redrive", "shop.orders.dlq", "--error", "UnknownCurrency")
    assert example.millpond(*redrive)[-1] == "Redrove 3 records."
    wiser.wait_for(lambda lines: packed(lines) == francs)
    assert example.millpond(*redrive)[-1] == "Redrove 0 records."
    assert wiser.stop() == 0
    parcels = sorted(message.value or b"" for message in millpond.consume("shop.parcels", 24))
    assert parcels == sorted(b"parcel-%d" % number for number in good | francs)
