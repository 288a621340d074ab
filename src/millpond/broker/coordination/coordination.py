"""Runs the shards of a coordinator: appends what they decide to their internal topic, answers once it is committed.

Each partition of the internal topic holds one shard, and its leader runs a shard host for it. The host appends the
records of a step as one batch and replays them at once; replies and orders leave, in order, when the batch is
committed. A host that cannot write resigns: it refuses waiting requests, forgets what it had in memory, and after a
while loads the shard again from the log, in slices, so that nothing else has to wait.

A shard host belongs to one leader epoch of its partition. When the leadership moves, or starts again on the same
node, the host resigns for good, and the new leader loads its own, up to the end of its log. Uncommitted records that
it read there are part of its state, but no reply reveals them before they are committed.

Another node may have become leader without this one knowing. A step that writes proves that none has, because its
records are committed only by the replicas that would have to elect another leader. A step that only reads proves
nothing; where that matters, a barrier is written with it (`ShardHost.run`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import Any, Generic, TypeVar

from millpond.base.errors import ErrorCode, LimitMet, Refused
from millpond.base.later import Later, end_all, failed, run_all
from millpond.base.named_tuple import NamedTuple
from millpond.base.pending import Pending
from millpond.base.ports import Clock, Timer
from millpond.broker.loop.journal import Journal
from millpond.broker.loop.turns import Turns
from millpond.broker.loop.unanswered import OVERDUE_MS, Unanswered
from millpond.broker.replication.partitions import Partition
from millpond.broker.requests.call import Call
from millpond.coordinators.runtime import (
    KEY_LENGTH_MAX,
    CoordinatorTime,
    TransactionalShard,
    partition_for,
    replay_batches,
)
from millpond.coordinators.shard import CoordinatorRecord, Effects, Request, Shard
from millpond.log.producers import Verification
from millpond.wire.batch import CorruptBatch, check_batch, walk
from millpond.wire.messages import Message
from millpond.wire.records import Record, encode_batch

S = TypeVar("S", bound=Shard)
T = TypeVar("T")

LOAD_BYTES = 16 << 10
"""How much of a log one turn of the loop replays."""
LOAD_AT_ONCE_BYTES = 256 << 10
"""How much is replayed before the first request, so that small shards never answer COORDINATOR_LOAD_IN_PROGRESS."""

OFFSET_FETCH = 9
JOIN_GROUP = 11
SYNC_GROUP = 14

WAITS_FOR_MEMBERS = frozenset({JOIN_GROUP, SYNC_GROUP})
"""Requests that rightly wait for other members and are never reported as overdue."""

LOAD_AGAIN_MS = 250
LOAD_AGAIN_MS_MAX = 10_000
"""How long a shard host that failed to write waits before it loads again; the delay doubles with each failure."""
TOO_FEW_AGAIN_MS_MAX = 1_000
"""The same limit when only in-sync or reachable replicas are missing: those usually return soon."""

STALL_MS = 1_000
"""A timer that fires this late means the loop stalled, so heartbeats may be waiting unread in its sockets."""
REPLIES_AT_ONCE = 200
"""How many clients waiting for the same decision one turn of the loop answers."""
READ_FIRST_MS = 10
"""How long the loop reads sockets after a stall before members may time out."""


BEYOND_THE_PRODUCER = frozenset(
    {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS}
)
"""Reasons to refuse a write that have nothing to do with the producer of its transaction."""


UNWRITTEN = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER})

NEEDS_LATEST = frozenset({OFFSET_FETCH})
"""A consumer that starts from a deposed coordinator's offset would reprocess what others have since committed."""

BARRIER_KEY = b"\x7f\xff"
"""The key of an empty record with a version that every reader of these topics skips as unknown."""


class Producer(NamedTuple):
    """The producer in whose transaction records are written."""

    id: int
    epoch: int


class Writing(NamedTuple):
    """Records that count only once a producer's transaction is committed."""

    producer: Producer
    verification: Verification | None


