"""Writing encoded records batch by batch: several requests on their way, nothing doubled and nothing out of order.

The producer is idempotent. A batch gets its sequence number when it is handed over, and is sent again as the same
bytes until a broker has acknowledged it: what a broker has already stored it acknowledges without storing it again.
For one thread at a time.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.base.ports import Buffer
from millpond.remote.cluster import BACKOFF_SECONDS, BACKOFF_SECONDS_MAX, Cluster
from millpond.remote.connection import BrokerConnection
from millpond.remote.errors import PASSING, ClusterError, SendFailed, check
from millpond.remote.transactions import ProducerIdentity, add_partitions, refuse
from millpond.wire import messages as m
from millpond.wire.batch import SEQUENCE_COUNT
from millpond.wire.records import wrap_payload

ACKS_ALL: Final = -1
IN_FLIGHT: Final = 5
"""Brokers remember this many batches of a producer; one sent again must be among them."""

BUFFER_BYTES: Final = 32 << 20
REQUEST_BYTES: Final = 1 << 20
DELIVERY_SECONDS: Final = 120.0
REQUEST_TIMEOUT_MS: Final = 30_000

_PRODUCE_NEWEST: Final = 11
"""From version 12 on a broker adds partitions to a transaction by itself, and expects ends that raise the epoch."""

_STORED: Final = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
_GAP: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
_ANONYMOUS: Final = ProducerIdentity("", -1, -1)


@dataclass(slots=True, eq=False)
class _Batch:
    data: bytes
    made: float


@dataclass(slots=True, eq=False)
class _Lane:
    """What goes to one partition. `batches` are those not yet acknowledged, the oldest first."""

    place: TopicPartition
    batches: deque[_Batch] = field(default_factory=deque)
    sent: int = 0
    """How many of them, from the oldest on, are on their way."""
    link: BrokerConnection | None = None
    """Where they were sent to."""
    is_failing: bool = False
    """One came back: nothing more is sent until all have, so that the order stays."""
    resume_at: float = 0.0
    pause: float = BACKOFF_SECONDS
    next_sequence: int = 0
    first_offset: int | None = None
    is_added: bool = False


@dataclass(slots=True, eq=False)
class _Sent:
    """One request on its way."""

    link: BrokerConnection
    batches: list[tuple[_Lane, _Batch]]


class BatchWriter:
    """Hands encoded records to their leaders. What was appended is stored for sure after `flush` only."""

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
        # Without sequence numbers a batch that fails could be overtaken by the one after it.
        self._in_flight = min(in_flight, IN_FLIGHT) if acks == ACKS_ALL else 1
        self._buffer_bytes = buffer_bytes
        self._request_bytes = request_bytes
        self._delivery_seconds = delivery_seconds
        self._transactional = transactional
        self._identity = transactional
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._on_their_way: deque[_Sent] = deque()
        self._held_bytes = 0
        self._unsent_bytes = 0

    def __enter__(self) -> BatchWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def first_offsets(self) -> dict[TopicPartition, int]:
        """Where the first batch of each partition was stored, as far as brokers have said so."""
        found = {place: lane.first_offset for place, lane in self._lanes.items()}
        return {place: offset for place, offset in found.items() if offset is not None and offset >= 0}

    def append(
        self, place: TopicPartition, payload: Buffer, count: int, base_timestamp: int, max_timestamp: int
    ) -> None:
        """Take `count` encoded records for a partition. Waits while too much is unacknowledged."""
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = _Lane(place)
        identity = self._identity or self._identify()
        data = wrap_payload(
            payload,
            count,
            base_timestamp,
            max_timestamp,
            codec=self._codec,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=lane.next_sequence if identity is not _ANONYMOUS else -1,
            transactional=self._transactional is not None,
        )
        lane.next_sequence = (lane.next_sequence + count) % SEQUENCE_COUNT
        lane.batches.append(_Batch(data, time.monotonic()))
        self._held_bytes += len(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes >= self._request_bytes:
            self._send_what_can_go()
        while self._held_bytes > self._buffer_bytes:
            self._step()

    def flush(self) -> None:
        """Wait until everything that was appended is acknowledged."""
        while self._held_bytes:
            self._step()

    def close(self) -> None:
        """Without a flush before it, what is not acknowledged may or may not be stored."""
        for sent in self._on_their_way:
            # Its answer would be taken for that of the next question.
            sent.link.close()
        self._on_their_way.clear()

    def _identify(self) -> ProducerIdentity:
        if self._acks != ACKS_ALL:
            self._identity = _ANONYMOUS
            return _ANONYMOUS

        def attempt() -> ProducerIdentity:
            request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
            told = self._cluster.any().ask(request, m.InitProducerIdResponse)
            check(told.error_code, "cannot get a producer id")
            return ProducerIdentity("", told.producer_id, told.producer_epoch)

        self._identity = self._cluster.retrying("get a producer id", attempt)
        return self._identity

    def _step(self) -> None:
        """Send what can go, then wait for one answer, or until something can go again."""
        self._send_what_can_go()
        if self._on_their_way:
            self._receive()
            return
        waiting = [lane.resume_at for lane in self._lanes.values() if lane.batches]
        if waiting:
            time.sleep(max(0.0, min(waiting) - time.monotonic()))

    def _send_what_can_go(self) -> None:
        if self._transactional is not None:
            self._add_new_partitions(self._transactional)
        while self._unsent_bytes:
            by_link = self._choose()
            if not by_link:
                return
            for link, chosen in by_link.items():
                self._send(link, chosen)

    def _add_new_partitions(self, identity: ProducerIdentity) -> None:
        fresh = [lane for lane in self._lanes.values() if not lane.is_added]
        if fresh:
            add_partitions(self._cluster, identity, [lane.place for lane in fresh])
            for lane in fresh:
                lane.is_added = True

    def _choose(self) -> dict[BrokerConnection, list[tuple[_Lane, _Batch]]]:
        """The next batch of every partition that may send one, up to a request's size for each broker."""
        now = time.monotonic()
        chosen: dict[BrokerConnection, list[tuple[_Lane, _Batch]]] = defaultdict(list)
        sizes: dict[BrokerConnection, int] = defaultdict(int)
        for lane in self._sendable(now):
            link = self._leader(lane, now)
            if link is None or (lane.sent and lane.link is not link):
                continue
            batch = lane.batches[lane.sent]
            if sizes[link] and sizes[link] + len(batch.data) > self._request_bytes:
                continue
            sizes[link] += len(batch.data)
            chosen[link].append((lane, batch))
        return chosen

    def _sendable(self, now: float) -> Iterator[_Lane]:
        for lane in self._lanes.values():
            if lane.is_failing and lane.sent == 0 and lane.resume_at <= now:
                lane.is_failing = False
            if lane.sent < min(len(lane.batches), self._in_flight) and not lane.is_failing:
                yield lane

    def _leader(self, lane: _Lane, now: float) -> BrokerConnection | None:
        try:
            return self._cluster.leader(*lane.place)
        except ClusterError as fault:
            self._came_back(lane, fault, now)
            return None

    def _send(self, link: BrokerConnection, chosen: list[tuple[_Lane, _Batch]]) -> None:
        while sum(sent.link is link for sent in self._on_their_way) >= self._in_flight:
            self._receive()
        # Waiting for those answers may have changed what can go.
        chosen = [
            (lane, batch)
            for lane, batch in chosen
            if not lane.is_failing and lane.sent < len(lane.batches) and lane.batches[lane.sent] is batch
        ]
        if not chosen:
            return
        by_topic: dict[str, list[m.ProduceRequest.PartitionProduceData]] = defaultdict(list)
        for lane, batch in chosen:
            by_topic[lane.place.topic].append(
                m.ProduceRequest.PartitionProduceData(index=lane.place.partition, records=batch.data)
            )
            lane.sent += 1
            lane.link = link
            self._unsent_bytes -= len(batch.data)
        self._on_their_way.append(_Sent(link, chosen))
        request = m.ProduceRequest(
            transactional_id=self._transactional.transactional_id if self._transactional else None,
            acks=self._acks,
            timeout_ms=REQUEST_TIMEOUT_MS,
            topic_data=[
                m.ProduceRequest.TopicProduceData(name=name, partition_data=partitions)
                for name, partitions in by_topic.items()
            ],
        )
        try:
            link.send(request, m.ProduceResponse, newest=_PRODUCE_NEWEST)
        except ClusterError as fault:
            self._lost(link, fault)

    def _receive(self) -> None:
        """Take the oldest answer."""
        oldest = self._on_their_way[0]
        try:
            told = oldest.link.receive(m.ProduceResponse)
        except ClusterError as fault:
            self._lost(oldest.link, fault)
            return
        self._on_their_way.popleft()
        answers = {
            TopicPartition(topic.name, each.index): each
            for topic in told.responses
            for each in topic.partition_responses
        }
        for lane, batch in oldest.batches:
            answer = answers.get(lane.place)
            if answer is None:
                self._failed(lane, batch, ErrorCode.UNKNOWN_SERVER_ERROR, "the broker left the partition out")
            elif answer.error_code in _STORED:
                self._stored(lane, batch, answer.base_offset)
            else:
                self._failed(lane, batch, answer.error_code, answer.error_message)

    def _stored(self, lane: _Lane, batch: _Batch, base_offset: int) -> None:
        assert lane.batches[0] is batch, "answers of one partition come in order"
        lane.batches.popleft()
        lane.sent -= 1
        lane.pause = BACKOFF_SECONDS
        if lane.first_offset is None:
            lane.first_offset = base_offset
        self._held_bytes -= len(batch.data)

    def _failed(self, lane: _Lane, batch: _Batch, code: int, told: str | None) -> None:
        what = f"writing to {lane.place.topic}[{lane.place.partition}]"
        if code in _GAP and batch is lane.batches[0]:
            raise SendFailed(
                f"{what}: the broker has lost track of this producer ({ErrorCode(code).name}): records that it had "
                "acknowledged are gone, or the partition was not written to for too long",
                code=code,
            )
        if code not in PASSING and code not in _GAP and code != ErrorCode.CORRUPT_MESSAGE:
            refuse(self._transactional or _ANONYMOUS, code, what, told)
        lane.sent -= 1
        self._unsent_bytes += len(batch.data)
        # A gap is what the batches after a failed one run into: it closes when that one is sent again.
        fault = ClusterError(f"{what}: {ErrorCode(code).name}", code=code, retriable=True)
        self._came_back(lane, fault, time.monotonic())

    def _lost(self, link: BrokerConnection, fault: ClusterError) -> None:
        """The connection broke: what was on its way there may be stored or not, and is sent again."""
        link.close()
        now = time.monotonic()
        for sent in [each for each in self._on_their_way if each.link is link]:
            self._on_their_way.remove(sent)
            for lane, batch in sent.batches:
                lane.sent -= 1
                self._unsent_bytes += len(batch.data)
                self._came_back(lane, fault, now)

    def _came_back(self, lane: _Lane, fault: ClusterError, now: float) -> None:
        self._cluster.forget(lane.place.topic)
        if not fault.retriable:
            raise fault
        if now - lane.batches[0].made > self._delivery_seconds:
            raise SendFailed(
                f"{lane.place.topic}[{lane.place.partition}] has not acknowledged a batch for "
                f"{self._delivery_seconds:g} s (delivery.timeout.ms): {fault}",
                code=fault.code,
            ) from fault
        if not lane.is_failing:
            lane.is_failing = True
            lane.resume_at = now + lane.pause
            lane.pause = min(lane.pause * 2, BACKOFF_SECONDS_MAX)
