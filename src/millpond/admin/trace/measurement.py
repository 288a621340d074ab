"""Send records one at a time and measure everything a client can see of their path.

The producer's part comes from librdkafka's statistics, requested so often that each report covers one record. The
network's part is half a TCP handshake each way, which the kernel answers, not the broker. The rest of the round trip
is the broker's.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal

from millpond.admin.errors import Refused
from millpond.admin.library import ANSWER_SECONDS, ClientLibrary, refused
from millpond.admin.trace.hops import Times
from millpond.base.named_tuple import NamedTuple
from millpond.wire.kernel.messages import read_headers

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

HEADER: Final = "millpond-trace"
STATISTICS_MS: Final = 10
WARM_UP: Final = 3
HANDSHAKES: Final = 9
PARTS: Final = ("int_latency", "outbuf_latency", "rtt")
LOG_APPEND_TIME: Final = 2


class Leader(NamedTuple):
    """The partition leader that receives the records."""

    topic: str
    partition: int
    broker: int
    address: tuple[str, int]


@dataclass(frozen=True, slots=True)
class TraceOrder:
    """What to send, and how."""

    topic: str | None = None
    """None for a temporary topic, deleted afterwards."""
    partition: int = 0
    count: int = 50
    size: int = 1000
    linger_ms: float = 5
    acks: Literal["1", "all"] = "all"
    does_commit: bool = False
    """Whether the consumer commits after each record."""


class Sent(NamedTuple):
    began: float
    """Monotonic clock, in seconds; the others are durations in milliseconds."""
    wall_ms: float
    latency_ms: float
    linger_ms: float
    queued_ms: float


@dataclass(frozen=True, slots=True)
class Traced:
    records: Sequence[Times]
    leader_only_ms: Sequence[float]
    """Broker times of records with acks=1; empty if none were sent."""
    network_ms: float
    """Network round-trip time."""
    group: str
    """The consumer group that read the records."""
    clock_ms: float | None
    """How far the broker's clock is ahead of ours, for topics with LogAppendTime."""


def measure(library: ClientLibrary, leader: Leader, order: TraceOrder, tell: Callable[[int], None]) -> Traced:
    """Run the measurement; `tell` is called with the number of records completed, and may raise to stop it."""
    size, linger_ms = order.size, order.linger_ms
    network_ms = _handshake_ms(leader.address)
    with _Reader(library, leader, order.does_commit) as reader:
        sender = _Sender(library, leader, order.acks, linger_ms)
        # Only acks=all has a part beyond the leader's append.
        twin = _Sender(library, leader, "1", linger_ms) if order.acks == "all" else None
        for _ in range(WARM_UP):
            reader.wait_for(_one(sender, reader, size)[0])
            if twin is not None:
                _one(twin, reader, size)
        records, leader_only_ms, clocks_ms = [], [], []
        for number in range(order.count):
            tell(number)
            if twin is not None:
                sent = _one(twin, reader, size)[1]
                leader_only_ms.append(_broker_ms(sent, network_ms))
            index, sent = _one(sender, reader, size)
            read = reader.wait_for(index)
            times = _times(sent, read, network_ms)
            records.append(times)
            if read.append_time_ms is not None:
                appended_ms = sent.wall_ms + times.linger + times.send + times.broker / 2
                # Timestamps are truncated to milliseconds: half of one is missing on average.
                clocks_ms.append(read.append_time_ms + 0.5 - appended_ms)
    return Traced(records, leader_only_ms, network_ms, reader.group, median(clocks_ms) if clocks_ms else None)


def _one(sender: _Sender, reader: _Reader, size: int) -> tuple[int, Sent]:
    index, headers = reader.announce()
    return index, sender.send(os.urandom(size), headers)


def _broker_ms(sent: Sent, network_ms: float) -> float:
    return max(0.0, sent.latency_ms - sent.linger_ms - sent.queued_ms - network_ms)


def _times(sent: Sent, read: Read, network_ms: float) -> Times:
    return Times(
        linger=sent.linger_ms,
        send=sent.queued_ms + network_ms / 2,
        broker=_broker_ms(sent, network_ms),
        acknowledge=network_ms / 2,
        arrived=(read.arrived - sent.began) * 1000,
        process=(read.processed - read.arrived) * 1000,
        acknowledged=sent.latency_ms,
    )


def _handshake_ms(address: tuple[str, int]) -> float:
    """Typical TCP handshake time. Names are resolved before, so that DNS is not included."""
    try:
        family, kind, number, _, target = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        spans = []
        for _ in range(HANDSHAKES):
            with socket.socket(family, kind, number) as probe:
                probe.settimeout(ANSWER_SECONDS)
                began = time.perf_counter()
                probe.connect(target)
                spans.append((time.perf_counter() - began) * 1000)
    except OSError as error:
        raise Refused(f"The leader at {address[0]}:{address[1]} cannot be reached: {error}.") from None
    return median(spans)