class ShardHostState(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    OFFLINE = "offline"


class ShardHost(Generic[S]):
    """One shard and its log. It starts empty and serves once `load_some` has replayed the whole log."""

    def __init__(
        self,
        make_shard: Callable[[], S],
        partition: Partition,
        clock: Clock,
        carry_out: Callable[[Any], None],
        has_lease: Callable[[], bool],
        after_step: Callable[[S], None] | None = None,
    ) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        """The epoch in which this node leads the partition; in any other epoch the shard host must not decide."""
        self.on_resigned: Callable[[Refused], None] = _ignore
        """Called with the reason when the shard host resigns."""
        self.on_overdue: Callable[[str, str], None] = _ignore
        """Called with the name and client id of a request that has waited too long for its response."""
        self.on_limit: Callable[[LimitMet], None] = _ignore
        """Called when a client is refused because of a limit."""
        self.in_turn: Callable[[Callable[[], None]], None] = _at_once
        """Schedules timer work, because many shard hosts may be due at the same moment."""
        self.failures = 0
        """How often the host has resigned since its last successful write."""
        self._unanswered = Unanswered(clock, lambda request, client_id: self.on_overdue(request, client_id))
        self._make_shard = make_shard
        self._clock = clock
        self._carry_out = carry_out
        self._has_lease = has_lease
        self._after_step = after_step
        self._uncommitted: deque[tuple[int, Effects]] = deque()
        self._once_active: list[Callable[[S, int], Effects]] = []
        self._timer: Timer | None = None
        self._timer_ms = 0
        self._wake_ms = 0
        self._has_read_first = False
        self._is_in_turn = False
        self.begin_load()

    @property
    def is_active(self) -> bool:
        return self.state is ShardHostState.ACTIVE and self.is_current

    @property
    def is_current(self) -> bool:
        """Whether this node still leads the partition in the shard host's leader epoch."""
        return self.partition.is_leader and self.partition.leader_epoch == self.leader_epoch

    @property
    def is_lost(self) -> bool:
        """Whether the log is unusable until the node restarts."""
        return self.partition.log.failed is not None or self.partition.log.closed

    # Loading and resigning.

    def begin_load(self) -> None:
        """Start over with an empty shard."""
        self.state = ShardHostState.LOADING
        self.shard = self._make_shard()
        self._time = CoordinatorTime(self._clock.wall_ms())
        self._next_offset: int = self.partition.log.start_offset

    def load_some(self, bytes_max: int = LOAD_BYTES) -> int:
        """Replay the next part of the log and return its size; at 0 the shard is loaded and takes requests."""
        assert self.state is ShardHostState.LOADING
        if not self.is_current:
            self.resign(_moved(self.partition))
            return 0
        try:
            data = self.partition.log.read_batches(self._next_offset, bytes_max)
            _check(data, self.partition)
        except Refused as refused:
            self.resign(refused)
            return 0
        if data:
            replay_batches(self.shard, data, self._time)
            for _, header in walk(data):
                self._next_offset = header.next_offset
            return len(data)
        self.state = ShardHostState.ACTIVE
        self.run(lambda shard, now_ms: shard.on_loaded(now_ms))
        waiting, self._once_active = self._once_active, []
        for decide in waiting:
            self.run_once_active(decide)
        return 0

    def resign(self, refused: Refused) -> None:
        """Drop the shard's state, which the log may not contain, and refuse pending requests: clients retry."""
        if self.state is ShardHostState.OFFLINE:
            return
        self.stop()
        self.failures += 1
        uncommitted, self._uncommitted = self._uncommitted, deque()
        steps: list[Callable[[], None]] = [partial(_refuse_all, effects, refused) for _, effects in uncommitted]
        steps.append(lambda: end_all(self.shard.unload(error_for_clients(refused)).replies))
        steps.append(lambda: self.on_resigned(refused))
        run_all(steps)

    def stop(self) -> None:
        self.state = ShardHostState.OFFLINE
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Deciding.

    def run_once_active(self, decide: Callable[[S, int], Effects]) -> None:
        """As `run`, but a shard host that is loading or offline waits until it is active."""
        if self.is_active:
            self.run(decide)
        else:
            self._once_active.append(decide)

    def run(
        self,
        decide: Callable[[S, int], Effects],
        writing: Writing | None = None,
        *,
        needs_latest: bool = False,
    ) -> None:
        """Let the shard decide, append its records, and reply once they are committed.

        A reply without records waits for a barrier record to be committed if it must reflect the latest state, or if
        this node has no lease, so that another node may lead by now.
        """
        assert self.is_active, self.partition.name
        effects = decide(self.shard, self._begin_step())
        self._settle(effects, writing, needs_latest=needs_latest)

    def attempt(
        self, decide: Callable[[S, int], Effects | None], pending: Pending[Any], client_id: str, name: str
    ) -> bool:
        """As `run`, for one request on the short path; the shard returns None if it needs the general path.

        Returns False, with nothing changed, in that case. `pending` is its reply.
        """
        if not self.is_active:
            return False
        effects = decide(self.shard, self._begin_step())
        if effects is None:
            return False
        self._settle(effects, None, needs_latest=False)
        if not pending.ended:
            self._unanswered.watch(pending, name, client_id)
        return True

    def _begin_step(self) -> int:
        """Pass the current time to the shard and return it."""
        now_ms = self._time.now_ms(self._clock.monotonic_ms())
        self.shard.set_time(now_ms, self._clock.wall_ms())
        return now_ms

    def _settle(self, effects: Effects, writing: Writing | None, *, needs_latest: bool) -> None:
        if effects.limit_met is not None:
            self.on_limit(effects.limit_met)
        if effects.records:
            try:
                self._append(effects.records, writing)
            except Refused as refused:
                # A producer whose transaction has ended meanwhile is refused; the log is unaffected.
                if writing is not None and refused.code not in BEYOND_THE_PRODUCER:
                    end_all(effects.replies, refused)
                else:
                    _refuse_all(effects, refused)
                    self.resign(refused)
                return
            self.failures = 0
        elif effects.replies and (needs_latest or not self._has_lease()) and not self._is_confirmed(effects):
            # The requests were refused, but the shard's timers still have to run.
            self._set_timer()
            return
        self._answer_later(effects)
        self._set_timer()
        if self._after_step is not None:
            self._after_step(self.shard)

    def tell(self, decide: Callable[[S, int], T | None]) -> T | None:
        """Answer a read-only request at once, without the general path of `run`.

        Returns None, with nothing changed, if the request needs records or its reply would have to wait.
        """
        if self._uncommitted or not self.is_active or not self.partition.is_committed or not self._has_lease():
            return None
        answer = decide(self.shard, self._begin_step())
        if answer is not None:
            self._set_timer()
        return answer

    def _is_confirmed(self, effects: Effects) -> bool:
        """Append a barrier if there are other replicas; if that is refused, refuse the pending requests too."""
        if self.partition.leader_role is None:
            return True
        try:
            if not self.is_current:
                raise _moved(self.partition)
            self.partition.append_own(encode_batch([Record(0, self._clock.wall_ms(), BARRIER_KEY, None)]))
        except Refused as refused:
            _refuse_all(effects, refused)
            # With too few replicas or without contact nothing was written, so the shard remains valid.
            if refused.code not in UNWRITTEN or not self.is_current:
                self.resign(refused)
            return False
        return True

    def ask(self, call: Call, body: Message, writing: Writing | None = None) -> Later[Any]:
        """Put a client's request to the shard; the reply fails with Refused if its records cannot be appended."""
        reply: Later[Any] = Later()
        request = Request(body, call.version, reply, call.client_id or "", call.client_host, call.sight())
        needs_latest = body.API_KEY in NEEDS_LATEST
        self.run(lambda shard, now_ms: shard.step(request, now_ms), writing, needs_latest=needs_latest)
        if not reply.ended and body.API_KEY not in WAITS_FOR_MEMBERS:
            self._unanswered.watch(reply, type(body).__name__, call.client_id or "")
        return reply

    def _append(self, records: list[CoordinatorRecord], writing: Writing | None) -> None:
        if not self.is_current:
            raise _moved(self.partition)
        stamp_ms = self._clock.wall_ms()
        written = [Record(index, stamp_ms, record.key, record.value) for index, record in enumerate(records)]
        if writing is None:
            batch = encode_batch(written)
            first_offset = self.partition.append_own(batch).first_offset
            for index, record in enumerate(records):
                self.shard.replay(first_offset + index, record.key, record.value)
            return
        producer, verification = writing
        batch = encode_batch(written, producer_id=producer.id, producer_epoch=producer.epoch, transactional=True)
        first_offset = self.partition.append_own(batch, verification).first_offset
        for index, record in enumerate(records):
            self._transactional.replay_transactional(
                producer.id, producer.epoch, first_offset + index, record.key, record.value
            )

    def on_marker(self, producer: Producer, committed: bool, offset: int) -> None:
        """Apply a transaction marker; a shard host that is still loading finds it in the log."""
        if not self.is_active:
            return
        self._transactional.replay_marker(producer.id, producer.epoch, committed, offset)

    @property
    def _transactional(self) -> TransactionalShard:
        shard: object = self.shard
        assert isinstance(shard, TransactionalShard)
        return shard

    # Answering.

    def _answer_later(self, effects: Effects) -> None:
        if not (effects.replies or effects.orders):
            return
        end_offset = self.partition.log.end_offset
        self._uncommitted.append((end_offset, effects))
        self.partition.after_commit(end_offset, end_offset).then(self._answer, self._on_uncommitted)

    def _on_uncommitted(self, failure: Exception) -> None:
        if isinstance(failure, Refused):
            self.resign(failure)
        elif isinstance(failure, OSError):
            self.resign(Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the log could not be forced to disk: {failure}"))
        else:
            raise failure

    def _answer(self, committed_offset: int) -> None:
        while self._uncommitted and self._uncommitted[0][0] <= committed_offset:
            _, effects = self._uncommitted.popleft()
            # Orders first: some replies wait for them.
            for order in effects.orders:
                self._carry_out(order)
            self._end_replies(effects.replies)

    def _end_replies(self, replies: list[Any]) -> None:
        """Answer the members of a large group in several turns of the loop, because each gets its own response."""
        end_all(replies[:REPLIES_AT_ONCE])
        if len(replies) > REPLIES_AT_ONCE:
            self._clock.call_soon(partial(self._end_replies, replies[REPLIES_AT_ONCE:]))

    # Time.

    def _set_timer(self) -> None:
        if self._is_in_turn:
            return
        deadline_ms = self.shard.next_deadline_ms()
        if self._timer is not None:
            if deadline_ms == self._timer_ms:
                return
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None and self.is_active:
            self._timer_ms = deadline_ms
            wait_ms = deadline_ms - self._time.now_ms(self._clock.monotonic_ms())
            if wait_ms > 0:
                self._has_read_first = False
            self._wake_after(max(wait_ms, 1))

    def _wake_after(self, wait_ms: int) -> None:
        self._wake_ms = self._clock.monotonic_ms() + wait_ms
        self._timer = self._clock.call_later(wait_ms, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if not self.is_active:
            return
        if self._clock.monotonic_ms() - self._wake_ms > STALL_MS and not self._has_read_first:
            # After a stall the loop runs timers before it reads the requests that arrived meanwhile.
            self._has_read_first = True
            self._wake_after(READ_FIRST_MS)
        else:
            self._is_in_turn = True
            self.in_turn(self._let_time_pass)

    def _let_time_pass(self) -> None:
        self._is_in_turn = False
        if self.is_active:
            self.run(lambda shard, now_ms: shard.on_timer(now_ms))


def error_for_clients(refused: Refused) -> ErrorCode:
    """A retriable code: clients then look up their coordinator again; a storage error would be fatal to some."""
    if refused.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR):
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


def _refuse_all(effects: Effects, refused: Refused) -> None:
    end_all(effects.replies, Refused(error_for_clients(refused), str(refused)))


def _check(data: bytes, partition: Partition) -> None:
    """Refuse damaged batches rather than load wrong offsets; another replica has them intact."""
    try:
        for position, _ in walk(data):
            check_batch(data, position, compacted=True)
    except CorruptBatch as fault:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, f"{partition.name.folder}: {fault}") from fault


def _moved(partition: Partition) -> Refused:
    return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the leadership of {partition.name.folder} has moved")


def _ignore(*_: object) -> None: ...


def _at_once(step: Callable[[], None]) -> None:
    step()


def _serves(shard_host: ShardHost[Any], led: dict[int, Partition]) -> bool:
    return led.get(shard_host.partition.name.partition) is shard_host.partition and shard_host.is_current


class Coordination(Generic[S]):
    """All shard hosts of one coordinator on this node."""

    def __init__(
        self,
        topic: str,
        make_shard_host: Callable[[Partition], ShardHost[S]],
        clock: Clock,
        journal: Journal,
        leads: Callable[[str, int], bool],
    ) -> None:
        self.topic = topic
        self._leads = leads
        self._make_shard_host = make_shard_host
        self._clock = clock
        self._journal = journal
        self._shard_hosts: dict[int, ShardHost[S]] = {}
        self._to_load: deque[ShardHost[S]] = deque()
        self._is_loading = False
        self._is_stopped = False
        self._count = 0
        self._turns = Turns(clock)

    @property
    def is_open(self) -> bool:
        return self._count > 0

    @property
    def is_loading(self) -> bool:
        """Whether any shard host is loading or will load soon."""
        return any(not shard_host.is_active and not shard_host.is_lost for shard_host in self._shard_hosts.values())

    def follow(self, partitions: list[Partition], count: int) -> None:
        """Follow the internal topic: it has `count` partitions, and `partitions` are those with a replica here.

        Load the shard of each partition this node leads, and resign those it no longer leads or leads in another
        epoch. After `stop` nothing is loaded: the creation of the topic may end while the node drains.
        """
        if self._is_stopped:
            return
        self._count = count
        led = {partition.name.partition: partition for partition in partitions if partition.is_leader}
        # Remove them first, so that nothing can reach an old shard host while it resigns.
        gone = [
            self._shard_hosts.pop(index)
            for index, shard_host in list(self._shard_hosts.items())
            if not _serves(shard_host, led)
        ]
        run_all(partial(shard_host.resign, _moved(shard_host.partition)) for shard_host in gone)
        fresh = [self._add(index, partition) for index, partition in led.items() if index not in self._shard_hosts]
        # Small shards first, so that they do not wait for a large one.
        self._to_load.extend(sorted(fresh, key=lambda shard_host: shard_host.partition.log.end_offset))
        left_bytes = LOAD_AT_ONCE_BYTES
        while self._to_load and left_bytes > 0:
            left_bytes -= self._load_some()
        self._go_on_loading()

    def _add(self, index: int, partition: Partition) -> ShardHost[S]:
        shard_host = self._shard_hosts[index] = self._make_shard_host(partition)
        shard_host.in_turn = self._turns.wait
        shard_host.on_resigned = lambda refused: self._on_resigned(shard_host, refused)
        shard_host.on_overdue = lambda request, client_id: self._journal(
            "coordinator request overdue",
            request=request,
            client_id=client_id,
            partition=partition.name.folder,
            after_ms=OVERDUE_MS,
            end_offset=partition.log.end_offset,
            synced_offset=partition.log.synced_offset,
        )
        return shard_host

    # Loading: one shard host after the other, one slice per turn of the loop.

    def _load_some(self) -> int:
        shard_host = self._to_load[0]
        size = shard_host.load_some() if shard_host.state is ShardHostState.LOADING else 0
        if not size:
            self._to_load.popleft()
        return size

    def _go_on_loading(self) -> None:
        if self._to_load and not self._is_loading:
            self._is_loading = True
            self._clock.call_soon(self._load_next)

    def _load_next(self) -> None:
        self._is_loading = False
        if self._to_load:
            self._load_some()
            self._go_on_loading()

    def _on_resigned(self, shard_host: ShardHost[S], refused: Refused) -> None:
        if not shard_host.is_current or self._shard_hosts.get(shard_host.partition.name.partition) is not shard_host:
            # The current leader has its own shard host.
            return
        if shard_host.is_lost:
            self._journal("coordinator offline", partition=shard_host.partition.name.folder, reason=str(refused))
            return
        wait_ms_max = TOO_FEW_AGAIN_MS_MAX if refused.code in UNWRITTEN else LOAD_AGAIN_MS_MAX
        wait_ms = min(LOAD_AGAIN_MS << min(shard_host.failures - 1, 10), wait_ms_max)
        self._journal(
            "coordinator reloading from its log",
            partition=shard_host.partition.name.folder,
            reason=str(refused),
            after_ms=wait_ms,
        )
        self._clock.call_later(wait_ms, lambda: self._load_again(shard_host))

    def _load_again(self, shard_host: ShardHost[S]) -> None:
        if self._shard_hosts.get(shard_host.partition.name.partition) is shard_host and shard_host.is_current:
            shard_host.begin_load()
            self._to_load.append(shard_host)
            self._go_on_loading()

    # Requests.

    def leads(self, key: str) -> bool:
        """Whether this node coordinates the group or transactional id according to its metadata."""
        return self._count > 0 and self._leads(self.topic, self.partition_of(key))

    def partition_of(self, key: str) -> int:
        return partition_for(key, self._count)

    def shard_host_of(self, key: str) -> ShardHost[S]:
        """The active shard host of a group or transactional id; raises Refused if there is none."""
        if len(key) > KEY_LENGTH_MAX:
            raise Refused(
                ErrorCode.INVALID_REQUEST, f"no group or transactional id has more than {KEY_LENGTH_MAX} characters"
            )
        if not self._count:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.topic} does not exist yet")
        index = self.partition_of(key)
        shard_host = self._shard_hosts.get(index)
        if not self._leads(self.topic, index):
            raise Refused(ErrorCode.NOT_COORDINATOR, f"another node leads that partition of {self.topic}")
        if shard_host is None or shard_host.state is ShardHostState.OFFLINE:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"a partition of {self.topic} is offline")
        if not shard_host.is_active:
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"a partition of {self.topic} is being loaded")
        return shard_host

    def active_shard_host(self, key: str) -> ShardHost[S] | None:
        """As `shard_host_of`, but None instead of a refusal."""
        if not self._count or len(key) > KEY_LENGTH_MAX:
            return None
        index = self.partition_of(key)
        shard_host = self._shard_hosts.get(index)
        return (
            shard_host if shard_host is not None and shard_host.is_active and self._leads(self.topic, index) else None
        )

    def ask(self, call: Call, key: str, body: Message, writing: Writing | None = None) -> Later[Any]:
        """Put a request to the shard responsible for `key`; its records may be part of a transaction."""
        try:
            shard_host = self.shard_host_of(key)
        except Refused as refused:
            return failed(refused)
        return shard_host.ask(call, body, writing)

    def shard_host_at(self, index: int) -> ShardHost[S] | None:
        return self._shard_hosts.get(index)

    def shard_hosts(self) -> Iterator[ShardHost[S]]:
        """The active shard hosts."""
        return iter([shard_host for shard_host in self._shard_hosts.values() if shard_host.is_active])

    def shards(self) -> Iterator[S]:
        """All shards in memory, active or not."""
        return (shard_host.shard for shard_host in self._shard_hosts.values())

    def run_everywhere(self, decide: Callable[[S, int], Effects]) -> None:
        """Run in every shard, now or as soon as it is active."""
        for shard_host in list(self._shard_hosts.values()):
            shard_host.run_once_active(decide)

    def stop(self) -> None:
        self._is_stopped = True
        shard_hosts, self._shard_hosts = self._shard_hosts, {}
        self._to_load.clear()
        for shard_host in shard_hosts.values():
            shard_host.stop()
