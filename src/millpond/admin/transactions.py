"""List open transactions and the records they hold back; abort hanging ones. Needs Kafka 3.0 or newer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from millpond.admin.errors import Refused, unknown, unknown_partition
from millpond.admin.topics import find_topics, led_partitions
from millpond.base.ids import TopicPartition
from millpond.remote import offsets
from millpond.remote import transactions as remote
from millpond.remote.cluster import Cluster, by_connection, by_topic
from millpond.remote.connection import BrokerConnection
from millpond.remote.errors import check
from millpond.wire import messages as m

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
"""Display names of the states, by their names in the protocol."""

OPEN: Final = ("ongoing", "committing", "aborting")


@dataclass(frozen=True, slots=True)
class Transaction:
    id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    """Start time of the ongoing transaction; None if there is none."""
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenProducer:
    """A producer with an open transaction in a partition."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    first_offset: int
    last_write_ms: int | None


def list_transactions(cluster: Cluster, producer_ids: Sequence[int] = ()) -> list[Transaction]:
    """Every transactional id known to the coordinators, or those of some producers."""
    names = remote.list_ids(cluster, producer_ids=producer_ids)
    described = remote.describe(cluster, names)
    # Ids that expired since the list was made are left out.
    return [_transaction(described[name]) for name in names if name in described]


def describe_transaction(cluster: Cluster, name: str) -> Transaction:
    described = remote.describe(cluster, [name]).get(name)
    if described is None:
        raise unknown("transactional id", name, remote.list_ids(cluster), "list them with `millpond txn list`")
    return _transaction(described)


def abort_transaction(cluster: Cluster, name: str) -> Transaction:
    """Abort the id's open transaction and fence its producer; returns the transaction as it was."""
    transaction = describe_transaction(cluster, name)
    if transaction.state == "committing":
        raise Refused(
            f"{name} is being committed, which cannot be undone: it ends when all its partitions have leaders."
        )
    if transaction.state not in ("ongoing", "aborting"):
        raise Refused(f"{name} has no open transaction: its last state is {transaction.state}.")
    # Keep the id's transaction timeout: its next producer may rely on it.
    remote.init_producer(cluster, name, transaction.timeout_ms)
    return transaction


def open_producers(cluster: Cluster, partitions: Iterable[TopicPartition]) -> list[OpenProducer]:
    """Producers with an open transaction in these partitions, according to the partition leaders."""
    targets = sorted(set(partitions))
    producers: list[OpenProducer] = []

    def ask() -> None:
        producers.clear()
        for connection, batch in by_connection(targets, lambda each: cluster.leader(*each), remote.NAMES_AT_ONCE_MAX):
            producers.extend(_open_on(cluster, connection, batch))

    cluster.retrying("ask for open transactions", ask)
    return sorted(producers, key=lambda each: (each.partition, each.first_offset))


def hanging_producers(cluster: Cluster, topics: Iterable[str] = ()) -> list[OpenProducer]:
    """Open transactions that no coordinator will end, in some topics or all; skips leaderless partitions."""
    infos = find_topics(cluster, topics, to_create=False) or cluster.topics()
    first = open_producers(cluster, led_partitions(infos.values()))
    if not first:
        return []
    owned = owners(cluster, first)
    # A transaction that ended between the two requests would look hanging, so ask the leaders again.
    again = set(open_producers(cluster, {each.partition for each in first}))
    return [each for each in first if each not in owned and each in again]


def owners(cluster: Cluster, producers: Sequence[OpenProducer]) -> dict[OpenProducer, Transaction]:
    """The coordinator's transaction of each producer; a hanging one has none."""
    by_partition = {
        (each.producer_id, partition): each
        for each in list_transactions(cluster, sorted({each.producer_id for each in producers}))
        if each.started_ms is not None
        for partition in each.partitions
    }
    return {
        each: owner
        for each in producers
        if (owner := by_partition.get((each.producer_id, each.partition))) is not None
    }


def abort_hanging(
    cluster: Cluster, partition: TopicPartition, producer_id: int, *, force: bool = False
) -> OpenProducer:
    """Write an abort marker to the partition, bypassing the coordinator; returns the aborted producer.

    Refused if a coordinator would still end the transaction, unless `force`: it may then end only partly.
    """
    indexes = find_topics(cluster, [partition.topic], to_create=False)[partition.topic].partitions
    if partition.partition not in indexes:
        raise unknown_partition(*partition, len(indexes))
    opened = open_producers(cluster, [partition])
    producer = next((each for each in opened if each.producer_id == producer_id), None)
    where = partition.folder
    if producer is None:
        others = ", ".join(str(each.producer_id) for each in opened)
        hint = f"producers with one there: {others}." if others else "there is none at all."
        raise Refused(f"Producer {producer_id} has no open transaction in {where}; {hint}")
    owner = owners(cluster, [producer]).get(producer)
    if owner and not force:
        raise Refused(
            f"This transaction is not hanging but {owner.state}: abort all of it with "
            f"`millpond txn abort --id {owner.id}`."
        )
    _write_abort(cluster, producer, where)
    return producer


def held_back(cluster: Cluster, producers: Iterable[OpenProducer]) -> dict[TopicPartition, int]:
    """Offsets that read_committed consumers cannot read yet, by partition."""
    partitions = sorted({each.partition for each in producers})
    stable = offsets.latest(cluster, partitions, "read_committed")
    ends = offsets.latest(cluster, partitions)
    return {each: max(0, ends[each] - stable[each]) for each in partitions}


def _write_abort(cluster: Cluster, producer: OpenProducer, where: str) -> None:
    kind = m.WriteTxnMarkersRequest
    topic, index = producer.partition
    marker = kind.WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=[kind.WritableTxnMarkerTopic(name=topic, partition_indexes=[index])],
        # The epoch is -1 before the producer's first marker; 0 is never newer than the current one.
        coordinator_epoch=max(producer.coordinator_epoch, 0),
    )

    def attempt() -> None:
        response = cluster.leader(topic, index).ask(kind(markers=[marker]), m.WriteTxnMarkersResponse, newest=1)
        codes = [part.error_code for each in response.markers for named in each.topics for part in named.partitions]
        check(codes[0] if codes else -1, f"The transaction in {where} was not aborted")

    cluster.retrying(f"abort the transaction in {where}", attempt)


def _open_on(
    cluster: Cluster, connection: BrokerConnection, partitions: Sequence[TopicPartition]
) -> Iterable[OpenProducer]:
    kind = m.DescribeProducersRequest
    topics = [kind.TopicRequest(name=name, partition_indexes=each) for name, each in by_topic(partitions).items()]
    request = kind(topics=topics)
    for each in connection.ask(request, m.DescribeProducersResponse, newest=0).topics:
        for partition in each.partitions:
            if partition.error_code:
                cluster.forget(each.name)
            check(partition.error_code, f"The producers of {each.name}-{partition.partition_index} are not known")
            for producer in partition.active_producers:
                if producer.current_txn_start_offset >= 0:
                    yield OpenProducer(
                        TopicPartition(each.name, partition.partition_index),
                        producer.producer_id,
                        producer.producer_epoch,
                        producer.coordinator_epoch,
                        producer.current_txn_start_offset,
                        producer.last_timestamp if producer.last_timestamp >= 0 else None,
                    )


def _transaction(described: remote.Described) -> Transaction:
    state = STATES.get(described.state, described.state.lower())
    is_open = state in OPEN and described.started_ms >= 0
    return Transaction(
        *described.identity[:1],
        state,
        *described.identity[1:],
        described.timeout_ms,
        described.started_ms if is_open else None,
        tuple(sorted(described.partitions)),
    )
