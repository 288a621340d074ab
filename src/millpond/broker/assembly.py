"""Builds the parts of a broker, layer by layer: each builder takes the layers below it and returns its own.

A few calls go upward, from a part to one that is built after it: `Upcalls` names them all. `Broker` implements them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Final, Protocol

from millpond.base.errors import Refused
from millpond.base.ids import NodeId
from millpond.base.later import Later, done
from millpond.base.ports import Clock, World
from millpond.base.settings import Settings
from millpond.base.values import dataclass
from millpond.broker.administration.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, InternalTopics
from millpond.broker.audit.audit import Audit
from millpond.broker.authentication.login_parts import make_logins, node_login_of, node_user_of, token_proofs_of
from millpond.broker.authentication.login_upkeep import LoginUpkeep
from millpond.broker.connections.connections import Connections
from millpond.broker.connections.listeners import Listeners, addresses_for
from millpond.broker.context import (
    Contexts,
    CoordinationContext,
    DataContext,
    LiveSettings,
    MetadataContext,
    NodeContext,
    SecurityContext,
)
from millpond.broker.controller.controller import Controller
from millpond.broker.controller.image_watch import ImageWatch
from millpond.broker.controller.voter_keeper import VoterKeeper
from millpond.broker.coordination.append_order import AppendOrder
from millpond.broker.coordination.coordination import Coordination, ShardHost
from millpond.broker.coordination.markers import Markers
from millpond.broker.coordination.permissions import Permissions
from millpond.broker.coordination.producer_ids import ProducerIds, block_of, no_block
from millpond.broker.coordination.rebalance_counts import RebalanceCounts
from millpond.broker.coordination.share_state import ShareStateCalls
from millpond.broker.fetch.consumer_sessions import FetchSessions
from millpond.broker.fetch.pending_fetches import PendingFetches
from millpond.broker.fetch.replica_sessions import ReplicaSessions
from millpond.broker.fetch.source import FetchSource
from millpond.broker.housekeeping import Housekeeping
from millpond.broker.loop.journal import Journal
from millpond.broker.loop.loggers import Loggers
from millpond.broker.loop.turns import Turns
from millpond.broker.membership.heartbeats import Heartbeats
from millpond.broker.membership.lifecycle import Lifecycle
from millpond.broker.membership.lifelines import Lifelines
from millpond.broker.peers.controller_channel import ControllerChannel
from millpond.broker.peers.node_network import NodeNetwork
from millpond.broker.peers.peers import NodeAddresses, Peers
from millpond.broker.replication.acknowledgements import Acknowledgements
from millpond.broker.replication.failed_replicas import FailedReplicas
from millpond.broker.replication.fetchers import FetcherServices, ReplicaFetchers
from millpond.broker.replication.high_watermarks import HighWatermarks, Mark
from millpond.broker.replication.isr import IsrKeeper
from millpond.broker.replication.partition_context import PartitionContext
from millpond.broker.replication.partitions import Partition, Partitions
from millpond.broker.replication.replica_manager import ReplicaManager
from millpond.broker.replication.scrub import Scrub
from millpond.broker.replication.throttle import Throttle
from millpond.broker.requests.api_versions import ApiAnswers
from millpond.broker.requests.call import NODE_CLIENT_ID
from millpond.broker.security.arrivals import Arrivals
from millpond.broker.security.authorizer import access_of
from millpond.broker.security.fair_queue import FairQueue
from millpond.broker.security.met_limits import MetLimits
from millpond.broker.security.quotas import Quotas
from millpond.broker.serving.dispatch import Dispatcher
from millpond.broker.storage.checkpoint_writer import CheckpointWriter
from millpond.broker.storage.disk_reserve import DiskReserve
from millpond.broker.storage.disk_watch import DiskWatch
from millpond.broker.storage.flusher import Flusher
from millpond.config import node as node_settings
from millpond.config.listeners import ListenerSettings, controllers_of, listeners_of, preferred_of
from millpond.config.quota import MAX_FETCH_SESSION_PARTITIONS
from millpond.config.security import AUDIT_LOG_FILES, AUDIT_LOG_MAX_BYTES
from millpond.log.limits import LogLimits
from millpond.log.store import LogStore
from millpond.metadata.features import Supported
from millpond.metadata.image import SHARE_STATE_TOPIC
from millpond.metadata.partition import METADATA_TOPIC_ID
from millpond.metadata.producer_ids import BLOCK_SIZE, ProducerIdBlock
from millpond.wire import messages as m

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

    from millpond.broker.audit.audit import Sink
    from millpond.broker.authentication.logins import Logins
    from millpond.broker.security.access import Access
    from millpond.broker.security.directory import NodeUser
    from millpond.broker.security.login import Login
    from millpond.broker.security.token_proofs import TokenProofs
    from millpond.broker.serving.api import Api
    from millpond.broker.shares.manager import ShareManager
    from millpond.coordinators.groups.shard import GroupShard
    from millpond.coordinators.shares.shard import ShareShard
    from millpond.coordinators.transactions.shard import TransactionShard
    from millpond.metadata.image import Image

ALLOCATE_MS: Final = 10_000
PRODUCER_IDS_RESERVE: Final = BLOCK_SIZE // 2


class Upcalls(Protocol):
    """Calls from a part to one that is built after it. None is made before the broker is complete."""

    def begin_login(self, listener: str) -> Login | None:
        """The login of a connection that arrives at this listener."""
        ...

    def is_followed_by(self, node_id: int) -> bool:
        """Whether a node has fetched from this one recently."""
        ...

    def on_log_truncated(self, partition: Partition) -> None:
        """A follower's log was truncated: the partition can take its next role."""
        ...

    def open_coordinators(self) -> None:
        """Logs have opened late; they may be those of coordinators."""
        ...

    def group_shard_host(self, partition: Partition) -> ShardHost[GroupShard]: ...

    def transaction_shard_host(self, partition: Partition) -> ShardHost[TransactionShard]: ...

    def share_shard_host(self, partition: Partition) -> ShardHost[ShareShard]: ...


