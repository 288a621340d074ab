"""The producer: `send` puts a record into a bounded buffer and returns a future of its Delivery.

librdkafka batches, compresses and retries. It sets acks per producer, not per record, so each level in use has its
own inner producer, created on first use, with its own buffer and connections. Records sent with different `acks` are
not ordered relative to each other. Only `acks="all"` is idempotent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict, TypeVar, Unpack, cast
from weakref import WeakSet

from confluent_kafka import KafkaException
from confluent_kafka import Producer as RawProducer

from millpond.base.resource import Closable
from millpond.client.arguments import named_arguments, refuse_unknown
from millpond.client.checks import (
    INT32_MAX,
    check_callable,
    check_choice,
    check_duration,
    check_milliseconds,
    check_seconds,
    check_settings,
    check_topic,
    check_whole,
)
from millpond.client.connection import UNKNOWN_TOPIC_MS, make, producer_settings
from millpond.client.errors import (
    BufferFull,
    ClientError,
    Closed,
    ConfigError,
    SendFailed,
    Timeout,
    UnknownTopic,
    advice_on,
    send_failure,
    unknown_topic,
)
from millpond.client.inner_producer import Acks, InnerProducer
from millpond.client.message import Delivery, HeadersLike, as_bytes, header_list
from millpond.client.partitioner import Partitioner, RoundRobin
from millpond.client.payloads import Serializer, encode
from millpond.client.pending_reports import ANY_PARTITION, CallbackRecord, OnReport, PendingReports, Record
from millpond.client.queue_headers import Delay, queue_headers
from millpond.client.reachability import Reachability
from millpond.client.send_future import PlainSend, SendFuture

if TYPE_CHECKING:
    from millpond.client.traces import Tracing

WhenFull: TypeAlias = Literal["block", "raise"]
Compression: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]
PartitionerLike: TypeAlias = Literal["murmur2", "round_robin"] | Partitioner

R = TypeVar("R", bound=Record)

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS_KNOWN_FOR_S = 60.0
METADATA_SECONDS = 15.0
LOOK_AGAIN_SECONDS = 0.1
TEXT_OR_BYTES: Final = (str, bytes)


class ProducerKwargs(TypedDict, total=False):
    """Arguments of Producer besides bootstrap, when_full and full_timeout_s, for type checkers."""

    acks: Acks
    """Which replicas must have a record before it counts as sent: `"all"` (idempotent), `1` or `0`."""
    linger_ms: float
    """How long a batch waits for more records."""
    batch_bytes: int
    """The most bytes in one batch."""
    compression: Compression
    """The codec for batches."""
    partitioner: PartitionerLike
    """Chooses a partition: by key like Java, round robin, or a function `(key, partitions) -> int`."""
    serializer: Serializer
    """Turns a value into bytes: a function `(value, topic) -> bytes | None`."""
    buffer_records: int
    """The most records that wait to be sent or acknowledged."""
    buffer_bytes: int
    """The most bytes of such records."""
    delivery_timeout_s: float
    """How long the producer tries to deliver a record; then its future is `SendFailed`."""
    create_topics: bool
    """Whether a cluster that allows it creates a missing topic for the first record; else that record fails."""
    tracing: bool
    """Whether each record is an OpenTelemetry span that its handler's span continues; needs `millpond[otel]`."""
    settings: Mapping[str, Any] | None
    """Further librdkafka settings, by their librdkafka names."""


class SendKwargs(TypedDict, total=False):
    """Arguments of `send` besides topic, value and key."""

    headers: HeadersLike
    """Names and values, as a mapping or pairs; text is sent as UTF-8."""
    acks: Acks | None
    """Overrides the producer's acks for this record."""
    partition: int | None
    """The partition, regardless of the key."""
    timestamp_ms: int
    """The record's timestamp in milliseconds since 1970."""
    delay: Delay | None
    """No worker of a queue receives the record before this many seconds, or this timedelta, from now."""
    at: datetime | int | None
    """No worker of a queue receives the record before this time; an int is milliseconds since 1970."""
    priority: int | None
    """0 to 9, 4 without it: queues with `share.priority.enable` deliver higher ones first."""


SEND_NAMES: Final = ("topic", "value", "key", *SendKwargs.__annotations__)


