"""Acknowledgements for one leader: parts of requests, and refusals narrowed down to the record at fault."""

from __future__ import annotations

from uuid import UUID

import pytest

from millpond.base.ids import TopicPartition
from millpond.remote.shares.acknowledgement_queue import PARTS_MAX, AcknowledgementPart, AcknowledgementQueue
from millpond.remote.shares.held_record import Acknowledgement, HeldRecord, PartitionKey, Verdict
from millpond.wire.records import Record
from support.seeds import dice, seeds

TOPIC = UUID(int=7)
KEY: PartitionKey = (TOPIC, 0)


def held(offset: int, key: PartitionKey = KEY) -> HeldRecord:
    return HeldRecord(key, TopicPartition("jobs", key[1]), Record(offset, 0, None, b""), 1, 30.0, 30.0)


def says(offset: int, verdict: Verdict, *, key: PartitionKey = KEY, **more: object) -> Acknowledgement:
    return Acknowledgement(offset, verdict, held(offset, key), **more)  # type: ignore[arg-type]


def queue_of(*acknowledgements: Acknowledgement) -> AcknowledgementQueue:
    queue = AcknowledgementQueue()
    for each in acknowledgements:
        queue.add(KEY, each)
    return queue


def test_neighbours_are_one_part_in_the_order_of_their_offsets() -> None:
    accepted = [says(offset, Verdict.ACCEPT) for offset in (5, 3, 4, 8)]
    assert queue_of(*accepted).take() == {
        KEY: [AcknowledgementPart(3, 5, [Verdict.ACCEPT]), AcknowledgementPart(8, 8, [Verdict.ACCEPT])]
    }


def test_different_verdicts_are_one_part_with_a_type_for_each() -> None:
    queue = queue_of(says(0, Verdict.ACCEPT), says(1, Verdict.RELEASE), says(2, Verdict.GAP))
    assert queue.take() == {KEY: [AcknowledgementPart(0, 2, [1, 2, 0])]}


def test_a_delay_or_an_error_is_of_a_part_of_its_own() -> None:
    queue = queue_of(
        says(0, Verdict.RELEASE, delay_ms=500),
        says(1, Verdict.RELEASE, delay_ms=500),
        says(2, Verdict.RELEASE),
        says(3, Verdict.REJECT, error_type="E", error_message="why"),
        says(4, Verdict.ACCEPT),
    )
    assert queue.take() == {
        KEY: [
            AcknowledgementPart(0, 1, [2], 500),
            AcknowledgementPart(2, 2, [2]),
            AcknowledgementPart(3, 3, [3], 0, "E", "why"),
            AcknowledgementPart(4, 4, [1]),
        ]
    }


def test_a_renewal_and_the_verdict_after_it_are_two_requests() -> None:
    queue = queue_of(says(0, Verdict.RENEW), says(0, Verdict.ACCEPT))
    assert queue.has_renewal()
    assert queue.take() == {KEY: [AcknowledgementPart(0, 0, [Verdict.RENEW])]}
    queue.taken(KEY)
    assert not queue.has_renewal()
    assert queue.take() == {KEY: [AcknowledgementPart(0, 0, [Verdict.ACCEPT])]}


def test_a_request_has_a_limit() -> None:
    queue = queue_of(*(says(2 * n, Verdict.ACCEPT) for n in range(PARTS_MAX + 10)))
    assert len(queue.take()[KEY]) == PARTS_MAX
    assert len(queue.taken(KEY)) == PARTS_MAX
    assert len(queue.take()[KEY]) == 10


class Leader:
    """Holds locks, and applies the acknowledgements of a partition as a whole or not at all."""

    def __init__(self) -> None:
        self.locked: set[tuple[PartitionKey, int]] = set()
        self.applied: dict[tuple[PartitionKey, int], int] = {}

    def apply(self, key: PartitionKey, parts: list[AcknowledgementPart]) -> bool:
        verdicts: dict[int, int] = {}
        for part in parts:
            count = part.last - part.first + 1
            types = part.types * count if len(part.types) == 1 else part.types
            assert len(types) == count
            for offset, verdict in zip(range(part.first, part.last + 1), types, strict=True):
                assert offset not in verdicts, "named twice"
                verdicts[offset] = verdict
        if any((key, offset) not in self.locked for offset in verdicts):
            return False
        for offset, verdict in verdicts.items():
            if verdict != Verdict.RENEW:
                self.locked.discard((key, offset))
                assert (key, offset) not in self.applied
                self.applied[key, offset] = verdict
        return True


@pytest.mark.parametrize("seed", seeds(range(60)))
def test_each_verdict_is_taken_or_refused_as_its_own_lock_says(seed: int) -> None:
    random = dice(seed)
    queue, leader = AcknowledgementQueue(), Leader()
    keys = [(TOPIC, index) for index in range(3)]
    given: dict[tuple[PartitionKey, int], int] = {}
    expected: set[tuple[PartitionKey, int]] = set()
    taken: list[tuple[PartitionKey, int]] = []
    refused: list[tuple[PartitionKey, int]] = []
    for offset in range(random.randrange(1, 80)):
        for key in keys:
            if random.random() < 0.3:
                continue
            at = (key, offset)
            if random.random() < 0.85:
                leader.locked.add(at)
                expected.add(at)
            given[at] = random.choice([Verdict.ACCEPT, Verdict.RELEASE, Verdict.REJECT])
            queue.add(key, says(offset, Verdict(given[at]), key=key))
    rounds = 0
    while queue:
        rounds += 1
        assert rounds < 2_000
        for key, parts in queue.take().items():
            if random.random() < 0.1:
                queue.again(key)
            elif leader.apply(key, parts):
                taken += [(key, each.offset) for each in queue.taken(key)]
            else:
                refused += [(key, each.offset) for each in queue.refused(key)]
        assert not queue.is_sent
    assert sorted(taken) == sorted(expected)
    assert sorted(refused) == sorted(given.keys() - expected)
    assert leader.applied == {at: given[at] for at in expected}