# The node itself.


@dataclass(frozen=True, slots=True)
class NodeParts:
    world: World
    controllers_world: World
    """The same world, but its network connects to the controllers' listener."""
    journal: Journal
    node_id: NodeId
    static: Settings
    """The settings from the node's file and command line."""
    settings: LiveSettings
    listener_settings: tuple[ListenerSettings, ...]
    node_user: NodeUser | None
    loggers: Loggers
    limits: MetLimits
    audit: Audit

    @property
    def client_id(self) -> str:
        """The client ID that this node sends to others."""
        return f"{NODE_CLIENT_ID}{self.node_id}"

    @property
    def folder(self) -> str:
        return self.static[node_settings.DATA_FOLDER]


def build_node(world: World, settings: Settings, journal: Journal, audit: Sink | None) -> NodeParts:
    listeners = listeners_of(settings)
    node_user = node_user_of(settings, world.disk)
    controllers_world = _world_of_peers(world, settings, controllers_of(listeners), node_user)
    world = _world_of_peers(world, settings, preferred_of(listeners), node_user)
    kept_bytes = settings[AUDIT_LOG_MAX_BYTES] * settings[AUDIT_LOG_FILES]
    return NodeParts(
        world=world,
        controllers_world=controllers_world,
        journal=journal,
        node_id=NodeId(settings[node_settings.NODE_ID]),
        static=settings,
        settings=LiveSettings(settings),
        listener_settings=tuple(listeners),
        node_user=node_user,
        loggers=Loggers(),
        limits=MetLimits(world.clock, journal),
        audit=Audit(audit, world.clock, settings[node_settings.NODE_ID], kept_bytes),
    )


