"""Produce (0), versions 3-13: append record batches to partitions.

3 transactional id · 5 log start offset · 7 zstd · 8 record errors · 9 flexible · 10 current leader · 12 transactions
v2 · 13 topic ids. Versions 0-2 carry message formats older than record batches; they are advertised, because
librdkafka drops compression without them, and answered with UNSUPPORTED_FOR_MESSAGE_FORMAT.

acks=0 is not answered, acks=1 once the bytes are in the page cache, acks=all once they survive (see `flush.ack`).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Container, Iterable
from struct import Struct
from typing import TYPE_CHECKING
from uuid import UUID

from millpond.base.errors import ErrorCode, MalformedMessage, Refused, RemoteError
from millpond.base.ids import NO_TOPIC_ID
from millpond.base.later import Later, done, gather
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import ReplyPart
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import (
    NOT_AUTHORISED,
    Need,
    Rights,
    Screened,
    split_topics,
    topic_refusal,
)
from millpond.broker.coordinator_calls.transaction_calls import permission_for_batch
from millpond.broker.produce.record_checks import (
    PIECE_WEIGHT,
    UNPACKED_BYTES_MAX,
    FaultKey,
    check_records,
    is_heavy,
    weight_of,
)
from millpond.broker.replication.acknowledgements import Asked, PendingAck, TooLate
from millpond.broker.replication.partitions import Partition
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Encoded, Outcome, Response, encode_reply
from millpond.broker.responses.current_leader import MOVED, current_leader, endpoints
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.config.node import MAX_REQUEST_ITEMS, PRODUCE_WAIT_MAX_MS
from millpond.log.checks import InvalidRecords, TooLargeToUnpack
from millpond.wire import messages as m
from millpond.wire.batch import HEADER_BYTES, CorruptBatch, read_header
from millpond.wire.header import RequestHeader
from millpond.wire.kernel import short_produce, single_produce, single_produce_reply

if TYPE_CHECKING:
    from millpond.broker.context import (
        CoordinationContext,
        DataContext,
        MetadataContext,
        NodeContext,
        SecurityContext,
    )
    from millpond.broker.requests.connection import Connection
    from millpond.log.producers import Verification

ON_ID = Need(Operation.WRITE, AclResource.TRANSACTIONAL_ID)
ON_TOPIC = Need(Operation.WRITE, AclResource.TOPIC)

PRODUCE = 0
ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1
ZSTD_FROM = 7
CURRENT_LEADER_FROM = 10
TOPIC_IDS_FROM = 13


def handle(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    data: DataContext,
    coordination: CoordinationContext,
    call: Call,
    request: m.ProduceRequest,
) -> Outcome:
    if request.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
        return _refuse_all(request, ErrorCode.INVALID_REQUIRED_ACKS, "acks must be 0, 1 or -1 (all)")
    if request.transactional_id is not None:
        if request.acks == ACKS_NONE:
            # Nobody would hear of a refusal, and the rest of the transaction would be committed without this batch.
            return _refuse_all(request, ErrorCode.INVALID_REQUIRED_ACKS, "a transaction must be acknowledged")
        return _after_leave(node, security, metadata, data, coordination, call, request, request.transactional_id)
    return _finish(_Produce(node, security, metadata, data, call, request, {}), request)


def _finish(produce: _Produce, request: m.ProduceRequest) -> Outcome:
    if request.acks == ACKS_NONE:
        # The only word that a producer without acknowledgements can get is a closed connection.
        if produce.refusals:
            raise RemoteError(f"a batch sent with acks=0 was refused: {produce.refusals[0]}")
        return None
    return produce.outcome()


Permits = dict[tuple[str, int], "Verification | Refused | None"]
"""What the coordinator said of each partition that a transactional producer writes to."""

Absent = dict[FaultKey, ErrorCode]
"""The partitions this broker did not lead when it asked the coordinator about the others, and why."""


def _after_leave(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    data: DataContext,
    coordination: CoordinationContext,
    call: Call,
    request: m.ProduceRequest,
    transactional_id: str,
) -> Outcome:
    """Inside a transaction every partition must be part of it: ask its coordinator first, then append."""
    twice = _named_twice(call, request)
    absent: Absent = {}
    asked: list[tuple[str, int]] = []
    permits: list[Later[Verification | Refused | None]] = []
    for topic in request.topic_data:
        for entry in topic.partition_data:
            partition = _find(data, call.version, topic.name, topic.topic_id, entry.index)
            is_named_twice = (topic.topic_id, topic.name, entry.index) in twice
            if isinstance(partition, ErrorCode):
                # Still absent when the others are appended: nobody has asked the coordinator about it.
                absent[topic.topic_id, topic.name, entry.index] = partition
                continue
            if partition.is_internal or is_named_twice:
                # It will be refused. It must not become part of the transaction, whose end is written there.
                continue
            asked.append(partition.name)
            permit = permission_for_batch(
                node, metadata, coordination, transactional_id, call.version, partition, entry.records
            )
            permits.append(permit.recover(Refused, lambda refused: refused))
    key = PRODUCE, call.connection, transactional_id
    if coordination.append_order.is_waiting(key) or not all(permit.ended for permit in permits):
        # The frame is not ours once we wait for any of them: its buffer serves the next request.
        for topic in request.topic_data:
            for entry in topic.partition_data:
                entry.records = memoryview(bytearray(entry.records or b""))

    def append(answers: list[Verification | Refused | None]) -> Later[Response]:
        outcome = _Produce(
            node, security, metadata, data, call, request, dict(zip(asked, answers, strict=True)), absent
        ).outcome()
        return outcome if isinstance(outcome, Later) else done(outcome)

    return coordination.append_order.append(key, gather(permits), append)


def quick(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    data: DataContext,
    connection: Connection,
    header: RequestHeader,
    frame: memoryview,
) -> bool:
    """One partition, acknowledged, no transaction, no error: what nearly every producer sends and gets."""
    version = header.api_version
    single = single_produce(frame, header.body_position, version)
    if single is None or single.acks not in (ACKS_LEADER, ACKS_ALL):
        return False
    key = single.topic + _INT32.pack(single.partition)
    partition = data.partitions.by_raw(key, is_id=version >= TOPIC_IDS_FROM)
    if partition is None:
        return False
    access = security.access
    if access.is_on and not access.may_often(connection, Operation.WRITE, partition.name.topic):
        # Likewise refused the general way.
        return False
    try:
        appended = partition.append(
            frame[single.records_begin : single.records_end],
            zstd=version >= ZSTD_FROM,
            acks_all=single.acks == ACKS_ALL,
            unpacked_bytes_max=UNPACKED_BYTES_MAX,
        )
    except (Refused, CorruptBatch, TooLargeToUnpack):
        # Nothing was written; the general way refuses it again, and says why.
        return False
    reply = single_produce_reply(
        version,
        header.correlation_id,
        single.topic,
        single.partition,
        appended.first_offset,
        appended.append_time_ms,
        appended.start_offset,
    )
    if single.acks == ACKS_LEADER or partition.acknowledges_at_once:
        connection.reply_frame(reply)
        node.requests.on_produced(PRODUCE, connection.arrived_us, partition.acknowledged)
    else:
        client_id = None if header.client_id is None else header.client_id.encode()
        asked = _Asked(version, header.correlation_id, client_id, key)
        _acknowledge_later(
            node, metadata, data, connection, asked, single.timeout_ms, partition, appended.last_offset + 1, reply
        )
    return True


def short(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    data: DataContext,
    connection: Connection,
    frame: memoryview,
) -> bool:
    """The same for small ones, where no client has a quota: from the frame to the reply with few steps between."""
    request = short_produce(frame)
    if request is None:
        return False
    partition = data.partitions.by_raw(request.key, is_id=request.version >= TOPIC_IDS_FROM)
    if partition is None:
        return False
    access = security.access
    if access.is_on and not access.may_often(connection, Operation.WRITE, partition.name.topic):
        return False
    offset = partition.append_short(request)
    if offset is None:
        return False
    reply = request.reply(offset, -1, partition.log.start_offset)
    if request.acks == ACKS_LEADER or partition.acknowledges_at_once:
        connection.reply_frame(reply)
        node.requests.on_produced(PRODUCE, connection.arrived_us, partition.acknowledged)
    else:
        _acknowledge_later(
            node,
            metadata,
            data,
            connection,
            request,
            request.timeout_ms,
            partition,
            offset + request.record_count,
            reply,
        )
    return True


class _Asked(NamedTuple):
    """See `acknowledgements.Asked`."""

    version: int
    correlation_id: int
    client_id: bytes | None
    key: bytes


def _acknowledge_later(
    node: NodeContext,
    metadata: MetadataContext,
    data: DataContext,
    connection: Connection,
    asked: Asked,
    timeout_ms: int,
    partition: Partition,
    end_offset: int,
    reply: bytes,
) -> None:
    """Acknowledge written records once they are durable."""
    patience_ms = _patience_ms(node, timeout_ms)
    arrived_us = connection.arrived_us
    if partition.leading is None:
        data.acknowledgements.add(connection, asked, reply, partition, end_offset, patience_ms)
        return
    # Each by itself: followers may have some of a turn's requests before the others are there.
    later = partition.after_commit(end_offset, reply)

    def answer(frame: bytes) -> list[ReplyPart]:
        node.requests.on_produced(PRODUCE, arrived_us, partition.acknowledged)
        return [frame]

    def refuse(failure: Exception) -> list[ReplyPart]:
        return _refusal(node, metadata, data, connection, asked, partition, end_offset, arrived_us, failure)

    later.expire_after(node.clock, patience_ms, lambda: later.fail(TooLate()))
    connection.reply_later(later, answer, refuse)


def refuse_pending(
    node: NodeContext,
    metadata: MetadataContext,
    data: DataContext,
    ack: PendingAck,
    failure: Exception,
) -> list[ReplyPart]:
    """The reply to a request whose records may be lost."""
    return _refusal(
        node,
        metadata,
        data,
        ack.connection,
        ack.request,
        ack.partition,
        ack.end_offset,
        ack.arrived_us,
        failure,
    )


def _refusal(
    node: NodeContext,
    metadata: MetadataContext,
    data: DataContext,
    connection: Connection,
    asked: Asked,
    partition: Partition,
    end_offset: int,
    arrived_us: int,
    failure: Exception,
) -> list[ReplyPart]:
    client_id = None if asked.client_id is None else asked.client_id.decode()
    header = RequestHeader(PRODUCE, asked.version, asked.correlation_id, client_id, 0)
    code, message = _not_committed(failure, partition)
    _tell_uncommitted(node, client_id, partition, end_offset, code)
    topic = asked.key[:-4]
    is_id = asked.version >= TOPIC_IDS_FROM
    failed = m.ProduceResponse.PartitionProduceResponse(
        index=partition.name.partition, error_code=code, base_offset=-1, error_message=message
    )
    response = m.ProduceResponse(
        responses=[
            m.ProduceResponse.TopicProduceResponse(
                name="" if is_id else topic.decode(),
                topic_id=UUID(bytes=topic) if is_id else NO_TOPIC_ID,
                partition_responses=[failed],
            )
        ]
    )
    _name_leaders(node, metadata, data, connection, asked.version, response)
    node.requests.on_answer(PRODUCE, arrived_us, response)
    return encode_reply(header, response)


def _not_committed(failure: Exception, partition: Partition) -> tuple[ErrorCode, str]:
    if isinstance(failure, TooLate):
        if partition.leading is None:
            return ErrorCode.REQUEST_TIMED_OUT, "the disk did not confirm in time; the outcome is open"
        if not partition.leading.is_writable:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "too few replicas are in sync; the outcome is open"
        return ErrorCode.REQUEST_TIMED_OUT, "the replicas did not confirm in time; the outcome is open"
    if isinstance(failure, OSError):
        return ErrorCode.KAFKA_STORAGE_ERROR, f"the log could not be forced to disk: {failure}"
    if isinstance(failure, Refused):
        return failure.code, str(failure)
    raise failure


def _patience_ms(node: NodeContext, timeout_ms: int) -> int:
    return min(max(timeout_ms, 0), node.settings[PRODUCE_WAIT_MAX_MS])


class _Produce:
    """One request: every batch is appended at once, the reply waits for those that must survive."""

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
        version = call.version
        self._absent = absent or {}
        self._call = call
        self._permits = permits
        self._repeated = _named_twice(call, request)
        self.refusals: list[str] = []
        self._node = node
        self._security = security
        self._metadata = metadata
        self._data = data
        self._acks_all = request.acks == ACKS_ALL
        self._timeout_ms = request.timeout_ms
        self._appended: list[tuple[Partition, m.ProduceResponse.PartitionProduceResponse]] = []
        self._uncommitted: list[tuple[Partition, int, m.ProduceResponse.PartitionProduceResponse]] = []
        self._response = m.ProduceResponse(
            responses=[
                m.ProduceResponse.TopicProduceResponse(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_responses=[
                        self._told(topic, entry, self._append(topic, version, entry))
                        if (topic.topic_id, topic.name, entry.index) not in self._repeated
                        else self._refused(entry.index, ErrorCode.INVALID_REQUEST, _TWICE)
                        for entry in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )

    def _told(
        self,
        topic: m.ProduceRequest.TopicProduceData,
        entry: m.ProduceRequest.PartitionProduceData,
        reply: m.ProduceResponse.PartitionProduceResponse,
    ) -> m.ProduceResponse.PartitionProduceResponse:
        """The reply; a refusal is told to whoever has asked for every detail."""
        if reply.error_code and self._node.loggers.are_detailed:
            records = entry.records
            header = read_header(records) if records is not None and len(records) >= HEADER_BYTES else None
            self._node.journal(
                "a batch is refused",
                partition=f"{topic.name or topic.topic_id}-{entry.index}",
                client=self._call.client_id,
                error=ErrorCode(reply.error_code).name,
                reason=reply.error_message,
                producer=header.producer_id if header is not None else None,
                producer_epoch=header.producer_epoch if header is not None else None,
                sequence=header.base_sequence if header is not None else None,
            )
        return reply

    def _append(
        self, topic: m.ProduceRequest.TopicProduceData, version: int, entry: m.ProduceRequest.PartitionProduceData
    ) -> m.ProduceResponse.PartitionProduceResponse:
        partition = self._absent.get((topic.topic_id, topic.name, entry.index)) or _find(
            self._data, version, topic.name, topic.topic_id, entry.index
        )
        if isinstance(partition, ErrorCode):
            key = topic.topic_id if version >= TOPIC_IDS_FROM else topic.name
            self._data.partitions.note_refused(key, entry.index, entry.records)
            return self._refused(entry.index, partition, partition.name)
        permit = self._permits.get(partition.name)
        faults = self._call.record_faults
        try:
            if isinstance(permit, Refused):
                partition.note_unpermitted(entry.records, permit.code)
                raise permit
            appended = partition.append(
                entry.records,
                zstd=version >= ZSTD_FROM,
                verification=permit,
                acks_all=self._acks_all,
                by_node=self._call.is_from_node,
                faults=None if faults is None else faults.get((topic.topic_id, topic.name, entry.index)),
            )
        except InvalidRecords as refusal:
            return self._refused(entry.index, refusal.code, str(refusal), refusal.records)
        except Refused as refusal:
            if refusal.code is ErrorCode.KAFKA_STORAGE_ERROR:
                self._data.disk_watch.on_refused(str(refusal))
            self._security.limits.note_refused(refusal, topic=partition.name.topic)
            return self._refused(entry.index, refusal.code, str(refusal))
        except CorruptBatch as fault:
            return self._refused(entry.index, ErrorCode.CORRUPT_MESSAGE, str(fault))
        reply = m.ProduceResponse.PartitionProduceResponse(
            index=entry.index,
            base_offset=appended.first_offset,
            log_append_time_ms=appended.append_time_ms,
            log_start_offset=appended.start_offset,
        )
        self._appended.append((partition, reply))
        if self._acks_all and not partition.acknowledges_at_once:
            self._uncommitted.append((partition, appended.last_offset + 1, reply))
        return reply

    def _refused(
        self, index: int, code: ErrorCode, message: str, records: Iterable[tuple[int, str]] = ()
    ) -> m.ProduceResponse.PartitionProduceResponse:
        self.refusals.append(message)
        return m.ProduceResponse.PartitionProduceResponse(
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
        """The reply, once every batch that must survive does, or cannot, or the client's time is over."""
        if not self._uncommitted:
            return self._completed()
        parts = [self._committed(partition, end_offset, reply) for partition, end_offset, reply in self._uncommitted]
        whole: Later[Response] = gather(parts).map(lambda _: self._completed())

        def time_out() -> None:
            for part, (partition, end_offset, reply) in zip(parts, self._uncommitted, strict=True):
                if not part.ended:
                    _refuse(reply, TooLate(), partition)
                    _tell_uncommitted(self._node, self._call.client_id, partition, end_offset, reply.error_code)
            whole.finish(self._completed())

        whole.expire_after(self._node.clock, _patience_ms(self._node, self._timeout_ms), time_out)
        return whole

    def _completed(self) -> Response:
        took_us = self._node.clock.monotonic_us() - self._call.arrived_us
        for partition, reply in self._appended:
            if not reply.error_code:
                partition.acknowledged.observe(took_us)
        _name_leaders(
            self._node, self._metadata, self._data, self._call.connection, self._call.version, self._response
        )
        return self._response

    def _committed(
        self, partition: Partition, end_offset: int, reply: m.ProduceResponse.PartitionProduceResponse
    ) -> Later[None]:
        def refuse(failure: Exception) -> None:
            _refuse(reply, failure, partition)
            _tell_uncommitted(self._node, self._call.client_id, partition, end_offset, reply.error_code)

        return partition.after_commit(end_offset, None).recover(Exception, refuse)


