"""Sends stay in order when a broker refuses a batch."""

from __future__ import annotations

from threading import current_thread
from typing import Any

import pytest
from confluent_kafka import KafkaError

from millpond import Message, Send, SendFailed, Timeout
from millpond.base.ids import TopicPartition
from millpond.client.committers import AtLeastOnce
from millpond.client.in_flight import InFlight
from millpond.client.ordered_sends import OrderedSends
from millpond.client.pending_reports import OnReport
from millpond.client.retry import read_new
from support.node import eventually


def refusal(code: int) -> SendFailed:
    return SendFailed("no", code=code)


TOO_LARGE = refusal(KafkaError.MSG_SIZE_TOO_LARGE)
PURGED = refusal(KafkaError._PURGE_QUEUE)
FATAL = refusal(KafkaError._FATAL)


class StubProducer:
    def __init__(self, log: list[bytes], refused: bytes | None = None) -> None:
        self.reports: dict[bytes, OnReport] = {}
        self.reported: set[bytes] = set()
        self.threads: list[str] = []
        self.is_over = False
        self._log = log
        self._refused = refused

    def send_with_callback(self, on_report: OnReport, topic: str, value: bytes, *_: object, **__: object) -> None:
        if self.is_over:
            raise FATAL
        self.threads.append(current_thread().name)
        self.reports[value] = on_report
        self.reported.discard(value)
        if self._refused is not None:
            self.report(value, TOO_LARGE if value == self._refused else None)

    def report(self, value: bytes, error: SendFailed | None = None) -> None:
        self.reported.add(value)
        if error is None:
            self._log.append(value)
        self.reports[value](error)


class SendsHarness:
    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.batching = [StubProducer(self.log)]
        self.single = StubProducer(self.log, refused=b"bad")
        self.outcomes: dict[bytes, BaseException | None] = {}
        any_producer: Any = lambda: self.batching[-1]  # noqa: E731
        any_single: Any = lambda: self.single  # noqa: E731
        self.failures: list[BaseException] = []
        self.sends = OrderedSends(any_producer, any_single, self._renew, self.failures.append)

    def _renew(self, refused_bytes: int | None) -> None:
        self.refused_bytes = refused_bytes
        self.batching.append(StubProducer(self.log, refused=b""))

    def send(self, *values: bytes) -> None:
        for value in values:
            self.sends.send(Send("out", value), lambda error, value=value: self.outcomes.update({value: error}))  # type: ignore[misc]


def test_what_came_behind_a_refused_batch_is_sent_after_it() -> None:
    harness = SendsHarness()
    harness.send(b"1", b"2", b"bad", b"3", b"4", b"5")
    first = harness.batching[0]
    first.report(b"1")
    # The batch of 2, bad and 3 is refused; 4 and 5 are behind it.
    first.report(b"2", TOO_LARGE)
    first.is_over = True
    harness.send(b"6")
    for value in (b"bad", b"3"):
        first.report(value, TOO_LARGE)
    for value in (b"5", b"4"):
        first.report(value, PURGED)
    assert eventually(lambda: len(harness.outcomes) == 7)
    assert harness.log == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert [value for value, error in harness.outcomes.items() if error is not None] == [b"bad"]
    assert harness.refused_bytes is None
    assert sorted(harness.single.reports) == [b"2", b"3", b"bad"], "only the refused batch is sent one by one"
    harness.send(b"7")
    assert harness.log[-1] == b"7"


def test_a_send_to_a_producer_that_has_stopped_waits_for_the_next_one() -> None:
    harness = SendsHarness()
    harness.send(b"1", b"bad")
    harness.batching[0].is_over = True
    harness.send(b"2")  # Before the report of the refusal is read.
    harness.batching[0].report(b"1", TOO_LARGE)
    harness.batching[0].report(b"bad", TOO_LARGE)
    assert eventually(lambda: len(harness.outcomes) == 3)
    assert harness.log == [b"1", b"2"]


def test_a_producer_that_no_refusal_has_stopped_is_not_replaced() -> None:
    harness = SendsHarness()
    harness.send(b"1")
    harness.batching[0].report(b"1", FATAL)
    assert eventually(lambda: harness.outcomes == {b"1": FATAL})
    assert len(harness.batching) == 1


def test_a_batch_that_is_too_large_only_as_a_whole_is_named_by_its_size() -> None:
    harness = SendsHarness()
    harness.send(b"12", b"345")
    for value in (b"12", b"345"):
        harness.batching[0].report(value, TOO_LARGE)
    harness.send(b"6")
    assert eventually(lambda: len(harness.outcomes) == 3)
    assert (harness.log, harness.refused_bytes) == ([b"12", b"345", b"6"], 5)


def test_a_recovery_that_cannot_go_on_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds would wait forever, without a line in the log."""
    harness = SendsHarness()
    stuck = Timeout("the producer does not close")

    def renew(_: object) -> None:
        raise stuck

    monkeypatch.setattr(harness.sends, "_renew", renew)
    harness.send(b"bad")
    harness.batching[0].report(b"bad", TOO_LARGE)
    assert eventually(lambda: harness.failures == [stuck])


def test_other_failures_are_reported_at_once() -> None:
    harness = SendsHarness()
    harness.send(b"1")
    late = refusal(KafkaError._MSG_TIMED_OUT)
    harness.batching[0].report(b"1", late)
    assert harness.outcomes == {b"1": late}


@pytest.mark.parametrize("code", [KafkaError._UNKNOWN_PARTITION, KafkaError.MSG_SIZE_TOO_LARGE])
def test_a_dead_letter_is_not_sent_on_the_thread_that_reads_reports(code: int) -> None:
    """Where the buffer is full it would wait for room that only itself can make."""
    partition, in_flight = TopicPartition("orders", 0), InFlight()
    in_flight.assign([partition])
    producer: Any = StubProducer([])
    failures: list[BaseException] = []
    consumer: Any = None
    sends = OrderedSends(lambda: producer, lambda: producer, lambda _: None, failures.append)
    committer = AtLeastOnce(consumer, sends, in_flight, failures.append)
    in_flight.add(read_new(Message(*partition, 4)))
    job = in_flight.start()
    assert job is not None
    committer.record_finished(job, [Send("out", b"bad")], lambda _: Send("dlq", b"letter"))
    for _ in range(2):
        if b"bad" not in producer.reported:
            producer.report(b"bad", refusal(code))
        assert eventually(lambda: b"letter" in producer.reports or b"bad" not in producer.reported)
    assert current_thread().name not in producer.threads[1:]
    producer.report(b"letter")
    assert eventually(lambda: len(in_flight) == 0)
    assert failures == []