def _world_of_peers(
    world: World, settings: Settings, listener: ListenerSettings, node_user: NodeUser | None
) -> World:
    """A world whose network connects to other nodes through this listener of theirs."""
    login = node_login_of(settings, listener, node_user, world.entropy)
    if listener.peer_tls is None and login is None:
        return world
    return replace(world, network=NodeNetwork(world.network, listener.peer_tls, login))


# Storage: logs, and what writes them to disk.


@dataclass(frozen=True, slots=True)
class StorageParts:
    store: LogStore
    partitions: Partitions
    flusher: Flusher
    checkpoints: CheckpointWriter


def build_storage(node: NodeParts) -> StorageParts:
    world = node.world
    store = LogStore(world.disk, node.folder, LogLimits(), world.entropy)
    return StorageParts(
        store=store,
        partitions=Partitions(),
        flusher=Flusher(world.sync_workers, world.disk, node.folder),
        checkpoints=CheckpointWriter(store, world.sync_workers),
    )


# Serving: listeners, connections, and the dispatch of their requests.


@dataclass(frozen=True, slots=True)
class ServingParts:
    quotas: Quotas
    arrivals: Arrivals
    dispatcher: Dispatcher
    listeners: Listeners
    connections: Connections


def build_serving(node: NodeParts, load_apis: Callable[[], Sequence[Api]], up: Upcalls) -> ServingParts:
    clock, settings = node.world.clock, node.settings
    arrivals = Arrivals(clock, settings.get, node.limits, node.audit.turned_away)
    dispatcher = Dispatcher(clock, load_apis)
    return ServingParts(
        quotas=Quotas(clock, settings.get),
        arrivals=arrivals,
        dispatcher=dispatcher,
        listeners=Listeners(node.listener_settings),
        connections=Connections(
            dispatcher,
            clock,
            settings.get,
            arrivals,
            node.listener_settings,
            witness=node.audit,
            begin_login=up.begin_login,
        ),
    )


# Metadata: the quorum, this node's membership, and access by the image.


@dataclass(frozen=True, slots=True)
class MetadataParts:
    controller: Controller
    image: Image
    addresses: NodeAddresses
    """Addresses of the other nodes, for everything but requests to the controller."""
    controller_channel: ControllerChannel
    heartbeats: Heartbeats
    voter_keeper: VoterKeeper
    lifecycle: Lifecycle
    image_watch: ImageWatch
    access: Access
    token_proofs: TokenProofs
    logins: Logins
    login_upkeep: LoginUpkeep

    def broker_epoch_of(self, node_id: int) -> int:
        broker = self.image.brokers.get(node_id)
        return -1 if broker is None else broker.epoch

    def can_join(self, node_id: int, broker_epoch: int) -> bool:
        """Whether a follower may be in the ISR: the registered incarnation, unfenced and not shutting down."""
        broker = self.image.brokers.get(node_id)
        return broker is not None and broker.is_active and broker.epoch == broker_epoch

    def has_disk_space(self, node_id: int) -> bool:
        return node_id not in self.image.full_brokers

    def controller_id(self) -> int:
        """The controller as clients know it: a broker that is not fenced. Any broker forwards to the active one."""
        leader = self.image.brokers.get(self.controller.leader_id)
        return self.controller.node_id if leader is None or leader.fenced else leader.id


