"""Money is neither made nor lost by a worker that is killed again and again."""

from __future__ import annotations

import json
import random
import time
from typing import Any

from confluent_kafka import TopicPartition

from millpond.testing import Pond

TRANSFERS = 3000


def written(millpond: Pond) -> int:
    """How many records and markers the entries have, committed or not."""
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
            # The worker was quicker than the one that looks on: nothing is left to be interrupted.
            break
        worker = example.start("transfer_worker.py")
        deadline = time.monotonic() + 60
        while written(millpond) < before + 50 and time.monotonic() < deadline:
            time.sleep(0.005)
        assert written(millpond) > before, "it went on after a kill"
        time.sleep(chance.random() * 0.05)
        worker.kill()
    found = json.loads("".join(example.run("audit.py")))
    assert (found["total_cents"], found["not_two_entries"]) == (0, 0)

    if found["transfers"] < TRANSFERS:
        last = example.start("transfer_worker.py")
        deadline = time.monotonic() + 60
        while found["transfers"] < TRANSFERS and time.monotonic() < deadline:
            found = json.loads("".join(example.run("audit.py")))
        assert last.stop() == 0
    assert found["transfers"] == TRANSFERS
    assert (found["total_cents"], found["not_two_entries"]) == (0, 0)
