"""Transactions as records of `__transaction_state`, in Kafka's format: each part begins with its version."""

from __future__ import annotations

import struct

from millpond.base.errors import MalformedMessage
from millpond.base.ids import TopicPartition
from millpond.coordinators.shard import CoordinatorRecord
from millpond.coordinators.transactions.states import State
from millpond.coordinators.transactions.transaction import Transaction
from millpond.wire import messages as m

KEY_VERSION = 0
VALUE_VERSION = 1
"""Version 0, which lacks fields for transactions v2, is read but never written."""
_VERSION = struct.Struct(">h")
_STATES = frozenset(int(state) for state in State)


def record_of(transaction: Transaction) -> CoordinatorRecord:
    return CoordinatorRecord(
        _key(transaction.transactional_id),
        None if transaction.state is State.DEAD else _value(transaction),
    )


def read_key(key: bytes) -> str | None:
    """The transactional id; None for a key of a newer kind, which is skipped."""
    if len(key) < _VERSION.size:
        raise MalformedMessage(f"a key of {len(key)} bytes in the transaction log")
    (version,) = _VERSION.unpack_from(key)
    if version != KEY_VERSION:
        return None
    return m.TransactionLogKey.decode(key, version, _VERSION.size)[0].transactional_id


def read_value(transactional_id: str, value: bytes) -> Transaction:
    if len(value) < _VERSION.size:
        raise MalformedMessage(f"a value of {len(value)} bytes in the transaction log")
    (version,) = _VERSION.unpack_from(value)
    if not 0 <= version <= VALUE_VERSION:
        raise MalformedMessage(f"version {version} of a value in the transaction log")
    body, _ = m.TransactionLogValue.decode(value, version, _VERSION.size)
    if body.transaction_status not in _STATES:
        raise MalformedMessage(f"status {body.transaction_status} in the transaction log")
    return Transaction(
        transactional_id=transactional_id,
        producer_id=body.producer_id,
        producer_epoch=body.producer_epoch,
        timeout_ms=body.transaction_timeout_ms,
        updated_ms=body.transaction_last_update_timestamp_ms,
        state=State(body.transaction_status),
        partitions=frozenset(
            TopicPartition(topic.topic, partition)
            for topic in body.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        start_ms=body.transaction_start_timestamp_ms,
        previous_producer_id=body.previous_producer_id,
        next_producer_id=body.next_producer_id,
        client_version=body.client_transaction_version,
    )


def by_topic(partitions: frozenset[TopicPartition]) -> dict[str, list[int]]:
    """Sorted, so that the same transaction always gives the same bytes."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        grouped.setdefault(topic, []).append(partition)
    return grouped


def _key(transactional_id: str) -> bytes:
    return _VERSION.pack(KEY_VERSION) + m.TransactionLogKey(transactional_id=transactional_id).encode(KEY_VERSION)


def _value(transaction: Transaction) -> bytes:
    partitions = [
        m.TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=ids)
        for topic, ids in by_topic(transaction.partitions).items()
    ]
    body = m.TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=int(transaction.state),
        transaction_partitions=None if transaction.state is State.EMPTY else partitions,
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        client_transaction_version=transaction.client_version,
    )
    return _VERSION.pack(VALUE_VERSION) + body.encode(VALUE_VERSION)
