"""A client connection: frames in, replies out in the order of the requests, and the limits of one client.

It is driven through `base.ports.Link`, by `node` and by `sim`, and has no socket itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from millpond.base.errors import RemoteError
from millpond.base.later import Later
from millpond.base.named_tuple import NamedTuple
from millpond.base.pending import Pending
from millpond.base.ports import Clock, FileRange, Link, ReplyPart, Timer
from millpond.base.principal import ANONYMOUS, Principal
from millpond.broker.loop.turns import Turns
from millpond.broker.requests.misdirected_producers import MisdirectedProducers
from millpond.broker.requests.replies import Outcome, Response, release_ranges
from millpond.broker.requests.request_memory import Pace, RequestMemory
from millpond.config.listeners import SecurityProtocol
from millpond.wire.frames import FrameReader

if TYPE_CHECKING:
    from millpond.broker.loop.steps import Steps
    from millpond.broker.security.granted import Granted
    from millpond.broker.security.login import Login
    from millpond.broker.security.quotas import Meter

T = TypeVar("T")

FEW_REQUESTS = 4
"""A read rarely brings more requests than this; after each such number the connection may have to wait (`turns`)."""

Encode = Callable[[Response], list[ReplyPart]]


PENDING_PARTITIONS_MAX: Final = 1_000
"""Stop reading from a connection while its pending fetches wait for more partitions, each of which takes memory."""

WAITING_BYTES_MAX: Final = 256 << 10
"""Stop reading from a connection while more of its records wait for a transaction coordinator, and count them towards
the memory limit of all requests."""

HEAVY_BYTES: Final = 64 << 10
HEAVY_COUNT: Final = 16
"""Unsent replies with more bytes, or more of them, count towards the memory limit of all connections."""


def _ignore(_: object) -> None: ...


class Dispatch(Protocol):
    """Serves the frames of a connection."""

    clock: Clock

    def load(self) -> None: ...

    def handle(self, connection: Connection, frame: memoryview) -> None: ...

    def report(self, connection: Connection, error: RemoteError) -> None: ...


class LaterReply(NamedTuple):
    """The result of a large request's steps if its reply may wait for other clients."""

    later: Later[Any]
    encode: Encode


class Slot:
    """One reply's place in the order of requests; `parts` is None while the reply is pending.

    `pending` is cancelled when the connection closes.
    """

    __slots__ = ("parts", "pending")

    def __init__(self, pending: Pending[Any] | None, parts: list[ReplyPart] | None) -> None:
        self.pending = pending
        self.parts = parts


