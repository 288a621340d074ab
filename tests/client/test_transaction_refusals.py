"""What a transaction does about Sends that the cluster refuses."""

from __future__ import annotations

import logging
import time
from functools import partial
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from client.stub_transactions import StubTransactions
from millpond import Fenced, Message, Send, SendFailed, Timeout
from millpond.base.ids import TopicPartition
from millpond.client import transactions
from millpond.client.in_flight import InFlight
from millpond.client.retry import read_new
from millpond.client.transactions import Transactional

PARTITION = TopicPartition("orders", 0)


class CommitterHarness:
    """A worker's transactions with a stub producer; `letters` has the values of refused Sends."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        stub: StubTransactions,
        timeout_s: float = 10.0,
        instance: str | None = None,
    ) -> None:
        monkeypatch.setattr(transactions, "make", lambda *_: stub)
        self.stub, self.in_flight = stub, InFlight()
        self.in_flight.assign([PARTITION])
        consumer: Any = SimpleNamespace(raw=SimpleNamespace(consumer_group_metadata=lambda: None))
        self.committer = Transactional(
            consumer, self.in_flight, bootstrap="x:1", group="g", instance=instance, timeout_s=timeout_s, settings={}
        )
        self.letters: list[bytes] = []

    def finish(self, sends: list[Send]) -> None:
        for offset, each in enumerate(sends):
            self.in_flight.add(read_new(Message(*PARTITION, offset)))
            job = self.in_flight.start()
            assert job is not None
            self.committer.record_finished(job, [each], partial(self._refused, each))

    def commit_all(self) -> None:
        """Commit until nothing is left, as a worker does."""
        for _ in range(100):
            self.committer.commit_finished()
            if not self.committer._outbox:
                return

    def _refused(self, refused: Send, _: SendFailed) -> Send:
        self.letters.append(refused.value)
        return Send("dlq", b"letter")


def sends(count: int, **odd: Send) -> list[Send]:
    result = [Send("out", b"%d" % n, partition=0) for n in range(count)]
    for name, each in odd.items():
        result[int(name.removeprefix("at_"))] = each
    return result


LARGE = Send("out", b"x" * 300, headers=[("as", b"a handler's")], partition=0)
MISPLACED = Send("out", b"misplaced", partition=77)


def test_two_different_refusals_replace_only_their_own_records(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = CommitterHarness(monkeypatch, StubTransactions(record_bytes_max=200))
    harness.finish(sends(20, at_3=LARGE, at_9=MISPLACED))
    harness.commit_all()
    assert sorted(harness.letters) == sorted([LARGE.value, MISPLACED.value])
    # In the order of their records, letters in the place of what they replace.
    assert harness.stub.committed == [b"letter" if n in (3, 9) else b"%d" % n for n in range(20)]


def test_a_refused_send_in_a_backlog_is_found_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = CommitterHarness(monkeypatch, StubTransactions(record_bytes_max=200))
    harness.finish(sends(6_000, at_700=LARGE))
    harness.commit_all()
    assert harness.letters == [LARGE.value]
    assert len(harness.stub.committed) == 6_000
    # Sent one by one, it would take 700 flushes to find it, and 6,000 to commit the transaction.
    assert harness.stub.flushes < 200


def test_a_batch_that_is_too_large_as_a_whole_is_sent_in_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = CommitterHarness(monkeypatch, StubTransactions(record_bytes_max=200, batch_bytes_max=1_000))
    harness.finish(sends(2_000))
    harness.commit_all()
    assert (harness.letters, len(harness.stub.committed)) == ([], 2_000)
    begun = harness.stub.begun
    harness.in_flight.assign([PARTITION])
    harness.finish(sends(2_000, at_77=LARGE))
    harness.commit_all()
    assert (harness.letters, len(harness.stub.committed)) == ([LARGE.value], 4_000)
    assert harness.stub.begun - begun < 30


def test_a_worker_whose_every_send_is_refused_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = CommitterHarness(monkeypatch, StubTransactions(record_bytes_max=200))
    harness.finish([LARGE] * 300)
    harness.commit_all()
    assert len(harness.letters) == 300
    assert harness.stub.committed == [b"letter"] * 300


def test_nothing_is_committed_before_it_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = CommitterHarness(monkeypatch, StubTransactions(record_bytes_max=200))
    harness.finish(sends(20, at_3=LARGE))
    harness.commit_all()
    assert harness.stub.hasty_commits == 0


class SlowTransactions(StubTransactions):
    """Takes 1 ms to deliver a record, and fences a producer whose transaction is open for too long."""

    timeout_s = 0.4

    def begin_transaction(self) -> None:
        super().begin_transaction()
        self._began = time.monotonic()

    def flush(self, timeout_s: float) -> int:
        until = time.monotonic() + timeout_s
        while self._queue and time.monotonic() < until:
            time.sleep(0.001)
            self._delivered.append(self._queue.pop(0)[1])
        return len(self._queue)

    def commit_transaction(self, timeout_s: float) -> None:
        while self._queue:
            self.flush(timeout_s)
        if time.monotonic() > self._began + self.timeout_s:
            raise KafkaException(KafkaError(KafkaError._FENCED, "fenced", True))
        super().commit_transaction(timeout_s)


def test_a_transaction_ends_before_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = CommitterHarness(monkeypatch, SlowTransactions(record_bytes_max=200), SlowTransactions.timeout_s)
    harness.finish(sends(1_000))
    harness.commit_all()
    assert len(harness.stub.committed) == 1_000


def test_a_fenced_worker_learns_whether_its_transaction_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(StubTransactions):
        def commit_transaction(self, timeout_s: float) -> None:
            time.sleep(0.1)
            raise KafkaException(KafkaError(KafkaError._FENCED, "fenced", True))

    harness = CommitterHarness(monkeypatch, Late(record_bytes_max=200), 0.05)
    harness.finish(sends(1))
    with pytest.raises(Fenced, match="raise transaction_timeout_s"):
        harness.commit_all()
    harness = CommitterHarness(monkeypatch, Late(record_bytes_max=200), 10.0)
    harness.finish(sends(1))
    with pytest.raises(Fenced, match="its own name"):
        harness.commit_all()


class FencedAtAbort(StubTransactions):
    """Its coordinator was killed before it answered; librdkafka asks the next one the same, and must not go on."""

    def __init__(self, code: int) -> None:
        super().__init__(record_bytes_max=200)
        self._code = code
        self.begun_anew = -1
        self._is_fenced = False

    def init_transactions(self, timeout_s: float) -> None:
        self.begun_anew += 1
        self._is_fenced = False
        super().abort_transaction(timeout_s)

    def abort_transaction(self, timeout_s: float) -> None:
        self._is_fenced = self._is_fenced or not self.begun_anew
        if self._is_fenced:
            raise KafkaException(KafkaError(self._code, "fenced", True))
        super().abort_transaction(timeout_s)


@pytest.mark.parametrize("code", [KafkaError._FENCED, KafkaError.INVALID_TXN_STATE])
def test_a_worker_that_cannot_abort_goes_on_with_a_new_producer(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    harness = CommitterHarness(monkeypatch, stub := FencedAtAbort(code))
    harness.finish(sends(20, at_3=LARGE))
    harness.commit_all()
    assert harness.letters == [LARGE.value]
    assert stub.committed == [b"letter" if n == 3 else b"%d" % n for n in range(20)]
    assert stub.begun_anew == 1


def test_a_worker_whose_name_another_may_have_stays_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = CommitterHarness(monkeypatch, stub := FencedAtAbort(KafkaError._FENCED), instance="only")
    harness.finish(sends(20, at_3=LARGE))
    with pytest.raises(Fenced, match="its own name"):
        harness.commit_all()
    assert (stub.committed, stub.begun_anew) == ([], 0)


class Hanging(StubTransactions):
    """The first call of one function never returns, as librdkafka's own timeouts do not cover every wait."""

    def __init__(self, name: str) -> None:
        super().__init__(record_bytes_max=200)
        self.begun_anew = -1
        function, is_first = getattr(self, name), iter([True])

        def hang_once(*arguments: object) -> None:
            if next(is_first, False):
                Event().wait()
            function(*arguments)

        hang_once.__name__ = name
        setattr(self, name, hang_once)

    def init_transactions(self, timeout_s: float) -> None:
        self.begun_anew += 1
        super().abort_transaction(timeout_s)


