"""Workers under attack: handlers that exit or forward our headers, stores and clocks that fail."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from client.conftest import Cluster
from millpond import Message, Producer, Retry, Send, SendFailed, SqliteIds, StoreFailed, Worker
from millpond.client import engine
from millpond.client.dead_letters import read_dead_letter
from millpond.client.retry import IncomingRecord
from support.node import eventually

IDLE_S = 0.4
VALUES = [b"%d" % n for n in range(10)]


# A handler that leaves


class Odd(BaseException):
    """Nobody's Exception."""


@pytest.mark.parametrize("leave", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Odd()])
@pytest.mark.parametrize("is_async", [False, True])
def test_an_exit_in_a_handler_ends_its_worker_after_committing(broker, leave, is_async) -> None:
    topic, group = broker.topic(1), broker.group()
    broker.fill(topic, VALUES)
    seen: list[bytes | None] = []

    def handle(message: Message) -> None:
        if message.value == b"4":
            raise leave
        seen.append(message.value)

    async def handle_async(message: Message) -> None:
        await asyncio.sleep(0)
        handle(message)

    options = {"group": group, "dead_letters": broker.topic(1), "retries": Retry(3)}
    worker = Worker(handle_async if is_async else handle, topic, **options).start(broker.bootstrap)
    assert eventually(lambda: not worker.is_running()), "it hangs"
    with pytest.raises(type(leave)):
        worker.stop()
    assert seen == VALUES[:4]
    Worker(lambda message: seen.append(message.value), topic, group=group).run(broker.bootstrap, until_idle_s=IDLE_S)
    assert seen == VALUES, "what was done is committed, what was not runs again"


def test_sys_exit_in_a_handler_is_the_exit_of_the_program(broker) -> None:
    topic = broker.topic(1)
    broker.fill(topic, [b"1"])
    script = (
        "import sys\nfrom millpond import Worker\n"
        f"Worker(lambda message: sys.exit(7), {topic!r}, group='g-exit').run({broker.bootstrap!r})"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=30).returncode == 7


def test_a_task_of_a_handler_that_leaves_ends_the_worker(broker) -> None:
    topic = broker.topic(1)
    broker.fill(topic, VALUES)

    async def leave() -> None:
        sys.exit(5)

    async def handle(message: Message) -> None:
        inner = asyncio.create_task(leave())
        await asyncio.wait([inner])
        await asyncio.sleep(0.2)

    worker = Worker(handle, topic, group=broker.group(), concurrency=3).start(broker.bootstrap)
    assert eventually(lambda: not worker.is_running())
    with pytest.raises(SystemExit):
        worker.stop()


@pytest.mark.parametrize("whose", ["an inner task", "its own task"])
def test_a_cancelled_task_is_a_failure_of_the_record(broker, whose) -> None:
    topic, letters = broker.topic(1), broker.topic(1)
    broker.fill(topic, VALUES)
    done: list[bytes | None] = []

    async def handle(message: Message) -> None:
        if message.value == b"4":
            task = asyncio.create_task(asyncio.sleep(5)) if whose == "an inner task" else asyncio.current_task()
            assert task is not None
            task.cancel()
            await task if task is not asyncio.current_task() else await asyncio.sleep(1)
        async with asyncio.timeout(5):
            done.append(message.value)

    worker = Worker(handle, topic, group=broker.group(), retries=Retry(2, first_s=0.01), dead_letters=letters)
    worker.run(broker.bootstrap, until_idle_s=IDLE_S)
    assert sorted(done) == sorted(set(VALUES) - {b"4"})
    (letter,) = broker.read(letters)
    assert (letter.value, read_dead_letter(letter).attempts) == (b"4", 2)
    assert "CancelledError" in read_dead_letter(letter).error_type


