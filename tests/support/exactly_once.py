"""A copying job that is killed again and again, together with its node: every record must come out exactly once.

The input holds numbers in committed transactions, and garbage in aborted ones in between. Workers (`copy_worker.py`)
copy it to the output; a read_committed consumer watches the output through all kills.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from support.groups import NODE_SETTINGS as GROUP_SETTINGS
from support.groups import fetch_offsets
from support.node import Node
from support.raw import Raw, fetch_request

WORKER = Path(__file__).parent / "copy_worker.py"
INPUT, OUTPUT, GROUP = "input", "output", "copiers"
PARTITIONS = 4
KEYS = 64
STALL_SECONDS_MAX = 45.0
NONSENSE = b"aborted"
NO_NUMBER = -1

NODE_SETTINGS = {
    **GROUP_SETTINGS,
    "group.consumer.session.timeout.ms": "1500",
    "transaction.state.log.num.partitions": "4",
}


@dataclass(frozen=True)
class Plan:
    """One run; the same seed gives the same order of kills."""

    records: int
    worker_kills: int
    node_kills: int
    workers: int = 1
    protocol: str = "range"
    seed: int = 1
    batch_records: int = 200

    def kills(self) -> list[str]:
        kinds = ["worker"] * self.worker_kills + ["node"] * self.node_kills
        random.Random(self.seed).shuffle(kinds)
        return kinds


@dataclass
class Tally:
    copied: int = 0
    worker_kills: int = 0
    node_kills: int = 0
    worker_ends: int = 0
    """Workers that exited by themselves, fenced or removed from their group."""
    aborted: int = 0
    """Records in the output that only a read_uncommitted consumer sees."""
    seconds: float = 0.0
    stalls: list[float] = field(default_factory=list)
    """How long after each kill the next record came out."""


class Crew:
    """The workers; one that exits is replaced."""

    def __init__(self, node: Node, plan: Plan, journal: Path) -> None:
        self._plan = plan
        self._bootstrap = node.bootstrap
        self._journal = journal
        self._workers = [self._start(number) for number in range(plan.workers)]
        self.ended = 0

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        words = [self._bootstrap, INPUT, OUTPUT, GROUP, f"copier-{number}", self._plan.protocol]
        words.append(str(self._plan.batch_records))
        with self._journal.open("ab") as journal:
            return subprocess.Popen([sys.executable, str(WORKER), *words], stdin=subprocess.DEVNULL, stderr=journal)

    def kill(self, number: int) -> None:
        self._end(number)
        self._workers[number] = self._start(number)

    def replace_ended(self) -> None:
        for number, worker in enumerate(self._workers):
            if worker.poll() is not None:
                self.ended += 1
                self._workers[number] = self._start(number)

    def stop(self) -> None:
        for number in range(len(self._workers)):
            self._end(number)

    def _end(self, number: int) -> None:
        self._workers[number].kill()
        self._workers[number].wait()

    def journal(self) -> str:
        """The workers' last output, and where they are now."""
        for worker in self._workers:
            worker.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        return self._journal.read_text()[-2000:]


class Watcher:
    """Reads the committed records of the output as they come, through every crash of the node."""

    def __init__(self, bootstrap: str) -> None:
        self.seen: list[list[tuple[int, int]]] = [[] for _ in range(PARTITIONS)]
        """By partition: key and number of each record, in order of arrival."""
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "watcher",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(OUTPUT, partition, 0) for partition in range(PARTITIONS)])
        self._thread = threading.Thread(target=self._run, name="watcher")
        self._thread.start()

    @property
    def count(self) -> int:
        return sum(map(len, self.seen))

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(1000, timeout=0.05):
                if message.error() is None:
                    value = message.value()
                    number = int(value) if value.isdigit() else NO_NUMBER
                    self.seen[message.partition()].append((int(message.key()), number))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()


