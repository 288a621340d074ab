"""Exactly-once writes: tasks leave transactions open, the driver records one decision and then ends them.

A recorded decision is a batch's point of no return: every process that handles the batch afterwards can only complete
it. docs/decisions/0005-exactly-once-into-topics.md describes the whole protocol and the outcome of each failure.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.errors import Answered, Unsupported
from millpond.remote.transactions import (
    Fate,
    Outcome,
    ProducerIdentity,
    describe,
    end_all,
    fate,
    init_producer,
    list_open,
)
from millpond.spark.sink import steps
from millpond.spark.sink.decisions import Decision, DecisionLog, Part, name_of
from millpond.spark.sink.errors import BatchNotWritten, BatchTorn, SinkError, WriteTaken
from millpond.spark.sink.row_checksum import total_of
from millpond.spark.sink.steps import Step

LOG = logging.getLogger("millpond.spark")

EVIDENCE_MAX: Final = 2
"""How many partitions' first offsets a decision stores; any of them shows how the transaction ended."""

PENDING_SECONDS: Final = 60.0
_PENDING_STEP_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit written exactly once: a batch of a streaming query, or a numbered write of a job."""

    owner: str
    number: int
    topic: str | None = None
    """The topic of all rows; None if each row names its own."""
    app_id: str | None = None
    """The job's name. A job numbers its writes and may start over; a query never goes back."""
    run: str = ""
    """The run of the stream in whose foreachBatch a job writes; nothing is replayed within a run."""


def job_unit(app_id: str, number: int, topic: str | None) -> Unit:
    """A numbered write of a job. Each topic counts separately, like each table in Delta."""
    # No topic has a slash in its name, so no two pairs make the same owner.
    return Unit(f"{app_id}/{topic or ''}", number, topic, app_id)


class Duty(Enum):
    """What a task has to do with its rows."""

    WRITE = auto()
    COUNT = auto()
    """The rows are already in the topic."""


def duty_of(cluster: Cluster, unit: Unit, partition: int) -> Duty:
    """Look up the decision before a task writes, and finish it if it is incomplete."""
    earlier = _earlier_decision(DecisionLog(cluster), unit)
    if earlier is None:
        return Duty.WRITE
    if earlier.batch > unit.number:
        return Duty.COUNT
    lost = _lost(settle(cluster, earlier))
    if len(lost) == len(earlier.parts):
        # Readers never saw it: treat it as undecided.
        return Duty.WRITE
    return Duty.WRITE if partition in {part.partition for part in lost} else Duty.COUNT


def open_transaction(cluster: Cluster, owner: str, partition: int, timeout_ms: int) -> ProducerIdentity:
    """Begin a task's transaction, which aborts that of an older attempt."""
    try:
        identity = init_producer(cluster, f"{name_of(owner)}{partition}", timeout_ms)
    except Answered as refusal:
        if refusal.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise SinkError(
                f"the cluster does not allow transactions of {timeout_ms} ms: give option transactionTimeout at most "
                "its transaction.max.timeout.ms, or raise that"
            ) from refusal
        raise
    steps.done(Step.OPENED)
    return identity


def evidence(first_offsets: Mapping[TopicPartition, int]) -> tuple[tuple[str, int, int], ...]:
    return tuple((*partition, offset) for partition, offset in sorted(first_offsets.items())[:EVIDENCE_MAX])


def commit(cluster: Cluster, unit: Unit, task_parts: Collection[Part]) -> None:
    """Commit a batch, or finish an earlier decision about it. Idempotent.

    BatchNotWritten when a replay will help, BatchTorn when only a person can.
    """
    log = DecisionLog(cluster)
    if not any(part.identity for part in task_parts) and _earlier_decision(log, unit) is None:
        return
    decider = log.take_over(unit.owner)
    earlier = _earlier_decision(log, unit)
    decision = _decide(cluster, unit, task_parts, earlier)
    # List them before deciding, so that transactions of a newer driver are not among them.
    surplus = surplus_of(cluster, decision)
    if decision is not earlier and decision.parts:
        kept = earlier.parts if earlier else ()
        check_open(cluster, f"batch {unit.number}", [part for part in decision.parts if part not in kept])
        steps.done(Step.CHECKED)
        log.record(decider, decision)
        steps.done(Step.DECIDED)
        lost = _lost(settle(cluster, decision))
        if lost:
            raise BatchNotWritten(_lost_text(f"batch {unit.number}", lost, "were lost after they were decided"))
    elif not log.is_decider(decider):
        # A newer driver has taken over and may have decided about these transactions.
        return
    steps.done(Step.ENDED_ALL)
    end_all(cluster, surplus, commit=False)


