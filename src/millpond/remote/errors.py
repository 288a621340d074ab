"""Errors between us and a cluster, and which of them are temporary.

`ClientError` is the base of all errors of the client, Spark and the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition

_E = ErrorCode

STALE_LEADER: Final = frozenset(
    {
        _E.UNKNOWN_TOPIC_OR_PARTITION,
        _E.LEADER_NOT_AVAILABLE,
        _E.NOT_LEADER_OR_FOLLOWER,
        _E.REPLICA_NOT_AVAILABLE,
        _E.FENCED_LEADER_EPOCH,
        _E.UNKNOWN_LEADER_EPOCH,
        _E.OFFSET_NOT_AVAILABLE,
        _E.KAFKA_STORAGE_ERROR,
        _E.UNKNOWN_TOPIC_ID,
        _E.INCONSISTENT_TOPIC_ID,
    }
)
"""Refresh the leader, then retry."""

STALE_COORDINATOR: Final = frozenset(
    {_E.COORDINATOR_NOT_AVAILABLE, _E.NOT_COORDINATOR, _E.COORDINATOR_LOAD_IN_PROGRESS}
)
"""Refresh the coordinator, then retry."""

PASSING: Final = frozenset(
    {
        *STALE_LEADER,
        *STALE_COORDINATOR,
        _E.REQUEST_TIMED_OUT,
        _E.NETWORK_EXCEPTION,
        _E.BROKER_NOT_AVAILABLE,
        _E.NOT_ENOUGH_REPLICAS,
        _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        _E.CONCURRENT_TRANSACTIONS,
        _E.THROTTLING_QUOTA_EXCEEDED,
        _E.NOT_CONTROLLER,
        _E.UNKNOWN_SERVER_ERROR,
    }
)
"""Worth a retry after a moment."""

ADVICE: Final[Mapping[int, str]] = {
    _E.UNKNOWN_TOPIC_OR_PARTITION: "create the topic first: millpond topic create NAME",
    _E.TOPIC_AUTHORIZATION_FAILED: "this user may not use the topic: ask for the right to",
    _E.GROUP_AUTHORIZATION_FAILED: "this user may not use the group: ask for the right to",
    _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this user may not use the transactional id: ask for the right to",
    _E.CLUSTER_AUTHORIZATION_FAILED: "this user may not do that on the cluster: ask for the right to",
    _E.INVALID_TRANSACTION_TIMEOUT: "it is above the cluster's transaction.max.timeout.ms: ask for less",
    _E.MESSAGE_TOO_LARGE: "send less in one record, or raise max.message.bytes of the topic",
    _E.RECORD_LIST_TOO_LARGE: "send smaller batches, or raise segment.bytes of the topic",
    _E.NOT_ENOUGH_REPLICAS: "too few replicas are in sync for acks=all: bring nodes back, or wait",
    _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "too few replicas are in sync for acks=all: bring nodes back, or wait",
}
"""What to do about an error code, where we know."""


class ClientError(Exception):
    """Base of all client errors. `code` is the protocol's or librdkafka's (negative), 0 for none."""

    def __init__(self, message: str, *, code: int = 0, retriable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.retriable = retriable


class ConfigError(ClientError, ValueError):
    """An invalid argument or setting."""


class MissingExtra(ClientError, ImportError):
    """A feature needs a package that is not installed."""


class SendFailed(ClientError):
    """A record was not acknowledged. After a timeout it may or may not be in the log."""


class UnknownTopic(ClientError):
    """The requested topic does not exist."""


class Fenced(ClientError):
    """Another instance has taken over from this one."""


class ClusterError(ClientError):
    """The cluster refused or failed a request."""


class Unreachable(ClusterError):
    """No broker answers, or the connection broke. `retriable` unless the address or the security settings are
    wrong."""


class LoginFailed(ClusterError):
    """The broker rejected our credentials, or we rejected its own."""


class Unsupported(ClusterError):
    """The broker does not support this request, or only in versions that we do not."""


class Answered(ClusterError):
    """A broker returned an error code."""

    def __init__(self, what: str, code: int, message: str | None = None) -> None:
        codes = {each.value for each in ErrorCode}
        name = ErrorCode(code).name if code in codes else f"error {code}"
        advice = ADVICE.get(code)
        reason = f"{message.rstrip('.')} ({name})" if message else name
        text = f"{what}: {reason}" + (f"; {advice}" if advice else "")
        super().__init__(text, code=code, retriable=code in PASSING)


class LockExpired(ClusterError):
    """A record of a queue is no longer held by this member: its acknowledgement was refused or is not confirmed."""


class OffsetsGone(ClusterError):
    """Requested records are not in the log, or no longer."""

    def __init__(self, partition: TopicPartition, requested: int, earliest: int, latest: int) -> None:
        super().__init__(
            f"{partition}: offset {requested} was asked for, the log has {earliest} to {latest}",
            code=ErrorCode.OFFSET_OUT_OF_RANGE,
        )
        self.partition = partition
        self.requested = requested
        self.earliest = earliest
        self.latest = latest

    def __reduce__(self) -> tuple[type[OffsetsGone], tuple[TopicPartition, int, int, int]]:
        return OffsetsGone, (self.partition, self.requested, self.earliest, self.latest)


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise `Answered` if the code is an error."""
    if code != ErrorCode.NONE:
        raise Answered(what, code, message)


def needs(package: str, extra: str) -> MissingExtra:
    return MissingExtra(f"this needs the package {package!r}: pip install 'millpond[{extra}]'")
