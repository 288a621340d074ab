"""An API of the protocol as one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any

from millpond.base.later import Later
from millpond.base.values import dataclass
from millpond.broker.security.mutations import Mutations
from millpond.broker.security.rights import Rights
from millpond.broker.serving.call import Call
from millpond.broker.serving.replies import Outcome, Response

if TYPE_CHECKING:
    from millpond.broker.services import Services
    from millpond.broker.serving.connection import Connection
    from millpond.wire.header import RequestHeader


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
    mutations: Mutations | None = None
    """How it is held to the quota of partitions that are made and deleted."""
    rights: Rights = field(kw_only=True)
    """What a client needs. It has no default: an API without a rule cannot be written."""
    lists: str | None = None
    """The request's field that names topics or resources; how many it may name is limited."""
    has_records: bool = False
    """Whether it brings records: no other request needs many megabytes (`max.request.plain.bytes`)."""
    quick: Callable[[Services, Connection, RequestHeader, memoryview], bool] | None = None
    """Answers the commonest shape of the request without building messages; False leaves it to `handle`."""
    advertised: tuple[int, int] | None = None
    is_advertised: bool = True
    """Whether clients are told of it at all."""
    refuse: Callable[[Services, int, memoryview], Response] | None = None
    is_large: Callable[[Any], bool] | None = None
    """Whether a response that came later is so large that a worker encodes it."""
    at_controller: bool = False
    """Only the active controller can answer: any other node asks it for its client."""
    forward: Callable[[Services, Call, Any], Later[Any]] | None = None
    """How it asks, where that is more than to send the request on."""

    def serves(self, version: int) -> bool:
        return self.versions[0] <= version <= self.versions[1]