@pytest.mark.parametrize("name", ["send_offsets_to_transaction", "abort_transaction"])
def test_a_producer_that_hangs_is_replaced_and_its_transaction_repeated(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(transactions, "GRACE_SECONDS", -1.5)
    harness = CommitterHarness(monkeypatch, stub := Hanging(name))
    harness.finish(sends(20, at_3=LARGE))
    harness.commit_all()
    assert stub.committed == [b"letter" if n == 3 else b"%d" % n for n in range(20)]
    assert stub.begun_anew == 1


def test_a_commit_that_hangs_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be done: a new producer would send its records once more."""
    monkeypatch.setattr(transactions, "GRACE_SECONDS", -1.5)
    harness = CommitterHarness(monkeypatch, stub := Hanging("commit_transaction"))
    harness.finish(sends(3))
    with pytest.raises(Timeout, match="hangs in commit_transaction"):
        harness.commit_all()
    assert (stub.begun, stub.begun_anew) == (1, 0)


def test_a_start_that_hangs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "GRACE_SECONDS", -1.5)
    with pytest.raises(Timeout, match="hangs in init_transactions"):
        CommitterHarness(monkeypatch, Hanging("init_transactions"))


def test_a_call_that_keeps_timing_out_is_logged_and_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Away(StubTransactions):
        def commit_transaction(self, timeout_s: float) -> None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "timed out", False, True))

    monkeypatch.setattr(transactions, "WARN_SECONDS", 0.1)
    monkeypatch.setattr(transactions, "RETRY_SECONDS", 0.5)
    caplog.set_level(logging.WARNING, "millpond.client")
    harness = CommitterHarness(monkeypatch, Away(record_bytes_max=200))
    harness.finish(sends(1))
    with pytest.raises(Timeout, match="cannot commit"):
        harness.commit_all()
    assert [each.getMessage().split(":")[0] for each in caplog.records] == ["cannot commit, retrying for up to 0.5 s"]
