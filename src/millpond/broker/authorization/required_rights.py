"""What an API needs, as a value of its line in the one table: asked for before its handler sees the request.

What may not be done is taken out of the request, the handler answers the rest, and the refusals are put into its
answer. So nothing that is refused has been looked at, and a request that another node is to answer is asked for here,
where its client is known. A name that one may not see is refused alike whether it exists or not.
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
    """The request as it may be served; None where all of it may."""

    Refuse = Callable[[Call, Any, ErrorCode], Any]
    """The answer to a request of which nothing may be done."""

REFUSED: Final = {
    AclResource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    AclResource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    AclResource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    AclResource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    AclResource.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    AclResource.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
"""How a client is told that it may not."""


class Need(NamedTuple):
    """One right that an API asks for: an operation on a kind of thing."""

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
    """What is left of a request. Without a request nothing is: `answer` is what its client hears."""

    request: Any
    answer: Any = None
    mend: Callable[[Any], Any] | None = None
    """Puts what was refused into the response to what is left, or takes out of it what may not be seen."""

    def served(self, serve: Callable[[Any], Any]) -> Any:
        """The outcome, by a handler for what is left."""
        if self.request is None:
            return self.answer
        outcome = serve(self.request)
        if self.mend is None or outcome is None:
            return outcome
        return outcome.map(self.mend) if isinstance(outcome, Later) else self.mend(outcome)


@dataclass(frozen=True, slots=True)
class Rights:
    """What an API needs, and who asks for it before the handler does anything."""

    needs: tuple[Need, ...]
    screen: Screen | None
    """None where nothing is needed, or where the handler asks by itself."""


FREE: Final = Rights((), None)
"""No right is needed: it tells and does nothing that a stranger may not know of or do."""

NOT_AUTHORISED: Final = "not authorised"


def refuse_whole(call: Call, request: Any, code: ErrorCode) -> Any:
    """The answer with one error for all, of an API that has such a field."""
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
    """A right on the one thing that a request is about; without it nothing of the request is done."""
    need = Need(operation, resource)

    def screen(metadata: MetadataContext, call: Call, request: Any) -> Screened | None:
        if call.demand(operation, resource, named(request)):
            return None
        return Screened(None, refuse(call, request, need.refusal))

    return Rights((need,), screen)


def to_the_end(rights: Rights, named: Callable[[Any], str], refuse: Refuse, kept_of: Callable[[Any], Any]) -> Rights:
    """The same for what is answered late: whoever has lost the right meanwhile is told no more than that.

    `kept_of` leaves of a request what is needed for that.
    """
    (need,) = rights.needs

    def screen(metadata: MetadataContext, call: Call, request: Any) -> Screened | None:
        assert rights.screen is not None
        screened = rights.screen(metadata, call, request)
        if screened is not None or call.is_unlimited:
            return screened
        name, kept = named(request), kept_of(request)

        def mend(response: Any) -> Any:
            return response if call.demand(*need, name) else refuse(call, kept, need.refusal)

        return Screened(request, mend=mend)

    return Rights(rights.needs, screen)


def on_cluster(operation: Operation, refuse: Refuse = refuse_whole) -> Rights:
    """A right on the cluster itself."""
    return whole(operation, AclResource.CLUSTER, lambda _: CLUSTER_NAME, refuse)


def demand_node(call: Call) -> bool:
    """Whether a node asks, by the listener of nodes. The right alone makes nobody a node: what nodes tell each other
    is believed, and a node sends on in its own name what only the controller can answer."""
    if call.is_from_node:
        return True
    call.access.note_refused(call.principal, call.client_host, *OF_NODES, CLUSTER_NAME)
    return False


def for_nodes(*, or_admins: bool = False) -> Rights:
    """What nodes ask each other; `or_admins` lets super users ask it for a node that is not there yet. A token makes
    nobody a node, and is not enough to make one."""

    def screen(metadata: MetadataContext, call: Call, request: Any) -> Screened | None:
        is_admin = call.is_unlimited and not call.principal.by_token
        if (or_admins and is_admin) or demand_node(call):
            return None
        return Screened(None, refuse_whole(call, request, OF_NODES.refusal))

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
    """A right on each thing in the request's list `of`; those that may not go as refusals `into` the response."""
    need = Need(operation, resource)

    def screen(metadata: MetadataContext, call: Call, request: Any) -> Screened | None:
        def is_allowed(each: Any) -> bool:
            return call.demand(operation, resource, named(each))

        return split(request, of, is_allowed, lambda each: refuse(each, need.refusal), into)

    return Rights((need,), screen)


