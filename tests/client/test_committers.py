"""When positions are committed, against a consumer and a producer that only remember."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError

from millpond import CommitFailed, Message, Send, SendFailed
from millpond.base.ids import TopicPartition
from millpond.client.committers import AtLeastOnce, AtMostOnce, commit
from millpond.client.in_flight import InFlight
from millpond.client.message import Delivery
from millpond.client.progress import Job
from millpond.client.retry import read_new

PARTITION = TopicPartition("orders", 0)


class FakeConsumer:
    def __init__(self, *failures: CommitFailed) -> None:
        self.sought: list[tuple[str, int, int]] = []
        self.committed: list[dict[TopicPartition, int]] = []
        self.failures = list(failures)

    def commit(self, *, offsets: dict[TopicPartition, int]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.committed.append(dict(offsets))

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self.sought.append((topic, partition, offset))


class FakeProducer:
    def __init__(self) -> None:
        self.sent: list[Future[Delivery]] = []

    def send(self, *given: Any, **named: Any) -> Future[Delivery]:
        self.sent.append(Future())
        return self.sent[-1]


class Play:
    def __init__(self, kind: type[AtLeastOnce]) -> None:
        self.consumer, self.producer, self.in_flight = FakeConsumer(), FakeProducer(), InFlight()
        self.in_flight.assign([PARTITION])
        self.failures: list[BaseException] = []
        self.committer = kind(
            self.consumer,  # type: ignore[arg-type]
            lambda: self.producer,  # type: ignore[arg-type,return-value]
            self.in_flight,
            self.failures.append,
        )

    def begin(self, offset: int) -> Job:
        self.in_flight.add(read_new(Message("orders", 0, offset)))
        job = self.in_flight.start()
        assert job is not None
        return job


def test_at_least_once_commits_what_is_finished_without_a_gap() -> None:
    play = Play(AtLeastOnce)
    first, second = play.begin(4), play.begin(5)
    assert play.committer.may_process([first.message])
    play.committer.record_finished(second, [])
    play.committer.commit_finished()
    assert play.consumer.committed == []
    play.committer.record_finished(first, [])
    play.committer.commit_finished()
    play.committer.commit_finished()
    assert play.consumer.committed == [{PARTITION: 6}]


def test_at_least_once_waits_for_the_acknowledgement_of_all_that_is_sent() -> None:
    play = Play(AtLeastOnce)
    play.committer.record_finished(play.begin(4), [Send("out"), Send("out")])
    play.producer.sent[0].set_result(Delivery("out", 0, 0, 0))
    play.committer.commit_finished()
    play.committer.hand_over([PARTITION], 0.01)
    assert play.consumer.committed == []
    play.producer.sent[1].set_result(Delivery("out", 0, 1, 0))
    play.committer.hand_over([PARTITION], 5)
    assert play.consumer.committed == [{PARTITION: 5}]


def test_a_failed_send_is_told_and_never_committed() -> None:
    play = Play(AtLeastOnce)
    play.committer.record_finished(play.begin(4), [Send("out")])
    play.producer.sent[0].set_exception(SendFailed("no"))
    play.committer.commit_finished()
    assert play.consumer.committed == []
    assert isinstance(play.failures[0], SendFailed)


def test_at_most_once_commits_first_and_then_never() -> None:
    play = Play(AtMostOnce)
    jobs = [play.begin(4), play.begin(5)]
    assert play.committer.may_process([job.message for job in jobs])
    assert play.consumer.committed == [{PARTITION: 6}]
    for job in jobs:
        play.committer.record_finished(job, [])
    play.committer.commit_finished()
    assert play.consumer.committed == [{PARTITION: 6}]


def test_a_commit_is_tried_again_unless_the_group_has_moved_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.client.committers.COMMIT_RETRY_SECONDS", 0.0)
    passing = CommitFailed("later", code=KafkaError.COORDINATOR_LOAD_IN_PROGRESS, retriable=True)
    consumer = FakeConsumer(passing, passing)
    assert commit(consumer, {PARTITION: 1})  # type: ignore[arg-type]
    assert consumer.committed == [{PARTITION: 1}]
    stale = CommitFailed("stale", code=KafkaError.STALE_MEMBER_EPOCH)
    assert commit(FakeConsumer(stale), {PARTITION: 1})  # type: ignore[arg-type]
    assert not commit(FakeConsumer(*[stale] * 5), {PARTITION: 1})  # type: ignore[arg-type]
    moved = FakeConsumer(CommitFailed("gone", code=KafkaError.ILLEGAL_GENERATION))
    assert not commit(moved, {PARTITION: 1})  # type: ignore[arg-type]
    with pytest.raises(CommitFailed):
        commit(FakeConsumer(*[passing] * 5), {PARTITION: 1})  # type: ignore[arg-type]
    with pytest.raises(CommitFailed):
        commit(FakeConsumer(CommitFailed("no", code=KafkaError.GROUP_AUTHORIZATION_FAILED)), {PARTITION: 1})  # type: ignore[arg-type]


def test_at_most_once_does_not_run_what_it_could_not_commit() -> None:
    play = Play(AtMostOnce)
    play.consumer.failures = [CommitFailed("gone", code=KafkaError.UNKNOWN_MEMBER_ID)]
    assert not play.committer.may_process([Message("orders", 0, 4), Message("orders", 0, 5)])
    assert play.consumer.sought == [("orders", 0, 4)], "it is read again, if the partition is still ours"


def test_at_most_once_gives_back_what_no_handler_has_seen() -> None:
    play = Play(AtMostOnce)
    batch = [Message("orders", 0, offset) for offset in (4, 5, 6)]
    assert play.committer.may_process(batch)
    for each in batch:
        play.in_flight.add(read_new(each))
    job = play.in_flight.start()
    assert job is not None
    play.committer.record_finished(job, [])
    play.in_flight.drop([PARTITION], keep_gaps=True)
    play.committer.hand_over([PARTITION], 1)
    assert play.consumer.committed == [{PARTITION: 7}, {PARTITION: 5}]


def test_what_a_changing_group_refuses_is_committed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.client.committers.COMMIT_RETRY_SECONDS", 0.0)
    play = Play(AtLeastOnce)
    play.committer.record_finished(play.begin(4), [])
    play.consumer.failures = [CommitFailed("wait", code=KafkaError.REBALANCE_IN_PROGRESS) for _ in range(5)]
    play.committer.commit_finished()
    assert play.consumer.committed == []
    play.committer.commit_finished()
    assert play.consumer.committed == [{PARTITION: 5}], "though no further record has finished"


def test_a_cluster_that_is_away_ends_no_worker_but_who_stops_it_hears() -> None:
    play = Play(AtLeastOnce)
    play.committer.record_finished(play.begin(4), [])
    play.consumer.failures = [CommitFailed("away", code=KafkaError._WAIT_COORD) for _ in range(2)]
    play.committer.commit_finished()
    play.committer.hand_over([PARTITION], 1)
    with pytest.raises(CommitFailed, match="away"):
        play.committer.close()
    play.committer.commit_finished()
    play.committer.close()
    assert play.consumer.committed == [{PARTITION: 5}]


def test_at_most_once_reads_again_what_a_cluster_that_is_away_did_not_take() -> None:
    play = Play(AtMostOnce)
    play.consumer.failures = [CommitFailed("away", code=KafkaError._TRANSPORT)]
    assert not play.committer.may_process([Message("orders", 0, 4)])
    assert play.consumer.sought == [("orders", 0, 4)]
    assert play.committer.may_process([Message("orders", 0, 4)])
