"""Writing encoded records in batches: several requests in flight, without duplicates or reordering.

The producer is idempotent. A batch gets its sequence number when it is appended, and is retried as the same bytes
until a broker has acknowledged it; a broker acknowledges a duplicate without storing it again. For one thread at a
time.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.base.ports import Buffer
from millpond.base.resource import Closable
from millpond.remote.cluster import BACKOFF_SECONDS, BACKOFF_SECONDS_MAX, Cluster, by_topic
from millpond.remote.connection import BrokerConnection
from millpond.remote.errors import PASSING, ClusterError, SendFailed, check
from millpond.remote.transactions import ProducerIdentity, add_partitions, refuse
from millpond.wire import messages as m
from millpond.wire.batch import HEADER_BYTES, SEQUENCE_COUNT
from millpond.wire.records import Record, encode_batch, wrap_payload

ACKS_ALL: Final = -1
IN_FLIGHT: Final = 5
"""Brokers remember this many batches of a producer; a retried one must be among them."""

BATCH_BYTES: Final = 900_000
"""Most topics accept a batch of a megabyte (max.message.bytes)."""
RECORD_OVERHEAD_BYTES: Final = 32
BUFFER_BYTES: Final = 32 << 20
REQUEST_BYTES: Final = 1 << 20
DELIVERY_SECONDS: Final = 120.0
REQUEST_TIMEOUT_MS: Final = 30_000

_PRODUCE_NEWEST: Final = 11
"""From version 12 on brokers add partitions to a transaction implicitly, and expect ends that raise the epoch."""

_STORED: Final = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
_GAP: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
_ANONYMOUS: Final = ProducerIdentity("", -1, -1)


@dataclass(slots=True, eq=False)
class _Batch:
    data: bytes
    made: float


@dataclass(slots=True, eq=False)
class _Queue:
    """The unacknowledged `batches` of one partition, oldest first."""

    partition: TopicPartition
    batches: deque[_Batch] = field(default_factory=deque)
    sent: int = 0
    """How many of them, from the oldest on, are in flight."""
    connection: BrokerConnection | None = None
    """The connection they were sent on."""
    is_failing: bool = False
    """One failed: nothing more is sent until all responses are in, to keep the order."""
    resume_at: float = 0.0
    pause: float = BACKOFF_SECONDS
    next_sequence: int = 0
    first_offset: int | None = None
    is_added: bool = False


@dataclass(slots=True, eq=False)
class _Sent:
    """One request in flight."""

    connection: BrokerConnection
    batches: list[tuple[_Queue, _Batch]]


class BatchWriter(Closable):
    """Sends encoded records to their leaders. Appended records are stored for certain only after `flush`."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int = ACKS_ALL,
        codec: int = 0,
        in_flight: int = IN_FLIGHT,
        buffer_bytes: int = BUFFER_BYTES,
        request_bytes: int = REQUEST_BYTES,
        delivery_seconds: float = DELIVERY_SECONDS,
        transactional: ProducerIdentity | None = None,
    ) -> None:
        if acks not in (ACKS_ALL, 1):
            raise ValueError(f"acks={acks}: a writer that flushes needs acknowledgements, all (-1) or 1")
        if transactional is not None and acks != ACKS_ALL:
            raise ValueError("a transaction needs acks=all")
        self._cluster = cluster
        self._acks = acks
        self._codec = codec
        # Without sequence numbers a failed batch could be overtaken by the next.
        self._in_flight = min(in_flight, IN_FLIGHT) if acks == ACKS_ALL else 1
        self._buffer_bytes = buffer_bytes
        self._request_bytes = request_bytes
        self._delivery_seconds = delivery_seconds
        self._transactional = transactional
        self._identity = transactional
        self._queues: dict[TopicPartition, _Queue] = {}
        self._on_their_way: deque[_Sent] = deque()
        self._held_bytes = 0
        self._unsent_bytes = 0

    @property
    def first_offsets(self) -> dict[TopicPartition, int]:
        """The offset of each partition's first batch, as far as brokers have reported it."""
        offsets = {partition: queue.first_offset for partition, queue in self._queues.items()}
        return {partition: offset for partition, offset in offsets.items() if offset is not None and offset >= 0}

    def append(
        self, partition: TopicPartition, payload: Buffer, count: int, base_timestamp: int, max_timestamp: int
    ) -> None:
        """Append `count` encoded records to a partition. Waits while too much is unacknowledged."""
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = _Queue(partition)
        identity = self._identity or self._identify()
        data = wrap_payload(
            payload,
            count,
            base_timestamp,
            max_timestamp,
            codec=self._codec,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=queue.next_sequence if identity is not _ANONYMOUS else -1,
            transactional=self._transactional is not None,
        )
        queue.next_sequence = (queue.next_sequence + count) % SEQUENCE_COUNT
        queue.batches.append(_Batch(data, time.monotonic()))
        self._held_bytes += len(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes >= self._request_bytes:
            self._send_what_can_go()
        while self._held_bytes > self._buffer_bytes:
            self._step()

    def append_records(self, partition: TopicPartition, records: Iterable[Record]) -> None:
        """Append records that are not encoded yet; their offsets are ignored."""
        chosen: list[Record] = []
        size = 0
        for record in records:
            length = sum(len(each or b"") for each in (record.key, record.value)) + RECORD_OVERHEAD_BYTES
            length += sum(len(name) + len(value or b"") + 4 for name, value in record.headers)
            if chosen and size + length > BATCH_BYTES:
                self._append_batch(partition, chosen)
                chosen, size = [], 0
            chosen.append(record._replace(offset=len(chosen)))
            size += length
        if chosen:
            self._append_batch(partition, chosen)

    def _append_batch(self, partition: TopicPartition, records: Sequence[Record]) -> None:
        payload = encode_batch(records)[HEADER_BYTES:]
        latest = max(each.timestamp for each in records)
        self.append(partition, payload, len(records), records[0].timestamp, latest)

    def begin_transaction(self) -> None:
        """Further appends belong to another transaction; the last one must be flushed and ended."""
        assert not self._held_bytes, "records of the last transaction are not acknowledged"
        for queue in self._queues.values():
            queue.is_added = False

    def flush(self) -> None:
        """Wait until everything appended is acknowledged."""
        while self._held_bytes:
            self._step()

    def close(self) -> None:
        """Without a previous flush, unacknowledged records may or may not be stored."""
        for sent in self._on_their_way:
            # Its response would be taken for that of the next request.
            sent.connection.close()
        self._on_their_way.clear()

    def _identify(self) -> ProducerIdentity:
        if self._acks != ACKS_ALL:
            self._identity = _ANONYMOUS
            return _ANONYMOUS

        def attempt() -> ProducerIdentity:
            request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
            response = self._cluster.any().ask(request, m.InitProducerIdResponse)
            check(response.error_code, "cannot get a producer id")
            return ProducerIdentity("", response.producer_id, response.producer_epoch)

        self._identity = self._cluster.retrying("get a producer id", attempt)
        return self._identity

    def _step(self) -> None:
        """Send what can be sent, then wait for one response, or until something can be sent."""
        self._send_what_can_go()
        if self._on_their_way:
            self._receive()
            return
        waiting = [queue.resume_at for queue in self._queues.values() if queue.batches]
        if waiting:
            time.sleep(max(0.0, min(waiting) - time.monotonic()))

    def _send_what_can_go(self) -> None:
        if self._transactional is not None:
            self._add_new_partitions(self._transactional)
        while self._unsent_bytes:
            by_connection = self._choose()
            if not by_connection:
                return
            for connection, chosen in by_connection.items():
                self._send(connection, chosen)

    def _add_new_partitions(self, identity: ProducerIdentity) -> None:
        fresh = [queue for queue in self._queues.values() if not queue.is_added]
        if fresh:
            add_partitions(self._cluster, identity, [queue.partition for queue in fresh])
            for queue in fresh:
                queue.is_added = True

    def _choose(self) -> dict[BrokerConnection, list[tuple[_Queue, _Batch]]]:
        """The next batch of every partition that may send one, up to a request's size per broker."""
        now = time.monotonic()
        chosen: dict[BrokerConnection, list[tuple[_Queue, _Batch]]] = defaultdict(list)
        sizes: dict[BrokerConnection, int] = defaultdict(int)
        for queue in self._sendable(now):
            connection = self._leader(queue, now)
            if connection is None or (queue.sent and queue.connection is not connection):
                continue
            batch = queue.batches[queue.sent]
            if sizes[connection] and sizes[connection] + len(batch.data) > self._request_bytes:
                continue
            sizes[connection] += len(batch.data)
            chosen[connection].append((queue, batch))
        return chosen

    def _sendable(self, now: float) -> Iterator[_Queue]:
        for queue in self._queues.values():
            if queue.is_failing and queue.sent == 0 and queue.resume_at <= now:
                queue.is_failing = False
            if queue.sent < min(len(queue.batches), self._in_flight) and not queue.is_failing:
                yield queue

    def _leader(self, queue: _Queue, now: float) -> BrokerConnection | None:
        try:
            return self._cluster.leader(*queue.partition)
        except ClusterError as fault:
            self._came_back(queue, fault, now)
            return None

    def _send(self, connection: BrokerConnection, chosen: list[tuple[_Queue, _Batch]]) -> None:
        while sum(sent.connection is connection for sent in self._on_their_way) >= self._in_flight:
            self._receive()
        # Waiting for those responses may have changed what can be sent.
        chosen = [
            (queue, batch)
            for queue, batch in chosen
            if not queue.is_failing and queue.sent < len(queue.batches) and queue.batches[queue.sent] is batch
        ]
        if not chosen:
            return
        for queue, batch in chosen:
            queue.sent += 1
            queue.connection = connection
            self._unsent_bytes -= len(batch.data)
        self._on_their_way.append(_Sent(connection, chosen))
        kind = m.ProduceRequest
        data = [
            (queue.partition.topic, kind.PartitionProduceData(index=queue.partition.partition, records=batch.data))
            for queue, batch in chosen
        ]
        request = kind(
            transactional_id=self._transactional.transactional_id if self._transactional else None,
            acks=self._acks,
            timeout_ms=REQUEST_TIMEOUT_MS,
            topic_data=[
                kind.TopicProduceData(name=name, partition_data=each) for name, each in by_topic(data).items()
            ],
        )
        try:
            connection.send(request, m.ProduceResponse, newest=_PRODUCE_NEWEST)
        except ClusterError as fault:
            self._lost(connection, fault)

    def _receive(self) -> None:
        """Process the oldest response."""
        oldest = self._on_their_way[0]
        try:
            response = oldest.connection.receive(m.ProduceResponse)
        except ClusterError as fault:
            self._lost(oldest.connection, fault)
            return
        self._on_their_way.popleft()
        answers = {
            TopicPartition(topic.name, each.index): each
            for topic in response.responses
            for each in topic.partition_responses
        }
        for queue, batch in oldest.batches:
            answer = answers.get(queue.partition)
            if answer is None:
                self._failed(queue, batch, ErrorCode.UNKNOWN_SERVER_ERROR, "the broker left the partition out")
            elif answer.error_code in _STORED:
                self._stored(queue, batch, answer.base_offset)
            else:
                self._failed(queue, batch, answer.error_code, answer.error_message)

    def _stored(self, queue: _Queue, batch: _Batch, base_offset: int) -> None:
        assert queue.batches[0] is batch, "answers of one partition come in order"
        queue.batches.popleft()
        queue.sent -= 1
        queue.pause = BACKOFF_SECONDS
        if queue.first_offset is None:
            queue.first_offset = base_offset
        self._held_bytes -= len(batch.data)

    def _failed(self, queue: _Queue, batch: _Batch, code: int, response: str | None) -> None:
        what = f"writing to {queue.partition}"
        if code in _GAP and batch is queue.batches[0]:
            raise SendFailed(
                f"{what}: the broker has lost track of this producer ({ErrorCode(code).name}): records that it had "
                "acknowledged are gone, or the partition was not written to for too long",
                code=code,
            )
        if code not in PASSING and code not in _GAP and code != ErrorCode.CORRUPT_MESSAGE:
            refuse(self._transactional or _ANONYMOUS, code, what, response)
        queue.sent -= 1
        self._unsent_bytes += len(batch.data)
        # The batches after a failed one cause a gap, which closes when that one is retried.
        fault = ClusterError(f"{what}: {ErrorCode(code).name}", code=code, retriable=True)
        self._came_back(queue, fault, time.monotonic())

    def _lost(self, connection: BrokerConnection, fault: ClusterError) -> None:
        """The connection broke: batches in flight may be stored or not, and are sent again."""
        connection.close()
        now = time.monotonic()
        for sent in [each for each in self._on_their_way if each.connection is connection]:
            self._on_their_way.remove(sent)
            for queue, batch in sent.batches:
                queue.sent -= 1
                self._unsent_bytes += len(batch.data)
                self._came_back(queue, fault, now)

    def _came_back(self, queue: _Queue, fault: ClusterError, now: float) -> None:
        self._cluster.forget(queue.partition.topic)
        if not fault.retriable:
            raise fault
        if now - queue.batches[0].made > self._delivery_seconds:
            raise SendFailed(
                f"{queue.partition} has not acknowledged a batch for "
                f"{self._delivery_seconds:g} s (delivery.timeout.ms): {fault}",
                code=fault.code,
            ) from fault
        if not queue.is_failing:
            queue.is_failing = True
            queue.resume_at = now + queue.pause
            queue.pause = min(queue.pause * 2, BACKOFF_SECONDS_MAX)
