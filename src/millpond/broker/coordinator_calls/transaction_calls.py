"""What the APIs of transactions share: asking the coordinator, and permission to write inside a transaction.

A client that goes straight on from one transaction to the next may meet the last one's end: its markers are being
written. Whoever asks then waits here for a moment, instead of being sent away to come back much later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from millpond.base.errors import ErrorCode, MalformedMessage, Refused
from millpond.base.later import Later, done, failed
from millpond.base.ports import Buffer
from millpond.broker.coordination.coordination import Coordination, Producer
from millpond.broker.replication.partitions import Partition
from millpond.broker.requests.call import Call
from millpond.log.producers import Verification
from millpond.wire.batch import read_header
from millpond.wire.messages import Message

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, MetadataContext, NodeContext

R = TypeVar("R")

IMPLICIT_FROM = 12
"""From this version of Produce on the broker adds partitions to the transaction by itself (transactions v2)."""

CONCURRENT_WAIT_MS = 100
"""How long whoever meets the last transaction's end waits for it; Kafka lets Produce wait as long."""

REFUSED_FOR_GOOD = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""Whoever hears one of these from the coordinator does not send the same batch again."""

MARKERS_WAIT_MS = 500
"""How long the end of a transaction waits for its markers before it is answered."""


def ask_transaction(
    coordination: CoordinationContext,
    call: Call,
    transactional_id: str,
    body: Message,
    refuse: Callable[[Refused], Message],
    error_of: Callable[[Any], int] = lambda response: int(response.error_code),
) -> Later[Any]:
    """Put a request to the coordinator of a transactional id, whose topic is made first if need be."""
    transactions = coordination.transactions

    def ask() -> Later[Any]:
        return transactions.ask(call, transactional_id, body)

    reply = opened(coordination, transactions).chain(
        lambda _: past_the_last_end(coordination, transactional_id, ask, error_of)
    )
    return reply.recover(Refused, refuse)


def past_the_last_end(
    coordination: CoordinationContext,
    transactional_id: str,
    ask: Callable[[], Later[R]],
    error_of: Callable[[R], int],
) -> Later[R]:
    """Ask, and once more when the end of the last transaction stood in the way."""

    def go_on(response: R) -> Later[R]:
        if error_of(response) != ErrorCode.CONCURRENT_TRANSACTIONS:
            return done(response)
        return coordination.markers.written(transactional_id, CONCURRENT_WAIT_MS).chain(lambda _: ask())

    return ask().chain(go_on)


def with_markers(coordination: CoordinationContext, transactional_id: str, response: R) -> Later[R]:
    """The answer to the end of a transaction, once its markers are written if that takes but a moment."""
    if not coordination.markers.under_way(transactional_id):
        return done(response)
    return coordination.markers.written(transactional_id, MARKERS_WAIT_MS).map(lambda _: response)


def opened(coordination: CoordinationContext, coordinator_runtime: Coordination[Any]) -> Later[None]:
    """Ends once the coordinator's topic is there, or could not be made."""
    return done(None) if coordinator_runtime.is_open else coordination.open_coordination(coordinator_runtime)


def permission_for_batch(
    node: NodeContext,
    metadata: MetadataContext,
    coordination: CoordinationContext,
    transactional_id: str,
    version: int,
    partition: Partition,
    records: Buffer | None,
) -> Later[Verification | None]:
    """Whether this batch may begin or go on with the producer's transaction in this partition."""
    try:
        header = read_header(records or b"")
    except MalformedMessage:
        # The log will say what is wrong with it.
        return done(None)
    if not header.is_transactional:
        return failed(Refused(ErrorCode.INVALID_RECORD, "a batch outside of the transaction that the request names"))
    producer = Producer(header.producer_id, header.producer_epoch)
    if producer.id >= 0 and (producer.epoch < 0 or header.base_sequence < 0):
        # Likewise. It must not be asked for: nothing would follow a sequence below the first.
        return done(None)
    permission = permission_to_write(
        node,
        metadata,
        coordination,
        transactional_id,
        producer,
        partition,
        sequence=header.base_sequence,
        implicit=version >= IMPLICIT_FROM,
    )
    return permission.recover(Refused, lambda refused: _refuse_produce(refused, version))


