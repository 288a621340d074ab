"""The general path of Produce: any number of partitions, transactions, and every refusal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done, gather
from millpond.broker.coordinator_calls.transaction_calls import permission_for_batch
from millpond.broker.produce.request import (
    ACKS_ALL,
    PRODUCE,
    TOPIC_IDS_FROM,
    ZSTD_FROM,
    PartitionKey,
    add_leader_hints,
    find_partition,
    repeated_partitions,
    report_uncommitted,
)
from millpond.log.checks import InvalidRecords
from millpond.wire import messages as m
from millpond.wire.batch import HEADER_BYTES, CorruptBatch, read_header

if TYPE_CHECKING:
    from millpond.broker.context import (
        CoordinationContext,
        DataContext,
        MetadataContext,
        NodeContext,
        SecurityContext,
    )
    from millpond.broker.replication.partitions import Partition
    from millpond.broker.requests.call import Call
    from millpond.broker.requests.replies import Outcome, Response
    from millpond.log.producers import Verification

PartitionResponse = m.ProduceResponse.PartitionProduceResponse

Permits = dict[tuple[str, int], "Verification | Refused | None"]
"""The transaction coordinator's answer for each partition that a transactional producer writes to."""

Absent = dict[PartitionKey, ErrorCode]
"""Partitions that were not open here when the coordinator was asked about the others, with the reason."""

_REPEATED = "the partition appears more than once in the request: send its batches one after another"


class ProduceRun:
    """One request: appends every batch at once; the response waits for those that must be committed."""

    def __init__(
        self,
        node: NodeContext,
        security: SecurityContext,
        metadata: MetadataContext,
        data: DataContext,
        call: Call,
        request: m.ProduceRequest,
        permits: Permits,
        absent: Absent | None = None,
    ) -> None:
        self._absent = absent or {}
        self._call = call
        self._permits = permits
        self._repeated = repeated_partitions(call, request)
        self.refusals: list[str] = []
        self._node = node
        self._security = security
        self._metadata = metadata
        self._data = data
        self._acks_all = request.acks == ACKS_ALL
        self._timeout_ms = request.timeout_ms
        self._appended: list[tuple[Partition, PartitionResponse]] = []
        self._uncommitted: list[tuple[Partition, int, PartitionResponse]] = []
        """Partition, end offset and response of every batch whose commit the response waits for."""
        self._response = m.ProduceResponse(
            responses=[
                m.ProduceResponse.TopicProduceResponse(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_responses=[self._answer(topic, entry) for entry in topic.partition_data],
                )
                for topic in request.topic_data
            ]
        )

    def _answer(
        self, topic: m.ProduceRequest.TopicProduceData, entry: m.ProduceRequest.PartitionProduceData
    ) -> PartitionResponse:
        if (topic.topic_id, topic.name, entry.index) in self._repeated:
            return self._refuse(entry.index, ErrorCode.INVALID_REQUEST, _REPEATED)
        response = self._append(topic, entry)
        if response.error_code and self._node.loggers.are_detailed:
            self._report_refused(topic, entry, response)
        return response

    def _report_refused(
        self,
        topic: m.ProduceRequest.TopicProduceData,
        entry: m.ProduceRequest.PartitionProduceData,
        response: PartitionResponse,
    ) -> None:
        records = entry.records
        header = read_header(records) if records is not None and len(records) >= HEADER_BYTES else None
        self._node.journal(
            "batch refused",
            partition=f"{topic.name or topic.topic_id}-{entry.index}",
            client=self._call.client_id,
            error=ErrorCode(response.error_code).name,
            reason=response.error_message,
            producer=header.producer_id if header is not None else None,
            producer_epoch=header.producer_epoch if header is not None else None,
            sequence=header.base_sequence if header is not None else None,
        )

    def _append(
        self, topic: m.ProduceRequest.TopicProduceData, entry: m.ProduceRequest.PartitionProduceData
    ) -> PartitionResponse:
        version = self._call.version
        key = topic.topic_id, topic.name, entry.index
        partition = self._absent.get(key) or _partition_or_absence(self._data, version, topic, entry.index)
        if isinstance(partition, ErrorCode):
            name = topic.topic_id if version >= TOPIC_IDS_FROM else topic.name
            self._data.partitions.unopened_refusals.note(name, entry.index, entry.records)
            return self._refuse(entry.index, partition, partition.name)
        permit = self._permits.get(partition.name)
        faults = self._call.record_faults
        try:
            if isinstance(permit, Refused):
                partition.refusals.note_unpermitted(entry.records, permit.code)
                raise permit
            appended = partition.append(
                entry.records,
                zstd=version >= ZSTD_FROM,
                verification=permit,
                acks_all=self._acks_all,
                by_node=self._call.is_from_node,
                faults=None if faults is None else faults.get(key),
            )
        except InvalidRecords as refusal:
            return self._refuse(entry.index, refusal.code, str(refusal), refusal.records)
        except Refused as refusal:
            if refusal.code is ErrorCode.KAFKA_STORAGE_ERROR:
                self._data.disk_watch.on_refused(str(refusal))
            self._security.limits.note_refused(refusal, topic=partition.name.topic)
            return self._refuse(entry.index, refusal.code, str(refusal))
        except CorruptBatch as fault:
            return self._refuse(entry.index, ErrorCode.CORRUPT_MESSAGE, str(fault))
        response = PartitionResponse(
            index=entry.index,
            base_offset=appended.first_offset,
            log_append_time_ms=appended.append_time_ms,
            log_start_offset=appended.start_offset,
        )
        self._appended.append((partition, response))
        if self._acks_all and not partition.acknowledges_at_once:
            self._uncommitted.append((partition, appended.last_offset + 1, response))
        return response

    def _refuse(
        self, index: int, code: ErrorCode, message: str, records: Iterable[tuple[int, str]] = ()
    ) -> PartitionResponse:
        self.refusals.append(message)
        return PartitionResponse(
            index=index,
            error_code=code,
            base_offset=-1,
            log_start_offset=-1,
            record_errors=[
                m.ProduceResponse.BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=fault)
                for at, fault in records
            ],
            error_message=message,
        )

    def outcome(self) -> Response | Later[Response]:
        """The response, once every batch that must be committed is, cannot be, or the client's timeout has passed."""
        if not self._uncommitted:
            return self._complete()
        writes = [(partition, end_offset) for partition, end_offset, _ in self._uncommitted]
        committed = self._data.acknowledgements.committed(writes, self._timeout_ms)
        return committed.map(self._complete)

    def _complete(self, refusals: Iterable[Refused | None] = ()) -> Response:
        for (partition, end_offset, response), refused in zip(self._uncommitted, refusals, strict=True):
            if refused is not None:
                response.error_code, response.error_message = refused.code, str(refused)
                response.base_offset = response.log_append_time_ms = response.log_start_offset = -1
                report_uncommitted(self._node, self._call.client_id, partition, end_offset, refused.code)
        took_us = self._node.clock.monotonic_us() - self._call.arrived_us
        for partition, response in self._appended:
            if not response.error_code:
                partition.acknowledged.observe(took_us)
        call = self._call
        add_leader_hints(self._node, self._metadata, self._data, call.connection, call.version, self._response)
        return self._response


