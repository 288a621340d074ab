"""Shared by the transaction APIs: asking the coordinator, and permission to write inside a transaction.

A client that starts its next transaction at once may find the markers of the last one still being written. Its
request then waits here briefly, instead of being refused and retried much later.
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
"""From this version of Produce on, the broker adds partitions to the transaction itself (transactions v2)."""

CONCURRENT_WAIT_MS = 100
"""How long a request waits for the end of the last transaction; as long as Kafka lets Produce wait."""

REFUSED_FOR_GOOD = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""After one of these errors from the coordinator, the producer does not send the same batch again."""

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
    """Ask the coordinator of a transactional id, after creating its topic if necessary."""
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
    """Ask, and again after the end of the last transaction if that was in progress."""

    def go_on(response: R) -> Later[R]:
        if error_of(response) != ErrorCode.CONCURRENT_TRANSACTIONS:
            return done(response)
        return coordination.markers.written(transactional_id, CONCURRENT_WAIT_MS).chain(lambda _: ask())

    return ask().chain(go_on)


def with_markers(coordination: CoordinationContext, transactional_id: str, response: R) -> Later[R]:
    """The response to the end of a transaction, delayed until its markers are written if that is soon."""
    if not coordination.markers.under_way(transactional_id):
        return done(response)
    return coordination.markers.written(transactional_id, MARKERS_WAIT_MS).map(lambda _: response)


def opened(coordination: CoordinationContext, coordinator_runtime: Coordination[Any]) -> Later[None]:
    """Ends once the coordinator's topic exists, or could not be created."""
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
    """Permission for this batch to start or continue the producer's transaction in this partition."""
    try:
        header = read_header(records or b"")
    except MalformedMessage:
        # The log reports the fault.
        return done(None)
    if not header.is_transactional:
        return failed(Refused(ErrorCode.INVALID_RECORD, "a batch outside of the transaction that the request names"))
    producer = Producer(header.producer_id, header.producer_epoch)
    if producer.id >= 0 and (producer.epoch < 0 or header.base_sequence < 0):
        # Likewise. The coordinator must not be asked: nothing would follow a sequence below the first.
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

    With `implicit` the coordinator adds the partition to the transaction; otherwise it must already be part of it.
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
            # Transactions before v2 all have the same epoch, so a question about the last one may be answered by the
            # next, and a batch that its producer has given up would be written there. The partition refuses it.
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
    """The coordinator's answer, here or on another node; Refused if none can be asked."""
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
        # The answer waits for its commit, which only the current coordinator can reach: a permission from a
        # transaction that is then lost would leave one in this partition that never ends.
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
    """Whether the partition has a later coordinator epoch than this node's metadata, which may be out of date."""
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