class Producer(Closable):
    """Sends records. Thread-safe; one per process is enough.

    With a full buffer, `when_full="block"` makes `send` wait up to `full_timeout_s` and then raise BufferFull;
    "raise" raises it at once. Use it as a context manager: leaving flushes.

    After `delivery_timeout_s` a record's future is SendFailed. The default is shorter than a web server's request
    timeout and longer than a cluster takes to recover from the loss of a node.

    A record for a missing topic fails within seconds, as both SendFailed and UnknownTopic; from then on `send` raises
    it until the topic is created. `create_topics=True` creates a missing topic instead.
    """

    @named_arguments("Producer")
    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        acks: Acks = "all",
        linger_ms: float = 5,
        batch_bytes: int = 1_000_000,
        compression: Compression = "lz4",
        partitioner: PartitionerLike = "murmur2",
        serializer: Serializer = encode,
        buffer_records: int = 100_000,
        buffer_bytes: int = 64 << 20,
        when_full: WhenFull = "block",
        full_timeout_s: float = 60.0,
        delivery_timeout_s: float = 30.0,
        create_topics: bool = False,
        tracing: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.acks = _acks(acks)
        check_choice(when_full, "when_full", ("block", "raise"))
        check_choice(compression, "compression", COMPRESSIONS)
        check_duration(linger_ms, "linger_ms")
        check_whole(batch_bytes, "batch_bytes", 1, INT32_MAX)
        check_whole(buffer_records, "buffer_records", 1, INT32_MAX)
        check_whole(buffer_bytes, "buffer_bytes", 1024, INT32_MAX << 10)
        check_duration(full_timeout_s, "full_timeout_s")
        check_duration(delivery_timeout_s, "delivery_timeout_s")
        check_callable(serializer, "serializer")
        overrides = check_settings(settings)
        self._blocks = when_full == "block"
        self._full_timeout_s = full_timeout_s
        self._serializer = serializer
        self._is_plain = serializer is encode
        """Bytes are sent unchanged."""
        self._partitioner = _partitioner(partitioner)
        own = {
            "linger.ms": linger_ms,
            "batch.size": batch_bytes,
            "compression.type": compression,
            # Java's partitioner, so that both clients agree on a key's partition.
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": buffer_records,
            "queue.buffering.max.kbytes": max(buffer_bytes >> 10, 1),
            "delivery.timeout.ms": int(delivery_timeout_s * 1000),
        }
        self._settings = producer_settings(bootstrap, own, overrides, create_topics=create_topics)
        if overrides:
            # Report wrong settings here, not at the first record. Without an address this one does not connect. The
            # real producers are created on first use, so that a program may fork before.
            make(RawProducer, self._settings | {"bootstrap.servers": ""})
        self._tracing = _tracing() if tracing else None
        self._inners: dict[Acks, InnerProducer] = {}
        self._default_inner: InnerProducer | None = None
        """The one for `acks`, once it is created."""
        self._plain_send: PlainSend | None = None
        """Its fast path for bytes, if neither serializer, partitioner nor tracing is set."""
        self.plain: InnerProducer | None = None
        """Set with `_plain_send`, for records that are not thread futures."""
        self._is_from_parent = False
        """Used before a fork: its threads exist only in the parent."""
        self._lock = Lock()
        self._closed = False
        self._partitions: dict[str, tuple[float, int]] = {}
        _ALL.add(self)

    def send(
        self, topic: str, value: Any = None, key: str | bytes | None = None, **options: Unpack[SendKwargs]
    ) -> Future[Delivery]:
        """Queue a record; the future is its Delivery once acknowledged, or SendFailed."""
        plain_send = self._plain_send
        if not options and plain_send is not None and type(value) is bytes and type(topic) is str and topic:
            try:
                if key is None or isinstance(key, TEXT_OR_BYTES):
                    return plain_send(topic, value, key)
            except (BufferError, KafkaException, ValueError):
                plain_send = None  # `put` reports the error.
        try:
            return self.put(SendFuture, self._blocks, topic, value, key, **options)
        except TypeError:
            refuse_unknown(options, SEND_NAMES, "send")
            raise

    def send_with_callback(
        self,
        on_report: OnReport,
        topic: str,
        value: Any,
        key: str | bytes | None,
        *,
        headers: HeadersLike,
        partition: int | None,
    ) -> None:
        """`send` without a future. `on_report` runs on the thread that reads delivery reports."""
        self.put(
            partial(CallbackRecord, on_report), self._blocks, topic, value, key, headers=headers, partition=partition
        )

    def flush(self, timeout_s: float = 60.0) -> None:
        """Wait until everything sent so far is acknowledged or has failed; Timeout if that takes too long."""
        timeout_s = check_seconds(timeout_s)
        self._check_outside("flush")
        self._check_process()
        deadline = time.monotonic() + timeout_s
        left = sum(inner.flush(max(deadline - time.monotonic(), 0.0)) for inner in list(self._inners.values()))
        if left:
            raise Timeout(
                f"{left} records are still unacknowledged after {timeout_s:g} s: check that the cluster is up, or "
                "allow more time"
            )

    def close(self, timeout_s: float = 60.0) -> None:
        """Flush and stop. Idempotent. What is left after the timeout fails with SendFailed.

        Does nothing in a forked child: the parent sends the records.
        """
        timeout_s = check_seconds(timeout_s)
        self._check_outside("close")
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._plain_send = self.plain = None
        if self._is_from_parent:
            return
        try:
            self.flush(timeout_s)
        finally:
            for inner in self._inners.values():
                inner.close()

    def partitions(self, topic: str) -> int:
        """The topic's number of partitions."""
        self._check_open()
        check_topic(topic)
        cached = self._partitions.get(topic)
        if cached and cached[0] > time.monotonic():
            return cached[1]
        raw = self._inner(self.acks).raw
        deadline = time.monotonic() + UNKNOWN_TOPIC_MS / 1000
        while not (count := self._ask_partitions(raw, topic)):
            if time.monotonic() > deadline:
                raise UnknownTopic(unknown_topic(topic))
            time.sleep(LOOK_AGAIN_SECONDS)
        self._partitions[topic] = (time.monotonic() + PARTITIONS_KNOWN_FOR_S, count)
        return count

    def _ask_partitions(self, raw: RawProducer, topic: str) -> int:
        """The topic's number of partitions; 0 if the node does not have it."""
        try:
            # On another thread: a record's callback may send, and librdkafka does not allow nested calls.
            with ThreadPoolExecutor(1) as executor:
                metadata = executor.submit(raw.list_topics, topic, METADATA_SECONDS).result().topics[topic]
        except KafkaException as fault:
            raise Timeout(f"cannot look up the partitions of {topic!r}: {advice_on(fault.args[0])}") from fault
        return 0 if metadata.error is not None else len(metadata.partitions)

    def buffered(self) -> int:
        """Roughly how many records wait for an acknowledgement or for their report to be read."""
        return sum(len(inner.raw) for inner in list(self._inners.values()))

    def put(
        self,
        kind: Callable[[str, PendingReports], R],
        block: bool,
        topic: str,
        value: Any,
        key: str | bytes | None,
        *,
        headers: HeadersLike = (),
        acks: Acks | None = None,
        partition: int | None = None,
        timestamp_ms: int = 0,
        delay: Delay | None = None,
        at: datetime | int | None = None,
        priority: int | None = None,
        is_last_try: bool = True,
    ) -> R:
        """`send` for any kind of record that takes a delivery report.

        Unless `is_last_try`, BufferFull does not end the record's trace: the caller will try again.
        """
        self._check_open()
        check_topic(topic)
        inner = (self._default_inner or self._inner(self.acks)) if acks is None else self._inner(_acks(acks))
        plain_key = as_bytes(key)
        if partition is None and self._partitioner is not None:
            partition = self._chosen(topic, plain_key, self._partitioner)
        payload = value if self._is_plain and type(value) is bytes else self._serializer(value, topic)
        listed = header_list(headers) if headers else None
        if delay is not None or at is not None or priority is not None:
            listed = [*(listed or ()), *queue_headers(delay, at, priority)]
        if partition is None:
            partition = ANY_PARTITION
        else:
            check_whole(partition, "a partition", 0, INT32_MAX)
        if timestamp_ms:
            check_milliseconds(timestamp_ms, "timestamp_ms")
        if payload is not None and not isinstance(payload, bytes):
            raise ConfigError(f"the serializer returned {type(payload).__name__}: it must return bytes or None")
        if self._tracing is None:
            record = kind(topic, inner.pending_reports)
        else:
            traced, listed = self._tracing.sent(topic, inner.pending_reports, listed)
            record = cast(R, traced)
        try:
            inner.produce(record, topic, payload, plain_key, listed, partition, timestamp_ms)
        except BufferError:
            try:
                self._put_when_there_is_room(
                    inner, block, record, topic, payload, plain_key, listed, partition, timestamp_ms
                )
            except (BufferFull, Closed) as refusal:
                if is_last_try and isinstance(record, SendFuture):
                    record.fail(refusal)  # Its trace ends here.
                raise
        except KafkaException as fault:
            raise _refusal(record, topic, fault) from fault
        return record

    def _put_when_there_is_room(self, inner: InnerProducer, block: bool, record: R, topic: str, *what: Any) -> None:
        deadline = time.monotonic() + self._full_timeout_s
        # Inside a record's callback no room appears before the callback returns.
        block = block and not inner.pending_reports.is_reading()
        while block and inner.wait_for_room(deadline):
            self._check_open()
            try:
                return inner.produce(record, topic, *what)
            except BufferError:
                continue
            except KafkaException as fault:
                raise _refusal(record, topic, fault) from fault
        raise BufferFull(
            f"{len(inner.raw)} records wait to be acknowledged and the buffer is full"
            + (f" for {self._full_timeout_s:g} s" if block else "")
            + ": send slower, raise buffer_records or buffer_bytes, or drop what can be lost",
            retriable=True,
        ) from None

    def _check_open(self) -> None:
        self._check_process()
        if self._closed:
            raise Closed("this producer is closed: create a new one")

    def _check_process(self) -> None:
        if self._is_from_parent:
            raise ClientError(
                "this producer was used before the process was forked, and its threads exist only in the parent: "
                "create a new one in the child"
            )

    def after_fork(self) -> None:
        """An unused producer works in the child; a used one must raise."""
        self._lock = Lock()  # A thread of the parent may have held it.
        if self._inners:
            self._is_from_parent = True
            self._plain_send = self.plain = None

    def _check_outside(self, what: str) -> None:
        # In a forked child the parent's reading thread is gone, but another may have its id.
        inners = [] if self._is_from_parent else list(self._inners.values())
        if any(inner.pending_reports.is_reading() for inner in inners):
            raise ClientError(
                f"{what} was called inside a record's callback, or by what interrupts it, where it would deadlock: "
                "call it elsewhere"
            )

    def _inner(self, acks: Acks) -> InnerProducer:
        inner = self._inners.get(acks)
        if inner is None:
            with self._lock:
                inner = self._inners.get(acks)
                if inner is None:
                    self._check_open()
                    own = {"acks": acks, "enable.idempotence": acks == "all"}
                    reachability = Reachability(self._settings)
                    chosen = own | self._settings | {"acks": acks, "error_cb": reachability.on_error}
                    inner = InnerProducer(make(RawProducer, chosen), reachability)
                    self._inners[acks] = inner
                    if acks == self.acks:
                        self._default_inner = inner
                        is_plain = self._serializer is encode and self._partitioner is None
                        if is_plain and self._tracing is None:
                            self._plain_send, self.plain = inner.plain_send(), inner
        return inner

    def _chosen(self, topic: str, key: bytes | None, partitioner: Partitioner) -> int:
        count = self.partitions(topic)
        chosen = partitioner(key, count)
        if not isinstance(chosen, int) or not 0 <= chosen < count:
            raise ConfigError(
                f"the partitioner chose {chosen!r:.60}, but {topic!r} has the partitions 0 to {count - 1}"
            )
        return chosen


