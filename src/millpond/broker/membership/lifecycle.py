"""This node's membership in the cluster: it registers with the controller, sends heartbeats, and shuts down.

A standalone node has registered itself before this begins; it sends no heartbeats and may stop at once. The file
`incarnation` is written before the step that depends on it: the incarnation id before registration, the broker epoch
before its first use.
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
"""How often a node that does not know its cluster's name checks whether the metadata has arrived."""

FENCED_HEARTBEAT_MS: Final = 50
"""Heartbeat interval while the node is fenced, out of contact or shutting down."""

DUPLICATE_MS_MIN: Final = 15_000
"""How long registration is retried, at least, while another process holds this node's id."""
DUPLICATE_SESSIONS: Final = 2
"""The same in sessions: the one of the previous incarnation ends after one at the latest."""

SILENT_MS_MAX: Final = 2_000
"""How long a shutdown waits for a controller that does not answer."""

WRITE_AGAIN_MS: Final = 500

CONTACT_CHECK_MS: Final = 100
"""How often a node that has lost contact counts the sessions it has missed."""

LATE_MS: Final = 50
"""A check that runs this late means the loop stalled: read what has arrived meanwhile first."""

STRANGER: Final = (
    "the data folder of this node belongs to another cluster than the nodes it was configured with: name the nodes "
    "of its own cluster, or give it an empty data folder"
)

OUTLIVED: Final = (
    "the cluster was rescued without this node, and its data folder dates from before the rescue. Keep the folder as "
    "long as you may need its records, and start the node with an empty one (docs/operations.md, Loss of a majority)"
)

MISLED: Final = (
    "the other nodes are configured with a different set of nodes: cluster.nodes (nodes.toml) must list the same ids "
    "on every node"
)


OUTDATED: Final = (
    "this version does not support the feature levels of the cluster{}. Start the version that the other nodes run "
    "(millpond cluster features shows what each supports)"
)


