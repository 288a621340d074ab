"""A cheap future behaves like any other, also when the answer and the question come at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, _base, as_completed, wait
from types import FrameType
from typing import Any

import pytest

from client.refusal import Refusal
from millpond import Delivery, SendFailed
from millpond.client import send_future
from millpond.client.pending_reports import PendingReports
from millpond.client.reachability import Reachability
from millpond.client.send_future import SendFuture
from support.node import eventually

PLACE = Delivery("orders", 0, 7, 0)


class Report:
    """What librdkafka says of a record."""

    def partition(self) -> int:
        return PLACE.partition

    def offset(self) -> int | None:
        return PLACE.offset

    def timestamp(self) -> tuple[int, int]:
        return 1, PLACE.timestamp_ms


def sent_record() -> SendFuture:
    pending_reports = PendingReports(Reachability({}))
    sent = SendFuture("orders", pending_reports)
    pending_reports.records.add(sent)
    return sent


def report(sent: SendFuture, *, fails: bool = False) -> None:
    refusal: Any = Refusal() if fails else None
    said: Any = Report()
    sent(refusal, said)


def test_fulfilled_before_anybody_asks() -> None:
    sent = SendFuture()
    assert not sent.done()
    sent.fulfil(PLACE)
    assert sent.done()
    assert sent.result(0) == PLACE
    assert sent.exception(0) is None
    heard: list[Delivery] = []
    sent.add_done_callback(lambda each: heard.append(each.result()))
    assert heard == [PLACE]


def test_failed_before_anybody_asks() -> None:
    sent = SendFuture()
    sent.fail(SendFailed("no"))
    with pytest.raises(SendFailed):
        sent.result(0)
    assert isinstance(sent.exception(0), SendFailed)


@pytest.mark.parametrize("fails", [False, True])
def test_somebody_waits_already(fails: bool) -> None:
    sent = SendFuture()
    heard: list[SendFuture] = []
    sent.add_done_callback(heard.append)  # type: ignore[arg-type]
    with pytest.raises(TimeoutError):
        sent.result(0.01)
    threading.Timer(0.05, lambda: sent.fail(SendFailed("no")) if fails else sent.fulfil(PLACE)).start()
    if fails:
        assert isinstance(sent.exception(5), SendFailed)
    else:
        assert sent.result(60) == PLACE
    assert heard == [sent]


def test_cancelling() -> None:
    sent = SendFuture()
    assert sent.cancel()
    sent.fulfil(PLACE)
    with pytest.raises(CancelledError):
        sent.result(0)
    late = SendFuture()
    late.fulfil(PLACE)
    assert not late.cancel()


def test_the_standard_library_s_tools_take_it() -> None:
    sents = [SendFuture() for _ in range(3)]
    sents[0].fulfil(PLACE)
    threading.Timer(0.05, lambda: [each.fulfil(PLACE) for each in sents[1:]]).start()
    assert len(wait(sents, 5).done) == 3
    assert len(list(as_completed(sents, 5))) == 3

    async def main() -> Delivery:
        sent = SendFuture()
        threading.Timer(0.05, lambda: sent.fulfil(PLACE)).start()
        return await asyncio.wrap_future(sent)

    assert asyncio.run(main()) == PLACE


def test_asking_and_answering_at_the_same_moment() -> None:
    for _ in range(300):
        sent = SendFuture()
        heard: list[Delivery] = []
        gate = threading.Barrier(3)

        def answer(sent: SendFuture = sent, gate: threading.Barrier = gate) -> None:
            gate.wait()
            sent.fulfil(PLACE)

        def listen(sent: SendFuture = sent, gate: threading.Barrier = gate, heard: list[Delivery] = heard) -> None:
            gate.wait()
            sent.add_done_callback(lambda each: heard.append(each.result()))

        threads = [threading.Thread(target=answer), threading.Thread(target=listen)]
        for thread in threads:
            thread.start()
        gate.wait()
        assert sent.result(60) == PLACE
        for thread in threads:
            thread.join()
        assert heard == [PLACE]


def run_alone(program: str) -> None:
    """In a separate process, which may hang."""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_signal_may_send_and_ask_while_a_future_is_fulfilled() -> None:
    """One lock is held for a few steps of every report; who came in between on the same thread waited for itself."""
    run_alone("""
