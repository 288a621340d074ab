"""One broker: starts its parts in order, follows the metadata, and stops in order. `assembly` builds the parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from millpond.base.later import Later, done
from millpond.base.ports import World
from millpond.base.settings import Settings
from millpond.broker import assembly
from millpond.broker.administration.shared_settings import compare_with_controller
from millpond.broker.authentication.login_parts import in_the_clear
from millpond.broker.coordination.coordination import ShardHost
from millpond.broker.loop.journal import Journal
from millpond.broker.membership.lifecycle import Appearance
from millpond.broker.replication.partitions import Partition
from millpond.broker.serving.api import Api
from millpond.config import node
from millpond.config.effective import NodeLayers
from millpond.config.listeners import WILDCARDS
from millpond.log.store import OpenReport
from millpond.metadata.features import SUPPORTED, Supported
from millpond.metadata.image import ALL_BROKERS, RESCUE_NAME
from millpond.metadata.records import (
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    LeadAnewRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    ResourceType,
    TopicRecord,
)
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.audit.audit import Sink
    from millpond.broker.security.login import Login
    from millpond.coordinators.groups.shard import GroupShard
    from millpond.coordinators.shares.shard import ShareShard
    from millpond.coordinators.transactions.shard import TransactionShard

STOCK_UP_AGAIN_MS: Final = 2_000

DRAIN_MS: Final = 500
"""How long a stopping broker waits for responses to reach their clients."""

DRAIN_SYNCS_MS: Final = 5_000
"""How long it waits for running syncs: with one in progress the shutdown would not be clean."""

DRAIN_STEP_MS: Final = 5

HANDOVER_MS_MAX: Final = 200
"""How long a controller that shuts down waits for the other nodes to learn what is committed."""

HANDOVER_STEP_MS: Final = 1

CLOCK_SKEW_MS_MAX: Final = 300_000
"""How far the clocks of two nodes may be apart before the node reports it."""


class Broker:
    """Everything between the wire and the disk of one node. Runs in any `World`. Implements `assembly.Upcalls`."""

    def __init__(
        self,
        world: World,
        settings: Settings,
        journal: Journal,
        supported: Supported = SUPPORTED,
        audit: Sink | None = None,
    ) -> None:
        """`audit` takes the lines of the audit log."""
        parts = assembly.build(
            world,
            settings,
            journal,
            supported,
            audit,
            load_apis=load_apis,
            load_coordinators=load_coordinators,
            up=self,
        )
        self._parts: Final = parts
        self.contexts: Final = parts.contexts
        self.world: Final = parts.node.world
        self.clock: Final = self.world.clock
        self.workers: Final = self.world.workers
        self.entropy: Final = self.world.entropy
        self.journal: Final = journal
        self.node_id: Final = parts.node.node_id
        self.loggers: Final = parts.node.loggers
        self.limits: Final = parts.node.limits
        self.audit: Final = parts.node.audit
        self.store: Final = parts.storage.store
        self.partitions: Final = parts.storage.partitions
        self.flusher: Final = parts.storage.flusher
        self.checkpoints: Final = parts.storage.checkpoints
        self.dispatcher: Final = parts.serving.dispatcher
        self.requests: Final = self.dispatcher.requests
        self.quotas: Final = parts.serving.quotas
        self.listeners: Final = parts.serving.listeners
        self.connections: Final = parts.serving.connections
        self.controller: Final = parts.metadata.controller
        self.image: Final = parts.metadata.image
        self.controller_channel: Final = parts.metadata.controller_channel
        self.lifecycle: Final = parts.metadata.lifecycle
        self.heartbeats: Final = parts.metadata.heartbeats
        self.access: Final = parts.metadata.access
        self.logins: Final = parts.metadata.logins
        self.high_watermarks: Final = parts.upkeep.high_watermarks
        self.disk_reserve: Final = parts.upkeep.disk_reserve
        self.housekeeping: Final = parts.upkeep.housekeeping
        self.isr_keeper: Final = parts.replicas.isr_keeper
        self.replica_manager: Final = parts.replicas.replica_manager
        self.replica_sessions: Final = parts.replicas.replica_sessions
        self.groups: Final = parts.coordination.groups
        self.transactions: Final = parts.coordination.transactions
        self.shares: Final = parts.coordination.shares
        self.markers: Final = parts.coordination.markers
        self.share_state: Final = parts.coordination.share_state
        self.fetch_sessions: Final = parts.replicas.fetch_source.sessions
        self.pending_fetches: Final = parts.replicas.fetch_source.pending
        self.rebalances: Final = self.contexts.coordination.rebalances
        self.ready: Later[None] = Later()  # Ends once this node serves.
        self._has_begun = False
        self._was_clean = False  # The last shutdown was clean, and nothing is missing.

    @property
    def settings(self) -> Settings:
        return self.contexts.node.settings

    @property
    def layers(self) -> NodeLayers:
        return self.contexts.node.layers

    @property
    def address(self) -> tuple[str, int]:
        """Where this broker listens for clients, or listened until it began to drain."""
        return self.listeners.address

    def advertised(self) -> tuple[str, int]:
        """The advertised address, if it is the same for all clients."""
        return self.listeners.advertised()

    # Upcalls.

    def begin_login(self, listener: str) -> Login | None:
        return self.logins.login_at(listener)

    def is_followed_by(self, node_id: int) -> bool:
        return self.replica_sessions.is_followed_by(node_id)

    def on_log_truncated(self, partition: Partition) -> None:
        self.replica_manager.give_role(partition)
        self._on_leaders_changed()

    def open_coordinators(self) -> None:
        self._parts.coordination.topics.follow()

    def group_shard_host(self, partition: Partition) -> ShardHost[GroupShard]:
        from millpond.broker.coordinator_calls.groups import group_shard_host

        return self.contexts.bind(group_shard_host)(partition)

    def transaction_shard_host(self, partition: Partition) -> ShardHost[TransactionShard]:
        from millpond.broker.coordinator_calls.transactions import transaction_shard_host

        return self.contexts.bind(transaction_shard_host)(partition)

    def share_shard_host(self, partition: Partition) -> ShardHost[ShareShard]:
        from millpond.broker.coordinator_calls.shares import share_shard_host

        return self.contexts.bind(share_shard_host)(partition)

    # Starting.

    def start(self) -> None:
        """Recover, then listen. OSError when the folder or an address is not available."""
        # Track the clock from the very start: a correction soon after startup is a jump like any other.
        self.store.retention_now(self.clock.wall_ms(), self.clock.monotonic_ms())
        self.store.lock()
        self.disk_reserve.prepare()
        report = self.store.open(self.clock.wall_ms())
        self._was_clean = report.clean and not report.has_lost
        self._report_recovery(report)
        self.high_watermarks.load()
        self.listeners.open(self.world.network, self.connections.accept)
        self.controller.load(self.listeners.end_points(), after_crash=not self._was_clean)
        self._report_metadata()
        self._parts.node.settings.follow(self.image, self.node_id)
        self._follow_quotas(self.image.quotas.records())
        self._observe_metadata()
        self._join(report)
        self.lifecycle.ready.then(self._on_ready)
        self.housekeeping.start()
        self.isr_keeper.start()
        if not self.controller.is_alone:
            self._begin_with_others()

    def _report_recovery(self, report: OpenReport) -> None:
        for name, reason in report.failed.items():
            self.journal("partition cannot be opened", partition=name.folder, reason=reason)
        for note in report.notes:
            self.journal("recovery", note=note)
        for listener in in_the_clear(self._parts.node.static, self._parts.node.listener_settings):
            self.journal("passwords can be read on their way: use SASL_SSL, or only SCRAM", listener=listener)

    def _report_metadata(self) -> None:
        if self.controller.is_copy:
            self.journal(
                "the data folder is a copy: this node has no vote, and is in sync only when it has caught up",
                otherwise="where all nodes were moved or restored: millpond cluster rescue --restored",
            )
        for setting, rescued_at in self.image.config_of(ALL_BROKERS).items():
            if setting.startswith(RESCUE_NAME):
                number = setting.removeprefix(RESCUE_NAME)
                self.journal("this cluster was rescued", number=number, when=rescued_at)

    def _observe_metadata(self) -> None:
        controller, metadata = self.controller, self._parts.metadata
        observers = controller.observers
        observers.on_change(self._on_records)
        observers.on_offset(metadata.image_watch.on_change)
        observers.on_change(self.heartbeats.on_records)
        observers.on_role(self.heartbeats.on_role)
        observers.on_role(self.lifecycle.on_role)
        observers.on_change(metadata.voter_keeper.on_records)
        observers.on_change(self.logins.on_records)
        observers.on_change(metadata.login_upkeep.on_records)
        observers.on_role(metadata.login_upkeep.on_role)
        observers.on_role(metadata.voter_keeper.on_role)
        self.lifecycle.on_cut_off(self._on_cut_off)
        observers.on_disk_space(self.isr_keeper.check_all)
        controller.outlived.then(lambda _: self.lifecycle.on_outlived())
        if not controller.is_alone:
            observers.on_role(self._report_role)
        observers.on_first_peer(self._on_first_peer)

    def _begin_with_others(self) -> None:
        self.housekeeping.note_high_watermarks()
        self._parts.replicas.failed_replicas.start()
        self._parts.replicas.scrub.start()

    def _on_ready(self, _: None) -> None:
        self._stock_up()
        self.ready.finish(None)

    def _on_first_peer(self) -> None:
        """Another node has registered: start what only one of several nodes does, without a restart."""
        self.journal("node is no longer alone", nodes=len(self.image.brokers))
        self.workers.run(load_coordinators).then(lambda _: None)
        self.controller.observers.on_role(self._report_role)
        self.lifecycle.join_others(self._appearance())
        self._begin_with_others()
        self._stock_up()

    def _join(self, report: OpenReport) -> None:
        """Join the cluster: at once if this node is alone, otherwise when the controller has registered it."""
        if self.controller.is_alone:
            registered = self.image.brokers[self.node_id]
            self.lifecycle.start_alone(registered.epoch, registered.incarnation_id)
            self._begin(at_once=True)
            return
        # Import now: a failover must not wait for it.
        load_apis()
        load_coordinators()
        self.lifecycle.start(self._appearance(), was_clean=report.clean, has_lost=report.has_lost)

    def _appearance(self) -> Appearance:
        hosts = [each.host for each in node.cluster_nodes(self._parts.node.static) if each.node_id == self.node_id]
        instead = None
        if not hosts:
            # The address by which the first other node reached this one, or its earlier address.
            address = self._parts.metadata.addresses(self.node_id)
            instead = None if address is None else address[0]
        elif not node.is_loopback(hosts[0]):
            # Use the address in the operator's list, as other nodes do. Not a loopback address, which remote clients
            # cannot use: then all nodes are on one machine, and a client reaches them all by the same host.
            instead = hosts[0]
        end_points = tuple(
            replace(each, host=instead) if instead is not None and each.host in WILDCARDS else each
            for each in self.listeners.end_points()
        )
        return Appearance(end_points, self.controller.directory_id)

    def _begin(self, *, at_once: bool) -> None:
        """The metadata knows this incarnation of the node: open its replicas, and lead and follow from now on."""
        self._has_begun = True
        if not self.controller.is_alone:
            self._compare_clocks()
            compare_with_controller(self.contexts.node, self.contexts.metadata)
        self.replica_manager.open_all(at_once=at_once)
        self.replica_manager.followed().then(lambda _: self._on_opened())

    def _on_opened(self) -> None:
        replicas = self.image.partitions_of(self.node_id)
        self.high_watermarks.forget_but((topic.id, index) for topic, index, _ in replicas)
        self._on_leaders_changed()

    def _compare_clocks(self) -> None:
        """Compare this node's clock with the controller's, which has just stamped the node's registration.

        With a clock far ahead, all records would look expired, and be deleted on all replicas of partitions led here.
        """
        written_ms = self.controller.written_ms(self.image.brokers[self.node_id].epoch)
        if written_ms is None:
            return
        ahead_ms = self.clock.wall_ms() - written_ms
        if abs(ahead_ms) > CLOCK_SKEW_MS_MAX:
            self.journal(
                "the clock of this node differs from the controller's: set it right",
                ahead_seconds=ahead_ms // 1000,
                controller=self.controller.leader_id,
            )
        if ahead_ms > CLOCK_SKEW_MS_MAX:
            self.store.hold_back(ahead_ms)

    def _report_role(self, is_active: bool) -> None:
        event = "this node is the active controller" if is_active else "this node is no longer the active controller"
        self.journal(event, epoch=self.controller.leader_epoch)

    # While running.

    def _stock_up(self) -> None:
        """Reserve producer IDs early: a producer may need one while there is no controller."""
        producer_ids = self._parts.coordination.producer_ids
        if not self.contexts.node.is_stopping and not self.controller.is_alone and not producer_ids.is_stocked:
            producer_ids.stock_up()
            self.clock.call_later(STOCK_UP_AGAIN_MS, self._stock_up)

    def _on_records(self, records: Sequence[Record]) -> Later[None]:
        if any(isinstance(each, ConfigRecord) and each.resource_type == ResourceType.BROKER for each in records):
            self._parts.node.settings.follow(self.image, self.node_id)
        self._follow_quotas(each for each in records if isinstance(each, ClientQuotaRecord))
        image_watch = self._parts.metadata.image_watch
        if not self._has_begun:
            if not self.contexts.node.is_stopping and self.lifecycle.knows_itself:
                self._begin(at_once=False)
            image_watch.on_change()
            return done(None)
        removed = self._removed_topics(records)
        followed = self.replica_manager.on_records(records)
        self._tell_groups(records, removed)
        image_watch.on_change()
        if any(isinstance(each, RegisterBrokerRecord | BrokerRegistrationChangeRecord) for each in records):
            self.isr_keeper.check_all()
        if any(isinstance(each, PartitionRecord | PartitionChangeRecord | LeadAnewRecord) for each in records):
            return followed.map(lambda _: self._on_leaders_changed())
        return followed

    def _removed_topics(self, records: Iterable[Record]) -> list[str]:
        """Their names, which only the replica manager still knows."""
        removed = (
            self.replica_manager.name_of(each.topic_id) for each in records if isinstance(each, RemoveTopicRecord)
        )
        return [name for name in removed if name is not None]

    def _tell_groups(self, records: Sequence[Record], removed: list[str]) -> None:
        if removed:
            self.groups.run_everywhere(lambda shard, now_ms: shard.on_topics_deleted(removed, now_ms))
            gone = frozenset(each.topic_id for each in records if isinstance(each, RemoveTopicRecord))
            self.shares.run_everywhere(lambda shard, now_ms: shard.on_topics_deleted(gone, now_ms))
        grown = {each.topic_id for each in records if isinstance(each, TopicRecord | PartitionRecord)}
        names = [self.image.topics_by_id[each].name for each in grown if each in self.image.topics_by_id]
        changed = sorted({*removed, *names})
        if changed:
            for shard_host in self.groups.shard_hosts():
                shard_host.run(lambda shard, now_ms: shard.on_topics_changed(changed, now_ms))

    def _follow_quotas(self, records: Iterable[ClientQuotaRecord]) -> None:
        for each in records:
            self.quotas.replay(each)
            self._parts.serving.arrivals.replay(each)

    def _on_leaders_changed(self) -> None:
        """Leaders have changed, here or elsewhere, and the logs reflect it."""
        if not self.contexts.node.is_stopping:
            self.open_coordinators()
            self.markers.on_leaders_changed()
            self.share_state.on_leaders_changed()

    def _on_cut_off(self) -> None:
        """End requests pending on partitions that other nodes may lead by now."""
        for partition in self.partitions:
            if partition.leader_role is not None:
                partition.leader_role.on_cut_off()

    # Stopping.

    def drain(self, done: Callable[[], None]) -> None:
        """Hand over, stop accepting clients, answer pending requests, close connections; then call `done`, soon."""
        self.lifecycle.leave(lambda: self._drain_after_handover(done, self.clock.monotonic_ms() + HANDOVER_MS_MAX))

    def _drain_after_handover(self, done: Callable[[], None], until_ms: int) -> None:
        """Wait until the others know of the handover: without a controller they would learn of it late."""
        if self.controller.is_known_to_all or self.clock.monotonic_ms() >= until_ms:
            self._drain(done)
        else:
            self.clock.call_later(HANDOVER_STEP_MS, lambda: self._drain_after_handover(done, until_ms))

    def _drain(self, done: Callable[[], None]) -> None:
        if not self.listeners.is_open:
            return
        self._stop_parts()
        began_ms = self.clock.monotonic_ms()

        def step() -> None:
            self.connections.begin_closing()
            waited_ms = self.clock.monotonic_ms() - began_ms
            if (self.connections.count_waiting() and waited_ms < DRAIN_MS) or is_busy(waited_ms):
                self.clock.call_later(DRAIN_STEP_MS, step)
            else:
                self.connections.drop_all()
                # A busy client may have written in this very turn: unsynced, the shutdown would not be clean.
                self.clock.call_soon(end)

        def end() -> None:
            if is_busy(self.clock.monotonic_ms() - began_ms):
                self.clock.call_later(DRAIN_STEP_MS, end)
            else:
                done()

        def is_busy(waited_ms: int) -> bool:
            parts = (self.flusher, self.controller, self.checkpoints, self._parts.upkeep.fetchers)
            return waited_ms < DRAIN_SYNCS_MS and not all(part.is_idle() for part in parts)

        step()

    def _stop_parts(self) -> None:
        parts = self._parts
        self.listeners.close()
        self.housekeeping.stop()
        self.heartbeats.stop()
        parts.metadata.voter_keeper.stop()
        parts.metadata.login_upkeep.stop()
        self.isr_keeper.stop()
        parts.replicas.failed_replicas.stop()
        parts.replicas.scrub.stop()
        self.controller.resign()
        self.contexts.node.is_stopping = True
        self.replica_manager.stop()
        parts.upkeep.fetchers.stop()
        self.groups.stop()
        self.transactions.stop()
        self.share_state.stop()
        self.shares.stop()
        for partition in self.partitions:
            partition.end_waits()

    def close(self) -> None:
        """Sync everything to disk and mark the folder as cleanly closed.

        Not after a start that failed or was aborted before it had recorded what it found after a crash.
        """
        self.controller.close()
        self.high_watermarks.close()
        try:
            self.store.close(is_vouched=self._was_clean or self.lifecycle.is_noted)
        except OSError as error:
            # Nothing is lost, and the caller has more to shut down.
            self.journal("the next start looks at every log: the end could not be noted", error=str(error))


def load_apis() -> Sequence[Api]:
    """Import the code that serves clients. A node that is alone starts without it; a worker imports it later."""
    from millpond.broker.apis import APIS

    m.load()
    return APIS


def load_coordinators() -> None:
    """Import the coordinators' code: one of several nodes may become a coordinator at any moment."""
    import millpond.broker.coordinator_calls.groups
    import millpond.broker.coordinator_calls.shares
    import millpond.broker.coordinator_calls.transactions
    import millpond.coordinators.groups.refusals
    import millpond.coordinators.transactions.replies  # noqa: F401
