"""A transactional producer without a client library: each request of both protocol versions, one by one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m
from millpond.wire.batch import walk
from millpond.wire.records import Record, decode_batch
from support.node import PATIENCE_SECONDS, eventually
from support.raw import Raw, batch, fetch_request, produce_request

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
NODE_SETTINGS = {"transaction.state.log.num.partitions": "4", "offsets.topic.num.partitions": "4"}
"""Few partitions of the coordinators' topics, so that a node creates them quickly."""


class RawProducer:
    """One producer. With `v2` the broker adds partitions and groups implicitly, and every end bumps the epoch."""

    def __init__(self, raw: Raw, name: str, *, v2: bool = False, timeout_ms: int = 60_000) -> None:
        self.raw = raw
        self.name = name
        self.v2 = v2
        self.timeout_ms = timeout_ms
        self.id = self.epoch = -1
        self._sequences: dict[tuple[str, int], int] = {}

    def ask_for_id(self, **fields: Any) -> Any:
        """One InitProducerId."""
        wanted = {"transactional_id": self.name, "transaction_timeout_ms": self.timeout_ms, **fields}
        return self.raw.call(m.InitProducerIdRequest(**wanted), 5)

    def begin_session(self, **fields: Any) -> RawProducer:
        """InitProducerId until what an earlier producer left open has ended."""
        reply = patiently(lambda: self.ask_for_id(**fields))
        assert not reply.error_code, ErrorCode(reply.error_code)
        self._take(reply)
        return self

    def _take(self, reply: Any) -> None:
        self.id, self.epoch = reply.producer_id, reply.producer_epoch
        self._sequences.clear()

    def twin(self) -> RawProducer:
        """A duplicate of this producer, as after a restart from an old image."""
        made = RawProducer(self.raw, self.name, v2=self.v2)
        made.id, made.epoch = self.id, self.epoch
        return made

    def add(self, topic: str, *partitions: int) -> set[ErrorCode]:
        """Add partitions to the transaction; returns all responses."""
        return {code for _, code in patiently_add(self, [(topic, partitions)])}

    def batch(self, topic: str, partition: int, *values: bytes) -> bytes:
        """The next batch for a partition."""
        sequence = self._sequences.get((topic, partition), 0)
        self._sequences[topic, partition] = sequence + len(values)
        return batch(
            *values,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )

    def produce(self, topic: str, partition: int, records: bytes, *, acks: int = -1) -> Any:
        request = produce_request(topic, partition, records, acks)
        request.transactional_id = self.name
        return self.raw.call(request, self.produce_version).responses[0].partition_responses[0]

    @property
    def produce_version(self) -> int:
        return 12 if self.v2 else 11

    def send(self, topic: str, partition: int, *values: bytes) -> int:
        """Write in the transaction, as this version does it; returns the first offset."""
        if not self.v2:
            assert self.add(topic, partition) == {ErrorCode.NONE}
        records = self.batch(topic, partition, *values)
        reply = patiently(lambda: self.produce(topic, partition, records))
        assert not reply.error_code, ErrorCode(reply.error_code)
        return int(reply.base_offset)

    def ask_to_end(self, committed: bool) -> Any:
        """One EndTxn."""
        request = m.EndTxnRequest(
            transactional_id=self.name, producer_id=self.id, producer_epoch=self.epoch, committed=committed
        )
        return self.raw.call(request, 5 if self.v2 else 4)

    def end(self, committed: bool) -> None:
        reply = self.ask_to_end(committed)
        assert not reply.error_code, ErrorCode(reply.error_code)
        if self.v2:
            self._take(reply)

    def commit(self) -> None:
        self.end(True)

    def abort(self) -> None:
        self.end(False)

    def add_group(self, group: str) -> ErrorCode:
        request = m.AddOffsetsToTxnRequest(
            transactional_id=self.name, producer_id=self.id, producer_epoch=self.epoch, group_id=group
        )
        return ErrorCode(patiently(lambda: self.raw.call(request, 3)).error_code)


def patiently(ask: Any, seconds: float = PATIENCE_SECONDS) -> Any:
    """Retry until the previous transaction has completed; returns the last reply."""
    deadline = time.monotonic() + seconds
    while True:
        reply = ask()
        if reply.error_code != ErrorCode.CONCURRENT_TRANSACTIONS or time.monotonic() > deadline:
            return reply
        time.sleep(0.01)