def split(
    request: Any, of: str, is_allowed: Callable[[Any], bool], refuse: Callable[[Any], Any], into: str
) -> Screened | None:
    """The request with those of its list that are allowed; the response gets a refusal for each of the others."""
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
    """As `split`, for topics that are refused with different codes; NONE lets a topic pass."""
    allowed, refused = [], []
    for each in getattr(request, of) or ():
        code = code_of(each)
        if code is ErrorCode.NONE:
            allowed.append(each)
        else:
            refused.append(refuse(each, code))
    return without(request, of, allowed, into, refused) if refused else None


def without(request: Any, of: str, allowed: list[Any], into: str, refused: list[Any]) -> Screened:
    """The request with `allowed` as its list; the response gets what was refused."""
    if not allowed:
        # An empty list may mean all of them.
        return Screened(None, m.response_class(request.API_KEY)(**{into: refused}))
    setattr(request, of, allowed)

    def mend(response: Any) -> Any:
        setattr(response, into, [*getattr(response, into), *refused])
        return response

    return Screened(request, mend=mend)


def both(first: Rights, *others: Rights) -> Rights:
    """All of these, in this order: what one refuses whole the next is not asked about."""

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
    """What is left after both; the earlier one's refusals come last."""
    mend = earlier.mend
    if mend is None:
        return later
    if later.request is None:
        return Screened(None, mend(later.answer))
    inner = later.mend
    return Screened(later.request, mend=mend if inner is None else lambda response: mend(inner(response)))


def seen(need: Need, of: str, named: Callable[[Any], str]) -> Rights:
    """A list in the response has only those that whoever asks may see."""

    def screen(metadata: MetadataContext, call: Call, request: Any) -> Screened:
        def mend(response: Any) -> Any:
            visible = [each for each in getattr(response, of) if call.may(*need, named(each))]
            setattr(response, of, visible)
            return response

        return Screened(request, mend=mend)

    return Rights((need,), screen)


def may_by_cluster(call: Call, need: Need, topic: str) -> bool:
    """Whether a right on the cluster does for one on this topic. It does not where our programs keep their state: an
    ACL has to name that."""
    return not is_of_programs(topic) and call.may(*need, CLUSTER_NAME)


def by_handler(*needs: Need) -> Rights:
    """The handler asks by itself, with `call.may` or `call.demand`."""
    return Rights(needs, None)


def topic_named(metadata: MetadataContext, name: str | None, topic_id: UUID) -> str | None:
    """The topic that a client means by name or by id; None where there is none of this id.

    An id is no secret, and cannot be guessed.
    """
    if topic_id == NO_TOPIC_ID:
        return name
    topic = metadata.image.topics_by_id.get(topic_id)
    return None if topic is None else topic.name


def may_topic(metadata: MetadataContext, call: Call, operation: Operation, name: str | None, topic_id: UUID) -> bool:
    """Whether this may be done to a topic that is meant by name or id. What has no name is left to who answers."""
    meant = topic_named(metadata, name, topic_id)
    return meant is None or call.may(operation, AclResource.TOPIC, meant)


def topic_refusal(metadata: MetadataContext, call: Call, need: Need, name: str | None, topic_id: UUID) -> ErrorCode:
    """Why a topic that is meant by name or id is taken out of a request that may wait before it is handled.

    An id that is unknown now may be known by then, and nobody would ask for the right.
    """
    meant = topic_named(metadata, name, topic_id)
    if meant is None:
        return ErrorCode.NONE if call.is_unlimited else ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.NONE if call.demand(*need, meant) else need.refusal


def demand_topic(
    metadata: MetadataContext, call: Call, operation: Operation, name: str | None, topic_id: UUID
) -> bool:
    """The same, for what a client has asked for by name or id, and what is answered at once."""
    meant = topic_named(metadata, name, topic_id)
    return meant is None or call.demand(operation, AclResource.TOPIC, meant)
