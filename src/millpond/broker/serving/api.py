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
"""A handler takes well below 100 ms for this many items, the slowest about 50 ms."""


AT_ONCE_ITEMS: Final = 1_000
"""A request with more list items than this is handled in slices, in turn with other requests."""


@dataclass(frozen=True, slots=True)
class Api:
    """One API key: its versions and its handler.

    `handle(call, request)` gets the decoded request. Clients see `advertised` where it must differ from what is
    served; `refuse(version, body)` answers a request in the gap. Before these parameters, each function takes the
    contexts that it names (see `context`); `bound` fills them in.
    """

    key: int
    name: str
    versions: tuple[int, int]
    handle: Callable[..., Outcome]
    mutations: Mutations | None = None
    """How requests count towards the controller mutation quota."""
    rights: Rights = field(kw_only=True)
    """The rights that a client needs. There is no default, so that no API is without a rule."""
    lists: str | None = None
    """The request's field that names topics or resources; how many it may name is limited."""
    has_records: bool = False
    """Whether requests have records; all others are limited to `max.request.plain.bytes`."""
    pieces: tuple[Pieces, ...] = ()
    """How a request with long lists is cut into pieces, between which other requests are served. The first entry
    whose list is not empty applies."""
    at_once: int = AT_ONCE_ITEMS
    """A request with more items than this in its lists is handled in slices."""
    is_heavy: Callable[..., bool] | None = None
    """Whether a request would block the loop for too long although its lists are short: then it is cut, too."""
    prepare: Callable[..., Later[Any] | None] | None = None
    """Starts the work that must be done off the loop before a piece is handled, if there is any."""
    waits: bool = False
    """Whether a response may wait for other clients: requests after a large one are then handled meanwhile."""
    whole_max: int = WHOLE_MAX
    """The most items that may be handled as one: a request that is not cut, or one element of a list that is."""
    short: Callable[..., bool] | None = None
    """Answers the smallest and most frequent requests straight from the frame; False leaves everything as it was, for
    `handle`. Not called while any client has a quota."""
    advertised: tuple[int, int] | None = None
    is_advertised: bool = True
    """Whether ApiVersions lists it."""
    refuse: Callable[..., Response] | None = None
    is_large: Callable[[Any], bool] | None = None
    """Whether a delayed response is so large that a worker encodes it."""
    has_ranges: bool = False
    """Whether responses have records as file ranges: large ones are then encoded in steps, not by a worker."""
    at_controller: bool = False
    """Whether only the active controller can answer; other nodes forward the request."""
    forward: Callable[..., Later[Any]] | None = None
    """How to forward it, if that takes more than sending the same request."""

    def bound(self, contexts: Contexts) -> Api:
        """This API with contexts bound to its functions."""
        functions: dict[str, Any] = {name: getattr(self, name) for name in FUNCTIONS}
        bound: dict[str, Any] = {name: each and contexts.bind(each) for name, each in functions.items()}
        return replace(self, **bound)

    def serves(self, version: int) -> bool:
        return self.versions[0] <= version <= self.versions[1]
