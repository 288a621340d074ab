"""Who lives, as the active controller sees it: brokers say so again and again, and one that falls silent is fenced.

Only an active controller judges. One that has just become it gives everybody a new session, and one whose own loop
stood still gives everybody the time that it slept. It never fences its own node: it lives, or nobody would judge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

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

LOOKS_PER_SESSION: Final = 10
"""How often in the time of one session it is looked for brokers that are silent."""

ELECTION_SETTINGS: Final = frozenset({UNCLEAN_LEADER_ELECTION_ENABLE.name, UNCLEAN_LEADER_ELECTION_ENABLE.inherits})
SILENT_SHARE: Final = 4
"""A deposed controller that was silent for a session gets this share of a lease to say that it lives."""

LOOKS_PER_INTERVAL: Final = 3
NEXT_SLICE_MS: Final = 1_000
"""How soon the next leaderships go back to a broker that has many of them to come."""

LATE_MS: Final = 50
"""Who looks this much too late stood still, and may not have heard what was said meanwhile."""


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
        self._heard_ms: dict[int, int] = {}
        """When each broker was last heard, by this controller in this term."""
        self._unheard: set[int] = set()
        """Those who have a session only because this controller is new."""
        self._broken: set[int] = set()
        """Those whose lifeline has ended since they were last heard."""
        self._active_since_ms: dict[int, int] = {}
        self._lifelines = lifelines(self._on_broken, self._on_refused)
        self._settling: set[tuple[str, int]] = set()
        """What is being done slice by slice."""
        self._is_active = False
        self._timer: Timer | None = None
        self._rebalance_timer: Timer | None = None

    # The term of a controller.

    def on_role(self, is_active: bool) -> None:
        """This node has become the active controller, or is it no more."""
        self.stop()
        if not is_active:
            return
        now_ms = self._clock.monotonic_ms()
        image = self._controller.image
        self._heard_ms = {broker.id: now_ms for broker in image.brokers.values() if self._may_fence(broker)}
        self._unheard = set(self._heard_ms)
        if self._controller.last_leader_id in self._heard_ms:
            # The others have waited for it already, else there would be no new controller. If it lives it is heard at
            # once: whoever is deposed says so. But its lease, and those that it gave, last on from the election.
            silent_ms = self._controller.leader_heard_ago_ms or 0
            patience_ms = lease_ms(self._settings()) // (SILENT_SHARE if silent_ms >= self._session_ms else 1)
            left_ms = max(self._controller.elected_ms + fence_wait_ms(self._settings()) - now_ms, patience_ms, 1)
            self._heard_ms[self._controller.last_leader_id] = now_ms - self._session_ms + left_ms
        # The one before may have stopped in the middle of it.
        for broker_id in image.brokers:
            self._settle(broker_id)
        self._is_active = True
        self._lifelines.keep(self._heard_ms)
        self._watch()
        self._rebalance_later(self._settled_ms // LOOKS_PER_INTERVAL)

    def stop(self) -> None:
        for timer in (self._timer, self._rebalance_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._rebalance_timer = None
        self._is_active = False
        self._lifelines.keep(())
        self._heard_ms = {}
        self._unheard = set()
        self._broken = set()
        self._active_since_ms = {}
        self._settling = set()
        self._controller.note_full(frozenset())

    # What brokers say.

    def register(self, wanted: Registration) -> Later[Registered]:
        """A broker has started. Refused when this is not the active controller."""
        lives = self.lives(wanted.broker_id) and not self._has_ended(wanted)

        def decide(image: Image) -> Decision[Registered]:
            decision = decide_register(
                image,
                self._layers(),
                wanted,
                self._controller.next_offset,
                lives=lives,
                kraft_version=self._controller.kraft_version,
            )
            if decision.reply.verdict.ok:
                # Not only once it is committed: another process that comes meanwhile would be let in as the same.
                self._hear(wanted.broker_id)
            return decision

        def go_on(reply: Registered) -> Later[Registered]:
            if not reply.is_done:
                return self._controller.submit(decide).chain(go_on)
            if reply.verdict.ok:
                self._hear(wanted.broker_id)
            return done(reply)

        return self._controller.submit(decide).chain(go_on)

    def heartbeat(self, beat: Heartbeat) -> Later[HeartbeatReply]:
        """A broker lives. Refused when this is not the active controller.

        The answer is a lease, so it waits until a majority is known to follow this controller: a successor that was
        elected later waits for the lease to end, one that was elected before has given it away already.
        """
        since_ms = self._controller.lease_clock.now_ms() - proof_age_ms_max(self._settings())
        decided: list[HeartbeatReply] = []

        def decide(image: Image) -> Decision[HeartbeatReply]:
            decision = decide_heartbeat(image, self._layers(), beat)
            decided.append(decision.reply)
            if decision.reply.verdict.ok:
                self._tell(image, beat, decision.reply)
            return decision

        answered = self._controller.submit(decide)
        if decided and decided[0].verdict.ok:
            # Heard is heard, whenever what follows from it is committed.
            self._hear(beat.broker_id)
            if not decided[0].is_done:
                self._settle(beat.broker_id)
            self._note_full(beat)
        if beat.broker_id == self._controller.node_id:
            # It has its own lease by the same proofs.
            return answered
        return answered.chain(lambda reply: self._controller.confirm_leadership(since_ms).map(lambda _: reply))

    def _note_full(self, beat: Heartbeat) -> None:
        image, broker_id = self._controller.image, beat.broker_id
        if not self._is_active or not (beat.is_full or broker_id in image.full_brokers):
            return
        if not beat.is_full:
            self._controller.note_full(image.full_brokers - {broker_id})
            # It leads again what it is the first replica of once it has kept its room for a while.
            self._active_since_ms.pop(broker_id, None)
            self._journal("broker has room on its disk again", broker=broker_id)
            return
        if broker_id not in image.full_brokers:
            self._controller.note_full(image.full_brokers | {broker_id})
            self._journal("disk of a broker is full, others lead in its place", broker=broker_id)
        # With every heartbeat: it may have come to be in sync by a request that was under way.
        self._in_slices(("relieve", broker_id), lambda image: _all_or_more(relieve(image, self._layers(), broker_id)))

    def _has_ended(self, wanted: Registration) -> bool:
        """Whether the broker's last life is over for certain, although its session is not.

        Two processes cannot have one folder. But it may be a copy; then whoever has been heard is the one that stays,
        as long as it may hold its lease. A process that is started at once takes the lifeline of the one that was
        killed before anybody has found that nobody takes it: that the line broke is told by `_broken`.
        """
        known = self._controller.image.brokers.get(wanted.broker_id)
        is_same_folder = known is not None and wanted.directory_id == known.directory_id != NO_DIRECTORY
        is_doubted = wanted.broker_id in self._unheard or wanted.broker_id in self._broken
        return is_same_folder and is_doubted and self._lease_left_ms(wanted.broker_id) <= 0

    def lives(self, broker_id: int) -> bool:
        """Whether it was heard within the time of a session."""
        heard_ms = self._heard_ms.get(broker_id)
        return heard_ms is not None and self._clock.monotonic_ms() - heard_ms < self._session_ms

    def _hear(self, broker_id: int) -> None:
        if self._is_active:
            self._heard_ms[broker_id] = self._clock.monotonic_ms()
            self._unheard.discard(broker_id)
            self._broken.discard(broker_id)
            self._watch()

    def _tell(self, image: Image, beat: Heartbeat, reply: HeartbeatReply) -> None:
        broker = image.brokers[beat.broker_id]
        if broker.fenced != reply.is_fenced:
            self._journal("broker is fenced" if reply.is_fenced else "broker is unfenced", broker=beat.broker_id)
        if beat.wants_shutdown and not broker.in_shutdown and not broker.fenced:
            self._journal("broker hands over and leaves", broker=beat.broker_id)

    # Silence.

    @property
    def _session_ms(self) -> int:
        return self._settings()[BROKER_SESSION_TIMEOUT_MS]

    def _watch(self) -> None:
        """A node that is alone has nobody to look for."""
        if self._timer is None and self._heard_ms.keys() - {self._controller.node_id}:
            self._look_later()

    def _look_later(self) -> None:
        now_ms, session_ms = self._clock.monotonic_ms(), self._session_ms
        ends_ms = [heard_ms + session_ms - now_ms for heard_ms in self._heard_ms.values()]
        # When the next session ends, and now and then at least: somebody may have come.
        delay_ms = min([max(session_ms // LOOKS_PER_SESSION, 1), *(each for each in ends_ms if each > 0)])
        self._timer = self._clock.call_later(delay_ms, partial(self._look, now_ms + delay_ms))

    def _look(self, due_ms: int) -> None:
        now_ms = self._clock.monotonic_ms()
        late_ms = now_ms - due_ms
        if late_ms > LATE_MS:
            self._heard_ms = {broker_id: heard_ms + late_ms for broker_id, heard_ms in self._heard_ms.items()}
        others = [broker for broker in self._controller.image.brokers.values() if self._may_fence(broker)]
        self._look_later()
        for broker in others:
            if not self.lives(broker.id):
                self._fence(broker.id, broker.epoch, f"not heard for {self._session_ms} ms")
        self._lifelines.keep(broker.id for broker in others if self.lives(broker.id))

    def _may_fence(self, broker: Broker) -> bool:
        return not broker.fenced and broker.id != self._controller.node_id

    def _on_broken(self, broker_id: int) -> None:
        if broker_id in self._heard_ms:
            self._broken.add(broker_id)

    def _on_refused(self, broker_id: int) -> None:
        """Its process has ended, unless it is heard once more: one that has too many connections refuses, too."""
        heard_ms = self._heard_ms.get(broker_id)
        broker = self._controller.image.brokers.get(broker_id)
        if heard_ms is None or broker is None or not self._may_fence(broker):
            return
        left_ms = self._lease_left_ms(broker_id)
        if left_ms > 0:
            self._clock.call_later(left_ms, partial(self._lose, broker_id, heard_ms))
        else:
            self._lose(broker_id, heard_ms)

    def _lease_left_ms(self, broker_id: int) -> int:
        """How long a broker may still count on leading what it leads, if it is there.

        One that this controller has not heard may have a lease from the one before, given until the election.
        """
        is_unheard = broker_id in self._unheard
        since_ms = self._controller.elected_ms if is_unheard else self._heard_ms[broker_id]
        return since_ms + fence_wait_ms(self._settings()) - self._clock.monotonic_ms()

    def _lose(self, broker_id: int, heard_ms: int) -> None:
        broker = self._controller.image.brokers.get(broker_id)
        if self._heard_ms.get(broker_id) == heard_ms and broker is not None and self._may_fence(broker):
            # Nobody need wait for the end of its session: it may be back already, under another name.
            del self._heard_ms[broker_id]
            self._broken.discard(broker_id)
            self._fence(broker_id, broker.epoch, "its connections broke, and it takes no new ones")

    def _fence(self, broker_id: int, broker_epoch: int, why: str) -> None:
        def decide(image: Image) -> Decision[bool]:
            decision = decide_fence(image, self._layers(), broker_id, broker_epoch)
            if decision.records:
                self._active_since_ms.pop(broker_id, None)
                self._journal("broker is fenced", broker=broker_id, reason=why)
            return decision

        fenced = self._controller.submit(decide)
        fenced.then(lambda is_done: None if is_done else self._settle(broker_id), _unless_deposed)

    # What was decided.

    def on_records(self, records: Sequence[Record]) -> Later[None]:
        """These are committed, whoever decided them."""
        if self._is_active:
            unclean = [each for each in records if _is_unclean(each)]
            if unclean:
                self._journal(
                    "leaders were elected that may lack records",
                    partitions=len(unclean),
                    first=self._name_of(unclean[0]),
                )
            if any(isinstance(each, ConfigRecord) and each.name in ELECTION_SETTINGS for each in records):
                # Partitions without a leader may have one by the new value.
                for broker_id in self._controller.image.brokers:
                    self._settle(broker_id)
        return done(None)

    def _name_of(self, record: Record) -> str:
        assert isinstance(record, PartitionChangeRecord)
        topic = self._controller.image.topics_by_id.get(record.topic_id)
        return f"{topic.name if topic else record.topic_id}-{record.partition_id}"

    # What has many parts.

    def _settle(self, broker_id: int) -> None:
        """Slice by slice, until all partitions know what has become of the broker."""
        self._in_slices(("settle", broker_id), lambda image: decide_settle(image, self._layers(), broker_id))

    def _in_slices(self, name: tuple[str, int], decide_slice: Callable[[Image], Decision[bool]]) -> None:
        """Decide again and again until the reply says that this was all."""
        if name in self._settling:
            return
        self._settling.add(name)
        settling = self._settling

        def step() -> None:
            # One of an earlier term has been forgotten.
            if settling is not self._settling:
                return
            slices: list[Decision[bool]] = []

            def decide(image: Image) -> Decision[bool]:
                slices.append(decide_slice(image))
                return slices[0]

            self._controller.submit(decide).then(lambda _: None, _unless_deposed)
            if slices and not slices[0].reply:
                # The loop has others to serve between two slices; the commit of the first is not waited for.
                self._clock.call_soon(step)
            else:
                settling.discard(name)

        step()

    # Preferred leaders.

    @property
    def _settled_ms(self) -> int:
        """How long a broker must have been there before it leads again what it is the first replica of."""
        return 1000 * self._settings()[LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS]

    def _rebalance_later(self, delay_ms: int) -> None:
        self._rebalance_timer = self._clock.call_later(delay_ms, self._rebalance)

    def _rebalance(self) -> None:
        """A slice for each broker, and the rest a moment later: whoever writes there has to find the new leader."""
        image, now_ms = self._controller.image, self._clock.monotonic_ms()
        active = [broker_id for broker_id in image.brokers if image.is_active(broker_id)]
        self._active_since_ms = {each: self._active_since_ms.get(each, now_ms) for each in active}
        is_over = True
        if self._settings()[AUTO_LEADER_REBALANCE_ENABLE]:
            for broker_id in active:
                # A decision that cannot be written ends the term of this controller, and forgets who is active.
                if self._is_active and now_ms - self._active_since_ms[broker_id] >= self._settled_ms:
                    is_over = self._lead_first(broker_id) and is_over
        if self._is_active:
            self._rebalance_later(self._settled_ms // LOOKS_PER_INTERVAL if is_over else NEXT_SLICE_MS)

    def _lead_first(self, broker_id: int) -> bool:
        """Whether that was all."""
        slices: list[Slice] = []

        def decide(image: Image) -> Decision[None]:
            if not image.is_active(broker_id):
                return Decision((), None)
            slices.append(lead_first(image, self._layers(), broker_id))
            if slices[0].records:
                self._journal("broker leads again", broker=broker_id, partitions=len(slices[0].records))
            return Decision(tuple(slices[0].records), None)

        self._controller.submit(decide).then(lambda _: None, _unless_deposed)
        return not slices or slices[0].is_last


def _all_or_more(step: Slice) -> Decision[bool]:
    return Decision(tuple(step.records), step.is_last)


def _is_unclean(record: Record) -> bool:
    return isinstance(record, PartitionChangeRecord) and record.leader_recovery_state == RECOVERING


def _unless_deposed(failure: Exception) -> None:
    """Another controller goes on, or the disk of this one has failed, which it tells by itself."""
    if not isinstance(failure, Refused):
        raise failure
    assert failure.code in (ErrorCode.NOT_CONTROLLER, ErrorCode.KAFKA_STORAGE_ERROR), failure
