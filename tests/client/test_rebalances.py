"""Workers and consumers while partitions move inside a poll: nothing skipped, nothing of others taken, by seed.

MILLPOND_SEED gives a seed back in; a failure prints it.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from client.stub_group import TOPIC, Group, stub_make
from millpond import Consumer, Message, Retry, Send, Worker
from millpond.base.ids import TopicPartition
from support.node import eventually
from support.seeds import fresh_seed

ROUNDS = 6
WORKERS = 3


@pytest.fixture(params=range(ROUNDS))
def seed() -> int:
    chosen = fresh_seed()
    print(f"MILLPOND_SEED={chosen}")
    return chosen


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch) -> Any:
    def stub(group: Group, outputs: list[bytes]) -> None:
        for module in ("consumer", "transactions"):
            monkeypatch.setattr(f"millpond.client.{module}.make", stub_make(group, outputs))

    return stub


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once", "at_most_once"])
def test_workers_never_handle_what_is_not_theirs_and_skip_nothing(stubbed: Any, seed: int, delivery: Any) -> None:
    chance = random.Random(seed)
    group = Group(seed, lose_chance=0.0 if delivery == "at_most_once" else 0.02)
    outputs: list[bytes] = []
    stubbed(group, outputs)
    handled: Counter[bytes] = Counter()
    foreign: list[str] = []

    def made(number: int) -> Worker:
        def handle(message: Message) -> Iterator[Send]:
            with group.lock:
                mine = group.holders[TopicPartition(message.topic, message.partition)]
                engine: Any = workers[number]._engine
                if mine is not engine._consumer.raw and not engine._consumer.raw.is_removed:
                    foreign.append(f"{message.partition}@{message.offset}")
                if chance.random() < 0.01 and delivery != "at_most_once":
                    raise ValueError("try again")
                handled[message.value or b""] += 1
            if delivery == "exactly_once":
                yield Send("out", message.value)

        return Worker(
            handle,
            TOPIC,
            group="g",
            delivery=delivery,
            concurrency=3,
            commit_every_s=0.002,
            retries=Retry(1 if delivery == "at_most_once" else 50, first_s=0.001),
            in_flight_max=40,
        )

    workers = [made(number) for number in range(WORKERS)]
    for each in workers:
        each.start("nowhere")
    try:
        done = eventually(lambda: group.is_done() or not all(each.is_running() for each in workers))
        engines: list[Any] = [each._engine for each in workers]
        stand = f"{group.told()}\nin flight: {[vars(each._in_flight) for each in engines]}"
    finally:
        for each in workers:
            each.stop()
    assert done, stand
    wanted = {b"%d/%d" % (n, at) for n in range(group.partitions) for at in range(group.records_each)}
    assert foreign == [], f"seed {seed}: handled while another had the partition"
    assert set(handled) == wanted, f"seed {seed}: skipped {sorted(wanted - set(handled))}"
    assert group.moves > 0
    if delivery == "exactly_once":
        assert Counter(outputs) == Counter(wanted), f"seed {seed}: doubled or lost outputs"
    if delivery == "at_most_once":
        assert max(handled.values()) == 1, f"seed {seed}: {[each for each, n in handled.items() if n > 1]}"


@pytest.mark.parametrize("way", ["poll", "next"])
def test_a_consumer_hands_out_only_what_it_has(stubbed: Any, seed: int, way: str) -> None:
    group = Group(seed)
    stubbed(group, [])
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
