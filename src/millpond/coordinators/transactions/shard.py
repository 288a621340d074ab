"""One partition of `__transaction_state`: requests in; records, responses and markers to write out.

Every transactional id is one value (`Transaction`); each step decides on a new value, its record is appended, and
`replay` stores it. Only the Prepare record decides the outcome of a transaction: the markers in the partitions follow
it, however often the coordinator moves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import TopicPartition
from millpond.base.named_tuple import NamedTuple
from millpond.coordinators.shard import Effects, Request
from millpond.coordinators.transactions import outcome, overview, partitions, renewal
from millpond.coordinators.transactions.records import read_key, read_value, record_of
from millpond.coordinators.transactions.renewal import Renewal, Shown
from millpond.coordinators.transactions.replies import for_version, partitions_of, topic_results
from millpond.coordinators.transactions.states import DECIDED, RESTING, State
from millpond.coordinators.transactions.timers import Timers
from millpond.coordinators.transactions.transaction import (
    NO_ID,
    TRANSACTIONS_V1,
    TRANSACTIONS_V2,
    TakeProducerId,
    Transaction,
    Verdict,
)
from millpond.wire import messages as m

OFFSETS_TOPIC = "__consumer_offsets"
EXPIRED_AT_ONCE_MAX = 1_000
"""Maximum tombstones per step: they make one batch."""
FENCED_PARTITIONS_MAX = 1_000
"""Maximum partitions of transactions timed out in one step; a single transaction may have more."""
ASK_AGAIN_MS = 1_000
"""Delay before retrying if no producer ID was available when a transaction timed out."""

BROKERS_ADD_FROM = 4
"""From this version on AddPartitionsToTxn comes from brokers, for several transactions at once."""
END_RAISES_EPOCH_FROM = 5
"""From this version on EndTxn uses transactions v2."""

NOTHING = Verdict(ErrorCode.NONE)


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    timeout_ms_max: int = 900_000
    """`transaction.max.timeout.ms`"""
    id_expiration_ms: int = 604_800_000
    """`transactional.id.expiration.ms`"""
    expiration_interval_ms: int = 3_600_000
    """`transaction.remove.expired.transaction.cleanup.interval.ms`"""


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """Write the outcome of a transaction to each of its partitions, then call `TransactionShard.markers_written`."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    partitions: tuple[TopicPartition, ...]
    transaction_version: int


class Life(NamedTuple):
    """In coordinator time, since timestamps in records depend on the wall clock."""

    began_ms: int
    """When the latest transaction began."""
    heard_ms: int
    """When the id was last used."""