def test_a_handler_may_stop_its_worker(broker) -> None:
    topic, group = broker.topic(1), broker.group()
    broker.fill(topic, VALUES)
    seen: list[bytes | None] = []

    def handle(message: Message) -> None:
        seen.append(message.value)
        worker.stop()

    # It would be waited for as long if it were waited for by itself.
    worker = Worker(handle, topic, group=group, stop_timeout_s=1000)
    worker.start(broker.bootstrap)
    assert eventually(lambda: not worker.is_running())
    worker.stop()
    assert seen == VALUES[: len(seen)]
    Worker(lambda message: seen.append(message.value), topic, group=group).run(broker.bootstrap, until_idle_s=IDLE_S)
    assert seen == VALUES


def test_a_handler_that_never_returns_does_not_keep_the_process(broker) -> None:
    topic = broker.topic(1)
    broker.fill(topic, [b"1"])
    script = (
        "import time\nfrom millpond import Worker\n"
        "def handle(message) -> None:\n    print('in', flush=True)\n    time.sleep(1000)\n"
        f"Worker(handle, {topic!r}, group='g-stuck', stop_timeout_s=0.5).run({broker.bootstrap!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


# Headers


def test_forwarded_headers_do_not_drop_records(broker) -> None:
    topic, second, third = broker.topic(1), broker.topic(1), broker.topic(1)
    with Producer(broker.bootstrap) as producer:
        for value in VALUES:
            producer.send(topic, value, headers={"trace": b"t-" + value, "retry.policy": "mine"})
    tries: Counter[bytes | None] = Counter()
    seen: dict[bytes | None, Any] = {}

    def forward(message: Message) -> Send:
        tries[message.value] += 1
        if message.value in (b"3", b"4") and tries[message.value] < 3:
            raise ValueError("later")
        return Send(second, message.value, headers=message.headers)

    retries = Retry(4, first_s=0.2, order="none", topics_from_s=0.1, jitter=0)
    Worker(forward, topic, group=broker.group(), retries=retries).run(broker.bootstrap, until_idle_s=1.5)
    assert tries[b"3"] == 3

    def note(message: Message) -> Send:
        seen[message.value] = message.headers
        return Send(third, message.value)

    Worker(note, second, group=broker.group(), retries=retries).run(broker.bootstrap, until_idle_s=IDLE_S)
    assert set(seen) == set(VALUES)
    assert seen[b"3"] == (("trace", b"t-3"), ("retry.policy", b"mine")), "the sender's own, and none of ours"


def test_forged_retry_headers_on_an_ordinary_topic_are_just_headers(broker) -> None:
    topic = broker.topic(1)
    forged = {
        "retry.topic": "other", "retry.partition": "0", "retry.offset": "1", "retry.timestamp": "1",
        "retry.attempts": "99", "retry.due": str(int(time.time() * 1000) + 3_600_000), "retry.group": "other",
    }  # fmt: skip
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"1", headers=forged)
    seen: list[Message] = []
    Worker(seen.append, topic, group=broker.group(), payload=Message).run(broker.bootstrap, until_idle_s=IDLE_S)
    assert [message.header("retry.group") for message in seen] == [b"other"]


