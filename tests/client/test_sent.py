"""A cheap future behaves like any other, also when the answer and the question come at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import CancelledError, as_completed, wait

import pytest

from millpond import Delivery, SendFailed
from millpond.client.sent import Sent

PLACE = Delivery("orders", 0, 7, 0)


def test_fulfilled_before_anybody_asks() -> None:
    sent = Sent()
    assert not sent.done()
    sent.fulfil(PLACE)
    assert sent.done()
    assert sent.result(0) == PLACE
    assert sent.exception(0) is None
    heard: list[Delivery] = []
    sent.add_done_callback(lambda each: heard.append(each.result()))
    assert heard == [PLACE]


def test_failed_before_anybody_asks() -> None:
    sent = Sent()
    sent.fail(SendFailed("no"))
    with pytest.raises(SendFailed):
        sent.result(0)
    assert isinstance(sent.exception(0), SendFailed)


@pytest.mark.parametrize("fails", [False, True])
def test_somebody_waits_already(fails: bool) -> None:
    sent = Sent()
    heard: list[Sent] = []
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
    sent = Sent()
    assert sent.cancel()
    sent.fulfil(PLACE)
    with pytest.raises(CancelledError):
        sent.result(0)
    late = Sent()
    late.fulfil(PLACE)
    assert not late.cancel()


def test_the_standard_library_s_tools_take_it() -> None:
    sents = [Sent() for _ in range(3)]
    sents[0].fulfil(PLACE)
    threading.Timer(0.05, lambda: [each.fulfil(PLACE) for each in sents[1:]]).start()
    assert len(wait(sents, 5).done) == 3
    assert len(list(as_completed(sents, 5))) == 3

    async def main() -> Delivery:
        sent = Sent()
        threading.Timer(0.05, lambda: sent.fulfil(PLACE)).start()
        return await asyncio.wrap_future(sent)

    assert asyncio.run(main()) == PLACE


def test_asking_and_answering_at_the_same_moment() -> None:
    for _ in range(300):
        sent = Sent()
        heard: list[Delivery] = []
        gate = threading.Barrier(3)

        def answer(sent: Sent = sent, gate: threading.Barrier = gate) -> None:
            gate.wait()
            sent.fulfil(PLACE)

        def listen(sent: Sent = sent, gate: threading.Barrier = gate, heard: list[Delivery] = heard) -> None:
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
    """In a process of its own, which may hang."""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_signal_may_send_and_ask_while_a_future_is_fulfilled() -> None:
    """One lock is held for a few steps of every report; who came in between on the same thread waited for itself."""
    run_alone("""
import signal
from millpond import Delivery
from millpond.client.sent import Sent

heard = []
signal.signal(signal.SIGALRM, lambda *_: Sent().add_done_callback(heard.append) or heard.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
place = Delivery("orders", 0, 7, 0)
while len(heard) < 100:
    for _ in range(1_000):
        Sent().fulfil(place)
signal.setitimer(signal.ITIMER_REAL, 0)
""")


def test_a_child_of_a_process_that_sends_can_send_too() -> None:
    """The lock may be held by a thread that the child does not have."""
    run_alone("""
import os, signal, threading, time
from millpond import Delivery
from millpond.client.sent import Sent

place = Delivery("orders", 0, 7, 0)

def send():
    while True:
        Sent().fulfil(place)

threading.Thread(target=send, daemon=True).start()
for _ in range(60):
    time.sleep(0.002)
    child = os.fork()
    if not child:
        signal.alarm(10)
        Sent().fulfil(place)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
""")
