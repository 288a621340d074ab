"""A work queue: a topic and a share group. Each record goes to one receiver, which acknowledges it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil
from threading import Lock
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar

from millpond.base.resource import Closable
from millpond.client.arguments import named_arguments
from millpond.client.checks import (
    INT32_MAX,
    check_callable,
    check_choice,
    check_duration,
    check_seconds,
    check_text,
    check_topic,
    check_whole,
)
from millpond.client.connection import LOG
from millpond.client.dead_letters import ERROR_MESSAGE_CHARACTERS_MAX, error_text, type_name
from millpond.client.errors import ClientError, Closed, ConfigError, Reject, Timeout, UnknownTopic
from millpond.client.message import Delivery, HeadersLike, Message
from millpond.client.payloads import Serializer, encode
from millpond.client.producer import Producer
from millpond.client.queue_headers import Delay, check_delay
from millpond.client.queue_jobs import message_of
from millpond.client.share_members import is_passing, open_member, warn_of_delay, wire_settings
from millpond.remote.shares.held_record import HeldRecord, Verdict
from millpond.remote.shares.share_consumer import ShareConsumer

QueueFrom: TypeAlias = Literal["earliest", "latest"]

ANSWER_SECONDS: Final = 30.0
"""How long an acknowledgement waits for the cluster."""

M = TypeVar("M", bound="HeldMessage")


@dataclass(slots=True, frozen=True, eq=False)
class HeldMessage(Message):
    """A record that no other receiver gets until its lock expires, or it is released."""

    deliveries: int = 1
    """How often it has been delivered, this time included."""
    _held: HeldRecord | None = field(default=None, repr=False)
    _member: QueueMember | None = field(default=None, repr=False)

    def _settle(self, verdict: Verdict, **more: Any) -> Future[None]:
        if self._member is None or self._held is None:
            raise ClientError(f"{self} was not received from a queue: there is nothing to acknowledge")
        return self._member.acknowledge(self._held, verdict, **more)


@dataclass(slots=True, frozen=True, eq=False)
class QueueMessage(HeldMessage):
    """A record of a queue, until it is acknowledged. LockExpired if that comes too late.

    Without `wait` a failed acknowledgement is only logged.
    """

    def ack(self, *, wait: bool = True) -> None:
        """The work is done: nobody receives the record again."""
        _await(self, self._settle(Verdict.ACCEPT), wait)

    def release(self, delay: Delay = 0, *, wait: bool = True) -> None:
        """Give it back: it is delivered again, after the delay."""
        _await(self, self._settle(Verdict.RELEASE, delay=delay), wait)

    def reject(self, error: BaseException | str | None = None, *, wait: bool = True) -> None:
        """Give it up: nobody receives it again. It goes to the group's dead-letter topic, if there is one."""
        _await(self, self._settle(Verdict.REJECT, error=error), wait)

    def renew(self) -> None:
        """Hold it for as long as when it was received, from now on."""
        _await(self, self._settle(Verdict.RENEW), wait=True)