class TransactionShard:
    def __init__(
        self,
        settings: TransactionSettings,
        coordinator_epoch: int,
        take_producer_id: TakeProducerId,
        offsets_partition: Callable[[str], int],
        check_room: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.coordinator_epoch = coordinator_epoch
        """The leader epoch of the partition: it fences the markers of an earlier coordinator."""
        self.transactions: dict[str, Transaction] = {}
        self._take_producer_id = take_producer_id
        self._offsets_partition = offsets_partition
        self._check_room = check_room
        """Refused if the limit of transactional ids is reached."""
        self._renewals: dict[str, Renewal] = {}
        self._timers = Timers()
        self._lives: dict[str, Life] = {}
        self._at_ms = 0
        self._wall_ahead_ms = 0
        self._sweep_ms: int | None = None

    # Requests

    def step(self, request: Request, now_ms: int) -> Effects:
        wall_ms = self._begin(now_ms)
        match request.body:
            case m.InitProducerIdRequest() as body:
                return self._init_producer_id(request, body, wall_ms)
            case m.AddPartitionsToTxnRequest() as body:
                return self._add_partitions(request, body, wall_ms)
            case m.AddOffsetsToTxnRequest() as body:
                return self._add_offsets(request, body, wall_ms)
            case m.EndTxnRequest() as body:
                return self._end(request, body, wall_ms)
            case m.DescribeTransactionsRequest() as body:
                states = [overview.describe(each, self.transactions.get(each)) for each in body.transactional_ids]
                return self._effects(
                    NOTHING, request.reply_to, m.DescribeTransactionsResponse(transaction_states=states)
                )
            case m.ListTransactionsRequest() as body:
                return self._effects(
                    NOTHING, request.reply_to, overview.list_all(self.transactions.values(), body, wall_ms)
                )
            case _:
                raise AssertionError(f"{type(request.body).__name__} is not a request to a transaction coordinator")

    def _init_producer_id(self, request: Request, body: m.InitProducerIdRequest, now_ms: int) -> Effects:
        name = body.transactional_id
        if not name:
            verdict = Verdict(ErrorCode.INVALID_REQUEST)
        elif not 0 < body.transaction_timeout_ms <= self.settings.timeout_ms_max:
            verdict = Verdict(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        elif (body.producer_id == NO_ID) != (body.producer_epoch == NO_ID):
            verdict = Verdict(ErrorCode.INVALID_REQUEST)
        else:
            verdict = self._initialise(name, body, now_ms)
        response = m.InitProducerIdResponse(
            error_code=for_version(verdict.error, request.version, fenced_since=4),
            producer_id=NO_ID,
            producer_epoch=-1,
        )
        if not verdict.error:
            response.producer_id = verdict.steps[-1].producer_id
            response.producer_epoch = verdict.steps[-1].producer_epoch
        return self._effects(verdict, request.reply_to, response)

    def _initialise(self, name: str, body: m.InitProducerIdRequest, now_ms: int) -> Verdict:
        current = self.transactions.get(name)
        shown = Shown(body.producer_id, body.producer_epoch) if body.producer_id != NO_ID else None
        timeout_ms = body.transaction_timeout_ms
        if current is None:
            try:
                self._check_room()
            except Refused as refused:
                return Verdict(refused.code)
            return renewal.begin(name, timeout_ms, now_ms, self._take_producer_id)
        verdict = renewal.renew(current, timeout_ms, shown, self._renewals.get(name), now_ms, self._take_producer_id)
        if verdict.steps:
            self._renewals.pop(name, None)
            if shown is not None:
                self._renewals[name] = Renewal(shown.epoch, answered=not verdict.error)
        return verdict

    def _add_partitions(self, request: Request, body: m.AddPartitionsToTxnRequest, now_ms: int) -> Effects:
        if request.version < BROKERS_ADD_FROM:
            partitions = partitions_of(body.v3_and_below_topics)
            verdict = self._add(
                body.v3_and_below_transactional_id,
                body.v3_and_below_producer_id,
                body.v3_and_below_producer_epoch,
                partitions,
                TRANSACTIONS_V1,
                now_ms,
            )
            error = for_version(verdict.error, request.version, fenced_since=2)
            results = topic_results(dict.fromkeys(partitions, error))
            response = m.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
            return self._effects(verdict, request.reply_to, response)
        effects = Effects()
        response = m.AddPartitionsToTxnResponse(error_code=ErrorCode.NONE, results_by_transaction=[])
        seen: set[str] = set()
        for each in body.transactions:
            partitions = partitions_of(each.topics)
            name = each.transactional_id
            if name in seen:
                # Each ID is decided based on its state before this request, so only once.
                errors = dict.fromkeys(partitions, ErrorCode.CONCURRENT_TRANSACTIONS)
            elif each.verify_only:
                errors = self._membership(name, each.producer_id, each.producer_epoch, partitions)
            else:
                seen.add(name)
                verdict = self._add(name, each.producer_id, each.producer_epoch, partitions, TRANSACTIONS_V2, now_ms)
                effects.add(self._carried_out(verdict))
                errors = dict.fromkeys(partitions, verdict.error)
            response.results_by_transaction.append(
                m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                    transactional_id=name,
                    topic_results=topic_results(
                        {
                            each: for_version(error, request.version, abortable_since=5)
                            for each, error in errors.items()
                        }
                    ),
                )
            )
        effects.reply(request.reply_to, response)
        return effects

    def _add_offsets(self, request: Request, body: m.AddOffsetsToTxnRequest, now_ms: int) -> Effects:
        partition = TopicPartition(OFFSETS_TOPIC, self._offsets_partition(body.group_id))
        verdict = self._add(
            body.transactional_id, body.producer_id, body.producer_epoch, [partition], TRANSACTIONS_V1, now_ms
        )
        error = for_version(verdict.error, request.version, fenced_since=2)
        return self._effects(verdict, request.reply_to, m.AddOffsetsToTxnResponse(error_code=error))

    def _end(self, request: Request, body: m.EndTxnRequest, now_ms: int) -> Effects:
        name = body.transactional_id
        current = self.transactions.get(name)
        if not name:
            verdict = Verdict(ErrorCode.INVALID_REQUEST)
        else:
            verdict = outcome.end(
                current,
                body.producer_id,
                body.producer_epoch,
                body.committed,
                TRANSACTIONS_V2 if request.version >= END_RAISES_EPOCH_FROM else TRANSACTIONS_V1,
                now_ms,
                self._take_producer_id,
            )
        response = m.EndTxnResponse(
            error_code=for_version(verdict.error, request.version, fenced_since=2),
            producer_id=NO_ID,
            producer_epoch=-1,
        )
        ended = verdict.steps[-1] if verdict.steps else current
        if not verdict.error and ended is not None:
            # The epoch for the next transaction. If the id changes with it, the client gets both at once.
            is_rotating = ended.next_producer_id != NO_ID
            response.producer_id = ended.next_producer_id if is_rotating else ended.producer_id
            response.producer_epoch = 0 if is_rotating else ended.producer_epoch
        return self._effects(verdict, request.reply_to, response)

    # For the produce path

    def permit(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partition: TopicPartition,
        now_ms: int,
        reply_to: Any,
        *,
        implicit: bool,
    ) -> Effects:
        """Whether a producer may write to this partition in its transaction; with `implicit` it is added.

        The response is an AddPartitionsToTxnResponse of version 5; `replies.partition_error` reads it.
        """
        topics = [m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=partition[0], partitions=[partition[1]])]
        body = m.AddPartitionsToTxnRequest(
            transactions=[
                m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                    transactional_id=transactional_id,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    verify_only=not implicit,
                    topics=topics,
                )
            ]
        )
        return self._add_partitions(Request(body, 5, reply_to), body, self._begin(now_ms))

    # Markers and time

    def markers_written(self, transactional_id: str, producer_id: int, epoch: int, now_ms: int) -> Effects:
        """All markers of a `WriteMarkers` order are written. Idempotent."""
        current = self.transactions.get(transactional_id)
        if current is None or not self.awaits_markers(transactional_id, producer_id, epoch):
            return Effects()
        return Effects(records=[record_of(outcome.complete(current, self._begin(now_ms)))])

    def awaits_markers(self, transactional_id: str, producer_id: int, epoch: int) -> bool:
        """Whether this transaction is decided, and not all its markers are known to be written."""
        current = self.transactions.get(transactional_id)
        return (
            current is not None
            and current.state in DECIDED
            and (current.producer_id, current.producer_epoch) == (producer_id, epoch)
        )

    def on_timer(self, now_ms: int) -> Effects:
        """Abort some of the expired transactions and the rest in later steps, so as not to delay requests."""
        effects = Effects()
        wall_ms = self._begin(now_ms)
        left = FENCED_PARTITIONS_MAX
        while left > 0 and (name := self._timers.pop_due(now_ms)) is not None:
            left -= 1
            current = self.transactions.get(name)
            if current is None or current.state is not State.ONGOING:
                continue
            deadline_ms = self._lives[name].began_ms + current.timeout_ms + 1
            if now_ms < deadline_ms:
                self._timers.set(name, deadline_ms)
                continue
            left -= len(current.partitions)
            verdict = outcome.fence(current, wall_ms, self._take_producer_id)
            if verdict.error:
                self._timers.set(name, now_ms + ASK_AGAIN_MS)
            else:
                self._renewals.pop(name, None)
            effects.add(self._carried_out(verdict))
        if self._sweep_ms is not None and now_ms >= self._sweep_ms:
            self._expire(effects, now_ms)
        return effects

    def _expire(self, effects: Effects, now_ms: int) -> None:
        """Remove ids that have been unused for too long."""
        oldest_ms = now_ms - self.settings.id_expiration_ms
        expired = 0
        self._sweep_ms = now_ms + self.settings.expiration_interval_ms
        for each in self.transactions.values():
            if each.state in RESTING and self._lives[each.transactional_id].heard_ms <= oldest_ms:
                if expired == EXPIRED_AT_ONCE_MAX:
                    self._sweep_ms = now_ms
                    return
                expired += 1
                effects.records.append(record_of(each.moved(State.DEAD, now_ms + self._wall_ahead_ms)))

    def next_deadline_ms(self) -> int | None:
        times = [each for each in (self._timers.next_ms(), self._sweep_ms) if each is not None]
        return min(times, default=None)

    # Records

    def replay(self, offset: int, key: bytes, value: bytes | None) -> None:
        name = read_key(key)
        if name is None:
            return
        if value is None:
            self.transactions.pop(name, None)
            self._renewals.pop(name, None)
            self._lives.pop(name, None)
            return
        before = self.transactions.get(name)
        transaction = self.transactions[name] = read_value(name, value)
        goes_on = before is not None and (before.state, before.start_ms) == (State.ONGOING, transaction.start_ms)
        began_ms = self._lives[name].began_ms if goes_on else self._at_ms
        self._lives[name] = Life(began_ms, self._at_ms)
        if transaction.state is State.ONGOING:
            self._timers.set(name, began_ms + transaction.timeout_ms + 1)
            # The producer uses its new epoch, so it has received the response.
            self._renewals.pop(name, None)

    def on_loaded(self, now_ms: int) -> Effects:
        """Write the markers of decided transactions again: which ones exist is unknown, and repeating is harmless."""
        self._sweep_ms = now_ms + self.settings.expiration_interval_ms
        wall_ms = self._begin(now_ms)
        effects = Effects()
        for each in self.transactions.values():
            if each.state in DECIDED and each.partitions:
                effects.orders.append(self._order(each))
            elif each.state in DECIDED:
                effects.records.append(record_of(outcome.complete(each, wall_ms)))
        return effects

    def unload(self, code: ErrorCode) -> Effects:
        """Nothing is pending here: every request is answered in its own step."""
        return Effects()

    # Internals

    def set_time(self, now_ms: int, wall_ms: int) -> None:
        self._at_ms = now_ms
        self._wall_ahead_ms = wall_ms - now_ms

    def _begin(self, now_ms: int) -> int:
        """Begin a step; returns the wall clock time, for timestamps."""
        self._at_ms = now_ms
        return now_ms + self._wall_ahead_ms

    def _add(
        self,
        name: str,
        producer_id: int,
        epoch: int,
        requested: list[TopicPartition],
        client_version: int,
        now_ms: int,
    ) -> Verdict:
        if not name:
            return Verdict(ErrorCode.INVALID_REQUEST)
        return partitions.add(self.transactions.get(name), producer_id, epoch, requested, client_version, now_ms)

    def _membership(
        self, name: str, producer_id: int, epoch: int, names: list[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        if not name:
            return dict.fromkeys(names, ErrorCode.INVALID_REQUEST)
        return partitions.membership(self.transactions.get(name), producer_id, epoch, names)

    def _effects(self, verdict: Verdict, reply_to: Any, response: m.Message) -> Effects:
        effects = self._carried_out(verdict)
        effects.reply(reply_to, response)
        return effects

    def _carried_out(self, verdict: Verdict) -> Effects:
        """The records of a verdict, and the markers that its last state requires."""
        effects = Effects(records=[record_of(step) for step in verdict.steps])
        if verdict.steps and verdict.steps[-1].state in DECIDED:
            effects.orders.append(self._order(verdict.steps[-1]))
        return effects

    def _order(self, decided: Transaction) -> WriteMarkers:
        return WriteMarkers(
            transactional_id=decided.transactional_id,
            producer_id=decided.producer_id,
            producer_epoch=decided.producer_epoch,
            committed=decided.state is State.PREPARE_COMMIT,
            coordinator_epoch=self.coordinator_epoch,
            partitions=tuple(sorted(decided.partitions)),
            transaction_version=decided.client_version,
        )
