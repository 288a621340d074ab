"""Decisions of exactly-once writes, stored in a compacted topic of the target cluster.

There is one record per query: the batch that was decided last, and the transactions that make it up. It is written in
its own transaction, whose transactional id every driver of the query takes over before it reads: of two drivers
running the same query, only the later one can decide.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote
from uuid import UUID

from millpond.base.ids import TopicPartition
from millpond.remote import offsets
from millpond.remote.cluster import Cluster, TopicInfo
from millpond.remote.errors import ClusterError, OffsetsGone
from millpond.remote.reader import read_range
from millpond.remote.topics import TopicExists, create_topic
from millpond.remote.transactions import Outcome, ProducerIdentity, describe, end, init_producer
from millpond.remote.writer import BatchWriter
from millpond.spark.sink.errors import BatchNotWritten
from millpond.wire.compression import GZIP
from millpond.wire.partitioner import partition_for_key
from millpond.wire.records import Record

TOPIC: Final = "__millpond_spark"
PARTITIONS: Final = 8
"""A driver that dies while deciding blocks others on its partition until its transaction times out."""

CONFIG: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}

DECIDING_TIMEOUT_MS: Final = 10_000
SETTLED_SECONDS: Final = 60.0
_STEP_SECONDS: Final = 0.02
_FORMAT: Final = 2


@dataclass(frozen=True, slots=True)
class Part:
    """What one task wrote: a transaction, its rows, and its first offsets in some of its partitions."""

    partition: int
    """Spark's, not the topic's."""
    rows: int
    checksum: str
    identity: ProducerIdentity | None = None
    """None if the task only counted its rows, or had none."""
    begins: tuple[tuple[str, int, int], ...] = ()
    """(topic, partition, offset) of its first batches, from which the log shows how it ended."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The final list of a batch's transactions: any reader of it may commit them."""

    owner: str
    """A streaming query, or a job's name and topic."""
    batch: int
    parts: tuple[Part, ...]
    topic: str | None = None
    """The topic of all rows; None if each row names its own."""
    run: str = ""
    """The id of the stream's run, inside foreachBatch."""

    def to_json(self) -> bytes:
        parts = [
            [each.partition, each.rows, each.checksum, each.identity, each.begins]
            for each in self.parts
            if each.identity is not None
        ]
        record = {"format": _FORMAT, "batch": self.batch, "topic": self.topic, "run": self.run, "parts": parts}
        return json.dumps(record, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, owner: str, data: bytes) -> Decision:
        record = json.loads(data)
        if record["format"] != _FORMAT:
            raise ClusterError(
                f"{TOPIC} has a decision of {owner} in format {record['format']}, this Millpond reads {_FORMAT}: "
                "use the version that wrote it"
            )
        parts = tuple(
            Part(partition, rows, checksum, ProducerIdentity(*identity), tuple(map(tuple, begins)))
            for partition, rows, checksum, identity, begins in record["parts"]
        )
        return cls(owner, record["batch"], parts, record["topic"], record["run"])


@dataclass(slots=True)
class _PartitionState:
    """What this process has read of one partition of the topic."""

    position: int
    decisions: dict[str, bytes]


_states: dict[tuple[UUID, int], _PartitionState] = {}
"""Python workers are reused, so each reads only what is new. A recreated topic has another id."""


