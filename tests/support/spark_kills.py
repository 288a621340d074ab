"""A whole pipeline under kills: topic in; lake, topic and aggregate out; in the end every row is counted.

The driver is killed with its JVM and all workers, single Python workers are killed, and so is the node. The offsets
that the node acknowledged show what was sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from support.node import Node
from support.topics import create_topic

PARTITIONS = 3
GROUPS = 5
OPENS = datetime(2026, 1, 31, 8, 0, tzinfo=UTC)
RECORDS_A_MINUTE = 200
"""In event time, which is independent of the time that the test takes."""

JOBS_SECONDS_MAX = 240.0
MILLPOND = (sys.executable, "-c", "import sys; from millpond.cli import main; sys.exit(main())")

DECLARATION = """
name = "kills"
checkpoint = "{folder}/pipeline"
trigger = "200 milliseconds"
[source]
bootstrap = "{bootstrap}"
topic = "in"
group = "kills"
options = {{ maxOffsetsPerTrigger = "{batch}" }}
[parse]
format = "json"
schema = "n long, g long, at timestamp"
[archive]
table = "{folder}/lake/rows"
raw = true
partition_by = []
compact_every = 5
[quality]
rules = {{ counted = "n >= 0" }}
to = {{ topic = "out" }}
[aggregate]
time = "at"
window = "1 minute"
watermark = "1 minute"
group_by = ["g"]
measures = {{ rows = "count(*)", total = "sum(n)" }}
to = {{ table = "{folder}/lake/windows" }}
"""


@dataclass(slots=True, frozen=True)
class Plan:
    records: int
    driver_kills: int
    worker_kills: int
    node_kills: int
    seed: int = 1
    batch: int = 400

    def kills(self, chance: random.Random) -> list[str]:
        result = ["driver"] * self.driver_kills + ["worker"] * self.worker_kills + ["node"] * self.node_kills
        chance.shuffle(result)
        return result


@dataclass(slots=True)
class Tally:
    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    rows: int = 0
    windows: int = 0
    seconds: float = 0.0


class Sender:
    """Sends steadily in a thread; `truth` is what was acknowledged, by partition and offset."""

    def __init__(self, node: Node, records: int, a_second: float) -> None:
        self.truth: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        self.faults: list[KafkaError] = []
        self._records = records
        self._a_second = a_second
        self._producer = Producer(
            {"bootstrap.servers": node.bootstrap, "enable.idempotence": True, "log_level": 0, "linger.ms": 5}
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def close(self) -> None:
        """The last records are far enough ahead to close every window before them."""
        self._thread.join()
        late = OPENS + timedelta(minutes=self._records / RECORDS_A_MINUTE + 30)
        for partition in range(PARTITIONS):
            self._send(self._records + partition, late, partition)
        assert not self._producer.flush(60)
        assert not self.faults, self.faults[:3]

    def _run(self) -> None:
        for number in range(self._records):
            self._send(number, OPENS + timedelta(minutes=number / RECORDS_A_MINUTE), number % PARTITIONS)
            self._producer.poll(0)
            if number % 10 == 0:
                time.sleep(10 / self._a_second)
        self._producer.flush(60)

    def _send(self, number: int, at: datetime, partition: int) -> None:
        moment = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        value = json.dumps({"n": number, "g": number % GROUPS, "at": moment}).encode()
        self._producer.produce("in", value, b"key-%d" % number, partition, on_delivery=self._told)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.faults.append(error)
            return
        key, value = message.key(), message.value()
        assert key is not None
        assert value is not None
        self.truth[message.partition() or 0, message.offset() or 0] = (bytes(key), bytes(value))


class Driver:
    """The pipeline as a child process, with everything that it starts."""

    def __init__(self, declaration: Path, *, once: bool = False) -> None:
        self._log = declaration.with_suffix(".log")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*MILLPOND, "pipeline", "run", str(declaration), *(["--once"] if once else [])],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None if it is still running."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        """Kill the driver, its JVM, and every Python process below it, at once."""
        family = self._family()
        for each in family:
            _kill(each)
        psutil.wait_procs(family, 20)
        self._process.wait(60)

    def kill_worker(self, chance: random.Random) -> bool:
        """Kill one Python process that Spark has started; returns whether there was one."""
        workers = [each for each in self._family() if "pyspark" in _words(each) and "java" not in _words(each)]
        if not workers:
            return False
        _kill(chance.choice(workers))
        return True

    def _family(self) -> list[psutil.Process]:
        try:
            top = psutil.Process(self._process.pid)
            return [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)


def run(node: Node, folder: Path, plan: Plan, tell: Callable[[str], None] = print) -> Tally:
    """Run everything; raises AssertionError if a row is missing, duplicated or changed anywhere."""
    begun = time.monotonic()
    chance = random.Random(plan.seed)
    tally = Tally()
    for name in ("in", "out"):
        create_topic(node.bootstrap, name, PARTITIONS)
    declaration = folder / "kills.toml"
    declaration.write_text(DECLARATION.format(folder=folder, bootstrap=node.bootstrap, batch=plan.batch))
    sender = Sender(node, plan.records, plan.records / 30)
    sender.start()
    driver = Driver(declaration)
    tally.starts += 1
    try:
        for kill in plan.kills(chance):
            driver = _moving(node, driver, declaration, tally)
            time.sleep(chance.uniform(0.0, 2.0))
            _strike(kill, node, driver, chance)
            tally.kills[kill] += 1
            tell(f"{sum(tally.kills.values()):3} kills, {tally.starts} starts: {kill}")
        driver = _moving(node, driver, declaration, tally)
    finally:
        driver.kill()
    sender.close()
    _finish(declaration)
    tally.starts += 1
    _check(node, folder, sender, tally)
    tally.seconds = time.monotonic() - begun
    return tally


def _strike(kill: str, node: Node, driver: Driver, chance: random.Random) -> None:
    match kill:
        case "driver":
            driver.kill()
        case "worker":
            driver.kill_worker(chance)
        case _:
            node.restart(crash=True)


def _moving(node: Node, driver: Driver, declaration: Path, tally: Tally) -> Driver:
    """Wait for progress of the pipeline; restart it if it has exited."""
    before = _finished(node)
    deadline = time.monotonic() + JOBS_SECONDS_MAX
    while _finished(node) <= before:
        if not driver.is_running():
            driver = Driver(declaration)
            tally.starts += 1
        assert time.monotonic() < deadline, f"the pipeline does not move: {driver.said()}"
        if before >= 3 * _sent(node):
            break
        time.sleep(0.3)
    return driver


def _finished(node: Node) -> int:
    """The sum of the offsets that the jobs' groups have committed."""
    total = 0
    for group in ("kills", "kills.quality", "kills.aggregate"):
        consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": group, "log_level": 0})
        places = consumer.committed([TopicPartition("in", number) for number in range(PARTITIONS)], 20)
        total += sum(max(each.offset, 0) for each in places)
        consumer.close()
    return total