import signal
from millpond import Delivery
from millpond.client.send_future import SendFuture

heard = []
signal.signal(signal.SIGALRM, lambda *_: SendFuture().add_done_callback(heard.append) or heard.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
place = Delivery("orders", 0, 7, 0)
while len(heard) < 100:
    for _ in range(1_000):
        SendFuture().fulfil(place)
signal.setitimer(signal.ITIMER_REAL, 0)
""")


def test_a_child_of_a_process_that_sends_can_send_too() -> None:
    """The lock may be held by a thread that the child does not have."""
    run_alone("""
import os, signal, threading, time
from millpond import Delivery
from millpond.client.send_future import SendFuture

place = Delivery("orders", 0, 7, 0)

def send():
    while True:
        SendFuture().fulfil(place)

threading.Thread(target=send, daemon=True).start()
for _ in range(60):
    time.sleep(0.002)
    child = os.fork()
    if not child:
        signal.alarm(10)
        SendFuture().fulfil(place)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
""")


def lines_of(act: Callable[[], None], at: int, interrupt: Callable[[], None]) -> int:
    """Do it, and before its line number `at` in the module of the future something else; how many lines it has."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename != send_future.__file__:
            return None
        if event == "line":
            count += 1
            if count == at:
                sys.settrace(None)
                frame.f_trace = None
                interrupt()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("is_asked_before", [False, True])
@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize("interrupted", ["the report", "who asks"])
def test_a_report_and_a_question_in_every_order_of_their_steps(
    fails: bool, is_asked_before: bool, cancels: bool, interrupted: str
) -> None:
    """Whoever interrupts whom, and where: each callback is called once, and a cancelled one is nothing else."""
    for at in range(1, 200):
        sent = sent_record()
        heard: list[str] = []

        def outcome(sent: SendFuture) -> str:
            if sent.cancelled():
                return "cancelled"
            return "failed" if sent.exception(0) else f"at {sent.result(0).offset}"

        def hear(_: object, sent: SendFuture = sent, heard: list[str] = heard) -> None:
            heard.append(outcome(sent))

        if is_asked_before:
            sent.add_done_callback(hear)
        cancelled: list[bool] = []

        def ask(sent: SendFuture = sent, cancelled: list[bool] = cancelled, hear: Any = hear) -> None:
            is_too_late = sent.done()
            sent.add_done_callback(hear)
            cancelled.append(cancels and sent.cancel())
            assert not (is_too_late and cancelled[0])

        def tell(sent: SendFuture = sent) -> None:
            report(sent, fails=fails)

        act, interrupt = (tell, ask) if interrupted == "the report" else (ask, tell)
        lines = lines_of(act, at, interrupt)
        if lines < at:
            interrupt()
        said = "cancelled" if cancelled[0] else "failed" if fails else f"at {PLACE.offset}"
        assert sent.done()
        assert outcome(sent) == said
        assert heard == [said] * (1 + is_asked_before), f"at line {at}"
        assert not sent._pending_reports.records  # type: ignore[union-attr]
        if lines < at:
            assert at > 5
            return
    raise AssertionError("it has no end")


def wait_and_look(sent: SendFuture) -> object:
    try:
        return sent.result()
    except SendFailed as failure:
        return failure


def asking(
    ask: Callable[[SendFuture], object], sent: SendFuture, trace: Callable[..., Any]
) -> tuple[threading.Thread, list[object]]:
    """A thread that calls `ask` under `trace`, line by line, and the results."""
    said: list[object] = []

    def waits() -> None:
        sys.settrace(trace)
        said.append(ask(sent))

    waiting = threading.Thread(target=waits, daemon=True)
    waiting.start()
    return waiting, said


def sleeps(sent: SendFuture) -> bool:
    return sent._real_condition is not None and bool(sent._real_condition._waiters)  # type: ignore[attr-defined]


@pytest.mark.parametrize("fails", [False, True])
def test_waiting_for_several_futures_waits_for_each(fails: bool) -> None:
    """One that was done before must not count twice."""
    early, late = sent_record(), sent_record()
    early.add_done_callback(lambda _: None)
    report(early, fails=fails)
    heard: list[int] = []
    waiting = threading.Thread(target=lambda: heard.append(len(wait([early, late], 60).done)))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    report(late, fails=fails)
    waiting.join(60)
    assert heard == [2]


def test_where_it_is_stays_with_the_record() -> None:
    sent = sent_record()
    report(sent)
    assert sent.result() == PLACE
    assert sent.result() is sent.result()
    assert isinstance(sent.exception(0), type(None))


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("ask", [SendFuture.exception, wait_and_look, SendFuture.cancel])
def test_a_waiter_is_woken_whenever_the_report_comes(
    ask: Callable[[SendFuture], object], fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome arrives before each line of the waiter in turn; it never sleeps forever."""
    monkeypatch.setattr(send_future, "LOOK_AGAIN_SECONDS", 1_000.0)  # A waiter woken by that alone is late.
    for at in range(1, 100):
        sent = sent_record()
        heard: list[bool] = []
        sent.add_done_callback(lambda sent, heard=heard: heard.append(sent.cancelled()))  # type: ignore[misc]
        count = 0
        reporting = threading.Thread(target=report, args=(sent,), kwargs={"fails": fails}, daemon=True)

        def trace(
            frame: FrameType, event: str, _: object, sent: SendFuture = sent, at: int = at, to: Any = reporting
        ) -> Any:
            nonlocal count
            if to.ident is not None or frame.f_code.co_filename not in (send_future.__file__, _base.__file__):
                return None
            if event == "line" and to.ident is None:
                count += 1
                if count == at:
                    sys.settrace(None)
                    frame.f_trace = None
                    to.start()
                    while sent._outcome is None:
                        threading.Event().wait(0.001)
                    to.join(0.005)  # It goes on as far as it can: to a lock that is held here, or to its end.
            return trace

        waiting, said = asking(ask, sent, trace)
        assert eventually(
            lambda to=reporting, asking=waiting, sent=sent: to.ident or sleeps(sent) or not asking.is_alive()  # type: ignore[misc]
        )
        is_over = reporting.ident is None
        if is_over:
            reporting.start()
        waiting.join(30)
        assert not waiting.is_alive(), f"at line {at}"
        reporting.join(30)
        assert heard == [ask is SendFuture.cancel and said == [True]], f"at line {at}"
        assert sent.cancelled() == heard[0]
        if is_over:
            assert at > 5
            return
    raise AssertionError("it has no end")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("ask", [SendFuture.exception, wait_and_look])
def test_a_waiter_notices_a_report_that_it_reads_itself(
    ask: Callable[[SendFuture], object], fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal on the thread that waits, before each of its lines: who would wake it has been there already."""
    monkeypatch.setattr(send_future, "LOOK_AGAIN_SECONDS", 0.01)
    files = (send_future.__file__, _base.__file__, threading.__file__)
    for at in range(1, 60):
        sent = sent_record()
        count = 0

        def trace(frame: FrameType, event: str, _: object, sent: SendFuture = sent, at: int = at) -> Any:
            nonlocal count
            if frame.f_code.co_filename not in files:
                return None
            if event == "line":
                count += 1
                if count == at:
                    sys.settrace(None)
                    frame.f_trace = None
                    report(sent, fails=fails)
            return trace

        waiting, said = asking(ask, sent, trace)
        waiting.join(30)
        assert not waiting.is_alive(), f"at line {at}"
        assert isinstance(said[0], SendFailed) if fails else said == [PLACE if ask is wait_and_look else None]