def build_metadata(
    node: NodeParts, storage: StorageParts, serving: ServingParts, supported: Supported
) -> MetadataParts:
    world, journal, settings = node.world, node.journal, node.settings
    controller = Controller(node.controllers_world, storage.store, node.static, storage.checkpoints, supported)
    image = controller.image
    has_one_listener = preferred_of(node.listener_settings).is_to_controllers
    addresses = controller.addresses if has_one_listener else NodeAddresses(node.static, image)
    token_proofs = token_proofs_of(node.static, image)
    access = access_of(node.static, image, node.audit.refused)
    logins = make_logins(
        *(world, settings.get, image, node.listener_settings),
        *(serving.connections, token_proofs, node.node_user, node.audit),
        journal=journal,
    )
    return MetadataParts(
        controller=controller,
        image=image,
        addresses=addresses,
        # Shared: clients choose the timeout of their requests, and no timeout may end another request's wait.
        controller_channel=_controller_channel(node, serving, controller, is_shared=True),
        heartbeats=Heartbeats(
            clock=world.clock,
            controller=controller,
            layers=settings.get_layers,
            settings=settings.get,
            journal=journal,
            lifelines=partial(Lifelines, world, node.client_id, addresses),
        ),
        voter_keeper=VoterKeeper(world.clock, controller, settings.get, journal),
        lifecycle=Lifecycle(
            world,
            node.static,
            journal,
            controller,
            # A separate channel: heartbeats must not queue behind other requests.
            _controller_channel(node, serving, controller),
            forget_loss=storage.store.forget_loss,
            room=storage.store.files.room,
        ),
        image_watch=ImageWatch(world.clock),
        access=access,
        token_proofs=token_proofs,
        logins=logins,
        login_upkeep=LoginUpkeep(world, controller, settings.get, journal),
    )


def _controller_channel(
    node: NodeParts, serving: ServingParts, controller: Controller, *, is_shared: bool = False
) -> ControllerChannel:
    peers = Peers(node.controllers_world, node.client_id, controller.addresses, is_shared=is_shared)
    world, dispatcher = node.world, serving.dispatcher
    return ControllerChannel(world.clock, world.entropy, controller, dispatcher.ask, peers.ask)


# Upkeep: what keeps logs and disk in order.


@dataclass(frozen=True, slots=True)
class UpkeepParts:
    high_watermarks: HighWatermarks
    fetchers: ReplicaFetchers
    disk_watch: DiskWatch
    disk_reserve: DiskReserve
    housekeeping: Housekeeping


def build_upkeep(
    node: NodeParts, storage: StorageParts, serving: ServingParts, metadata: MetadataParts, up: Upcalls
) -> UpkeepParts:
    world, journal, settings = node.world, node.journal, node.settings
    high_watermarks = HighWatermarks(
        *(world.clock, world.disk, node.folder, world.workers, storage.partitions, journal),
        also=partial(_metadata_mark, metadata.controller),
    )
    fetchers = _build_fetchers(node, storage, metadata, up)
    disk_watch = DiskWatch(
        clock=world.clock,
        disk=world.disk,
        folder=node.folder,
        low_water_bytes=settings.reader(node_settings.DISK_LOW_WATER_BYTES),
        journal=journal,
        room=storage.store.files.room,
    )
    disk_reserve = DiskReserve(
        world.disk,
        node.folder,
        room=storage.store.files.room,
        size_bytes=node.static[node_settings.DISK_RESERVE_BYTES],
        journal=journal,
        # A node that cannot write cannot follow: leaders must not count it as in sync.
        on_short=fetchers.pause,
    )
    housekeeping = Housekeeping(
        clock=world.clock,
        workers=world.workers,
        settings=settings.get,
        partitions=storage.partitions,
        store=storage.store,
        flusher=storage.flusher,
        checkpoints=storage.checkpoints,
        sweeps=(serving.connections.drop_idle, disk_reserve.look, disk_watch.look),
        note_high_watermarks=high_watermarks.write,
        journal=journal,
    )
    return UpkeepParts(high_watermarks, fetchers, disk_watch, disk_reserve, housekeeping)