class Connection:
    """Implements `base.ports.LinkHandler` over a dispatcher."""

    __slots__ = (
        "_backlog",
        "_dispatcher",
        "_early_bytes",
        "_flushes_soon",
        "_handling",
        "_heavy_bytes",
        "_held_bytes",
        "_held_until",
        "_in_flight_max",
        "_is_in_steps",
        "_memory",
        "_muted",
        "_muted_until_ms",
        "_now_us",
        "_on_closed",
        "_on_heavy",
        "_open",
        "_pace",
        "_paused",
        "_pending_partitions",
        "_reader",
        "_ready",
        "_resting",
        "_slots",
        "_stalled",
        "_turns",
        "_unsent_bytes_max",
        "_waiting_bytes",
        "_when_closed",
        "arrived_us",
        "buffer",
        "client_software",
        "granted",
        "host",
        "last_active_ms",
        "link",
        "login",
        "may_be_node",
        "metered",
        "misdirected",
        "must_log_in",
        "number",
        "principal",
        "protocol",
        "sent_away_ms",
    )
    """Without slots the attribute dictionary of an idle connection would take 2 KiB."""

    def __init__(
        self,
        link: Link,
        dispatcher: Dispatch,
        reader: FrameReader,
        memory: RequestMemory,
        *,
        in_flight_max: int,
        unsent_bytes_max: int,
        on_closed: Callable[[Connection], None],
        turns: Turns | None = None,
        on_heavy: Callable[[Connection], None] = _ignore,
    ) -> None:
        self.link = link
        self.host = link.peer.rpartition(":")[0]
        self.number = 0
        """Increases with each connection."""
        self.protocol = SecurityProtocol.PLAINTEXT
        self.principal: Principal | None = ANONYMOUS
        """The client's principal; None until it has logged in."""
        self.must_log_in = False
        """Whether the client must authenticate, or authenticate again, before it is served."""
        self.login: Login | None = None
        """None if the listener has no authentication."""
        self.may_be_node = True
        """Whether a request that claims to come from a node of the cluster is believed."""
        self.client_software = ""
        self.sent_away_ms: dict[str, int] = {}
        """By group: when the client was last sent to the group's coordinator on another node."""
        self.metered: tuple[int, str | None, Principal | None, Meter | None] | None = None
        """Cached by `quotas`."""
        self.granted: Granted | None = None
        """Cached by `access`."""
        self.misdirected = MisdirectedProducers()
        self.last_active_ms = 0
        self.arrived_us = 0
        """When the current request arrived."""
        self._dispatcher = dispatcher
        self._now_us = dispatcher.clock.monotonic_us
        self._reader = reader
        self.buffer = reader.buffer
        """The link reads into this buffer."""
        self._memory = memory
        self._held_bytes = 0
        self._pace: Pace | None = None
        # Lists, because an empty deque allocates 64 entries and nearly every connection is idle.
        self._slots: list[Slot] = []
        self._ready: list[ReplyPart] = []
        self._in_flight_max = in_flight_max
        self._unsent_bytes_max = unsent_bytes_max
        self._heavy_bytes = min(HEAVY_BYTES, unsent_bytes_max)
        self._on_closed = on_closed
        self._when_closed: Callable[[Connection], None] | None = None
        self._on_heavy = on_heavy
        """Called when the unsent replies hold a notable amount of memory."""
        self._handling = False
        self._flushes_soon = False
        self._paused = False
        self._stalled = False
        self._muted: Timer | None = None
        """Set while the client is over its quota and is not read from."""
        self._muted_until_ms = 0
        self._turns = turns or Turns(dispatcher.clock)
        self._resting = False
        self._backlog: list[memoryview] = []
        self._held_until: Later[None] | None = None
        self._is_in_steps = False
        """Whether a large request is being handled."""
        self._pending_partitions = 0
        """The partitions of all pending fetches."""
        self._waiting_bytes = 0
        """Copied records that wait for a transaction coordinator."""
        self._early_bytes = 0
        """The size of the large or delayed request that the backlog starts with."""
        self._open = True

    @property
    def is_open(self) -> bool:
        return self._open

    @property
    def known(self) -> Principal:
        """The principal of a client that has logged in."""
        assert self.principal is not None, "the client has not logged in"
        return self.principal

    # Called by the link.

    def received(self, count: int) -> None:
        self.arrived_us = arrived_us = self._now_us()
        self.last_active_ms = arrived_us // 1_000
        self._handling = True
        try:
            number = 0
            for frame in self._reader.advance(count):
                number += 1
                if self._paused:
                    # The next connection reuses the buffer: keep a copy.
                    self._backlog.append(self._reader.lasting(frame))
                    continue
                self._dispatcher.handle(self, frame)
                if not self._open:
                    break
                if len(self._slots) >= self._in_flight_max:
                    self._pause()
                elif number % FEW_REQUESTS == 0 and self._turns.is_over(arrived_us):
                    self._rest()
        finally:
            self._handling = False
            self._flush()
        if self._pace is not None or self._reader.held_bytes or self._early_bytes:
            self._note_held(count)

    def _note_held(self, count: int) -> None:
        """Account for the part of a large request that has arrived, or for a request that is kept for later."""
        held_bytes = self._reader.held_bytes + self._early_bytes
        if self._waiting_bytes > WAITING_BYTES_MAX:
            held_bytes += self._waiting_bytes
        if not held_bytes:
            self._pace = None
        elif self._pace is None:
            self._pace = Pace(self.last_active_ms)
        else:
            self._pace.arrived_bytes += count
        if held_bytes != self._held_bytes:
            self._held_bytes = held_bytes
            self._memory.hold(self, held_bytes)

    def drained(self) -> None:
        self.last_active_ms = self._dispatcher.clock.monotonic_ms()
        self._resume_if_light()

    def closed(self) -> None:
        self._open = False
        if self._held_bytes:
            self._memory.hold(self, 0)
        for slot in self._slots:
            if slot.pending is not None:
                slot.pending.cancel()
            release_ranges(slot.parts)
        self._slots.clear()
        release_ranges(self._ready)
        self._ready = []
        self._backlog.clear()
        if self._muted is not None:
            self._muted.cancel()
        if self._held_until is not None:
            self._held_until.cancel()
        if self._when_closed is not None:
            self._when_closed(self)
        self._on_closed(self)

    # Called by the dispatcher.

    def when_closed(self, call: Callable[[Connection], None]) -> None:
        """Call this once the connection has closed and its pending requests have been cancelled; it must be open."""
        assert self._when_closed is None, "only share sessions end with their connection"
        self._when_closed = call

    def hold(self, frame: memoryview, until: Later[None]) -> None:
        """Handle this request and all later ones once `until` has ended; if that fails, close the connection."""
        self._backlog.append(self._reader.lasting(frame))
        # Counts like an arriving request: large requests that are held must not take all the memory.
        self._early_bytes = len(frame)
        self._held_until = until
        self._pause()

        def on_failure(failure: Exception) -> None:
            if not isinstance(failure, RemoteError):
                raise failure
            self._dispatcher.report(self, failure)
            self.drop()

        def go_on(_: None) -> None:
            self._held_until = None
            self._end_early()

        until.then(go_on, on_failure)

    def reply(self, outcome: Outcome, encode: Encode) -> None:
        """Send a handler's outcome once every earlier request has been answered."""
        if outcome is None:
            return
        if isinstance(outcome, Later):
            self.reply_later(outcome, encode)
        else:
            self.reply_parts(encode(outcome))

    def reply_frame(self, frame: bytes) -> None:
        """The same for an encoded frame."""
        if self._slots:
            self._slots.append(Slot(None, [frame]))
        else:
            self._ready.append(frame)

    def reply_parts(self, parts: list[ReplyPart]) -> None:
        """The same for the parts of an encoded frame."""
        if self._slots:
            self._slots.append(Slot(None, parts))
            self._weigh(parts)
        else:
            self._ready += parts

    def keep_slot(self, pending: Pending[Any] | None = None) -> Slot:
        """Reserve the place of a reply that `fill` will bring."""
        slot = Slot(pending, None)
        self._slots.append(slot)
        return slot

    def reply_later(
        self,
        later: Later[T],
        encode: Callable[[T], list[ReplyPart]],
        refuse: Callable[[Exception], list[ReplyPart]] | None = None,
    ) -> None:
        """The same for a reply that comes later; `refuse` encodes the reply to a failure."""
        self.fill_later(self.keep_slot(later), later, encode, refuse)

    def fill_later(
        self,
        slot: Slot,
        later: Later[T],
        encode: Callable[[T], list[ReplyPart]],
        refuse: Callable[[Exception], list[ReplyPart]] | None = None,
    ) -> None:
        """Fill a slot when `later` ends."""
        slot.pending = later

        def use(value: T) -> None:
            try:
                parts = encode(value)
            except RemoteError as error:
                self._dispatcher.report(self, error)
                self.drop()
            else:
                self.fill(slot, parts)

        def on_failure(failure: Exception) -> None:
            if refuse is not None:
                self.fill(slot, refuse(failure))
            elif isinstance(failure, RemoteError):
                self._dispatcher.report(self, failure)
                self.drop()
            else:
                raise failure

        later.then(use, on_failure)

    def reply_in_steps(
        self,
        steps: Steps[list[ReplyPart] | LaterReply | None],
        frame: memoryview,
        on_step: Callable[[int], None],
    ) -> None:
        """The same for a large request, whose steps return the parts of the reply, if there is one.

        Later requests wait until the steps are done. The steps run to the end even if the client disconnects.
        """
        slot = Slot(None, None)
        self._slots.append(slot)
        self._early_bytes = len(frame)
        self._is_in_steps = True
        self._pause()

        def use(result: list[ReplyPart] | LaterReply | None) -> None:
            self._is_in_steps = False
            if not isinstance(result, LaterReply):
                self.fill(slot, result or [])
            else:
                self.fill_later(slot, result.later, result.encode)
                if not self._open:
                    # Too late for `closed`. A reply that is there already has released its files.
                    result.later.cancel()
            self._end_early()

        def on_failure(failure: Exception) -> None:
            if not isinstance(failure, RemoteError):
                raise failure
            if self._open:
                self._dispatcher.report(self, failure)
                self.drop()

        self._turns.run(steps, on_step).then(use, on_failure)

    def run_in_turns(self, steps: Steps[T]) -> Later[T]:
        """Run the steps of a request in turn with those of other connections."""
        return self._turns.run(steps, _ignore)

    def add_pending_partitions(self, count: int) -> None:
        """Account for a fetch that begins to wait; a negative count for one that is about to be answered."""
        self._pending_partitions += count
        if self._pending_partitions > PENDING_PARTITIONS_MAX:
            self._pause()

    def add_waiting_bytes(self, count: int) -> None:
        """Account for records that begin to wait for a coordinator; a negative count when they no longer do."""
        self._waiting_bytes += count
        if not self._open:
            return
        if self._waiting_bytes > WAITING_BYTES_MAX:
            self._pause()
        self._note_held(0)
        self._stalled = self._memory.is_stalled(self)
        if self._paused:
            # Not in the middle of an append.
            self._dispatcher.clock.call_soon(self._resume_if_light)

    def lasting(self, frame: memoryview) -> memoryview:
        """A copy of a frame if the next read may overwrite it."""
        return self._reader.lasting(frame)

    def _end_early(self) -> None:
        """Continue with the requests after a kept one."""
        if self._open:
            self._early_bytes = 0
            self._note_held(0)
            self._stalled = self._memory.is_stalled(self)
            self._resume_if_light()

    def set_stalled(self, stalled: bool) -> None:
        """Stop reading while the node is out of memory for large requests (see `request_memory`)."""
        self._stalled = stalled
        if stalled:
            self._pause()
        else:
            self._restart_pace()
            self._resume_if_light()

    def mute(self, wait_ms: int) -> None:
        """Stop reading for `wait_ms`. Replies are still sent."""
        if not self._open:
            return
        until_ms = self._dispatcher.clock.monotonic_ms() + wait_ms
        if self._muted is not None:
            if until_ms <= self._muted_until_ms:
                return
            self._muted.cancel()
        self._muted_until_ms = until_ms
        self._muted = self._dispatcher.clock.call_later(wait_ms, self._unmute)
        self._pause()

    def _unmute(self) -> None:
        self._muted = None
        self._restart_pace()
        self._resume_if_light()

    def _restart_pace(self) -> None:
        """The peer could not send while we did not read: measure its pace from now on."""
        self.last_active_ms = self._dispatcher.clock.monotonic_ms()
        if self._pace is not None:
            self._pace.restart(self.last_active_ms)

    def is_too_slow(self, now_ms: int, *, others_wait: bool) -> bool:
        """Whether a large request arrives too slowly through the client's fault.

        While others wait for the memory that it holds, that includes a client that is not read from because it is
        over its quota or does not read its replies.
        """
        if self._pace is None:
            return False
        is_own_fault = self._muted is not None or self.link.unsent_bytes() > self._unsent_bytes_max
        is_judged = not self._paused or (others_wait and is_own_fault)
        return is_judged and self._pace.is_too_slow(now_ms, others_wait=others_wait)

    def take_frames_up_to(self, bytes_max: int, limit_name: str) -> None:
        """Limit the size of a request; `limit_name` is the setting to name when one is larger."""
        self._reader.frame_bytes_max = bytes_max
        self._reader.limit_name = limit_name

    def is_waiting(self) -> bool:
        """Whether a request is unanswered or a reply unsent."""
        return bool(self._slots or self._backlog or self._ready or self.link.unsent_bytes())

    def unsent_memory_bytes(self) -> int:
        """The memory of unsent replies: an earlier one is pending, or the peer does not read."""
        held = self.link.unsent_memory_bytes() if self.link.unsent_bytes() else 0
        # The first is pending and has no parts.
        for slot in self._slots if len(self._slots) > 1 else ():
            held += sum(len(part) for part in slot.parts or () if not isinstance(part, FileRange))
        return held

    def drop(self) -> None:
        """Close the connection now. Nothing is handled or sent any more, though the link reports the end later."""
        self._open = False
        self.link.abort()

    # The order of replies.

    def _weigh(self, parts: list[ReplyPart]) -> None:
        """Count the memory of a reply that has to wait for an earlier one."""
        # The first part is the header; large fields are the second.
        fields = [len(part) for part in parts[:2] if not isinstance(part, FileRange)]
        if len(self._slots) > HEAVY_COUNT or sum(fields) > self._heavy_bytes:
            self._on_heavy(self)

    def fill(self, slot: Slot, parts: list[ReplyPart]) -> None:
        """Put a reply into its slot; it leaves when every earlier request has been answered."""
        slot.pending = None
        if not self._open:
            release_ranges(parts)
            return
        slot.parts = parts
        slots = self._slots
        while slots and (head := slots[0].parts) is not None:
            self._ready += head
            del slots[0]
        if slots:
            self._weigh(parts)
        if self._handling:
            return
        if not slots:
            self._flush()
            self._resume_if_light()
        elif self._ready and not self._flushes_soon:
            # Others are pending, and what completes one often completes many: send them together.
            self._flushes_soon = True
            self._dispatcher.clock.call_soon(self._flush_soon)

    def _flush_soon(self) -> None:
        self._flushes_soon = False
        self._flush()
        self._resume_if_light()

    def _flush(self) -> None:
        if self._ready and self._open:
            parts, self._ready = self._ready, []
            self.link.send(parts)
            unsent_bytes = self.link.unsent_bytes()
            if unsent_bytes > self._heavy_bytes:
                self._on_heavy(self)
                if unsent_bytes > self._unsent_bytes_max:
                    self._pause()

    def _rest(self) -> None:
        """Continue in a later turn: thousands of small requests in one read would hold up other clients."""
        self._resting = True
        self._pause()
        self._turns.wait(self._go_on)

    def _go_on(self) -> None:
        self._resting = False
        self._resume_if_light()

    # Back-pressure: stop reading from a client that sends faster than it is answered, or that does not read.

    def _pause(self) -> None:
        if not self._paused and self._open:
            self._paused = True
            self.link.pause_reading()

    def _resume_if_light(self) -> None:
        if not self._paused or self._handling or not self._open or not self._is_light():
            return
        self._handling = True
        since_us = self._dispatcher.clock.monotonic_us()
        served = 0
        try:
            while self._backlog and self._open and self._is_light():
                self._dispatcher.handle(self, self._backlog.pop(0))
                served += 1
                if served % FEW_REQUESTS == 0 and self._backlog and self._turns.is_over(since_us):
                    self._rest()
        except RemoteError as error:
            self._dispatcher.report(self, error)
            self.drop()
            return
        finally:
            self._handling = False
        if self.is_open and not self._backlog and self._is_light():
            self._paused = False
            self._restart_pace()
            self.link.resume_reading()
        self._flush()

    def _is_light(self) -> bool:
        return (
            not self._stalled
            and self._muted is None
            and not self._resting
            and not self._is_in_steps
            and self._held_until is None
            and self._pending_partitions <= PENDING_PARTITIONS_MAX
            and self._waiting_bytes <= WAITING_BYTES_MAX
            and len(self._slots) < self._in_flight_max
            and self.link.unsent_bytes() <= self._unsent_bytes_max
        )
