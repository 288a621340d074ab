"""An API of the protocol as one value, and what a handler is given and may return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from millpond.base.later import Later
from millpond.base.ports import ReplyPart

if TYPE_CHECKING:
    from millpond.broker.connection import Connection
    from millpond.broker.services import Services
    from millpond.wire.header import RequestHeader


class Response(Protocol):
    """A reply as a value: every response class of `wire.messages` is one."""

    def encode_parts(self, version: int) -> list[ReplyPart]: ...


class Encoded:
    """A reply that is bytes already."""

    __slots__ = ("body",)

    def __init__(self, body: bytes) -> None:
        self.body = body

    def encode_parts(self, version: int) -> list[ReplyPart]:
        return [self.body]


Outcome: TypeAlias = "Response | Later[Any] | None"
"""A reply now, a reply later, or no reply at all (a produce request with acks=0)."""


@dataclass(slots=True)
class Call:
    """One request on its way through the broker."""

    connection: Connection
    version: int
    client_id: str | None

    @property
    def client_host(self) -> str:
        return self.connection.link.peer.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class Api:
    """One API key: which versions are served, and who answers.

    `handle(broker, call, request)` gets the decoded request. `advertised` is told to clients where it must differ
    from what is served; a request in the gap is answered by `refuse(broker, version, body)`.
    """

    key: int
    name: str
    versions: tuple[int, int]
    handle: Callable[[Services, Call, Any], Outcome]
    lists: str | None = None
    """The request's field that names topics or resources; how many it may name is limited."""
    quick: Callable[[Services, Connection, RequestHeader, memoryview], bool] | None = None
    """Answers the commonest shape of the request without building messages; False leaves it to `handle`."""
    advertised: tuple[int, int] | None = None
    is_advertised: bool = True
    """Whether clients are told of it at all."""
    refuse: Callable[[Services, int, memoryview], Response] | None = None

    def serves(self, version: int) -> bool:
        return self.versions[0] <= version <= self.versions[1]
