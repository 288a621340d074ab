"""One broker: puts the parts together over a world, starts them in order, and ends them in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import NodeId
from millpond.base.later import Later, done
from millpond.base.ports import World
from millpond.base.settings import Settings
from millpond.broker.administration.shared_settings import compare_with_controller
from millpond.broker.administration.topic_creation import CREATE_MS, VERSION, create_topics, request_for
from millpond.broker.audit.audit import Audit
from millpond.broker.authentication.login_parts import (
    in_the_clear,
    make_logins,
    node_login_of,
    node_user_of,
    token_proofs_of,
)
from millpond.broker.authentication.login_upkeep import LoginUpkeep
from millpond.broker.connections.connections import Connections
from millpond.broker.connections.listeners import Listeners, end_point_of
from millpond.broker.context import (
    Contexts,
    CoordinationContext,
    DataContext,
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
from millpond.broker.fetch.consumer_sessions import FetchSessions
from millpond.broker.fetch.pending_fetches import PendingFetches
from millpond.broker.fetch.replica_sessions import ReplicaSessions
from millpond.broker.fetch.source import FetchSource
from millpond.broker.housekeeping import Housekeeping
from millpond.broker.loop.journal import Journal
from millpond.broker.loop.loggers import Loggers
from millpond.broker.membership.heartbeats import Heartbeats
from millpond.broker.membership.lifecycle import Appearance, Lifecycle
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
from millpond.broker.requests.connection import Connection
from millpond.broker.security.arrivals import Arrivals
from millpond.broker.security.authorizer import access_of
from millpond.broker.security.fair_queue import FairQueue
from millpond.broker.security.met_limits import MetLimits
from millpond.broker.security.quotas import Quotas
from millpond.broker.serving.api import Api
from millpond.broker.serving.dispatch import Dispatcher
from millpond.broker.storage.checkpoint_writer import CheckpointWriter
from millpond.broker.storage.disk_reserve import DiskReserve
from millpond.broker.storage.disk_watch import DiskWatch
from millpond.broker.storage.flusher import Flusher
from millpond.config import node
from millpond.config.effective import NodeLayers
from millpond.config.listeners import WILDCARDS, ListenerSettings, controllers_of, listeners_of, preferred_of
from millpond.config.quota import MAX_FETCH_SESSION_PARTITIONS
from millpond.config.security import AUDIT_LOG_FILES, AUDIT_LOG_MAX_BYTES
from millpond.log.limits import LogLimits
from millpond.log.store import LogStore, OpenReport
from millpond.metadata.features import SUPPORTED, Supported
from millpond.metadata.image import ALL_BROKERS, INTERNAL_TOPICS, RESCUE_NAME, Image, Resource
from millpond.metadata.partition import METADATA_TOPIC_ID
from millpond.metadata.producer_ids import BLOCK_SIZE, ProducerIdBlock
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
from millpond.metadata.topics import NewTopic
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.audit.audit import Sink
    from millpond.coordinators.groups.shard import GroupShard
    from millpond.coordinators.transactions.shard import TransactionShard

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPIC_CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20), "compression.type": "producer"}

ALLOCATE_MS = 10_000
PRODUCER_IDS_RESERVE = BLOCK_SIZE // 2
STOCK_UP_AGAIN_MS = 2_000

DRAIN_MS = 500
"""How long a stopping broker lets answers reach their clients."""

DRAIN_SYNCS_MS = 5_000
"""How long it waits for syncs that are under way: with one of them open its end would not be a clean one."""

DRAIN_STEP_MS = 5

KNOWN_MS_MAX = 200
"""How long a controller that leaves waits for the others to hear of what is committed."""

KNOWN_STEP_MS = 1

CLOCKS_APART_MS = 300_000
"""So far the clocks of two nodes may be apart before anybody is told."""


class Broker:
    """Everything between the wire and the disk of one node. Runs in any `World`."""

    def __init__(
        self,
        world: World,
        settings: Settings,
        journal: Journal,
        supported: Supported = SUPPORTED,
        audit: Sink | None = None,
    ) -> None:
        """`audit` takes the lines of the audit log, if there is one."""
        listeners = listeners_of(settings)
        self.node_user = node_user_of(settings, world.disk)
        to_controllers = self._by_listener(world, settings, controllers_of(listeners))
        world = self._by_listener(world, settings, preferred_of(listeners))
        self.world = world
        self._to_controllers = to_controllers
        """The same world, with the way to the controller."""
        self.clock = world.clock
        self.workers = world.workers
        self.entropy = world.entropy
        self.journal = journal
        self.loggers = Loggers()
        self.node_id = NodeId(settings[node.NODE_ID])
        self._static = settings
        self.layers = NodeLayers(settings)
        self.settings = settings
        self.store = LogStore(world.disk, settings[node.DATA_FOLDER], LogLimits(), world.entropy)
        self.partitions = Partitions()
        self.flusher = Flusher(world.sync_workers, world.disk, settings[node.DATA_FOLDER])
        self.checkpoints = CheckpointWriter(self.store, world.sync_workers)
        self.limits = MetLimits(world.clock, journal)
        self.pending_fetches = PendingFetches(world.clock)
        self.fetch_sessions = FetchSessions(
            settings[node.FETCH_SESSION_SLOTS],
            lambda: self.settings[node.MAX_REQUEST_ITEMS],
            world.entropy,
            lambda: self.settings[MAX_FETCH_SESSION_PARTITIONS],
            self.limits.note,
        )
        kept_bytes = settings[AUDIT_LOG_MAX_BYTES] * settings[AUDIT_LOG_FILES]
        self.audit = Audit(audit, world.clock, settings[node.NODE_ID], kept_bytes)
        self.quotas = Quotas(world.clock, lambda: self.settings)
        self.arrivals = Arrivals(world.clock, lambda: self.settings, self.limits, self.audit.turned_away)
        self.dispatcher = Dispatcher(world.clock, load_apis)
        self.requests = self.dispatcher.requests
        self.acknowledgements = Acknowledgements(
            world.clock, self.requests, lambda: self.settings[node.PRODUCE_WAIT_MAX_MS]
        )
        self.rebalances = RebalanceCounts()
        self.listeners = Listeners(listeners)
        self.connections = Connections(self.dispatcher, world.clock, lambda: self.settings, self.arrivals, listeners)
        self.controller = Controller(to_controllers, self.store, settings, self.checkpoints, supported)
        is_one_way = preferred_of(listeners).is_to_controllers
        self.addresses = self.controller.addresses if is_one_way else NodeAddresses(settings, self.image)
        """Where the other nodes are, for all that is not asked of the controller."""
        self.access = access_of(settings, self.image, self.audit.refused)
        self.fetch_source = FetchSource(
            node_id=self.node_id,
            clock=world.clock,
            workers=world.workers,
            entropy=world.entropy,
            settings=lambda: self.settings,
            access=self.access,
            image=self.image,
            requests=self.requests,
            partitions=self.partitions,
            absence=self.absence,
            sessions=self.fetch_sessions,
            pending=self.pending_fetches,
        )
        self.replica_sessions = ReplicaSessions(
            self.fetch_source,
            self._broker_epoch_of,
            self._doubt,
            Throttle(lambda: self.settings[node.LEADER_THROTTLED_RATE]),
        )
        self.token_proofs = token_proofs_of(settings, self.image)
        self.logins = make_logins(
            *(world, lambda: self.settings, self.image, listeners_of(settings)),
            *(self.connections, self.token_proofs, self.node_user, self.audit),
            journal=journal,
        )
        self.connections.begin_login = self.logins.login_at
        self.connections.witness = self.audit
        self._login_upkeep = LoginUpkeep(world, self.controller, lambda: self.settings, journal)
        # Clients say how long their requests may take: none may end the wait of another.
        asked = self._controller_peers(is_shared=True).ask
        self.controller_channel = ControllerChannel(world.clock, self.controller, self.dispatcher.ask, asked)
        self.heartbeats = Heartbeats(
            clock=world.clock,
            controller=self.controller,
            layers=lambda: self.layers,
            settings=lambda: self.settings,
            journal=journal,
            lifelines=partial(Lifelines, world, f"{NODE_CLIENT_ID}{self.node_id}", self.addresses),
        )
        self.voter_keeper = VoterKeeper(world.clock, self.controller, lambda: self.settings, journal)
        # Its heartbeats wait behind nothing.
        beating = ControllerChannel(world.clock, self.controller, self.dispatcher.ask, self._controller_peers().ask)
        self.lifecycle = Lifecycle(
            world,
            settings,
            journal,
            self.controller,
            beating,
            forget_loss=self.store.forget_loss,
            room=self.store.files.room,
        )
        self.producer_ids = ProducerIds(self.clock, self._allocate_producer_ids, reserve=PRODUCER_IDS_RESERVE)
        self._image_watch = ImageWatch(world.clock)
        self.high_watermarks = HighWatermarks(
            world.clock,
            world.disk,
            settings[node.DATA_FOLDER],
            world.workers,
            self.partitions,
            journal,
            also=self._metadata_mark,
        )
        self.disk_watch = DiskWatch(
            clock=world.clock,
            disk=world.disk,
            folder=settings[node.DATA_FOLDER],
            low_water_bytes=lambda: self.settings[node.DISK_LOW_WATER_BYTES],
            journal=journal,
            room=self.store.files.room,
        )
        self.disk_reserve = DiskReserve(
            world.disk,
            settings[node.DATA_FOLDER],
            room=self.store.files.room,
            size_bytes=settings[node.DISK_RESERVE_BYTES],
            journal=journal,
            on_short=self._on_disk_full,
        )
        self.housekeeping = Housekeeping(
            clock=world.clock,
            workers=world.workers,
            settings=lambda: self.settings,
            partitions=self.partitions,
            store=self.store,
            flusher=self.flusher,
            checkpoints=self.checkpoints,
            sweep=self._sweep,
            note_high_watermarks=self.high_watermarks.write,
            journal=journal,
        )
        self.isr_keeper = IsrKeeper(
            node_id=self.node_id,
            clock=world.clock,
            partitions=self.partitions,
            lag_ms_max=lambda: self.settings[node.REPLICA_LAG_MS_MAX],
            broker_epoch_of=self._broker_epoch_of,
            # Who is in sync must not wait behind what clients ask for.
            ask_controller=ControllerChannel(
                world.clock, self.controller, self.dispatcher.ask, self._controller_peers().ask
            ).ask,
            journal=journal,
        )
        self.fetchers = ReplicaFetchers(
            FetcherServices(
                world=world,
                node_id=self.node_id,
                broker_epoch=lambda: self.lifecycle.broker_epoch,
                peers=Peers(world, f"{NODE_CLIENT_ID}{self.node_id}", self.addresses, for_bulk=True),
                store=self.store,
                flusher=self.flusher,
                checkpoints=self.checkpoints,
                journal=journal,
                throttle=Throttle(lambda: self.settings[node.FOLLOWER_THROTTLED_RATE]),
                room=self.store.files.room,
                on_cut=self._give_role,
            )
        )
        self._replica_manager = ReplicaManager(
            node_id=self.node_id,
            image=self.image,
            store=self.store,
            partitions=self.partitions,
            layers=lambda: self.layers,
            clock=world.clock,
            context=PartitionContext(
                node_id=self.node_id,
                clock=world.clock,
                flusher=self.flusher,
                flush=self.housekeeping.flush,
                can_join=self._can_join,
                has_room=lambda node_id: node_id not in self.image.full_brokers,
                broker_epoch_of=self._broker_epoch_of,
                lag_ms_max=lambda: self.settings[node.REPLICA_LAG_MS_MAX],
                on_isr_change=self.isr_keeper.look_soon,
                sessions_missed=lambda: self.lifecycle.sessions_missed,
                has_lease=lambda: self.lifecycle.has_lease(),
                is_followed_by=self.replica_sessions.is_followed_by,
                give_away=self.isr_keeper.give_away,
            ),
            fetchers=self.fetchers,
            high_watermark=self.high_watermarks.of,
            remove_later=self.housekeeping.remove_later,
            journal=journal,
            on_late=self._open_coordinations,
            report_lost_records=lambda: self.lifecycle.report_lost_records(),
        )
        self._failed_replicas = FailedReplicas(
            node_id=self.node_id,
            clock=world.clock,
            workers=world.workers,
            partitions=self.partitions,
            life=self.lifecycle,
            copy_anew=self._replica_manager.copy_anew,
            give_away=self.isr_keeper.give_away,
            journal=journal,
        )
        self._scrub = Scrub(
            clock=world.clock,
            partitions=self.partitions,
            bytes_per_second=lambda: self.settings[node.SCRUB_BYTES_PER_SECOND],
            check=self._failed_replicas.check,
        )
        self.groups: Coordination[GroupShard] = Coordination(
            OFFSETS_TOPIC, self._group_shard_host, world.clock, journal, self._leads
        )
        self.transactions: Coordination[TransactionShard] = Coordination(
            TRANSACTIONS_TOPIC, self._transaction_shard_host, world.clock, journal, self._leads
        )
        # What waits for a commit elsewhere has a connection of its own: it must not hold up what is answered at once.
        self.marker_peers = self._new_peers()
        self.markers = Markers(self)
        self.permission_peers = self._new_peers()
        self.replica_peers = self._new_peers()
        self.permissions = Permissions(self)
        self.contexts = self._contexts()
        self.dispatcher.begin(self.contexts)
        self.ready: Later[None] = Later()
        """Ends once this node serves."""
        self.is_stopping = False
        self._has_begun = False
        self._was_clean = False
        """Whether the last end was a clean one, and nothing is missing."""

    def _contexts(self) -> Contexts:
        return Contexts(
            NodeContext(
                node_id=self.node_id,
                settings=self.settings,
                layers=self.layers,
                world=self.world,
                clock=self.clock,
                workers=self.workers,
                entropy=self.entropy,
                journal=self.journal,
                loggers=self.loggers,
                listeners=self.listeners,
                connections=self.connections,
                addresses_for=self.addresses_for,
                apis=lambda: self.dispatcher.apis,
                api_answers=ApiAnswers(),
                requests=self.requests,
            ),
            SecurityContext(
                audit=self.audit,
                access=self.access,
                quotas=self.quotas,
                limits=self.limits,
                logins=self.logins,
                token_proofs=self.token_proofs,
                node_user=self.node_user,
            ),
            MetadataContext(
                image=self.image,
                controller=self.controller,
                controller_id=lambda: self.controller_id,
                controller_channel=self.controller_channel,
                lifecycle=self.lifecycle,
                heartbeats=self.heartbeats,
                once_shown=self.once_shown,
                try_create=self.try_create,
                create_topic=self.create_topic,
            ),
            DataContext(
                store=self.store,
                partitions=self.partitions,
                absence=self.absence,
                flusher=self.flusher,
                checkpoints=self.checkpoints,
                disk_watch=self.disk_watch,
                fetch_source=self.fetch_source,
                replica_sessions=self.replica_sessions,
                replica_peers=self.replica_peers,
                producer_ids=self.producer_ids,
                acknowledgements=self.acknowledgements,
                unpacking=FairQueue(self.workers),
            ),
            CoordinationContext(
                groups=self.groups,
                transactions=self.transactions,
                open_coordination=self.open_coordination,
                addresses=self.addresses,
                markers=self.markers,
                marker_peers=self.marker_peers,
                permissions=self.permissions,
                append_order=AppendOrder(),
                rebalances=self.rebalances,
            ),
        )

    @property
    def apis(self) -> Sequence[Api]:
        return self.dispatcher.apis

    @property
    def image(self) -> Image:
        return self.controller.image

    @property
    def address(self) -> tuple[str, int]:
        """Where this broker listens for clients, or listened until it began to drain."""
        return self.listeners.address

    # Starting.

    def start(self) -> None:
        """Recover, then listen. OSError when the folder or the address cannot be had."""
        # From the first moment on: a clock that is set right soon after a start is a leap like any other.
        self.store.retention_now(self.clock.wall_ms(), self.clock.monotonic_ms())
        self.store.lock()
        self.disk_reserve.prepare()
        report = self.store.open(self.clock.wall_ms())
        self._was_clean = report.clean and not report.has_lost
        for name, reason in report.failed.items():
            self.journal("partition cannot be opened", partition=name.folder, reason=reason)
        for note in report.notes:
            self.journal("recovery", note=note)
        for listener in in_the_clear(self._static, listeners_of(self._static)):
            self.journal("passwords can be read on their way: use SASL_SSL, or only SCRAM", listener=listener)
        self.high_watermarks.load()
        self.listeners.open(self.world.network, self.connections.accept)
        self.controller.load(self.listeners.end_points(), after_crash=not self._was_clean)
        if self.controller.is_copy:
            self.journal(
                "the data folder is a copy: this node has no vote, and is in sync only when it has caught up",
                otherwise="where all nodes were moved or restored: millpond cluster rescue --restored",
            )
        self._read_broker_settings()
        self._follow_quotas(self.image.quotas.records())
        self.controller.on_change(self._on_records)
        self.controller.on_offset(self._image_watch.on_change)
        self.controller.on_change(self.heartbeats.on_records)
        self.controller.on_role(self.heartbeats.on_role)
        self.controller.on_role(self.lifecycle.on_role)
        self.controller.on_change(self.voter_keeper.on_records)
        self.controller.on_change(self.logins.on_records)
        self.controller.on_change(self._login_upkeep.on_records)
        self.controller.on_role(self._login_upkeep.on_role)
        self.controller.on_role(self.voter_keeper.on_role)
        self.lifecycle.on_cut_off(self._on_cut_off)
        self.controller.on_room_change(self.isr_keeper.look_again)
        self.controller.outlived.then(lambda _: self.lifecycle.outlive())
        for setting, deed in self.image.config_of(ALL_BROKERS).items():
            if setting.startswith(RESCUE_NAME):
                self.journal("this cluster was rescued", number=setting.removeprefix(RESCUE_NAME), when=deed)
        if not self.controller.is_alone:
            self.controller.on_role(self._tell_role)
        self.controller.on_first_peer(self._on_first_peer)
        self._join(report)
        self.lifecycle.ready.then(self._on_ready)
        self.housekeeping.start()
        self.isr_keeper.start()
        if not self.controller.is_alone:
            self._begin_with_others()

    def _begin_with_others(self) -> None:
        self.housekeeping.note_high_watermarks()
        self._failed_replicas.start()
        self._scrub.start()

    def _on_ready(self, _: None) -> None:
        self._stock_up()
        self.ready.finish(None)

    def _on_first_peer(self) -> None:
        """Another node has registered: what only one of several does begins now, without a stop."""
        self.journal("this node is alone no more", nodes=len(self.image.brokers))
        self.workers.run(load_coordinators).then(lambda _: None)
        self.controller.on_role(self._tell_role)
        self.lifecycle.go_on_with_others(self._appearance())
        self._begin_with_others()
        self._stock_up()

    def _join(self, report: OpenReport) -> None:
        """Become one of the cluster: at once where this node is all of it, else as soon as the controller says so."""
        if self.controller.is_alone:
            registered = self.image.brokers[self.node_id]
            self.lifecycle.start_alone(registered.epoch, registered.incarnation_id)
            self._begin(at_once=True)
            return
        # The middle of a failover is no time to read code.
        load_apis()
        load_coordinators()
        self.lifecycle.start(self._appearance(), was_clean=report.clean, has_lost=report.has_lost)

    def _appearance(self) -> Appearance:
        written = [each.host for each in node.cluster_nodes(self._static) if each.node_id == self.node_id]
        instead = None
        if not written:
            # The address by which its first companion reached it, or that it had before.
            known = self.addresses(self.node_id)
            instead = None if known is None else known[0]
        elif not node.is_loopback(written[0]):
            # Others know it by the address that the operator wrote down for it. Where that is of no use to them, all
            # nodes are on one machine, and whoever reaches one of them reaches all by the same host.
            instead = written[0]
        end_points = tuple(
            replace(each, host=instead) if instead is not None and each.host in WILDCARDS else each
            for each in self.listeners.end_points()
        )
        return Appearance(end_points, self.controller.directory_id)

    def _begin(self, *, at_once: bool) -> None:
        """The metadata speaks to this life of the node: open its replicas, and lead and follow from now on."""
        self._has_begun = True
        if not self.controller.is_alone:
            self._compare_clocks()
            compare_with_controller(self.contexts.node, self.contexts.metadata)
        self._replica_manager.open_all(at_once=at_once)
        self._replica_manager.followed().then(lambda _: self._on_opened())

    def _on_opened(self) -> None:
        ours = self.image.partitions_of(self.node_id)
        self.high_watermarks.forget_but((topic.id, index) for topic, index, _ in ours)
        self._on_leaders_changed()

    def _compare_clocks(self) -> None:
        """The controller has stamped this node's registration just now: by that its own clock can be judged.

        One that is far ahead would find all records too old, and delete them on every replica of what it leads.
        """
        written_ms = self.controller.written_ms(self.image.brokers[self.node_id].epoch)
        if written_ms is None:
            return
        ahead_ms = self.clock.wall_ms() - written_ms
        if abs(ahead_ms) > CLOCKS_APART_MS:
            self.journal(
                "the clock of this node differs from the controller's: set it right",
                ahead_seconds=ahead_ms // 1000,
                controller=self.controller.leader_id,
            )
        if ahead_ms > CLOCKS_APART_MS:
            self.store.hold_back(ahead_ms)

    def _tell_role(self, is_active: bool) -> None:
        event = "this node is the active controller" if is_active else "this node is the active controller no more"
        self.journal(event, epoch=self.controller.leader_epoch)

    def advertised(self) -> tuple[str, int]:
        """Where clients are told to connect, as far as that is the same for all of them."""
        return self.listeners.advertised()

    def addresses_for(
        self, connection: Connection, *, with_fenced: bool = False
    ) -> list[tuple[int, str, int, str | None]]:
        """Id, host, port and rack of every broker that lives, as this client can reach it: by the listener that it
        came in by.

        A node that listens on every address tells each client the one that it came in by; others that do so are on
        the same machine.
        """
        addresses = []
        for broker in list(self.image.brokers.values()):
            end_point = end_point_of(broker.end_points, connection.link.listener)
            if (broker.fenced and not with_fenced) or end_point is None:
                continue
            host = connection.link.local_host if end_point.host in WILDCARDS else end_point.host
            addresses.append((int(broker.id), host, end_point.port, broker.rack))
        return addresses

    @property
    def controller_id(self) -> int:
        """Whom clients are told to ask for what a controller decides; any broker sends it on to the one that is."""
        leader = self.image.brokers.get(self.controller.leader_id)
        return self.node_id if leader is None or leader.fenced else leader.id

    def absence(self, topic: str | UUID, index: int) -> ErrorCode:
        """Why a partition is not open here: it does not exist, is not made yet, or is offline until repaired."""
        by_name = isinstance(topic, str)
        known = self.image.topics.get(topic) if isinstance(topic, str) else self.image.topics_by_id.get(topic)
        if known is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID
        if not 0 <= index < len(known.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self.node_id not in known.partitions[index].replicas or self._replica_manager.is_to_open(known.id, index):
            # Every client asks again then. Not so for LEADER_NOT_AVAILABLE: no fetch may be answered by that.
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.KAFKA_STORAGE_ERROR

    # While running.

    def try_create(
        self, topics: Sequence[NewTopic], *, by_broker: bool = False
    ) -> Later[m.CreateTopicsResponse | None]:
        """Bring topics into being; ends when it has been tried, with what came of it if anybody could be asked."""
        request = request_for([each for each in topics if by_broker or each.name not in INTERNAL_TOPICS])
        return create_topics(self.contexts.metadata, request, VERSION, CREATE_MS).recover(Refused, lambda _: None)

    def once_shown(self, is_shown: Callable[[], bool], within_ms: int) -> Later[None]:
        """Ends once the image shows it and the logs have followed, or when the time is over."""
        if is_shown():
            return done(None)
        return self._image_watch.until(is_shown, within_ms).chain(lambda _: self._replica_manager.followed())

    def _allocate_producer_ids(self) -> Later[ProducerIdBlock]:
        request = m.AllocateProducerIdsRequest(broker_id=self.node_id, broker_epoch=self.lifecycle.broker_epoch)
        return self.controller_channel.ask(request, 0, ALLOCATE_MS).map(block_of).recover(Refused, no_block)

    def _stock_up(self) -> None:
        """Have producer ids at hand from the beginning: who asks for one may come once no controller is heard."""
        if not self.is_stopping and not self.controller.is_alone and not self.producer_ids.is_stocked:
            self.producer_ids.stock_up()
            self.clock.call_later(STOCK_UP_AGAIN_MS, self._stock_up)

    def _on_records(self, records: Sequence[Record]) -> Later[None]:
        if any(isinstance(each, ConfigRecord) and each.resource_type == ResourceType.BROKER for each in records):
            self._read_broker_settings()
        self._follow_quotas(each for each in records if isinstance(each, ClientQuotaRecord))
        if not self._has_begun:
            if not self.is_stopping and self.lifecycle.knows_itself:
                self._begin(at_once=False)
            self._image_watch.on_change()
            return done(None)
        gone = [
            self._replica_manager.name_of(each.topic_id) for each in records if isinstance(each, RemoveTopicRecord)
        ]
        removed = [name for name in gone if name is not None]
        followed = self._replica_manager.on_records(records)
        if removed:
            self.groups.run_everywhere(lambda shard, now_ms: shard.on_topics_deleted(removed, now_ms))
        grown = {each.topic_id for each in records if isinstance(each, TopicRecord | PartitionRecord)}
        topics = [self.image.topics_by_id[each].name for each in grown if each in self.image.topics_by_id]
        changed = sorted({*removed, *topics})
        if changed:
            for shard_host in self.groups.shard_hosts():
                shard_host.run(lambda shard, now_ms: shard.on_topics_changed(changed, now_ms))
        self._image_watch.on_change()
        if any(isinstance(each, RegisterBrokerRecord | BrokerRegistrationChangeRecord) for each in records):
            self.isr_keeper.look_again()
        if any(isinstance(each, PartitionRecord | PartitionChangeRecord | LeadAnewRecord) for each in records):
            return followed.map(lambda _: self._on_leaders_changed())
        return followed

    def _metadata_mark(self) -> list[Mark]:
        """Up to where the metadata are known to be committed, for whoever has to go on from this folder alone."""
        return [] if self.controller.is_alone else [(METADATA_TOPIC_ID, 0, self.controller.applied_offset)]

    def _broker_epoch_of(self, node_id: int) -> int:
        broker = self.image.brokers.get(node_id)
        return -1 if broker is None else broker.epoch

    def _on_leaders_changed(self) -> None:
        """Leaders have changed, here or elsewhere, and the logs have followed."""
        if not self.is_stopping:
            self._open_coordinations()
            self.markers.on_leaders_changed()

    def _doubt(self, partition: Partition, offset: int) -> None:
        self._failed_replicas.doubt(partition, offset)

    def _give_role(self, partition: Partition) -> None:
        self._replica_manager.give_role(partition)
        self._on_leaders_changed()

    def _on_cut_off(self) -> None:
        """Whoever waits here for replicas that others may lead by now is better off there."""
        for partition in self.partitions:
            if partition.leading is not None:
                partition.leading.on_cut_off()

    def _can_join(self, node_id: int, broker_epoch: int) -> bool:
        """Whether a follower may be in sync: it is the one that the metadata knows, and stays."""
        broker = self.image.brokers.get(node_id)
        return broker is not None and broker.is_active and broker.epoch == broker_epoch

    # Coordinators.

    def _by_listener(self, world: World, settings: Settings, listener: ListenerSettings) -> World:
        """The world of a node that goes to the others by this listener of theirs."""
        login = node_login_of(settings, listener, self.node_user, world.entropy)
        if listener.peer_tls is None and login is None:
            return world
        return replace(world, network=NodeNetwork(world.network, listener.peer_tls, login))

    def _new_peers(self) -> Peers:
        return Peers(self.world, f"{NODE_CLIENT_ID}{self.node_id}", self.addresses)

    def _controller_peers(self, *, is_shared: bool = False) -> Peers:
        client_id = f"{NODE_CLIENT_ID}{self.node_id}"
        return Peers(self._to_controllers, client_id, self.controller.addresses, is_shared=is_shared)

    def _leads(self, topic: str, index: int) -> bool:
        known = self.image.partition(topic, index)
        return known is not None and known.leader == self.node_id

    def _group_shard_host(self, partition: Partition) -> ShardHost[GroupShard]:
        from millpond.broker.coordinator_calls.groups import group_shard_host

        return self.contexts.bind(group_shard_host)(partition)

    def _transaction_shard_host(self, partition: Partition) -> ShardHost[TransactionShard]:
        from millpond.broker.coordinator_calls.transactions import transaction_shard_host

        return self.contexts.bind(transaction_shard_host)(partition)

    def _open_coordinations(self) -> None:
        # Groups first: the markers that a coordinator of transactions writes on loading may be for them.
        for coordination in (self.groups, self.transactions):
            topic = self.image.topics.get(coordination.topic)
            # All of its partitions or none: a key whose own has yet to be made would be turned away.
            if topic is not None and not self._replica_manager.is_to_open(topic.id):
                coordination.follow(self.partitions.of_topic(topic.id), len(topic.partitions))

    def open_coordination(self, coordination: Coordination[Any]) -> Later[None]:
        """Bring the coordinator's topic into being; ends when it has been tried."""
        if self.controller.is_alone:
            # Not on the loop: the first to ask for a group would hold up all others while its code is read.
            return self.workers.run(load_coordinators).chain(lambda _: self._make_coordination(coordination))
        return self._make_coordination(coordination)

    def _make_coordination(self, coordination: Coordination[Any]) -> Later[None]:
        is_groups = coordination.topic == OFFSETS_TOPIC
        count = self.settings[node.OFFSETS_TOPIC_PARTITIONS if is_groups else node.TRANSACTION_TOPIC_PARTITIONS]
        configs = dict(INTERNAL_TOPIC_CONFIG)
        if (in_sync := node.internal_in_sync_min(self._static, len(self.image.brokers))) > 1:
            configs["min.insync.replicas"] = str(in_sync)
        opened: Later[None] = Later()

        def tried(_: None) -> None:
            # Not a step that the asker could cancel: others need the coordinator, too.
            self._open_coordinations()
            opened.finish(None)

        self.create_topic(coordination.topic, count, configs).then(tried)
        return opened

    def create_topic(self, name: str, count: int, configs: Mapping[str, str]) -> Later[None]:
        """Bring a topic of the broker's own into being; ends when it has been tried."""
        replicas = node.internal_replicas(self._static, len(self.image.brokers))
        wanted = NewTopic(name, count, replicas, configs=tuple(configs.items()))
        tried = self.try_create([wanted], by_broker=True)
        # Somebody else may have been first with it and its partitions not be there yet.
        return tried.chain(lambda _: self._replica_manager.followed())

    def _read_broker_settings(self) -> None:
        own = self.image.config_of(Resource(ResourceType.BROKER, str(self.node_id)))
        self.layers = self.contexts.node.layers = NodeLayers(self._static, own, self.image.config_of(ALL_BROKERS))
        self.settings = self.contexts.node.settings = self.layers.settings()

    def _follow_quotas(self, records: Iterable[ClientQuotaRecord]) -> None:
        for each in records:
            self.quotas.replay(each)
            self.arrivals.replay(each)

    def _sweep(self) -> None:
        """What is looked at once a second."""
        self.connections.drop_idle()
        self.disk_reserve.look()
        if self.store.files.room.is_short:
            self.housekeeping.make_room()
        self.disk_watch.look()

    def _on_disk_full(self) -> None:
        """This node cannot follow until there is room: whoever leads must not take it for one that keeps up."""
        self.fetchers.pause()

    # Ending.

    def drain(self, done: Callable[[], None]) -> None:
        """Hand over, take no more clients, answer whoever waits, close connections; then `done`. Never takes long."""
        self.lifecycle.leave(lambda: self._drain_once_known(done, self.clock.monotonic_ms() + KNOWN_MS_MAX))

    def _drain_once_known(self, done: Callable[[], None], until_ms: int) -> None:
        """Without a controller nobody hears that this node has handed over: not before a next one is elected."""
        if self.controller.is_known_to_all or self.clock.monotonic_ms() >= until_ms:
            self._drain(done)
        else:
            self.clock.call_later(KNOWN_STEP_MS, lambda: self._drain_once_known(done, until_ms))

    def _drain(self, done: Callable[[], None]) -> None:
        if not self.listeners.is_open:
            return
        self.listeners.close()
        self.housekeeping.stop()
        self.heartbeats.stop()
        self.voter_keeper.stop()
        self._login_upkeep.stop()
        self.isr_keeper.stop()
        self._failed_replicas.stop()
        self._scrub.stop()
        self.controller.resign()
        self.is_stopping = self.contexts.node.is_stopping = True
        self._replica_manager.stop()
        self.fetchers.stop()
        self.groups.stop()
        self.transactions.stop()
        for partition in self.partitions:
            partition.dismiss_watchers()
        began_ms = self.clock.monotonic_ms()

        def step() -> None:
            self.connections.begin_closing()
            waited_ms = self.clock.monotonic_ms() - began_ms
            if (self.connections.count_waiting() and waited_ms < DRAIN_MS) or is_busy(waited_ms):
                self.clock.call_later(DRAIN_STEP_MS, step)
            else:
                self.connections.drop_all()
                # Whoever never stops asking has written in this very turn: unsynced, that would be no clean end.
                self.clock.call_soon(end)

        def end() -> None:
            if is_busy(self.clock.monotonic_ms() - began_ms):
                self.clock.call_later(DRAIN_STEP_MS, end)
            else:
                done()

        def is_busy(waited_ms: int) -> bool:
            parts = (self.flusher, self.controller, self.checkpoints, self.fetchers)
            return waited_ms < DRAIN_SYNCS_MS and not all(part.is_idle() for part in parts)

        step()

    def close(self) -> None:
        """Force everything to disk and mark the folder as cleanly left.

        Not after a start that has failed, or was given up, before it was written down what it found after a crash.
        """
        self.controller.close()
        self.high_watermarks.close()
        try:
            self.store.close(is_vouched=self._was_clean or self.lifecycle.is_noted)
        except OSError as error:
            # Nothing is lost by that, and whoever ends has more to end.
            self.journal("the next start looks at every log: the end could not be noted", error=str(error))


def load_apis() -> Sequence[Api]:
    """The code that answers clients. A node that is alone is ready without it, and reads it then beside the loop."""
    from millpond.broker.apis import APIS

    m.load()
    return APIS


def load_coordinators() -> None:
    """The code of coordinators, which one of several nodes may have to be at any moment."""
    import millpond.broker.coordinator_calls.groups
    import millpond.broker.coordinator_calls.transactions
    import millpond.coordinators.groups.refusals
    import millpond.coordinators.transactions.replies  # noqa: F401