def ask_to_add(producer: RawProducer, topics: Iterable[tuple[str, Sequence[int]]]) -> list[tuple[str, ErrorCode]]:
    """One AddPartitionsToTxn of a client; topic and error for each partition."""
    kind = m.AddPartitionsToTxnRequest
    request = kind(
        v3_and_below_transactional_id=producer.name,
        v3_and_below_producer_id=producer.id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[
            kind.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions)) for topic, partitions in topics
        ],
    )
    return [
        (topic.name, ErrorCode(partition.partition_error_code))
        for topic in producer.raw.call(request, 3).results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    ]


def patiently_add(producer: RawProducer, topics: list[tuple[str, Sequence[int]]]) -> list[tuple[str, ErrorCode]]:
    """Retry until the previous transaction has completed."""

    def answers() -> list[tuple[str, ErrorCode]] | None:
        result = ask_to_add(producer, topics)
        return None if any(code is ErrorCode.CONCURRENT_TRANSACTIONS for _, code in result) else result

    answered = eventually(answers)
    assert answered, "the transaction before does not end"
    return list(answered)


# What readers see.


def fetch(raw: Raw, topic: str, offset: int = 0, *, isolation: int = READ_COMMITTED, partition: int = 0) -> Any:
    request = fetch_request(topic, partition, offset, wait_ms=0)
    request.isolation_level = isolation
    return raw.call(request, 12).responses[0].partitions[0]


def end_offset(raw: Raw, topic: str, isolation: int) -> int:
    """The latest offset of partition 0 by ListOffsets: with read_committed the last stable offset."""
    kind = m.ListOffsetsRequest
    place = kind.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    topics = [kind.ListOffsetsTopic(name=topic, partitions=[place])]
    reply = raw.call(kind(replica_id=-1, isolation_level=isolation, topics=topics), 7)
    return int(reply.topics[0].partitions[0].offset)


def committed_records(raw: Raw, topic: str, partition: int = 0) -> list[Record]:
    """What a read_committed consumer gets from one partition: it drops the aborted transactions listed in each
    reply.
    """
    result: list[Record] = []
    reply = fetch(raw, topic, partition=partition)
    offset, end = max(reply.log_start_offset, 0), reply.last_stable_offset
    while offset < end:
        reply = fetch(raw, topic, offset, partition=partition)
        assert not reply.error_code, ErrorCode(reply.error_code)
        aborts = sorted((each.first_offset, each.producer_id) for each in reply.aborted_transactions or ())
        aborting: set[int] = set()
        before = offset
        for position, header in walk(reply.records):
            while aborts and aborts[0][0] < header.next_offset:
                aborting.add(aborts.pop(0)[1])
            if header.is_control:
                aborting.discard(header.producer_id)
            elif header.producer_id not in aborting or not header.is_transactional:
                result += [each for each in decode_batch(reply.records, position) if each.offset >= offset]
            before = header.next_offset
        assert before > offset, f"nothing at {offset}"
        offset = before
    return result


def committed_values(raw: Raw, topic: str, partition: int = 0) -> list[bytes | None]:
    return [each.value for each in committed_records(raw, topic, partition)]


def find_coordinator(raw: Raw, group: str) -> None:
    """What every client sends before it commits offsets; the first request creates the coordinator's topic."""
    reply = eventually(
        lambda: (
            not raw.call(m.FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4).coordinators[0].error_code
        )
    )
    assert reply, "the group has no coordinator"


def state_of(raw: Raw, transactional_id: str) -> Any:
    request = m.DescribeTransactionsRequest(transactional_ids=[transactional_id])
    return raw.call(request, 0).transaction_states[0]


def wait_for_state(raw: Raw, transactional_id: str, state: str, seconds: float = PATIENCE_SECONDS) -> None:
    is_there = eventually(lambda: state_of(raw, transactional_id).transaction_state == state, seconds)
    assert is_there, state_of(raw, transactional_id)


def producers_of(raw: Raw, topic: str, partition: int = 0) -> dict[int, Any]:
    """DescribeProducers of one partition, by producer id."""
    kind = m.DescribeProducersRequest
    reply = raw.call(kind(topics=[kind.TopicRequest(name=topic, partition_indexes=[partition])]), 0)
    return {each.producer_id: each for each in reply.topics[0].partitions[0].active_producers}