def abort(cluster: Cluster, unit: Unit, task_parts: Collection[Part]) -> None:
    """Abort a batch that was not decided."""
    identities = [part.identity for part in task_parts if part.identity is not None]
    if not identities:
        return
    log = DecisionLog(cluster)
    # After this, an interrupted decision is either recorded or not.
    log.take_over(unit.owner)
    earlier = log.find(unit.owner)
    decided = {part.identity for part in earlier.parts} if earlier else set()
    end_all(cluster, [identity for identity in identities if identity not in decided], commit=False)
    steps.done(Step.ABORTED)


def commit_unnumbered(cluster: Cluster, task_parts: Collection[Part]) -> None:
    """Commit the transactions of a job that is never replayed: some are lost if the driver dies meanwhile."""
    parts = [part for part in task_parts if part.identity is not None]
    check_open(cluster, "the job's output", parts)
    outcomes = end_all(cluster, [_identity(part) for part in parts], commit=True)
    lost = [part for part in parts if outcomes[_identity(part)] is not Outcome.COMMITTED]
    if lost:
        raise BatchTorn(
            f"{len(parts) - len(lost)} of {len(parts)} transactions were committed, the others timed out meanwhile: "
            f"the rows of tasks {_numbers(part.partition for part in lost)} are missing"
        )


def abort_unnumbered(cluster: Cluster, task_parts: Collection[Part]) -> None:
    end_all(cluster, [part.identity for part in task_parts if part.identity is not None], commit=False)


def settle(cluster: Cluster, decision: Decision) -> dict[Part, bool]:
    """Commit the open transactions of the decision; whether readers see each part."""
    described = describe(cluster, [_identity(part).transactional_id for part in decision.parts])
    outcomes: dict[ProducerIdentity, Outcome | None] = {}
    for identity in map(_identity, decision.parts):
        description = described.get(identity.transactional_id)
        outcomes[identity] = description.outcome(identity) if description else Outcome.FENCED
    waiting = [identity for identity, outcome in outcomes.items() if outcome is None]
    # Commit the first alone: notice an unreachable cluster before the batch is half committed.
    for together in filter(None, (waiting[:1], waiting[1:])):
        outcomes.update(end_all(cluster, together, commit=True))
        steps.done(Step.ENDED_SOME)
    return {part: _is_visible(cluster, part, outcomes[_identity(part)]) for part in decision.parts}


def _is_visible(cluster: Cluster, part: Part, outcome: Outcome | None) -> bool:
    return _is_visible_in_log(cluster, part) if outcome is Outcome.FENCED else outcome is Outcome.COMMITTED


def check_open(cluster: Cluster, what: str, parts: Collection[Part]) -> None:
    """BatchNotWritten unless all transactions are open."""
    described = describe(cluster, [_identity(part).transactional_id for part in parts])
    not_open = []
    for part in parts:
        description = described.get(_identity(part).transactional_id)
        if description is None or description.outcome(_identity(part)) is not None:
            not_open.append(part)
    if not_open:
        raise BatchNotWritten(_lost_text(what, not_open, "are no longer open"))


def surplus_of(cluster: Cluster, decision: Decision) -> list[ProducerIdentity]:
    """Transactions that failed attempts left open: they would hold back readers until their timeout."""
    try:
        names = list_open(cluster, name_of(decision.owner))
    except Unsupported:
        return []
    decided = {part.identity for part in decision.parts}
    is_open = [description.identity for description in describe(cluster, names).values() if description.is_open]
    return [identity for identity in is_open if identity not in decided]


def _earlier_decision(log: DecisionLog, unit: Unit) -> Decision | None:
    """The decision about this batch, or a later one if allowed."""
    earlier = log.find(unit.owner)
    if earlier is None or earlier.batch < unit.number:
        return None
    if earlier.batch > unit.number and unit.app_id is None:
        raise BatchTorn(
            f"query {unit.owner} wants to write batch {unit.number}, but has already written batch {earlier.batch}: "
            "its checkpoint is older than what it wrote, as after restoring an old copy. To continue, start with "
            "a new checkpoint, from the offsets that are not in the topic yet"
        )
    if earlier.batch == unit.number and earlier.topic != unit.topic:
        raise WriteTaken(
            f"batch {unit.number} of query {unit.owner} was written to {_goal(earlier.topic)}, and is now to go to "
            f"{_goal(unit.topic)}. Start the query as it was until this batch is done, then change the topic; or "
            "start it with a new checkpoint"
        )
    return earlier