def test_a_due_time_from_a_wrong_clock_is_capped_by_the_topics_delay(
    broker: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group = broker.topic(1), broker.group()
    retries = Retry(4, first_s=0.5, order="none", topics_from_s=0.1, jitter=0)
    broker.create(f"{topic}.retry.500ms", 1)
    headers = {
        "retry.topic": topic, "retry.partition": "0", "retry.offset": "1", "retry.timestamp": "1",
        "retry.attempts": "1", "retry.due": str(int(time.time() * 1000) + 10**10), "retry.group": group,
    }  # fmt: skip
    with Producer(broker.bootstrap) as producer:
        producer.send(f"{topic}.retry.500ms", b"1", headers=headers)
    read, read_at, ran_at = engine.read_retried, [], []

    def read_slowly(message: Message) -> IncomingRecord:
        time.sleep(0.3)
        read_at.append(time.monotonic())
        return read(message)

    monkeypatch.setattr(engine, "read_retried", read_slowly)
    with Worker(
        lambda _: ran_at.append(time.monotonic()), topic, group=group, retries=retries, bootstrap=broker.bootstrap
    ):
        assert eventually(lambda: len(ran_at) == 1)
    assert ran_at[0] >= read_at[0] + 0.5, "the delay begins when the record is read, however old the poll is"


def test_a_foreign_record_in_a_retry_topic_is_handled_as_new(broker) -> None:
    topic, letters = broker.topic(1), broker.topic(1)
    retries = Retry(3, first_s=0.2, order="none", topics_from_s=0.1, jitter=0)
    broker.create(f"{topic}.retry.200ms", 1)
    broker.fill(f"{topic}.retry.200ms", [b"by hand"])

    def fail(message: Message) -> None:
        raise ValueError("no")

    worker = Worker(fail, topic, group=broker.group(), retries=retries, dead_letters=letters)
    worker.run(broker.bootstrap, until_idle_s=2.0)
    (letter,) = broker.read(letters)
    assert (letter.value, read_dead_letter(letter).attempts) == (b"by hand", 3)


# Stores


def test_slow_handlers_with_one_sqlite_store_run_one_by_one(
    broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.client.processed_ids.BUSY_SECONDS", 0.1)
    topic, letters = broker.topic(1), broker.topic(1)
    broker.fill(topic, VALUES)
    store = SqliteIds(tmp_path / "ids.db")
    seen: list[bytes | None] = []

    def slow(message: Message) -> None:
        time.sleep(0.1)
        seen.append(message.value)

    options: dict[str, Any] = {"delivery": "exactly_once", "processed": store, "dead_letters": letters}
    worker = Worker(slow, topic, group=broker.group(), concurrency=8, **options)
    worker.run(broker.bootstrap, until_idle_s=IDLE_S)
    store.close()
    assert sorted(filter(None, seen)) == VALUES
    assert (worker.stats.dead, worker.stats.processed) == (0, 10)


def test_a_store_that_another_process_holds_makes_no_dead_letters(
    broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.client.processed_ids.BUSY_SECONDS", 0.1)
    topic, letters = broker.topic(1), broker.topic(1)
    broker.fill(topic, VALUES)
    store, other = SqliteIds(tmp_path / "ids.db"), SqliteIds(tmp_path / "ids.db")
    seen: list[bytes | None] = []
    options: dict[str, Any] = {"delivery": "exactly_once", "processed": store, "dead_letters": letters}
    worker = Worker(lambda message: seen.append(message.value), topic, group=broker.group(), concurrency=4, **options)
    with other.once("held"):
        worker.start(broker.bootstrap)
        time.sleep(1.0)
        assert (seen, worker.stats.dead, worker.is_running()) == ([], 0, True)
    assert eventually(lambda: worker.stats.processed == 10)
    worker.stop()
    store.close()
    other.close()
    assert sorted(filter(None, seen)) == VALUES
    assert worker.stats.dead == 0


class Broken:
    """A store that is gone; `where` says when it shows."""

    def __init__(self, where: str) -> None:
        self.where = where

    def once(self, record_id: str) -> AbstractContextManager[Any]:
        return self._once()

    @contextmanager
    def _once(self) -> Any:
        if self.where == "entering":
            raise ConnectionError("no store")
        yield self
        raise StoreFailed("no store")

    def close(self) -> None: ...


@pytest.mark.parametrize("where", ["entering", "leaving"])
def test_a_store_that_stays_unavailable_stops_the_worker_without_dead_letters(
    broker, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.client.engine.STORE_PAUSE_SECONDS_MAX", 0.02)
    topic, letters, group = broker.topic(1), broker.topic(1), broker.group()
    broker.fill(topic, VALUES)
    options: dict[str, Any] = {"group": group, "delivery": "exactly_once", "dead_letters": letters}
    worker = Worker(lambda message: print(message), topic, processed=Broken(where), retries=Retry(2), **options)
    with pytest.raises(StoreFailed, match="no store"):
        worker.run(broker.bootstrap, until_idle_s=5)
    assert worker.stats.dead == 0
    seen: list[bytes | None] = []
    Worker(lambda message: seen.append(message.value), topic, group=group).run(broker.bootstrap, until_idle_s=IDLE_S)
    assert seen == VALUES


def test_an_unacknowledged_send_with_a_store_makes_no_dead_letter(
    broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, out, letters, group = broker.topic(1), broker.topic(1), broker.topic(1), broker.group()
    broker.fill(topic, VALUES)
    store = SqliteIds(tmp_path / "ids.db")
    options: dict[str, Any] = {
        "group": group,
        "delivery": "exactly_once",
        "processed": store,
        "dead_letters": letters,
    }
    with monkeypatch.context() as slow:
        slow.setattr("millpond.client.engine.SEND_SECONDS", 0.0)
        worker = Worker(lambda message: Send(out, message.value), topic, **options)
        with pytest.raises(TimeoutError):
            worker.run(broker.bootstrap, until_idle_s=5)
        assert worker.stats.dead == 0
    Worker(lambda message: Send(out, message.value), topic, **options).run(broker.bootstrap, until_idle_s=IDLE_S)
    store.close()
    assert {message.value for message in broker.read(out, 10)} == set(VALUES)


def test_several_processes_may_open_a_new_store_at_once(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom millpond import SqliteIds\n"
        "sys.stdin.readline()\nstore = SqliteIds(sys.argv[1])\n"
        "for n in range(20):\n    with store.once(f'{sys.argv[2]}-{n}') as unit: assert unit"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "new.db")]
    several = [subprocess.Popen([*words, str(n)], stdin=subprocess.PIPE) for n in range(5)]
    time.sleep(1.5)
    for each in several:
        assert each.stdin is not None
        each.stdin.write(b"\n")
        each.stdin.close()
    assert [each.wait(60) for each in several] == [0] * 5


def test_a_store_is_opened_while_another_process_writes_to_its_new_file(tmp_path: Path) -> None:
    writer = sqlite3.connect(tmp_path / "new.db", isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    ends = threading.Timer(0.2, writer.rollback)
    ends.start()
    store = SqliteIds(tmp_path / "new.db")
    with store.once("a") as unit:
        assert unit
    store.close()
    ends.join()
    writer.close()


# The cluster


def test_finished_records_are_committed_when_a_poll_fails(broker) -> None:
    topic, group = broker.topic(1), broker.group()
    broker.fill(topic, VALUES)
    seen: list[bytes | None] = []
    enough = threading.Event()

    def handle(message: Message) -> None:
        seen.append(message.value)
        if len(seen) == 10:
            enough.set()

    worker = Worker(handle, topic, group=group, commit_every_s=60).start(broker.bootstrap)
    assert enough.wait(60)
    engine: Any = worker._engine

    def fail(*given: object) -> None:
        raise ConnectionError("from poll")

    engine._consumer.poll = fail
    assert eventually(lambda: not worker.is_running())
    with pytest.raises(ConnectionError, match="from poll"):
        worker.stop()
    Worker(lambda message: seen.append(message.value), topic, group=group).run(broker.bootstrap, until_idle_s=IDLE_S)
    assert seen == VALUES, "nothing runs again"


def test_without_its_dead_letter_topic_a_worker_stops_before_the_record(make_node, monkeypatch) -> None:
    # As if this user were not allowed to create it.
    monkeypatch.setattr("millpond.client.engine.ensure_topics", lambda *_: None)
    node = make_node({"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": "0"})
    cluster = Cluster("own", node.bootstrap)
    topic, group = cluster.topic(1), cluster.group()
    cluster.fill(topic, VALUES)

    def fail(message: Message) -> None:
        if message.value == b"4":
            raise ValueError("bad")

    settings = {"topic.metadata.propagation.max.ms": 500}
    worker = Worker(fail, topic, group=group, dead_letters="absent", settings=settings)
    with pytest.raises(SendFailed, match="absent"):
        worker.run(cluster.bootstrap, until_idle_s=5)
    seen: list[bytes | None] = []
    Worker(lambda message: seen.append(message.value), topic, group=group).run(node.bootstrap, until_idle_s=IDLE_S)
    assert seen == VALUES[4:]
