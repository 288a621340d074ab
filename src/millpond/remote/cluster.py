"""The brokers of one cluster: their addresses, the partition leaders, and a connection to each broker that is needed.

Created from a Kafka client's settings (`bootstrap.servers`, `client.id`, `request.timeout.ms`,
`default.api.timeout.ms`, security); others are ignored. For one thread at a time.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.base.ids import NO_TOPIC_ID
from millpond.base.resource import Closable
from millpond.remote.bootstrap import Address, addresses, bootstrap_servers
from millpond.remote.connection import BrokerConnection
from millpond.remote.errors import (
    STALE_COORDINATOR,
    Answered,
    ClusterError,
    ConfigError,
    UnknownTopic,
    Unreachable,
    check,
)
from millpond.remote.security import SETTINGS as SECURITY_SETTINGS
from millpond.remote.security import Security
from millpond.wire import messages as m

REQUEST_TIMEOUT_MS: Final = 30_000
API_TIMEOUT_MS: Final = 60_000
BACKOFF_SECONDS: Final = 0.05
BACKOFF_SECONDS_MAX: Final = 1.0
UNKNOWN_TOPIC_TRIES: Final = 5
"""A new topic may not be known everywhere yet; a missing one should not cost a minute."""

SETTINGS: Final = SECURITY_SETTINGS | {
    "bootstrap.servers",
    "client.id",
    "request.timeout.ms",
    "default.api.timeout.ms",
}
"""Every setting that a cluster uses."""

CoordinatorKind = Literal["group", "transaction"]
_RECORDS: Final = "records"
_QUESTIONS: Final = "questions"
_KINDS: Final[Mapping[str, int]] = {"group": 0, "transaction": 1}

T = TypeVar("T")
R = TypeVar("R", bound=m.Message)


@dataclass(slots=True, frozen=True)
class PartitionInfo:
    leader: int
    """-1 while there is none."""
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()


@dataclass(slots=True, frozen=True)
class TopicInfo:
    name: str
    topic_id: UUID
    partitions: Mapping[int, PartitionInfo]
    is_internal: bool = False


class Cluster(Closable):
    """Connections to all brokers."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = dict(settings)
        self._bootstrap = addresses(bootstrap_servers(settings.get("bootstrap.servers")))
        self._security = Security.from_settings(settings)
        self._client_id = settings.get("client.id", "millpond")
        self._answer_seconds = _milliseconds(settings, "request.timeout.ms", REQUEST_TIMEOUT_MS) / 1000
        self.patience_seconds = _milliseconds(settings, "default.api.timeout.ms", API_TIMEOUT_MS) / 1000
        self._brokers: dict[int, Address] = {}
        self._controller = -1
        self._connections: dict[tuple[Address, str], BrokerConnection] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._coordinators: dict[tuple[CoordinatorKind, str], Address] = {}

    @property
    def patience_ms(self) -> int:
        """How long a broker may take for an operation."""
        return round(self.patience_seconds * 1000)

    def twin(self) -> Cluster:
        """Separate connections to the same cluster, for writing while a reader has requests in flight."""
        return Cluster(self._settings)

    @property
    def bootstrap(self) -> str:
        """Its addresses, for messages."""
        return ", ".join(f"{each.host}:{each.port}" for each in self._bootstrap)

    def connect(self, address: Address) -> BrokerConnection:
        """A connection that belongs to the caller, who may be on another thread."""
        return BrokerConnection(
            *address, security=self._security, client_id=self._client_id, answer_seconds=self._answer_seconds
        )

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def topics(self, names: Collection[str] | None = None, *, create: bool = False) -> dict[str, TopicInfo]:
        """Current metadata of these topics, or of all; missing ones are left out.

        With `create`, a cluster that auto-creates topics is asked to.
        """
        return self.retrying("ask for the topics", lambda: self._ask_topics(names, create))

    def topics_once(self, names: Collection[str]) -> dict[str, TopicInfo]:
        """The same without retries, for callers with their own."""
        return self._ask_topics(names, False)

    def topic(self, name: str) -> TopicInfo:
        """One topic, cached if it was requested before."""
        known = self._topics.get(name)
        if known is None:
            self.topics([name])
            known = self._topics.get(name)
        if known is None:
            raise UnknownTopic(f"there is no topic {name!r}; create it first: millpond topic create {name}")
        return known

    def leader(self, topic: str, partition: int) -> BrokerConnection:
        """The connection to the partition's leader, to be used at once and not kept."""
        info = self.topic(topic).partitions.get(partition)
        if info is None:
            # The cached metadata may be older than the partition.
            self.forget(topic)
            info = self.topic(topic).partitions.get(partition)
        if info is None:
            raise UnknownTopic(f"topic {topic!r} has no partition {partition}")
        address = self._brokers.get(info.leader)
        if address is None:
            self.forget(topic)
            raise Answered(f"{topic}[{partition}] has no leader", ErrorCode.LEADER_NOT_AVAILABLE)
        try:
            return self._connection(address)
        except ClusterError:
            # The leader may have changed: a retry must not use the old one.
            self.forget(topic)
            raise

    def coordinator(self, kind: CoordinatorKind, key: str) -> BrokerConnection:
        """The connection to the coordinator of this group or transactional id."""
        address = self._coordinators.get((kind, key))
        if address is None:
            address = self._coordinators[kind, key] = self._find_coordinator(kind, key)
        # A leader may have responses outstanding; coordinator requests should not wait behind them.
        return self._connection(address, _QUESTIONS)

    def any(self) -> BrokerConnection:
        """A connection to any broker, an open one if there is one."""
        for connection in list(self._connections.values()):
            if not connection.is_closed and not connection.waiting_count and not connection.is_stale:
                return connection
        refusals: list[ClusterError] = []
        for address in dict.fromkeys([*self._brokers.values(), *self._bootstrap]):
            try:
                return self._connection(address, _QUESTIONS)
            except Unreachable as refusal:
                refusals.append(refusal)
        raise refusals[0]

    def addresses(self) -> dict[int, Address]:
        """The address of every broker by id."""
        if not self._brokers:
            self.topics([])
        return dict(self._brokers)

    def broker(self, broker_id: int) -> BrokerConnection:
        """The connection to one broker, for requests that each answers for itself."""
        address = self.addresses().get(broker_id)
        if address is None:
            # The cached metadata may be older than the broker.
            self.topics([])
            address = self._brokers.get(broker_id)
        if address is None:
            raise Unreachable(f"there is no broker {broker_id} now", retriable=True)
        return self._connection(address, _QUESTIONS)

    def brokers(self) -> list[BrokerConnection]:
        return [self.broker(each) for each in self.addresses()]

    def controller(self) -> BrokerConnection:
        """The connection to the controller; to any broker if brokers forward such requests."""
        return self.broker(self._controller) if self._controller in self.addresses() else self.any()

    def forget(self, topic: str) -> None:
        """Refresh the topic's leaders before it is used again."""
        self._topics.pop(topic, None)

    def forget_coordinator(self, kind: CoordinatorKind, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    def ask_coordinator(
        self,
        kind: CoordinatorKind,
        key: str,
        request: m.Message,
        answer: type[R],
        code_of: Callable[[R], int],
        *,
        newest: int | None = None,
    ) -> R:
        """Send a request to the coordinator of a group or transactional id; the next call looks it up again if it
        has moved."""
        try:
            response = self.coordinator(kind, key).ask(request, answer, newest=newest)
            code = code_of(response)
            if code in STALE_COORDINATOR:
                raise Answered(f"the coordinator of {kind} {key!r}", code)
        except ClusterError:
            self.forget_coordinator(kind, key)
            raise
        return response

    def retrying(self, what: str, action: Callable[[], T], *, seconds: float | None = None) -> T:
        """Run `action`, retrying temporary errors for at most `seconds`."""
        deadline = time.monotonic() + (self.patience_seconds if seconds is None else seconds)
        pause = BACKOFF_SECONDS
        unknown = 0
        while True:
            try:
                return action()
            except ClusterError as fault:
                unknown += fault.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if not fault.retriable or unknown > UNKNOWN_TOPIC_TRIES:
                    raise
                if time.monotonic() + pause > deadline:
                    raise ClusterError(f"gave up trying to {what}: {fault}", code=fault.code) from fault
            time.sleep(pause)
            pause = min(pause * 2, BACKOFF_SECONDS_MAX)

    def _connection(self, address: Address, purpose: str = _RECORDS) -> BrokerConnection:
        connection = self._connections.get((address, purpose))
        if connection is not None and connection.is_stale:
            connection.close()
        if connection is None or connection.is_closed:
            connection = self._connections[address, purpose] = self.connect(address)
        return connection

    def _ask_topics(self, names: Collection[str] | None, create: bool) -> dict[str, TopicInfo]:
        requested = None if names is None else [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        request = m.MetadataRequest(topics=requested, allow_auto_topic_creation=create)
        response = self.any().ask(request, m.MetadataResponse)
        check(response.error_code, "the cluster does not describe itself")
        self._brokers = {each.node_id: Address(each.host, each.port) for each in response.brokers}
        self._controller = response.controller_id
        topics = {}
        for topic in response.topics:
            name = topic.name or ""
            self._topics.pop(name, None)
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not create:
                continue
            check(topic.error_code, f"topic {name!r}")
            partitions = {
                each.partition_index: PartitionInfo(
                    each.leader_id, each.leader_epoch, tuple(each.replica_nodes), tuple(each.isr_nodes)
                )
                for each in topic.partitions
            }
            topics[name] = TopicInfo(name, topic.topic_id or NO_TOPIC_ID, partitions, topic.is_internal)
        self._topics |= topics
        return topics

    def _find_coordinator(self, kind: CoordinatorKind, key: str) -> Address:
        connection = self.any()
        many = connection.version(m.FindCoordinatorRequest) >= 4
        request = m.FindCoordinatorRequest(
            key="" if many else key, key_type=_KINDS[kind], coordinator_keys=[key] if many else []
        )
        response = connection.ask(request, m.FindCoordinatorResponse)
        what = f"the coordinator of {kind} {key!r}"
        if many:
            coordinator = response.coordinators[0]
            check(coordinator.error_code, what, coordinator.error_message)
            return Address(coordinator.host, coordinator.port)
        check(response.error_code, what, response.error_message)
        return Address(response.host, response.port)


def by_topic(requested: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    """Partitions, or values per partition, grouped by topic as most requests have them."""
    named: dict[str, list[T]] = defaultdict(list)
    for topic, each in requested:
        named[topic].append(each)
    return named


def by_connection(
    requested: Iterable[T], whom: Callable[[T], BrokerConnection], at_once_max: int
) -> list[tuple[BrokerConnection, list[T]]]:
    """The requested items per broker, limited in number per request."""
    requests: dict[BrokerConnection, list[T]] = defaultdict(list)
    for each in requested:
        requests[whom(each)].append(each)
    return [
        (connection, every[at : at + at_once_max])
        for connection, every in requests.items()
        for at in range(0, len(every), at_once_max)
    ]


def _milliseconds(settings: Mapping[str, str], name: str, default: int) -> int:
    text = settings.get(name, str(default))
    if not text.isdecimal() or int(text) == 0:
        raise ConfigError(f"{name}={text} is not a number of milliseconds")
    return int(text)
