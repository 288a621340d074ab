"""This node as one of a cluster: it registers with the controller, says again and again that it lives, and leaves.

A node that is alone has registered itself before this begins; it sends no heartbeats and may leave at once. What
`incarnation` keeps is written before the step that depends on it: the incarnation id before the controller hears it,
the broker epoch before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later
from millpond.base.values import dataclass
from millpond.broker.data_folder.identity import CannotJoin
from millpond.broker.data_folder.incarnation import (
    LOST,
    LastIncarnation,
    read_last_incarnation,
    write_last_incarnation,
)
from millpond.broker.quorum.lease import lease_ms
from millpond.config.node import (
    BROKER_HEARTBEAT_INTERVAL_MS,
    BROKER_RACK,
    BROKER_SESSION_TIMEOUT_MS,
    CONTROLLED_SHUTDOWN_MS,
    DATA_FOLDER,
)
from millpond.log.room import DiskRoom
from millpond.metadata.features import features_to_record, unsupported
from millpond.metadata.records import BrokerEndpoint
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.base.ports import Timer, World
    from millpond.base.settings import Settings
    from millpond.broker.controller.controller import Controller
    from millpond.broker.loop.journal import Journal
    from millpond.broker.peers.controller_channel import ControllerChannel

REGISTRATION_VERSION: Final = 4
HEARTBEAT_VERSION: Final = 1

REGISTER_AGAIN_MS: Final = 100
NAME_AGAIN_MS: Final = 20
"""How often one that does not know its cluster's name looks whether the metadata have come."""

FENCED_HEARTBEAT_MS: Final = 50
"""How often one that waits to be let in, to be heard or to be let go, asks."""

DUPLICATE_MS_MAX: Final = 15_000
"""How long another process may be heard under this node's id before this one gives up."""

SILENT_MS_MAX: Final = 2_000
"""How long one that leaves waits for a controller that does not answer."""

WRITE_AGAIN_MS: Final = 500

LOOK_AROUND_MS: Final = 100
"""How often one that is not heard looks for how long that has been so."""

LATE_MS: Final = 50
"""Who looks this much too late stood still: what was said to it meanwhile is read first."""

STRANGER: Final = (
    "the data folder of this node belongs to another cluster than the nodes that it was told of: name the nodes of "
    "its own cluster, or give it an empty data folder"
)

OUTLIVED: Final = (
    "the cluster was rescued without this node, and what its data folder has is of the time before. Keep the folder "
    "while its records may be wanted, and start the node with an empty one (docs/operations.md, Loss of a majority)"
)

MISLED: Final = (
    "the other nodes were told of other nodes than this one: cluster.nodes (nodes.toml) must name the same numbers "
    "on every node"
)


OUTDATED: Final = (
    "this program does not support what the cluster has agreed on{}. Start the version that the other nodes run "
    "(millpond cluster features shows what each supports)"
)


@dataclass(frozen=True, slots=True)
class Appearance:
    """What a broker tells of itself when it registers."""

    end_points: tuple[BrokerEndpoint, ...]
    directory_id: UUID


