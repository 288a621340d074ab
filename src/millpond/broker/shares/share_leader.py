"""One share partition on the node that leads it: its window, loaded from the share coordinator and written to it.

There is one write at a time; changes that come meanwhile are written together by the next one. A write whose outcome
is unknown is repeated until it is known: the records of its changes are neither delivered nor acknowledged before.
When the leadership moves, or the share coordinator fences this leader, the window is dropped, and the next leader
loads what was written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done, run_all
from millpond.base.named_tuple import NamedTuple
from millpond.base.values import dataclass
from millpond.broker.shares.due_timer import DueTimer
from millpond.broker.shares.log_reads import READ_BYTES_MAX, LogRead, LookingFor, read_log, upper_offset
from millpond.broker.shares.lookout import Lookout
from millpond.broker.shares.oldest import OldestRecord
from millpond.broker.shares.record_facts import wanted_by
from millpond.broker.shares.verdicts import AcknowledgeType
from millpond.broker.shares.window import ShareWindow
from millpond.config.group import reset_duration_ms
from millpond.coordinators.shares.state_batches import NO_TIME, StateBatch

if TYPE_CHECKING:
    from millpond.base.clock import Timer
    from millpond.base.ports import Clock, Workers
    from millpond.broker.coordination.share_state import ReadState
    from millpond.broker.replication.partitions import Partition
    from millpond.broker.shares.acquisition import Acquired, AcquireMode
    from millpond.broker.shares.letters.office import LetterOffice
    from millpond.broker.shares.letters.writer import LetterWriter
    from millpond.broker.shares.read_settings import ShareReadSettings
    from millpond.broker.shares.slots import Change
    from millpond.broker.shares.verdicts import Acknowledgement
    from millpond.coordinators.shares.keys import SharePartition
    from millpond.log.lookup import TimeLookup

RETRY_MS: Final = 500
"""How long to wait before the state is read or written again. The calls themselves have tried for longer."""
LOAD_AGAIN_MS_MAX: Final = 30_000
"""The same for state that does not exist; the delay doubles each time. Members do not ask before it exists, but
anyone may ask for thousands of partitions of groups that never were."""
UNSETTLED_MS: Final = 50
"""How long to wait for a new leader's high watermark."""
UNCERTAIN_AGAIN_MS: Final = 200
"""How often a leader whose lease has run out looks for a new one while members wait."""
WOKEN_AT_ONCE: Final = 10
"""Waiters that may look at the same time."""
WRITE_RANGES_MAX: Final = 300
"""A write takes no further change once it has this many ranges."""
RELEASED_AT_ONCE: Final = 300
"""No further lock is released in one turn of the loop once this many records are, nor one in more ranges."""
DUE_AT_ONCE: Final = 500
"""Ranges of delayed records that become available in one turn of the loop."""

UNCERTAIN: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR})
"""A write that failed with one of these may still take effect, and is repeated."""
FENCED: Final = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH})


class StateCalls(Protocol):
    """What it needs of `coordination.share_state.ShareStateCalls`."""

    def initialize(self, key: SharePartition, state_epoch: int, start_offset: int) -> Later[None]: ...

    def read(self, key: SharePartition, leader_epoch: int) -> Later[ReadState]: ...

    def write(
        self,
        key: SharePartition,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        batches: Sequence[StateBatch],
        complete_count: int = -1,
    ) -> Later[None]: ...


class Waiter(Protocol):
    """A share fetch that waits for records. It calls `looked` when it has been woken and looked, or has ended."""

    def on_available(self, leader: ShareLeader) -> None:
        """There are records, or the leader has ended. Called often, so it must be cheap."""
        ...

    def answer(self) -> None:
        """Stop waiting and respond."""
        ...


@dataclass(frozen=True, slots=True)
class LeaderServices:
    clock: Clock
    workers: Workers
    state: StateCalls
    journal: Callable[..., None]
    is_stopping: Callable[[], bool]
    letters: LetterOffice


class _Write(NamedTuple):
    change: Change
    written: Later[ErrorCode]


