"""ISR maintenance: asks the controller for the ISR changes its leaders want.

A replica that has caught up joins at once. Lagging replicas are looked for every half of `replica.lag.time.max.ms`.
Changes wanted in one turn of the event loop share one AlterPartition request. One request is in flight at a time,
with one change per partition; it is repeated until the metadata or the controller settles it.

A leader that cannot write, because its disk is full or has failed, resigns by requesting an ISR without itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later
from millpond.base.named_tuple import NamedTuple
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.base.ports import Clock, Timer
    from millpond.broker.loop.journal import Journal
    from millpond.broker.replication.leader_role import LeaderRole
    from millpond.broker.replication.partitions import Partition, Partitions
    from millpond.replication.leader import IsrRequest
    from millpond.wire.messages import Message

VERSION: Final = 3
RECOVERED: Final = 0

REQUEST_TIMEOUT_MS: Final = 5_000
"""Timeout of a request to the controller."""

RETRY_DELAY_MS: Final = 500
"""How long to wait for the metadata before the request is repeated."""

LATE_MS: Final = 50
"""A check that runs later than this means the event loop stalled: unread fetches may show that followers keep up."""

RECHECK_MS: Final = 250
CHECKS_PER_TURN: Final = 200
"""Partitions checked per turn of the event loop."""

PARTITIONS_PER_REQUEST_MAX: Final = 500
"""Partitions per AlterPartition request."""

SHRINK: Final = "shrink"
EXPANSION: Final = "expansion"
CONFIRMATION: Final = "confirmation"
"""Kinds of ISR changes in the journal. A recovering leader confirms itself as the only member."""

AskController = Callable[["Message", int, int], Later[Any]]


class _Asked(NamedTuple):
    partition: Partition
    leader_role: LeaderRole
    request: IsrRequest

    @property
    def is_open(self) -> bool:
        """Whether neither the metadata nor the controller has settled it yet."""
        return self.partition.leader_role is self.leader_role and self.leader_role.pending is self.request

    @property
    def is_current(self) -> bool:
        """Whether the partition's metadata has not changed since."""
        epoch = self.leader_role.view.partition_epoch
        return self.partition.leader_role is self.leader_role and epoch == self.request.partition_epoch

    @property
    def event(self) -> str:
        before, after = set(self.leader_role.view.isr), set(self.request.members)
        if before - after:
            return SHRINK
        return EXPANSION if after - before else CONFIRMATION

    @property
    def key(self) -> tuple[UUID, int]:
        return self.partition.topic_id, self.partition.name.partition