class QueueMember:
    """The receiving side of a queue: joins the share group at the first use. Thread-safe."""

    def __init__(
        self, topic: str, group: str | None, from_: str, bootstrap: str | None, settings: Mapping[str, Any] | None
    ) -> None:
        self._topic = topic
        self._group = group
        self._from = from_
        self._settings = wire_settings(bootstrap, settings)
        self._lock = Lock()
        self._consumer: ShareConsumer | None = None
        self._delays = True
        self._closed = False

    def receive(self, kind: type[M], most: int, timeout: float) -> list[M]:
        check_whole(most, "max", 1, INT32_MAX)
        timeout_s = check_seconds(timeout, "timeout")
        consumer = self._joined()
        records = consumer.receive(most, timeout_s)
        if not records and consumer.missing_topics:
            raise UnknownTopic(
                f"there is no topic {self._topic}: create it first (millpond topic create {self._topic})"
            )
        return [self._message(kind, each) for each in records]

    def _message(self, kind: type[M], held: HeldRecord) -> M:
        plain = message_of(held)
        return kind(
            plain.topic,
            plain.partition,
            plain.offset,
            plain.timestamp_ms,
            plain.key,
            plain.value,
            plain.headers,
            held.deliveries,
            held,
            self,
        )

    def put_back(self, messages: Sequence[HeldMessage]) -> None:
        """Nobody saw these."""
        if self._consumer is not None:
            self._consumer.put_back([each._held for each in messages if each._held is not None])

    def acknowledge(
        self, held: HeldRecord, verdict: Verdict, *, delay: Delay = 0, error: BaseException | str | None = None
    ) -> Future[None]:
        assert self._consumer is not None, "it delivered the record"
        delay_ms = ceil(check_delay(delay) * 1000)
        if delay_ms and not self._delays:
            self._delays = True
            warn_of_delay(self._group or "")
        if error is None and verdict is Verdict.REJECT:
            error = "rejected"
        if isinstance(error, str):
            error = Reject(error)
        return self._consumer.acknowledge(
            held,
            verdict,
            delay_ms=delay_ms,
            error_type="" if error is None else type_name(error),
            error_message="" if error is None else error_text(error)[:ERROR_MESSAGE_CHARACTERS_MAX],
        )

    def close(self, timeout_s: float) -> None:
        with self._lock:
            self._closed = True
            consumer = self._consumer
        if consumer is not None:
            consumer.close(timeout_s)

    def _joined(self) -> ShareConsumer:
        with self._lock:
            if self._closed:
                raise Closed("this queue is closed: open another one")
            if self._group is None:
                raise ConfigError(f'Queue({self._topic!r}) has no group, so it only sends: give it group="…"')
            if self._consumer is None:
                try:
                    self._consumer, about = open_member(
                        self._settings, self._group, [self._topic], self._from, renews=False
                    )
                except ClientError as fault:
                    if is_passing(fault):
                        raise Timeout(f"the cluster does not answer: {fault}", code=fault.code) from fault
                    raise
                self._delays = about.delays
            return self._consumer


class Queue(Closable):
    """Sends jobs to a topic, and receives them as a member of a share group. Thread-safe.

    A received message is locked for `share.record.lock.duration.ms` of the group (30 s): acknowledge it within that
    time, or `renew` it. Closing releases what was not acknowledged. Without a group the queue only sends.
    """

    @named_arguments("Queue")
    def __init__(
        self,
        topic: str,
        group: str | None = None,
        *,
        bootstrap: str | None = None,
        from_: QueueFrom = "earliest",
        serializer: Serializer = encode,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.topic = check_topic(topic)
        self.group = check_group(group)
        check_choice(from_, "from_", ("earliest", "latest"))
        check_callable(serializer, "serializer")
        self._producer = Producer(bootstrap, linger_ms=0, serializer=serializer, settings=settings)
        self._member = QueueMember(topic, group, from_, bootstrap, settings)

    def send(
        self,
        value: Any = None,
        *,
        key: str | bytes | None = None,
        headers: HeadersLike = (),
        delay: Delay | None = None,
        at: datetime | int | None = None,
        priority: int | None = None,
    ) -> Future[Delivery]:
        """Send a job; the future is its Delivery once acknowledged, or SendFailed."""
        return self._producer.send(self.topic, value, key, headers=headers, delay=delay, at=at, priority=priority)

    def receive(self, max: int = 1, timeout: float = 20.0) -> list[QueueMessage]:
        """Wait up to `timeout` seconds for a job, then return up to `max` that are available."""
        return self._member.receive(QueueMessage, max, timeout)

    def close(self, timeout_s: float = 10.0) -> None:
        """Send what is left, release what was received and not acknowledged, and leave the group. Idempotent."""
        check_duration(timeout_s, "timeout_s")
        try:
            self._producer.close(timeout_s)
        finally:
            self._member.close(timeout_s)

    def __enter__(self) -> Self:
        return self


def check_group(group: object) -> str | None:
    if group is None:
        return None
    if not check_text(group, "group"):
        raise ConfigError("group is a name: leave it out for a queue that only sends")
    return str(group)


def _await(message: HeldMessage, outcome: Future[None], wait: bool) -> None:
    if not wait:
        outcome.add_done_callback(_log_failure)
        return
    try:
        outcome.result(ANSWER_SECONDS)
    except TimeoutError:
        raise Timeout(
            f"{message}: the acknowledgement has no answer after {ANSWER_SECONDS:g} s, the record may be delivered "
            "again"
        ) from None


def _log_failure(outcome: Future[None]) -> None:
    if (fault := outcome.exception()) is not None:
        LOG.warning("%s", fault)
