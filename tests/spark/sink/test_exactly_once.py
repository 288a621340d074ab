"""The protocol of exactly-once writes, with a failure after every step, against a real node and without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from millpond.client.errors import Fenced
from millpond.remote.cluster import Cluster
from millpond.remote.transactions import ProducerIdentity, end, init_producer
from millpond.spark.sink import decisions, exactly_once
from millpond.spark.sink.decisions import DECIDING_TIMEOUT_MS, Decision, DecisionLog, Part, name_of
from millpond.spark.sink.errors import BatchNotWritten, BatchTorn, SinkError, WriteTaken
from millpond.spark.sink.exactly_once import Duty, Unit, duty_of, job_unit
from millpond.spark.sink.steps import Step
from support.node import eventually
from support.spark_sink_task import InjectedCrash, TaskRunner

ROWS = (["a", "b"], ["c"], ["d", "e", "f"])
ALL = ["a", "b", "c", "d", "e", "f"]


@pytest.mark.smoke
def test_a_batch_is_visible_once_it_is_committed(runner: TaskRunner) -> None:
    parts = runner.tasks(0, *ROWS)
    assert [part.rows for part in parts] == [2, 1, 3]
    assert runner.seen() == []
    assert runner.open() == ["0", "1", "2"]
    runner.commit(0, parts)
    assert runner.seen() == ALL
    runner.write(1, ["g"])
    assert runner.seen() == [*ALL, "g"]


def test_a_task_without_rows_needs_no_transaction(runner: TaskRunner) -> None:
    parts = runner.tasks(0, [], ["a"], [])
    assert [part.identity is None for part in parts] == [True, False, True]
    runner.commit(0, parts)
    assert runner.seen() == ["a"]
    runner.write(1, [], [])
    assert DecisionLog(runner.cluster).find(runner.query).batch == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("step", "nth"),
    [(Step.CHECKED, 1), (Step.DECIDED, 1), (Step.ENDED_SOME, 1), (Step.ENDED_SOME, 2), (Step.ENDED_ALL, 1)],
)
@pytest.mark.parametrize("aborted", [True, False])
def test_each_row_is_there_once_if_the_driver_fails_after_any_step(
    runner: TaskRunner, step: Step, nth: int, aborted: bool
) -> None:
    runner.write(0, ["first"])
    parts = runner.tasks(1, *ROWS)
    runner.fail_after(step, nth)
    with pytest.raises(InjectedCrash):
        runner.commit(1, parts)
    if aborted:
        # Spark calls abort after a failed commit; a killed driver does not.
        runner.abort(1, parts)
    again = runner.tasks(1, *ROWS)
    written = step is Step.CHECKED
    assert [part.identity is not None for part in again] == [written] * 3
    assert [(part.rows, part.checksum) for part in again] == [(part.rows, part.checksum) for part in parts]
    runner.commit(1, again)
    runner.commit(1, again)
    assert runner.seen() == [*ALL, "first"]
    assert runner.open() == []


@pytest.mark.parametrize("step", [Step.OPENED, Step.FLUSHED])
def test_a_failed_task_is_retried(runner: TaskRunner, step: Step) -> None:
    parts = runner.tasks(0, *ROWS[:2])
    runner.fail_after(step)
    with pytest.raises(InjectedCrash):
        runner.task(0, 2, ROWS[2])
    runner.commit(0, [*parts, runner.task(0, 2, ROWS[2])])
    assert runner.seen() == ALL


def test_a_newer_attempt_of_a_task_replaces_the_older(runner: TaskRunner) -> None:
    older = runner.tasks(0, *ROWS)
    newer = runner.task(0, 1, ROWS[1])
    with pytest.raises(BatchNotWritten, match="tasks 1 are no longer open"):
        runner.commit(0, older)
    runner.commit(0, [older[0], newer, older[2]])
    assert runner.seen() == ALL


def test_abandoned_transactions_are_aborted(runner: TaskRunner) -> None:
    parts = runner.tasks(0, *ROWS)
    runner.abort(0, parts[:2])
    assert runner.open() == ["2"], "the task that did not report"
    # The replay has fewer tasks, so the third transaction is not fenced; the driver aborts it.
    runner.write(0, ["a", "b", "c"], ["d", "e", "f"])
    assert runner.seen() == ALL
    assert runner.open() == []


def test_a_decided_batch_is_never_undone(runner: TaskRunner) -> None:
    parts = runner.tasks(0, *ROWS)
    runner.fail_after(Step.DECIDED)
    with pytest.raises(InjectedCrash):
        runner.commit(0, parts)
    runner.abort(0, parts)
    assert runner.open() == ["0", "1", "2"]
    # The first task of the replay completes it for all.
    assert duty_of(runner.cluster, runner.unit(0), 1) is Duty.COUNT
    assert runner.seen() == ALL
    # Other tasks change nothing: all rows are there.
    runner.commit(0, runner.tasks(0, ["a", "b", "c", "d", "e", "f"]))
    assert runner.seen() == ALL


def test_tasks_that_missed_the_decision_are_aborted(runner: TaskRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = runner.tasks(0, *ROWS)
    runner.commit(0, parts)
    monkeypatch.setattr(exactly_once, "duty_of", lambda *_: Duty.WRITE)
    again = runner.tasks(0, *ROWS)
    assert all(part.identity for part in again)
    # The coordinator no longer knows how the first ones ended; the log does.
    runner.commit(0, again)
    assert runner.seen() == ALL
    assert runner.open() == []


def decided_and_lost(runner: TaskRunner, lost: list[int]) -> None:
    """Decide a batch, commit some of its transactions, and abort the others, as timeouts would."""
    parts = runner.tasks(0, *ROWS)
    runner.fail_after(Step.DECIDED)
    with pytest.raises(InjectedCrash):
        runner.commit(0, parts)
    for part in parts:
        assert part.identity is not None
        if part.partition in lost:
            init_producer(runner.cluster, part.identity.transactional_id, 60_000)
        else:
            end(runner.cluster, part.identity, commit=True)


def test_a_decision_whose_transactions_are_all_lost_is_replaced(runner: TaskRunner) -> None:
    decided_and_lost(runner, [0, 1, 2])
    # Other rows in other tasks are allowed: the first ones were never visible.
    runner.write(0, ["a", "b", "c", "d"], ["e", "f"])
    assert runner.seen() == ALL


@pytest.mark.parametrize("lost", [[0], [2], [0, 1]])
def test_the_lost_part_of_a_decision_is_rewritten(runner: TaskRunner, lost: list[int]) -> None:
    decided_and_lost(runner, lost)
    again = runner.tasks(0, *ROWS)
    assert [part.partition for part in again if part.identity] == lost
    # Fail again at the worst moment.
    runner.fail_after(Step.DECIDED)
    with pytest.raises(InjectedCrash):
        runner.commit(0, again)
    runner.commit(0, runner.tasks(0, *ROWS))
    assert runner.seen() == ALL
    assert runner.open() == []


@pytest.mark.parametrize(
    "rows", [(["a", "x"], ["c"], ["d", "e", "f"]), (["a"], ["b", "c"], ["d", "e", "f"]), (["a", "b", "c"],)]
)
def test_a_torn_batch_is_not_completed_with_other_rows(runner: TaskRunner, rows: tuple[list[str], ...]) -> None:
    decided_and_lost(runner, [1])
    again = runner.tasks(0, *rows)
    with pytest.raises(BatchTorn, match=r"tasks 1 timed out before.*other rows to tasks.*transactionTimeout"):
        runner.commit(0, again)
    assert runner.seen() == ["a", "b", "d", "e", "f"]


def test_a_lost_task_that_only_counted_must_write_in_the_next_replay(runner: TaskRunner) -> None:
    decided_and_lost(runner, [1])
    counted = [replace(part, identity=None, begins=()) for part in runner.tasks(0, *ROWS)]
    with pytest.raises(BatchNotWritten, match="tasks 1 were lost, and their tasks did not know"):
        runner.commit(0, counted)
    runner.write(0, *ROWS)
    assert runner.seen() == ALL


def test_transactions_that_time_out_are_noticed_before_the_decision(make_runner: Callable[..., TaskRunner]) -> None:
    runner = make_runner(transactionTimeout="2s")
    parts = runner.tasks(0, *ROWS)
    assert eventually(lambda: not runner.open())
    with pytest.raises(BatchNotWritten, match=r"tasks 0, 1, 2 are no longer open.*transactionTimeout"):
        runner.commit(0, parts)
    runner.write(0, *ROWS)
    assert runner.seen() == ALL


def test_transactions_that_time_out_after_the_decision_are_replaced(make_runner: Callable[..., TaskRunner]) -> None:
    runner = make_runner(transactionTimeout="3s")
    parts = runner.tasks(0, *ROWS)
    runner.fail_after(Step.ENDED_SOME)
    with pytest.raises(InjectedCrash):
        runner.commit(0, parts)
    assert eventually(lambda: not runner.open())
    assert runner.seen() == ["a", "b"]
    runner.write(0, *ROWS)
    assert runner.seen() == ALL


def test_a_transaction_that_is_lost_while_the_driver_decides_is_noticed(
    runner: TaskRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = DecisionLog.record

    def too_late(log: DecisionLog, identity: ProducerIdentity, decision: Decision) -> None:
        record(log, identity, decision)
        init_producer(runner.cluster, f"{name_of(runner.query)}1", 60_000)

    with monkeypatch.context() as patched:
        patched.setattr(DecisionLog, "record", too_late)
        with pytest.raises(BatchNotWritten, match="tasks 1 were lost after they were decided"):
            runner.write(0, *ROWS)
    runner.write(0, *ROWS)
    assert runner.seen() == ALL


def test_a_node_that_crashes_while_the_driver_decides(make_runner: Callable[..., TaskRunner]) -> None:
    runner = make_runner()
    for batch, step in enumerate((Step.CHECKED, Step.DECIDED, Step.ENDED_SOME)):
        parts = runner.tasks(batch, [f"{batch}a"], [f"{batch}b"])
        runner.fail_after(step)
        with pytest.raises(InjectedCrash):
            runner.commit(batch, parts)
        runner.node.restart(crash=True)
        runner.commit(batch, runner.tasks(batch, [f"{batch}a"], [f"{batch}b"]))
    assert runner.seen() == ["0a", "0b", "1a", "1b", "2a", "2b"]


def test_an_older_driver_can_no_longer_decide(runner: TaskRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is delayed between its checks and the decision; meanwhile a newer driver writes the batch."""
    stale = runner.tasks(0, ["a"])

    def meanwhile(*_: object) -> None:
        monkeypatch.undo()
        runner.write(0, ["a"])

    # It found all of its transactions open, then lost the race.
    monkeypatch.setattr(exactly_once, "check_open", meanwhile)
    with pytest.raises((Fenced, BatchNotWritten)):
        runner.commit(0, stale)
    runner.write(0, ["a"])
    assert runner.seen() == ["a"]


