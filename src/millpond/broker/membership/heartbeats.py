"""Broker liveness at the active controller: brokers send heartbeats, and a broker whose session expires is fenced.

A newly elected controller starts a new session for every broker, and a controller whose own event loop stalled
extends all sessions by the stall. A controller never fences its own node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done
from millpond.broker.quorum.lease import fence_wait_ms, lease_ms, proof_age_ms_max
from millpond.config.node import (
    AUTO_LEADER_REBALANCE_ENABLE,
    BROKER_SESSION_TIMEOUT_MS,
    LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS,
)
from millpond.config.topic import UNCLEAN_LEADER_ELECTION_ENABLE
from millpond.metadata.brokers import (
    Heartbeat,
    HeartbeatReply,
    Registered,
    Registration,
    decide_fence,
    decide_heartbeat,
    decide_register,
    decide_settle,
)
from millpond.metadata.decision import Decision
from millpond.metadata.elections import Slice, lead_first, relieve
from millpond.metadata.image import NO_DIRECTORY
from millpond.metadata.records import RECOVERING, ConfigRecord, PartitionChangeRecord, Record

if TYPE_CHECKING:
    from millpond.base.ports import Clock, Timer
    from millpond.base.settings import Settings
    from millpond.broker.controller.controller import Controller
    from millpond.broker.loop.journal import Journal
    from millpond.broker.membership.lifelines import Lifelines
    from millpond.config.effective import NodeLayers
    from millpond.metadata.image import Broker, Image

CHECKS_PER_SESSION: Final = 10
"""Session expiry is checked at least this many times per session timeout."""

ELECTION_SETTINGS: Final = frozenset({UNCLEAN_LEADER_ELECTION_ENABLE.name, UNCLEAN_LEADER_ELECTION_ENABLE.inherits})
SILENT_SHARE: Final = 4
"""A deposed controller that was silent for a whole session has only a lease divided by this to send a heartbeat."""

CHECKS_PER_INTERVAL: Final = 3
NEXT_SLICE_MS: Final = 1_000
"""Delay between two slices of preferred leader elections for the same broker."""

WRITE_AGAIN_MS: Final = 500
"""Delay before a slice that could not be written is decided again."""

LATE_MS: Final = 50
"""A check that runs this late means the loop stalled, so heartbeats may be waiting unread in its sockets."""


class Heartbeats:
    def __init__(
        self,
        *,
        clock: Clock,
        controller: Controller,
        layers: Callable[[], NodeLayers],
        settings: Callable[[], Settings],
        journal: Journal,
        lifelines: Callable[[Callable[[int], None], Callable[[int], None]], Lifelines],
    ) -> None:
        self._clock = clock
        self._controller = controller
        self._layers = layers
        self._settings = settings
        self._journal = journal
        self._last_heartbeat_ms: dict[int, int] = {}
        """When this controller last received a heartbeat from each broker in its current term."""
        self._unconfirmed: set[int] = set()
        """Brokers that have sent no heartbeat to this controller and have a session only because it is new."""
        self._disconnected: set[int] = set()
        """Brokers whose liveness connection closed after their last heartbeat."""
        self._active_since_ms: dict[int, int] = {}
        self._lifelines = lifelines(self._on_broken, self._on_refused)
        self._sliced_jobs: set[tuple[str, int]] = set()
        """Jobs in progress that are decided slice by slice."""
        self._is_active = False
        self._timer: Timer | None = None
        self._rebalance_timer: Timer | None = None

    # The controller's term.

    def on_role(self, is_active: bool) -> None:
        """This node became the active controller, or resigned."""
        self.stop()
        if not is_active:
            return
        now_ms = self._clock.monotonic_ms()
        image = self._controller.image
        self._last_heartbeat_ms = {broker.id: now_ms for broker in image.brokers.values() if self._may_fence(broker)}
        self._unconfirmed = set(self._last_heartbeat_ms)
        if self._controller.last_leader_id in self._last_heartbeat_ms:
            # The voters already waited for the previous controller before they elected this one. If it is alive, it
            # sends a heartbeat as soon as it is deposed. Its own lease and the leases it granted may still run, at
            # most as long as a lease granted at the moment of the election.
            silent_ms = self._controller.leader_heard_ago_ms or 0
            grace_ms = lease_ms(self._settings()) // (SILENT_SHARE if silent_ms >= self._session_ms else 1)
            left_ms = max(self._controller.elected_ms + fence_wait_ms(self._settings()) - now_ms, grace_ms, 1)
            self._last_heartbeat_ms[self._controller.last_leader_id] = now_ms - self._session_ms + left_ms
        # The previous controller may have stopped halfway.
        for broker_id in image.brokers:
            self._settle(broker_id)
        self._is_active = True
        self._lifelines.keep(self._last_heartbeat_ms)
        self._watch()
        self._rebalance_later(self._settled_ms // CHECKS_PER_INTERVAL)

    def stop(self) -> None:
        for timer in (self._timer, self._rebalance_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._rebalance_timer = None
        self._is_active = False
        self._lifelines.keep(())
        self._last_heartbeat_ms = {}
        self._unconfirmed = set()
        self._disconnected = set()
        self._active_since_ms = {}
        self._sliced_jobs = set()
        self._controller.note_full(frozenset())

    # Requests from brokers.

    def register(self, registration: Registration) -> Later[Registered]:
        """Register a broker that has started. Refused when this is not the active controller."""
        broker_id = registration.broker_id
        lives = self.is_alive(broker_id) and not self._has_ended(registration)
        heartbeat_ms = self._last_heartbeat_ms.get(broker_id)

        def forget(refused: Refused) -> NoReturn:
            """The registration could not be written: its retry must not count as a second process."""
            if self._is_active:
                if heartbeat_ms is None:
                    self._last_heartbeat_ms.pop(broker_id, None)
                else:
                    self._last_heartbeat_ms[broker_id] = heartbeat_ms
            raise refused

        def decide(image: Image) -> Decision[Registered]:
            decision = decide_register(
                image,
                self._layers(),
                registration,
                self._controller.next_offset,
                lives=lives,
                kraft_version=self._controller.kraft_version,
            )
            if decision.reply.verdict.ok:
                # Do not wait for the commit: a second process with the same id could register meanwhile.
                self._record_heartbeat(broker_id)
            return decision

        def continue_until_done(reply: Registered) -> Later[Registered]:
            if not reply.is_done:
                return self._controller.submit(decide).chain(continue_until_done)
            if reply.verdict.ok:
                self._record_heartbeat(broker_id)
            return done(reply)

        return self._controller.submit(decide).chain(continue_until_done).recover(Refused, forget)

    def heartbeat(self, beat: Heartbeat) -> Later[HeartbeatReply]:
        """Answer a broker's heartbeat. Refused when this is not the active controller.

        The response grants a lease, so it waits until a majority is proven to follow this controller. A successor
        elected after that proof waits for the lease to expire; one elected before it makes the proof fail.
        """
        since_ms = self._controller.lease_clock.now_ms() - proof_age_ms_max(self._settings())
        decided: list[HeartbeatReply] = []

        def decide(image: Image) -> Decision[HeartbeatReply]:
            decision = decide_heartbeat(image, self._layers(), beat)
            decided.append(decision.reply)
            if decision.reply.verdict.ok:
                self._log_state_change(image, beat, decision.reply)
            return decision

        # Confirmed below, with the slack that a lease has.
        response = self._controller.submit(decide, confirms=False)
        if decided and decided[0].verdict.ok:
            # The heartbeat counts as soon as it arrives, whenever the resulting records are committed.
            self._record_heartbeat(beat.broker_id)
            if not decided[0].is_done:
                self._settle(beat.broker_id)
            self._note_full(beat)
        if beat.broker_id == self._controller.node_id:
            # The controller's own node derives its lease from the same proofs.
            return response
        return response.chain(lambda reply: self._controller.confirm_leadership(since_ms).map(lambda _: reply))

    def _note_full(self, beat: Heartbeat) -> None:
        image, broker_id = self._controller.image, beat.broker_id
        if not self._is_active or not (beat.is_full or broker_id in image.full_brokers):
            return
        if not beat.is_full:
            self._controller.note_full(image.full_brokers - {broker_id})
            # Preferred leadership returns only after the disk has had free space for a while.
            self._active_since_ms.pop(broker_id, None)
            self._journal("broker has free disk space again", broker=broker_id)
            return
        if broker_id not in image.full_brokers:
            self._controller.note_full(image.full_brokers | {broker_id})
            self._journal("broker disk full, moving its leaderships", broker=broker_id)
        # Repeat with every heartbeat: an AlterPartition request in flight may have added it to an ISR.
        self._in_slices(("relieve", broker_id), lambda image: _all_or_more(relieve(image, self._layers(), broker_id)))

    def _has_ended(self, registration: Registration) -> bool:
        """Whether the broker's previous incarnation has certainly ended although its session has not expired.

        Two processes cannot share a data folder, but one folder may be a copy of the other. In that case the process
        that sends heartbeats stays, for as long as it may hold a lease. A process that restarts at once accepts the
        liveness connection before anyone notices that its predecessor was killed; `_disconnected` remembers that the
        old connection closed.
        """
        broker = self._controller.image.brokers.get(registration.broker_id)
        is_same_folder = broker is not None and registration.directory_id == broker.directory_id != NO_DIRECTORY
        is_in_doubt = registration.broker_id in self._unconfirmed or registration.broker_id in self._disconnected
        return is_same_folder and is_in_doubt and self._lease_left_ms(registration.broker_id) <= 0

    def is_alive(self, broker_id: int) -> bool:
        """Whether the broker sent a heartbeat within the session timeout."""
        heartbeat_ms = self._last_heartbeat_ms.get(broker_id)
        return heartbeat_ms is not None and self._clock.monotonic_ms() - heartbeat_ms < self._session_ms

    def _record_heartbeat(self, broker_id: int) -> None:
        if self._is_active:
            self._last_heartbeat_ms[broker_id] = self._clock.monotonic_ms()
            self._unconfirmed.discard(broker_id)
            self._disconnected.discard(broker_id)
            self._watch()

    def _log_state_change(self, image: Image, beat: Heartbeat, reply: HeartbeatReply) -> None:
        broker = image.brokers[beat.broker_id]
        if broker.fenced != reply.is_fenced:
            self._journal("broker fenced" if reply.is_fenced else "broker unfenced", broker=beat.broker_id)
        if beat.wants_shutdown and not broker.in_shutdown and not broker.fenced:
            self._journal("broker shutting down, moving its leaderships", broker=beat.broker_id)

    # Session expiry.

    @property
    def _session_ms(self) -> int:
        return self._settings()[BROKER_SESSION_TIMEOUT_MS]

    def _watch(self) -> None:
        """Start checking sessions; a node that is alone has none to check."""
        if self._timer is None and self._last_heartbeat_ms.keys() - {self._controller.node_id}:
            self._schedule_check()

    def _schedule_check(self) -> None:
        now_ms, session_ms = self._clock.monotonic_ms(), self._session_ms
        expiries_ms = [heartbeat_ms + session_ms - now_ms for heartbeat_ms in self._last_heartbeat_ms.values()]
        # When the next session expires, or earlier: another broker may have registered.
        delay_ms = min([max(session_ms // CHECKS_PER_SESSION, 1), *(each for each in expiries_ms if each > 0)])
        self._timer = self._clock.call_later(delay_ms, partial(self._check_sessions, now_ms + delay_ms))

    def _check_sessions(self, due_ms: int) -> None:
        late_ms = self._clock.monotonic_ms() - due_ms
        if late_ms > LATE_MS:
            self._last_heartbeat_ms = {each: at_ms + late_ms for each, at_ms in self._last_heartbeat_ms.items()}
        others = [broker for broker in self._controller.image.brokers.values() if self._may_fence(broker)]
        self._schedule_check()
        for broker in others:
            if not self.is_alive(broker.id):
                self._fence(broker.id, broker.epoch, f"no heartbeat for {self._session_ms} ms")
        self._lifelines.keep(broker.id for broker in others if self.is_alive(broker.id))

    def _may_fence(self, broker: Broker) -> bool:
        return not broker.fenced and broker.id != self._controller.node_id

    def _on_broken(self, broker_id: int) -> None:
        if broker_id in self._last_heartbeat_ms:
            self._disconnected.add(broker_id)

    def _on_refused(self, broker_id: int) -> None:
        """Fence a broker that refuses connections, unless it sends another heartbeat: it may just be overloaded."""
        heartbeat_ms = self._last_heartbeat_ms.get(broker_id)
        broker = self._controller.image.brokers.get(broker_id)
        if heartbeat_ms is None or broker is None or not self._may_fence(broker):
            return
        left_ms = self._lease_left_ms(broker_id)
        if left_ms > 0:
            self._clock.call_later(left_ms, partial(self._end_session, broker_id, heartbeat_ms))
        else:
            self._end_session(broker_id, heartbeat_ms)

    def _lease_left_ms(self, broker_id: int) -> int:
        """How long the broker may still hold a lease.

        A broker that has sent this controller no heartbeat may hold a lease granted by the previous controller, at
        the latest at the moment of the election.
        """
        is_unconfirmed = broker_id in self._unconfirmed
        since_ms = self._controller.elected_ms if is_unconfirmed else self._last_heartbeat_ms[broker_id]
        return since_ms + fence_wait_ms(self._settings()) - self._clock.monotonic_ms()

    def _end_session(self, broker_id: int, heartbeat_ms: int) -> None:
        broker = self._controller.image.brokers.get(broker_id)
        if self._last_heartbeat_ms.get(broker_id) == heartbeat_ms and broker is not None and self._may_fence(broker):
            # Forget the session at once, so that a new incarnation of the broker need not wait for it to expire.
            del self._last_heartbeat_ms[broker_id]
            self._disconnected.discard(broker_id)
            self._fence(broker_id, broker.epoch, "connections refused")

    def _fence(self, broker_id: int, broker_epoch: int, why: str) -> None:
        def decide(image: Image) -> Decision[bool]:
            decision = decide_fence(image, self._layers(), broker_id, broker_epoch)
            if decision.records:
                self._active_since_ms.pop(broker_id, None)
                self._journal("broker fenced", broker=broker_id, reason=why)
            return decision

        fenced = self._controller.submit(decide, confirms=False)
        fenced.then(lambda is_done: None if is_done else self._settle(broker_id), _unless_deposed)

    # Committed records.

    def on_records(self, records: Sequence[Record]) -> Later[None]:
        """React to committed metadata records, whichever controller wrote them."""
        if self._is_active:
            unclean = [each for each in records if _is_unclean(each)]
            if unclean:
                self._journal(
                    "unclean leader election, records may be lost",
                    partitions=len(unclean),
                    first=self._name_of(unclean[0]),
                )
            if any(isinstance(each, ConfigRecord) and each.name in ELECTION_SETTINGS for each in records):
                # The new value may allow an election in partitions without a leader.
                for broker_id in self._controller.image.brokers:
                    self._settle(broker_id)
        return done(None)

    def _name_of(self, record: Record) -> str:
        assert isinstance(record, PartitionChangeRecord)
        topic = self._controller.image.topics_by_id.get(record.topic_id)
        return f"{topic.name if topic else record.topic_id}-{record.partition_id}"

    # Jobs decided slice by slice.

    def _settle(self, broker_id: int) -> None:
        """Update all partitions that the broker's new state concerns."""
        self._in_slices(("settle", broker_id), lambda image: decide_settle(image, self._layers(), broker_id))

    def _in_slices(self, name: tuple[str, int], decide_slice: Callable[[Image], Decision[bool]]) -> None:
        """Submit slices until the reply of one says that it was the last."""
        if name in self._sliced_jobs:
            return
        self._sliced_jobs.add(name)
        jobs_of_term = self._sliced_jobs

        def step() -> None:
            # A job of an earlier term ends here.
            if jobs_of_term is not self._sliced_jobs:
                return
            slices: list[Decision[bool]] = []
            refusals: list[Exception] = []

            def decide(image: Image) -> Decision[bool]:
                slices.append(decide_slice(image))
                return slices[0]

            def refuse(failure: Exception) -> None:
                _unless_deposed(failure)
                refusals.append(failure)

            self._controller.submit(decide, confirms=False).then(lambda _: None, refuse)
            if slices and refusals:
                # The disk has no space for it. Nobody else would ask for this slice again.
                self._clock.call_later(WRITE_AGAIN_MS, step)
            elif slices and not slices[0].reply:
                # Yield to the loop between two slices, without waiting for the first to be committed.
                self._clock.call_soon(step)
            else:
                jobs_of_term.discard(name)

        step()

    # Preferred leaders.

    @property
    def _settled_ms(self) -> int:
        """How long a broker must have been active before its preferred leaderships return to it."""
        return 1000 * self._settings()[LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS]

    def _rebalance_later(self, delay_ms: int) -> None:
        self._rebalance_timer = self._clock.call_later(delay_ms, self._rebalance)

    def _rebalance(self) -> None:
        """Elect preferred leaders, one slice per broker at a time, because producers have to find each new leader."""
        image, now_ms = self._controller.image, self._clock.monotonic_ms()
        active = [broker_id for broker_id in image.brokers if image.is_active(broker_id)]
        self._active_since_ms = {each: self._active_since_ms.get(each, now_ms) for each in active}
        is_over = True
        if self._settings()[AUTO_LEADER_REBALANCE_ENABLE]:
            for broker_id in active:
                # A decision that cannot be written ends this controller's term and clears `_active_since_ms`.
                if self._is_active and now_ms - self._active_since_ms[broker_id] >= self._settled_ms:
                    is_over = self._lead_first(broker_id) and is_over
        if self._is_active:
            self._rebalance_later(self._settled_ms // CHECKS_PER_INTERVAL if is_over else NEXT_SLICE_MS)

    def _lead_first(self, broker_id: int) -> bool:
        """Elect one slice of preferred leaders; return whether it was the last."""
        slices: list[Slice] = []

        def decide(image: Image) -> Decision[None]:
            if not image.is_active(broker_id):
                return Decision((), None)
            slices.append(lead_first(image, self._layers(), broker_id))
            if slices[0].records:
                self._journal("preferred leader elected", broker=broker_id, partitions=len(slices[0].records))
            return Decision(tuple(slices[0].records), None)

        self._controller.submit(decide, confirms=False).then(lambda _: None, _unless_deposed)
        return not slices or slices[0].is_last


def _all_or_more(step: Slice) -> Decision[bool]:
    return Decision(tuple(step.records), step.is_last)


def _is_unclean(record: Record) -> bool:
    return isinstance(record, PartitionChangeRecord) and record.leader_recovery_state == RECOVERING


def _unless_deposed(failure: Exception) -> None:
    """Ignore a refusal because this controller was deposed or its disk failed, which is reported elsewhere."""
    if not isinstance(failure, Refused):
        raise failure
    assert failure.code in (ErrorCode.NOT_CONTROLLER, ErrorCode.KAFKA_STORAGE_ERROR), failure