_ALL: WeakSet[Producer] = WeakSet()
"""The producers of this process, for its fork handler: checking the process id per record would cost more."""


def _after_fork() -> None:
    for each in list(_ALL):
        each.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _refusal(record: Record, topic: str, fault: KafkaException) -> SendFailed:
    """librdkafka refused the record at once."""
    refusal = send_failure(topic, fault.args[0])
    if isinstance(record, SendFuture):
        record.fail(refusal)  # Its trace ends here.
    return refusal


def _tracing() -> Tracing:
    from millpond.client.traces import Tracing

    return Tracing()


def _acks(value: Any) -> Acks:
    levels: dict[Any, Acks] = {"all": "all", -1: "all", "-1": "all", 1: 1, "1": 1, 0: 0, "0": 0}
    try:
        return levels[value]
    except (KeyError, TypeError):
        raise ConfigError(f'acks is "all", 1 or 0, not {value!r}') from None


def _partitioner(value: PartitionerLike) -> Partitioner | None:
    """None for librdkafka's own partitioner, which is faster."""
    if value == "murmur2":
        return None
    if value == "round_robin":
        return RoundRobin()
    if isinstance(value, Callable):  # type: ignore[arg-type]
        return value
    raise ConfigError(
        f'partitioner is "murmur2", "round_robin" or a function (key, partitions) -> partition, not {value!r}'
    )
