"""A share session against a leader that loses sessions, locks, connections and responses."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.remote.errors import ClientError
from millpond.remote.shares.held_record import Acknowledgement, HeldRecord, PartitionKey, Verdict
from millpond.remote.shares.leader_session import LeaderSession, Outcome, Request
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch
from support.seeds import dice, seeds

KEY: PartitionKey = (UUID(int=7), 0)
OFFSETS = 40
Delivery = tuple[int, int]
"""An offset and a delivery count."""


class Leader:
    """One partition: who holds what is known here, and nowhere else."""

    def __init__(self) -> None:
        self.deliveries = dict.fromkeys(range(OFFSETS), 0)
        self.held: set[int] = set()
        self.done: dict[int, int] = {}
        """The delivery that finished each offset."""
        self.released: set[Delivery] = set()
        self.epoch: int | None = None
        """The next one of the session."""

    def end_session(self) -> None:
        self.epoch = None
        self.held.clear()

    def answer(self, request: Request) -> m.ShareFetchResponse | m.ShareAcknowledgeResponse:
        is_fetch = isinstance(request, m.ShareFetchRequest)
        kind = m.ShareFetchResponse if is_fetch else m.ShareAcknowledgeResponse
        acknowledged = [
            each
            for topic in request.topics
            for partition in topic.partitions
            for each in partition.acknowledgement_batches
        ]
        if request.share_session_epoch == 0:
            assert is_fetch, "only a fetch opens a session"
            assert not acknowledged, "the first request of a session cannot acknowledge"
            assert request.topics
            self.epoch = 1
        elif self.epoch is None:
            return kind(error_code=ErrorCode.SHARE_SESSION_NOT_FOUND)
        elif request.share_session_epoch != self.epoch:
            return kind(error_code=ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        else:
            self.epoch += 1
        code = self._apply(acknowledged) if acknowledged else ErrorCode.NONE
        topic_id = KEY[0]
        if isinstance(request, m.ShareFetchRequest):
            return self._fetched(request.max_records, code)
        answer = m.ShareAcknowledgeResponse
        partitions = [answer.PartitionData(partition_index=0, error_code=code)]
        topics = [answer.ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=partitions)]
        return answer(acquisition_lock_timeout_ms=30_000, responses=topics if acknowledged else [])

    def _apply(self, acknowledged: list[m.ShareFetchRequest.AcknowledgementBatch]) -> ErrorCode:
        verdicts: dict[int, int] = {}
        last = -1
        for each in acknowledged:
            assert last < each.first_offset <= each.last_offset, "out of order"
            last = each.last_offset
            count = each.last_offset - each.first_offset + 1
            types = each.acknowledge_types * count if len(each.acknowledge_types) == 1 else each.acknowledge_types
            verdicts |= dict(zip(range(each.first_offset, each.last_offset + 1), types, strict=True))
        if not verdicts.keys() <= self.held:
            return ErrorCode.INVALID_RECORD_STATE
        for offset, verdict in verdicts.items():
            if verdict == Verdict.RENEW:
                continue
            self.held.discard(offset)
            if verdict == Verdict.RELEASE:
                self.released.add((offset, self.deliveries[offset]))
            else:
                assert offset not in self.done, "finished twice"
                self.done[offset] = self.deliveries[offset]
        return ErrorCode.NONE

    def _fetched(self, most: int, code: ErrorCode) -> m.ShareFetchResponse:
        kind = m.ShareFetchResponse
        free = [each for each in range(OFFSETS) if each not in self.held and each not in self.done][:most]
        for offset in free:
            self.deliveries[offset] += 1
            self.held.add(offset)
        data = b"".join(encode_batch([Record(each, 0, None, b"")], base_offset=each) for each in free)
        partition = kind.PartitionData(
            partition_index=0,
            acknowledge_error_code=code,
            records=data,
            acquired_records=[
                kind.AcquiredRecords(first_offset=each, last_offset=each, delivery_count=self.deliveries[each])
                for each in free
            ],
        )
        topics = [kind.ShareFetchableTopicResponse(topic_id=KEY[0], partitions=[partition])]
        return kind(acquisition_lock_timeout_ms=30_000, responses=topics)


class Member:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.leader = Leader()
        self.session = LeaderSession(1, "g", "m", renews=True)
        self.session.want({KEY: TopicPartition("jobs", 0)})
        self.working: list[HeldRecord] = []
        self.given: dict[Delivery, Verdict] = {}
        self.confirmed: set[Delivery] = set()
        self.failed: set[Delivery] = set()

    def step(self, *, faults: bool) -> None:
        self.say(keeps=faults)
        if faults and self.random.random() < 0.1:
            self.leader.held -= {each for each in self.leader.held if self.random.random() < 0.3}
        if faults and self.random.random() < 0.05:
            self.leader.end_session()
        request = self.session.next_request(
            records_max=self.random.choice([0, 3, 10]), wait_ms=1, bytes_max=1 << 20, version=2
        )
        if request is None:
            return
        is_lost = faults and self.random.random() < 0.08
        if not is_lost or self.random.random() < 0.5:
            response = self.leader.answer(request)
        if is_lost:
            self.leader.end_session()
            self.settle(Outcome(settled=self.session.on_disconnect("cut")))
        elif isinstance(response, m.ShareFetchResponse):
            self.settle(self.session.on_fetch(response, 0.0))
        else:
            self.settle(self.session.on_acknowledge(response, 0.0))

    def say(self, *, keeps: bool) -> None:
        for held in list(self.working):
            if keeps and self.random.random() < 0.5:
                continue
            self.working.remove(held)
            if held.loss is not None:
                continue
            verdict = self.random.choice([Verdict.ACCEPT, Verdict.ACCEPT, Verdict.RELEASE])
            self.given[held.record.offset, held.deliveries] = verdict
            self.session.acknowledge(Acknowledgement(held.record.offset, verdict, held))

    def settle(self, outcome: Outcome) -> None:
        assert outcome.failure is None
        self.working += outcome.records
        for acknowledgement, error in outcome.settled:
            held = acknowledgement.held
            assert held is not None
            delivery = held.record.offset, held.deliveries
            assert delivery not in self.confirmed | self.failed, "settled twice"
            (self.confirmed if error is None else self.failed).add(delivery)
            assert error is None or isinstance(error, ClientError)


@pytest.mark.parametrize("seed", seeds(range(120)))
def test_what_is_confirmed_was_applied_to_that_very_delivery(seed: int) -> None:
    member = Member(dice(seed))
    for _ in range(150):
        member.step(faults=True)
    for _ in range(300):
        member.step(faults=False)
    leader = member.leader
    for offset, deliveries in member.confirmed:
        if member.given[offset, deliveries] is Verdict.ACCEPT:
            assert leader.done[offset] == deliveries
        else:
            assert (offset, deliveries) in leader.released
    assert member.given.keys() == member.confirmed | member.failed, "every verdict has a result"
    assert leader.done.keys() == set(range(OFFSETS)), "everything is finished once the faults end"
