"""What the APIs of transactions share: asking the coordinator, and leave to write inside a transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millpond.base.errors import ErrorCode, MalformedMessage, Refused
from millpond.base.later import Later, done, failed
from millpond.base.ports import Buffer
from millpond.broker.api import Call
from millpond.broker.coordination import Coordination, Producer
from millpond.broker.partitions import Partition
from millpond.log.producers import Verification
from millpond.wire.batch import read_header
from millpond.wire.messages import Message

if TYPE_CHECKING:
    from millpond.broker.broker import Broker

IMPLICIT_FROM = 12
"""From this version of Produce on the broker adds partitions to the transaction by itself (transactions v2)."""


def ask_transaction(
    broker: Broker, call: Call, transactional_id: str, body: Message, refuse: Callable[[Refused], Message]
) -> Later[Any]:
    """Put a request to the coordinator of a transactional id, whose topic is made first if need be."""
    transactions = broker.transactions
    reply = opened(broker, transactions).chain(lambda _: transactions.ask(call, transactional_id, body))
    return reply.recover(Refused, refuse)


def opened(broker: Broker, coordination: Coordination[Any]) -> Later[None]:
    """Ends once the coordinator's topic is there, or could not be made."""
    return done(None) if coordination.is_open else broker.open_coordination(coordination)


def ask_for_leave(
    broker: Broker, transactional_id: str, version: int, partition: Partition, records: Buffer | None
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
    return ask_for_place(
        broker,
        transactional_id,
        producer,
        partition,
        sequence=header.base_sequence,
        implicit=version >= IMPLICIT_FROM,
        told=lambda code: _for_produce(code, version),
    )


def ask_for_place(
    broker: Broker,
    transactional_id: str,
    producer: Producer,
    partition: Partition,
    *,
    sequence: int = -1,
    implicit: bool,
    told: Callable[[ErrorCode], ErrorCode] = lambda code: code,
) -> Later[Verification | None]:
    """Leave to write to a partition inside a transaction: a Verification, or None where none is needed.

    With `implicit` the coordinator takes the partition into the transaction; else it must be part of it already.
    """
    verification = partition.log.verification(producer.id, producer.epoch, sequence, broker.clock.wall_ms())
    if verification is None:
        return done(None)
    try:
        home = broker.transactions.home_of(transactional_id)
    except Refused as refused:
        return failed(refused)
    topic, index = partition.name

    def answer(code: ErrorCode) -> Verification:
        if code:
            raise Refused(told(code))
        return verification

    if not implicit:
        code = home.shard.is_partition_in_transaction(transactional_id, producer.id, producer.epoch, topic, index)
        return done(code).map(answer)
    added: Later[Any] = Later()
    home.run(
        lambda shard, now_ms: shard.add_partition_implicitly(
            transactional_id, producer.id, producer.epoch, topic, index, now_ms, added
        )
    )
    return added.map(_partition_error).recover(Refused, lambda refused: refused.code).map(answer)


def _partition_error(response: Any) -> ErrorCode:
    from millpond.coordinators.transactions.replies import partition_error

    return partition_error(response)


def _for_produce(code: ErrorCode, version: int) -> ErrorCode:
    from millpond.coordinators.transactions.replies import for_produce

    return for_produce(code, version)
