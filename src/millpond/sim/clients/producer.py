"""A simulated producer: batches to several partitions, in flight together, retried in order, each settled once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random

from millpond.base.errors import ErrorCode
from millpond.sim.clients.client import Client
from millpond.sim.history.records import Content, History, Promise, SentBatch, Status, TopicIdPartition
from millpond.sim.world.clock import VirtualClock
from millpond.wire import messages as m
from millpond.wire.records import encode_batch

IN_FLIGHT_MAX = 5
RETRY_MS = 100
IDS_FROM = 13
"""From this version on requests have topic ids."""
RETRY_LATER = (
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)
OUTCOME_UNKNOWN = (
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)
"""Errors after which the batch may have been written."""


class _PartitionQueue:
    """The batches for one partition, in order: those waiting, and those in flight."""

    def __init__(self, partition: TopicIdPartition) -> None:
        self.partition = partition
        self.waiting: deque[SentBatch] = deque()
        self.in_flight: list[SentBatch] = []
        self.next_sequence = 0
        self.acknowledged = 0
        """The sequence after the last acknowledged batch."""
        self.is_retrying = False


class SimProducer:
    """Idempotent producers use acks=all, as clients do, and keep their order through every retry."""

    def __init__(
        self,
        client: Client,
        clock: VirtualClock,
        history: History,
        random: Random,
        *,
        acks: int = -1,
        idempotent: bool = True,
        version: int = 9,
        codec: int = 0,
        in_flight_max: int = IN_FLIGHT_MAX,
    ) -> None:
        assert acks == -1 or not idempotent
        self.client = client
        self.name = client.name
        self.acks = acks
        self.idempotent = idempotent
        self.version = version
        self.codec = codec
        self.spurious_refusals = 0
        self.sequence_gaps = 0
        """How often it got OUT_OF_ORDER_SEQUENCE_NUMBER with all earlier batches acknowledged. librdkafka then stops
        for good, because it cannot know what was written."""
        self._in_flight_max = in_flight_max
        self._clock = clock
        self._history = history
        self._random = random
        self._queues: dict[TopicIdPartition, _PartitionQueue] = {}
        self._requests = 0
        self._producer_id = -1
        self._producer_epoch = -1
        self._is_asking_for_id = False
        self._is_renewing = False
        self._pause_until_ms = -1
        self._closed = False

    # For scenarios

    def produce(self, partition: TopicIdPartition, contents: Sequence[Content], promise: Promise) -> SentBatch:
        """Queue one batch and send what may be sent."""
        batch = SentBatch(
            self.name,
            partition,
            tuple(contents),
            promise,
            made_at_ms=self._clock.now_ms,
            uses_topic_name=not self.uses_topic_ids,
        )
        self._history.batches.append(batch)
        self._queues.setdefault(partition, _PartitionQueue(partition)).waiting.append(batch)
        self._pump()
        return batch

    @property
    def uses_topic_ids(self) -> bool:
        """Whether its requests have topic ids."""
        return self.version >= IDS_FROM

    def is_idle(self) -> bool:
        return not any(queue.waiting or queue.in_flight for queue in self._queues.values())

    def abandon(self, topic: str) -> None:
        """Give up the batches of a topic that is about to be deleted."""
        for queue in self._queues.values():
            if queue.partition.topic == topic:
                self._give_up(list(queue.waiting) + queue.in_flight)
                queue.waiting.clear()
                # A late batch must not be taken for the first one of the next topic of this name.
                self._is_renewing = self.idempotent

    def close(self) -> None:
        """Give up all batches and stop."""
        self._closed = True
        for queue in self._queues.values():
            self._give_up(list(queue.waiting) + queue.in_flight)
            queue.waiting.clear()
        self.client.disconnect()

    # Sending

    def _pump(self) -> None:
        if self._closed or self._clock.now_ms < self._pause_until_ms:
            return
        if self.idempotent and (self._producer_id < 0 or self._is_renewing):
            self._renew_id()
            return
        while self._requests < self._in_flight_max and (chosen := self._choose()):
            self._send(chosen)

    def _choose(self) -> list[SentBatch]:
        """At most one batch of each queue; a retrying queue first waits for everything in flight."""
        ready = [
            queue for queue in self._queues.values() if queue.waiting and not (queue.is_retrying and queue.in_flight)
        ]
        chosen: list[SentBatch] = []
        for queue in ready:
            if chosen and self._random.random() < 0.3:
                continue
            queue.is_retrying = False
            batch = queue.waiting.popleft()
            if self.idempotent and batch.sequence < 0:
                batch.producer_id, batch.producer_epoch = self._producer_id, self._producer_epoch
                batch.sequence = queue.next_sequence
                queue.next_sequence += len(batch.contents)
            queue.in_flight.append(batch)
            chosen.append(batch)
        return chosen

    def _send(self, batches: list[SentBatch]) -> None:
        by_topic: dict[tuple[str, object], m.ProduceRequest.TopicProduceData] = {}
        for batch in batches:
            batch.attempts += 1
            topic = by_topic.setdefault(
                (batch.partition.topic, batch.partition.topic_id),
                m.ProduceRequest.TopicProduceData(
                    name=batch.partition.topic, topic_id=batch.partition.topic_id, partition_data=[]
                ),
            )
            topic.partition_data.append(
                m.ProduceRequest.PartitionProduceData(
                    index=batch.partition.partition_index, records=self._encode(batch)
                )
            )
        request = m.ProduceRequest(acks=self.acks, timeout_ms=3_000, topic_data=list(by_topic.values()))
        if self.acks == 0:
            self.client.send(request, self.version, _ignore, is_answered=False)
            for batch in batches:
                batch.maybe_written = True
                self._leave_flight(batch)
                self._settle(batch, Status.UNKNOWN)
            return
        self._requests += 1
        self.client.send(request, self.version, lambda reply: self._on_reply(batches, reply))

    def _encode(self, batch: SentBatch) -> bytes:
        return encode_batch(
            batch.records(),
            codec=self.codec,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.sequence,
        )

    # Responses

    def _on_reply(self, batches: list[SentBatch], reply: m.ProduceResponse | None) -> None:
        self._requests -= 1
        if reply is None:
            for batch in batches:
                batch.maybe_written = True
                self._retry(batch)
            self._pause()
            return
        answers = {
            (topic.topic_id if self.version >= IDS_FROM else topic.name, part.index): part
            for topic in reply.responses
            for part in topic.partition_responses
        }
        for batch in batches:
            partition = batch.partition
            answer = answers[
                partition.topic_id if self.version >= IDS_FROM else partition.topic, partition.partition_index
            ]
            self._take_answer(batch, answer)
        self._pump()

    def _take_answer(self, batch: SentBatch, answer: m.ProduceResponse.PartitionProduceResponse) -> None:
        code = answer.error_code
        is_out_of_order = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        queue = self._queues[batch.partition]
        if is_out_of_order and batch.sequence == queue.acknowledged:
            self.sequence_gaps += 1
            self._history.note(self._clock.now_ms, f"{self.name} {batch.partition} has a sequence gap")
        if code == ErrorCode.NONE:
            queue.acknowledged = max(queue.acknowledged, batch.sequence + len(batch.contents))
            self._leave_flight(batch)
            self._settle(batch, Status.ACKNOWLEDGED, answer.base_offset)
        elif code in RETRY_LATER:
            batch.maybe_written |= code in OUTCOME_UNKNOWN
            self._retry(batch)
            self._pause()
        elif is_out_of_order and (queue.is_retrying or queue.in_flight[0] is not batch):
            # A batch before it has not arrived yet.
            self._retry(batch)
        else:
            self.spurious_refusals += is_out_of_order
            self._leave_flight(batch)
            self._history.note(self._clock.now_ms, f"{self.name} {batch.partition} {ErrorCode(code).name}")
            self._settle(batch, Status.UNKNOWN if batch.maybe_written else Status.REFUSED)
            if self.idempotent:
                self._is_renewing = True

    def _retry(self, batch: SentBatch) -> None:
        queue = self._queues[batch.partition]
        self._leave_flight(batch)
        if batch.status is not Status.OPEN:
            return
        queue.is_retrying = True
        if self.idempotent:
            behind = [other for other in queue.waiting if other.sequence < 0 or other.sequence > batch.sequence]
            ahead = [other for other in queue.waiting if 0 <= other.sequence < batch.sequence]
            queue.waiting = deque([*ahead, batch, *behind])
        else:
            queue.waiting.appendleft(batch)

    def _leave_flight(self, batch: SentBatch) -> None:
        queue = self._queues[batch.partition]
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)

    def _pause(self) -> None:
        if self._clock.now_ms >= self._pause_until_ms:
            self._pause_until_ms = self._clock.now_ms + RETRY_MS
            self._clock.call_later(RETRY_MS, self._pump)

    # Settling

    def _give_up(self, batches: list[SentBatch]) -> None:
        for batch in batches:
            in_doubt = batch.maybe_written or batch in self._queues[batch.partition].in_flight
            self._settle(batch, Status.UNKNOWN if in_doubt else Status.REFUSED)

    def _settle(self, batch: SentBatch, status: Status, base_offset: int = -1) -> None:
        if batch.status is Status.OPEN:
            self._history.settle(batch, status, self._clock.now_ms, base_offset)

    # Producer ids

    def _renew_id(self) -> None:
        """Get a new producer id; batches that were sent with the old one and not acknowledged are given up."""
        if self._is_asking_for_id or any(queue.in_flight for queue in self._queues.values()):
            return
        for queue in self._queues.values():
            self._give_up([batch for batch in queue.waiting if batch.attempts])
            queue.waiting = deque(batch for batch in queue.waiting if batch.status is Status.OPEN)
            queue.next_sequence = queue.acknowledged = 0
            queue.is_retrying = False
        self._is_asking_for_id = True
        self.client.send(
            m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4, self._on_id
        )

    def _on_id(self, reply: m.InitProducerIdResponse | None) -> None:
        self._is_asking_for_id = False
        if reply is None or reply.error_code:
            self._pause()
            return
        self._is_renewing = False
        self._producer_id, self._producer_epoch = reply.producer_id, reply.producer_epoch
        self._history.note(self._clock.now_ms, f"{self.name} has producer id {reply.producer_id}")
        self._pump()


def _ignore(_reply: object) -> None:
    """A produce with acks=0 has no response."""
