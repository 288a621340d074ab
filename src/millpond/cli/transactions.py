"""What the transaction commands ask of a cluster, broker by broker: confluent-kafka has no calls for these."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from millpond.base.errors import ErrorCode, MalformedMessage
from millpond.cli.connect import ANSWER_SECONDS, Cluster
from millpond.cli.errors import Failed, failed, nearest, unknown_topic
from millpond.cli.offsets import Partition
from millpond.client.errors import ConfigError
from millpond.remote.connection import BrokerConnection
from millpond.remote.errors import LoginFailed, Unreachable, Unsupported
from millpond.remote.security import Security
from millpond.wire import messages as m

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import TopicMetadata

STATES: Final = {
    "Empty": "empty",
    "Ongoing": "ongoing",
    "PrepareCommit": "committing",
    "PrepareAbort": "aborting",
    "CompleteCommit": "committed",
    "CompleteAbort": "aborted",
    "Dead": "dead",
    "PrepareEpochFence": "aborting",
}
"""What people call the states, by their names in the protocol."""

OPEN: Final = ("ongoing", "committing", "aborting")

IDS_AT_ONCE_MAX: Final = 500
"""One question names at most so many ids or partitions."""

RETRY_SECONDS: Final = 0.1
_PASSING: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
"""Refusals that pass by themselves."""

_TRANSACTION: Final = 1
"""The kind of coordinator that is looked for."""

Address = tuple[str, int]
R = TypeVar("R", bound=m.Message)


@dataclass(frozen=True, slots=True)
class Transaction:
    id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    """When the one under way began; None when none is."""
    partitions: list[Partition] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OpenProducer:
    """A producer whose transaction has begun in a partition and not ended there."""

    partition: Partition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    first_offset: int
    last_write_ms: int | None


class Transactions:
    """One cluster, with a connection to each broker that was needed. Close it by `with`."""

    def __init__(self, cluster: Cluster) -> None:
        from confluent_kafka import KafkaException

        try:
            self._security = Security.from_settings(cluster.extras)
        except ConfigError as fault:
            raise Failed(f"{fault}.") from None
        try:
            metadata = cluster.admin().list_topics(timeout=ANSWER_SECONDS)
        except KafkaException as refusal:
            raise failed("The cluster does not say what brokers it has", refusal.args[0]) from None
        self.brokers: dict[int, Address] = {
            each.id: (str(each.host), each.port) for each in metadata.brokers.values()
        }
        self.topics: dict[str, TopicMetadata] = metadata.topics
        self._links: dict[Address, BrokerConnection] = {}

    def __enter__(self) -> Transactions:
        return self

    def __exit__(self, *_: object) -> None:
        for link in self._links.values():
            link.close()

    def list_all(self, producer_ids: Sequence[int] = ()) -> list[Transaction]:
        """Every transactional id that the coordinators know; or those of some producers."""
        found: list[Transaction] = []
        for address in self.brokers.values():
            request = m.ListTransactionsRequest(producer_id_filters=list(producer_ids))
            told = self._ask(address, request, m.ListTransactionsResponse, 0)
            _check("The transactions are not known", told.error_code)
            found += self._described(address, [each.transactional_id for each in told.transaction_states])
        return sorted(found, key=lambda each: each.id)

    def describe(self, name: str) -> Transaction:
        def ask() -> tuple[int, Transaction | None]:
            address = self._coordinator(name)
            request = m.DescribeTransactionsRequest(transactional_ids=[name])
            (told,) = self._ask(address, request, m.DescribeTransactionsResponse, 0).transaction_states
            return told.error_code, None if told.error_code else _transaction(told)

        error, found = _until_settled(ask)
        if error == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            near = nearest(name, [each.id for each in self.list_all()])
            hint = "; see those that are there with `millpond txn list`." if near == "." else near
            raise Failed(f"There is no transactional id {name}{hint}")
        _check(f"{name} cannot be described", error)
        assert found is not None
        return found

    def fence(self, found: Transaction) -> None:
        """Take the id's next epoch: the coordinator aborts what is under way and refuses whoever had the id."""

        def ask() -> tuple[int, None]:
            # The id keeps its timeout: whoever comes next with it may rely on that.
            request = m.InitProducerIdRequest(transactional_id=found.id, transaction_timeout_ms=found.timeout_ms)
            told = self._ask(self._coordinator(found.id), request, m.InitProducerIdResponse, 4)
            return told.error_code, None

        error, _ = _until_settled(ask)
        _check(f"The transaction of {found.id} was not aborted", error)

    def open_producers(self, partitions: Iterable[Partition]) -> list[OpenProducer]:
        """Who has an open transaction in these partitions, as their leaders know it."""
        by_leader: dict[int, list[Partition]] = {}
        for topic, index in partitions:
            by_leader.setdefault(self._leader(topic, index), []).append((topic, index))
        found: list[OpenProducer] = []
        for leader, places in by_leader.items():
            for at in range(0, len(places), IDS_AT_ONCE_MAX):
                found += self._open_on(self.brokers[leader], places[at : at + IDS_AT_ONCE_MAX])
        return sorted(found, key=lambda each: (each.partition, each.first_offset))

    def hanging(self, partitions: Iterable[Partition]) -> list[OpenProducer]:
        """The open ones that no coordinator will end."""
        first = self.open_producers(partitions)
        if not first:
            return []
        owners = self.owners(first)
        # One that ended between the two questions would look like one that hangs: the third tells them apart.
        again = set(self.open_producers({each.partition for each in first}))
        return [each for each in first if each not in owners and each in again]

    def owners(self, opened: Sequence[OpenProducer]) -> dict[OpenProducer, Transaction]:
        """The transactions by which coordinators will end these; one that hangs has none."""
        known = {
            (each.producer_id, place): each
            for each in self.list_all(sorted({each.producer_id for each in opened}))
            if each.started_ms is not None
            for place in each.partitions
        }
        found = {each: known.get((each.producer_id, each.partition)) for each in opened}
        return {each: owner for each, owner in found.items() if owner is not None}

    def write_abort(self, producer: OpenProducer) -> None:
        """Write the end of the transaction into the partition itself, past the coordinator."""
        topic, index = producer.partition
        marker = m.WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transaction_result=False,
            topics=[m.WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[index])],
            # A producer that never ended a transaction before has none yet: 0 is not newer than any.
            coordinator_epoch=max(producer.coordinator_epoch, 0),
        )
        address = self.brokers[self._leader(topic, index)]
        request = m.WriteTxnMarkersRequest(markers=[marker])
        told = self._ask(address, request, m.WriteTxnMarkersResponse, 1)
        codes = [part.error_code for each in told.markers for named in each.topics for part in named.partitions]
        _check(f"The transaction in {topic}-{index} was not aborted", codes[0] if codes else -1)

    def _leader(self, topic: str, index: int) -> int:
        if topic not in self.topics:
            raise unknown_topic(topic, self.topics, to_create=False)
        known = self.topics[topic].partitions
        if index not in known:
            raise Failed(f"{topic} has no partition {index}: they go from 0 to {len(known) - 1}.")
        if known[index].leader not in self.brokers:
            raise Failed(f"{topic}-{index} has no leader now: start the nodes that hold it.")
        return int(known[index].leader)

    def _open_on(self, address: Address, places: Sequence[Partition]) -> Iterable[OpenProducer]:
        topics = [
            m.DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=indexes)
            for topic, indexes in _by_topic(places).items()
        ]
        request = m.DescribeProducersRequest(topics=topics)
        for topic in self._ask(address, request, m.DescribeProducersResponse, 0).topics:
            for partition in topic.partitions:
                _check(
                    f"The producers of {topic.name}-{partition.partition_index} are not known", partition.error_code
                )
                for each in partition.active_producers:
                    if each.current_txn_start_offset >= 0:
                        yield OpenProducer(
                            (topic.name, partition.partition_index),
                            each.producer_id,
                            each.producer_epoch,
                            each.coordinator_epoch,
                            each.current_txn_start_offset,
                            each.last_timestamp if each.last_timestamp >= 0 else None,
                        )

    def _described(self, address: Address, names: Sequence[str]) -> Iterable[Transaction]:
        for at in range(0, len(names), IDS_AT_ONCE_MAX):
            request = m.DescribeTransactionsRequest(transactional_ids=list(names[at : at + IDS_AT_ONCE_MAX]))
            told = self._ask(address, request, m.DescribeTransactionsResponse, 0)
            # One that has gone since it was listed, or moved, is not there to be shown.
            yield from (_transaction(each) for each in told.transaction_states if not each.error_code)

    def _coordinator(self, name: str) -> Address:
        address = next(iter(self.brokers.values()))

        def ask() -> tuple[int, Address]:
            request = m.FindCoordinatorRequest(key=name, key_type=_TRANSACTION)
            told = self._ask(address, request, m.FindCoordinatorResponse, 3)
            return told.error_code, (told.host, told.port)

        error, found = _until_settled(ask)
        _check(f"The coordinator of {name} is not known", error)
        return found

    def _ask(self, address: Address, request: m.Message, answer: type[R], newest: int) -> R:
        host, port = address
        try:
            link = self._links.get(address)
            if link is None or link.is_closed:
                link = self._links[address] = BrokerConnection(
                    host, port, security=self._security, answer_seconds=ANSWER_SECONDS
                )
            return link.ask(request, answer, newest=newest)
        except Unsupported:
            name = type(request).__name__.removesuffix("Request")
            raise Failed(f"{host}:{port} does not know {name}: this command needs Kafka 3.0 or newer.") from None
        except (Unreachable, LoginFailed) as fault:
            raise Failed(f"{str(fault)[:1].upper()}{str(fault)[1:]}.") from None
        except MalformedMessage as fault:
            raise Failed(f"The answer of {host}:{port} makes no sense: {fault}.") from None


T = TypeVar("T")


def _until_settled(ask: Callable[[], tuple[int, T]]) -> tuple[int, T]:
    """Ask again for as long as the refusal is one that passes, and there is patience."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        error, found = ask()
        if error not in _PASSING or time.monotonic() > deadline:
            return error, found
        time.sleep(RETRY_SECONDS)


def _transaction(told: m.DescribeTransactionsResponse.TransactionState) -> Transaction:
    state = STATES.get(told.transaction_state, told.transaction_state.lower())
    is_open = state in OPEN and told.transaction_start_time_ms >= 0
    return Transaction(
        told.transactional_id,
        state,
        told.producer_id,
        told.producer_epoch,
        told.transaction_timeout_ms,
        told.transaction_start_time_ms if is_open else None,
        sorted((each.topic, index) for each in told.topics for index in each.partitions),
    )


def _by_topic(places: Iterable[Partition]) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, index in places:
        found.setdefault(topic, []).append(index)
    return found


def _check(what: str, code: int) -> None:
    from confluent_kafka import KafkaError

    if code:
        raise failed(what, KafkaError(code))
