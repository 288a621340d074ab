"""Responses: results per partition, with the error codes that each version knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.wire import messages as m

TopicResult: TypeAlias = m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult

COORDINATOR_AWAY = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)
PRODUCE_IMPLICIT_SINCE = 12
"""From this version on a producer may begin before its last transaction has ended."""
PRODUCE_ABORTABLE_SINCE = 11
"""From this version on Produce and its client know TRANSACTION_ABORTABLE."""


def for_version(error: ErrorCode, version: int, *, fenced_since: int = 0, abortable_since: int = 0) -> ErrorCode:
    """The error code that a client of this version understands."""
    if error is ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < abortable_since:
        return ErrorCode.INVALID_TXN_STATE
    return error


def for_produce(error: ErrorCode, version: int) -> ErrorCode:
    """The error code for a Produce of this version whose partition could not be verified or added."""
    if error is ErrorCode.PRODUCER_FENCED:
        # Producers expect this one from a partition: they abort and continue, while the other is fatal.
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error in COORDINATOR_AWAY or (error is ErrorCode.CONCURRENT_TRANSACTIONS and version < PRODUCE_IMPLICIT_SINCE):
        # Older producers would treat these as fatal; this one makes all of them retry, as in Kafka.
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return for_version(error, version, abortable_since=PRODUCE_ABORTABLE_SINCE)


def partitions_of(topics: Iterable[m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, partition) for topic in topics for partition in topic.partitions]


def topic_results(errors: Mapping[TopicPartition, ErrorCode]) -> list[TopicResult]:
    grouped: dict[str, TopicResult] = {}
    for (topic, partition), error in errors.items():
        if topic not in grouped:
            grouped[topic] = TopicResult(name=topic, results_by_partition=[])
        grouped[topic].results_by_partition.append(
            m.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                partition_index=partition, partition_error_code=error
            )
        )
    return list(grouped.values())


def partition_error(response: m.AddPartitionsToTxnResponse) -> ErrorCode:
    """The error in a response (version 4+) about one partition of one transaction."""
    (transaction,) = response.results_by_transaction
    (topic,) = transaction.topic_results
    (partition,) = topic.results_by_partition
    return ErrorCode(partition.partition_error_code)
