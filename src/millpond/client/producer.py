"""The producer: `send` puts a record into a bounded buffer and returns a future of where it landed.

librdkafka batches, compresses and retries below. Its acknowledgement level belongs to a producer, not to a record, so
each level that is used has an inner producer of its own, made at the first use: its buffer, connections and order are
its own too. Records sent with different `acks` are not ordered among each other. Only `acks="all"` is idempotent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
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
from millpond.client.reach import Reach
from millpond.client.sent import PlainSend, Sent
from millpond.client.unreported import ANY_PARTITION, Record, Unreported

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
    """What Producer takes beside bootstrap and what to do when it is full, for type checkers."""

    acks: Acks
    """Who must have a record before it counts as sent: `"all"` (idempotent), `1` or `0`."""
    linger_ms: float
    """How long a batch waits for more records before it goes out."""
    batch_bytes: int
    """The most bytes in one batch."""
    compression: Compression
    """How batches are compressed."""
    partitioner: PartitionerLike
    """Where a record goes: by its key as in Java, in turn, or a function `(key, partitions) -> int`."""
    serializer: Serializer
    """Makes bytes of a value: a function `(value, topic) -> bytes | None`."""
    buffer_records: int
    """The most records that wait to be sent or acknowledged."""
    buffer_bytes: int
    """The most bytes of them."""
    delivery_timeout_s: float
    """How long a record is tried; after that its future is `SendFailed`."""
    create_topics: bool
    """Whether a cluster that allows it creates a missing topic at the first record; else that record fails."""
    tracing: bool
    """Whether each record is a span of OpenTelemetry, which its handler goes on with; needs `millpond[otel]`."""
    settings: Mapping[str, Any] | None
    """Anything else that librdkafka can be told, by its own names."""


class SendKwargs(TypedDict, total=False):
    """What `send` takes beside topic, value and key."""

    headers: HeadersLike
    """Names with values, as a mapping or pairs; texts are written as UTF-8."""
    acks: Acks | None
    """As the producer's, for this record alone."""
    partition: int | None
    """The partition, whatever the key."""
    timestamp_ms: int
    """The record's time in milliseconds since 1970."""


SEND_NAMES: Final = ("topic", "value", "key", *SendKwargs.__annotations__)


