"""A simulated copy job: reads the input, writes it to the output, and commits both in one transaction.

Both protocols are spoken. In the first the worker names every partition before it writes there, and renews its epoch
whenever an answer was lost, because a request that comes late could not be told from a timely one; a hasty one does
so only then, and not when it is told that the outcome is open (`WorkerStyle.is_hasty`). In the second the brokers add
partitions by themselves and every end raises the epoch, so late requests may come at any time: some are sent again on
purpose, much later (`straggle`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from millpond.base.errors import ErrorCode
from millpond.sim.clients.client import Client
from millpond.sim.clients.committed_reader import TRANSACTION_HEADER
from millpond.sim.clients.group_member import (
    GROUP_KEY,
    RETRY_MS,
    TRANSACTION_KEY,
    GroupTopic,
    Membership,
    find_coordinator,
)
from millpond.sim.clients.group_reader import fetch_offsets, fetch_records
from millpond.sim.clients.script import Ask, AskAll, Player, Rest, Script
from millpond.sim.clients.worker_style import WorkerStyle
from millpond.sim.history.groups import CoordinationHistory, CopyTransaction, Fate
from millpond.sim.world.clock import VirtualClock
from millpond.wire import messages as m
from millpond.wire.messages import Message
from millpond.wire.records import Record, encode_batch

STRAGGLE_SHARE = 0.15
DETOUR_SHARE = 0.03
STRAGGLE_MS_MAX = 4_000
TRIES_MAX = 3
DAWDLE_MS_MAX = 200
IDLE_MS = 50

FENCING = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
"""Somebody else is the producer now, or the transaction lasted too long."""

OPEN = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)
"""It may have been written."""


class Fenced(Exception):
    """This worker may not go on."""


class Broken(Exception):
    """This transaction cannot be committed: it has to be aborted."""


class _Batch(NamedTuple):
    """What a transaction writes to one partition of the output at a time."""

    target: int
    sequence: int
    data: bytes
    next_sequence: int


class CopyWorker:
    """One life of one transactional id. As a `Job` it works on what its member is given."""

    def __init__(
        self,
        clock: VirtualClock,
        make_client: Callable[[str], Client],
        history: CoordinationHistory,
        transactional_id: str,
        name: str,
        source: GroupTopic,
        target: GroupTopic,
        random: Random,
        style: WorkerStyle,
    ) -> None:
        self.name = name
        self.transactional_id = transactional_id
        self.is_fenced = False
        self._clock = clock
        self._client = make_client(name)
        self._late_client = make_client(f"{name} late")
        self._history = history
        self._source = source
        self._target = target
        self._random = random
        self._style = style
        self._membership: Membership | None = None
        self._current: Membership | None = None
        self._is_idle = True
        self._producer = -1, -1
        self._sequences: dict[int, int] = {}
        self._must_renew = True
        self._count = 0
        self._player = Player(clock, self._live())

    def start(self) -> None:
        self._player.start()

    # As a member's job

    def begin(self, membership: Membership) -> None:
        # A copy: what belongs together stays together when the member has gone on.
        self._membership = replace(membership)
        self._current = membership

    def finish(self, membership: Membership) -> Script[None]:
        """Let the transaction under way come to its end, for a moment."""
        self._membership = None
        for _ in range(10):
            if self._is_idle or self._player.is_over:
                return
            yield Rest(IDLE_MS)

    def stop(self) -> None:
        self._membership = None

    def crash(self) -> None:
        self._player.end()

    def freeze(self) -> None:
        self._player.freeze()

    def thaw(self) -> None:
        self._player.thaw()

    @property
    def is_over(self) -> bool:
        return self._player.is_over

    # Its life

    def _live(self) -> Script[None]:
        try:
            while True:
                membership = self._membership
                if membership is None or not membership.partitions:
                    yield Rest(IDLE_MS)
                    continue
                yield from self._work(membership)
        except Fenced:
            self.is_fenced = True
            self._history.count("workers fenced")
            self._history.note(self._clock.now_ms, f"{self.name} is fenced")

    def _work(self, membership: Membership) -> Script[None]:
        """Copy, until the membership changes or something goes wrong."""
        if self._must_renew:
            yield from self._renew()
        yield from find_coordinator(self._client, GROUP_KEY, membership.group_id)
        committed = yield from fetch_offsets(
            self._client,
            self._clock,
            membership.group_id,
            self._source,
            membership.partitions,
            self._told,
            require_stable=True,
        )
        order = list(committed)
        positions = {partition: max(offset, 0) for partition, offset in committed.items()}
        while self._membership is membership and not self._must_renew:
            self._random.shuffle(order)
            asked = {partition: positions[partition] for partition in order}
            partition, records = yield from fetch_records(self._client, self._source, asked)
            if records:
                self._is_idle = False
                is_done = yield from self._copy(membership, partition, records)
                self._is_idle = True
                if not is_done:
                    return
                positions[partition] = records[-1].offset + 1
            yield Rest(self._random.randint(1, self._style.pace_ms))

    def _told(self, asked_ms: int, partition: int, offset: int) -> None:
        self._history.told_stable_offset(self._clock.now_ms, asked_ms, self.name, partition, offset)

    def _copy(self, membership: Membership, partition: int, records: Sequence[Record]) -> Script[bool]:
        """One transaction; whether it was committed."""
        self._count += 1
        transaction = self._history.begin(f"{self.name}.{self._count}")
        transaction.offsets[partition] = records[-1].offset + 1
        if self._membership is membership and self._current is not None:
            # The epoch of a member moves on while it keeps what it has.
            membership.generation = self._current.generation
        try:
            yield from self._write(transaction, partition, records)
            yield from self._commit_offsets(membership, transaction)
            if self._style.is_orphan:
                raise Fenced
            if self._style.dawdles:
                yield Rest(self._random.randint(1, DAWDLE_MS_MAX))
            if self._random.random() < self._style.abort_share:
                raise Broken("on purpose")
            if self._membership is not membership and not self._style.is_careless:
                raise Broken("the partitions are not ours any more")
        except Broken as broken:
            self._history.note(self._clock.now_ms, f"{transaction.name} is aborted: {broken}")
            yield from self._abort()
            return False
        yield from self._commit(transaction)
        return transaction.fate is Fate.DONE

    # The parts of a transaction

    def _write(self, transaction: CopyTransaction, partition: int, records: Sequence[Record]) -> Script[None]:
        by_target: dict[int, list[Record]] = {}
        for record in records:
            tag = f"{partition}:{record.offset}"
            # Two copies, in different partitions: they are seen together or not at all.
            for copy in range(min(2, self._target.partitions)):
                target = (partition + record.offset + copy) % self._target.partitions
                transaction.records[f"{tag}/{copy}"] = target
                mine = by_target.setdefault(target, [])
                headers = ((TRANSACTION_HEADER, transaction.name.encode()),)
                mine.append(Record(len(mine), self._clock.wall_ms(), None, f"{tag}/{copy}".encode(), headers))
        if not self._style.is_v2:
            yield from self._add_partitions(sorted(by_target))
        batches = [batch for target, mine in by_target.items() for batch in self._batches(target, mine)]
        if self._style.pipelines:
            batches = yield from self._pipeline(transaction, batches)
        for batch in batches:
            yield from self._produce(batch)

    def _add_partitions(self, targets: list[int]) -> Script[None]:
        producer_id, epoch = self._producer
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[
                m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=self._target.name, partitions=targets)
            ],
        )
        yield from self._demand(
            request,
            3,
            lambda reply: max(
                part.partition_error_code
                for topic in reply.results_by_topic_v3_and_below
                for part in topic.results_by_partition
            ),
        )

    def _batches(self, target: int, records: list[Record]) -> Iterator[_Batch]:
        """All in one batch, or each in a batch of its own."""
        producer_id, epoch = self._producer
        sequence = self._sequences.get(target, 0)
        parts = [[each._replace(offset=0)] for each in records] if self._style.pipelines else [records]
        for part in parts:
            data = encode_batch(
                part, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
            )
            yield _Batch(target, sequence, data, sequence + len(part))
            sequence += len(part)

    def _pipeline(self, transaction: CopyTransaction, batches: list[_Batch]) -> Script[list[_Batch]]:
        """Send all batches at once, in several requests; those that have to be sent again.

        The first request has a batch for every partition, the second for those with a second batch, and so on.
        """
        rounds: list[list[_Batch]] = []
        counts: dict[int, int] = {}
        for batch in batches:
            number = counts[batch.target] = counts.get(batch.target, -1) + 1
            if number == len(rounds):
                rounds.append([])
            rounds[number].append(batch)
        requests = [self._produce_request(each) for each in rounds]
        for request in requests:
            self._straggle(request, self._produce_version)
        replies = yield AskAll(self._client, requests, self._produce_version)
        self._history.count("requests pipelined", len(requests))
        codes = [
            (batch, None if reply is None else _codes(reply)[batch.target])
            for sent, reply in zip(rounds, replies, strict=True)
            for batch in sent
        ]
        self._check_order(transaction, codes)
        for batch, code in codes:
            if code == ErrorCode.NONE:
                self._written(batch)
            elif code in FENCING:
                raise Fenced
            else:
                self._must_renew |= self._must_renew_after(code)
        if self._style.is_hasty and any(code in OPEN for _, code in codes):
            raise Broken("the answers to pipelined batches leave open what was written")
        return [batch for batch, code in codes if code != ErrorCode.NONE]

    def _check_order(self, transaction: CopyTransaction, codes: Sequence[tuple[_Batch, int | None]]) -> None:
        """No batch is out of order when the one before it, on the same connection, was written."""
        before: dict[int, int | None] = {}
        for batch, code in codes:
            was_written = before.get(batch.target) == ErrorCode.NONE
            if was_written and code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                self._history.blame(
                    self._clock.now_ms,
                    f"{transaction.name}: sequence {batch.sequence} for partition {batch.target} overtook the one "
                    "before it on the same connection",
                )
            before[batch.target] = code

    def _produce_request(self, batches: Sequence[_Batch]) -> m.ProduceRequest:
        kind = m.ProduceRequest
        return kind(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=3_000,
            topic_data=[
                kind.TopicProduceData(
                    name=self._target.name,
                    partition_data=[kind.PartitionProduceData(index=each.target, records=each.data)],
                )
                for each in batches
            ],
        )

    @property
    def _produce_version(self) -> int:
        return 12 if self._style.is_v2 else 11

    def _produce(self, batch: _Batch) -> Script[None]:
        request = self._produce_request([batch])
        yield from self._demand(request, self._produce_version, lambda reply: _codes(reply)[batch.target])
        self._written(batch)

    def _written(self, batch: _Batch) -> None:
        self._sequences[batch.target] = max(self._sequences.get(batch.target, 0), batch.next_sequence)

    def _commit_offsets(self, membership: Membership, transaction: CopyTransaction) -> Script[None]:
        producer_id, epoch = self._producer
        if not self._style.is_v2:
            request: Message = m.AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                group_id=membership.group_id,
            )
            yield from self._demand(request, 3, lambda reply: reply.error_code)
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
                    name=self._source.name,
                    partitions=[
                        kind.TxnOffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=""
                        )
                        for partition, offset in transaction.offsets.items()
                    ],
                )
            ],
        )
        version = 5 if self._style.is_v2 else 3
        yield from self._demand(request, version, lambda reply: reply.topics[0].partitions[0].error_code)

    def _commit(self, transaction: CopyTransaction) -> Script[None]:
        """Ask until it is known, or until nobody will tell us any more."""
        code: int | None = None
        was_lost = False
        while code != ErrorCode.NONE:
            self._history.ask_end(self._clock.now_ms, transaction)
            code = yield from self._end(committed=True)
            if code in (*FENCING, ErrorCode.INVALID_TXN_STATE):
                # Only who was never left without an answer knows that it was not committed before.
                if not was_lost:
                    self._history.ended(self._clock.now_ms, transaction, Fate.REFUSED)
                raise Fenced
            was_lost |= code not in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS)
            if code != ErrorCode.NONE:
                yield Rest(RETRY_MS)
        self._history.ended(self._clock.now_ms, transaction, Fate.DONE)

    def _abort(self) -> Script[None]:
        self._history.count("transactions aborted")
        if not self._style.is_v2 and not self._style.is_hasty and self._random.random() < 0.5:
            # Renewing the epoch aborts what is open, too.
            self._must_renew = True
            return
        while True:
            code = yield from self._end(committed=False)
            if code == ErrorCode.NONE:
                return
            if code in FENCING:
                raise Fenced
            if code == ErrorCode.INVALID_TXN_STATE:
                self._must_renew = True
                return
            yield Rest(RETRY_MS)

    def _end(self, *, committed: bool) -> Script[int | None]:
        producer_id, epoch = self._producer
        request = m.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=committed,
        )
        version = 5 if self._style.is_v2 else 3
        self._straggle(request, version)
        reply = yield Ask(self._client, request, version)
        if reply is None:
            self._must_renew |= not self._style.is_v2
            return None
        if reply.error_code == ErrorCode.NONE and self._style.is_v2:
            self._producer = reply.producer_id, reply.producer_epoch
            self._sequences.clear()
        return int(reply.error_code)

    # Asking

    def _renew(self) -> Script[None]:
        """Become the one producer of the transactional id."""
        yield from find_coordinator(self._client, TRANSACTION_KEY, self.transactional_id)
        version = 5 if self._style.is_v2 else 4
        request = m.InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=self._style.timeout_ms
        )
        if self._producer[0] >= 0:
            # Whoever shows what it was is told when somebody else has come since.
            request.producer_id, request.producer_epoch = self._producer
        while True:
            reply = yield Ask(self._client, request, version)
            if reply is not None and reply.error_code == ErrorCode.NONE:
                break
            if reply is not None and reply.error_code in FENCING:
                raise Fenced
            yield Rest(RETRY_MS)
        self._producer = reply.producer_id, reply.producer_epoch
        self._sequences.clear()
        self._must_renew = False
        self._history.note(self._clock.now_ms, f"{self.name} is producer {self._producer}")

    def _demand(self, request: Message, version: int, code_of: Callable[[Any], int]) -> Script[None]:
        """Ask a few times; if it cannot be had, the transaction is broken."""
        for _ in range(TRIES_MAX):
            if self._loses_its_way():
                # Given up here, it arrives when the transaction it was for is long over.
                self._send_late(request, version)
                self._must_renew |= not self._style.is_v2
                raise Broken(f"{type(request).__name__} is on its way")
            self._straggle(request, version)
            reply = yield Ask(self._client, request, version)
            code = None if reply is None else code_of(reply)
            if code == ErrorCode.NONE:
                return
            if code in FENCING:
                raise Fenced
            self._must_renew |= self._must_renew_after(code)
            if code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.TRANSACTION_ABORTABLE):
                break
            if self._style.is_hasty and code in OPEN:
                break
            yield Rest(RETRY_MS)
        raise Broken(f"{type(request).__name__} is answered {code}")

    def _must_renew_after(self, code: int | None) -> bool:
        if self._style.is_v2 or code == ErrorCode.CONCURRENT_TRANSACTIONS:
            return False
        # What was lost may come late, and would then pass for a part of the next transaction.
        return not self._style.is_hasty or code in (None, ErrorCode.UNKNOWN_PRODUCER_ID)

    def _loses_its_way(self) -> bool:
        return self._style.straggles and self._random.random() < DETOUR_SHARE

    def _straggle(self, request: Message, version: int) -> None:
        """Send the same again much later, from elsewhere. The first protocol could not tell the two apart."""
        if self._style.is_v2 and self._style.straggles and self._random.random() < STRAGGLE_SHARE:
            self._send_late(request, version)

    def _send_late(self, request: Message, version: int) -> None:
        self._history.count("late requests")
        self._clock.call_later(
            self._random.randint(1, STRAGGLE_MS_MAX),
            lambda: self._late_client.send(request, version, lambda _: None),
        )


def _codes(reply: m.ProduceResponse) -> dict[int, int]:
    """The error code of each partition."""
    return {part.index: part.error_code for topic in reply.responses for part in topic.partition_responses}