class Lifecycle:
    def __init__(
        self,
        world: World,
        settings: Settings,
        journal: Journal,
        controller: Controller,
        controller_channel: ControllerChannel,
        forget_loss: Callable[[], None],
        room: DiskRoom | None = None,
    ) -> None:
        """`forget_loss`: what the store has noted of lost records is in `incarnation` now. Called on a worker."""
        self.broker_epoch = -1
        self.is_fenced = True
        self.ready: Later[None] = Later()
        """Ends once this node has been let in."""
        self.is_noted = False
        """Whether it is written down what this life has found of the one before: then its end can be a clean one."""
        self.shut_out: Later[CannotJoin] = Later()
        """Ends if the others do not let this node in and never will, also after it had been one of them."""
        self._world = world
        self._clock = world.clock
        self._lease_clock = controller.lease_clock
        self._settings = settings
        self._journal = journal
        self._controller = controller
        self._to_controller = controller_channel
        self._forget_loss = forget_loss
        self._room = room or DiskRoom()
        self._said_full = False
        """Whether the last heartbeat said that the disk is full. Its response is no lease."""
        self._folder = settings[DATA_FOLDER]
        self._features = features_to_record(controller.supported)
        self._told_epoch = -1
        """The epoch of the last controller that this life has told what it supports."""
        self._incarnation_id = UUID(int=0)
        self._last = LastIncarnation(-1, world.boot_id)
        self._appearance: Appearance | None = None
        self._timer: Timer | None = None
        self._refused_since_ms: int | None = None
        self._nameless_since_ms: int | None = None
        self._heard_ms = 0
        self._asked_ms = 0
        self._lease_ms = 0
        """Until when, at the least, nobody else is made leader in this node's place, by the lease clock."""
        self._lease_since_ms = 0
        """Since when it has been so without a gap. Of what was decided in the gap the image may not tell yet."""
        self.sessions_missed = 0
        """For the time of how many sessions this node has not been heard: others may lead in its place by now."""
        self._on_cut_off: Callable[[], None] = _nobody_cares
        self._certain_ms = 0
        """When this node was heard for certain, by its own clock: the moment of asking, not that of the answer."""
        self._silence_timer: Timer | None = None
        self._has_lost = False
        self._left: Callable[[], None] | None = None
        self._leaves_at_ms = 0
        self._is_over = False

    # Facts.

    @property
    def knows_itself(self) -> bool:
        """Whether the image of this node has come to its own registration.

        What is older was said to an earlier life: it must not lead or follow by that.
        """
        broker = self._controller.image.brokers.get(self._controller.node_id)
        return broker is not None and broker.incarnation_id == self._incarnation_id

    @property
    def wants_to_be_fenced(self) -> bool:
        """Whether this node is about to leave, or has lost records and says so."""
        return self._left is not None or self._has_lost

    def has_lease(self) -> bool:
        """Whether this node has been heard so lately that nobody else can lead what it leads, but by its own will.

        Shorter than a controller waits, because clocks differ (`lease.py`).
        """
        if self._appearance is None:
            return True
        if self._room.is_short:
            # The controller gives what it leads to others without waiting for the lease to end.
            return False
        if self._controller.is_active:
            # It hears itself, even when it is cut off from everybody: only those who follow it are a proof.
            led_ago_ms = self._controller.led_ago_ms
            return led_ago_ms is not None and led_ago_ms < lease_ms(self._settings)
        return self._lease_clock.now_ms() < self._lease_ms and self._controller.knows_since(self._lease_since_ms)

    def on_cut_off(self, observer: Callable[[], None]) -> None:
        """Call `observer` again and again while this node must assume that others may lead in its place."""
        self._on_cut_off = observer

    # Beginning.

    def start_alone(self, broker_epoch: int, incarnation_id: UUID) -> None:
        """The node has registered itself, and there is nobody else."""
        self.broker_epoch = broker_epoch
        self._incarnation_id = incarnation_id
        self.is_fenced = False
        self.is_noted = True
        self.ready.finish(None)

    def go_on_with_others(self, appearance: Appearance) -> None:
        """This node is alone no more: it goes on in the life that it has, and is heard like everybody else."""
        self._appearance = appearance
        self._certain_ms, self._heard_ms = self._lease_clock.now_ms(), self._clock.monotonic_ms()
        self._write(LastIncarnation(self.broker_epoch, self._world.boot_id), self._beat)

    def start(self, appearance: Appearance, *, was_clean: bool, has_lost: bool) -> None:
        """Ask to be let in. Of the store: whether it had been closed in order, and whether records are missing."""
        self._appearance = appearance
        last = read_last_incarnation(self._world.disk, self._folder)
        self._last = last.next(self._world.boot_id, was_clean=was_clean, has_lost=has_lost)
        self._begin_life(self._last.incarnation_id or self._world.entropy.uuid())

    def _begin_life(self, incarnation_id: UUID) -> None:
        self.broker_epoch = -1
        self.is_fenced = True
        self.is_noted = False
        self._incarnation_id = incarnation_id
        self._write(LastIncarnation(self._last.epoch, self._world.boot_id, incarnation_id), self._register)

    def _write(self, life: LastIncarnation, then: Callable[[], None]) -> None:
        def write() -> None:
            write_last_incarnation(self._world.disk, self._folder, life)
            self._forget_loss()

        def written(_: None) -> None:
            self._last = life
            self.is_noted = True
            if not self._is_over:
                then()

        def failed(error: Exception) -> None:
            if not isinstance(error, OSError):
                raise error
            self._journal("this node cannot write down its epoch, and waits", error=error)
            self._later(WRITE_AGAIN_MS, lambda: self._write(life, then))

        self._world.sync_workers.run(write).then(written, failed)

    def _register(self) -> None:
        appearance = self._appearance
        assert appearance is not None
        if self._controller.is_stranger:
            self._give_up(STRANGER)
            return
        if not self._controller.cluster_name:
            self._await_name()
            return
        incarnation_id = self._incarnation_id
        request = m.BrokerRegistrationRequest(
            broker_id=self._controller.node_id,
            cluster_id=self._controller.cluster_name,
            incarnation_id=incarnation_id,
            listeners=[
                m.BrokerRegistrationRequest.Listener(
                    name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol
                )
                for each in appearance.end_points
            ],
            features=[
                m.BrokerRegistrationRequest.Feature(
                    name=each.name,
                    min_supported_version=each.min_supported_version,
                    max_supported_version=each.max_supported_version,
                )
                for each in self._features
            ],
            rack=self._settings[BROKER_RACK] or None,
            log_dirs=[appearance.directory_id],
            previous_broker_epoch=self._last.epoch,
        )
        self._ask(request, REGISTRATION_VERSION, self._on_registered, self._register, REGISTER_AGAIN_MS)

    def _await_name(self) -> None:
        """Whoever joins must name the cluster as its nodes do: the metadata tell it, in a moment."""
        now_ms = self._clock.monotonic_ms()
        if self._nameless_since_ms is None:
            self._nameless_since_ms = now_ms
        if (
            self._controller.is_misled
            and now_ms - self._nameless_since_ms >= self._settings[BROKER_SESSION_TIMEOUT_MS]
        ):
            self._give_up(MISLED)
        else:
            self._later(NAME_AGAIN_MS, self._register)

    def _on_registered(self, response: m.BrokerRegistrationResponse) -> None:
        match response.error_code:
            case ErrorCode.NONE:
                self._refused_since_ms = None
                self._told_epoch = self._controller.leader_epoch
                if self.broker_epoch == response.broker_epoch:
                    # It was told once more what this node supports.
                    self._later(0, self._beat)
                    return
                self.broker_epoch = response.broker_epoch
                self._write(LastIncarnation(self.broker_epoch, self._world.boot_id), self._beat)
            case ErrorCode.INCONSISTENT_CLUSTER_ID:
                self._give_up(STRANGER)
            case ErrorCode.REBOOTSTRAP_REQUIRED:
                self._give_up(OUTLIVED)
            case ErrorCode.UNSUPPORTED_VERSION:
                lacks = unsupported(self._controller.image.features, self._controller.supported)
                self._give_up(OUTDATED.format(f": it is at {lacks}" if lacks else ""))
            case ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                self._on_duplicate()
            case code:
                self._journal("this node is not let in yet", error=ErrorCode(code).name)
                self._later(REGISTER_AGAIN_MS, self._register)

    def _on_duplicate(self) -> None:
        """The last life of this node may still be waited for; who goes on to be heard is somebody else."""
        now_ms = self._clock.monotonic_ms()
        if self._refused_since_ms is None:
            self._refused_since_ms = now_ms
        if now_ms - self._refused_since_ms < DUPLICATE_MS_MAX:
            self._later(FENCED_HEARTBEAT_MS, self._register)
        else:
            self._give_up(
                f"another process runs as node {self._controller.node_id} of this cluster: stop it, or give this one "
                "an id of its own"
            )

    def _give_up(self, why: str) -> None:
        if self._is_over:
            return
        self._journal("this node cannot join the cluster", reason=why)
        self.stop()
        self.shut_out.finish(CannotJoin(why))

    # Living.

    def _beat(self) -> None:
        request = m.BrokerHeartbeatRequest(
            broker_id=self._controller.node_id,
            broker_epoch=self.broker_epoch,
            # On the wire it is the last offset that is known, not the first that is not.
            current_metadata_offset=self._controller.applied_offset - 1,
            want_fence=self._has_lost,
            want_shut_down=self._left is not None,
            # A full disk can be read, and takes no records: see `Heartbeat.is_full`.
            offline_log_dirs=self._full_directories(),
        )
        self._asked_ms = self._lease_clock.now_ms()
        self._said_full = self._room.is_short
        if self._said_full:
            self._lease_ms = 0
        # One that no controller has answered for a session is waited for by the next one, and not for long.
        again_ms = min(FENCED_HEARTBEAT_MS, self._interval_ms)
        self._ask(request, HEARTBEAT_VERSION, self._on_beat, self._beat, again_ms)

    def _full_directories(self) -> list[UUID]:
        assert self._appearance is not None
        return [self._appearance.directory_id] if self._room.is_short else []

    @property
    def _interval_ms(self) -> int:
        interval_ms = self._settings[BROKER_HEARTBEAT_INTERVAL_MS]
        is_urgent = self.is_fenced or self.sessions_missed or self._left is not None
        return min(FENCED_HEARTBEAT_MS, interval_ms) if is_urgent else interval_ms

    def _on_beat(self, response: m.BrokerHeartbeatResponse) -> None:
        match response.error_code:
            case ErrorCode.NONE:
                self._heard_ms = self._clock.monotonic_ms()
                if not (self._controller.is_active or self._said_full):
                    if self._asked_ms > self._lease_ms:
                        self._lease_since_ms = self._asked_ms
                    self._lease_ms = self._asked_ms + lease_ms(self._settings)
                self._on_heard()
                self._note_full(frozenset(response.full_brokers))
                self._on_state(response)
            case ErrorCode.STALE_BROKER_EPOCH | ErrorCode.BROKER_ID_NOT_REGISTERED:
                self._journal("this node is not known any more, and registers again")
                self._begin_life(self._world.entropy.uuid())
            case code:
                self._journal("this node was not heard", error=ErrorCode(code).name)
                self._later(self._interval_ms, self._beat)

    def _note_full(self, broker_ids: frozenset[int]) -> None:
        """The active controller knows it already, and may have heard more since it answered."""
        if not self._controller.is_active and broker_ids != self._controller.image.full_brokers:
            self._controller.note_full(broker_ids)

    def _on_state(self, response: m.BrokerHeartbeatResponse) -> None:
        if self._left is not None and response.should_shut_down:
            self._end_leaving()
            return
        if response.is_fenced != self.is_fenced:
            self.is_fenced = response.is_fenced
            self._journal("this node is fenced" if self.is_fenced else "this node is let in")
        if not self.is_fenced:
            self.ready.finish(None)
        elif self._has_lost:
            self._has_lost = False
            self._last = LastIncarnation(LOST, self._world.boot_id)
            self._begin_life(self._world.entropy.uuid())
            return
        self._later(self._until_next_ms(), self._register if self._is_taken_for_older() else self._beat)

    def _until_next_ms(self) -> int:
        """From asking to asking, as a lease counts: an answer that took long has used up part of it."""
        waited_ms = self._lease_clock.now_ms() - self._asked_ms
        return max(self._interval_ms - waited_ms, self._interval_ms // 4)

    def _is_taken_for_older(self) -> bool:
        """Whether a controller registered it that took no note of what it supports, being older: tell the next."""
        broker = self._controller.image.brokers.get(self._controller.node_id)
        return (
            broker is not None
            and broker.epoch == self.broker_epoch
            and broker.features != self._features
            and self._told_epoch != self._controller.leader_epoch
        )

    # Silence.

    def _on_heard(self) -> None:
        if not self._controller.is_active:
            self._certain_ms = self._asked_ms
        self._look_at_silence()

    def _look_at_silence(self) -> None:
        """Whoever is not heard for a session is fenced: it must not promise what only a leader can."""
        if self._silence_timer is not None:
            self._silence_timer.cancel()
            self._silence_timer = None
        if self._is_over:
            return
        now_ms = self._lease_clock.now_ms()
        # The active controller hears itself: only those who follow it are a proof.
        led_ago_ms = self._controller.led_ago_ms
        if led_ago_ms is not None:
            self._certain_ms = now_ms - led_ago_ms
        session_ms = self._settings[BROKER_SESSION_TIMEOUT_MS]
        missed, was_cut_off = (now_ms - self._certain_ms) // session_ms, self.sessions_missed > 0
        # Others that refuse connections may have ended, or be behind a firewall that rejects: that is no proof.
        self.sessions_missed = missed
        if (self.sessions_missed > 0) != was_cut_off:
            self._journal("this node is heard again" if was_cut_off else "this node is not heard by a controller")
        wait_ms = LOOK_AROUND_MS if missed else self._certain_ms + session_ms - now_ms
        self._silence_timer = self._clock.call_later(wait_ms, partial(self._on_silence, now_ms + wait_ms))
        if self.sessions_missed:
            self._on_cut_off()

    def _on_silence(self, due_ms: int) -> None:
        if self._lease_clock.now_ms() - due_ms > LATE_MS:
            self._silence_timer = self._clock.call_later(1, self._look_at_silence)
        else:
            self._look_at_silence()

    @property
    def is_let_in(self) -> bool:
        """Whether others may count on this node."""
        return self._appearance is not None and self.broker_epoch >= 0 and not self.is_fenced

    def outlive(self) -> None:
        """The cluster has gone on without this node, for good."""
        self._give_up(OUTLIVED)

    def report_lost_records(self) -> None:
        """Records of this life are lost: come back as one that nobody counts on before it has caught up."""
        if not self._has_lost:
            self._has_lost = True
            # The next heartbeat says it.
            self._journal("this node has lost records, and comes back as one that has to catch up")

    def on_role(self, is_active: bool) -> None:
        """This node has become the active controller, or is it no more: the next one does not wait for long."""
        if not is_active and self._timer is not None and self.broker_epoch >= 0:
            # Else something is under way already.
            self._later(0, self._beat)

    # Asking.

    def _ask(
        self,
        request: m.Message,
        version: int,
        use: Callable[[m.BrokerRegistrationResponse], None] | Callable[[m.BrokerHeartbeatResponse], None],
        again: Callable[[], None],
        again_ms: int,
    ) -> None:
        """One request at a time; whatever it is answered with, `use` or `again` goes on."""
        incarnation_id = self._incarnation_id

        def answered(response: object) -> None:
            if not self._is_over and incarnation_id == self._incarnation_id:
                use(response)  # type: ignore[arg-type]

        def lost(failure: Exception) -> None:
            if not isinstance(failure, Refused):
                raise failure
            if not self._is_over and incarnation_id == self._incarnation_id:
                if self._controller.is_stranger:
                    self._give_up(STRANGER)
                elif self._controller.is_misled:
                    self._give_up(MISLED)
                else:
                    self._later(again_ms, again)

        self._to_controller.ask(request, version, self._settings[BROKER_SESSION_TIMEOUT_MS]).then(answered, lost)

    def _later(self, delay_ms: int, step: Callable[[], None]) -> None:
        def fire() -> None:
            self._timer = None
            step()

        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if self._is_over else self._clock.call_later(delay_ms, fire)

    # Ending.

    def leave(self, left: Callable[[], None]) -> None:
        """Hand over what this node leads; then `left`, at the latest when the time for it is over."""
        if self._left is not None:
            return
        self._left = left
        now_ms = self._heard_ms = self._clock.monotonic_ms()
        self._leaves_at_ms = now_ms + self._settings[CONTROLLED_SHUTDOWN_MS]
        if self._appearance is None or self.is_fenced or self._is_over:
            self._end_leaving()
            return
        self._clock.call_later(FENCED_HEARTBEAT_MS, self._watch_leaving)
        if self._timer is not None:
            # Else a heartbeat is under way, and the next one says it.
            self._later(0, self._beat)

    def _watch_leaving(self) -> None:
        if self._is_over:
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._leaves_at_ms or now_ms - self._heard_ms >= SILENT_MS_MAX:
            self._journal("others could not be told in time that this node leaves")
            self._end_leaving()
        else:
            self._clock.call_later(FENCED_HEARTBEAT_MS, self._watch_leaving)

    def _end_leaving(self) -> None:
        left = self._left
        self.stop()
        assert left is not None
        left()

    def stop(self) -> None:
        """Say nothing more."""
        self._is_over = True
        self._later(0, self.stop)
        if self._silence_timer is not None:
            self._silence_timer.cancel()


def _nobody_cares() -> None: ...
