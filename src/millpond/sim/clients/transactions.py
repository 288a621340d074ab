"""A simulated transactional producer to look at: records and offsets that count together, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from millpond.base.errors import ErrorCode
from millpond.sim.clients.cluster_client import ClusterClient
from millpond.sim.clients.group_member import TRANSACTION_KEY, find_coordinator
from millpond.sim.clients.script import Ask, Rest, Script
from millpond.sim.simulator.ledger import SentRecord, Status
from millpond.sim.simulator.producer import encode_records, produce_request
from millpond.sim.world.clock import VirtualClock
from millpond.wire import messages as m
from millpond.wire.messages import Message

INIT_VERSION: Final = 5
PRODUCE_VERSION: Final = 12
"""From this version on the broker adds partitions to the transaction by itself."""
OFFSETS_VERSION: Final = 5
END_VERSION: Final = 5
TRIES_MAX: Final = 8
RETRY_MS: Final = 60
TIMEOUT_MS: Final = 5_000
FENCING: Final = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)


class Fenced(Exception):
    """Another one has taken this transactional id, or the transaction lasted too long."""


class Broken(Exception):
    """The transaction cannot be committed."""


class TransactionalWriter:
    """One life of one transactional id."""

    def __init__(self, client: ClusterClient, clock: VirtualClock, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self._client = client
        self._clock = clock
        self._producer = -1, -1
        self._sequences: dict[tuple[str, int], int] = {}
        self._written: list[SentRecord] = []

    @property
    def is_ready(self) -> bool:
        return self._producer[0] >= 0

    def begin(self) -> Script[None]:
        """Become the one producer of the id; whatever an earlier one left open is aborted by that."""
        yield from find_coordinator(self._client, TRANSACTION_KEY, self.transactional_id)
        request = m.InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=TIMEOUT_MS)
        while True:
            reply = yield Ask(self._client, request, INIT_VERSION)
            if reply is not None and reply.error_code == ErrorCode.NONE:
                break
            yield Rest(RETRY_MS)
        self._producer = reply.producer_id, reply.producer_epoch
        self._sequences.clear()

    def write(self, topic: str, index: int, records: Sequence[SentRecord]) -> Script[None]:
        for record in records:
            record.transaction = self.transactional_id
            record.status, record.attempts = Status.SENT, record.attempts + 1
        self._written += records
        sequence = self._sequences.get((topic, index), 0)
        data = encode_records(
            records,
            self._clock.wall_ms(),
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=sequence,
            transactional=True,
        )
        request = produce_request(topic, index, data, -1, self.transactional_id)
        answers: list[m.ProduceResponse] = []

        def code_of(reply: m.ProduceResponse) -> int:
            answers.append(reply)
            return reply.responses[0].partition_responses[0].error_code

        yield from self._demand(request, PRODUCE_VERSION, code_of)
        base_offset = answers[-1].responses[0].partition_responses[0].base_offset
        for delta, record in enumerate(records):
            record.offset = base_offset + delta
        self._sequences[topic, index] = sequence + len(records)

    def commit_offsets(
        self, group: str, member_id: str, generation: int, topic: str, offsets: Mapping[int, int]
    ) -> Script[None]:
        kind = m.TxnOffsetCommitRequest
        request = kind(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            generation_id=generation,
            member_id=member_id,
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
        yield from self._demand(
            request, OFFSETS_VERSION, lambda reply: max(part.error_code for part in reply.topics[0].partitions)
        )

    def end(self, *, committed: bool) -> Script[None]:
        request = m.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            committed=committed,
        )
        while True:
            reply = yield Ask(self._client, request, END_VERSION)
            code = None if reply is None else reply.error_code
            if code == ErrorCode.NONE:
                break
            if code in (*FENCING, ErrorCode.INVALID_TXN_STATE):
                raise Fenced
            yield Rest(RETRY_MS)
        self._producer = reply.producer_id, reply.producer_epoch
        self._sequences.clear()
        written, self._written = self._written, []
        for record in written:
            record.status = Status.ACKNOWLEDGED if committed else Status.REFUSED
            record.settled_ms = self._clock.now_ms

    def _demand(self, request: Message, version: int, code_of: Callable[[Any], int]) -> Script[None]:
        code: int | None = None
        for _ in range(TRIES_MAX):
            reply = yield Ask(self._client, request, version)
            code = None if reply is None else code_of(reply)
            if code == ErrorCode.NONE:
                return
            if code in FENCING:
                raise Fenced
            yield Rest(RETRY_MS)
        raise Broken("no response" if code is None else ErrorCode(code).name)