class _Sender:
    """Sends one record at a time and takes its timings from the statistics."""

    def __init__(self, library: ClientLibrary, leader: Leader, acks: str, linger_ms: float) -> None:
        self._leader = leader
        self._sums: dict[str, tuple[float, int]] = {}
        self._reports = 0
        self._producer = library.producer(
            {
                "acks": acks,
                "linger.ms": linger_ms,
                "message.timeout.ms": int(ANSWER_SECONDS * 1000),
                "statistics.interval.ms": STATISTICS_MS,
                "stats_cb": self._on_statistics,
            }
        )

    def send(self, value: bytes, headers: dict[str, bytes]) -> Sent:
        self._sums = dict.fromkeys(PARTS, (0.0, 0))
        delivered: list[tuple[KafkaError | None, Message]] = []
        wall_ms, began = time.time() * 1000, time.monotonic()
        self._producer.produce(
            self._leader.topic,
            value,
            partition=self._leader.partition,
            headers=list(headers.items()),
            on_delivery=lambda fault, message: delivered.append((fault, message)),
        )
        while not delivered:
            self._producer.poll(0.1)
        fault, message = delivered[0]
        if fault is not None:
            raise refused("A record was not acknowledged", fault)
        latency_ms = (message.latency() or 0.0) * 1000
        self._wait_for_statistics()
        return Sent(began, wall_ms, latency_ms, *(self._mean_ms(part) for part in PARTS[:2]))

    def _wait_for_statistics(self) -> None:
        """Wait for the record's statistics. The next report may predate the acknowledgement; the
        one after does not.
        """
        enough = self._reports + 2
        deadline = time.monotonic() + ANSWER_SECONDS
        while self._reports < enough and not all(count for _, count in self._sums.values()):
            self._producer.poll(0.1)
            if time.monotonic() > deadline:
                raise Refused("The client library gives no statistics: is statistics.interval.ms set with -X?")

    def _mean_ms(self, part: str) -> float:
        # The library may have sent another request (metadata, say) to the same broker; then this is the mean.
        total, count = self._sums[part]
        return total / count / 1000 if count else 0.0

    def _on_statistics(self, text: str) -> None:
        self._reports += 1
        for broker in json.loads(text).get("brokers", {}).values():
            if broker.get("nodeid") == self._leader.broker:
                self._add(broker)

    def _add(self, broker: dict[str, Any]) -> None:
        for part in PARTS:
            window = broker.get(part, {})
            total, count = self._sums.get(part, (0.0, 0))
            self._sums[part] = total + window.get("sum", 0), count + window.get("cnt", 0)


class Read(NamedTuple):
    arrived: float
    processed: float
    append_time_ms: float | None


class _Reader:
    """A consumer on a separate thread that notes when each record arrived and was processed."""

    def __init__(self, library: ClientLibrary, leader: Leader, does_commit: bool) -> None:
        self._run = os.urandom(6).hex()
        self._leader = leader
        self._does_commit = does_commit
        self.group = f"millpond-trace-{self._run}"
        self._announced = 0
        self._seen: dict[int, Read] = {}
        self._news = threading.Condition()
        self._fault: KafkaError | None = None
        self._is_over = False
        self._consumer: Consumer = library.consumer(
            {
                "group.id": self.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                # Another producer's open transaction would hold our records back.
                "isolation.level": "read_uncommitted",
            }
        )
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> _Reader:
        from confluent_kafka import KafkaException, TopicPartition

        topic, partition = self._leader.topic, self._leader.partition
        try:
            _, end = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_SECONDS)
        except KafkaException as refusal:
            self._consumer.close()
            raise refused(f"The end of {topic} is not known", refusal.args[0]) from None
        self._consumer.assign([TopicPartition(topic, partition, end)])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()
        self._consumer.close()

    def announce(self) -> tuple[int, dict[str, bytes]]:
        """A number for the next record, and the headers that identify it."""
        self._announced += 1
        return self._announced, {HEADER: f"{self._run}/{self._announced}".encode()}

    def wait_for(self, index: int) -> Read:
        with self._news:
            self._news.wait_for(lambda: index in self._seen or self._fault is not None, ANSWER_SECONDS)
            if index in self._seen:
                return self._seen[index]
        if self._fault is not None:
            raise refused("The records cannot be read back", self._fault)
        raise Refused(f"A record was acknowledged but could not be read within {ANSWER_SECONDS:g} seconds.")

    def _loop(self) -> None:
        while not self._is_over:
            message = self._consumer.poll(0.1)
            arrived = time.monotonic()
            if message is None:
                continue
            fault = message.error()
            if fault is not None:
                if not fault.retriable():
                    self._tell_fault(fault)
                continue
            index = self._index_of(message)
            if index is None:
                continue
            self._process(message)
            with self._news:
                self._seen[index] = Read(arrived, time.monotonic(), _append_time(message))
                self._news.notify_all()

    def _process(self, message: Message) -> None:
        from confluent_kafka import KafkaException

        if self._does_commit:
            try:
                self._consumer.commit(message=message, asynchronous=False)
            except KafkaException as refusal:
                self._tell_fault(refusal.args[0])

    def _tell_fault(self, fault: KafkaError) -> None:
        with self._news:
            self._fault = fault
            self._news.notify_all()

    def _index_of(self, message: Message) -> int | None:
        for name, value in read_headers(message):
            if name == HEADER and value is not None:
                run, _, number = value.decode(errors="replace").partition("/")
                if run == self._run:
                    return int(number)
        return None


def _append_time(message: Message) -> float | None:
    kind, stamp_ms = message.timestamp()
    return float(stamp_ms) if kind == LOG_APPEND_TIME else None
