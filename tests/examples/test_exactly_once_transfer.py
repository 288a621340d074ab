"""A worker that is killed repeatedly neither creates nor loses money."""

from __future__ import annotations

import json
import random
import time
from typing import Any

from confluent_kafka import TopicPartition

from millpond.testing import Pond

TRANSFERS = 3000


def written(millpond: Pond) -> int:
    """The number of records and markers of the entries, committed or not."""
    consumer = millpond.consumer("look")
    try:
        return sum(consumer.get_watermark_offsets(TopicPartition("entries", each), 10)[1] for each in range(4))
    finally:
        consumer.close()


def test_the_total_is_conserved_under_kills(millpond: Pond, example: Any) -> None:
    millpond.create_topic("transfers", 2)
    millpond.create_topic("entries", 4)
    example.run("request_transfers.py", str(TRANSFERS))
    chance = random.Random(3)
    for _ in range(3):
        before = written(millpond)
        if before >= 2 * TRANSFERS:
            # The worker was faster than this test: there is nothing left to interrupt.
            break
        worker = example.start("transfer_worker.py")
        deadline = time.monotonic() + 60
        while written(millpond) < before + 50 and time.monotonic() < deadline:
            time.sleep(0.005)
        assert written(millpond) > before, "it went on after a kill"
        time.sleep(chance.random() * 0.05)
        worker.kill()
    totals = json.loads("".join(example.run("audit.py")))
    assert (totals["total_cents"], totals["not_two_entries"]) == (0, 0)

    if totals["transfers"] < TRANSFERS:
        last = example.start("transfer_worker.py")
        deadline = time.monotonic() + 60
        while totals["transfers"] < TRANSFERS and time.monotonic() < deadline:
            totals = json.loads("".join(example.run("audit.py")))
        assert last.stop() == 0
    assert totals["transfers"] == TRANSFERS
    assert (totals["total_cents"], totals["not_two_entries"]) == (0, 0)