def test_an_older_driver_that_resumes_ends_no_newer_transaction(runner: TaskRunner) -> None:
    """If its JVM is killed, its Python process may continue: here just before it aborts surplus transactions."""
    newer: list[Part] = []

    def meanwhile(step: str) -> None:
        if step == Step.ENDED_ALL.value and not newer:
            newer.extend(runner.tasks(1, ["b"], ["c"]))

    runner.watch(meanwhile)
    runner.write(0, ["a"])
    assert runner.open() == ["0", "1"]
    runner.commit(1, newer)
    assert runner.seen() == ["a", "b", "c"]


def test_an_older_driver_whose_batch_is_done_ends_no_newer_transaction(
    runner: TaskRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.write(0, ["a"])
    again = runner.tasks(0, ["a"])
    settle = exactly_once.settle

    def held_up(cluster: Cluster, decision: Decision) -> dict[Part, bool]:
        """Delay the driver before it lists open transactions; a newer one decides the next batch, and fails."""
        monkeypatch.setattr(exactly_once, "settle", settle)
        newer = runner.tasks(1, ["b"], ["c"])
        runner.fail_after(Step.DECIDED)
        with pytest.raises(InjectedCrash):
            runner.commit(1, newer)
        return settle(cluster, decision)

    monkeypatch.setattr(exactly_once, "settle", held_up)
    runner.commit(0, again)
    assert runner.open() == ["0", "1"], "they are decided and must not be aborted"


def test_a_decision_before_the_takeover_is_found(runner: TaskRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two drivers with different task numbers do not fence each other: only the decision shows the write."""
    monkeypatch.setattr(exactly_once, "surplus_of", lambda *_: [])
    parts = [runner.task(0, 5, ["a"])]
    take_over = DecisionLog.take_over

    def meanwhile(log: DecisionLog, owner: str) -> ProducerIdentity:
        monkeypatch.setattr(DecisionLog, "take_over", take_over)
        runner.commit(0, [runner.task(0, 6, ["a"])])
        return take_over(log, owner)

    monkeypatch.setattr(DecisionLog, "take_over", meanwhile)
    runner.commit(0, parts)
    assert runner.seen() == ["a"]
    assert runner.open() == ["5"]


def test_an_interrupted_decision_is_settled_at_once(runner: TaskRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is in the topic, but its transaction is open."""
    parts = runner.tasks(0, *ROWS)

    def cut_short(*_: object, **__: object) -> None:
        raise InjectedCrash

    with monkeypatch.context() as patched:
        patched.setattr(decisions, "end", cut_short)
        with pytest.raises(InjectedCrash):
            runner.commit(0, parts)
    began = time.monotonic()
    runner.abort(0, parts)
    assert time.monotonic() - began < DECIDING_TIMEOUT_MS / 2000
    assert runner.open() == []
    runner.write(0, *ROWS)
    assert runner.seen() == ALL


def test_an_old_checkpoint_is_refused(runner: TaskRunner) -> None:
    runner.write(3, ["a"])
    with pytest.raises(BatchTorn, match="wants to write batch 2, but has already written batch 3"):
        runner.task(2, 0, ["b"])
    with pytest.raises(BatchTorn, match="already written batch 3"):
        runner.commit(2, [Part(0, 1, "x")])


def test_a_job_that_counts_its_writes_may_start_again_from_the_first(runner: TaskRunner) -> None:
    for _ in range(2):
        for number, value in enumerate("abc"):
            runner.job(number, [value])
    assert runner.seen() == ["a", "b", "c"]


def test_a_reused_number_of_a_job_for_other_rows_is_refused(runner: TaskRunner) -> None:
    runner.job(0, ["a", "b"], ["c"])
    runner.job(0, ["c"], ["b"], ["a"])
    for rows in (["a", "b"], ["a", "b", "x"], ["a", "b", "c", "c"], []):
        with pytest.raises(WriteTaken, match=rf"txnVersion 0 is written to topic .* other rows \({len(rows)}\)"):
            runner.job(0, rows)
    assert runner.seen() == ["a", "b", "c"]
    assert runner.open() == []


def test_other_rows_are_allowed_in_a_replay_but_not_in_the_same_run(runner: TaskRunner) -> None:
    runner.job(0, ["a"], run="first")
    runner.job(0, ["made a moment later"], run="second")
    with pytest.raises(WriteTaken, match="its own txnVersion"):
        runner.job(0, ["another write"], run="first")
    assert runner.seen() == ["a"]


def test_a_job_whose_transactions_are_all_lost_writes_its_new_rows(runner: TaskRunner) -> None:
    parts = runner.job_tasks(0, ["a"], ["b"])
    runner.fail_after(Step.DECIDED)
    with pytest.raises(InjectedCrash):
        exactly_once.commit(runner.cluster, runner.job_unit(0), parts)
    for part in parts:
        assert part.identity is not None
        init_producer(runner.cluster, part.identity.transactional_id, 60_000)
    runner.job(0, ["c"])
    assert runner.seen() == ["c"]


def test_the_same_batch_for_another_topic_is_refused(runner: TaskRunner) -> None:
    runner.write(0, ["a"])
    elsewhere = Unit(runner.query, 0, "elsewhere")
    for attempt in (
        lambda: duty_of(runner.cluster, elsewhere, 0),
        lambda: exactly_once.commit(runner.cluster, elsewhere, [Part(0, 1, "x")]),
    ):
        with pytest.raises(WriteTaken, match=rf"was written to topic {runner.topic}, and is now to go to topic else"):
            attempt()
    assert duty_of(runner.cluster, Unit(runner.query, 1, "elsewhere"), 0) is Duty.WRITE


def test_each_job_and_topic_has_a_unique_owner() -> None:
    units = [job_unit(*each) for each in (("a", 0, "b"), ("a/b", 0, None), ("a", 0, None), ("a/b", 0, "b"))]
    assert len({unit.owner for unit in units}) == 4


def test_a_timeout_above_the_clusters_limit_is_refused(make_runner: Callable[..., TaskRunner]) -> None:
    runner = make_runner(transactionTimeout="24h")
    with pytest.raises(
        SinkError, match=r"transactions of 86400000 ms.*transactionTimeout.*transaction\.max\.timeout"
    ):
        runner.task(0, 0, ["a"])


def test_no_owners_prefix_is_a_prefix_of_anothers() -> None:
    assert not name_of("a.b").startswith(name_of("a"))
    assert name_of("a b/c").isascii()