def run(node: Node, plan: Plan, progress: Callable[[Tally], None] | None = None) -> Tally:
    """Copy with kills on a running node; raises AssertionError when a record is lost, duplicated or out of order."""
    dice = random.Random(plan.seed)
    tally = Tally()
    with Raw(node.port) as raw:
        raw.create_topic(INPUT, PARTITIONS)
        raw.create_topic(OUTPUT, PARTITIONS, segment_bytes="500000")
    write_input(node.bootstrap, plan.records)
    watcher = Watcher(node.bootstrap)
    crew = Crew(node, plan, node.journal_path.with_name("workers.txt"))
    began = time.monotonic()
    try:
        kills = plan.kills()
        for index, kind in enumerate(kills):
            _wait_for(watcher, crew, plan.records * (index + 1) // (len(kills) + 2))
            # Anywhere in a transaction, not just after the commit that was seen.
            time.sleep(dice.uniform(0.0, 0.1))
            if kind == "node":
                node.restart(crash=True)
                tally.node_kills += 1
            else:
                crew.kill(dice.randrange(plan.workers))
                tally.worker_kills += 1
            tally.stalls.append(_wait_for(watcher, crew, min(watcher.count + 1, plan.records)))
            tally.copied = watcher.count
            if progress is not None:
                progress(tally)
        _wait_for(watcher, crew, plan.records)
        tally.seconds = time.monotonic() - began
        # Gives a duplicate record time to arrive.
        time.sleep(0.5)
    finally:
        crew.stop()
        watcher.stop()
    tally.worker_ends, tally.copied = crew.ended, watcher.count
    check(node, plan, watcher, tally)
    return tally


def _wait_for(watcher: Watcher, crew: Crew, count: int) -> float:
    """Wait until this many records came out; returns how long that took."""
    began = last = time.monotonic()
    before = watcher.count
    while (seen := watcher.count) < count:
        crew.replace_ended()
        if seen > before:
            before, last = seen, time.monotonic()
        stalled = time.monotonic() - last
        assert stalled < STALL_SECONDS_MAX, f"nothing comes out after {seen} records: {crew.journal()}"
        time.sleep(0.005)
    return time.monotonic() - began


def write_input(bootstrap: str, records: int) -> None:
    """Numbers under keys, each key in one partition; between them aborted transactions."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": "filler", "linger.ms": 2, "log_level": 0}
    )
    producer.init_transactions(30.0)
    per_transaction = max(records // 20, 1)
    for first in range(0, records, per_transaction):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(INPUT, NONSENSE, b"0", partition)
        producer.flush(30.0)
        producer.abort_transaction(30.0)
        producer.begin_transaction()
        for number in range(first, min(first + per_transaction, records)):
            key = number % KEYS
            while True:
                try:
                    producer.produce(INPUT, b"%d" % number, b"%d" % key, key % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.commit_transaction(30.0)


def check(node: Node, plan: Plan, watcher: Watcher, tally: Tally) -> None:
    check_copy(plan.records, watcher.seen)
    with Raw(node.port) as raw:
        for partition in range(PARTITIONS):
            # Markers are records as well, but not numbers.
            written = sum((each.value or b"").isdigit() for each in raw.read_all(OUTPUT, partition))
            tally.aborted += written - len(watcher.seen[partition])
            source = raw.call(fetch_request(INPUT, partition, wait_ms=0), 12).responses[0].partitions[0]
            # The input ends with the marker of its last transaction, which a reader need not step over.
            committed = fetch_offsets(raw, GROUP)[INPUT, partition]
            assert source.high_watermark - 1 <= committed <= source.high_watermark


def check_copy(records: int, seen: list[list[tuple[int, int]]]) -> None:
    """Every number once, in the partition of its key, in the order of the input."""
    numbers = sorted(number for each in seen for _, number in each)
    assert not numbers or numbers[0] != NO_NUMBER, "a record of an aborted transaction came out"
    doubled = len(numbers) - len(set(numbers))
    assert doubled == 0, f"{doubled} records are there twice"
    missing = set(range(records)) - set(numbers)
    assert not missing, f"{len(missing)} records are missing, first {sorted(missing)[:5]}"
    assert len(numbers) == records, "there are records that were never written"
    for partition, each in enumerate(seen):
        newest: dict[int, int] = {}
        for key, number in each:
            assert key == number % KEYS, f"{number} has changed its key to {key}"
            assert key % PARTITIONS == partition, f"{number} has changed its partition to {partition}"
            assert newest.get(key, NO_NUMBER) < number, f"key {key}: {number} came after {newest[key]}: out of order"
            newest[key] = number