def _sent(node: Node) -> int:
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "ends", "log_level": 0})
    ends = [consumer.get_watermark_offsets(TopicPartition("in", number), 20)[1] for number in range(PARTITIONS)]
    consumer.close()
    return sum(ends)


def _finish(declaration: Path) -> None:
    """Process what is left, in a run that ends by itself."""
    last = Driver(declaration, once=True)
    try:
        assert last.wait(JOBS_SECONDS_MAX) == 0, last.said()
    finally:
        last.kill()


def _check(node: Node, folder: Path, sender: Sender, tally: Tally) -> None:
    from deltalake import DeltaTable

    rows = DeltaTable(str(folder / "lake" / "rows")).to_pyarrow_table().to_pylist()
    result = {(row["_partition"], row["_offset"]): (row["_key"], row["value"]) for row in rows}
    assert len(rows) == len(result), f"{len(rows) - len(result)} rows of the lake are doubled"
    assert result == sender.truth, _difference(result, sender.truth)
    tally.rows = len(rows)
    copied = Counter(read_committed(node, "out"))
    expected = Counter(json.loads(value)["n"] for _, value in sender.truth.values())
    assert copied == expected, f"topic: lost {sorted(expected - copied)[:5]}, doubled {sorted(copied - expected)[:5]}"
    windows: dict[tuple[datetime, int], list[int]] = defaultdict(list)
    last = max(datetime.fromisoformat(json.loads(value)["at"]) for _, value in sender.truth.values())
    for _, value in sender.truth.values():
        told = json.loads(value)
        minute = datetime.fromisoformat(told["at"]).replace(second=0, microsecond=0)
        if minute < last - timedelta(minutes=5):
            windows[minute, told["g"]].append(told["n"])
    table = DeltaTable(str(folder / "lake" / "windows")).to_pyarrow_table().to_pylist()
    closed = {(row["window_start"], row["g"]): (row["rows"], row["total"]) for row in table}
    assert len(closed) == len(table), "a window was written twice"
    assert closed == {place: (len(numbers), sum(numbers)) for place, numbers in windows.items()}
    tally.windows = len(closed)


def _difference(found: dict[tuple[int, int], object], truth: dict[tuple[int, int], object] | object) -> str:
    assert isinstance(truth, dict)
    missing = sorted(truth.keys() - found.keys())[:5]
    more = sorted(found.keys() - truth.keys())[:5]
    changed = [place for place in found.keys() & truth.keys() if found[place] != truth[place]][:5]
    return f"lake: missing {missing}, too many {more}, changed {changed}"


def read_committed(node: Node, topic: str) -> list[int]:
    """The numbers of all records that a read_committed consumer sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "check",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    result: list[int] = []
    ended: set[int] = set()
    deadline = time.monotonic() + 60
    while len(ended) < PARTITIONS and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(message.partition() or 0)
            continue
        result.append(json.loads(message.value() or b"")["n"])
    consumer.close()
    assert len(ended) == PARTITIONS, "not everything could be read"
    return result
