"""What can go wrong for a user of the client. Every message says what happened and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.remote.errors import ClientError as ClientError
from millpond.remote.errors import ConfigError as ConfigError
from millpond.remote.errors import Fenced as Fenced
from millpond.remote.errors import LockExpired as LockExpired
from millpond.remote.errors import MissingExtra as MissingExtra
from millpond.remote.errors import SendFailed as SendFailed
from millpond.remote.errors import UnknownTopic as UnknownTopic
from millpond.remote.errors import needs as needs

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_TAKEN_OVER = "another instance with the same name has taken over: give every running instance its own name"

ADVICE = {
    "_MSG_TIMED_OUT": "no broker acknowledged it in time: check that the cluster is reachable, or allow more with "
    "delivery_timeout_s",
    "_TRANSPORT": "the connection broke: check the address in `bootstrap` and that the cluster is up",
    "_ALL_BROKERS_DOWN": "no broker answers: check the address in `bootstrap` and that the cluster is up",
    "_RESOLVE": "the host name is unknown: check the address in `bootstrap`",
    "_UNKNOWN_TOPIC": "create the topic first, or correct its name",
    "UNKNOWN_TOPIC_OR_PART": "create the topic first, or correct its name",
    "_UNKNOWN_PARTITION": "the topic has fewer partitions than that",
    "MSG_SIZE_TOO_LARGE": "send less in one record, or raise message.max.bytes of the producer and max.message.bytes "
    "of the topic",
    "NOT_ENOUGH_REPLICAS": "too few replicas are in sync for acks=all: bring nodes back, or wait",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": "too few replicas are in sync for acks=all: bring nodes back, or wait",
    "TOPIC_AUTHORIZATION_FAILED": "this user may not use the topic: ask for an ACL",
    "GROUP_AUTHORIZATION_FAILED": "this user may not read as this group: ask for an ACL",
    "_FENCED": _TAKEN_OVER,
    "FENCED_INSTANCE_ID": _TAKEN_OVER,
    "PRODUCER_FENCED": _TAKEN_OVER,
    "UNRELEASED_INSTANCE_ID": "give every running instance its own name; a killed one is removed from the group when "
    "its session expires (consumer.session.timeout.ms)",
    "_MAX_POLL_EXCEEDED": "poll was not called for too long: take fewer records at a time, or raise "
    "max.poll.interval.ms",
    "ILLEGAL_GENERATION": "the group rebalanced without this consumer; other members read its partitions again",
    "UNKNOWN_MEMBER_ID": "the group rebalanced without this consumer; other members read its partitions again",
    "INVALID_RECORD": "the topic does not accept this record; a compacted topic requires a key",
    "_NO_OFFSET": "nothing has been read since the last commit",
    "_PURGE_QUEUE": "the producer was closed before the record left: wait for flush() before close()",
}
"""What to do about an error of librdkafka, by its name."""


def advice_on(error: KafkaError) -> str:
    """The error with advice, where we have any."""
    advice = ADVICE.get(error.name())
    return f"{error.str()} ({error.name()})" + (f"; {advice}" if advice else "")


class BufferFull(ClientError):
    """The producer's buffer has no room: records are sent faster than the cluster takes them."""


class SentToUnknownTopic(SendFailed, UnknownTopic):
    """The topic of a record does not exist, and the producer does not create topics."""


def send_failure(topic: str, error: KafkaError, *, retriable: bool = False) -> SendFailed:
    if error.name() in ("_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART"):
        return SentToUnknownTopic(unknown_topic(topic), code=error.code(), retriable=retriable)
    return SendFailed(f"{topic}: {advice_on(error)}", code=error.code(), retriable=retriable)


def unknown_topic(topic: str) -> str:
    return (
        f"topic {topic!r} does not exist: create it (millpond topic create {topic}), correct its name, or make the "
        "producer with create_topics=True"
    )


class Timeout(ClientError, TimeoutError):
    """Something took longer than it was allowed to."""


class Closed(ClientError):
    """The producer or consumer has been closed."""


class ConsumeFailed(ClientError):
    """The consumer cannot go on."""


class CommitFailed(ClientError):
    """Offsets could not be committed; the records will be delivered again."""


class DecodeFailed(ClientError):
    """A payload is not what its reader expects."""


class HandlerFailed(ClientError):
    """A record failed for good and the worker has no dead-letter topic, so it stopped before that record."""


class StoreFailed(ClientError):
    """The store of processed ids cannot be used. Not the record's fault: it is tried again, never a dead letter."""


class AlreadyProcessed(ClientError):
    """Another worker finished the same record first; this run had no effect."""


class Reject(Exception):
    """Raise it in a handler: the record goes to the dead letters at once, without further tries."""
