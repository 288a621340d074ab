"""`Pond`: one broker for a test, with what a test does most, and the faults that it must survive."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from millpond.testing.process_node import ProcessNode
from millpond.testing.proxy import HOST, Proxy
from millpond.testing.thread_node import ThreadNode

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, Producer
    from confluent_kafka.admin import AdminClient

Mode = Literal["thread", "process"]
Value = str | bytes | None
Entry = Value | tuple[str | bytes | None, Value]
"""A value, or a key and a value."""

DEFAULTS: Final[Mapping[str, str]] = {
    # Groups form at once, and the topics behind them are made with one partition instead of fifty.
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    # A test's machine does not lose power: what a killed process had written is still there without a sync.
    "flush.ack": "never",
}
"""How a test's broker differs from others, unless the test says otherwise."""

ANSWER_SECONDS: Final = 10.0
JOURNAL_LINES_MAX: Final = 1000
_numbers = count(1)


class TooFew(AssertionError):
    """Fewer records came than the test waited for; `messages` are those that did."""

    def __init__(self, message: str, messages: Sequence[Message]) -> None:
        super().__init__(message)
        self.messages = list(messages)


class Pond:
    """A real broker on the loopback. Also a context manager, for use without pytest.

    `mode="thread"` runs it in this process, `mode="process"` as a child. Without a `folder` it gets one of its own,
    which goes with it. Names of settings may be written with underscores.
    """

    def __init__(
        self,
        *,
        mode: Mode = "thread",
        settings: Mapping[str, object] | None = None,
        folder: Path | str | None = None,
    ) -> None:
        self.mode: Mode = mode
        self.journal: list[str] = []
        """What the broker reported, over all its lives."""
        self._own_folder = None if folder is not None else tempfile.mkdtemp(prefix="millpond-")
        self.folder = Path(folder if folder is not None else self._own_folder or "")
        self._proxy = Proxy()
        texts = {
            **DEFAULTS,
            **dotted(settings or {}),
            "data.folder": str(self.folder),
            "listen": f"{HOST}:0",
            "advertised.listener": self._proxy.bootstrap,
        }
        self._node: ThreadNode | ProcessNode = (ThreadNode if mode == "thread" else ProcessNode)(texts, self._report)
        self._clients: dict[str, Any] = {}

    def __enter__(self) -> Pond:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Pond {self.bootstrap}, {self.mode}, {'running' if self.is_running else 'not running'}>"

    # Life.

    @property
    def bootstrap(self) -> str:
        """Where clients connect; stays the same through kills and restarts."""
        return self._proxy.bootstrap

    @property
    def is_running(self) -> bool:
        return self._node.is_running

    def start(self) -> Pond:
        """Start it if it does not run; returns when it serves."""
        if not self._node.is_running:
            self._proxy.open(self._node.start())
            # librdkafka takes a second or two to come back to a broker that was gone; a new client does not.
            self._clients.clear()
        return self

    def stop(self) -> None:
        """End it in order; what clients were told is on disk."""
        self._node.stop()
        self._proxy.shut()

    def kill(self) -> None:
        """End it as SIGKILL would; connections break and new ones are refused until `start` or `restart`."""
        self._node.kill()
        self._proxy.shut()

    def restart(self) -> Pond:
        """Start it again on the same data and address, after an orderly stop if it still runs."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """End it for good."""
        self._clients.clear()
        # Nobody will look at the data again: there is no need to end in order.
        self._node.kill()
        self._proxy.close()
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)

    # Faults.

    def drop_connections(self) -> int:
        """Reset every open connection; how many there were. New ones are welcome."""
        return self._proxy.reset_all()

    def half_open(self) -> int:
        """Open connections stay open but carry nothing more, as if a cable were cut; new ones work."""
        return self._proxy.half_open_all()

    def slow_down(self, ms: float) -> ExitStack:
        """Every round trip takes this much longer, until `speed_up` or the end of a `with` block around it."""
        self._proxy.delay(ms)
        return _undo(self.speed_up)

    def speed_up(self) -> None:
        self._proxy.delay(0)

    def pause(self) -> ExitStack:
        """The broker stands still, as on SIGSTOP, until `resume` or the end of a `with` block around it."""
        self._node.pause()
        return _undo(self.resume)

    def resume(self) -> None:
        self._node.resume()

    # What a test does most.

    def create_topic(self, name: str, partitions: int = 1, **settings: object) -> str:
        """Create a topic; its settings as keywords, `cleanup_policy="compact"`. The name comes back."""
        from confluent_kafka.cimpl import NewTopic

        made = self.admin.create_topics([NewTopic(name, partitions, 1, config=dotted(settings))])
        made[name].result(ANSWER_SECONDS)
        return name

    def new_topic(self, partitions: int = 1, prefix: str = "topic", **settings: object) -> str:
        """Create a topic whose name no other test has."""
        return self.create_topic(f"{prefix}-{next(_numbers)}-{time.time_ns() % 10**9}", partitions, **settings)

    def produce(
        self, topic: str, *entries: Entry, partition: int = -1, headers: Mapping[str, bytes] | None = None
    ) -> list[Message]:
        """Write values, or (key, value) pairs; returns what was written when all of it is acknowledged."""
        from confluent_kafka import KafkaException

        delivered: list[Message] = []
        faults: list[Any] = []

        def on_delivery(fault: object, message: Message) -> None:
            if fault is None:
                delivered.append(message)
            else:
                faults.append(fault)

        producer = self.producer
        for entry in entries:
            key, value = entry if isinstance(entry, tuple) else (None, entry)
            producer.produce(
                topic, value, key, partition=partition, on_delivery=on_delivery, headers=dict(headers or {}) or None
            )
        producer.flush()
        if faults:
            raise KafkaException(faults[0])
        return delivered

    def consume(
        self, topic: str, n: int = 1, *, group: str | None = None, timeout: float = ANSWER_SECONDS
    ) -> list[Message]:
        """The first `n` committed records of a topic, or the next ones that `group` has not read. TooFew if late."""
        consumer = self.consumer(group or f"pond-{next(_numbers)}")
        try:
            if group is None:
                self._assign_all(consumer, topic)
            else:
                consumer.subscribe([topic])
            found = _read(consumer, topic, n, timeout)
            if group is not None and found:
                consumer.commit(asynchronous=False)
            return found
        finally:
            consumer.close()

    def client_settings(self, **more: object) -> dict[str, Any]:
        """Settings for a confluent-kafka client that finds this broker and loses no time when it comes back."""
        return {
            "bootstrap.servers": self.bootstrap,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
            "error_cb": _ignore,
        } | dotted_values(more)

    def consumer(self, group: str, **settings: object) -> Consumer:
        """A consumer of a group that reads from the beginning and commits when told to."""
        from confluent_kafka import Consumer

        defaults = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        return Consumer(self.client_settings() | defaults | dotted_values(settings))

    @property
    def producer(self) -> Producer:
        from confluent_kafka import Producer

        if "producer" not in self._clients:
            settings = self.client_settings(linger_ms=0, acks="all", message_timeout_ms=int(ANSWER_SECONDS * 1000))
            self._clients["producer"] = Producer(settings)
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

        # Asking for all topics never creates one, as asking for a single one would.
        topics = consumer.list_topics(timeout=ANSWER_SECONDS).topics
        partitions = topics[topic].partitions if topic in topics else ()
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in partitions])

    def _report(self, event: str, **facts: object) -> None:
        if len(self.journal) < JOURNAL_LINES_MAX:
            self.journal.append("  ".join([event, *(f"{name}={value}" for name, value in facts.items())]))


def dotted(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings by their real names, as text."""
    return {name: _text(value) for name, value in dotted_values(settings).items()}


def dotted_values(settings: Mapping[str, object]) -> dict[str, Any]:
    return {_dotted(name): value for name, value in settings.items()}


def _dotted(name: str) -> str:
    # Callbacks and the level of the log are the client library's only names with an underscore of their own.
    return name if name.endswith("_cb") or name == "log_level" else name.replace("_", ".")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(consumer: Consumer, topic: str, n: int, timeout: float) -> list[Message]:
    from confluent_kafka import KafkaException

    found: list[Message] = []
    deadline = time.monotonic() + timeout
    while len(found) < n:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TooFew(f"{len(found)} of {n} records came from {topic} within {timeout:g} s", found)
        message = consumer.poll(left)
        if message is None:
            continue
        fault = message.error()
        if fault is None:
            found.append(message)
        elif not fault.retriable():
            raise KafkaException(fault)
    return found


def _undo(action: Any) -> ExitStack:
    stack = ExitStack()
    stack.callback(action)
    return stack


def _ignore(_: object) -> None:
    """What a client library tells of faults that the test made itself is no news."""
