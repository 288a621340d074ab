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
from millpond.base.ports import Clock, Timer
from millpond.broker.loop.journal import Journal
from millpond.broker.loop.turns import Turns
from millpond.broker.loop.unanswered import OVERDUE_MS, Awaited, Unanswered
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
"""How much of a log is replayed at a time; everybody else waits for it."""
LOAD_AT_ONCE_BYTES = 256 << 10
"""How much is replayed before the first request is taken: with little to load nobody hears that it is loaded."""

OFFSET_FETCH = 9
JOIN_GROUP = 11
SYNC_GROUP = 14

PARKED_FOR_LONG = frozenset({JOIN_GROUP, SYNC_GROUP})
"""These wait for other members, as they should."""

LOAD_AGAIN_MS = 250
LOAD_AGAIN_MS_MAX = 10_000
"""How long a shard host that could not write waits before it is loaded again; longer each time it fails."""
TOO_FEW_AGAIN_MS_MAX = 1_000
"""The same where only too few replicas are in sync or in reach: they come back by themselves, mostly soon."""

STALL_MS = 1_000
"""A timer that comes so much too late shows that the loop stood still, and signs of life may wait to be read."""
REPLIES_AT_ONCE = 200
"""This many clients that waited for the same decision are answered in one turn of the loop."""
READ_FIRST_MS = 10
"""So long they are read before anybody is given up for want of them."""


BEYOND_THE_PRODUCER = frozenset(
    {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS}
)
"""Refusals of a write that say nothing of the one for whom it is made."""


UNWRITTEN = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER})

ASKS_FOR_THE_LATEST = frozenset({OFFSET_FETCH})
"""Who begins where an older leader says, does again what others have done since."""

BARRIER_KEY = b"\x7f\xff"
"""A record that says nothing: of a kind that every reader of these topics leaves to later programs."""


class Producer(NamedTuple):
    """In whose transaction records are written."""

    id: int
    epoch: int


class Writing(NamedTuple):
    """Records that count only once a producer's transaction is committed."""

    producer: Producer
    verification: Verification | None


class HomeState(Enum):
    LOADING = "is being loaded"
    ACTIVE = "serves"
    OFFLINE = "is offline"


