"""When and how often a failed record is retried, and the headers of records in retry topics.

Short delays are spent in memory: the record's key waits (unless order="none"), other keys go on, and its offset is
not committed before it is done. Long delays are spent in retry topics, one for each delay (`orders.retry.1m`): the
record is written there with its due time, the partition moves on, and any worker of the group runs it when due. All
records of one retry topic wait equally long, so its first record is always the next one due.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from millpond.client.arguments import named_arguments
from millpond.client.dead_letters import REDRIVEN, REDRIVEN_FOR, Origin, origin_of, redriven_count
from millpond.client.dead_letters import TOPIC as DEAD_TOPIC
from millpond.client.errors import ConfigError
from millpond.client.message import Header, Message, Send

Backoff: TypeAlias = Literal["exponential", "linear", "fixed"]
Order: TypeAlias = Literal["key", "none"]

TOPIC: Final = "retry.topic"
PARTITION: Final = "retry.partition"
OFFSET: Final = "retry.offset"
TIMESTAMP: Final = "retry.timestamp"
ATTEMPTS: Final = "retry.attempts"
DUE: Final = "retry.due"
GROUP: Final = "retry.group"
OWN_HEADERS: Final = frozenset({TOPIC, PARTITION, OFFSET, TIMESTAMP, ATTEMPTS, DUE, GROUP, REDRIVEN, REDRIVEN_FOR})


@dataclass(slots=True, frozen=True)
class Retry:
    """Up to `tries` runs of the handler for one record, the first included.

    The delay before try n + 1 is `first_s`, times `factor` for each further try when exponential, up to `longest_s`,
    plus up to `jitter` of itself at random, so that records that failed together are not retried together.

    order="key": later records with the same key wait for a failed one; every delay is spent in memory.
    order="none": they overtake it; delays of `topics_from_s` or more are spent in retry topics.
    """

    tries: int = 5
    """Runs of the handler for one record, the first included."""
    backoff: Backoff = "exponential"
    """How the delays grow."""
    first_s: float = 0.5
    """The delay before the second try."""
    factor: float = 2.0
    """How many times longer each exponential delay is than the one before."""
    longest_s: float = 60.0
    """No delay is longer."""
    jitter: float = 0.2
    """Up to this part of a delay is added at random."""
    order: Order = "key"
    """Whether records with the same key wait for a failed one."""
    topics_from_s: float = 5.0
    """With `order="none"`, delays of this length or more are spent in retry topics."""
    give_up_on: tuple[type[BaseException], ...] = ()
    """Errors that no further try can help."""

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise ConfigError("a record is tried at least once: tries=1 means no retries")
        if self.backoff not in ("exponential", "linear", "fixed"):
            raise ConfigError(f'backoff is "exponential", "linear" or "fixed", not {self.backoff!r}')
        if self.order not in ("key", "none"):
            raise ConfigError(f'order is "key" or "none", not {self.order!r}')
        if self.first_s < 0 or self.longest_s < 0 or self.factor < 1 or self.jitter < 0:
            raise ConfigError("delays and jitter are not negative, and factor is at least 1")

    def plain_delay_s(self, failed: int) -> float:
        """The delay after `failed` failed tries, without jitter."""
        match self.backoff:
            case "fixed":
                delay = self.first_s
            case "linear":
                delay = self.first_s * failed
            case _:
                # Bounded, so that many tries do not overflow a float.
                delay = self.first_s * self.factor ** min(failed - 1, 64)
        return min(delay, self.longest_s)

    def delay_s(self, failed: int, chance: Callable[[], float] = random.random) -> float:
        plain = self.plain_delay_s(failed)
        return plain + plain * self.jitter * chance()

    def waits_in_topic(self, failed: int) -> bool:
        return self.order == "none" and self.plain_delay_s(failed) >= self.topics_from_s

    def topics(self, topic: str) -> dict[str, float]:
        """The retry topics of `topic`, and how long records wait there at most."""
        delays = [self.plain_delay_s(n) for n in range(1, self.tries) if self.waits_in_topic(n)]
        return {retry_topic(topic, delay_s): delay_s * (1 + self.jitter) for delay_s in delays}


Retry.__init__ = named_arguments("Retry")(Retry.__init__)  # type: ignore[method-assign]
NO_RETRY: Final = Retry(tries=1)


def as_retry(retries: Retry | int) -> Retry:
    """A number is how often a record is retried after its first try: 3 is Retry(4)."""
    if isinstance(retries, Retry):
        return retries
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise ConfigError(f"retries is a number of further tries or a Retry(…), not {retries!r}")
    return Retry(tries=retries + 1)


def retry_topic(topic: str, delay_s: float) -> str:
    return f"{topic}.retry.{_delay_name(delay_s)}"


def retry_record(
    message: Message, *, to: str, origin: Origin, attempts: int, due_ms: int, group: str, redriven: int
) -> Send:
    """The record for a retry topic: as the handler saw it, plus our headers."""
    added: list[Header] = [
        (TOPIC, origin.topic.encode()),
        (PARTITION, b"%d" % origin.partition),
        (OFFSET, b"%d" % origin.offset),
        (TIMESTAMP, b"%d" % origin.timestamp_ms),
        (ATTEMPTS, b"%d" % attempts),
        (DUE, b"%d" % due_ms),
        (GROUP, group.encode()),
    ]
    if redriven:
        added.append((REDRIVEN, b"%d" % redriven))
    return Send(to, message.value, message.key, (*message.headers, *added))


@dataclass(slots=True, frozen=True)
class IncomingRecord:
    """A record with the values of our headers, which are removed from it.

    A handler that forwards headers would otherwise attach them to another record.
    """

    message: Message
    origin: Origin
    attempts: int = 0
    """Tries so far."""
    due_ms: int = 0
    group: str | None = None
    """The group that retries it, or for which it was redriven; None for all groups."""
    redriven: int = 0


def is_redriven(message: Message) -> bool:
    """Whether `read_new` may find headers of ours."""
    return any(name == REDRIVEN for name, _ in message.headers) if message.headers else False


def read_new(message: Message) -> IncomingRecord:
    """A record of one of the worker's topics."""
    if message.header(REDRIVEN) is None or message.header(DEAD_TOPIC) is not None:
        return IncomingRecord(message, origin_of(message))
    meant = message.header(REDRIVEN_FOR)
    return IncomingRecord(
        _without(message, {REDRIVEN, REDRIVEN_FOR}),
        origin_of(message),
        group=None if meant is None else meant.decode(errors="replace"),
        redriven=redriven_count(message),
    )


def read_retried(message: Message) -> IncomingRecord:
    """A record of one of the worker's retry topics; one without our headers counts as new."""
    try:
        origin = Origin(
            (message.header(TOPIC) or b"").decode(),
            int(message.header(PARTITION) or b""),
            int(message.header(OFFSET) or b""),
            int(message.header(TIMESTAMP) or b""),
        )
        due_ms = int(message.header(DUE) or b"")
        attempts = int(message.header(ATTEMPTS) or b"")
    except ValueError:
        return read_new(message)
    if not 0 <= due_ms < 1 << 63 or not 0 <= attempts < 1 << 31:
        return read_new(message)
    group = (message.header(GROUP) or b"").decode(errors="replace")
    seen = _without(message, OWN_HEADERS)
    return IncomingRecord(seen, origin, attempts, due_ms, group, redriven_count(message))


def _without(message: Message, names: Container[str]) -> Message:
    return replace(message, headers=tuple(each for each in message.headers if each[0] not in names))


def _delay_name(delay_s: float) -> str:
    ms = round(delay_s * 1000)
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if ms >= size and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"
