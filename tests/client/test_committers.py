"""When positions are committed, against a consumer and a producer that only remember."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError

from millpond import CommitFailed, Message, Send, SendFailed
from millpond.base.ids import TopicPartition
from millpond.client.committers import AtLeastOnce, AtMostOnce, commit
from millpond.client.in_flight import InFlight
from millpond.client.ordered_sends import OrderedSends
from millpond.client.pending_reports import OnReport
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
        self.reports: list[OnReport] = []

    def send_with_callback(self, on_report: OnReport, *_: object, **__: object) -> None:
        self.reports.append(on_report)


class CommitterHarness:
    def __init__(self, kind: type[AtLeastOnce]) -> None:
        self.consumer, self.producer, self.in_flight = FakeConsumer(), FakeProducer(), InFlight()
        self.in_flight.assign([PARTITION])
        self.failures: list[BaseException] = []
        producer: Any = self.producer
        sends = OrderedSends(lambda: producer, lambda: producer, lambda _: None, self.failures.append)
        self.committer = kind(self.consumer, sends, self.in_flight, self.failures.append)  # type: ignore[arg-type]

    def begin(self, offset: int) -> Job:
        self.in_flight.add(read_new(Message("orders", 0, offset)))
        job = self.in_flight.start()
        assert job is not None
        return job


def test_at_least_once_commits_what_is_finished_without_a_gap() -> None:
    harness = CommitterHarness(AtLeastOnce)
    first, second = harness.begin(4), harness.begin(5)
    assert harness.committer.may_process([first.message])
    harness.committer.record_finished(second, [])
    harness.committer.commit_finished()
    assert harness.consumer.committed == []
    harness.committer.record_finished(first, [])
    harness.committer.commit_finished()
    harness.committer.commit_finished()
    assert harness.consumer.committed == [{PARTITION: 6}]


def test_at_least_once_waits_for_the_acknowledgement_of_all_that_is_sent() -> None:
    harness = CommitterHarness(AtLeastOnce)
    harness.committer.record_finished(harness.begin(4), [Send("out"), Send("out")])
    harness.producer.reports[0](None)
    harness.committer.commit_finished()
    harness.committer.hand_over([PARTITION], 0.01)
    assert harness.consumer.committed == []
    harness.producer.reports[1](None)
    harness.committer.hand_over([PARTITION], 5)
    assert harness.consumer.committed == [{PARTITION: 5}]


def test_a_failed_send_is_told_and_never_committed() -> None:
    harness = CommitterHarness(AtLeastOnce)
    harness.committer.record_finished(harness.begin(4), [Send("out")])
    harness.producer.reports[0](SendFailed("no"))
    harness.committer.commit_finished()
    assert harness.consumer.committed == []
    assert isinstance(harness.failures[0], SendFailed)


def test_at_most_once_commits_first_and_then_never() -> None:
    harness = CommitterHarness(AtMostOnce)
    jobs = [harness.begin(4), harness.begin(5)]
    assert harness.committer.may_process([job.message for job in jobs])
    assert harness.consumer.committed == [{PARTITION: 6}]
    for job in jobs:
        harness.committer.record_finished(job, [])
    harness.committer.commit_finished()
    assert harness.consumer.committed == [{PARTITION: 6}]


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
    harness = CommitterHarness(AtMostOnce)
    harness.consumer.failures = [CommitFailed("gone", code=KafkaError.UNKNOWN_MEMBER_ID)]
    assert not harness.committer.may_process([Message("orders", 0, 4), Message("orders", 0, 5)])
    assert harness.consumer.sought == [("orders", 0, 4)], "it is read again, if the partition is still ours"


def test_at_most_once_gives_back_what_no_handler_has_seen() -> None:
    harness = CommitterHarness(AtMostOnce)
    batch = [Message("orders", 0, offset) for offset in (4, 5, 6)]
    assert harness.committer.may_process(batch)
    for each in batch:
        harness.in_flight.add(read_new(each))
    job = harness.in_flight.start()
    assert job is not None
    harness.committer.record_finished(job, [])
    harness.in_flight.drop([PARTITION], keep_gaps=True)
    harness.committer.hand_over([PARTITION], 1)
    assert harness.consumer.committed == [{PARTITION: 7}, {PARTITION: 5}]


def test_a_commit_refused_during_a_rebalance_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.client.committers.COMMIT_RETRY_SECONDS", 0.0)
    harness = CommitterHarness(AtLeastOnce)
    harness.committer.record_finished(harness.begin(4), [])
    harness.consumer.failures = [CommitFailed("wait", code=KafkaError.REBALANCE_IN_PROGRESS) for _ in range(5)]
    harness.committer.commit_finished()
    assert harness.consumer.committed == []
    harness.committer.commit_finished()
    assert harness.consumer.committed == [{PARTITION: 5}], "though no further record has finished"


def test_an_unreachable_cluster_is_reported_only_when_stopping() -> None:
    harness = CommitterHarness(AtLeastOnce)
    harness.committer.record_finished(harness.begin(4), [])
    harness.consumer.failures = [CommitFailed("away", code=KafkaError._WAIT_COORD) for _ in range(2)]
    harness.committer.commit_finished()
    harness.committer.hand_over([PARTITION], 1)
    with pytest.raises(CommitFailed, match="away"):
        harness.committer.close()
    harness.committer.commit_finished()
    harness.committer.close()
    assert harness.consumer.committed == [{PARTITION: 5}]


def test_at_most_once_rewinds_what_an_unreachable_cluster_did_not_commit() -> None:
    harness = CommitterHarness(AtMostOnce)
    harness.consumer.failures = [CommitFailed("away", code=KafkaError._TRANSPORT)]
    assert not harness.committer.may_process([Message("orders", 0, 4)])
    assert harness.consumer.sought == [("orders", 0, 4)]
    assert harness.committer.may_process([Message("orders", 0, 4)])