def _tell_uncommitted(
    node: NodeContext, client_id: str | None, partition: Partition, end_offset: int, code: int
) -> None:
    """For whoever has asked for every detail."""
    if node.loggers.are_detailed:
        node.journal(
            "a batch is not committed",
            partition=partition.name,
            client=client_id,
            error=ErrorCode(code).name,
            end_offset=end_offset,
            committed_offset=partition.committed_offset,
        )


def _refuse(reply: m.ProduceResponse.PartitionProduceResponse, failure: Exception, partition: Partition) -> None:
    reply.error_code, reply.error_message = _not_committed(failure, partition)
    reply.base_offset = reply.log_append_time_ms = reply.log_start_offset = -1


def _name_leaders(
    node: NodeContext,
    metadata: MetadataContext,
    data: DataContext,
    connection: Connection,
    version: int,
    response: m.ProduceResponse,
) -> None:
    """Tell the client whom to ask instead, where another node leads."""
    leaders: set[int] = set()
    for topic in response.responses:
        for partition in topic.partition_responses:
            if partition.error_code not in MOVED:
                continue
            by_id = version >= TOPIC_IDS_FROM
            leader = current_leader(node, metadata, data, topic.topic_id if by_id else topic.name, partition.index)
            if leader is None:
                continue
            if leader.node_id != node.node_id:
                now_ms = node.clock.monotonic_ms()
                connection.misdirected.note(leader.topic_id, partition.index, leader.leader_epoch, now_ms)
            if version >= CURRENT_LEADER_FROM:
                leaders.add(leader.node_id)
                partition.current_leader = m.ProduceResponse.LeaderIdAndEpoch(
                    leader_id=leader.node_id, leader_epoch=leader.leader_epoch
                )
    response.node_endpoints = [
        m.ProduceResponse.NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
        for node_id, host, port, rack in endpoints(node, connection, leaders)
    ]


