"""An API of the protocol as one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final

from millpond.base.later import Later
from millpond.base.values import dataclass
from millpond.broker.authorization.partition_mutations import Mutations
from millpond.broker.authorization.required_rights import Rights
from millpond.broker.requests.replies import Outcome, Response
from millpond.broker.serving.pieces import Pieces

if TYPE_CHECKING:
    from millpond.broker.context import Contexts


FUNCTIONS: Final = ("handle", "is_heavy", "prepare", "short", "refuse", "forward")
"""The fields of an `Api` that take contexts."""

WHOLE_MAX: Final = 3_000
"""No handler takes a tenth of a second for so many items, the slowest a half of that."""


AT_ONCE_ITEMS: Final = 1_000
"""So many items of lists a request may have that is handled at once: one with more takes turns with all others."""


@dataclass(frozen=True, slots=True)
class Api:
    """One API key: which versions are served, and who answers.

    `handle(call, request)` gets the decoded request. Clients see `advertised` where it must differ from what is
    served; `refuse(version, body)` answers a request in the gap. Before these parameters, each function takes the
    contexts that it names (see `context`); `bound` fills them in.
    """

    key: int
    name: str
    versions: tuple[int, int]
    handle: Callable[..., Outcome]
    mutations: Mutations | None = None
    """How it is held to the quota of partitions that are made and deleted."""
    rights: Rights = field(kw_only=True)
    """What a client needs. It has no default: an API without a rule cannot be written."""
    lists: str | None = None
    """The request's field that names topics or resources; how many it may name is limited."""
    has_records: bool = False
    """Whether it brings records: no other request needs many megabytes (`max.request.plain.bytes`)."""
    pieces: tuple[Pieces, ...] = ()
    """How a request with long lists is cut, so that others have their turn in between. The first way whose list the
    request has."""
    at_once: int = AT_ONCE_ITEMS
    """A request with more items than this in its lists is handled in slices."""
    is_heavy: Callable[..., bool] | None = None
    """Whether a request with short lists would hold the loop for too long all the same: then it is cut, too."""
    prepare: Callable[..., Later[Any] | None] | None = None
    """What has to be done off the loop before a piece of a request is handled, if anything."""
    waits: bool = False
    """Whether its answer may wait for other clients: what comes after a large request is not held up meanwhile."""
    whole_max: int = WHOLE_MAX
    """So many items may be in what is not cut: the request, or one thing in the list that is."""
    short: Callable[..., bool] | None = None
    """Answers the smallest and most frequent requests straight from the frame; False leaves everything as it was, for
    `handle`. Not called while any client has a quota."""
    advertised: tuple[int, int] | None = None
    is_advertised: bool = True
    """Whether clients are told of it at all."""
    refuse: Callable[..., Response] | None = None
    is_large: Callable[[Any], bool] | None = None
    """Whether a response that came later is so large that a worker encodes it."""
    has_ranges: bool = False
    """Whether its responses have records, which leave as they lie in files: then it is encoded in steps instead."""
    at_controller: bool = False
    """Only the active controller can answer: any other node asks it for its client."""
    forward: Callable[..., Later[Any]] | None = None
    """How it asks, where that is more than to send the request on."""

    def bound(self, contexts: Contexts) -> Api:
        """This API with the contexts that its functions take."""
        functions: dict[str, Any] = {name: getattr(self, name) for name in FUNCTIONS}
        bound: dict[str, Any] = {name: each and contexts.bind(each) for name, each in functions.items()}
        return replace(self, **bound)

    def serves(self, version: int) -> bool:
        return self.versions[0] <= version <= self.versions[1]
