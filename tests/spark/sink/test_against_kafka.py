"""The same protocol against the coordinators and logs of Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from millpond.remote.transactions import end, init_producer
from millpond.spark.sink.decisions import DecisionLog
from millpond.spark.sink.steps import Step
from support.kafka_broker import KafkaBroker
from support.node import eventually
from support.patience import with_time
from support.spark_sink_task import InjectedCrash, TaskRunner
from support.topics import create_topic

pytestmark = [with_time, pytest.mark.timeout(300)]

ROWS = (["a", "b"], ["c"], ["d", "e", "f"])
ALL = ["a", "b", "c", "d", "e", "f"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    # By default it checks for timed-out transactions every ten seconds.
    made = KafkaBroker(
        tmp_path_factory.mktemp("kafka"),
        {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"},
    ).start()
    yield made
    made.kill9()


@pytest.fixture
def runner(broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TaskRunner]:
    create_topic(broker.bootstrap, topic, 2)
    with TaskRunner(broker, topic, str(uuid4()), monkeypatch) as made:
        yield made


@pytest.mark.parametrize("step", [Step.CHECKED, Step.DECIDED, Step.ENDED_SOME, Step.ENDED_ALL])
def test_each_row_is_there_once_if_the_driver_fails_after_any_step(runner: TaskRunner, step: Step) -> None:
    runner.write(0, ["first"])
    parts = runner.tasks(1, *ROWS)
    runner.fail_after(step)
    with pytest.raises(InjectedCrash):
        runner.commit(1, parts)
    runner.abort(1, parts)
    runner.commit(1, runner.tasks(1, *ROWS))
    assert eventually(lambda: runner.seen() == [*ALL, "first"])
    assert runner.open() == []
    result = DecisionLog(runner.cluster).find(runner.query)
    assert result is not None
    assert result.batch == 1


@pytest.mark.parametrize("lost", [[1], [0, 1, 2]])
def test_transactions_lost_after_the_decision_are_rewritten(runner: TaskRunner, lost: list[int]) -> None:
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
            # The coordinator forgets the commit; the log does not.
            init_producer(runner.cluster, part.identity.transactional_id, 60_000)
    runner.commit(0, runner.tasks(0, *ROWS))
    assert eventually(lambda: runner.seen() == ALL)


def test_transactions_that_time_out_after_the_decision_are_replaced(
    broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(broker.bootstrap, topic, 2)
    with TaskRunner(broker, topic, str(uuid4()), monkeypatch, transactionTimeout="3s") as runner:
        parts = runner.tasks(0, *ROWS)
        runner.fail_after(Step.ENDED_SOME)
        with pytest.raises(InjectedCrash):
            runner.commit(0, parts)
        assert eventually(lambda: not runner.open())
        assert runner.seen() == ["a", "b"]
        runner.write(0, *ROWS)
        assert eventually(lambda: runner.seen() == ALL)