_TWICE = "the partition is named more than once in the request: send its batches one after another"


def _is_heavy(node: NodeContext, data: DataContext, call: Call, request: m.ProduceRequest) -> bool:
    if not is_heavy(node, data, call, request):
        return False
    call.named_twice = _named_twice(call, request)
    return True


def _named_twice(call: Call, request: m.ProduceRequest) -> Container[tuple[UUID, str, int]]:
    """Which partitions the request names more than once: clients would mix up their answers."""
    if call.named_twice is not None:
        return call.named_twice
    names = [
        (topic.topic_id, topic.name, entry.index) for topic in request.topic_data for entry in topic.partition_data
    ]
    if len(names) == len(set(names)):
        return ()
    return {name for name, times in Counter(names).items() if times > 1}


def _find(data: DataContext, version: int, name: str, topic_id: UUID, index: int) -> Partition | ErrorCode:
    if version >= TOPIC_IDS_FROM:
        return data.partitions.by_id(topic_id, index) or data.absence(topic_id, index)
    return data.partitions.get(name, index) or data.absence(name, index)


def _refuse_all(request: m.ProduceRequest, code: ErrorCode, message: str) -> Outcome:
    if request.acks == ACKS_NONE:
        raise RemoteError(f"produce with acks=0: {message}")
    return m.ProduceResponse(responses=[_refuse_topic(topic, code, message) for topic in request.topic_data])


