"""What the handlers of APIs are given of a broker: its parts by name, and the few things that it does as a whole.

Handlers know this and not the broker that puts them all together: who changes one of them need not read the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from uuid import UUID

    from millpond.base.errors import ErrorCode
    from millpond.base.ids import NodeId
    from millpond.base.later import Later
    from millpond.base.ports import Clock, Entropy, Workers, World
    from millpond.base.settings import Settings
    from millpond.broker.audit.audit import Audit
    from millpond.broker.authentication.logins import Logins
    from millpond.broker.connections.connections import Connections
    from millpond.broker.connections.listeners import Listeners
    from millpond.broker.controller.controller import Controller
    from millpond.broker.coordination.append_order import AppendOrder
    from millpond.broker.coordination.coordination import Coordination
    from millpond.broker.coordination.markers import Markers
    from millpond.broker.coordination.permissions import Permissions
    from millpond.broker.coordination.producer_ids import ProducerIds
    from millpond.broker.coordination.rebalance_counts import RebalanceCounts
    from millpond.broker.fetch_sessions.consumer_sessions import FetchSessions
    from millpond.broker.fetch_sessions.parked import ParkedFetches
    from millpond.broker.fetch_sessions.replica_sessions import ReplicaSessions
    from millpond.broker.loop.journal import Journal
    from millpond.broker.loop.loggers import Loggers
    from millpond.broker.membership.heartbeats import Sessions
    from millpond.broker.membership.lifecycle import Lifecycle
    from millpond.broker.peers.controller_channel import ToController
    from millpond.broker.peers.peers import NodeAddresses, Peers
    from millpond.broker.replication.acknowledgements import Acknowledgements
    from millpond.broker.replication.partitions import Partitions
    from millpond.broker.requests.api_versions import ApiAnswers
    from millpond.broker.requests.connection import Connection
    from millpond.broker.requests.request_counts import RequestCounts
    from millpond.broker.security.access import Access
    from millpond.broker.security.directory import NodeUser
    from millpond.broker.security.fair_queue import FairQueue
    from millpond.broker.security.met_limits import MetLimits
    from millpond.broker.security.quotas import Quotas
    from millpond.broker.security.token_proofs import TokenProofs
    from millpond.broker.storage.checkpoint_writer import CheckpointWriter
    from millpond.broker.storage.disk_watch import DiskWatch
    from millpond.broker.storage.flusher import Flusher
    from millpond.config.effective import NodeLayers
    from millpond.coordinators.groups.shard import GroupShard
    from millpond.coordinators.transactions.shard import TransactionShard
    from millpond.log.store import LogStore
    from millpond.metadata.image import Image
    from millpond.metadata.topics import NewTopic
    from millpond.wire import messages as m


class ServedApi(Protocol):
    """What is said of an API to clients."""

    @property
    def key(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def versions(self) -> tuple[int, int]: ...

    @property
    def advertised(self) -> tuple[int, int] | None: ...

    @property
    def is_advertised(self) -> bool: ...


class Services(Protocol):
    # Who it is, and what it goes by.

    node_id: NodeId
    settings: Settings
    layers: NodeLayers
    is_stopping: bool

    @property
    def address(self) -> tuple[str, int]: ...

    @property
    def apis(self) -> Sequence[ServedApi]: ...

    def advertised(self) -> tuple[str, int]: ...

    def addresses_for(
        self, connection: Connection, *, with_fenced: bool = False
    ) -> list[tuple[int, str, int, str | None]]: ...

    @property
    def controller_id(self) -> int: ...

    # The world.

    world: World
    clock: Clock
    workers: Workers
    unpacking: FairQueue
    """Unpacking batches for clients: few jobs at once, so that workers are left for everything else."""
    entropy: Entropy
    journal: Journal
    loggers: Loggers

    # Who may do what.

    audit: Audit
    access: Access
    quotas: Quotas
    limits: MetLimits
    logins: Logins
    token_proofs: TokenProofs
    node_user: NodeUser | None

    # What is counted.

    connections: Connections
    listeners: Listeners
    requests: RequestCounts
    acknowledgements: Acknowledgements
    api_answers: ApiAnswers
    rebalances: RebalanceCounts

    # Metadata.

    controller: Controller
    lifecycle: Lifecycle

    @property
    def image(self) -> Image: ...

    to_controller: ToController
    sessions: Sessions

    def once_shown(self, is_shown: Callable[[], bool], within_ms: int) -> Later[None]: ...

    def try_create(
        self, topics: Sequence[NewTopic], *, by_broker: bool = False
    ) -> Later[m.CreateTopicsResponse | None]: ...

    def create_topic(self, name: str, count: int, configs: Mapping[str, str]) -> Later[None]: ...

    # Records.

    store: LogStore
    partitions: Partitions
    flusher: Flusher
    disk_watch: DiskWatch
    checkpoints: CheckpointWriter
    fetch_sessions: FetchSessions
    parked_fetches: ParkedFetches
    replica_sessions: ReplicaSessions
    replica_peers: Peers
    producer_ids: ProducerIds

    def absence(self, topic: str | UUID, index: int) -> ErrorCode: ...

    # Coordinators.

    groups: Coordination[GroupShard]
    transactions: Coordination[TransactionShard]
    addresses: NodeAddresses
    markers: Markers
    marker_peers: Peers
    permissions: Permissions
    append_order: AppendOrder

    def open_coordination(self, coordination: Coordination[Any]) -> Later[None]: ...
