"""The same protocol against Apache Kafka: what counts is what its coordinators and its log say after a failure."""

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
from support.spark_sink_play import Play, Struck
from support.topics import create_topic

pytestmark = [with_time, pytest.mark.timeout(300)]

ROWS = (["a", "b"], ["c"], ["d", "e", "f"])
ALL = ["a", "b", "c", "d", "e", "f"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    # It looks for transactions that have timed out every ten seconds unless told otherwise.
    made = KafkaBroker(
        tmp_path_factory.mktemp("kafka"),
        {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"},
    ).start()
    yield made
    made.kill9()


@pytest.fixture
def play(broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    create_topic(broker.bootstrap, topic, 2)
    with Play(broker, topic, str(uuid4()), monkeypatch) as made:
        yield made


@pytest.mark.parametrize("step", [Step.CHECKED, Step.DECIDED, Step.ENDED_SOME, Step.ENDED_ALL])
def test_a_driver_that_fails_after_any_step_leaves_each_row_once(play: Play, step: Step) -> None:
    play.write(0, ["first"])
    parts = play.tasks(1, *ROWS)
    play.fail_after(step)
    with pytest.raises(Struck):
        play.commit(1, parts)
    play.abort(1, parts)
    play.commit(1, play.tasks(1, *ROWS))
    assert eventually(lambda: play.seen() == [*ALL, "first"])
    assert play.open() == []
    found = DecisionLog(play.cluster).find(play.query)
    assert found is not None
    assert found.batch == 1


@pytest.mark.parametrize("lost", [[1], [0, 1, 2]])
def test_what_was_lost_after_the_decision_is_written_again(play: Play, lost: list[int]) -> None:
    parts = play.tasks(0, *ROWS)
    play.fail_after(Step.DECIDED)
    with pytest.raises(Struck):
        play.commit(0, parts)
    for part in parts:
        assert part.identity is not None
        if part.partition in lost:
            init_producer(play.cluster, part.identity.transactional_id, 60_000)
        else:
            end(play.cluster, part.identity, commit=True)
            # The coordinator forgets that it was committed; the log does not.
            init_producer(play.cluster, part.identity.transactional_id, 60_000)
    play.commit(0, play.tasks(0, *ROWS))
    assert eventually(lambda: play.seen() == ALL)


def test_transactions_that_time_out_after_the_decision_are_replaced(
    broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(broker.bootstrap, topic, 2)
    with Play(broker, topic, str(uuid4()), monkeypatch, transactionTimeout="3s") as play:
        parts = play.tasks(0, *ROWS)
        play.fail_after(Step.ENDED_SOME)
        with pytest.raises(Struck):
            play.commit(0, parts)
        assert eventually(lambda: not play.open())
        assert play.seen() == ["a", "b"]
        play.write(0, *ROWS)
        assert eventually(lambda: play.seen() == ALL)