def _build_fetchers(node: NodeParts, storage: StorageParts, metadata: MetadataParts, up: Upcalls) -> ReplicaFetchers:
    return ReplicaFetchers(
        FetcherServices(
            world=node.world,
            node_id=node.node_id,
            broker_epoch=lambda: metadata.lifecycle.broker_epoch,
            peers=Peers(node.world, node.client_id, metadata.addresses, for_bulk=True),
            store=storage.store,
            flusher=storage.flusher,
            checkpoints=storage.checkpoints,
            journal=node.journal,
            throttle=Throttle(node.settings.reader(node_settings.FOLLOWER_THROTTLED_RATE)),
            room=storage.store.files.room,
            on_cut=up.on_log_truncated,
        )
    )


def _metadata_mark(controller: Controller) -> list[Mark]:
    """The high watermark of the metadata log, for a rescue from this folder alone."""
    return [] if controller.is_alone else [(METADATA_TOPIC_ID, 0, controller.applied_offset)]


# Replicas: the partitions of this node, and the followers that fetch them.


@dataclass(frozen=True, slots=True)
class ReplicaParts:
    isr_keeper: IsrKeeper
    replica_manager: ReplicaManager
    failed_replicas: FailedReplicas
    scrub: Scrub
    fetch_source: FetchSource
    replica_sessions: ReplicaSessions


def build_replicas(
    node: NodeParts,
    storage: StorageParts,
    serving: ServingParts,
    metadata: MetadataParts,
    upkeep: UpkeepParts,
    up: Upcalls,
) -> ReplicaParts:
    world, journal, settings = node.world, node.journal, node.settings
    isr_keeper = IsrKeeper(
        node_id=node.node_id,
        clock=world.clock,
        partitions=storage.partitions,
        lag_ms_max=settings.reader(node_settings.REPLICA_LAG_MS_MAX),
        broker_epoch_of=metadata.broker_epoch_of,
        # A separate channel: ISR changes must not queue behind clients' requests.
        ask_controller=_controller_channel(node, serving, metadata.controller).ask,
        journal=journal,
    )
    replica_manager = ReplicaManager(
        node_id=node.node_id,
        image=metadata.image,
        store=storage.store,
        partitions=storage.partitions,
        layers=settings.get_layers,
        clock=world.clock,
        context=_partition_context(node, storage, metadata, upkeep, isr_keeper, up),
        fetchers=upkeep.fetchers,
        high_watermark=upkeep.high_watermarks.of,
        remove_later=upkeep.housekeeping.remove_later,
        journal=journal,
        on_late=up.open_coordinators,
        report_lost_records=metadata.lifecycle.report_lost_records,
    )
    failed_replicas = FailedReplicas(
        node_id=node.node_id,
        clock=world.clock,
        workers=world.workers,
        partitions=storage.partitions,
        life=metadata.lifecycle,
        copy_anew=replica_manager.copy_anew,
        resign_leadership=isr_keeper.resign_leadership,
        journal=journal,
    )
    scrub = Scrub(
        clock=world.clock,
        partitions=storage.partitions,
        bytes_per_second=settings.reader(node_settings.SCRUB_BYTES_PER_SECOND),
        check=failed_replicas.check,
    )
    fetch_source = _build_fetch_source(node, storage, serving, metadata, replica_manager)
    replica_sessions = ReplicaSessions(
        fetch_source,
        metadata.broker_epoch_of,
        failed_replicas.doubt,
        Throttle(settings.reader(node_settings.LEADER_THROTTLED_RATE)),
    )
    return ReplicaParts(isr_keeper, replica_manager, failed_replicas, scrub, fetch_source, replica_sessions)


def _partition_context(
    node: NodeParts,
    storage: StorageParts,
    metadata: MetadataParts,
    upkeep: UpkeepParts,
    isr_keeper: IsrKeeper,
    up: Upcalls,
) -> PartitionContext:
    lifecycle = metadata.lifecycle
    return PartitionContext(
        node_id=node.node_id,
        clock=node.world.clock,
        turns=Turns(node.world.clock),
        flusher=storage.flusher,
        flush=upkeep.housekeeping.flush,
        can_join=metadata.can_join,
        has_room=metadata.has_disk_space,
        broker_epoch_of=metadata.broker_epoch_of,
        lag_ms_max=node.settings.reader(node_settings.REPLICA_LAG_MS_MAX),
        on_isr_change=isr_keeper.check_soon,
        sessions_missed=lambda: lifecycle.sessions_missed,
        has_lease=lifecycle.has_lease,
        is_followed_by=up.is_followed_by,
        resign_leadership=isr_keeper.resign_leadership,
    )