def append_in_transaction(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    data: DataContext,
    coordination: CoordinationContext,
    call: Call,
    request: m.ProduceRequest,
    transactional_id: str,
) -> Outcome:
    """Append once the coordinator has confirmed that every partition is part of the transaction."""
    repeated = repeated_partitions(call, request)
    absent: Absent = {}
    names: list[tuple[str, int]] = []
    permits: list[Later[Verification | Refused | None]] = []
    for topic in request.topic_data:
        for entry in topic.partition_data:
            key = topic.topic_id, topic.name, entry.index
            partition = _partition_or_absence(data, call.version, topic, entry.index)
            if isinstance(partition, ErrorCode):
                # It stays absent when the others are appended: the coordinator was not asked about it.
                absent[key] = partition
                continue
            if partition.is_internal or key in repeated:
                # It will be refused, so it must not join the transaction, whose markers would be written there.
                continue
            names.append(partition.name)
            permit = permission_for_batch(
                node, metadata, coordination, transactional_id, call.version, partition, entry.records
            )
            permits.append(permit.recover(Refused, lambda refused: refused))
    order_key = PRODUCE, call.connection, transactional_id
    waiting_bytes = 0
    if coordination.append_order.is_waiting(order_key) or not all(permit.ended for permit in permits):
        # The frame's buffer serves the next request while this one waits.
        waiting_bytes = sum(
            len(entry.records or b"") for topic in request.topic_data for entry in topic.partition_data
        )
        call.connection.add_waiting_bytes(waiting_bytes)
        for topic in request.topic_data:
            for entry in topic.partition_data:
                entry.records = memoryview(bytearray(entry.records or b""))

    def append(answers: list[Verification | Refused | None]) -> Later[Response]:
        if waiting_bytes:
            call.connection.add_waiting_bytes(-waiting_bytes)
        permitted = dict(zip(names, answers, strict=True))
        outcome = ProduceRun(node, security, metadata, data, call, request, permitted, absent).outcome()
        return outcome if isinstance(outcome, Later) else done(outcome)

    return coordination.append_order.append(order_key, gather(permits), append)


def _partition_or_absence(
    data: DataContext, version: int, topic: m.ProduceRequest.TopicProduceData, index: int
) -> Partition | ErrorCode:
    partition = find_partition(data, version, topic, index)
    if partition is not None:
        return partition
    return data.absence(topic.topic_id if version >= TOPIC_IDS_FROM else topic.name, index)
