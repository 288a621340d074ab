"""The rights that an API requires, as a value in its entry of the API table, checked before its handler runs.

Unauthorized items are removed from the request, the handler serves the rest, and the refusals are added to its
response. So the handler never sees refused items, and a request that is forwarded to another node is checked here,
where the client is known. A name that the client may not see gets the same error whether it exists or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from millpond.base.errors import ErrorCode
from millpond.base.ids import NO_TOPIC_ID
from millpond.base.later import Later
from millpond.base.named_tuple import NamedTuple
from millpond.base.rights import CLUSTER_NAME, AclResource, Operation
from millpond.base.values import dataclass
from millpond.broker.security.authorizer import is_of_programs
from millpond.wire import messages as m

if TYPE_CHECKING:
    from uuid import UUID

    from millpond.broker.context import MetadataContext
    from millpond.broker.requests.call import Call

    Screen = Callable[[MetadataContext, Call, Any], "Screened | None"]
    """The authorized part of the request; None for all of it."""

    Refuse = Callable[[Call, Any, ErrorCode], Any]
    """The response to a request that is refused as a whole."""

REFUSED: Final = {
    AclResource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    AclResource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    AclResource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    AclResource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    AclResource.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    AclResource.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
"""The authorization error of each resource type."""


class Need(NamedTuple):
    """One right that an API requires: an operation on a resource type."""

    operation: Operation
    resource: AclResource

    @property
    def refusal(self) -> ErrorCode:
        return REFUSED[self.resource]

    def __str__(self) -> str:
        return f"{self.operation.name} on {self.resource.name}"


OF_NODES: Final = Need(Operation.CLUSTER_ACTION, AclResource.CLUSTER)
"""The right that nodes have."""


class Screened(NamedTuple):
    """The authorized part of a request. If `request` is None, all of it was refused and `answer` is the response."""

    request: Any
    answer: Any = None
    adjust: Callable[[Any], Any] | None = None
    """Adds the refusals to the handler's response, or removes what the client may not see from it."""

    def served(self, serve: Callable[[Any], Any]) -> Any:
        """The outcome of the request, with `serve` as the handler of its authorized part."""
        if self.request is None:
            return self.answer
        outcome = serve(self.request)
        if self.adjust is None or outcome is None:
            return outcome
        return outcome.map(self.adjust) if isinstance(outcome, Later) else self.adjust(outcome)


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights that an API requires, and the check that runs before its handler."""

    needs: tuple[Need, ...]
    screen: Screen | None
    """None if no right is required, or if the handler checks it."""


FREE: Final = Rights((), None)
"""No right is required: the API reveals and changes nothing that has to be protected."""

NOT_AUTHORISED: Final = "not authorised"


def refuse_whole(call: Call, request: Any, code: ErrorCode) -> Any:
    """A response with one error for the whole request, for APIs that have such a field."""
    response: Any = m.response_class(request.API_KEY)()
    names: tuple[str, ...] = response._names
    assert "error_code" in names, f"{type(response).__name__} has no error for all: say how it is refused"
    response.error_code = code
    if "error_message" in names:
        response.error_message = NOT_AUTHORISED
    return response


def whole(
    operation: Operation, resource: AclResource, named: Callable[[Any], str], refuse: Refuse = refuse_whole
) -> Rights:
    """Requires a right on the one resource of a request; without it the whole request is refused."""
    need = Need(operation, resource)

    def screen(metadata: MetadataContext, call: Call, request: Any) -> Screened | None:
        if call.demand(operation, resource, named(request)):
            return None
        return Screened(None, refuse(call, request, need.refusal))

    return Rights((need,), screen)


def to_the_end(rights: Rights, named: Callable[[Any], str], refuse: Refuse, kept_of: Callable[[Any], Any]) -> Rights:
    """`rights`, checked again when a delayed response is sent: a client that has lost the right gets only the error.

    `kept_of` extracts the part of the request that `refuse` needs.
    """
    (need,) = rights.needs

    def screen(metadata: MetadataContext, call: Call, request: Any) -> Screened | None:
        assert rights.screen is not None
        screened = rights.screen(metadata, call, request)
        if screened is not None or call.is_unlimited:
            return screened
        name, kept = named(request), kept_of(request)

        def adjust(response: Any) -> Any:
            return response if call.demand(*need, name) else refuse(call, kept, need.refusal)

        return Screened(request, adjust=adjust)

    return Rights(rights.needs, screen)


def on_cluster(operation: Operation, refuse: Refuse = refuse_whole) -> Rights:
    """Requires a right on the cluster itself."""
    return whole(operation, AclResource.CLUSTER, lambda _: CLUSTER_NAME, refuse)


def demand_node(call: Call) -> bool:
    """Whether the request is from a node,. CLUSTER_ACTION alone does not make a client a
    node: nodes trust each other, and forward requests for the controller in their own name."""
    if call.is_from_node:
        return True
    call.access.note_refused(call.principal, call.client_host, *OF_NODES, CLUSTER_NAME)
    return False


def for_nodes(*, or_admins: bool = False, refuse: Refuse = refuse_whole) -> Rights:
    """For requests between nodes. `or_admins` lets super users send them too, for a node that does not exist yet. A
    delegation token is not enough for either."""

    def screen(metadata: MetadataContext, call: Call, request: Any) -> Screened | None:
        is_admin = call.is_unlimited and not call.principal.by_token
        if (or_admins and is_admin) or demand_node(call):
            return None
        return Screened(None, refuse(call, request, OF_NODES.refusal))

    return Rights((OF_NODES,), screen)


def on_each(
    operation: Operation,
    resource: AclResource,
    *,
    of: str,
    named: Callable[[Any], str],
    refuse: Callable[[Any, ErrorCode], Any],
    into: str,
) -> Rights:
    """Requires a right on each item of the request's list `of`; refusals go `into` that list of the response."""
    need = Need(operation, resource)

    def screen(metadata: MetadataContext, call: Call, request: Any) -> Screened | None:
        def is_allowed(each: Any) -> bool:
            return call.demand(operation, resource, named(each))

        return split(request, of, is_allowed, lambda each: refuse(each, need.refusal), into)

    return Rights((need,), screen)


