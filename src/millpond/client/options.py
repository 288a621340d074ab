"""All options of a worker, checked in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, TypedDict

from millpond.client.checks import (
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

Delivery: TypeAlias = Literal["at_most_once", "at_least_once", "exactly_once"]
DELIVERIES = ("at_most_once", "at_least_once", "exactly_once")


CLASSIC_SESSION_SECONDS: Final = 10.0


class OptionsKwargs(TypedDict, total=False):
    """What Worker takes beside topics and group, for type checkers. The meaning and the defaults are in Options."""

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
    """What the decorator takes beside topics and group."""

    bootstrap: str | None
    """The cluster, as `host:port,host:port`; else `MILLPOND_BOOTSTRAP`, else `127.0.0.1:9092`."""
    payload: Any
    """What the handler is given, if its first parameter's annotation does not say: a type."""
    decoder: Decoder | None
    """Makes the handler's first argument of a record: a function `(message) -> value`."""
    serializer: Serializer
    """Makes bytes of what the handler sends: a function `(value, topic) -> bytes | None`."""


@dataclass(slots=True, frozen=True)
class Options:
    topics: Sequence[str]
    """The topic, or a list of topics."""
    group: str
    """The consumer group: by its name the cluster remembers where the worker was."""
    delivery: Delivery = "at_least_once"
    """What a crash may do to the records in hand: lose, repeat, or neither."""
    retries: Retry = NO_RETRY
    """How often and when a failed record is tried again; a number is so many further tries."""
    dead_letters: str | None = None
    """Where a record goes that failed for good. None: the worker stops instead, before that record."""
    concurrency: int = 1
    """Handlers at a time: threads, or tasks of an async handler."""
    processed: ProcessedIds | None = None
    """A store that remembers which records are done: exactly once into a database."""
    record_id: Callable[[Message], str] | None = None
    """What names a record in that store; its group, topic, partition and offset if not given."""
    in_flight_max: int = 1_000
    """Records taken and not finished: what a crash makes run twice, beside those finished since the last commit."""
    commit_every_s: float = 0.2
    """How often finished positions are committed."""
    stop_timeout_s: float = 30.0
    """How long a running handler is waited for when the worker stops or loses a partition."""
    close_timeout_s: float = 10.0
    """How long a stopping worker waits for the cluster to take what is finished, once its handlers are done."""
    from_: From = "earliest"
    """Where a group begins that has committed nothing; an int is milliseconds since 1970."""
    protocol: Protocol = "classic"
    """The group protocol; `"consumer"` is the newer one (KIP-848), in which the broker assigns."""
    instance: str | None = None
    """A name that stays through restarts: the group keeps its partitions, and an open transaction ends at once."""
    session_timeout_s: float | None = None
    """When the group gives away the partitions of a worker that ended without leaving. None: after 10 s, or with
    `protocol="consumer"` after the group's `consumer.session.timeout.ms`, and no other value is allowed there."""
    transaction_timeout_s: float = 10.0
    """After so long the cluster ends the open transaction of a worker that is gone."""
    tracing: bool = False
    """Whether each try is a span of OpenTelemetry, in the trace that its record came with; needs `millpond[otel]`."""
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """librdkafka's own, for the consumer and the producer alike where both know it."""

    @property
    def classic_session_timeout_s(self) -> float:
        return CLASSIC_SESSION_SECONDS if self.session_timeout_s is None else self.session_timeout_s

    @property
    def is_transactional(self) -> bool:
        return self.delivery == "exactly_once" and self.processed is None

    def retry_topics(self) -> dict[str, float]:
        """All that it reads beside its topics, and how long a record waits there at most."""
        return {name: longest_s for topic in self.topics for name, longest_s in self.retries.topics(topic).items()}

    def home(self, topic: str) -> str:
        """The topic whose records these are: of a retry topic, the one it belongs to."""
        return next((each for each in self.topics if topic in self.retries.topics(each)), topic)


def check(options: Options, handler: Handler) -> None:
    """ConfigError for what cannot be, with the reason."""
    _check_kinds(options)
    if not options.group:
        raise ConfigError("a worker needs a group: its name is how the cluster remembers where it was")
    if options.delivery not in DELIVERIES:
        raise ConfigError(f"delivery is one of {', '.join(DELIVERIES)}, not {options.delivery!r}")
    if options.delivery == "at_most_once" and options.retries.tries > 1:
        raise ConfigError("at_most_once and retries contradict each other: use at_least_once, or tries=1")
    if options.processed is not None and options.delivery != "exactly_once":
        raise ConfigError('a store of processed ids is for delivery="exactly_once"')
    if options.processed is not None and handler.is_async:
        raise ConfigError("a store of processed ids wants a plain function: its transaction belongs to one thread")
    if handler.takes_unit and options.processed is None:
        raise ConfigError(f"{handler.name} wants the unit of a store: give processed=SqliteIds(…) or RedisIds(…)")
    if options.dead_letters is not None and options.dead_letters in options.topics:
        raise ConfigError("the dead letters cannot go to a topic that the worker reads: they would never end")
    if options.tracing:
        from millpond.client.traces import Tracing

        Tracing()  # which says what is missing
    if options.concurrency < 1 or options.in_flight_max < 1:
        raise ConfigError("concurrency and in_flight_max are at least 1")


def _check_kinds(options: Options) -> None:
    """Names are text and numbers are numbers: said here, and not as a TypeError when the first record comes."""
    check_topics(options.topics)
    if options.dead_letters is not None:
        check_topic(options.dead_letters, "dead_letters")
    for name in ("group", "instance"):
        given = getattr(options, name)
        if given is not None:
            check_text(given, name)
    for name in ("concurrency", "in_flight_max"):
        given = getattr(options, name)
        if not isinstance(given, int) or isinstance(given, bool):
            raise ConfigError(f"{name} is a whole number, not {given!r}")
    for name in ("commit_every_s", "stop_timeout_s", "close_timeout_s", "transaction_timeout_s"):
        given = getattr(options, name)
        check_duration(given, name)
    check_choice(options.protocol, "protocol", ("classic", "consumer"))
    check_session_timeout(options.session_timeout_s, options.protocol)
    check_from(options.from_)
    check_settings(options.settings)
    if options.record_id is not None:
        check_callable(options.record_id, "record_id")