@dataclass(frozen=True, slots=True)
class Appearance:
    """How a broker presents itself when it registers."""

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
        """`forget_loss` clears the store's note of lost records once `incarnation` has it; called on a worker."""
        self.broker_epoch = -1
        self.is_fenced = True
        self.ready: Later[None] = Later()
        """Ends once this node is registered and unfenced."""
        self.is_noted = False
        """Whether the outcome of the previous incarnation is on disk: only then may this one shut down cleanly."""
        self.shut_out: Later[CannotJoin] = Later()
        """Ends when the cluster will never accept this node, even if it was a member before."""
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
        """Whether the last heartbeat reported a full disk; its response then grants no lease."""
        self._folder = settings[DATA_FOLDER]
        self._features = features_to_record(controller.supported)
        self._registered_epoch = -1
        """The epoch of the last controller with which this incarnation registered its features."""
        self._incarnation_id = UUID(int=0)
        self._last = LastIncarnation(-1, world.boot_id)
        self._appearance: Appearance | None = None
        self._timer: Timer | None = None
        self._refused_since_ms: int | None = None
        self._refused_epoch = 0
        """The epoch of the controller that refuses the registration."""
        self._nameless_since_ms: int | None = None
        self._response_ms = 0
        self._request_ms = 0
        self._lease_ms = 0
        """When the lease expires, by the lease clock: until then no other leader is elected in this node's place."""
        self._lease_since_ms = 0
        """Since when the lease has been held without a gap. The image may lack what was decided in the gap."""
        self.sessions_missed = 0
        """How many session timeouts have passed without contact: others may lead in this node's place by now."""
        self._on_cut_off: Callable[[], None] = _ignore
        self._contact_ms = 0
        """When the last answered heartbeat was sent, by this node's own clock."""
        self._contact_timer: Timer | None = None
        self._has_lost = False
        self._left: Callable[[], None] | None = None
        self._leaves_at_ms = 0
        self._is_over = False

    # State.

    @property
    def knows_itself(self) -> bool:
        """Whether this node's metadata image includes its own registration.

        An older image assigns roles to an earlier incarnation, which this one must not take on.
        """
        broker = self._controller.image.brokers.get(self._controller.node_id)
        return broker is not None and broker.incarnation_id == self._incarnation_id

    @property
    def wants_to_be_fenced(self) -> bool:
        """Whether this node is shutting down, or has lost records and asks to be fenced."""
        return self._left is not None or self._has_lost

    def has_lease(self) -> bool:
        """Whether the controller cannot yet have elected another leader in this node's place.

        The lease is shorter than the time the controller waits, because clocks drift (`lease.py`).
        """
        if self._appearance is None:
            return True
        if self._room.is_short:
            # The controller moves its leaderships without waiting for the lease to expire.
            return False
        if self._controller.is_active:
            # It always hears its own heartbeats, even when isolated; only its followers' fetches prove that it leads.
            led_ago_ms = self._controller.led_ago_ms
            return led_ago_ms is not None and led_ago_ms < lease_ms(self._settings)
        return self._lease_clock.now_ms() < self._lease_ms and self._controller.knows_since(self._lease_since_ms)

    def on_cut_off(self, observer: Callable[[], None]) -> None:
        """Call `observer` repeatedly while others may lead in this node's place."""
        self._on_cut_off = observer

    # Registration.

    def start_alone(self, broker_epoch: int, incarnation_id: UUID) -> None:
        """Begin as a standalone node, which has registered itself."""
        self.broker_epoch = broker_epoch
        self._incarnation_id = incarnation_id
        self.is_fenced = False
        self.is_noted = True
        self.ready.finish(None)

    def join_others(self, appearance: Appearance) -> None:
        """Turn a standalone node into a cluster member: it keeps its incarnation and starts to send heartbeats."""
        self._appearance = appearance
        self._contact_ms, self._response_ms = self._lease_clock.now_ms(), self._clock.monotonic_ms()
        self._write(LastIncarnation(self.broker_epoch, self._world.boot_id), self._beat)

    def start(self, appearance: Appearance, *, was_clean: bool, has_lost: bool) -> None:
        """Register. `was_clean` and `has_lost` describe the store: closed cleanly, and missing records."""
        self._appearance = appearance
        last = read_last_incarnation(self._world.disk, self._folder)
        self._last = last.next(self._world.boot_id, was_clean=was_clean, has_lost=has_lost)
        self._begin_incarnation(self._last.incarnation_id or self._world.entropy.uuid())

    def _begin_incarnation(self, incarnation_id: UUID) -> None:
        self.broker_epoch = -1
        self.is_fenced = True
        self.is_noted = False
        self._incarnation_id = incarnation_id
        self._write(LastIncarnation(self._last.epoch, self._world.boot_id, incarnation_id), self._register)

    def _write(self, incarnation: LastIncarnation, then: Callable[[], None]) -> None:
        def write() -> None:
            write_last_incarnation(self._world.disk, self._folder, incarnation)
            self._forget_loss()

        def written(_: None) -> None:
            self._last = incarnation
            self.is_noted = True
            if not self._is_over:
                then()

        def failed(error: Exception) -> None:
            if not isinstance(error, OSError):
                raise error
            self._journal("cannot write the broker epoch, retrying", error=error)
            self._later(WRITE_AGAIN_MS, lambda: self._write(incarnation, then))

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
        """A registration has to name the cluster; a joining node learns the name from the metadata log."""
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
                self._registered_epoch = self._controller.leader_epoch
                if self.broker_epoch == response.broker_epoch:
                    # This registration only repeated which features the node supports.
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
                self._refused_since_ms = None
                self._journal("registration refused, retrying", error=ErrorCode(code).name)
                self._later(REGISTER_AGAIN_MS, self._register)

    def _on_duplicate(self) -> None:
        """The session of the previous incarnation may not have expired yet; if it never does, there are two nodes.

        A new controller counts sessions from its election, so patience begins again with it.
        """
        now_ms, epoch = self._clock.monotonic_ms(), self._controller.leader_epoch
        if self._refused_since_ms is None or self._refused_epoch != epoch:
            self._refused_since_ms, self._refused_epoch = now_ms, epoch
        session_ms = self._settings[BROKER_SESSION_TIMEOUT_MS]
        if now_ms - self._refused_since_ms < max(DUPLICATE_MS_MIN, DUPLICATE_SESSIONS * session_ms):
            self._later(FENCED_HEARTBEAT_MS, self._register)
        else:
            self._give_up(
                f"another process runs as node {self._controller.node_id} of this cluster: stop it, or give this one "
                "a different id"
            )

    def _give_up(self, why: str) -> None:
        if self._is_over:
            return
        self._journal("cannot join the cluster", reason=why)
        self.stop()
        self.shut_out.finish(CannotJoin(why))

    # Heartbeats.

    def _beat(self) -> None:
        request = m.BrokerHeartbeatRequest(
            broker_id=self._controller.node_id,
            broker_epoch=self.broker_epoch,
            # The wire carries the last applied offset, not the next one.
            current_metadata_offset=self._controller.applied_offset - 1,
            want_fence=self._has_lost,
            want_shut_down=self._left is not None,
            # A full disk can still be read but takes no records: see `Heartbeat.is_full`.
            offline_log_dirs=self._full_directories(),
        )
        self._request_ms = self._lease_clock.now_ms()
        self._said_full = self._room.is_short
        if self._said_full:
            self._lease_ms = 0
        # The next controller waits only briefly for a node that has missed a whole session.
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
                self._response_ms = self._clock.monotonic_ms()
                if not (self._controller.is_active or self._said_full):
                    if self._request_ms > self._lease_ms:
                        self._lease_since_ms = self._request_ms
                    self._lease_ms = self._request_ms + lease_ms(self._settings)
                self._on_contact()
                self._note_full(frozenset(response.full_brokers))
                self._on_state(response)
            case ErrorCode.STALE_BROKER_EPOCH | ErrorCode.BROKER_ID_NOT_REGISTERED:
                self._journal("no longer registered, registering again")
                self._begin_incarnation(self._world.entropy.uuid())
            case code:
                self._journal("heartbeat refused, retrying", error=ErrorCode(code).name)
                self._later(self._interval_ms, self._beat)

    def _note_full(self, broker_ids: frozenset[int]) -> None:
        """Take over the list of full brokers; the active controller already has a newer one."""
        if not self._controller.is_active and broker_ids != self._controller.image.full_brokers:
            self._controller.note_full(broker_ids)

    def _on_state(self, response: m.BrokerHeartbeatResponse) -> None:
        if self._left is not None and response.should_shut_down:
            self._end_leaving()
            return
        if response.is_fenced != self.is_fenced:
            self.is_fenced = response.is_fenced
            self._journal("node fenced" if self.is_fenced else "node registered, serving requests")
        if not self.is_fenced:
            self.ready.finish(None)
        elif self._has_lost:
            self._has_lost = False
            self._last = LastIncarnation(LOST, self._world.boot_id)
            self._begin_incarnation(self._world.entropy.uuid())
            return
        self._later(self._until_next_ms(), self._register if self._is_taken_for_older() else self._beat)

    def _until_next_ms(self) -> int:
        """The interval runs from request to request, as the lease does: a slow response has used up part of it."""
        waited_ms = self._lease_clock.now_ms() - self._request_ms
        return max(self._interval_ms - waited_ms, self._interval_ms // 4)

    def _is_taken_for_older(self) -> bool:
        """Whether an older controller registered this node without its features: repeat them to the next one."""
        broker = self._controller.image.brokers.get(self._controller.node_id)
        return (
            broker is not None
            and broker.epoch == self.broker_epoch
            and broker.features != self._features
            and self._registered_epoch != self._controller.leader_epoch
        )

    # Loss of contact.

    def _on_contact(self) -> None:
        if not self._controller.is_active:
            self._contact_ms = self._request_ms
        self._check_contact()

    def _check_contact(self) -> None:
        """A node out of contact for a session is fenced by now and must not answer as a leader."""
        if self._contact_timer is not None:
            self._contact_timer.cancel()
            self._contact_timer = None
        if self._is_over:
            return
        now_ms = self._lease_clock.now_ms()
        # The active controller always hears its own heartbeats; only its followers' fetches prove contact.
        led_ago_ms = self._controller.led_ago_ms
        if led_ago_ms is not None:
            self._contact_ms = now_ms - led_ago_ms
        session_ms = self._settings[BROKER_SESSION_TIMEOUT_MS]
        missed, was_cut_off = (now_ms - self._contact_ms) // session_ms, self.sessions_missed > 0
        # Refused connections prove nothing: the peers may have stopped, or a firewall may reject.
        self.sessions_missed = missed
        if (self.sessions_missed > 0) != was_cut_off:
            self._journal(
                "regained contact with the controller" if was_cut_off else "lost contact with the controller"
            )
        wait_ms = CONTACT_CHECK_MS if missed else self._contact_ms + session_ms - now_ms
        self._contact_timer = self._clock.call_later(wait_ms, partial(self._on_contact_timer, now_ms + wait_ms))
        if self.sessions_missed:
            self._on_cut_off()

    def _on_contact_timer(self, due_ms: int) -> None:
        if self._lease_clock.now_ms() - due_ms > LATE_MS:
            self._contact_timer = self._clock.call_later(1, self._check_contact)
        else:
            self._check_contact()

    @property
    def is_unfenced(self) -> bool:
        """Whether this node is registered in a cluster and may lead."""
        return self._appearance is not None and self.broker_epoch >= 0 and not self.is_fenced

    def on_outlived(self) -> None:
        """The cluster was rescued without this node."""
        self._give_up(OUTLIVED)

    def report_lost_records(self) -> None:
        """Ask to be fenced because records are lost, and register a new incarnation that has to catch up."""
        if not self._has_lost:
            self._has_lost = True
            # The next heartbeat reports it.
            self._journal("records lost on this node, registering again to catch up")

    def on_role(self, is_active: bool) -> None:
        """A node deposed as controller sends a heartbeat at once: its successor does not wait long for it."""
        if not is_active and self._timer is not None and self.broker_epoch >= 0:
            # Without a timer a request is already in flight.
            self._later(0, self._beat)

    # Requests to the controller.

    def _ask(
        self,
        request: m.Message,
        version: int,
        use: Callable[[m.BrokerRegistrationResponse], None] | Callable[[m.BrokerHeartbeatResponse], None],
        again: Callable[[], None],
        again_ms: int,
    ) -> None:
        """Send one request at a time, then continue with `use`, or with `again` if the request failed."""
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
                    self._refused_since_ms = None
                    self._later(again_ms, again)

        self._to_controller.ask(request, version, self._settings[BROKER_SESSION_TIMEOUT_MS]).then(answered, lost)

    def _later(self, delay_ms: int, step: Callable[[], None]) -> None:
        def fire() -> None:
            self._timer = None
            step()

        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if self._is_over else self._clock.call_later(delay_ms, fire)

    # Controlled shutdown.

    def leave(self, left: Callable[[], None]) -> None:
        """Move this node's leaderships away, then call `left`, at the latest when controlled shutdown times out."""
        if self._left is not None:
            return
        self._left = left
        now_ms = self._response_ms = self._clock.monotonic_ms()
        self._leaves_at_ms = now_ms + self._settings[CONTROLLED_SHUTDOWN_MS]
        if self._appearance is None or self.is_fenced or self._is_over:
            self._end_leaving()
            return
        self._clock.call_later(FENCED_HEARTBEAT_MS, self._watch_leaving)
        if self._timer is not None:
            # Otherwise a heartbeat is in flight, and the next one announces the shutdown.
            self._later(0, self._beat)

    def _watch_leaving(self) -> None:
        if self._is_over:
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._leaves_at_ms or now_ms - self._response_ms >= SILENT_MS_MAX:
            self._journal("controlled shutdown timed out, stopping without a handover")
            self._end_leaving()
        else:
            self._clock.call_later(FENCED_HEARTBEAT_MS, self._watch_leaving)

    def _end_leaving(self) -> None:
        left = self._left
        self.stop()
        assert left is not None
        left()

    def stop(self) -> None:
        """Send nothing more."""
        self._is_over = True
        self._later(0, self.stop)
        if self._contact_timer is not None:
            self._contact_timer.cancel()


def _ignore() -> None: ...