def split(
    request: Any, of: str, is_allowed: Callable[[Any], bool], refuse: Callable[[Any], Any], into: str
) -> Screened | None:
    """Keep the allowed items of the request's list; the response gets a refusal for each of the others."""
    wanted = getattr(request, of) or ()
    allowed, refused = [], []
    for each in wanted:
        if is_allowed(each):
            allowed.append(each)
        else:
            refused.append(refuse(each))
    return without(request, of, allowed, into, refused) if refused else None


def split_topics(
    request: Any, of: str, code_of: Callable[[Any], ErrorCode], refuse: Callable[[Any, ErrorCode], Any], into: str
) -> Screened | None:
    """Like `split`, for topics that are refused with different codes; NONE allows a topic."""
    allowed, refused = [], []
    for each in getattr(request, of) or ():
        code = code_of(each)
        if code is ErrorCode.NONE:
            allowed.append(each)
        else:
            refused.append(refuse(each, code))
    return without(request, of, allowed, into, refused) if refused else None


def without(request: Any, of: str, allowed: list[Any], into: str, refused: list[Any]) -> Screened:
    """The request with `allowed` as its list; the refusals are added to the response."""
    if not allowed:
        # The handler must not see an empty list: in some APIs it means all items.
        return Screened(None, m.response_class(request.API_KEY)(**{into: refused}))
    setattr(request, of, allowed)

    def adjust(response: Any) -> Any:
        setattr(response, into, [*getattr(response, into), *refused])
        return response

    return Screened(request, adjust=adjust)


def both(first: Rights, *others: Rights) -> Rights:
    """All of these rights, in this order; once the whole request is refused, the rest are not checked."""

    def screen(metadata: MetadataContext, call: Call, request: Any) -> Screened | None:
        so_far: Screened | None = None
        for each in (first, *others):
            assert each.screen is not None
            screened = each.screen(metadata, call, request)
            if screened is not None:
                so_far = screened if so_far is None else _after(so_far, screened)
                if so_far.request is None:
                    return so_far
        return so_far

    return Rights(tuple(need for each in (first, *others) for need in each.needs), screen)


def _after(earlier: Screened, later: Screened) -> Screened:
    """The result of both checks; the refusals of the earlier one come last."""
    adjust = earlier.adjust
    if adjust is None:
        return later
    if later.request is None:
        return Screened(None, adjust(later.answer))
    inner = later.adjust
    return Screened(later.request, adjust=adjust if inner is None else lambda response: adjust(inner(response)))


def seen(need: Need, of: str, named: Callable[[Any], str]) -> Rights:
    """Filters a list of the response down to the items that the client may see."""

    def screen(metadata: MetadataContext, call: Call, request: Any) -> Screened:
        def adjust(response: Any) -> Any:
            visible = [each for each in getattr(response, of) if call.may(*need, named(each))]
            setattr(response, of, visible)
            return response

        return Screened(request, adjust=adjust)

    return Rights((need,), screen)


def may_by_cluster(call: Call, need: Need, topic: str) -> bool:
    """Whether a right on the cluster grants this one on the topic. Topics with the state of our own programs are
    excluded: an ACL has to name them."""
    return not is_of_programs(topic) and call.may(*need, CLUSTER_NAME)


def by_handler(*needs: Need) -> Rights:
    """The handler checks these rights, with `call.may` or `call.demand`."""
    return Rights(needs, None)


def topic_named(metadata: MetadataContext, name: str | None, topic_id: UUID) -> str | None:
    """The name of the topic that a client gave by name or by id; None when the id is unknown.

    Topic ids are not secret, and cannot be guessed.
    """
    if topic_id == NO_TOPIC_ID:
        return name
    topic = metadata.image.topics_by_id.get(topic_id)
    return None if topic is None else topic.name


def may_topic(metadata: MetadataContext, call: Call, operation: Operation, name: str | None, topic_id: UUID) -> bool:
    """Whether the client may do this to a topic given by name or id. An unknown topic is left to the handler."""
    meant = topic_named(metadata, name, topic_id)
    return meant is None or call.may(operation, AclResource.TOPIC, meant)


def topic_refusal(metadata: MetadataContext, call: Call, need: Need, name: str | None, topic_id: UUID) -> ErrorCode:
    """Why a topic given by name or id is removed from a request that may wait before it is handled; NONE to keep it.

    An id that is unknown now may be known by then, and the right would go unchecked, so it is refused.
    """
    meant = topic_named(metadata, name, topic_id)
    if meant is None:
        return ErrorCode.NONE if call.is_unlimited else ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.NONE if call.demand(*need, meant) else need.refusal


def demand_topic(
    metadata: MetadataContext, call: Call, operation: Operation, name: str | None, topic_id: UUID
) -> bool:
    """Like `may_topic`, but records a refusal; for requests that are answered at once."""
    meant = topic_named(metadata, name, topic_id)
    return meant is None or call.demand(operation, AclResource.TOPIC, meant)
