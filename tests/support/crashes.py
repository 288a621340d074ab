"""A producer and a consumer that keep working while their node is killed again and again, and a check at the end.

The producer is librdkafka's idempotent one with acks=all: every acknowledged record must be there, at its offset,
once and in order. The consumer, which reads through all crashes, must see the same.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from millpond.wire import messages as m
from support.node import Node
from support.raw import Raw

TOPIC = "numbers"
PARTITIONS = 4
SETTLE_SECONDS = 60.0


@dataclass
class Tally:
    """What happened in one campaign."""

    loops: int = 0
    killed: int = 0
    killed_while_starting: int = 0
    ended_cleanly: int = 0
    acknowledged: int = 0
    read_back: int = 0
    consumed: int = 0
    topics: int = 0
    start_seconds: list[float] = field(default_factory=list)


class NumberWriter:
    """Sends 0, 1, 2, … to each partition without pause, and keeps every acknowledgement."""

    def __init__(self, bootstrap: str) -> None:
        self.sent = [0] * PARTITIONS
        self.acknowledged: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]
        """By partition: the offset of every acknowledged number."""
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 3,
                "batch.num.messages": 200,
                "message.timeout.ms": 300_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, name="number writer")
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set() and not self.failed:
            for partition in range(PARTITIONS):
                number = self.sent[partition]
                try:
                    self._producer.produce(TOPIC, b"%d" % number, partition=partition, on_delivery=self._delivered)
                except BufferError:
                    self._producer.poll(0.05)
                    continue
                except KafkaException as fatal:
                    self.failed.append(str(fatal))
                    return
                self.sent[partition] += 1
            self._producer.poll(0)
            # Enough to keep several batches in flight, little enough to leave the node its core.
            if sum(self.sent) % 40 == 0:
                time.sleep(0.002)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(f"{message.value()!r} of partition {message.partition()}: {error.str()}")
        else:
            self.acknowledged[message.partition()][int(message.value())] = message.offset()

    def wait_for_progress(self) -> None:
        """Wait for another acknowledgement: killing an idle node proves nothing."""
        before = sum(map(len, self.acknowledged))
        deadline = time.monotonic() + SETTLE_SECONDS
        while sum(map(len, self.acknowledged)) == before:
            assert not self.failed, self.failed[:3]
            assert time.monotonic() < deadline, "the producer does not come back after a restart"
            time.sleep(0.005)

    def stop(self) -> None:
        """Send no more."""
        self._stop.set()
        self._thread.join()

    def finish(self) -> None:
        """Stop sending; wait until everything that was sent is acknowledged or has failed."""
        self.stop()
        left = self._producer.flush(SETTLE_SECONDS)
        assert left == 0, f"{left} records were neither acknowledged nor refused"


class NumberReader:
    """Reads all partitions from the start and keeps what it sees."""

    def __init__(self, bootstrap: str) -> None:
        self.seen: list[list[tuple[int, int]]] = [[] for _ in range(PARTITIONS)]
        """By partition: offset and number of every record, in order of arrival."""
        self.faults: list[str] = []
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        self._thread = threading.Thread(target=self._run, name="number reader")
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(1000, timeout=0.1):
                error = message.error()
                if error is None:
                    self.seen[message.partition()].append((message.offset(), int(message.value())))
                elif not error.retriable() and error.code() not in HARMLESS:
                    self.faults.append(str(error))

    def finish(self, expected: list[int]) -> None:
        """Wait for this many records of each partition."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline and any(
            len(seen) < count for seen, count in zip(self.seen, expected, strict=True)
        ):
            time.sleep(0.02)
        # Gives a duplicate or unacknowledged record time to arrive.
        time.sleep(0.2)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()


HARMLESS = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT)
"""What a consumer reports while its broker is down."""


