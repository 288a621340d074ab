"""Transactions that different processes begin, write and end, which no client library offers.

They use the first version of the protocol (EndTxn up to 4), in which an end does not raise the epoch: so any process
that knows the identity of a transaction can end it, repeatedly, with the same result. The epoch is raised by the next
`init_producer`, so one identity means one transaction if each begins with that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeVar

from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.base.named_tuple import NamedTuple
from millpond.remote.cluster import Cluster, by_connection, by_topic
from millpond.remote.connection import BrokerConnection
from millpond.remote.errors import STALE_COORDINATOR, STALE_LEADER, Answered, ClusterError, Fenced, check
from millpond.remote.reader import FETCH_NEWEST, fetch_request, only_partition
from millpond.wire import messages as m
from millpond.wire.batch import HEADER_BYTES, read_header

INIT_NEWEST: Final = 4
ADD_NEWEST: Final = 3
END_NEWEST: Final = 4
"""The last versions in which an end does not change the epoch."""

ENDS_AT_ONCE: Final = 64
NAMES_AT_ONCE_MAX: Final = 500
"""The most ids or partitions in one request."""

_COMPLETION_SECONDS: Final = 1.0
_COMPLETION_STEP_SECONDS: Final = 0.004
"""The markers of the previous transaction are written within milliseconds; a whole back-off would be a waste."""

_FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})

R = TypeVar("R", bound=m.Message)


class ProducerIdentity(NamedTuple):
    """The writer of a transaction. A newer producer of the same `transactional_id` has a higher epoch."""

    transactional_id: str
    producer_id: int
    epoch: int


class Outcome(Enum):
    """How a transaction ended."""

    COMMITTED = auto()
    ABORTED = auto()
    EMPTY = auto()
    """The producer never added a partition, so there was nothing to end."""
    FENCED = auto()
    """The id belongs to a newer producer, or is forgotten: the coordinator no longer knows."""


class Fate(Enum):
    """What a read_committed consumer makes of a transaction's records."""

    SEEN = auto()
    HIDDEN = auto()
    PENDING = auto()
    """This transaction, or an earlier one of another producer, is still open."""
    GONE = auto()
    """The records are no longer in the log, so it cannot tell."""


class TransactionLost(ClusterError):
    """The transaction ended without its producer: by its timeout, or because another took over its id."""


@dataclass(slots=True, frozen=True)
class Described:
    """What the coordinator knows about a transactional id."""

    identity: ProducerIdentity
    state: str
    """As tools show it: Empty, Ongoing, PrepareCommit, CompleteCommit, PrepareAbort, CompleteAbort …"""
    partitions: frozenset[TopicPartition]
    timeout_ms: int = 0
    started_ms: int = -1
    """When the current one began, in ms since 1970; -1 if there is none."""

    @property
    def is_open(self) -> bool:
        return self.state == "Ongoing"

    def outcome(self, identity: ProducerIdentity) -> Outcome | None:
        """How this identity's transaction ended; None while it is open."""
        if identity != self.identity:
            return Outcome.FENCED
        match self.state:
            case "Ongoing":
                return None
            case "PrepareCommit" | "CompleteCommit":
                return Outcome.COMMITTED
            case "Empty":
                return Outcome.EMPTY
        return Outcome.ABORTED


def init_producer(cluster: Cluster, transactional_id: str, timeout_ms: int) -> ProducerIdentity:
    """Take over `transactional_id`: an older producer's open transaction is aborted, and the producer is fenced."""
    request = m.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    what = f"begin as transactional id {transactional_id!r}"

    def attempt() -> ProducerIdentity:
        kind = m.InitProducerIdResponse
        response = _ask(cluster, transactional_id, request, kind, INIT_NEWEST, lambda r: r.error_code)
        check(response.error_code, f"cannot {what} with a timeout of {timeout_ms} ms")
        return ProducerIdentity(transactional_id, response.producer_id, response.producer_epoch)

    return cluster.retrying(what, attempt)


def add_partitions(cluster: Cluster, identity: ProducerIdentity, partitions: Collection[TopicPartition]) -> None:
    """Add partitions to the transaction, which begins it; required before the first record is written there."""
    kind = m.AddPartitionsToTxnRequest
    request = kind(
        v3_and_below_transactional_id=identity.transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.epoch,
        v3_and_below_topics=[
            kind.AddPartitionsToTxnTopic(name=name, partitions=indexes)
            for name, indexes in by_topic(partitions).items()
        ],
    )

    def worst(response: m.AddPartitionsToTxnResponse) -> int:
        codes = [
            each.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        ]
        # A partition that was not attempted is not to blame.
        return max(codes, key=lambda code: (code != 0, code != ErrorCode.OPERATION_NOT_ATTEMPTED), default=0)

    def attempt() -> None:
        response = _ask(cluster, identity.transactional_id, request, m.AddPartitionsToTxnResponse, ADD_NEWEST, worst)
        refuse(identity, worst(response), f"cannot add partitions to transaction {identity.transactional_id!r}")

    cluster.retrying("add partitions to a transaction", attempt)


