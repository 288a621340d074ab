"""The simulator's producer: one batch per partition in flight, ordered retries, and a bounded buffer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from millpond.base.errors import ErrorCode
from millpond.sim.clients.cluster_client import WRONG_NODE, ClusterClient
from millpond.sim.clients.requests import produce_request
from millpond.sim.simulator.event_log import Story
from millpond.sim.simulator.ledger import ID_HEADER, Ledger, SentRecord, Status
from millpond.sim.world.clock import VirtualClock
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch

PRODUCE_VERSION: Final = 9
LOOK_MS: Final = 10
"""How long to wait before asking again which node leads."""
RETRY_MS: Final = 60
RETRY_MS_MAX: Final = 480
BATCH_RECORDS_MAX: Final = 10
DELIVERY_MS: Final = 30_000
"""How long a record is retried."""
WAIT_MS: Final = 1_500
ACKS: Final = {"0": 0, "1": 1, "all": -1}
RETRIED: Final = (
    *WRONG_NODE,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)
SEQUENCE_ERRORS: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)


OnSettled = Callable[[SentRecord], None]


@dataclass(frozen=True, slots=True)
class SendOptions:
    """How records are sent."""

    acks: str = "all"
    idempotent: bool = True
    buffer_max: int = 100

    @property
    def is_numbered(self) -> bool:
        return self.idempotent and self.acks == "all"


@dataclass(slots=True)
class PartitionQueue:
    """The records for one partition, in order."""

    waiting: deque[SentRecord] = field(default_factory=deque)
    in_flight: list[SentRecord] = field(default_factory=list)
    sequence: int = 0
    is_resting: bool = False


def as_records(records: Sequence[SentRecord], wall_ms: int) -> list[Record]:
    return [
        Record(
            delta,
            wall_ms,
            None if each.key is None else each.key.encode(),
            each.value.encode(),
            ((ID_HEADER, str(each.id).encode()),),
        )
        for delta, each in enumerate(records)
    ]


class Producer:
    """Sends records. `SendOptions` may change from call to call; a record keeps its own."""

    def __init__(self, client: ClusterClient, clock: VirtualClock, ledger: Ledger, story: Story) -> None:
        self.client = client
        self.name = client.name
        self.blocked: deque[SentRecord] = deque()
        """Records for which the buffer has no space."""
        self.blocked_max = 0
        self._clock = clock
        self._ledger = ledger
        self._story = story
        self._options = SendOptions()
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._producer = -1, -1
        self._is_asking = False
        self._is_closed = False
        self._on_settled: dict[int, OnSettled] = {}

    @property
    def buffered(self) -> int:
        """How many records are waiting or in flight."""
        return sum(len(queue.waiting) + len(queue.in_flight) for queue in self._queues.values())

    @property
    def options(self) -> SendOptions:
        return self._options

    def send(self, record: SentRecord, options: SendOptions, on_settled: OnSettled | None = None) -> None:
        """Take a record; `on_settled` is called once its outcome is known."""
        self._options = options
        if on_settled is not None:
            self._on_settled[record.id] = on_settled
        self.blocked.append(record)
        self._fill()

    def close(self) -> None:
        """End the process: nothing more is sent, and the outcome of the rest stays unknown."""
        self._is_closed = True
        held = [each for queue in self._queues.values() for each in (*queue.waiting, *queue.in_flight)]
        for record in (*self.blocked, *held):
            record.status = Status.IN_DOUBT if record.attempts else Status.REFUSED

    def _fill(self) -> None:
        """Move blocked records into the buffer while it has space."""
        while self.blocked and self.buffered < self._options.buffer_max:
            record = self.blocked.popleft()
            queue = self._queues.setdefault((record.topic, record.partition), PartitionQueue())
            queue.waiting.append(record)
            # Records of the same moment share a batch.
            self._clock.call_soon(lambda at=(record.topic, record.partition): self._pump(at))  # type: ignore[misc]
        if len(self.blocked) > self.blocked_max:
            if not self.blocked_max:
                self._tell(f"the buffer is full ({self._options.buffer_max}): sending blocks")
            self.blocked_max = len(self.blocked)

    def _pump(self, at: tuple[str, int]) -> None:
        queue = self._queues[at]
        if self._is_closed or queue.in_flight or not queue.waiting or queue.is_resting:
            return
        if self._options.is_numbered and self._producer[0] < 0:
            self._ask_for_id()
            return
        leader = self.client.leader_of(*at)
        if leader is None:
            self._rest(at, LOOK_MS)
            return
        self._send(at, queue, self._next_batch(queue), leader[0])

    def _next_batch(self, queue: PartitionQueue) -> list[SentRecord]:
        """A retry has to be the same batch as before, so that the broker recognises it."""
        was_sent = queue.waiting[0].attempts > 0
        batch: list[SentRecord] = []
        while queue.waiting and len(batch) < BATCH_RECORDS_MAX and (queue.waiting[0].attempts > 0) == was_sent:
            batch.append(queue.waiting.popleft())
        return batch

    def _send(self, at: tuple[str, int], queue: PartitionQueue, batch: list[SentRecord], node_id: int) -> None:
        for record in batch:
            record.attempts += 1
            record.status = Status.SENT
        acks = batch[0].acks
        numbered = self._options.is_numbered and acks == "all"
        data = encode_batch(
            as_records(batch, self._clock.wall_ms()),
            producer_id=self._producer[0] if numbered else -1,
            producer_epoch=self._producer[1] if numbered else -1,
            base_sequence=queue.sequence if numbered else -1,
        )
        topic, index = at
        request = produce_request(topic, [(index, data)], acks=ACKS[acks], timeout_ms=WAIT_MS)
        if acks == "0":
            self.client.nodes[node_id].send(request, PRODUCE_VERSION, _ignore, is_answered=False)
            for record in batch:
                self._settle(record, Status.UNASKED)
            self._fill()
            self._pump(at)
            return
        queue.in_flight = batch
        self.client.nodes[node_id].send(
            request, PRODUCE_VERSION, lambda reply: self._on_reply(at, queue, node_id, reply, numbered)
        )

    def _on_reply(
        self,
        at: tuple[str, int],
        queue: PartitionQueue,
        node_id: int,
        reply: m.ProduceResponse | None,
        numbered: bool,
    ) -> None:
        batch, queue.in_flight = queue.in_flight, []
        if self._is_closed:
            return
        answer = None if reply is None else reply.responses[0].partition_responses[0]
        code = ErrorCode.REQUEST_TIMED_OUT if answer is None else ErrorCode(answer.error_code)
        if answer is not None and code is ErrorCode.NONE:
            if numbered:
                queue.sequence += len(batch)
            for delta, record in enumerate(batch):
                # The broker no longer knows the offset of an old duplicate.
                record.offset = answer.base_offset + delta if answer.base_offset >= 0 else -1
                self._settle(record, Status.ACKNOWLEDGED)
            self._tell_of(batch, f"acknowledged (acks={batch[0].acks})")
            self._fill()
            self._pump(at)
            return
        is_late = self._clock.now_ms - batch[0].made_ms > DELIVERY_MS
        if code in RETRIED and not is_late:
            self._tell_of(batch, "no response, will retry" if answer is None else f"{code.name}, will retry")
            self.client.forget_leader(*at, node_id)
            queue.waiting.extendleft(reversed(batch))
            self._rest(at)
            return
        if code in SEQUENCE_ERRORS:
            # The log lacks earlier batches or does not know the producer: get a new id, as clients do.
            self._producer = -1, -1
            for other in self._queues.values():
                other.sequence = 0
        was_sent = answer is None or batch[0].attempts > 1
        for record in batch:
            self._settle(record, Status.IN_DOUBT if was_sent else Status.REFUSED)
        self._tell_of(batch, f"given up: {code.name}")
        self._fill()
        self._pump(at)

    def _rest(self, at: tuple[str, int], rest_ms: int = 0) -> None:
        """Wait, longer after each attempt unless `rest_ms` is given."""
        queue = self._queues[at]
        queue.is_resting = True
        attempts = queue.waiting[0].attempts if queue.waiting else 0
        rest_ms = rest_ms or min(RETRY_MS << min(max(attempts - 1, 0), 8), RETRY_MS_MAX)

        def go_on() -> None:
            queue.is_resting = False
            self._pump(at)

        self._clock.call_later(rest_ms, go_on)

    def _settle(self, record: SentRecord, status: Status) -> None:
        record.status, record.settled_ms = status, self._clock.now_ms
        on_settled = self._on_settled.pop(record.id, None)
        if on_settled is not None:
            on_settled(record)

    def _ask_for_id(self) -> None:
        if self._is_asking:
            return
        self._is_asking = True
        request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        # Not by `send`: without a transactional id any node can answer.
        self.client.send_to_any(request, 4, self._on_id)

    def _on_id(self, reply: m.InitProducerIdResponse | None) -> None:
        self._is_asking = False
        if reply is None or reply.error_code:
            self._clock.call_later(RETRY_MS, self._ask_for_id)
            return
        self._producer = reply.producer_id, reply.producer_epoch
        for at in list(self._queues):
            self._pump(at)

    def _tell_of(self, batch: list[SentRecord], text: str) -> None:
        names = ", ".join(each.name for each in batch[:4]) + (f" and {len(batch) - 4} more" if len(batch) > 4 else "")
        where = f"{batch[0].topic}-{batch[0].partition}"
        at = f" at {batch[0].offset}" if batch[0].status is Status.ACKNOWLEDGED else ""
        self._tell(f"{names} → {where}{at}: {text}")

    def _tell(self, text: str) -> None:
        self._story.tell(self._clock.now_ms, self.name, text)


def _ignore(_reply: object) -> None:
    """A produce with acks=0 has no response."""
