"""Workers and consumers while partitions move inside a poll: nothing skipped, nothing of others taken, by seed.

With real threads, which the machine lets run as it likes; `test_interleavings.py` has the same workers take turns.
MILLPOND_SEED gives a seed back in; a failure prints it.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from client.crew import DELIVERIES, WORKERS, Crew, lose_chance, use_stub
from client.stub_group import TOPIC, Group
from millpond import Consumer
from millpond.base.ids import TopicPartition
from support.node import eventually
from support.seeds import fresh_seed

ROUNDS = 3


@pytest.fixture(params=range(ROUNDS))
def seed() -> int:
    chosen = fresh_seed()
    print(f"MILLPOND_SEED={chosen}")
    return chosen


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_workers_never_handle_what_is_not_theirs_and_skip_nothing(
    monkeypatch: pytest.MonkeyPatch, seed: int, delivery: str
) -> None:
    crew = Crew(Group(seed, lose_chance=lose_chance(delivery)), delivery, monkeypatch)
    crew.start()
    try:
        done = eventually(crew.is_over)
        stand = crew.describe()
    finally:
        crew.stop()
    assert done, stand
    crew.check()
    assert crew.group.moves > 0


@pytest.mark.parametrize("way", ["poll", "next"])
def test_a_consumer_hands_out_only_what_it_has(monkeypatch: pytest.MonkeyPatch, seed: int, way: str) -> None:
    group = Group(seed)
    use_stub(monkeypatch, group)
    consumers = [Consumer("g", [TOPIC]) for _ in range(WORKERS)]
    seen: set[bytes] = set()
    deadline = time.monotonic() + 20
    while not group.is_done() and time.monotonic() < deadline:
        consumer = group.chance.choice(consumers)
        raw: Any = consumer.raw
        batch = consumer.poll(20, 0.001) if way == "poll" else [consumer.next(0.001)]
        for message in filter(None, batch):
            assert TopicPartition(message.topic, message.partition) in raw.owned, f"seed {seed}: not its own"
            seen.add(message.value or b"")
        if not raw.is_removed and group.chance.random() < 0.5:
            consumer.commit()
    assert group.is_done(), f"seed {seed}: {group.committed}"
    assert len(seen) == group.partitions * group.records_each, f"seed {seed}: some were skipped"