class ShareLeader:
    """Implements `replication.partitions.Watcher`."""

    def __init__(
        self,
        key: SharePartition,
        partition: Partition,
        settings: ShareReadSettings,
        services: LeaderServices,
        on_end: Callable[[ShareLeader], None],
        follow_settings: Callable[[], ShareReadSettings],
    ) -> None:
        self.key = key
        self.partition = partition
        self.ended = False
        self.waiters: dict[Waiter, None] = {}
        self._to_wake: deque[Waiter] = deque()
        """Those that have not been woken since there was something new."""
        self._woken: set[Waiter] = set()
        """Those that have not looked since they were woken."""
        self._wakes_soon = False
        self.window: ShareWindow | None = None
        """None until the state has been read."""
        self.oldest: Final = OldestRecord(partition)
        self._settings = settings
        self._services = services
        self._clock = services.clock
        self._on_end = on_end
        self._follow_settings = follow_settings
        self._letters: LetterWriter | None = None
        """Writes dead letters, once there is one."""
        self._leader_epoch = partition.leader_epoch
        self._state_epoch = 0
        self._queue: list[_Write] = []
        self._writing: list[_Write] = []
        self._timer: Timer | None = None
        """Expires locks, or repeats a read or write of the state."""
        self._timer_ms = 0
        self._retry: Timer | None = None
        self._certain_again: Timer | None = None
        self._due_timer = DueTimer(services.clock, self._on_due)
        self._lookout = Lookout(services.clock, services.workers)
        self._load_again_ms = RETRY_MS
        self._is_unused = False
        partition.watchers[self] = None

    # Loading.

    def load(self) -> None:
        if not self.ended:
            self._services.state.read(self.key, self._leader_epoch).then(self._on_read, self._on_unread)

    def _on_read(self, state: ReadState) -> None:
        if self.ended:
            return
        self._state_epoch = state.state_epoch
        log_end = self.partition.log.end_offset
        if state.start_offset < 0:
            self._find_start()
        elif max(state.start_offset, *(each.last + 1 for each in state.batches), 0) > log_end:
            self._begin_again(state, log_end)
        else:
            self._begin(state.start_offset, state.batches)

    def _on_unread(self, failure: Exception) -> None:
        """The coordinator is away, or the group coordinator has not initialised the state yet."""
        if not isinstance(failure, Refused | OSError):
            raise failure
        if isinstance(failure, Refused) and failure.code is ErrorCode.INVALID_REQUEST:
            self._again(self._load_again_ms, self._load_if_wanted)
            self._load_again_ms = min(2 * self._load_again_ms, LOAD_AGAIN_MS_MAX)
        else:
            self._again(RETRY_MS, self.load)

    def _load_if_wanted(self) -> None:
        if self.waiters:
            self.load()
        else:
            # The next fetch begins again.
            self.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _find_start(self) -> None:
        """Where a group that has never read this partition begins."""
        if self.ended:
            return
        partition = self.partition
        reset = self._settings.offset_reset
        duration_ms = reset_duration_ms(reset)
        if reset == "earliest":
            self._write_start(partition.log.start_offset)
            return
        try:
            # A new leader may know of fewer records than consumers have seen.
            partition.check_settled()
            if duration_ms is None:
                self._write_start(partition.committed_offset)
            else:
                timestamp = self._clock.wall_ms() - duration_ms
                self._look(partition.log.time_lookup(max(timestamp, 0), partition.committed_offset))
        except Refused:
            self._again(UNSETTLED_MS, self._find_start)

    def _look(self, lookup: TimeLookup) -> None:
        def on_looked(_: None) -> None:
            if self.ended:
                return
            if lookup.is_stale(self.partition.log.segments):
                self._find_start()
                return
            try:
                match = lookup.finish()
            except Refused:
                self._again(RETRY_MS, self._find_start)
                return
            self._write_start(self.partition.committed_offset if match is None else match.offset)

        self._services.workers.run(lookup.run).then(on_looked)

    def _write_start(self, offset: int) -> None:
        """Write it down first: the next leader would choose a later one, and records in between would be skipped."""

        def write(_: None) -> Later[None]:
            return self._write_state(offset, (), 0)

        def on_written(_: None) -> None:
            if not self.ended:
                self._begin(offset, ())

        self._once_safe(offset).chain(write).then(on_written, self._on_unread)

    def _begin_again(self, state: ReadState, log_end: int) -> None:
        """The log has lost records, in an unclean election or with its disk, and others will take their offsets.
        Forget what was written about them before that: the next leader could not tell them from the others."""
        self._services.journal(
            "the state of a share group reaches beyond the log: what was written about lost records is ignored",
            group=self.key.group_id,
            partition=str(self.partition.name),
            start_offset=state.start_offset,
            log_end_offset=log_end,
        )
        start_offset = min(state.start_offset, log_end)
        batches = [each._replace(last=min(each.last, log_end - 1)) for each in state.batches if each.first < log_end]
        # Neither a start offset nor a finished record is taken back, except by state that is initialised again.
        self._state_epoch = state.state_epoch + 1

        def write(_: None) -> Later[None]:
            return self._write_state(start_offset, batches, 0)

        def on_written(_: None) -> None:
            if not self.ended:
                self._begin(start_offset, batches)

        begun = self._services.state.initialize(self.key, self._state_epoch, start_offset)
        begun.chain(write).then(on_written, self._on_unread)

    def _begin(self, start_offset: int, batches: Sequence[StateBatch]) -> None:
        window_settings = self._settings.window_of(self.partition.name.topic)
        self.window = ShareWindow.load(window_settings, start_offset, batches)
        self.window.advance_start(self.partition.log.start_offset)
        self._look_for_letters()
        self._set_due_timer()
        self._wake()

    def configure(self, settings: ShareReadSettings) -> None:
        self._settings = settings
        if self.window is not None:
            self.window.configure(settings.window_of(self.partition.name.topic))
            self._set_due_timer()
            self._wake()

    # Delivering.

    @property
    def reads_committed(self) -> bool:
        return self._settings.reads_committed

    def has_available(self) -> bool:
        """Whether a member could acquire something, as far as that is known without reading the log."""
        window = self.window
        if window is None or self.ended or self._lookout.is_busy:
            return False
        self._free_due(window)
        upper = upper_offset(self.partition, committed_only=self.reads_committed)
        look = window.look_offset()
        if look is not None and look < upper:
            return self._is_certain()
        first = window.next_fetch_offset()
        if first == window.end_offset and not window.may_append:
            return False
        return first < upper and self._is_certain()

    def _is_certain(self) -> bool:
        """Whether no other node can lead yet, and have finished what is available here. If not, look again soon."""
        role = self.partition.leader_role
        if role is None or role.is_certain:
            return True
        if self._certain_again is None and self.waiters:
            self._certain_again = self._clock.call_later(UNCERTAIN_AGAIN_MS, self._look_again)
        return False

    def _look_again(self) -> None:
        self._certain_again = None
        self._wake()

    def available_bytes(self) -> int:
        """How many bytes a member could acquire, or more."""
        if not self.has_available():
            return 0
        assert self.window is not None
        log = self.partition.log
        upper = upper_offset(self.partition, committed_only=self.reads_committed)
        # If positions are not in memory, overestimate.
        whole = log.size_from(self.window.next_fetch_offset())
        return whole - log.size_from(upper) or whole or 1

    def read(self, bytes_max: int, *, is_warm: bool) -> LogRead:
        """Read the log where the next records are available, or where it has to be looked at before. Refused if it
        cannot be read."""
        window, partition, settings = self.window, self.partition, self._settings.window
        assert window is not None
        window.advance_start(partition.log.start_offset)
        reading = partial(read_log, partition, committed_only=self.reads_committed, is_warm=is_warm)
        look = window.look_offset()
        if look is not None and look < upper_offset(partition, committed_only=self.reads_committed):
            read = reading(look, READ_BYTES_MAX, looking_for=LookingFor(look, (), all=True))
            if read.cold or read.last >= look:
                return read._replace(is_ahead=True)
            read.release()
        looking_for = None
        if settings.delay_enable and not settings.is_ordered:
            looking_for = LookingFor(window.upcoming.looked, wanted_by(settings).headers)
        return reading(window.next_fetch_offset(), bytes_max, looking_for=looking_for)

    def look(self, read: LogRead) -> Later[bool] | None:
        """Learn about the records that were read what the group wants to know before it acquires them. None if that
        is done; otherwise it ends with whether the log could be read, and the read must be kept until then. Refused
        if it cannot be read."""
        assert self.window is not None
        looking = self._lookout.look(self.window, read)
        self._set_due_timer()
        return looking if looking is None else looking.map(self._on_looked)

    def _on_looked(self, is_readable: bool) -> bool:
        self._set_due_timer()
        if not self.ended:
            self._wake()
        return is_readable

    def acquire(
        self, holder: str, read: LogRead, *, max_records: int, batch_size: int, mode: AcquireMode
    ) -> list[Acquired]:
        assert self.window is not None
        acquired = self.window.acquire(
            holder,
            read.first,
            read.last,
            self._clock.monotonic_ms(),
            max_records=max_records,
            batch_size=batch_size,
            mode=mode,
            batches=read.bounds,
        )
        self._set_timer()
        return acquired

    def acknowledge(self, holder: str, acknowledgements: Sequence[Acknowledgement]) -> Later[ErrorCode]:
        """The result, once it has been written."""
        if self.window is None or self.ended:
            # Whoever delivered the records, it was an earlier leader.
            return done(ErrorCode.INVALID_RECORD_STATE)
        if not self._settings.may_renew and any(AcknowledgeType.RENEW in each.types for each in acknowledgements):
            return done(ErrorCode.INVALID_REQUEST)
        try:
            change = self.window.acknowledge(
                holder, acknowledgements, self._clock.monotonic_ms(), self._clock.wall_ms()
            )
        except Refused as refusal:
            return done(refusal.code)
        self._set_timer()
        return self._write(change)

    def release(self, holder: str, *, were_delivered: bool) -> int:
        """The member's session has ended. Returns how many ranges this releases at once."""
        if self.window is None or self.ended:
            return 0
        change = self.window.release_member(holder, were_delivered=were_delivered, records_max=RELEASED_AT_ONCE)
        self._write(change).then(_ignore)
        if change.batches:
            # There may be more. This comes before the write has ended, so an unused leader does not end in between.
            self._clock.call_soon(partial(self._release_more, holder, were_delivered=were_delivered))
        return len(change.moves)

    def _release_more(self, holder: str, *, were_delivered: bool) -> None:
        self.release(holder, were_delivered=were_delivered)

    # Waiting.

    def _wake(self) -> None:
        """Wake those that wait, few at a time: hundreds may wait for the same record, and each takes time to look."""
        self._to_wake = deque(self.waiters)
        self._wake_some()

    def _wake_some(self) -> None:
        self._wakes_soon = False
        most = self._woken_max()
        while self._to_wake and len(self._woken) < most and self.has_available():
            waiter = self._to_wake.popleft()
            if waiter in self.waiters and waiter not in self._woken:
                self._woken.add(waiter)
                waiter.on_available(self)

    def _woken_max(self) -> int:
        if self.window is None:
            return 0
        new = upper_offset(self.partition, committed_only=self.reads_committed) - self.window.end_offset
        return min(self.window.counts().available + max(new, 0), WOKEN_AT_ONCE)

    def looked(self, waiter: Waiter) -> None:
        """A waiter that was woken has taken what it wants, if anything. The next one may want the rest."""
        self._woken.discard(waiter)
        if self._to_wake and not self._wakes_soon and not self.ended:
            self._wakes_soon = True
            self._clock.call_soon(self._wake_some)

    def on_append(self, partition: Partition, size: int) -> None:
        if self.waiters:
            self._wake()

    def answer(self) -> None:
        """The partition's role has changed, or this node is stopping."""
        if not self.partition.is_leader or self.partition.leader_epoch != self._leader_epoch:
            self.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self._services.is_stopping():
            run_all(waiter.answer for waiter in list(self.waiters))

    # Writing.

    def _write(self, change: Change) -> Later[ErrorCode]:
        if not change.batches:
            assert self.window is not None
            self.window.commit(change)
            return done(ErrorCode.NONE)
        written: Later[ErrorCode] = Later()
        self._queue.append(_Write(change, written))
        if not self._writing and len(self._queue) == 1:
            # Soon: one request often changes several times.
            self._clock.call_soon(self._write_next)
        return written

    def _write_next(self) -> None:
        if self.ended or self._writing:
            return
        if not self._queue:
            self._end_if_unused()
            return
        count = taken = 0
        while taken < len(self._queue) and count < WRITE_RANGES_MAX:
            count += len(self._queue[taken].change.moves)
            taken += 1
        self._writing, self._queue = self._queue[:taken], self._queue[taken:]
        self._send()

    def _send(self) -> None:
        if self.ended:
            return
        assert self.window is not None
        batches = sorted(batch for write in self._writing for batch in write.change.batches)
        complete_count = self._writing[-1].change.delivery_complete_count

        def write(_: None) -> Later[None]:
            assert self.window is not None
            return self._write_state(self.window.start_offset, batches, complete_count)

        self._once_safe(batches[-1].last + 1).chain(write).then(self._on_written, self._on_unwritten)

    def _once_safe(self, end_offset: int) -> Later[None]:
        """Ends once records below this offset survive a power cut, as far as acknowledged ones do. Else the state
        could outlive them, and hide those that take their offsets."""
        return self.partition.after_commit(min(end_offset, self.partition.log.end_offset), None)

    def _write_state(self, start_offset: int, batches: Sequence[StateBatch], complete_count: int) -> Later[None]:
        return self._services.state.write(
            self.key, self._state_epoch, self._leader_epoch, start_offset, batches, complete_count
        )

    def _on_written(self, _: None) -> None:
        if self.ended:
            return
        assert self.window is not None
        writing, self._writing = self._writing, []
        for write in writing:
            self.window.commit(write.change)
        self._set_timer()
        self._look_for_letters()
        self._set_due_timer()
        if self._queue or self._is_unused:
            self._clock.call_soon(self._write_next)
        # A later change may have been answered while these readers run.
        run_all((*(partial(write.written.finish, ErrorCode.NONE) for write in writing), self._wake))

    def _on_unwritten(self, failure: Exception) -> None:
        if not isinstance(failure, Refused | OSError):
            raise failure
        if self.ended:
            return
        code = failure.code if isinstance(failure, Refused) else ErrorCode.KAFKA_STORAGE_ERROR
        if code not in UNCERTAIN:
            self._services.journal(
                "a share partition is loaded again: its state could not be written",
                group=self.key.group_id,
                partition=str(self.partition.name),
                reason=str(failure),
            )
            self.end(ErrorCode.NOT_LEADER_OR_FOLLOWER if code in FENCED else code)
            return
        self._again(RETRY_MS, self._send)
        # The members have waited long enough; that the outcome is open is all they can be told. What has come since
        # is written with the next attempts, which may last longer than their requests.
        run_all(partial(write.written.finish, code) for write in (*self._writing, *self._queue))

    # Dead letters.

    def _look_for_letters(self) -> None:
        assert self.window is not None
        if self._letters is None and self.window.archiving_count:
            from millpond.broker.shares.letters.writer import LetterWriter

            services = self._services
            self._letters = LetterWriter(
                *(self.partition, self.key.group_id, self.window, services.letters),
                *(services.clock, services.workers, services.journal),
                settings=self._follow_settings,
                write=self._write,
                on_idle=self._end_if_unused,
            )
        if self._letters is not None:
            self._letters.look()

    # Time.

    def _again(self, delay_ms: int, repeat: Callable[[], None]) -> None:
        if not self.ended and not self._services.is_stopping():
            self._retry = self._clock.call_later(delay_ms, repeat)

    def _set_timer(self) -> None:
        assert self.window is not None
        deadline_ms = self.window.next_deadline_ms()
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = self._clock.call_later(max(deadline_ms - self._clock.monotonic_ms(), 0), self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self.window is None or self.ended:
            return
        change = self.window.on_timer(self._clock.monotonic_ms(), RELEASED_AT_ONCE)
        self._write(change).then(_ignore)
        self._set_timer()

    def _set_due_timer(self) -> None:
        if self.window is not None and not self.ended:
            self._due_timer.set(self.window.next_due_ms())

    def _on_due(self) -> None:
        if self.window is None or self.ended:
            return
        self._free_due(self.window)
        self._set_due_timer()
        self._wake()

    def _free_due(self, window: ShareWindow) -> None:
        due_ms = window.next_due_ms()
        if due_ms != NO_TIME and due_ms <= self._clock.wall_ms():
            window.free_due(self._clock.wall_ms(), DUE_AT_ONCE)

    # Ending.

    def keep(self) -> None:
        """The group has a session here again."""
        self._is_unused = False

    def leave(self) -> None:
        """The group has no session here: end once everything is written, also the dead letters."""
        self._is_unused = True
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        has_letters = self.window is not None and self.window.archiving_count > 0
        if self._is_unused and not self._writing and not self._queue and not has_letters:
            self.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def end(self, code: ErrorCode) -> None:
        """Drop the window. What is being written may be written or not: the next leader finds out."""
        if self.ended:
            return
        self.ended = True
        self.partition.watchers.pop(self, None)
        for timer in (self._timer, self._retry, self._certain_again):
            if timer is not None:
                timer.cancel()
        if self._letters is not None:
            self._letters.stop()
        self._due_timer.cancel()
        self._on_end(self)
        open_writes, self._writing, self._queue = [*self._writing, *self._queue], [], []
        waiters, self.waiters = self.waiters, {}
        run_all(
            (
                *(partial(write.written.finish, code) for write in open_writes),
                *(partial(waiter.on_available, self) for waiter in waiters),
            )
        )


def _ignore(_: object) -> None: ...