def _decide(cluster: Cluster, unit: Unit, task_parts: Collection[Part], earlier: Decision | None) -> Decision:
    """What the batch consists of: the standing decision itself if all of it is in the topic."""
    written = tuple(part for part in task_parts if part.identity is not None)
    fresh = Decision(unit.owner, unit.number, written, unit.topic, unit.run)
    if earlier is None:
        return fresh
    if earlier.batch > unit.number:
        LOG.warning(
            "txnAppId %s: txnVersion %d is ignored, because %d is written already",
            unit.app_id,
            unit.number,
            earlier.batch,
        )
        return earlier
    visibility = settle(cluster, earlier)
    lost = _lost(visibility)
    if not lost:
        _check_same_write(unit, earlier, task_parts)
        return earlier
    if len(lost) == len(earlier.parts):
        return fresh
    _check_same_rows(earlier, task_parts, lost)
    again = {part.partition: part for part in written}
    missing = [part for part in lost if part.partition not in again]
    if missing:
        raise BatchNotWritten(
            _lost_text(f"batch {unit.number}", missing, "were lost, and their tasks did not know that yet")
        )
    return replace(
        earlier, parts=tuple(part if is_visible else again[part.partition] for part, is_visible in visibility.items())
    )


def _check_same_write(unit: Unit, earlier: Decision, task_parts: Collection[Part]) -> None:
    """WriteTaken if a job repeats a number with other rows. Spark numbers the batches of a query."""
    if unit.app_id is None:
        return
    before, now = (
        (sum(part.rows for part in parts), total_of(part.checksum for part in parts))
        for parts in (earlier.parts, task_parts)
    )
    if before == now:
        return
    if unit.run and unit.run != earlier.run:
        # A stream repeats the batch after a failure; its rows may contain a time or a random number.
        LOG.warning(
            "txnAppId %s, txnVersion %d: %d rows are written already; the replay has other rows and is ignored",
            unit.app_id,
            unit.number,
            before[0],
        )
        return
    raise WriteTaken(
        f"txnAppId {unit.app_id}, txnVersion {unit.number} is written to {_goal(unit.topic)} already, with "
        f"{before[0]} rows of another write: this one has other rows ({now[0]}), and none of them were written. Give "
        "each write into the same topic its own txnVersion, or its own txnAppId. If it is the same write with rows "
        "that differ on each run, leave it out: it is done"
    )


def _check_same_rows(earlier: Decision, task_parts: Iterable[Part], lost: Collection[Part]) -> None:
    """Lost parts can be rewritten if the replay gave every task the same rows."""
    before = {part.partition: (part.rows, part.checksum) for part in earlier.parts}
    now = {part.partition: (part.rows, part.checksum) for part in task_parts if part.rows}
    if before == now:
        return
    differing = sorted(each for each in before.keys() | now.keys() if before.get(each) != now.get(each))
    raise BatchTorn(
        f"batch {earlier.batch} of query {earlier.owner} is in its topics in part: of {len(before)} transactions, "
        f"those of tasks {_numbers(part.partition for part in lost)} timed out before they could be committed, the "
        f"others count. They cannot be written again, because the replay brought other rows to tasks "
        f"{_numbers(differing)}. Look at what is there, then go on with a new checkpoint. To keep this from "
        "happening, restart a stopped query within transactionTimeout, or raise that"
    )


def _is_visible_in_log(cluster: Cluster, part: Part) -> bool:
    """Whether readers see the part, according to the log: the coordinator no longer knows the transaction."""
    deadline = time.monotonic() + PENDING_SECONDS
    name, where = _identity(part).transactional_id, _partitions_of(part)
    while True:
        fates = [
            fate(cluster, _identity(part), TopicPartition(topic, at), offset) for topic, at, offset in part.begins
        ]
        if Fate.SEEN in fates:
            return True
        if Fate.HIDDEN in fates:
            return False
        if Fate.PENDING not in fates:
            raise BatchTorn(
                f"it is unknown whether transaction {name!r} was committed: its coordinator has forgotten it, and "
                f"its records are gone from {where}. Look at what is there, then go on with a new checkpoint"
            )
        if time.monotonic() > deadline:
            raise BatchNotWritten(
                f"an open transaction in {where} hides how {name!r} ended; see millpond txn list, and start the "
                "query again when it is over"
            )
        time.sleep(_PENDING_STEP_SECONDS)


def _identity(part: Part) -> ProducerIdentity:
    assert part.identity is not None, "a decision has transactions only"
    return part.identity


def _lost(visibility: Mapping[Part, bool]) -> list[Part]:
    return [part for part, is_visible in visibility.items() if not is_visible]


def _lost_text(what: str, parts: Collection[Part], fault: str) -> str:
    return (
        f"{what} is not written: the transactions of tasks {_numbers(part.partition for part in parts)} {fault}. "
        "They timed out (transactionTimeout), or another attempt replaced them. Run it again: no row is doubled"
    )


def _goal(topic: str | None) -> str:
    return "the topics that its rows name" if topic is None else f"topic {topic}"


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _partitions_of(part: Part) -> str:
    return ", ".join(f"{topic}[{partition}]" for topic, partition, _ in part.begins) or "its topics"
