"""The contexts of API handlers: five narrow values.

A handler names the contexts that it needs as its first parameters; the dispatcher passes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from inspect import signature
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from millpond.config.effective import NodeLayers
from millpond.metadata.image import ALL_BROKERS, Resource
from millpond.metadata.records import ResourceType

if TYPE_CHECKING:
    from uuid import UUID

    from millpond.base.errors import ErrorCode
    from millpond.base.ids import NodeId
    from millpond.base.later import Later
    from millpond.base.ports import Clock, Entropy, Workers, World
    from millpond.base.settings import Setting, Settings
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
    from millpond.broker.coordination.share_state import ShareStateCalls
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
    from millpond.broker.shares.manager import ShareManager
    from millpond.broker.storage.checkpoint_writer import CheckpointWriter
    from millpond.broker.storage.disk_watch import DiskWatch
    from millpond.broker.storage.flusher import Flusher
    from millpond.coordinators.groups.shard import GroupShard
    from millpond.coordinators.shares.shard import ShareShard
    from millpond.coordinators.transactions.shard import TransactionShard
    from millpond.log.store import LogStore
    from millpond.metadata.image import Image

R = TypeVar("R")
V = TypeVar("V", bool, int, float, str, tuple[str, ...])


class ServedApi(Protocol):
    """An API as clients see it."""

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


class LiveSettings:
    """The settings of this node as they are now: the static ones, overridden by what the metadata sets."""

    __slots__ = ("_static", "current", "layers")

    def __init__(self, static: Settings) -> None:
        self._static = static
        self.layers = NodeLayers(static)
        self.current = static

    def get(self) -> Settings:
        return self.current

    def get_layers(self) -> NodeLayers:
        return self.layers

    def reader(self, setting: Setting[V]) -> Callable[[], V]:
        """A function that returns the current value of one setting."""
        return lambda: self.current[setting]

    def follow(self, image: Image, node_id: NodeId) -> None:
        """Apply the settings in the metadata for this node and for all brokers."""
        own = image.config_of(Resource(ResourceType.BROKER, str(node_id)))
        self.layers = NodeLayers(self._static, own, image.config_of(ALL_BROKERS))
        self.current = self.layers.settings()


@dataclass(slots=True)
class NodeContext:
    """This node: its settings, its world, and the connections of its clients."""

    node_id: NodeId
    live_settings: LiveSettings
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
    find_api: Callable[[int], Any | None]
    """The API with this key, bound to the contexts."""
    api_answers: ApiAnswers
    requests: RequestCounts
    is_stopping: bool = False

    @property
    def settings(self) -> Settings:
        return self.live_settings.current

    @property
    def layers(self) -> NodeLayers:
        return self.live_settings.layers


@dataclass(slots=True)
class SecurityContext:
    """Authentication, authorization and quotas."""

    audit: Audit
    access: Access
    quotas: Quotas
    limits: MetLimits
    logins: Logins
    token_proofs: TokenProofs
    node_user: NodeUser | None


@dataclass(slots=True)
class MetadataContext:
    """The metadata of the cluster: its image on this node, and the controller that changes it."""

    image: Image
    controller: Controller
    controller_id: Callable[[], int]
    """The controller as clients know it: a broker that is not fenced."""
    controller_channel: ControllerChannel
    lifecycle: Lifecycle
    heartbeats: Heartbeats
    once_shown: Callable[[Callable[[], bool], int], Later[None]]
    """Ends once the condition holds for the image and the logs reflect it, or after a timeout in milliseconds."""


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
    """Decompresses batches for clients: few jobs at once, so that other work finds idle workers."""
    shares: Callable[[], ShareManager]
    """Made at the first call."""
    shares_in_use: Callable[[], ShareManager | None]
    """None if no share group has been read here yet."""


@dataclass(slots=True)
class CoordinationContext:
    """The coordinators of groups, transactions and share groups."""

    groups: Coordination[GroupShard]
    transactions: Coordination[TransactionShard]
    shares: Coordination[ShareShard]
    """They keep what share groups have finished; who is a member of one, `groups` knows."""
    open_coordination: Callable[[Coordination[Any]], Later[None]]
    """Creates the coordinator's topic; ends after the attempt."""
    create_topic: Callable[[str, int, Mapping[str, str]], Later[None]]
    """Creates an internal topic; ends after the attempt."""
    addresses: NodeAddresses
    markers: Markers
    marker_peers: Peers
    permissions: Permissions
    share_state: ShareStateCalls
    append_order: AppendOrder
    rebalances: RebalanceCounts


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts; a field has the name that functions give the parameter."""

    node: NodeContext
    security: SecurityContext
    metadata: MetadataContext
    data: DataContext
    coordination: CoordinationContext

    def bind(self, function: Callable[..., R]) -> Callable[..., R]:
        """The function with the contexts that its first parameters name."""
        return partial(function, *(getattr(self, name) for name in context_names(function)))


def context_names(function: Callable[..., Any]) -> list[str]:
    """The contexts that a function takes, by the names of its first parameters.

    TypeError where a parameter is a context and its name or position does not match: the first request would fail.
    """
    parameters = signature(function).parameters
    names = list(takewhile(_TYPES.__contains__, parameters))
    for name, parameter in parameters.items():
        is_context = parameter.annotation in _TYPES.values()
        if is_context and (name not in names or parameter.annotation != _TYPES[name]):
            own_name = next(each for each, kind in _TYPES.items() if kind == parameter.annotation)
            raise TypeError(
                f"{function.__module__}.{function.__qualname__}: the parameter {name!r} is a {parameter.annotation}; "
                f"it must be named {own_name!r} and come before all parameters that are no contexts"
            )
    return names


_TYPES: dict[str, str] = {each.name: str(each.type) for each in fields(Contexts)}