def end(cluster: Cluster, identity: ProducerIdentity, *, commit: bool) -> Outcome:
    """End the transaction, whichever process wrote it; if it has ended already, how."""
    request = _end_request(identity, commit)
    what = f"end transaction {identity.transactional_id!r}"

    def attempt() -> Outcome:
        response = _ask(
            cluster, identity.transactional_id, request, m.EndTxnResponse, END_NEWEST, lambda r: r.error_code
        )
        match response.error_code:
            case ErrorCode.NONE:
                return Outcome.COMMITTED if commit else Outcome.ABORTED
            case ErrorCode.PRODUCER_FENCED | ErrorCode.INVALID_PRODUCER_EPOCH | ErrorCode.INVALID_PRODUCER_ID_MAPPING:
                return Outcome.FENCED
            case ErrorCode.INVALID_TXN_STATE:
                return _ended_before(cluster, identity)
        raise Answered(f"cannot {what}", response.error_code)

    return cluster.retrying(what, attempt)


def end_all(
    cluster: Cluster, identities: Collection[ProducerIdentity], *, commit: bool
) -> dict[ProducerIdentity, Outcome]:
    """End many: those of one coordinator together, so that it can make them durable together."""
    ended: set[ProducerIdentity] = set()
    try:
        for connection, group in by_connection(
            identities, lambda each: cluster.coordinator("transaction", each.transactional_id), ENDS_AT_ONCE
        ):
            ended |= _end_together(connection, group, commit)
    except ClusterError:
        # Those without a response are retried one by one; ending twice does no harm.
        pass
    outcome = Outcome.COMMITTED if commit else Outcome.ABORTED
    return {each: outcome if each in ended else end(cluster, each, commit=commit) for each in identities}


def describe(cluster: Cluster, transactional_ids: Iterable[str]) -> dict[str, Described]:
    """What the coordinators know about these ids; unknown ones are left out."""
    names = list(dict.fromkeys(transactional_ids))
    described: dict[str, Described] = {}
    answered: set[str] = set()

    def ask_for_the_rest() -> None:
        left = [name for name in names if name not in answered]
        for connection, group in by_connection(
            left, lambda name: cluster.coordinator("transaction", name), NAMES_AT_ONCE_MAX
        ):
            described.update(_describe(cluster, connection, group))
            answered.update(group)

    cluster.retrying("describe transactions", ask_for_the_rest)
    return described


def list_open(cluster: Cluster, prefix: str) -> list[str]:
    """The transactional ids with this prefix that have an open transaction."""
    return [name for name in list_ids(cluster, states=["Ongoing"]) if name.startswith(prefix)]


def list_ids(cluster: Cluster, *, states: Collection[str] = (), producer_ids: Collection[int] = ()) -> list[str]:
    """The transactional ids that the coordinators know, optionally by state or producer."""
    request = m.ListTransactionsRequest(state_filters=list(states), producer_id_filters=list(producer_ids))

    def attempt() -> list[str]:
        names: set[str] = set()
        for connection in cluster.brokers():
            response = connection.ask(request, m.ListTransactionsResponse, newest=0)
            check(response.error_code, "cannot list transactions")
            names |= {each.transactional_id for each in response.transaction_states}
        return sorted(names)

    return cluster.retrying("list transactions", attempt)


def fate(cluster: Cluster, identity: ProducerIdentity, partition: TopicPartition, first_offset: int) -> Fate:
    """What the log itself shows about a transaction whose first batch in `partition` is at `first_offset`.

    It is authoritative when the coordinator has forgotten the transaction: readers use nothing else.
    """
    request = fetch_request(partition, first_offset, "read_committed", fetch_bytes=HEADER_BYTES, wait_ms=0)

    def attempt() -> m.FetchResponse.PartitionData:
        try:
            response = cluster.leader(*partition).ask(request, m.FetchResponse, newest=FETCH_NEWEST)
        except ClusterError:
            cluster.forget(partition.topic)
            raise
        fetched = only_partition(partition, response)
        if fetched.error_code in STALE_LEADER:
            cluster.forget(partition.topic)
        if fetched.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
            check(fetched.error_code, f"reading {partition}")
        return fetched

    return _fate_of(cluster.retrying("read what became of a transaction", attempt), identity, first_offset)