class Producer(Closable):
    """Sends records. Safe to share between threads; one per process is enough.

    `when_full` says what `send` does when the buffer is full: "block" waits up to `full_timeout_s` and then raises
    BufferFull, "raise" raises it at once. Use it as a context manager: leaving flushes.

    `delivery_timeout_s` is how long a record is tried: then its future is SendFailed. Shorter than what a web server
    gives a request, longer than a cluster takes to go on without one of its nodes.

    A record for a topic that does not exist fails within seconds as both SendFailed and UnknownTopic; from then on
    `send` raises it until the topic is created. `create_topics=True` has a missing topic created instead.
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
        given_settings = check_settings(settings)
        self._blocks = when_full == "block"
        self._full_timeout_s = full_timeout_s
        self._serializer = serializer
        self._is_plain = serializer is encode
        """Bytes are sent as they are."""
        self._partitioner = _partitioner(partitioner)
        own = {
            "linger.ms": linger_ms,
            "batch.size": batch_bytes,
            "compression.type": compression,
            # Java's choice, so that producers in both worlds agree on where a key lives.
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": buffer_records,
            "queue.buffering.max.kbytes": max(buffer_bytes >> 10, 1),
            "delivery.timeout.ms": int(delivery_timeout_s * 1000),
        }
        self._settings = producer_settings(bootstrap, own, given_settings, create_topics=create_topics)
        if given_settings:
            # What is wrong with them is said here, and not at the first record. Without an address it asks nobody.
            # The real ones are made at their first use, so that a program may fork before.
            make(RawProducer, self._settings | {"bootstrap.servers": ""})
        self._tracing = _tracing() if tracing else None
        self._inners: dict[Acks, InnerProducer] = {}
        self._usual: InnerProducer | None = None
        """The one of `acks`, once it is made."""
        self._quick: PlainSend | None = None
        """Its way for a record of bytes, where that can be given to it as it is."""
        self.plain: InnerProducer | None = None
        """The one of that way, for records that are not futures of threads."""
        self._is_of_parent = False
        """It was used before this process was forked: its threads are not here."""
        self._lock = Lock()
        self._closed = False
        self._partitions: dict[str, tuple[float, int]] = {}
        _ALL.add(self)

    def send(
        self, topic: str, value: Any = None, key: str | bytes | None = None, **given: Unpack[SendKwargs]
    ) -> Future[Delivery]:
        """Queue a record; the future says where it is once it is acknowledged, or is SendFailed."""
        quick = self._quick
        if not given and quick is not None and type(value) is bytes and type(topic) is str and topic:
            try:
                if key is None or isinstance(key, TEXT_OR_BYTES):
                    return quick(topic, value, key)
            except (BufferError, KafkaException, ValueError):
                quick = None  # What that means is for `put` to say.
        try:
            return self.put(Sent, self._blocks, topic, value, key, **given)
        except TypeError:
            refuse_unknown(given, SEND_NAMES, "send")
            raise

    def flush(self, timeout_s: float = 60.0) -> None:
        """Return when everything sent so far is acknowledged or has failed; Timeout when that takes too long."""
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

        In a child of the process that used it there is nothing to flush: its records are the parent's to send.
        """
        timeout_s = check_seconds(timeout_s)
        self._check_outside("close")
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._quick = self.plain = None
        if self._is_of_parent:
            return
        try:
            self.flush(timeout_s)
        finally:
            for inner in self._inners.values():
                inner.close()

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has."""
        self._check_open()
        check_topic(topic)
        known = self._partitions.get(topic)
        if known and known[0] > time.monotonic():
            return known[1]
        raw = self._inner(self.acks).raw
        deadline = time.monotonic() + UNKNOWN_TOPIC_MS / 1000
        while not (count := self._ask_partitions(raw, topic)):
            if time.monotonic() > deadline:
                raise UnknownTopic(unknown_topic(topic))
            time.sleep(LOOK_AGAIN_SECONDS)
        self._partitions[topic] = (time.monotonic() + PARTITIONS_KNOWN_FOR_S, count)
        return count

    def _ask_partitions(self, raw: RawProducer, topic: str) -> int:
        """How many partitions the topic has; 0 if the node that is asked does not know it."""
        try:
            # A thread of its own, because a callback of a record may send, and librdkafka is asked once at a time.
            with ThreadPoolExecutor(1) as aside:
                known = aside.submit(raw.list_topics, topic, METADATA_SECONDS).result().topics[topic]
        except KafkaException as fault:
            raise Timeout(f"the partitions of {topic!r} are not known: {advice_on(fault.args[0])}") from fault
        return 0 if known.error is not None else len(known.partitions)

    def buffered(self) -> int:
        """Records that wait for their acknowledgement, and reports that wait to be read: about, not exactly."""
        return sum(len(inner.raw) for inner in list(self._inners.values()))

    def put(
        self,
        kind: Callable[[str, Unreported], R],
        block: bool,
        topic: str,
        value: Any,
        key: str | bytes | None,
        *,
        headers: HeadersLike = (),
        acks: Acks | None = None,
        partition: int | None = None,
        timestamp_ms: int = 0,
        is_last_try: bool = True,
    ) -> R:
        """What `send` does, with any kind of record that can hear what became of it.

        Who has no room and will try again with another record says so: that is nothing for a trace.
        """
        self._check_open()
        check_topic(topic)
        inner = (self._usual or self._inner(self.acks)) if acks is None else self._inner(_acks(acks))
        plain_key = as_bytes(key)
        if partition is None and self._partitioner is not None:
            partition = self._chosen(topic, plain_key, self._partitioner)
        payload = value if self._is_plain and type(value) is bytes else self._serializer(value, topic)
        listed = header_list(headers) if headers else None
        if partition is None:
            partition = ANY_PARTITION
        else:
            check_whole(partition, "a partition", 0, INT32_MAX)
        if timestamp_ms:
            check_milliseconds(timestamp_ms, "timestamp_ms")
        if payload is not None and not isinstance(payload, bytes):
            raise ConfigError(f"the serializer gave {type(payload).__name__}: it gives bytes or None")
        if self._tracing is None:
            record = kind(topic, inner.unreported)
        else:
            traced, listed = self._tracing.sent(topic, inner.unreported, listed)
            record = cast(R, traced)
        try:
            inner.produce(record, topic, payload, plain_key, listed, partition, timestamp_ms)
        except BufferError:
            try:
                self._put_when_there_is_room(
                    inner, block, record, topic, payload, plain_key, listed, partition, timestamp_ms
                )
            except (BufferFull, Closed) as refusal:
                if is_last_try and isinstance(record, Sent):
                    record.fail(refusal)  # Its trace ends here.
                raise
        except KafkaException as fault:
            raise _refusal(record, topic, fault) from fault
        return record

    def _put_when_there_is_room(self, inner: InnerProducer, block: bool, record: R, topic: str, *what: Any) -> None:
        deadline = time.monotonic() + self._full_timeout_s
        # In the callback of a record there will be no room before that returns.
        block = block and not inner.unreported.is_reading()
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
            raise Closed("this producer is closed: make a new one")

    def _check_process(self) -> None:
        if self._is_of_parent:
            raise ClientError(
                "this producer was used before the process was forked, and what sends its records is in the parent "
                "alone: make a new one in the child"
            )

    def begin_in_child(self) -> None:
        """The process was forked. What has not been used may be used here; what has must not be silent about it."""
        self._lock = Lock()  # A thread may have held it that is not here.
        if self._inners:
            self._is_of_parent = True
            self._quick = self.plain = None

    def _check_outside(self, what: str) -> None:
        # In a child the thread of the parent that reads is not there, but another one may have its number.
        inners = [] if self._is_of_parent else list(self._inners.values())
        if any(inner.unreported.is_reading() for inner in inners):
            raise ClientError(
                f"{what} was called by the callback of a record, or by what interrupts it, where it would wait for "
                "itself: call it elsewhere"
            )

    def _inner(self, acks: Acks) -> InnerProducer:
        inner = self._inners.get(acks)
        if inner is None:
            with self._lock:
                inner = self._inners.get(acks)
                if inner is None:
                    self._check_open()
                    own = {"acks": acks, "enable.idempotence": acks == "all"}
                    reach = Reach(self._settings)
                    chosen = own | self._settings | {"acks": acks, "error_cb": reach.on_error}
                    inner = InnerProducer(make(RawProducer, chosen), reach)
                    self._inners[acks] = inner
                    if acks == self.acks:
                        self._usual = inner
                        is_plain = self._serializer is encode and self._partitioner is None
                        if is_plain and self._tracing is None:
                            self._quick, self.plain = inner.plain_send(), inner
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
"""Of this process, to be told when it is forked: to ask for each record who one is would cost more."""


def _begin_in_child() -> None:
    for each in list(_ALL):
        each.begin_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)


def _refusal(record: Record, topic: str, fault: KafkaException) -> SendFailed:
    """librdkafka did not even take it."""
    error = fault.args[0]
    refusal = send_failure(topic, error)
    if isinstance(record, Sent):
        record.fail(refusal)  # Its trace ends here.
    return refusal


def _tracing() -> Tracing:
    from millpond.client.traces import Tracing

    return Tracing()


def _acks(given: Any) -> Acks:
    known: dict[Any, Acks] = {"all": "all", -1: "all", "-1": "all", 1: 1, "1": 1, 0: 0, "0": 0}
    try:
        return known[given]
    except (KeyError, TypeError):
        raise ConfigError(f'acks is "all", 1 or 0, not {given!r}') from None


def _partitioner(given: PartitionerLike) -> Partitioner | None:
    """None for what librdkafka does by itself, and faster."""
    if given == "murmur2":
        return None
    if given == "round_robin":
        return RoundRobin()
    if isinstance(given, Callable):  # type: ignore[arg-type]
        return given
    raise ConfigError(
        f'partitioner is "murmur2", "round_robin" or a function (key, partitions) -> partition, not {given!r}'
    )
