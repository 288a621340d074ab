"""A simulated copy job: it reads the input topic, writes to the output, and commits both in one transaction.

In version 1 of the protocol the worker renews its epoch whenever a response was lost, because the brokers could not
tell a late request from a timely one; a hasty worker does so only then, and not after an error that leaves open what
was written (`WorkerStyle.is_hasty`). In version 2 every end raises the epoch, so requests may arrive late: the worker
sends some again on purpose, much later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

from millpond.base.errors import ErrorCode
from millpond.sim.clients.client import Client
from millpond.sim.clients.committed_reader import TRANSACTION_HEADER
from millpond.sim.clients.group_member import GroupTopic
from millpond.sim.clients.group_reader import fetch_records
from millpond.sim.clients.requests import GROUP_KEY, RETRY_MS, Membership, fetch_offsets, find_coordinator
from millpond.sim.clients.script import Script, ScriptRunner, SendAll, Sleep
from millpond.sim.clients.transactions import FENCING, Fenced, TransactionalProducer, TransactionFailed
from millpond.sim.history.groups import CoordinationHistory, CopyTransaction, Fate
from millpond.sim.world.clock import VirtualClock
from millpond.wire import messages as m
from millpond.wire.messages import Message
from millpond.wire.records import Record

RESEND_SHARE = 0.15
DELAY_SHARE = 0.03
DELAY_MS_MAX = 4_000
SLOW_END_MS_MAX = 200
IDLE_MS = 50

OUTCOME_UNKNOWN = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)
"""The batch may have been written."""


@dataclass(slots=True, frozen=True)
class WorkerStyle:
    """What a seed decides about one worker."""

    is_v2: bool = True
    timeout_ms: int = 4_000
    pace_ms: int = 50
    abort_share: float = 0.1
    is_careless: bool = False
    """Commits its transaction even if its partitions were revoked meanwhile."""
    is_hasty: bool = False
    """After an error that leaves open what was written it aborts at once, keeps its epoch, and continues with the
    sequence number as if nothing had arrived. librdkafka, which speaks version 1 only, does the same."""
    sends_late: bool = True
    """Delays some requests until their transaction is over, and in version 2 sends some twice."""
    ends_slowly: bool = False
    """Waits before it ends a transaction."""
    pipelines: bool = False
    """Writes small batches to all partitions in several requests, without waiting for the responses in between."""
    is_orphan: bool = False
    """Stops for good inside its first transaction."""


class _LateProducer(TransactionalProducer):
    """Some of its requests arrive late, or twice."""

    attempts_max = 3

    def __init__(
        self,
        clock: VirtualClock,
        client: Client,
        late_client: Client,
        history: CoordinationHistory,
        transactional_id: str,
        random: Random,
        style: WorkerStyle,
    ) -> None:
        super().__init__(client, transactional_id, style.timeout_ms)
        self.is_v2 = style.is_v2
        self.must_renew = True
        """Whether it needs a new epoch before its next transaction."""
        self._clock = clock
        self._late_client = late_client
        self._history = history
        self._random = random
        self._style = style

    def renew(self) -> Script[None]:
        yield from self.initialize()
        self.must_renew = False

    def request_end(self, *, committed: bool) -> Script[int | None]:
        code = yield from super().request_end(committed=committed)
        self.must_renew |= code is None and not self.is_v2
        return code

    def note_error(self, code: int | None) -> None:
        """In version 1 a lost request may arrive late, and would then count for the next transaction."""
        if not self.is_v2 and code != ErrorCode.CONCURRENT_TRANSACTIONS:
            self.must_renew |= not self._style.is_hasty or code in (None, ErrorCode.UNKNOWN_PRODUCER_ID)

    def resend_later(self, request: Message, version: int) -> None:
        """Now and then send the request again much later, over another connection. Version 1 would not survive it."""
        if self.is_v2 and self._style.sends_late and self._random.random() < RESEND_SHARE:
            self._send_late(request, version)

    def _before_request(self, request: Message, version: int) -> None:
        may_delay = self._style.sends_late and not isinstance(request, m.EndTxnRequest)
        if may_delay and self._random.random() < DELAY_SHARE:
            self._send_late(request, version)
            self.must_renew |= not self.is_v2
            raise TransactionFailed(f"{type(request).__name__} is delayed")
        self.resend_later(request, version)

    def _may_retry(self, code: int | None) -> bool:
        self.note_error(code)
        if code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.TRANSACTION_ABORTABLE):
            return False
        return not (self._style.is_hasty and code in OUTCOME_UNKNOWN)

    def _send_late(self, request: Message, version: int) -> None:
        self._history.count("late requests")
        self._clock.call_later(
            self._random.randint(1, DELAY_MS_MAX),
            lambda: self._late_client.send(request, version, lambda _: None),
        )


class _Batch(NamedTuple):
    """What a transaction writes to one partition of the output at a time."""

    target: int
    sequence: int
    data: bytes
    next_sequence: int


class CopyWorker:
    """One incarnation of one transactional id. As a `Job` it works on the partitions of its member."""

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
        self.is_fenced = False
        self._clock = clock
        self._client = make_client(name)
        self._producer = _LateProducer(
            clock, self._client, make_client(f"{name} late"), history, transactional_id, random, style
        )
        self._history = history
        self._source = source
        self._target = target
        self._random = random
        self._style = style
        self._membership: Membership | None = None
        self._current: Membership | None = None
        self._is_idle = True
        self._count = 0
        self._runner = ScriptRunner(clock, self._run())

    def start(self) -> None:
        self._runner.start()

    # As a member's job

    def begin(self, membership: Membership) -> None:
        # A copy: a transaction keeps the membership that it began with.
        self._membership = replace(membership)
        self._current = membership

    def finish(self, membership: Membership) -> Script[None]:
        """Wait a moment for the transaction under way to end."""
        self._membership = None
        for _ in range(10):
            if self._is_idle or self._runner.is_over:
                return
            yield Sleep(IDLE_MS)

    def stop(self) -> None:
        self._membership = None

    def crash(self) -> None:
        self._runner.end()

    def freeze(self) -> None:
        self._runner.freeze()

    def thaw(self) -> None:
        self._runner.thaw()

    @property
    def is_over(self) -> bool:
        return self._runner.is_over

    # Its work

    def _run(self) -> Script[None]:
        try:
            while True:
                membership = self._membership
                if membership is None or not membership.partitions:
                    yield Sleep(IDLE_MS)
                    continue
                yield from self._work(membership)
        except Fenced:
            self.is_fenced = True
            self._history.count("workers fenced")
            self._history.note(self._clock.now_ms, f"{self.name} is fenced")

    def _work(self, membership: Membership) -> Script[None]:
        """Copy until the membership changes or a transaction fails."""
        if self._producer.must_renew:
            yield from self._producer.renew()
            self._history.note(self._clock.now_ms, f"{self.name} is producer {self._producer.producer}")
        yield from find_coordinator(self._client, GROUP_KEY, membership.group_id)
        committed = yield from fetch_offsets(
            self._client,
            self._clock,
            membership.group_id,
            self._source.name,
            membership.partitions,
            self._on_offset,
            require_stable=True,
        )
        order = list(committed)
        positions = {partition: max(offset, 0) for partition, offset in committed.items()}
        while self._membership is membership and not self._producer.must_renew:
            self._random.shuffle(order)
            in_order = {partition: positions[partition] for partition in order}
            partition, records = yield from fetch_records(self._client, self._source, in_order)
            if records:
                self._is_idle = False
                is_done = yield from self._copy(membership, partition, records)
                self._is_idle = True
                if not is_done:
                    return
                positions[partition] = records[-1].offset + 1
            yield Sleep(self._random.randint(1, self._style.pace_ms))

    def _on_offset(self, sent_ms: int, partition: int, offset: int) -> None:
        self._history.check_stable_offset(self._clock.now_ms, sent_ms, self.name, partition, offset)

    def _copy(self, membership: Membership, partition: int, records: Sequence[Record]) -> Script[bool]:
        """One transaction; whether it was committed."""
        self._count += 1
        transaction = self._history.begin(f"{self.name}.{self._count}")
        transaction.offsets[partition] = records[-1].offset + 1
        if self._membership is membership and self._current is not None:
            # A member's epoch rises while it keeps its partitions.
            membership.generation = self._current.generation
        try:
            yield from self._write(transaction, partition, records)
            yield from self._producer.commit_offsets(membership, self._source.name, transaction.offsets)
            if self._style.is_orphan:
                raise Fenced
            if self._style.ends_slowly:
                yield Sleep(self._random.randint(1, SLOW_END_MS_MAX))
            if self._random.random() < self._style.abort_share:
                raise TransactionFailed("on purpose")
            if self._membership is not membership and not self._style.is_careless:
                raise TransactionFailed("the partitions were revoked")
        except TransactionFailed as failure:
            self._history.note(self._clock.now_ms, f"{transaction.name} is aborted: {failure}")
            yield from self._abort()
            return False
        yield from self._commit(transaction)
        return transaction.fate is Fate.DONE

    # The parts of a transaction

    def _write(self, transaction: CopyTransaction, partition: int, records: Sequence[Record]) -> Script[None]:
        by_target: dict[int, list[Record]] = {}
        for record in records:
            tag = f"{partition}:{record.offset}"
            # Two copies in different partitions: readers see both or neither.
            for copy in range(min(2, self._target.partitions)):
                target = (partition + record.offset + copy) % self._target.partitions
                transaction.records[f"{tag}/{copy}"] = target
                mine = by_target.setdefault(target, [])
                headers = ((TRANSACTION_HEADER, transaction.name.encode()),)
                mine.append(Record(len(mine), self._clock.wall_ms(), None, f"{tag}/{copy}".encode(), headers))
        if not self._style.is_v2:
            yield from self._producer.add_partitions(self._target.name, sorted(by_target))
        batches = [batch for target, mine in by_target.items() for batch in self._batches(target, mine)]
        if self._style.pipelines:
            batches = yield from self._pipeline(transaction, batches)
        for batch in batches:
            yield from self._producer.write_batch(self._target.name, batch.target, batch.data, batch.next_sequence)

    def _batches(self, target: int, records: list[Record]) -> Iterator[_Batch]:
        """All records in one batch, or each in its own when pipelining."""
        sequence = self._producer.next_sequence(self._target.name, target)
        parts = [[each._replace(offset=0)] for each in records] if self._style.pipelines else [records]
        for part in parts:
            yield _Batch(target, sequence, self._producer.encode(part, sequence), sequence + len(part))
            sequence += len(part)

    def _pipeline(self, transaction: CopyTransaction, batches: list[_Batch]) -> Script[list[_Batch]]:
        """Send all batches at once, in several requests; returns those that have to be sent again.

        The first request has a batch for every partition, the second for those with a second batch, and so on.
        """
        rounds: list[list[_Batch]] = []
        counts: dict[int, int] = {}
        for batch in batches:
            number = counts[batch.target] = counts.get(batch.target, -1) + 1
            if number == len(rounds):
                rounds.append([])
            rounds[number].append(batch)
        producer = self._producer
        requests = [
            producer.produce_request(self._target.name, [(batch.target, batch.data) for batch in each])
            for each in rounds
        ]
        for request in requests:
            producer.resend_later(request, producer.produce_version)
        replies = yield SendAll(self._client, requests, producer.produce_version)
        self._history.count("requests pipelined", len(requests))
        codes = [
            (batch, None if reply is None else _codes(reply)[batch.target])
            for sent, reply in zip(rounds, replies, strict=True)
            for batch in sent
        ]
        self._check_order(transaction, codes)
        for batch, code in codes:
            if code == ErrorCode.NONE:
                producer.set_next_sequence(self._target.name, batch.target, batch.next_sequence)
            elif code in FENCING:
                raise Fenced
            else:
                producer.note_error(code)
        if self._style.is_hasty and any(code in OUTCOME_UNKNOWN for _, code in codes):
            raise TransactionFailed("the responses to pipelined batches leave open what was written")
        return [batch for batch, code in codes if code != ErrorCode.NONE]

    def _check_order(self, transaction: CopyTransaction, codes: Sequence[tuple[_Batch, int | None]]) -> None:
        """No batch is out of order when the one before it, on the same connection, was written."""
        before: dict[int, int | None] = {}
        for batch, code in codes:
            was_written = before.get(batch.target) == ErrorCode.NONE
            if was_written and code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                self._history.report(
                    self._clock.now_ms,
                    f"{transaction.name}: sequence {batch.sequence} for partition {batch.target} overtook the one "
                    "before it on the same connection",
                )
            before[batch.target] = code

    def _commit(self, transaction: CopyTransaction) -> Script[None]:
        """Send until the outcome is known, or cannot be known."""
        code: int | None = None
        was_lost = False
        while code != ErrorCode.NONE:
            self._history.request_commit_of(self._clock.now_ms, transaction)
            code = yield from self._producer.request_end(committed=True)
            if code in (*FENCING, ErrorCode.INVALID_TXN_STATE):
                # If no response was lost, the transaction was not committed by an earlier attempt.
                if not was_lost:
                    self._history.ended(self._clock.now_ms, transaction, Fate.REFUSED)
                raise Fenced
            was_lost |= code not in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS)
            if code != ErrorCode.NONE:
                yield Sleep(RETRY_MS)
        self._history.ended(self._clock.now_ms, transaction, Fate.DONE)

    def _abort(self) -> Script[None]:
        self._history.count("transactions aborted")
        if not self._style.is_v2 and not self._style.is_hasty and self._random.random() < 0.5:
            # Renewing the epoch aborts the open transaction, too.
            self._producer.must_renew = True
            return
        while True:
            code = yield from self._producer.request_end(committed=False)
            if code == ErrorCode.NONE:
                return
            if code in FENCING:
                raise Fenced
            if code == ErrorCode.INVALID_TXN_STATE:
                self._producer.must_renew = True
                return
            yield Sleep(RETRY_MS)


def _codes(reply: m.ProduceResponse) -> dict[int, int]:
    """The error code of each partition."""
    return {part.index: part.error_code for topic in reply.responses for part in topic.partition_responses}