class ShardHost(Generic[S]):
    """One shard and the log that it lives in. Made empty; it serves once `load_some` has been called to the end."""

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
        """In which this node leads the partition. In another one, this shard host has nothing more to say."""
        self.on_resigned: Callable[[Refused], None] = _nobody_cares
        """Hears that the shard host has resigned, and why."""
        self.on_overdue: Callable[[str, str], None] = _nobody_cares
        """Hears of a request, and whose, that has no answer after a long time."""
        self.on_limit: Callable[[LimitMet], None] = _nobody_cares
        """Hears of a limit that somebody was refused by."""
        self.in_turn: Callable[[Callable[[], None]], None] = _at_once
        """Runs what time leads to: many shard hosts may be due in the same moment."""
        self.failures = 0
        """How often it has resigned since it last could write."""
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
        return self.state is HomeState.ACTIVE and self.is_current

    @property
    def is_current(self) -> bool:
        """Whether this node still leads the partition in the epoch that the shard host was made for."""
        return self.partition.is_leader and self.partition.leader_epoch == self.leader_epoch

    @property
    def is_lost(self) -> bool:
        """Its log is out of reach until the node starts again."""
        return self.partition.log.failed is not None or self.partition.log.closed

    # Loading and resigning.

    def begin_load(self) -> None:
        """Start anew with nothing in memory."""
        self.state = HomeState.LOADING
        self.shard = self._make_shard()
        self._time = CoordinatorTime(self._clock.wall_ms())
        self._next_offset: int = self.partition.log.start_offset

    def load_some(self, bytes_max: int = LOAD_BYTES) -> int:
        """Replay the next part of the log; gives its size, 0 when that was all and requests are taken."""
        assert self.state is HomeState.LOADING
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
        self.state = HomeState.ACTIVE
        self.run(lambda shard, now_ms: shard.on_loaded(now_ms))
        waiting, self._once_active = self._once_active, []
        for decide in waiting:
            self.run_once_active(decide)
        return 0

    def resign(self, refused: Refused) -> None:
        """Forget what is in memory: the log may hold less, or be out of reach. Whoever waits asks again."""
        if self.state is HomeState.OFFLINE:
            return
        self.stop()
        self.failures += 1
        uncommitted, self._uncommitted = self._uncommitted, deque()
        steps: list[Callable[[], None]] = [partial(_send_away, effects, refused) for _, effects in uncommitted]
        steps.append(lambda: end_all(self.shard.unload(error_for_clients(refused)).replies))
        steps.append(lambda: self.on_resigned(refused))
        run_all(steps)

    def stop(self) -> None:
        self.state = HomeState.OFFLINE
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Deciding.

    def run_once_active(self, decide: Callable[[S, int], Effects]) -> None:
        """As `run`; a shard host that is being loaded or offline does it when it serves again."""
        if self.is_active:
            self.run(decide)
        else:
            self._once_active.append(decide)

    def run(
        self,
        decide: Callable[[S, int], Effects],
        writing: Writing | None = None,
        *,
        is_for_the_latest: bool = False,
    ) -> None:
        """Let the shard decide, write down what it decided, answer when that is committed.

        An answer that tells without writing waits for a barrier to be committed if it must be the latest, or if this
        node has not been heard by the controller for so long that another may lead by now.
        """
        assert self.is_active, self.partition.name
        effects = decide(self.shard, self._begin_step())
        self._settle(effects, writing, is_for_the_latest=is_for_the_latest)

    def attempt(self, decide: Callable[[S, int], Effects | None], token: Awaited, client_id: str, name: str) -> bool:
        """As `run`, for one request of which the shard may say (None) that it is not as simple as that.

        False leaves everything as it was. `token` is the one who waits for the reply.
        """
        if not self.is_active:
            return False
        effects = decide(self.shard, self._begin_step())
        if effects is None:
            return False
        self._settle(effects, None, is_for_the_latest=False)
        if not token.ended:
            self._unanswered.watch(token, name, client_id)
        return True

    def _begin_step(self) -> int:
        """What time it is, of which the shard hears."""
        now_ms = self._time.now_ms(self._clock.monotonic_ms())
        self.shard.at(now_ms, self._clock.wall_ms())
        return now_ms

    def _settle(self, effects: Effects, writing: Writing | None, *, is_for_the_latest: bool) -> None:
        if effects.met is not None:
            self.on_limit(effects.met)
        if effects.records:
            try:
                self._append(effects.records, writing)
            except Refused as refused:
                # A producer whose transaction has ended meanwhile is turned away; the log is as sound as before.
                if writing is not None and refused.code not in BEYOND_THE_PRODUCER:
                    end_all(effects.replies, refused)
                else:
                    _send_away(effects, refused)
                    self.resign(refused)
                return
            self.failures = 0
        elif effects.replies and (is_for_the_latest or not self._has_lease()) and not self._is_confirmed(effects):
            # Who asked is sent away. What comes due next does so all the same.
            self._set_timer()
            return
        self._answer_later(effects)
        self._set_timer()
        if self._after_step is not None:
            self._after_step(self.shard)

    def tell(self, decide: Callable[[S, int], T | None]) -> T | None:
        """What the shard says to one who changes nothing that is written down: as `run`, in fewer steps.

        None, with nothing changed, leaves it to `run`: it needs records, or the answer would have to wait.
        """
        if self._uncommitted or not self.is_active or not self.partition.is_committed or not self._has_lease():
            return None
        told = decide(self.shard, self._begin_step())
        if told is not None:
            self._set_timer()
        return told

    def _is_confirmed(self, effects: Effects) -> bool:
        """Write a barrier where there are other replicas; if that is refused, so are those who wait."""
        if self.partition.leading is None:
            return True
        try:
            if not self.is_current:
                raise _moved(self.partition)
            self.partition.append_own(encode_batch([Record(0, self._clock.wall_ms(), BARRIER_KEY, None)]))
        except Refused as refused:
            _send_away(effects, refused)
            # Too few replicas, or a node that is cut off: nothing was written, and the shard is as it was.
            if refused.code not in UNWRITTEN or not self.is_current:
                self.resign(refused)
            return False
        return True

    def ask(self, call: Call, body: Message, writing: Writing | None = None) -> Later[Any]:
        """Put a client's request to the shard; Refused when what it decides cannot be written down."""
        reply: Later[Any] = Later()
        request = Request(body, call.version, reply, call.client_id or "", call.client_host, call.sight())
        is_for_the_latest = body.API_KEY in ASKS_FOR_THE_LATEST
        self.run(lambda shard, now_ms: shard.step(request, now_ms), writing, is_for_the_latest=is_for_the_latest)
        if not reply.ended and body.API_KEY not in PARKED_FOR_LONG:
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
        """A transaction that wrote here has ended; a shard host that loads finds its marker in the log."""
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
            # Orders first: some replies wait for what is under way.
            for order in effects.orders:
                self._carry_out(order)
            self._end_replies(effects.replies)

    def _end_replies(self, replies: list[Any]) -> None:
        """Answer all members of a large group, some of them in each turn of the loop: each has its own response."""
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
            # A loop that stood still runs its timers before it reads what has come meanwhile.
            self._has_read_first = True
            self._wake_after(READ_FIRST_MS)
        else:
            self._is_in_turn = True
            self.in_turn(self._let_time_pass)

    def _let_time_pass(self) -> None:
        self._is_in_turn = False
        if self.is_active:
            self.run(lambda shard, now_ms: shard.on_time(now_ms))


