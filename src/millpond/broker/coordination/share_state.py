"""The delivery state of share partitions, read and written at their share coordinators, here or on other nodes.

A call is repeated with fresh metadata while the coordinator moves, loads or does not answer, but not forever. All
calls of one turn of the loop go to each node in few requests. What a call sets is absolute, so it may be repeated.
But a caller must not begin a write before the last one for this share partition has ended, because two at once may
arrive in either order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, run_all
from millpond.base.named_tuple import NamedTuple
from millpond.broker.peers.requester import RequestLost
from millpond.wire import messages as m

if TYPE_CHECKING:
    from uuid import UUID

    from millpond.base.ids import NodeId
    from millpond.base.ports import Clock
    from millpond.broker.coordination.coordination import Coordination
    from millpond.broker.peers.peers import Peers
    from millpond.coordinators.shares.keys import SharePartition
    from millpond.coordinators.shares.shard import ShareShard
    from millpond.coordinators.shares.state_batches import StateBatch
    from millpond.metadata.image import Image

R = TypeVar("R")

INITIALIZE, READ, WRITE, DELETE, SUMMARY = 83, 84, 85, 86, 87
VERSIONS: Final = {INITIALIZE: 0, READ: 0, WRITE: 1, DELETE: 0, SUMMARY: 1}

ASK_MS: Final = 5_000
"""How long another node may take to answer."""
GIVE_UP_MS: Final = 15_000
"""How long a call is repeated before it fails."""
AGAIN_MS: Final = 20
AGAIN_MS_MAX: Final = 1_000
"""How long a call waits before it is repeated; the delay doubles each time."""
PARTITIONS_AT_ONCE: Final = 250
"""The most share partitions of one request."""

MOVED: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors that pass: a coordinator moves or loads, or its metadata does not have the topic yet."""
SENT_AT_ONCE: Final = 250
"""The most calls that are sent in one turn of the loop, or end in it. Each state batch of a write counts as one."""
READ_WEIGHT: Final = 100
"""A read counts as so many calls: how much state it returns is not known before."""
SUMMARY_WEIGHT: Final = 25
"""So does a summary, which may have to count all of it."""

SENDERS_MAX: Final = 1_000
"""The number of nodes whose latest connection is known."""

UNCHANGED: Final = -1
"""The start offset of a write that does not move it."""


class ReadState(NamedTuple):
    """What a share coordinator knows of a share partition. A group that never read it has the start offset -1."""

    state_epoch: int
    start_offset: int
    batches: list[StateBatch]


