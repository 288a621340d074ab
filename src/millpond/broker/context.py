"""What the handlers of APIs work with, as five narrow values.

A handler names those that it needs as its first parameters, in the order of `Contexts`; the dispatcher passes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from inspect import signature
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

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
    from millpond.broker.fetch.replica_sessions import ReplicaSessions
    from millpond.broker.fetch.source import FetchSource
    from millpond.broker.loop.journal import Journal
    from millpond.broker.loop.loggers import Loggers
    from millpond.broker.membership.heartbeats import Heartbeats
    from millpond.broker.membership.lifecycle import Lifecycle
    from millpond.broker.peers.controller_channel import ControllerChannel
    from millpond.broker.peers.peers import NodeAddresses, Peers
    from millpond.broker.replication.acknowledgements import Acknowledgements
    from millpond.broker.replication.partitions import Partitions
    from millpond.broker.requests.api_versions import ApiAnswers
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
    from millpond.wire import messages as m

R = TypeVar("R")


class ServedApi(Protocol):
    """An API as clients hear of it."""

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


@dataclass(slots=True)
class NodeContext:
    """This node: its settings, its world, and the connections of its clients."""

    node_id: NodeId
    settings: Settings
    layers: NodeLayers
    world: World
    clock: Clock
    workers: Workers
    entropy: Entropy
    journal: Journal
    loggers: Loggers
    listeners: Listeners
    connections: Connections
    addresses_for: Callable[..., list[tuple[int, str, int, str | None]]]
    """Where each broker listens, as a client on this connection reaches it."""
    apis: Callable[[], Sequence[Any]]
    api_answers: ApiAnswers
    requests: RequestCounts
    is_stopping: bool = False


@dataclass(slots=True)
class SecurityContext:
    """Who may do what, and how much of it."""

    audit: Audit
    access: Access
    quotas: Quotas
    limits: MetLimits
    logins: Logins
    token_proofs: TokenProofs
    node_user: NodeUser | None


@dataclass(slots=True)
class MetadataContext:
    """The metadata of the cluster: the image of this node, and the controller that changes it."""

    image: Image
    controller: Controller
    controller_id: Callable[[], int]
    """The controller as clients know it: a broker that is not fenced."""
    controller_channel: ControllerChannel
    lifecycle: Lifecycle
    heartbeats: Heartbeats
    once_shown: Callable[[Callable[[], bool], int], Later[None]]
    """Ends once the image shows it and the logs have followed, or when the time is over."""
    try_create: Callable[..., Later[m.CreateTopicsResponse | None]]
    create_topic: Callable[[str, int, Mapping[str, str]], Later[None]]


@dataclass(slots=True)
class DataContext:
    """The partitions of this node and what keeps them on disk."""

    store: LogStore
    partitions: Partitions
    absence: Callable[[str | UUID, int], ErrorCode]
    """Why a partition is not open here."""
    flusher: Flusher
    checkpoints: CheckpointWriter
    disk_watch: DiskWatch
    fetch_source: FetchSource
    replica_sessions: ReplicaSessions
    replica_peers: Peers
    producer_ids: ProducerIds
    acknowledgements: Acknowledgements
    unpacking: FairQueue
    """Unpacking batches for clients: few jobs at once, so that workers are left for everything else."""


@dataclass(slots=True)
class CoordinationContext:
    """The coordinators of groups and transactions."""

    groups: Coordination[GroupShard]
    transactions: Coordination[TransactionShard]
    open_coordination: Callable[[Coordination[Any]], Later[None]]
    """Creates the coordinator's topic; ends when it has been tried."""
    addresses: NodeAddresses
    markers: Markers
    marker_peers: Peers
    permissions: Permissions
    append_order: AppendOrder
    rebalances: RebalanceCounts


@dataclass(frozen=True, slots=True)
class Contexts:
    """All of them; the names of the fields are those of the parameters."""

    node: NodeContext
    security: SecurityContext
    metadata: MetadataContext
    data: DataContext
    coordination: CoordinationContext

    def bind(self, function: Callable[..., R]) -> Callable[..., R]:
        """The function with the contexts that its first parameters name."""
        return partial(function, *(getattr(self, name) for name in context_names(function)))


def context_names(function: Callable[..., Any]) -> list[str]:
    """Which contexts a function takes."""
    return list(takewhile(_NAMES.__contains__, signature(function).parameters))


_NAMES = {each.name for each in fields(Contexts)}