def permission_to_write(
    node: NodeContext,
    metadata: MetadataContext,
    coordination: CoordinationContext,
    transactional_id: str,
    producer: Producer,
    partition: Partition,
    *,
    sequence: int = -1,
    implicit: bool,
) -> Later[Verification]:
    """Permission to write to a partition inside a transaction.

    With `implicit` the coordinator takes the partition into the transaction; else it must be part of it already.
    """
    producers = partition.log.producers
    verification = producers.verification(
        transactional_id, producer.id, producer.epoch, sequence, node.clock.wall_ms()
    )
    if producers.is_permitted(verification):
        return done(verification)

    def permitted(code: ErrorCode) -> bool:
        if code:
            raise Refused(code)
        return producers.permit(verification)

    def refused(refusal: Refused) -> bool:
        producers.refuse(verification, is_final=refusal.code in REFUSED_FOR_GOOD)
        raise refusal

    def go_on(is_permitted: bool) -> Later[Verification]:
        if is_permitted or not implicit:
            # In older transactions, which all have the same epoch, what was asked about the last one may be answered
            # by the next: a batch that its producer has given up would be written there. The partition refuses it.
            return done(verification)
        return permission_to_write(
            node, metadata, coordination, transactional_id, producer, partition, sequence=sequence, implicit=implicit
        )

    asked = _asked(metadata, coordination, transactional_id, producer, partition, implicit=implicit)
    return asked.map(permitted).recover(Refused, refused).chain(go_on)


def _asked(
    metadata: MetadataContext,
    coordination: CoordinationContext,
    transactional_id: str,
    producer: Producer,
    partition: Partition,
    *,
    implicit: bool,
) -> Later[ErrorCode]:
    """What the coordinator says, here or on another node; Refused when none can be asked."""
    if _is_overtaken(
        metadata, coordination, transactional_id, partition.log.producers.coordinator_epoch_of(producer.id)
    ):
        return failed(Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator has moved on; ask again"))
    if coordination.transactions.is_open and not coordination.transactions.leads(transactional_id):
        return coordination.permissions.ask(transactional_id, producer, partition.name, implicit=implicit)

    def ask() -> Later[ErrorCode]:
        try:
            shard_host = coordination.transactions.shard_host_of(transactional_id)
        except Refused as refused:
            return failed(refused)
        # What it says leaves when it is committed, and by a coordinator that nobody has followed: who is let in by a
        # transaction that is then forgotten would leave one here that nobody ever ends.
        told: Later[Any] = Later()
        shard_host.run(
            lambda shard, now_ms: shard.permit(
                transactional_id, producer.id, producer.epoch, partition.name, now_ms, told, implicit=implicit
            )
        )
        return told.map(_partition_error)

    return past_the_last_end(coordination, transactional_id, ask, int)


def _is_overtaken(
    metadata: MetadataContext, coordination: CoordinationContext, transactional_id: str, coordinator_epoch: int
) -> bool:
    """Whether the partition has heard of a later coordinator than this node: the one it knows may be out of date."""
    transactions = coordination.transactions
    if coordinator_epoch < 0 or not transactions.is_open:
        return False
    known = metadata.image.partition(transactions.topic, transactions.partition_of(transactional_id))
    return known is not None and known.leader_epoch < coordinator_epoch


def _partition_error(response: Any) -> ErrorCode:
    from millpond.coordinators.transactions.replies import partition_error

    return partition_error(response)


def _refuse_produce(refused: Refused, version: int) -> None:
    from millpond.coordinators.transactions.replies import for_produce

    raise Refused(for_produce(refused.code, version), str(refused))