def _build_fetch_source(
    node: NodeParts,
    storage: StorageParts,
    serving: ServingParts,
    metadata: MetadataParts,
    replica_manager: ReplicaManager,
) -> FetchSource:
    world, settings = node.world, node.settings
    return FetchSource(
        node_id=node.node_id,
        clock=world.clock,
        workers=world.workers,
        entropy=world.entropy,
        settings=settings.get,
        access=metadata.access,
        image=metadata.image,
        requests=serving.dispatcher.requests,
        partitions=storage.partitions,
        absence=replica_manager.absence,
        sessions=FetchSessions(
            node.static[node_settings.FETCH_SESSION_SLOTS],
            settings.reader(node_settings.MAX_REQUEST_ITEMS),
            world.entropy,
            settings.reader(MAX_FETCH_SESSION_PARTITIONS),
            node.limits.note,
        ),
        pending=PendingFetches(world.clock),
    )


# Coordinators of groups, transactions and share groups.


@dataclass(slots=True)
class CoordinatorPeers:
    """What a broker needs to write markers and ask for permissions."""

    node: NodeContext
    node_id: NodeId
    clock: Clock
    image: Image
    partitions: Partitions
    groups: Coordination[GroupShard]
    transactions: Coordination[TransactionShard]
    marker_peers: Peers
    permission_peers: Peers
    """Both wait for commits on other nodes, so each has its own connections."""

    @property
    def is_stopping(self) -> bool:
        return self.node.is_stopping


@dataclass(frozen=True, slots=True)
class CoordinationParts:
    groups: Coordination[GroupShard]
    transactions: Coordination[TransactionShard]
    shares: Coordination[ShareShard]
    producer_ids: ProducerIds
    peers: CoordinatorPeers
    markers: Markers
    permissions: Permissions
    share_state: ShareStateCalls
    topics: InternalTopics


def build_coordination(
    node: NodeParts,
    storage: StorageParts,
    metadata: MetadataParts,
    replicas: ReplicaParts,
    node_context: NodeContext,
    metadata_context: MetadataContext,
    load_coordinators: Callable[[], None],
    up: Upcalls,
) -> CoordinationParts:
    clock, journal, image = node.world.clock, node.journal, metadata.image

    def leads(topic: str, index: int) -> bool:
        partition = image.partition(topic, index)
        return partition is not None and partition.leader == node.node_id

    groups = Coordination(OFFSETS_TOPIC, up.group_shard_host, clock, journal, leads)
    transactions = Coordination(TRANSACTIONS_TOPIC, up.transaction_shard_host, clock, journal, leads)
    shares = Coordination(SHARE_STATE_TOPIC, up.share_shard_host, clock, journal, leads)
    peers = CoordinatorPeers(
        *(node_context, node.node_id, clock, image, storage.partitions, groups, transactions),
        marker_peers=Peers(node.world, node.client_id, metadata.addresses),
        permission_peers=Peers(node.world, node.client_id, metadata.addresses),
    )
    topics = InternalTopics(
        workers=node.world.workers,
        static=node.static,
        settings=node.settings.get,
        metadata=metadata_context,
        partitions=storage.partitions,
        replicas=replicas.replica_manager,
        groups=groups,
        transactions=transactions,
        shares=shares,
        load_coordinators=load_coordinators,
    )
    return CoordinationParts(
        groups=groups,
        transactions=transactions,
        shares=shares,
        producer_ids=ProducerIds(clock, partial(_allocate_producer_ids, metadata), reserve=PRODUCER_IDS_RESERVE),
        peers=peers,
        markers=Markers(peers),
        permissions=Permissions(peers),
        share_state=ShareStateCalls(
            node_id=node.node_id,
            client_id=node.client_id,
            clock=clock,
            image=image,
            shares=shares,
            # Shared: a coordinator that cannot commit must not delay the others on its node.
            peers=Peers(node.world, node.client_id, metadata.addresses, is_shared=True),
            create_topic=partial(topics.open, shares),
        ),
        topics=topics,
    )