def kill_in_a_loop(node: Node, loops: int, seed: int, progress: Callable[[Tally], None] | None = None) -> Tally:
    """Run the campaign on a running node; raises AssertionError on any loss, duplicate or reordering."""
    dice = random.Random(seed)
    tally = Tally()
    with Raw(node.port) as raw:
        raw.create_topic(TOPIC, PARTITIONS, segment_bytes="200000")
    kept: list[str] = []
    dropped: list[str] = []
    writer = NumberWriter(node.bootstrap)
    reader = NumberReader(node.bootstrap)
    try:
        for loop in range(loops):
            if loop % 3 == 0:
                _change_topics(node, loop, kept, dropped)
            writer.wait_for_progress()
            time.sleep(dice.uniform(0.0, 0.25))
            _end_and_start(node, dice, tally)
            tally.loops += 1
            tally.acknowledged = sum(map(len, writer.acknowledged))
            assert not writer.failed, writer.failed[:3]
            if progress is not None:
                progress(tally)
        writer.finish()
        reader.finish([len(each) for each in writer.acknowledged])
    finally:
        writer.stop()
        reader.stop()
    check(node, writer, reader, tally)
    _check_topics(node, kept, dropped)
    tally.topics = len(kept) + len(dropped)
    return tally


def _end_and_start(node: Node, dice: random.Random, tally: Tally) -> None:
    if dice.random() < 0.15:
        code = node.terminate()
        assert code == 0, f"asked to end, it left with code {code}: {node.journal()[-2000:]}"
        assert (node.data / ".kafka_cleanshutdown").exists(), f"the end was not clean: {node.journal()[-2000:]}"
        tally.ended_cleanly += 1
    else:
        node.kill9()
        assert not (node.data / ".kafka_cleanshutdown").exists(), "a node that was killed counts as clean"
        tally.killed += 1
    if dice.random() < 0.25:
        # A crash during recovery from a crash.
        node.spawn()
        time.sleep(dice.uniform(0.0, 0.4))
        node.kill9()
        tally.killed_while_starting += 1
    began = time.monotonic()
    node.start()
    tally.start_seconds.append(time.monotonic() - began)


def check(node: Node, writer: NumberWriter, reader: NumberReader, tally: Tally) -> None:
    """Nothing acknowledged is lost, nothing is duplicated, and the order is the producer's."""
    assert not writer.failed, writer.failed[:3]
    assert not reader.faults, reader.faults[:3]
    with Raw(node.port) as raw:
        for partition in range(PARTITIONS):
            found = [(each.offset, int(each.value or b"-1")) for each in raw.read_all(TOPIC, partition)]
            numbers = [number for _, number in found]
            acknowledged = writer.acknowledged[partition]
            lost = sorted(set(acknowledged) - set(numbers))
            assert not lost, f"partition {partition}: {len(lost)} acknowledged records are lost, first {lost[:5]}"
            assert len(set(numbers)) == len(numbers), f"partition {partition}: records are there twice"
            assert numbers == sorted(numbers), f"partition {partition}: records are out of order"
            assert numbers == list(range(writer.sent[partition])), f"partition {partition}: a hole"
            assert {number: offset for offset, number in found} == acknowledged, "an offset is not what was told"
            seen = reader.seen[partition]
            assert seen == found, f"partition {partition}: the consumer saw something else ({len(seen)} records)"
            tally.read_back += len(found)
            tally.consumed += len(seen)
    tally.acknowledged = sum(map(len, writer.acknowledged))


def _change_topics(node: Node, loop: int, kept: list[str], dropped: list[str]) -> None:
    """Create a topic and delete an older one; both were acknowledged, so both must last."""
    with Raw(node.port) as raw:
        raw.create_topic(f"made-{loop}", 2, retention_ms=str(100_000 + loop))
        kept.append(f"made-{loop}")
        if len(kept) > 3:
            name = kept.pop(0)
            raw.call(m.DeleteTopicsRequest(topic_names=[name], timeout_ms=5000), 5)
            dropped.append(name)


def _check_topics(node: Node, kept: list[str], dropped: list[str]) -> None:
    with Raw(node.port) as raw:
        described = raw.call(m.MetadataRequest(topics=None), 12).topics
    # The node creates internal topics, such as the offsets of groups, when a client first needs them.
    found = {each.name: len(each.partitions) for each in described if not each.is_internal}
    expected = {TOPIC: PARTITIONS, **dict.fromkeys(kept, 2)}
    assert found == expected, f"topics are {found}, not {expected}"
    folders = {path.name for path in node.data.iterdir() if path.is_dir()}
    for name in dropped:
        assert f"{name}-0" not in folders, "the folder of a deleted topic came back"
