"""The interface of a coordinator: requests go in; records and responses come out.

A shard is the part of a coordinator for one partition of its internal topic. `step` and `on_timer` decide: they read
the state and return records and responses. Only `replay` changes durable state, both when records are appended and on
every load. What is lost with the coordinator (unwritten members, pending responses, timers) is soft state and may
change in `step`.

A response is sent when every record up to and including those of its step is committed. If that fails, the runtime
responds with an error and drops the shard, which is then loaded again from the log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, Protocol, TypeAlias

from millpond.base.errors import ErrorCode, LimitMet
from millpond.base.named_tuple import NamedTuple
from millpond.base.values import dataclass
from millpond.wire.messages import Message

Sees: TypeAlias = Callable[[str], bool]
"""Whether a client may see a topic of this name."""


def sees_all(topic: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a coordinator: the message and its sender."""

    body: Message
    version: int
    reply_to: Any
    """Identifies the pending request to the runtime; returned with the response, and otherwise opaque."""
    client_id: str = ""
    client_host: str = ""
    sees: Sees = sees_all


class CoordinatorRecord(NamedTuple):
    """One encoded record of the internal topic; a null value is a tombstone."""

    key: bytes
    value: bytes | None


class Reply(NamedTuple):
    reply_to: Any
    response: Any
    """A message, or anything else that the recipient accepts."""


@dataclass(slots=True)
class Effects:
    """The decisions of a step."""

    records: list[CoordinatorRecord] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    orders: list[Any] = field(default_factory=list)
    """Work to do once the records are committed, such as writing transaction markers; see each coordinator."""
    limit_met: LimitMet | None = None
    """A limit that caused a refusal: it is logged for the operator."""

    def reply(self, reply_to: Any, response: Any) -> None:
        self.replies.append(Reply(reply_to, response))

    def add(self, other: Effects) -> None:
        self.records += other.records
        self.replies += other.replies
        self.orders += other.orders
        self.limit_met = other.limit_met or self.limit_met


class Shard(Protocol):
    """`now_ms` is coordinator time (see `runtime.CoordinatorTime`), for durations."""

    def set_time(self, now_ms: int, wall_ms: int) -> None:
        """Set the time, before a step and before records are replayed; the wall clock is for timestamps only."""
        ...

    def step(self, request: Request, now_ms: int) -> Effects:
        """Decide a request. The response may come in a later step, after others."""
        ...

    def on_timer(self, now_ms: int) -> Effects:
        """Handle expired timers."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When `on_timer` must be called next; None without timers."""
        ...

    def replay(self, offset: int, key: bytes, value: bytes | None) -> None:
        """Apply one committed or just appended record."""
        ...

    def unload(self, code: ErrorCode) -> Effects:
        """The shard is being dropped: fail all pending requests with `code`."""
        ...

    def on_loaded(self, now_ms: int) -> Effects:
        """All records have been replayed: start the timers of existing members and transactions."""
        ...
