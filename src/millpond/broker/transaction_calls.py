"""What the APIs of transactions share: asking the coordinator, and leave to write inside a transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millpond.base.errors import ErrorCode, MalformedMessage, Refused
from millpond.base.ports import Buffer
from millpond.broker.api import Call
from millpond.broker.asking import Fail, ask
from millpond.broker.coordination import Coordination, Producer
from millpond.broker.partitions import Partition
from millpond.broker.wait import Wait
from millpond.wire.batch import read_header
from millpond.wire.messages import Message

if TYPE_CHECKING:
    from millpond.broker.broker import Broker

IMPLICIT_FROM = 12
"""From this version of Produce on the broker adds partitions to the transaction by itself (transactions v2)."""


def ask_transaction(broker: Broker, call: Call, transactional_id: str, body: Message, fail: Fail) -> Wait[Any]:
    """Put a request to the coordinator of a transactional id, whose topic is made first if need be."""
    if broker.transactions.is_open:
        return ask(broker.transactions, call, transactional_id, body, fail)
    return after_opening(
        broker, broker.transactions, lambda: ask(broker.transactions, call, transactional_id, body, fail)
    )


def after_opening(broker: Broker, coordination: Coordination[Any], then: Callable[[], Wait[Any]]) -> Wait[Any]:
    """Bring the coordinator's topic into being, then go on."""
    wait: Wait[Any] = Wait()
    broker.open_coordination(coordination, lambda: then().then(wait.finish))
    return wait


def ask_for_leave(
    broker: Broker, transactional_id: str, version: int, partition: Partition, records: Buffer | None
) -> Wait[Any]:
    """Whether this batch may begin or go on with the producer's transaction in this partition."""
    try:
        header = read_header(records or b"")
    except MalformedMessage:
        # The log will say what is wrong with it.
        return _done(NOTHING_NEEDED)
    if not header.is_transactional:
        return _done(Refused(ErrorCode.INVALID_RECORD, "a batch outside of the transaction that the request names"))
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
) -> Wait[Any]:
    """Leave to write to a partition inside a transaction: a Verification, NOTHING_NEEDED, or a Refused.

    With `implicit` the coordinator takes the partition into the transaction; else it must be part of it already.
    """
    verification = partition.log.verification(producer.id, producer.epoch, sequence, broker.clock.wall_ms())
    if verification is None:
        return _done(NOTHING_NEEDED)
    try:
        home = broker.transactions.home_of(transactional_id)
    except Refused as refused:
        return _done(refused)
    wait: Wait[Any] = Wait()
    topic, index = partition.name

    def answer(code: ErrorCode) -> None:
        wait.finish(Refused(told(code)) if code else verification)

    if implicit:
        home.run(
            lambda shard, now_ms: shard.add_partition_implicitly(
                transactional_id, producer.id, producer.epoch, topic, index, now_ms, _Added(answer)
            )
        )
    else:
        answer(home.shard.is_partition_in_transaction(transactional_id, producer.id, producer.epoch, topic, index))
    return wait


def _done(answer: object) -> Wait[Any]:
    wait: Wait[Any] = Wait()
    wait.finish(answer)
    return wait


class _NothingNeeded:
    """A reply must be a value: this one stands for none."""


NOTHING_NEEDED = _NothingNeeded()


class _Added:
    """Waits for the coordinator to take a partition into a transaction."""

    def __init__(self, answer: Callable[[ErrorCode], None]) -> None:
        self._answer = answer

    def finish(self, response: Any) -> None:
        from millpond.coordinators.transactions.replies import partition_error

        self._answer(partition_error(response))

    def fail(self, refused: Refused) -> None:
        self._answer(refused.code)


def _for_produce(code: ErrorCode, version: int) -> ErrorCode:
    from millpond.coordinators.transactions.replies import for_produce

    return for_produce(code, version)