def _allocate_producer_ids(metadata: MetadataParts) -> Later[ProducerIdBlock]:
    request = m.AllocateProducerIdsRequest(
        broker_id=metadata.controller.node_id, broker_epoch=metadata.lifecycle.broker_epoch
    )
    return metadata.controller_channel.ask(request, 0, ALLOCATE_MS).map(block_of).recover(Refused, no_block)


# Contexts of the API handlers.


def node_context_of(node: NodeParts, serving: ServingParts, metadata: MetadataParts) -> NodeContext:
    world, dispatcher = node.world, serving.dispatcher
    return NodeContext(
        node_id=node.node_id,
        live_settings=node.settings,
        world=world,
        clock=world.clock,
        workers=world.workers,
        entropy=world.entropy,
        journal=node.journal,
        loggers=node.loggers,
        listeners=serving.listeners,
        connections=serving.connections,
        addresses_for=partial(addresses_for, metadata.image),
        apis=dispatcher.all_apis,
        find_api=dispatcher.find_api,
        api_answers=ApiAnswers(),
        requests=dispatcher.requests,
    )


def security_context_of(node: NodeParts, serving: ServingParts, metadata: MetadataParts) -> SecurityContext:
    return SecurityContext(
        audit=node.audit,
        access=metadata.access,
        quotas=serving.quotas,
        limits=node.limits,
        logins=metadata.logins,
        token_proofs=metadata.token_proofs,
        node_user=node.node_user,
    )


def metadata_context_of(metadata: MetadataParts, replicas: ReplicaParts) -> MetadataContext:
    def once_shown(is_shown: Callable[[], bool], within_ms: int) -> Later[None]:
        if is_shown():
            return done(None)
        shown = metadata.image_watch.until(is_shown, within_ms)
        return shown.chain(lambda _: replicas.replica_manager.followed())

    return MetadataContext(
        image=metadata.image,
        controller=metadata.controller,
        controller_id=metadata.controller_id,
        controller_channel=metadata.controller_channel,
        lifecycle=metadata.lifecycle,
        heartbeats=metadata.heartbeats,
        once_shown=once_shown,
    )


def data_context_of(
    node: NodeParts,
    storage: StorageParts,
    serving: ServingParts,
    metadata: MetadataParts,
    upkeep: UpkeepParts,
    replicas: ReplicaParts,
    coordination: CoordinationParts,
    metadata_context: MetadataContext,
) -> DataContext:
    clock, settings = node.world.clock, node.settings
    shares = _shares_maker(node, storage, metadata, coordination, metadata_context)
    return DataContext(
        store=storage.store,
        partitions=storage.partitions,
        absence=replicas.replica_manager.absence,
        flusher=storage.flusher,
        checkpoints=storage.checkpoints,
        disk_watch=upkeep.disk_watch,
        fetch_source=replicas.fetch_source,
        replica_sessions=replicas.replica_sessions,
        replica_peers=Peers(node.world, node.client_id, metadata.addresses),
        producer_ids=coordination.producer_ids,
        acknowledgements=Acknowledgements(
            clock, serving.dispatcher.requests, settings.reader(node_settings.PRODUCE_WAIT_MAX_MS)
        ),
        unpacking=FairQueue(node.world.workers),
        shares=shares,
        shares_in_use=lambda: shares() if shares.cache_info().currsize else None,
    )


