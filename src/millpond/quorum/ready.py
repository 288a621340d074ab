"""The order of disk and network as types: a promise can be sent only with proof that it is durable."""

from __future__ import annotations

from collections import deque
from dataclasses import field
from typing import TypeAlias

from millpond.base.values import dataclass
from millpond.quorum.messages import Request, Response
from millpond.quorum.ports import Election


@dataclass(frozen=True, slots=True)
class Durable:
    """Created by the disk alone: everything up to `version` of this replica survives a power cut."""

    version: int


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to a node; its response comes back as an event together with it."""

    node_id: int
    request: Request


@dataclass(frozen=True, slots=True)
class Reply:
    """The response to a request that arrived as `request_id`."""

    request_id: int
    response: Response


Outgoing: TypeAlias = Ask | Reply


class Promise:
    """A message that would be false if the disk lost data. Only `Outbox.release` opens it, given a `Durable`."""

    __slots__ = ("_message", "version")

    def __init__(self, message: Outgoing, version: int) -> None:
        self._message = message
        self.version = version

    def open(self, durable: Durable) -> Outgoing:
        assert durable.version >= self.version, "sent before it was durable"
        return self._message


@dataclass(slots=True)
class Ready:
    """The output of a step.

    `send` may go now. `save` must be made durable, together with the log as it is now, and be reported as
    `Durable(version)`; messages that wait for it stay with the replica until then.
    """

    version: int
    save: Election | None = None
    sync: bool = False
    send: list[Outgoing] = field(default_factory=list)

    @property
    def must_persist(self) -> bool:
        return self.sync or self.save is not None


class Outbox:
    """Outgoing messages of one replica, held back until what they promise is durable."""

    def __init__(self) -> None:
        self._now: list[Outgoing] = []
        self._held: deque[Promise] = deque()

    def send(self, message: Outgoing) -> None:
        """For messages that promise nothing."""
        self._now.append(message)

    def promise(self, message: Outgoing, version: int, durable: Durable) -> None:
        """For messages that require everything up to `version` to be durable."""
        self._held.append(Promise(message, version))
        self.release(durable)

    def release(self, durable: Durable) -> None:
        while self._held and self._held[0].version <= durable.version:
            self._now.append(self._held.popleft().open(durable))

    def take(self) -> list[Outgoing]:
        messages, self._now = self._now, []
        return messages