def _refuse_topic(
    topic: m.ProduceRequest.TopicProduceData, code: ErrorCode, message: str
) -> m.ProduceResponse.TopicProduceResponse:
    return m.ProduceResponse.TopicProduceResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=[
            m.ProduceResponse.PartitionProduceResponse(
                index=entry.index, error_code=code, base_offset=-1, error_message=message
            )
            for entry in topic.partition_data
        ],
    )


# Versions 0-2: read just far enough to answer every partition by name.

_INT16, _INT32 = Struct(">h"), Struct(">i")
_OLD_HEAD = Struct(">hi")
_OLD_REPLY = Struct(">ihq")


def refuse_old_format(node: NodeContext, version: int, body: memoryview) -> Response:
    try:
        out = _old_topics(body, version, node.settings[MAX_REQUEST_ITEMS])
    except struct.error as fault:
        raise MalformedMessage(f"Produce version {version}: {fault}") from None
    return Encoded(out + (_INT32.pack(0) if version >= 1 else b""))


def _old_topics(body: memoryview, version: int, items_max: int) -> bytes:
    acks, _timeout = _OLD_HEAD.unpack_from(body, 0)
    if acks == ACKS_NONE:
        # An answer would be taken for that of the next request.
        raise RemoteError("produce with acks=0: message formats before record batches (Kafka 0.11) are not supported")
    (topics,) = _INT32.unpack_from(body, 6)
    position = 10
    left = items_max - topics
    out = [_INT32.pack(topics)]
    for _ in range(topics):
        (length,) = _INT16.unpack_from(body, position)
        if length < 0:
            # It would lead back to where we were, and the count of topics is the peer's own.
            raise MalformedMessage("Produce: a name of negative length")
        name_end = position + 2 + length
        (partitions,) = _INT32.unpack_from(body, name_end)
        left -= partitions
        if left < 0:
            raise MalformedMessage(f"Produce: more than {items_max} items in lists")
        out += [bytes(body[position:name_end]), _INT32.pack(partitions)]
        position = name_end + 4
        for _ in range(partitions):
            (index,) = _INT32.unpack_from(body, position)
            (size,) = _INT32.unpack_from(body, position + 4)
            if size < 0:
                raise MalformedMessage("Produce: negative record size")
            position += 8 + size
            out.append(_OLD_REPLY.pack(index, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, -1))
            if version >= 2:
                out.append(Struct(">q").pack(-1))
    return b"".join(out)