def _shares_maker(
    node: NodeParts,
    storage: StorageParts,
    metadata: MetadataParts,
    coordination: CoordinationParts,
    metadata_context: MetadataContext,
) -> _lru_cache_wrapper[ShareManager]:
    @cache
    def make() -> ShareManager:
        # Imported here because a node starts faster without it; the APIs of share groups have loaded it.
        from millpond.broker.administration.topic_creation import try_create
        from millpond.broker.shares.letters.office import LetterOffice
        from millpond.broker.shares.letters.target import LetterTarget
        from millpond.broker.shares.manager import ShareManager
        from millpond.broker.shares.share_leader import LeaderServices
        from millpond.metadata.topics import NewTopic

        clock, settings = node.world.clock, node.settings
        return ShareManager(
            partitions=storage.partitions,
            image=metadata.image,
            layers=settings.get_layers,
            settings=settings.get,
            services=LeaderServices(
                clock=clock,
                workers=node.world.workers,
                state=coordination.share_state,
                journal=node.journal,
                is_stopping=lambda: coordination.peers.is_stopping,
                letters=LetterOffice(
                    LetterTarget(
                        node_id=node.node_id,
                        clock=clock,
                        settings=settings.get,
                        image=metadata.image,
                        create_topic=lambda name: try_create(metadata_context, [NewTopic(name)]),
                        partitions=storage.partitions,
                        # Shared: letters for a partition that cannot commit must not delay others.
                        peers=Peers(node.world, node.client_id, metadata.addresses, is_shared=True),
                    ),
                    clock,
                ),
            ),
            turns=Turns(clock),
            on_limit=node.limits.note,
        )

    return make


def coordination_context_of(metadata: MetadataParts, coordination: CoordinationParts) -> CoordinationContext:
    return CoordinationContext(
        groups=coordination.groups,
        transactions=coordination.transactions,
        shares=coordination.shares,
        open_coordination=coordination.topics.open,
        create_topic=coordination.topics.create,
        addresses=metadata.addresses,
        markers=coordination.markers,
        marker_peers=coordination.peers.marker_peers,
        permissions=coordination.permissions,
        share_state=coordination.share_state,
        append_order=AppendOrder(),
        rebalances=RebalanceCounts(),
    )


# All of it.


@dataclass(frozen=True, slots=True)
class Parts:
    node: NodeParts
    storage: StorageParts
    serving: ServingParts
    metadata: MetadataParts
    upkeep: UpkeepParts
    replicas: ReplicaParts
    coordination: CoordinationParts
    contexts: Contexts


def build(
    world: World,
    settings: Settings,
    journal: Journal,
    supported: Supported,
    audit: Sink | None,
    *,
    load_apis: Callable[[], Sequence[Api]],
    load_coordinators: Callable[[], None],
    up: Upcalls,
) -> Parts:
    node = build_node(world, settings, journal, audit)
    storage = build_storage(node)
    serving = build_serving(node, load_apis, up)
    metadata = build_metadata(node, storage, serving, supported)
    upkeep = build_upkeep(node, storage, serving, metadata, up)
    replicas = build_replicas(node, storage, serving, metadata, upkeep, up)
    node_context = node_context_of(node, serving, metadata)
    metadata_context = metadata_context_of(metadata, replicas)
    coordination = build_coordination(
        node, storage, metadata, replicas, node_context, metadata_context, load_coordinators, up
    )
    contexts = Contexts(
        node_context,
        security_context_of(node, serving, metadata),
        metadata_context,
        data_context_of(node, storage, serving, metadata, upkeep, replicas, coordination, metadata_context),
        coordination_context_of(metadata, coordination),
    )
    # The only part completed later: it calls handlers with contexts that in turn refer to it.
    serving.dispatcher.begin(contexts)
    return Parts(node, storage, serving, metadata, upkeep, replicas, coordination, contexts)
