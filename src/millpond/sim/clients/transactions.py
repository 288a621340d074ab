"""A simulated transactional producer, in both versions of the protocol.

In version 1 it adds every partition to the transaction before it writes there. In version 2 the brokers do that, and
the end of each transaction raises the producer's epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from millpond.base.errors import ErrorCode
from millpond.sim.clients.client import Client
from millpond.sim.clients.requests import RETRY_MS, TRANSACTION_KEY, Membership, find_coordinator, produce_request
from millpond.sim.clients.script import Script, Send, Sleep
from millpond.wire import messages as m
from millpond.wire.messages import Message
from millpond.wire.records import Record, encode_batch

FENCING: Final = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)


class Fenced(Exception):
    """A newer producer has this transactional id, or the transaction timed out."""


class TransactionFailed(Exception):
    """The transaction cannot be committed: it has to be aborted."""


class TransactionalProducer:
    """One incarnation of one transactional id."""

    is_v2 = True
    attempts_max = 8
    produce_timeout_ms = 3_000

    def __init__(self, client: Client, transactional_id: str, timeout_ms: int = 5_000) -> None:
        self.transactional_id = transactional_id
        self.producer = -1, -1
        """The producer id and epoch."""
        self._client = client
        self._timeout_ms = timeout_ms
        self._sequences: dict[tuple[str, int], int] = {}

    @property
    def is_ready(self) -> bool:
        return self.producer[0] >= 0

    def initialize(self) -> Script[None]:
        """Get a producer id and epoch, which fences earlier incarnations and aborts what they left open."""
        yield from find_coordinator(self._client, TRANSACTION_KEY, self.transactional_id)
        request = m.InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=self._timeout_ms
        )
        # With its present id and epoch the coordinator can tell whether a newer producer fenced this one.
        if self.is_ready:
            request.producer_id, request.producer_epoch = self.producer
        while True:
            reply = yield Send(self._client, request, 5 if self.is_v2 else 4)
            if reply is not None and reply.error_code == ErrorCode.NONE:
                break
            if reply is not None and reply.error_code in FENCING:
                raise Fenced
            yield Sleep(RETRY_MS)
        self._set_producer(reply)

    def add_partitions(self, topic: str, partitions: list[int]) -> Script[None]:
        """Version 1 only."""
        producer_id, epoch = self.producer
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[
                m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=partitions)
            ],
        )
        yield from self.request(
            request,
            3,
            lambda reply: max(
                part.partition_error_code
                for topic in reply.results_by_topic_v3_and_below
                for part in topic.results_by_partition
            ),
        )

    def write(self, topic: str, index: int, records: Sequence[Record]) -> Script[int]:
        """Append one batch; its base offset."""
        sequence = self.next_sequence(topic, index)
        data = self.encode(records, sequence)
        response = yield from self.write_batch(topic, index, data, sequence + len(records))
        return int(response.base_offset)

    def write_batch(
        self, topic: str, index: int, data: bytes, next_sequence: int
    ) -> Script[m.ProduceResponse.PartitionProduceResponse]:
        reply = yield from self.request(
            self.produce_request(topic, [(index, data)]),
            self.produce_version,
            lambda reply: reply.responses[0].partition_responses[0].error_code,
        )
        self.set_next_sequence(topic, index, next_sequence)
        response: m.ProduceResponse.PartitionProduceResponse = reply.responses[0].partition_responses[0]
        return response

    def next_sequence(self, topic: str, index: int) -> int:
        return self._sequences.get((topic, index), 0)

    def set_next_sequence(self, topic: str, index: int, sequence: int) -> None:
        self._sequences[topic, index] = max(self.next_sequence(topic, index), sequence)

    def encode(self, records: Sequence[Record], sequence: int) -> bytes:
        producer_id, epoch = self.producer
        return encode_batch(
            records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
        )

    @property
    def produce_version(self) -> int:
        return 12 if self.is_v2 else 11

    def produce_request(self, topic: str, batches: Sequence[tuple[int, bytes]]) -> m.ProduceRequest:
        return produce_request(
            topic,
            batches,
            acks=-1,
            timeout_ms=self.produce_timeout_ms,
            transactional_id=self.transactional_id,
        )

    def commit_offsets(self, membership: Membership, topic: str, offsets: Mapping[int, int]) -> Script[None]:
        """Make the offsets part of the transaction."""
        producer_id, epoch = self.producer
        if not self.is_v2:
            request: Message = m.AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                group_id=membership.group_id,
            )
            yield from self.request(request, 3, lambda reply: reply.error_code)
        kind = m.TxnOffsetCommitRequest
        request = kind(
            transactional_id=self.transactional_id,
            group_id=membership.group_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            generation_id=membership.generation,
            member_id=membership.member_id,
            topics=[
                kind.TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        kind.TxnOffsetCommitRequestPartition(
                            partition_index=index, committed_offset=offset, committed_metadata=""
                        )
                        for index, offset in sorted(offsets.items())
                    ],
                )
            ],
        )
        yield from self.request(
            request,
            5 if self.is_v2 else 3,
            lambda reply: max(part.error_code for part in reply.topics[0].partitions),
        )

    def request_end(self, *, committed: bool) -> Script[int | None]:
        """Send once to end the transaction; the error code, or None when the response was lost."""
        producer_id, epoch = self.producer
        request = m.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=committed,
        )
        version = 5 if self.is_v2 else 3
        self._before_request(request, version)
        reply = yield Send(self._client, request, version)
        if reply is None:
            return None
        if reply.error_code == ErrorCode.NONE and self.is_v2:
            self._set_producer(reply)
        return int(reply.error_code)

    def end(self, *, committed: bool) -> Script[None]:
        """Send until the transaction has ended."""
        while True:
            code = yield from self.request_end(committed=committed)
            if code == ErrorCode.NONE:
                return
            if code in (*FENCING, ErrorCode.INVALID_TXN_STATE):
                raise Fenced
            yield Sleep(RETRY_MS)

    def _set_producer(self, reply: m.InitProducerIdResponse | m.EndTxnResponse) -> None:
        self.producer = reply.producer_id, reply.producer_epoch
        self._sequences.clear()

    # Requests that are part of a transaction

    def request(self, request: Message, version: int, code_of: Callable[[Any], int]) -> Script[Any]:
        """Send the request up to `attempts_max` times, until it succeeds."""
        for _ in range(self.attempts_max):
            self._before_request(request, version)
            reply = yield Send(self._client, request, version)
            code = None if reply is None else code_of(reply)
            if code == ErrorCode.NONE:
                return reply
            if code in FENCING:
                raise Fenced
            if not self._may_retry(code):
                break
            yield Sleep(RETRY_MS)
        answer = "got no response" if code is None else f"failed with {ErrorCode(code).name}"
        raise TransactionFailed(f"{type(request).__name__} {answer}")

    def _before_request(self, request: Message, version: int) -> None:
        """Called before each attempt; may raise."""

    def _may_retry(self, code: int | None) -> bool:
        return True
