"""What every coordinator is made of: requests go in; records and replies come out.

A shard is the part of a coordinator that lives in one partition of its internal topic. `step` and `on_time` decide:
they read the state and return records and replies. Only `replay` changes what the records hold, at once when they are
appended, again on every load. What dies with the coordinator (members that have not yet been written down, parked
replies, timers) is soft state and may change in `step`.

A reply leaves when every record up to and including those of its step is committed. If that fails, the runtime
answers with an error and forgets the shard; it is loaded again from the log.
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
"""Whether somebody may see a topic of this name."""


def sees_all(topic: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks of a coordinator: the message as it came, and who sent it."""

    body: Message
    version: int
    token: Any
    """Stands for the one who waits for the reply; handed back with it, never looked into."""
    client_id: str = ""
    client_host: str = ""
    sees: Sees = sees_all


class CoordinatorRecord(NamedTuple):
    """One record of the internal topic, encoded; a null value forgets the key."""

    key: bytes
    value: bytes | None


class Reply(NamedTuple):
    token: Any
    response: Any
    """A message, or whatever else the one who waits takes for it."""


@dataclass(slots=True)
class Effects:
    """What a step has decided."""

    records: list[CoordinatorRecord] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    orders: list[Any] = field(default_factory=list)
    """Things for others to do once the records are committed (transaction markers to write); see each coordinator."""
    met: LimitMet | None = None
    """A limit that somebody was refused by: the operator hears of it."""

    def reply(self, token: Any, response: Any) -> None:
        self.replies.append(Reply(token, response))

    def add(self, other: Effects) -> None:
        self.records += other.records
        self.replies += other.replies
        self.orders += other.orders
        self.met = other.met or self.met


class Shard(Protocol):
    """`now_ms` is the coordinator's own time (see `runtime.CoordinatorTime`): how long things last goes by it."""

    def at(self, now_ms: int, wall_ms: int) -> None:
        """What time it is, before a step and before records are replayed; the wall clock is for stamps alone."""
        ...

    def step(self, request: Request, now_ms: int) -> Effects:
        """Decide what a request leads to. The reply may come in a later step, when others have been heard."""
        ...

    def on_time(self, now_ms: int) -> Effects:
        """Decide what the passing of time leads to."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When `on_time` wants to be called next; None when nothing waits for the clock."""
        ...

    def replay(self, offset: int, key: bytes, value: bytes | None) -> None:
        """Take in one committed or just appended record."""
        ...

    def unload(self, code: ErrorCode) -> Effects:
        """The log is out of reach: answer everybody whose request is parked here with `code`."""
        ...

    def on_loaded(self, now_ms: int) -> Effects:
        """All records have been replayed: time begins to run for those who were there before."""
        ...
