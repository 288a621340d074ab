"""The worker's face: decorator, running, stopping."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from millpond import ConfigError, HandlerFailed, Message, Retry, SqliteIds, Timeout, Worker, run_workers, worker
from support.node import eventually


def test_the_decorated_function_is_a_worker_and_still_a_function() -> None:
    @worker("orders", group="billing", delivery="at_least_once", retries=Retry(5), dead_letters="orders.dlq")
    def charge(message: Message) -> int:
        """Charges."""
        return message.offset

    assert isinstance(charge, Worker)
    assert charge(Message("orders", 0, 7)) == 7  # type: ignore[comparison-overlap]
    assert charge.__doc__ == "Charges."
    assert charge.options.dead_letters == "orders.dlq"
    assert charge.stats.processed == 0
    assert not charge.is_running()


@pytest.mark.smoke
def test_started_in_the_background_it_stops_with_the_block(broker) -> None:
    topic = broker.topic(1)
    seen: list[bytes | None] = []
    with Worker(lambda message: seen.append(message.value), topic, group="g", bootstrap=broker.bootstrap) as running:
        with pytest.raises(ConfigError, match="already running"):
            running.run()
        broker.fill(topic, [b"1"])
        assert eventually(lambda: seen == [b"1"])
    assert not running.is_running()


def test_stopping_finishes_what_runs_and_leaves_the_rest(broker) -> None:
    topic, group = broker.topic(1), broker.group()
    broker.fill(topic, [b"1", b"2", b"3"])
    began, seen = threading.Event(), []

    def slow(message: Message) -> None:
        began.set()
        time.sleep(0.3)
        seen.append(message.value)

    running = Worker(slow, topic, group=group).start(broker.bootstrap)
    assert began.wait(60)
    running.stop()
    assert seen == [b"1"]
    Worker(slow, topic, group=group).run(broker.bootstrap, until_idle_s=0.3)
    assert seen == [b"1", b"2", b"3"]


def test_a_handler_that_never_returns_is_left_behind(broker) -> None:
    topic, group = broker.topic(1), broker.group()
    broker.fill(topic, [b"1"])
    gate, began = threading.Event(), threading.Event()

    def stuck(message: Message) -> None:
        began.set()
        gate.wait(300)

    before = set(threading.enumerate())
    running = Worker(stuck, topic, group=group, stop_timeout_s=0.2).start(broker.bootstrap)
    assert began.wait(60)
    with pytest.raises(Timeout):
        running.stop(0.01)

    def is_left() -> bool:
        return not any(each.name.startswith("millpond-worker") for each in set(threading.enumerate()) - before)

    assert eventually(is_left)
    gate.set()
    seen: list[bytes | None] = []
    Worker(lambda message: seen.append(message.value), topic, group=group).run(broker.bootstrap, until_idle_s=0.3)
    assert seen == [b"1"], "its record was not committed"


def test_processed_ids_skip_what_was_done_by_the_id_you_choose(broker, tmp_path: Path) -> None:
    topic = broker.topic(1)
    broker.fill(topic, [b"pay-1", b"pay-2", b"pay-1"])
    store = SqliteIds(tmp_path / "ids.db")
    seen: list[bytes | None] = []
    running = Worker(
        lambda message: seen.append(message.value),
        topic,
        group=broker.group(),
        delivery="exactly_once",
        processed=store,
        record_id=Message.text,
    )
    running.run(broker.bootstrap, until_idle_s=0.3)
    store.close()
    assert seen == [b"pay-1", b"pay-2"]
    assert (running.stats.skipped, running.stats.processed) == (1, 3)


def test_several_workers_in_one_process_end_together(broker) -> None:
    good, bad = broker.topic(1), broker.topic(1)
    seen: list[bytes | None] = []

    def fail(message: Message) -> None:
        raise ValueError("bad")

    fine = Worker(lambda message: seen.append(message.value), good, group=broker.group())
    broker.fill(good, [b"1"])
    broker.fill(bad, [b"1"])
    with pytest.raises(HandlerFailed, match="bad"):
        run_workers(fine, Worker(fail, bad, group=broker.group()), bootstrap=broker.bootstrap)
    assert not fine.is_running()


def test_sigterm_ends_several_workers(broker) -> None:
    topic = broker.topic(1)
    script = (
        "from millpond import Worker, run_workers\n"
        "def show(text: str) -> None: print(text + chr(10), end='')\n"
        f"both = [Worker(show, {topic!r}, group=group) for group in 'ab']\n"
        f"run_workers(*both, bootstrap={broker.bootstrap!r})\n"
        "print('ended', flush=True)"
    )
    broker.fill(topic, [b"hello"])
    process = subprocess.Popen([sys.executable, "-u", "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in "ab"] == ["hello\n", "hello\n"]
        os.kill(process.pid, signal.SIGTERM)
        assert process.stdout.readline() == "ended\n"
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
