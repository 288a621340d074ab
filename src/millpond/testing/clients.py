"""Helpers of a test broker or cluster: topics, writing, reading, and clients that reconnect quickly."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka import Message as RawMessage
    from confluent_kafka.admin import AdminClient

    from millpond.client import Message
    from millpond.node.secure_folder import SecureFolder

Value = str | bytes | None
Entry = Value | tuple[str | bytes | None, Value]
"""A value, or a key and a value."""

ANSWER_SECONDS: Final = 10.0
MISSING_SECONDS_MAX: Final = 1.0
"""How long to wait for a missing topic."""

_numbers = count(1)


class TooFew(AssertionError):
    """Fewer records arrived than expected; `messages` has those that did."""

    def __init__(self, message: str, messages: Sequence[Message]) -> None:
        super().__init__(message)
        self.messages = list(messages)


class Clients(ABC):
    """Topics, records and clients for a subclass with a `bootstrap`."""

    security: SecureFolder | None = None
    """Keys, certificates and passwords of a secure broker."""
    by_certificate: bool = False

    def __init__(self) -> None:
        self._clients: dict[str, Any] = {}

    @property
    @abstractmethod
    def bootstrap(self) -> str:
        """The bootstrap address, unchanged by kills and restarts."""

    def forget_clients(self) -> None:
        """Discard the cached producer: librdkafka takes a second or two to reconnect, a new client does not."""
        self._clients.clear()

    def login_settings(self, user: str = "admin") -> dict[str, str]:
        """librdkafka settings to log in to a secure broker: as its admin; or with certificates,
        as any user."""
        if self.security is None:
            return {}
        if not self.by_certificate:
            assert user == "admin", "only the admin's password is known"
            return self.security.library_settings(self.bootstrap)
        certificate = str(self.security.certificate_of(user))
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.security.authority_file),
            "ssl.certificate.location": certificate,
            "ssl.key.location": certificate,
        }

    def wait_for_login(self) -> None:
        """Wait until a secure broker knows its first user, shortly after it starts to serve."""
        from millpond.remote.cluster import Cluster
        from millpond.remote.errors import ClusterError

        assert self.security is not None
        self.security.tell_clients(self.bootstrap)
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                with Cluster(self.login_settings()) as cluster:
                    cluster.topics([])
                return
            except ClusterError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def create_topic(self, name: str, partitions: int = 1, *, replicas: int = -1, **settings: object) -> str:
        """Create a topic with settings as keywords, such as `cleanup_policy="compact"`; returns its name.

        -1 replicas means the default: one for a single broker, three in a cluster.
        """
        from confluent_kafka.cimpl import NewTopic

        made = self.admin.create_topics([NewTopic(name, partitions, replicas, config=dotted(settings))])
        made[name].result(ANSWER_SECONDS)
        return name

    def new_topic(self, partitions: int = 1, prefix: str = "topic", *, replicas: int = -1, **settings: object) -> str:
        """Create a topic with a unique name."""
        name = f"{prefix}-{next(_numbers)}-{time.time_ns() % 10**9}"
        return self.create_topic(name, partitions, replicas=replicas, **settings)

    def produce(
        self, topic: str, *entries: Entry, partition: int = -1, headers: Mapping[str, bytes] | None = None
    ) -> list[RawMessage]:
        """Write values or (key, value) pairs; returns them when all are acknowledged."""
        from confluent_kafka import KafkaException

        delivered: list[RawMessage] = []
        faults: list[Any] = []

        def on_delivery(fault: object, message: RawMessage) -> None:
            if fault is None:
                delivered.append(message)
            else:
                faults.append(fault)

        producer = self.producer
        self._check_topic(producer, topic)
        for entry in entries:
            key, value = entry if isinstance(entry, tuple) else (None, entry)
            producer.produce(
                topic, value, key, partition=partition, on_delivery=on_delivery, headers=dict(headers or {}) or None
            )
        producer.flush()
        if faults:
            raise KafkaException(faults[0])
        return delivered

    def _check_topic(self, producer: Producer, topic: str) -> None:
        """Fail at once for a missing topic; with auto creation the metadata request creates it."""
        from confluent_kafka import KafkaException

        existing: set[str] = self._clients.setdefault("topics", set())
        deadline = time.monotonic() + MISSING_SECONDS_MAX
        while topic not in existing:
            there = producer.list_topics(topic, timeout=ANSWER_SECONDS).topics[topic]
            if there.error is None and there.partitions:
                existing.add(topic)
            elif time.monotonic() > deadline:
                raise KafkaException(there.error)
            else:
                # A new topic may not be known on every node yet.
                time.sleep(0.05)

    def consume(
        self, topic: str, n: int = 1, *, group: str | None = None, timeout: float = ANSWER_SECONDS
    ) -> list[Message]:
        """The first `n` committed records of a topic, or the next ones for `group`. TooFew on timeout."""
        consumer = self.consumer(group or f"pond-{next(_numbers)}")
        try:
            if group is None:
                self._assign_all(consumer, topic)
            else:
                consumer.subscribe([topic])
            messages = _read(consumer, topic, n, timeout)
            if group is not None and messages:
                consumer.commit(asynchronous=False)
            return messages
        finally:
            consumer.close()

    def frame(self, topic: str, **options: Any) -> Any:
        """The records of a topic as a frame of pandas, with the fields of their JSON values as columns.

        `options` are those of `millpond.arrow`. Sorted by partition and offset, so that frames can be compared.
        """
        from millpond.analysis import arrow

        login = {name: text for name, text in self.login_settings().items() if name != "bootstrap.servers"}
        columns = options.pop("columns", None)
        table = arrow(topic, bootstrap=self.bootstrap, **{"value": "json", "settings": login, **options}).read_all()
        mark = "_" if "_offset" in table.schema.names else ""
        table = table.sort_by([(f"{mark}partition", "ascending"), (f"{mark}offset", "ascending")])
        return (table if columns is None else table.select(columns)).to_pandas()

    def client_settings(self, **more: object) -> dict[str, Any]:
        """Settings for a confluent-kafka client of this broker that reconnects quickly."""
        return {
            **self.login_settings(),
            "bootstrap.servers": self.bootstrap,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
            "error_cb": _ignore,
        } | dotted_values(more)

    def consumer(self, group: str, **settings: object) -> Consumer:
        """A group consumer that starts at the beginning and does not commit automatically."""
        from confluent_kafka import Consumer

        defaults = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        return Consumer(self.client_settings() | defaults | dotted_values(settings))

    def producer_settings(self) -> dict[str, Any]:
        """The settings of `producer` besides `client_settings`."""
        return {}

    @property
    def producer(self) -> Producer:
        from confluent_kafka import Producer

        if "producer" not in self._clients:
            settings = self.client_settings(linger_ms=0, acks="all", message_timeout_ms=int(ANSWER_SECONDS * 1000))
            self._clients["producer"] = Producer(settings | self.producer_settings())
        producer: Producer = self._clients["producer"]
        return producer

    @property
    def admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        if "admin" not in self._clients:
            self._clients["admin"] = AdminClient(self.client_settings())
        admin: AdminClient = self._clients["admin"]
        return admin

    def _assign_all(self, consumer: Consumer, topic: str) -> None:
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        # Listing all topics never creates one, unlike asking for a single one.
        topics = consumer.list_topics(timeout=ANSWER_SECONDS).topics
        partitions = topics[topic].partitions if topic in topics else ()
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in partitions])


def dotted(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings by their real names, as text."""
    return {name: _text(value) for name, value in dotted_values(settings).items()}


def dotted_values(settings: Mapping[str, object]) -> dict[str, Any]:
    return {_dotted(name): value for name, value in settings.items()}


def _dotted(name: str) -> str:
    # Only callbacks and the log level have an underscore in librdkafka's own names.
    return name if name.endswith("_cb") or name == "log_level" else name.replace("_", ".")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(consumer: Consumer, topic: str, n: int, timeout: float) -> list[Message]:
    from confluent_kafka import KafkaException

    from millpond.client import Message
    from millpond.wire.kernel import read_messages

    messages: list[Message] = []
    deadline = time.monotonic() + timeout
    while len(messages) < n:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TooFew(f"{len(messages)} of {n} records came from {topic} within {timeout:g} s", messages)
        message = consumer.poll(left)
        if message is None:
            continue
        fault = message.error()
        if fault is None:
            read_messages([message], Message, messages)
        elif not fault.retriable():
            raise KafkaException(fault)
    return messages


def _ignore(_: object) -> None:
    """Drop the client library's logs about faults that the test injected."""