class StateSummary(NamedTuple):
    """The state in short, for people; the start offset is -1 where there is no state yet."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    complete_count: int
    """The number of finished records from the start offset on; -1 if unknown."""


class _Question:
    """One call until it has ended."""

    __slots__ = ("again_ms", "given", "key", "kind", "result", "until_ms", "weight")

    def __init__(self, kind: int, key: SharePartition, given: Any, until_ms: int) -> None:
        self.kind = kind
        self.key = key
        self.given = given
        self.until_ms = until_ms
        self.again_ms = AGAIN_MS
        self.weight = {READ: READ_WEIGHT, SUMMARY: SUMMARY_WEIGHT}.get(kind, 1)
        if kind == WRITE:
            self.weight += len(given.state_batches)
        self.result: Later[Any] = Later()


class ShareStateCalls:
    def __init__(
        self,
        *,
        node_id: NodeId,
        client_id: str,
        clock: Clock,
        image: Image,
        shares: Coordination[ShareShard],
        peers: Peers,
        create_topic: Callable[[], Later[None]],
    ) -> None:
        self._node_id = node_id
        self._client_id = client_id
        self._clock = clock
        self._image = image
        self._shares = shares
        self._peers = peers
        self._create_topic = create_topic
        self._is_creating = False
        self._is_stopped = False
        self._queue: list[_Question] = []
        """The calls to send in the next turn of the loop."""
        self._answered: deque[tuple[_Question, Any]] = deque()
        """The calls that are about to end, with their results."""
        self._waiting: dict[_Question, None] = {}
        """The calls that are to be repeated."""
        self._senders: dict[str, int] = {}
        """The latest connection on which each node changed something."""

    # Calls. They fail with Refused: FENCED_LEADER_EPOCH and FENCED_STATE_EPOCH end the caller's turn as leader,
    # COORDINATOR_NOT_AVAILABLE means that the outcome is unknown.

    def initialize(self, key: SharePartition, state_epoch: int, start_offset: int) -> Later[None]:
        """Begin the state of a share partition, or begin it again with a higher state epoch."""
        given = m.InitializeShareGroupStateRequest.PartitionData(
            partition=key.partition, state_epoch=state_epoch, start_offset=start_offset
        )
        return self._ask(INITIALIZE, key, given).map(_nothing)

    def read(self, key: SharePartition, leader_epoch: int) -> Later[ReadState]:
        """The state, for the leader in this epoch. Leaders of earlier epochs can no longer write."""
        given = m.ReadShareGroupStateRequest.PartitionData(partition=key.partition, leader_epoch=leader_epoch)
        return self._ask(READ, key, given).map(_state_of)

    def write(
        self,
        key: SharePartition,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        batches: Sequence[StateBatch],
        complete_count: int = -1,
    ) -> Later[None]:
        """Write a change; `start_offset` may be `UNCHANGED`."""
        # Imported late: a node without share groups starts faster without it.
        from millpond.coordinators.shares.state import on_wire
        from millpond.coordinators.shares.state_batches import to_wire

        kind = m.WriteShareGroupStateRequest
        given = kind.PartitionData(
            partition=key.partition,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=on_wire(complete_count),
            state_batches=[kind.StateBatch(**to_wire(each)) for each in batches],
        )
        return self._ask(WRITE, key, given).map(_nothing)

    def delete(self, key: SharePartition) -> Later[None]:
        """Delete the state; there may be none."""
        return self._ask(DELETE, key, m.DeleteShareGroupStateRequest.PartitionData(partition=key.partition)).map(
            _nothing
        )

    def summary(self, key: SharePartition) -> Later[StateSummary]:
        given = m.ReadShareGroupStateSummaryRequest.PartitionData(partition=key.partition, leader_epoch=-1)
        return self._ask(SUMMARY, key, given).map(_summary_of)

    def is_latest(self, sender: str, connection_number: int) -> bool:
        """Whether the node that changes state on this connection has not opened a newer one since.

        A node opens a new connection when it gives up on a request. That request may still arrive after its retry and
        later writes, and would undo them.
        """
        latest = max(self._senders.pop(sender, -1), connection_number)
        self._senders[sender] = latest
        if len(self._senders) > SENDERS_MAX:
            # Whoever writes least often. Without authentication anybody can pose as any number of nodes.
            del self._senders[next(iter(self._senders))]
        return connection_number == latest

    def on_leaders_changed(self) -> None:
        """Repeat at once what waits for a coordinator."""
        waiting, self._waiting = self._waiting, {}
        self._enqueue(waiting)

    def stop(self) -> None:
        self._is_stopped = True
        waiting, self._waiting = [*self._waiting, *self._queue], {}
        self._queue = []
        run_all(partial(self._give_up, each, "this node is stopping") for each in waiting)

    # Sending.

    def _ask(self, kind: int, key: SharePartition, given: Any) -> Later[Any]:
        question = _Question(kind, key, given, self._clock.monotonic_ms() + GIVE_UP_MS)
        self._enqueue([question])
        return question.result

    def _enqueue(self, questions: Iterable[_Question]) -> None:
        is_first = not self._queue
        self._queue += questions
        if is_first and self._queue:
            self._clock.call_soon(self._send_all)

    def _send_all(self) -> None:
        wanted = [each for each in self._queue if not each.result.ended]
        # A session of a share group asks for thousands at once, and a coordinator here answers in this turn.
        weight = count = 0
        while count < len(wanted) and weight < SENT_AT_ONCE:
            weight += wanted[count].weight
            count += 1
        questions, self._queue = wanted[:count], wanted[count:]
        if self._queue:
            self._clock.call_soon(self._send_all)
        if self._is_stopped:
            run_all(partial(self._give_up, each, "this node is stopping") for each in questions)
        elif questions and not self._shares.is_open:
            self._send_once_open(questions)
        else:
            run_all(partial(self._send, node_id, batch) for node_id, batch in self._batches(questions))

    def _send_once_open(self, questions: list[_Question]) -> None:
        if self._is_creating:
            self._again(questions, "the topic of the share coordinators does not exist yet")
            return
        self._is_creating = True

        def end(_: None) -> None:
            self._is_creating = False
            self._again(questions, "the topic of the share coordinators could not be created")

        self._create_topic().then(end)

    def _batches(self, questions: list[_Question]) -> list[tuple[int, list[_Question]]]:
        """The requests to send: each to one node, of one kind and group, and with every share partition once."""
        batches: dict[tuple[int, int, str], list[dict[SharePartition, _Question]]] = {}
        for each in questions:
            target = self._leader_of(each.key), each.kind, each.key.group_id
            open_batches = batches.setdefault(target, [{}])
            if each.key in open_batches[-1] or len(open_batches[-1]) >= PARTITIONS_AT_ONCE:
                open_batches.append({})
            open_batches[-1][each.key] = each
        return [(target[0], list(batch.values())) for target, each in batches.items() for batch in each]

    def _leader_of(self, key: SharePartition) -> int:
        partition = self._image.partition(self._shares.topic, self._shares.partition_of(key.coordinator_key))
        return -1 if partition is None or not self._image.is_active(partition.leader) else partition.leader

    def _send(self, node_id: int, batch: list[_Question]) -> None:
        if node_id < 0:
            self._again(batch, "the share coordinator has no leader")
            return
        # Imported late: a node without share groups starts faster without it.
        from millpond.broker.coordination.share_requests import ask_share_coordinators, request_for

        kind, given = batch[0].kind, [(each.key, each.given) for each in batch]
        request = request_for(kind, given)
        if node_id == self._node_id:
            answer = ask_share_coordinators(self._shares, request, VERSIONS[kind], self._client_id)
        else:
            answer = self._peers.ask(node_id, request, VERSIONS[kind], ASK_MS)

        def on_failure(failure: Exception) -> None:
            if not isinstance(failure, RequestLost):
                raise failure
            self._again(batch, str(failure))

        answer.then(partial(self._take, batch), on_failure)

    def _take(self, batch: list[_Question], response: Any) -> None:
        results: dict[tuple[UUID, int], Any] = {
            (result.topic_id, each.partition): each for result in response.results for each in result.partitions
        }
        if not self._answered:
            self._clock.call_soon(self._settle_some)
        self._answered += [(each, results.get(each.key[1:])) for each in batch]

    def _settle_some(self) -> None:
        """A caller does with the result about as much as was done for it."""
        some, weight = [], 0
        while self._answered and weight < SENT_AT_ONCE:
            some.append(self._answered.popleft())
            weight += some[-1][0].weight
        if self._answered:
            self._clock.call_soon(self._settle_some)
        run_all(partial(self._settle, *each) for each in some)

    def _settle(self, question: _Question, result: Any) -> None:
        if result is None:
            self._again([question], "the share coordinator did not answer for this partition")
        elif not result.error_code:
            question.result.finish(result)
        else:
            code, message = ErrorCode(result.error_code), result.error_message or ""
            if code in MOVED:
                self._again([question], message or code.name)
            else:
                question.result.fail(Refused(code, message))

    def _again(self, questions: Iterable[_Question], why: str) -> None:
        now_ms = self._clock.monotonic_ms()
        for each in questions:
            if self._is_stopped or now_ms + each.again_ms > each.until_ms:
                self._give_up(each, why)
                continue
            self._waiting[each] = None
            self._clock.call_later(each.again_ms, partial(self._repeat, each))
            each.again_ms = min(2 * each.again_ms, AGAIN_MS_MAX)

    def _repeat(self, question: _Question) -> None:
        if question in self._waiting:
            del self._waiting[question]
            self._enqueue([question])

    def _give_up(self, question: _Question, why: str) -> None:
        question.result.fail(Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, why))


def _nothing(result: Any) -> None: ...


def _state_of(result: Any) -> ReadState:
    from millpond.coordinators.shares.state_batches import from_wire

    return ReadState(result.state_epoch, result.start_offset, [from_wire(each) for each in result.state_batches])


def _summary_of(result: Any) -> StateSummary:
    return StateSummary(result.state_epoch, result.leader_epoch, result.start_offset, result.delivery_complete_count)