def _screen(metadata: MetadataContext, call: Call, request: m.ProduceRequest) -> Screened | None:
    if request.transactional_id is not None and not call.demand(*ON_ID, request.transactional_id):
        return Screened(None, _refuse_all(request, ON_ID.refusal, NOT_AUTHORISED))

    def refuse(topic: m.ProduceRequest.TopicProduceData, code: ErrorCode) -> m.ProduceResponse.TopicProduceResponse:
        text = NOT_AUTHORISED if code is ON_TOPIC.refusal else code.name
        if request.acks == ACKS_NONE:
            # Nothing of it is written: nobody would know what was.
            raise RemoteError(f"a batch sent with acks=0 was refused: {text}")
        return _refuse_topic(topic, code, text)

    def code_of(topic: m.ProduceRequest.TopicProduceData) -> ErrorCode:
        return topic_refusal(metadata, call, ON_TOPIC, topic.name, topic.topic_id)

    return split_topics(request, "topic_data", code_of, refuse, "responses")


API = Api(
    key=0,
    name="Produce",
    versions=(3, 13),
    advertised=(0, 13),
    handle=handle,
    lists="topic_data",
    has_records=True,
    quick=quick,
    short=short,
    refuse=refuse_old_format,
    pieces=(
        way(
            "topic_data.partition_data",
            "responses.partition_responses",
            beside="node_endpoints",
            items=PIECE_WEIGHT,
            weigh=weight_of,
        ),
    ),
    is_heavy=_is_heavy,
    prepare=check_records,
    rights=Rights((ON_ID, ON_TOPIC), _screen),
)