def refuse(identity: ProducerIdentity, code: int, what: str, response: str | None = None) -> None:
    """Raise the meaning of a transactional producer's error, if it is one."""
    if code in _FENCED:
        raise Fenced(
            f"{what}: another producer has taken over {identity.transactional_id!r}; if it is a newer attempt of the "
            "same work, all is well and this one ends",
            code=code,
        )
    if code in (
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
    ):
        raise TransactionLost(
            f"{what}: the transaction is no longer open ({ErrorCode(code).name}); was it open for longer than its "
            "timeout?",
            code=code,
        )
    check(code, what, response)


def _fate_of(fetched: m.FetchResponse.PartitionData, identity: ProducerIdentity, first_offset: int) -> Fate:
    if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return Fate.GONE
    if fetched.last_stable_offset <= first_offset:
        return Fate.PENDING
    records = fetched.records
    assert records is None or isinstance(records, bytes | bytearray | memoryview), "decoded records are one buffer"
    if records is None or len(records) < HEADER_BYTES:
        return Fate.GONE
    header = read_header(records)
    # Compaction may have removed the batch, or emptied it: then its absence from the aborted transactions proves
    # nothing.
    mine = (header.base_offset, header.producer_id) == (first_offset, identity.producer_id)
    if not mine or not header.record_count:
        return Fate.GONE
    aborted = {(each.first_offset, each.producer_id) for each in fetched.aborted_transactions or ()}
    return Fate.HIDDEN if (first_offset, identity.producer_id) in aborted else Fate.SEEN


def _end_request(identity: ProducerIdentity, commit: bool) -> m.EndTxnRequest:
    return m.EndTxnRequest(
        transactional_id=identity.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        committed=commit,
    )


def _end_together(
    connection: BrokerConnection, identities: list[ProducerIdentity], commit: bool
) -> set[ProducerIdentity]:
    """The transactions that ended as requested."""
    try:
        for identity in identities:
            connection.send(_end_request(identity, commit), m.EndTxnResponse, newest=END_NEWEST)
        return {each for each in identities if connection.receive(m.EndTxnResponse).error_code == ErrorCode.NONE}
    finally:
        if connection.waiting_count:
            connection.close()


def _ended_before(cluster: Cluster, identity: ProducerIdentity) -> Outcome:
    described = describe(cluster, [identity.transactional_id]).get(identity.transactional_id)
    outcome = described.outcome(identity) if described else Outcome.FENCED
    if outcome is None:
        raise Answered(f"transaction {identity.transactional_id!r} is changing", ErrorCode.CONCURRENT_TRANSACTIONS)
    return outcome


def _describe(cluster: Cluster, connection: BrokerConnection, names: list[str]) -> dict[str, Described]:
    try:
        response = connection.ask(
            m.DescribeTransactionsRequest(transactional_ids=names), m.DescribeTransactionsResponse
        )
    except ClusterError:
        for name in names:
            cluster.forget_coordinator("transaction", name)
        raise
    described: dict[str, Described] = {}
    for each in response.transaction_states:
        if each.error_code in STALE_COORDINATOR:
            cluster.forget_coordinator("transaction", each.transactional_id)
        if each.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            continue
        check(each.error_code, f"cannot describe transaction {each.transactional_id!r}")
        partitions = frozenset(
            TopicPartition(topic.topic, index) for topic in each.topics for index in topic.partitions
        )
        identity = ProducerIdentity(each.transactional_id, each.producer_id, each.producer_epoch)
        described[each.transactional_id] = Described(
            identity,
            each.transaction_state,
            partitions,
            each.transaction_timeout_ms,
            each.transaction_start_time_ms,
        )
    return described


def _ask(
    cluster: Cluster,
    transactional_id: str,
    request: m.Message,
    answer: type[R],
    newest: int,
    code_of: Callable[[R], int],
) -> R:
    """Send a request to the id's coordinator, retrying briefly while the previous transaction is being completed."""
    patience = time.monotonic() + _COMPLETION_SECONDS
    pause = _COMPLETION_STEP_SECONDS
    while True:
        response = cluster.ask_coordinator("transaction", transactional_id, request, answer, code_of, newest=newest)
        if code_of(response) != ErrorCode.CONCURRENT_TRANSACTIONS or time.monotonic() > patience:
            return response
        time.sleep(pause)
        pause *= 2