def error_for_clients(refused: Refused) -> ErrorCode:
    """To ask again: clients look for their coordinator anew, where the code of a disk would end some of them."""
    if refused.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR):
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


def _send_away(effects: Effects, refused: Refused) -> None:
    end_all(effects.replies, Refused(error_for_clients(refused), str(refused)))


def _check(data: bytes, partition: Partition) -> None:
    """What has rotted on the disk must not be taken for groups and offsets; it is had from another replica again."""
    try:
        for position, _ in walk(data):
            check_batch(data, position, compacted=True)
    except CorruptBatch as fault:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, f"{partition.name.folder}: {fault}") from fault


def _moved(partition: Partition) -> Refused:
    return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the leadership of {partition.name.folder} has moved")


def _nobody_cares(*_: object) -> None: ...


def _at_once(step: Callable[[], None]) -> None:
    step()


def _serves(shard_host: ShardHost[Any], led: dict[int, Partition]) -> bool:
    return led.get(shard_host.partition.name.partition) is shard_host.partition and shard_host.is_current


class Coordination(Generic[S]):
    """All shard hosts of one coordinator on this node."""

    def __init__(
        self,
        topic: str,
        make_home: Callable[[Partition], ShardHost[S]],
        clock: Clock,
        journal: Journal,
        leads: Callable[[str, int], bool],
    ) -> None:
        self.topic = topic
        self._leads = leads
        self._make_shard_host = make_home
        self._clock = clock
        self._journal = journal
        self._shard_hosts: dict[int, ShardHost[S]] = {}
        self._to_load: deque[ShardHost[S]] = deque()
        self._is_loading = False
        self._count = 0
        self._turns = Turns(clock)

    @property
    def is_open(self) -> bool:
        return self._count > 0

    @property
    def is_loading(self) -> bool:
        """Whether some shard host is being loaded, or soon will be."""
        return any(not shard_host.is_active and not shard_host.is_lost for shard_host in self._shard_hosts.values())

    def follow(self, partitions: list[Partition], count: int) -> None:
        """The internal topic is there, and these of its `count` partitions have a replica here.

        Load the shard of every one that this node leads, and give up those that it leads no more, or in another
        epoch. Which partition is a key's own does not depend on that.
        """
        self._count = count
        led = {partition.name.partition: partition for partition in partitions if partition.is_leader}
        # Out of the table first: whatever happens while it ends, an old shard host is not asked again.
        gone = [
            self._shard_hosts.pop(index)
            for index, shard_host in list(self._shard_hosts.items())
            if not _serves(shard_host, led)
        ]
        run_all(partial(shard_host.resign, _moved(shard_host.partition)) for shard_host in gone)
        fresh = [self._add(index, partition) for index, partition in led.items() if index not in self._shard_hosts]
        # The small ones first: they need not wait for a large one.
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
            "a request to a coordinator has no answer",
            request=request,
            client_id=client_id,
            partition=partition.name.folder,
            after_ms=OVERDUE_MS,
            end_offset=partition.log.end_offset,
            synced_offset=partition.log.synced_offset,
        )
        return shard_host

    # Loading: one shard host after the other, a slice at a time, so that others get a turn in between.

    def _load_some(self) -> int:
        shard_host = self._to_load[0]
        size = shard_host.load_some() if shard_host.state is HomeState.LOADING else 0
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
            # The current leader loads a shard host of its own.
            return
        if shard_host.is_lost:
            self._journal("a coordinator is offline", partition=shard_host.partition.name.folder, reason=str(refused))
            return
        wait_ms_max = TOO_FEW_AGAIN_MS_MAX if refused.code in UNWRITTEN else LOAD_AGAIN_MS_MAX
        wait_ms = min(LOAD_AGAIN_MS << min(shard_host.failures - 1, 10), wait_ms_max)
        self._journal(
            "a coordinator starts anew from its log",
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

    # Asking.

    def leads(self, key: str) -> bool:
        """Whether this node coordinates the group or transactional id, as far as the metadata says."""
        return self._count > 0 and self._leads(self.topic, self.partition_of(key))

    def partition_of(self, key: str) -> int:
        return partition_for(key, self._count)

    def shard_host_of(self, key: str) -> ShardHost[S]:
        """The shard host of a group or transactional id. Refused while there is none that serves."""
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
        if shard_host is None or shard_host.state is HomeState.OFFLINE:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"a partition of {self.topic} is offline")
        if not shard_host.is_active:
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"a partition of {self.topic} is being loaded")
        return shard_host

    def home_that_serves(self, key: str) -> ShardHost[S] | None:
        """The same, without a reason where there is none."""
        if not self._count or len(key) > KEY_LENGTH_MAX:
            return None
        index = self.partition_of(key)
        shard_host = self._shard_hosts.get(index)
        return (
            shard_host if shard_host is not None and shard_host.is_active and self._leads(self.topic, index) else None
        )

    def ask(self, call: Call, key: str, body: Message, writing: Writing | None = None) -> Later[Any]:
        """Put a request to the shard that is responsible for `key`; what it writes may be part of a transaction."""
        try:
            shard_host = self.shard_host_of(key)
        except Refused as refused:
            return failed(refused)
        return shard_host.ask(call, body, writing)

    def shard_host_at(self, index: int) -> ShardHost[S] | None:
        return self._shard_hosts.get(index)

    def shard_hosts(self) -> Iterator[ShardHost[S]]:
        """Those that serve now."""
        return iter([shard_host for shard_host in self._shard_hosts.values() if shard_host.is_active])

    def shards(self) -> Iterator[S]:
        """All that are in memory, also those that do not serve, or not yet."""
        return (shard_host.shard for shard_host in self._shard_hosts.values())

    def run_everywhere(self, decide: Callable[[S, int], Effects]) -> None:
        """In every shard, now or as soon as it serves."""
        for shard_host in list(self._shard_hosts.values()):
            shard_host.run_once_active(decide)

    def stop(self) -> None:
        shard_hosts, self._shard_hosts = self._shard_hosts, {}
        self._to_load.clear()
        for shard_host in shard_hosts.values():
            shard_host.stop()
