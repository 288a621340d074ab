"""All options of a worker, checked in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias, TypedDict

from millpond.client.checks import (
    PATTERN_MARK,
    check_callable,
    check_choice,
    check_duration,
    check_session_timeout,
    check_settings,
    check_text,
    check_topic,
    check_topics,
)
from millpond.client.consumer import From, Protocol, check_from
from millpond.client.errors import ConfigError
from millpond.client.handler import Handler
from millpond.client.message import Message
from millpond.client.payloads import Decoder, Serializer
from millpond.client.processed_ids import ProcessedIds
from millpond.client.retry import NO_RETRY, Retry

Mode: TypeAlias = Literal["log", "queue"]
Delivery: TypeAlias = Literal["at_most_once", "at_least_once", "exactly_once"]
DELIVERIES = ("at_most_once", "at_least_once", "exactly_once")


CLASSIC_SESSION_SECONDS: Final = 10.0

NOT_FOR_QUEUES: Final = {
    "delivery": "a queue delivers at least once; note the id of a job where its effect is written",
    "processed": 'a queue delivers at least once; use mode="log" for effects in a database exactly once',
    "record_id": 'it belongs to processed=, which is for mode="log"',
    "commit_every_s": "each record is acknowledged by itself, at once",
    "protocol": "a share group has a protocol of its own",
    "instance": "a restarted worker waits for nothing: no partition is assigned to one worker alone",
    "session_timeout_s": "a record comes back after share.record.lock.duration.ms of the group, or as soon as the "
    "connection of its worker breaks",
    "transaction_timeout_s": "a queue has no transactions",
}
"""Options that a queue cannot honour, and why."""


class OptionsKwargs(TypedDict, total=False):
    """Arguments of Worker besides topics and group, for type checkers. Options documents them."""

    mode: Mode
    delivery: Delivery
    retries: Retry | int
    dead_letters: str | None
    concurrency: int
    processed: ProcessedIds | None
    record_id: Callable[[Message], str] | None
    in_flight_max: int
    commit_every_s: float
    stop_timeout_s: float
    close_timeout_s: float
    from_: From
    protocol: Protocol
    instance: str | None
    session_timeout_s: float | None
    transaction_timeout_s: float
    tracing: bool
    settings: Mapping[str, Any]


class WorkerKwargs(OptionsKwargs, total=False):
    """Arguments of the decorator besides topics and group."""

    bootstrap: str | None
    """The cluster, as `host:port,host:port`; else `MILLPOND_BOOTSTRAP`, else `127.0.0.1:9092`."""
    payload: Any
    """The type of the handler's first argument, if its annotation does not say."""
    decoder: Decoder | None
    """Turns a message into the handler's first argument: a function `(message) -> value`."""
    serializer: Serializer
    """Turns values the handler sends into bytes: a function `(value, topic) -> bytes | None`."""


@dataclass(slots=True, frozen=True)
class Options:
    topics: Sequence[str]
    """The topic, or a list of topics."""
    group: str
    """The consumer group, under which the cluster stores the worker's offsets; in queue mode the share group."""
    delivery: Delivery = "at_least_once"
    """Whether a crash may lose records in flight, repeat them, or neither."""
    mode: Mode = "log"
    """`"log"`: partitions are divided among the workers, each in order. `"queue"`: every worker takes the next record
    of any partition, and finishes each by itself."""
    retries: Retry = NO_RETRY
    """When and how often a failed record is retried; a number is the count of further tries."""
    dead_letters: str | None = None
    """The topic for records that failed for good. None: the worker stops before such a record instead; in queue mode
    it rejects the record if the group has `errors.deadletterqueue.topic.name`."""
    concurrency: int = 1
    """Handlers at a time: threads, or tasks of an async handler."""
    processed: ProcessedIds | None = None
    """A store of processed records: exactly once into a database."""
    record_id: Callable[[Message], str] | None = None
    """The record's id in that store; by default its group, topic, partition and offset."""
    in_flight_max: int = 1_000
    """The most unfinished records: a crash repeats these and those finished since the last commit. In queue mode a
    worker takes ahead only what its handlers finish within a fifth of a second."""
    commit_every_s: float = 0.2
    """How often finished offsets are committed."""
    stop_timeout_s: float = 30.0
    """How long to wait for running handlers when the worker stops or loses a partition."""
    close_timeout_s: float = 10.0
    """How long a stopping worker waits for the cluster once its handlers are done."""
    from_: From = "earliest"
    """Where a group without committed offsets begins; an int is milliseconds since 1970. In queue mode
    `"earliest"` or `"latest"`: the worker gives the share group this setting, unless it has one."""
    protocol: Protocol = "classic"
    """The group protocol; `"consumer"` is the newer one (KIP-848), in which the broker assigns."""
    instance: str | None = None
    """A name that survives restarts: the group keeps its partitions, and an open transaction ends at once."""
    session_timeout_s: float | None = None
    """How long the group keeps the partitions of a worker that ended without leaving. None: 10 s, or with
    `protocol="consumer"` the group's `consumer.session.timeout.ms`, where no other value is allowed."""
    transaction_timeout_s: float = 10.0
    """When the cluster aborts the open transaction of a worker that is gone."""
    tracing: bool = False
    """Whether each attempt is an OpenTelemetry span in its record's trace; needs `millpond[otel]`."""
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """librdkafka settings, for the consumer and the producer where both have them."""

    @property
    def classic_session_timeout_s(self) -> float:
        return CLASSIC_SESSION_SECONDS if self.session_timeout_s is None else self.session_timeout_s

    @property
    def is_transactional(self) -> bool:
        return self.delivery == "exactly_once" and self.processed is None

    def retry_topics(self) -> dict[str, float]:
        """The retry topics it reads, and how long a record waits there at most."""
        if self.mode == "queue":
            return {}
        return {name: longest_s for topic in self.topics for name, longest_s in self.retries.topics(topic).items()}

    def home(self, topic: str) -> str:
        """The topic itself, or the one a retry topic belongs to."""
        return next((each for each in self.topics if topic in self.retries.topics(each)), topic)