class IsrKeeper:
    def __init__(
        self,
        *,
        node_id: int,
        clock: Clock,
        partitions: Partitions,
        lag_ms_max: Callable[[], int],
        broker_epoch_of: Callable[[int], int],
        ask_controller: AskController,
        journal: Journal,
    ) -> None:
        self._node_id = node_id
        self._clock = clock
        self._partitions = partitions
        self._lag_ms_max = lag_ms_max
        self._broker_epoch_of = broker_epoch_of
        self._ask_controller = ask_controller
        self._journal = journal
        self._to_check: dict[tuple[UUID, int], None] = {}
        self._to_resign: dict[tuple[UUID, int], None] = {}
        self._to_ask: deque[_Asked] = deque()
        self._is_asking = False
        self._timer: Timer | None = None
        self._due_ms = 0
        """When the next full check is due; if that is long past, the event loop stalled."""
        self._is_recheck_scheduled = False
        self._is_running = False

    def start(self) -> None:
        self._is_running = True
        self._schedule_check()

    def stop(self) -> None:
        self._is_running = False
        if self._timer is not None:
            self._timer.cancel()

    # Checking.

    def check_soon(self, topic_id: UUID, index: int) -> None:
        """A replica of the partition may have caught up."""
        if not self._to_check:
            self._clock.call_soon(self._check_queued)
        self._to_check[topic_id, index] = None

    def check_all(self) -> None:
        """Brokers have changed: some may now be allowed into an ISR."""
        if self._is_running:
            self._check_in_batches(self._led_partitions())

    def _check_queued(self) -> None:
        if self._is_late():
            # Unread fetches may show that followers keep up.
            self._clock.call_later(RECHECK_MS, self._check_queued)
            return
        some = list(islice(self._to_check, CHECKS_PER_TURN))
        for each in some:
            del self._to_check[each]
        if self._to_check:
            self._clock.call_soon(self._check_queued)
        partitions = [self._partitions.by_id(*each) for each in some]
        self._check([each for each in partitions if each is not None])

    def _schedule_check(self) -> None:
        self._wait(max(self._lag_ms_max() // 2, 1))

    def _wait(self, wait_ms: int) -> None:
        self._due_ms = self._clock.monotonic_ms() + wait_ms
        self._timer = self._clock.call_later(wait_ms, self._on_check_timer)

    def _is_late(self) -> bool:
        """Whether the event loop stalled a moment ago."""
        return self._is_recheck_scheduled or self._clock.monotonic_ms() - self._due_ms > LATE_MS

    def _on_check_timer(self) -> None:
        if self._clock.monotonic_ms() - self._due_ms > LATE_MS:
            self._is_recheck_scheduled = True
            self._wait(RECHECK_MS)
            return
        self._is_recheck_scheduled = False
        self._check_in_batches(self._led_partitions())
        self._schedule_check()

    def _led_partitions(self) -> Iterator[Partition]:
        return iter([each for each in self._partitions if each.leader_role is not None])

    def _check_in_batches(self, partitions: Iterator[Partition]) -> None:
        if self._is_late():
            return
        some = list(islice(partitions, CHECKS_PER_TURN))
        self._check(some)
        if some and self._is_running:
            self._clock.call_soon(lambda: self._check_in_batches(partitions))

    def _check(self, partitions: Sequence[Partition]) -> None:
        wanted: list[_Asked] = []
        for partition in partitions:
            leader_role = partition.leader_role
            if leader_role is None or not self._is_running:
                continue
            if leader_role.is_ailing:
                self.resign_leadership(partition.topic_id, partition.name.partition)
            request = leader_role.isr_request()
            if request is not None:
                wanted.append(_Asked(partition, leader_role, request))
        if wanted:
            for event in (SHRINK, EXPANSION, CONFIRMATION):
                self._log(f"requesting ISR {event}", [each for each in wanted if each.event == event])
            self._ask(wanted)

    # Resigning leadership.

    def resign_leadership(self, topic_id: UUID, index: int) -> None:
        """This node leads a partition it cannot write: give the leadership to another member of the ISR."""
        if not self._to_resign:
            self._clock.call_soon(self._resign)
        self._to_resign[topic_id, index] = None

    def _resign(self) -> None:
        wanted: list[_Asked] = []
        for key in list(self._to_resign):
            partition = self._partitions.by_id(*key)
            leader_role = None if partition is None else partition.leader_role
            if partition is None or leader_role is None or not leader_role.is_ailing or not self._is_running:
                # Done, or the disk is writable again.
                del self._to_resign[key]
                continue
            request = leader_role.resignation()
            if request is not None:
                wanted.append(_Asked(partition, leader_role, request))
        if wanted:
            self._log("resigning leadership: disk not writable", wanted)
            self._ask(wanted)
        if self._to_resign:
            self._clock.call_later(RETRY_DELAY_MS, self._resign)

    # Requests to the controller.

    def _log(self, event: str, wanted: Sequence[_Asked]) -> None:
        """Log one line for all changes: there may be thousands."""
        if not wanted:
            return
        partition, leader_role, request = wanted[0]
        self._journal(
            event,
            partition=partition.name.folder,
            isr=[*leader_role.view.isr],
            new_isr=[*request.members],
            more_partitions=len(wanted) - 1,
        )

    def _ask(self, wanted: Sequence[_Asked]) -> None:
        self._to_ask.extend(wanted)
        self._send()

    def _send(self) -> None:
        """Send one bounded request at a time, so as not to occupy the controller."""
        if self._is_asking or not self._is_running:
            return
        wanted: list[_Asked] = []
        while self._to_ask and len(wanted) < PARTITIONS_PER_REQUEST_MAX:
            asked = self._to_ask.popleft()
            if asked.is_current:
                wanted.append(asked)
        if not wanted:
            return
        self._is_asking = True
        topics: dict[UUID, m.AlterPartitionRequest.TopicData] = {}
        for partition, _, request in wanted:
            topic = topics.setdefault(
                partition.topic_id, m.AlterPartitionRequest.TopicData(topic_id=partition.topic_id, partitions=[])
            )
            topic.partitions.append(
                m.AlterPartitionRequest.PartitionData(
                    partition_index=partition.name.partition,
                    leader_epoch=request.leader_epoch,
                    partition_epoch=request.partition_epoch,
                    new_isr_with_epochs=[
                        m.AlterPartitionRequest.BrokerState(broker_id=broker, broker_epoch=epoch)
                        for broker, epoch in request.isr
                    ],
                    leader_recovery_state=RECOVERED,
                )
            )
        body = m.AlterPartitionRequest(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch_of(self._node_id),
            topics=list(topics.values()),
        )
        answer = self._ask_controller(body, VERSION, REQUEST_TIMEOUT_MS).recover(Refused, _as_response)
        answer.then(lambda response: self._take(wanted, response))

    def _take(self, wanted: Sequence[_Asked], response: m.AlterPartitionResponse) -> None:
        self._is_asking = False
        replies = {
            (topic.topic_id, partition.partition_index): partition
            for topic in response.topics
            for partition in topic.partitions
        }
        instead: list[_Asked] = []
        for each in wanted:
            if not each.is_open:
                continue
            reply = replies.get(each.key)
            error = ErrorCode(response.error_code if reply is None else reply.error_code)
            if error is not ErrorCode.NONE:
                request = each.leader_role.on_isr_response(each.request, error)
                if request is not None:
                    instead.append(each._replace(request=request))
            elif reply is not None and reply.partition_epoch == each.request.partition_epoch:
                each.leader_role.on_isr_ignored(each.request)
        self._to_ask.extend(instead)
        if any(each.is_open for each in wanted):
            # Granted, but the metadata has not arrived yet; or the outcome is unknown.
            self._clock.call_later(RETRY_DELAY_MS, lambda: self._ask([each for each in wanted if each.is_open]))
        self._send()


def _as_response(refused: Refused) -> m.AlterPartitionResponse:
    return m.AlterPartitionResponse(error_code=refused.code, topics=[])