class DecisionLog:
    """Looks decisions up and records them. For one thread at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def take_over(self, owner: str) -> ProducerIdentity:
        """Become the owner's decider. An older decider's unfinished decision is committed or aborted by this."""
        return init_producer(self._cluster, f"{name_of(owner)}decision", DECIDING_TIMEOUT_MS)

    def is_decider(self, identity: ProducerIdentity) -> bool:
        """Whether no other decider has taken over."""
        state = describe(self._cluster, [identity.transactional_id]).get(identity.transactional_id)
        return state is not None and state.identity == identity

    def find(self, owner: str) -> Decision | None:
        """The newest decision of this query or job."""
        partition, topic_id = self._partition_of(owner)
        state = self._catch_up(partition, topic_id)
        data = state.decisions.get(owner)
        return None if data is None else Decision.from_json(owner, data)

    def record(self, identity: ProducerIdentity, decision: Decision) -> None:
        """Store the decision. `identity` is the result of `take_over`, called before looking for a decision."""
        partition, _ = self._partition_of(decision.owner)
        record = Record(0, time.time_ns() // 1_000_000, decision.owner.encode(), decision.to_json())
        with BatchWriter(self._cluster, codec=GZIP, transactional=identity) as writer:
            writer.append_records(partition, [record])
            writer.flush()
        outcome = end(self._cluster, identity, commit=True)
        if outcome is not Outcome.COMMITTED:
            raise BatchNotWritten(
                f"batch {decision.batch} of {decision.owner} was not decided: another driver of the same query "
                "was quicker, or this one took too long. Only one may run at a time"
            )

    def _partition_of(self, owner: str) -> tuple[TopicPartition, UUID]:
        info = self._cluster.topics([TOPIC]).get(TOPIC)
        if info is None:
            _create(self._cluster)
            info = self._await_topic()
        return TopicPartition(TOPIC, partition_for_key(owner.encode(), len(info.partitions))), info.topic_id

    def _await_topic(self) -> TopicInfo:
        """Wait for the new topic: brokers learn of it one by one, and of its leaders after that."""
        deadline = time.monotonic() + SETTLED_SECONDS
        while True:
            info = self._cluster.topics([TOPIC]).get(TOPIC)
            if (
                info is not None
                and len(info.partitions)
                and all(each.leader >= 0 for each in info.partitions.values())
            ):
                return info
            if time.monotonic() > deadline:
                raise ClusterError(f"topic {TOPIC} was created, but has no leaders after {SETTLED_SECONDS:g} s")
            time.sleep(_STEP_SECONDS)

    def _catch_up(self, partition: TopicPartition, topic_id: UUID) -> _PartitionState:
        end_offset = self._settled_end(partition)
        state = _states.get((topic_id, partition.partition))
        if state is None or state.position > end_offset:
            state = self._from_the_start(partition, topic_id)
        try:
            self._read(state, partition, end_offset)
        except OffsetsGone:
            state = self._from_the_start(partition, topic_id)
            self._read(state, partition, end_offset)
        return state

    def _from_the_start(self, partition: TopicPartition, topic_id: UUID) -> _PartitionState:
        begin = offsets.earliest(self._cluster, [partition])[partition]
        state = _states[topic_id, partition.partition] = _PartitionState(begin, {})
        return state

    def _settled_end(self, partition: TopicPartition) -> int:
        """The end of the partition once no transaction below it is open, so that no decision is missed."""
        end_offset = offsets.latest(self._cluster, [partition])[partition]
        deadline = time.monotonic() + SETTLED_SECONDS
        while offsets.latest(self._cluster, [partition], "read_committed")[partition] < end_offset:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"a transaction in {partition} has been open for {SETTLED_SECONDS:g} s; see "
                    "millpond txn list, and start the query again when it is over"
                )
            time.sleep(_STEP_SECONDS)
        return end_offset

    def _read(self, state: _PartitionState, partition: TopicPartition, end_offset: int) -> None:
        batches = read_range(self._cluster, partition, state.position, end_offset, isolation="read_committed")
        for record in (each for batch in batches for each in batch.records()):
            if state.position <= record.offset < end_offset and record.key is not None:
                owner = record.key.decode()
                state.decisions.pop(owner, None)
                if record.value is not None:
                    state.decisions[owner] = record.value
        state.position = max(state.position, end_offset)


def name_of(owner: str) -> str:
    """The unique prefix of the transactional ids of a query or job."""
    return f"spark.{quote(owner, safe='').replace('.', '%2E')}."


def _create(cluster: Cluster) -> None:
    """Create the topic unless it exists."""
    try:
        create_topic(cluster, TOPIC, PARTITIONS, settings=CONFIG)
    except TopicExists:
        return
    except ClusterError as refusal:
        raise ClusterError(f"{refusal}; exactly_once needs it", code=refusal.code) from refusal