def check(options: Options, handler: Handler) -> None:
    """ConfigError for wrong or contradictory options."""
    _check_kinds(options)
    if options.mode == "queue":
        check_queue(options)
    if not options.group:
        raise ConfigError("a worker needs a group: the cluster stores its offsets under that name")
    if options.delivery not in DELIVERIES:
        raise ConfigError(f"delivery is one of {', '.join(DELIVERIES)}, not {options.delivery!r}")
    if options.delivery == "at_most_once" and options.retries.tries > 1:
        raise ConfigError("at_most_once and retries contradict each other: use at_least_once, or tries=1")
    if options.processed is not None and options.delivery != "exactly_once":
        raise ConfigError('a store of processed ids is for delivery="exactly_once"')
    if options.processed is not None and handler.is_async:
        raise ConfigError("a store of processed ids needs a plain function: its transaction belongs to one thread")
    if handler.takes_unit and options.processed is None:
        raise ConfigError(f"{handler.name} takes the unit of a store: pass processed=SqliteIds(…) or RedisIds(…)")
    if options.dead_letters is not None and options.dead_letters in options.topics:
        raise ConfigError("the dead letters cannot go to a topic that the worker reads: they would never end")
    if options.tracing:
        from millpond.client.traces import Tracing

        Tracing()  # raises if the package is missing
    if options.concurrency < 1 or options.in_flight_max < 1:
        raise ConfigError("concurrency and in_flight_max are at least 1")


def check_queue(options: Options) -> None:
    """ConfigError for options that have no meaning for a queue."""
    defaults = {each.name: each.default for each in fields(Options)}
    for name, why in NOT_FOR_QUEUES.items():
        if getattr(options, name) != defaults[name]:
            raise ConfigError(f'mode="queue" takes no {name}: {why}')
    if options.from_ not in ("earliest", "latest"):
        raise ConfigError(
            'from_ is "earliest" or "latest" with mode="queue": a share group that exists is moved with '
            "`millpond group reset`"
        )
    if any(each.startswith(PATTERN_MARK) for each in options.topics):
        raise ConfigError('mode="queue" takes names of topics, not patterns: a share group subscribes by name')


def _check_kinds(options: Options) -> None:
    """Check types here, instead of a TypeError at the first record."""
    check_topics(options.topics)
    if options.dead_letters is not None:
        check_topic(options.dead_letters, "dead_letters")
    for name in ("group", "instance"):
        value = getattr(options, name)
        if value is not None:
            check_text(value, name)
    for name in ("concurrency", "in_flight_max"):
        value = getattr(options, name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"{name} is a whole number, not {value!r}")
    for name in ("commit_every_s", "stop_timeout_s", "close_timeout_s", "transaction_timeout_s"):
        value = getattr(options, name)
        check_duration(value, name)
    check_choice(options.mode, "mode", ("log", "queue"))
    check_choice(options.protocol, "protocol", ("classic", "consumer"))
    check_session_timeout(options.session_timeout_s, options.protocol)
    check_from(options.from_)
    check_settings(options.settings)
    if options.record_id is not None:
        check_callable(options.record_id, "record_id")
