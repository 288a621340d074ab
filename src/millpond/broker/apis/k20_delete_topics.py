"""DeleteTopics (20), versions 1-6: delete topics and their records.

1 throttle time · 4 flexible · 5 error messages · 6 topics by id.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import NO_TOPIC_ID
from millpond.base.later import Later, done
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.partition_mutations import Mutations
from millpond.broker.authorization.required_rights import (
    NOT_AUTHORISED,
    Need,
    Rights,
    Screened,
    may_by_cluster,
    split,
    topic_named,
)
from millpond.broker.forwarding.change_relay import catch_up
from millpond.broker.forwarding.envelope import ask_for_client
from millpond.broker.peers.controller_channel import SHOWN_MS, Attempts
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.metadata.decision import Decision, Verdict
from millpond.metadata.topics import DeletedTopic, TopicRef, decide_delete_topics, unknown_topic, unknown_topic_id
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext
    from millpond.metadata.image import Image, Topic

BY_ID_FROM = 6
Result = m.DeleteTopicsResponse.DeletableTopicResult


def handle(node: NodeContext, metadata: MetadataContext, call: Call, request: m.DeleteTopicsRequest) -> Outcome:
    refs = _refs(call, request)

    def decide(image: Image) -> Decision[tuple[DeletedTopic, ...]]:
        # The decision sees newer metadata than the rights check did.
        refused = dict.fromkeys(ref for ref in refs if not _may_delete(call, image, ref))
        decision = decide_delete_topics(image, node.layers, [ref for ref in refs if ref not in refused])
        refusals = tuple(DeletedTopic(None, ref.topic_id, REFUSAL) for ref in refused)
        return Decision(decision.records, (*decision.reply, *refusals))

    decided = metadata.controller.submit(decide)
    return decided.map(_answer).recover(Refused, lambda refused: _refuse_all(refs, refused))


def forward(metadata: MetadataContext, call: Call, request: m.DeleteTopicsRequest) -> Later[m.DeleteTopicsResponse]:
    """Forwards names as ids: a repeated attempt must not delete a topic that was created since under the same name.
    The response is sent once the topics are gone from this node's image, too."""
    if call.meter is not None and call.meter.mutations is not None and call.version < MUTATIONS.strict_from:
        # The controller answers quotas by the version, and older versions have no ids.
        return _sent_on(metadata, call, request, call.version)
    # A name means the topic that has it when the client asks; this node's image may not have it yet.
    return catch_up(metadata).chain(lambda _: _forward_allowed(metadata, call, request))


def _forward_allowed(
    metadata: MetadataContext, call: Call, request: m.DeleteTopicsRequest
) -> Later[m.DeleteTopicsResponse]:
    """The controller trusts this node, so rights on topics learned by catching up are checked here."""
    screened = _screen(metadata, call, request) if call.access.is_on else None
    if screened is None:
        return _forward_by_id(metadata, call, request)
    outcome = screened.served(partial(_forward_by_id, metadata, call))
    return outcome if isinstance(outcome, Later) else done(outcome)


def _forward_by_id(
    metadata: MetadataContext, call: Call, request: m.DeleteTopicsRequest
) -> Later[m.DeleteTopicsResponse]:
    refs = _refs(call, request)
    names = {topic.id: ref.name for ref in refs if ref.name is not None and (topic := _topic(metadata, ref))}
    known = {topic.id: topic.name for ref in refs if (topic := _topic(metadata, ref))}
    states, unknown = [], []
    for ref in refs:
        topic = metadata.image.topics.get(ref.name) if ref.name is not None and ref.topic_id == NO_TOPIC_ID else None
        if topic is not None:
            states.append(m.DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic.id))
        elif ref.name is not None and ref.topic_id == NO_TOPIC_ID:
            unknown.append(DeletedTopic(ref.name, NO_TOPIC_ID, Verdict.of(unknown_topic(ref.name))))
        elif ref.name is None and NO_TOPIC_ID != ref.topic_id not in metadata.image.topics_by_id:
            unknown.append(DeletedTopic(None, ref.topic_id, Verdict.of(unknown_topic_id(ref.topic_id))))
        else:
            states.append(m.DeleteTopicsRequest.DeleteTopicState(name=ref.name, topic_id=ref.topic_id))
    refusals = _answer(tuple(dict.fromkeys(unknown))).responses
    if not states:
        return done(m.DeleteTopicsResponse(responses=refusals))
    sent = m.DeleteTopicsRequest(topics=states, timeout_ms=request.timeout_ms)
    attempts = Attempts()

    def complete(response: m.DeleteTopicsResponse) -> m.DeleteTopicsResponse:
        for each in response.responses:
            if each.error_code == ErrorCode.UNKNOWN_TOPIC_ID and each.topic_id in known and attempts.is_repeated:
                # An earlier attempt has deleted it.
                each.name, each.error_code, each.error_message = known[each.topic_id], ErrorCode.NONE, None
            elif each.error_code == ErrorCode.UNKNOWN_TOPIC_ID and each.topic_id in names:
                each.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            each.name = each.name or names.get(each.topic_id)
        response.responses = [*response.responses, *refusals]
        return response

    return _sent_on(metadata, call, sent, BY_ID_FROM, attempts, complete)


def _sent_on(
    metadata: MetadataContext,
    call: Call,
    request: m.DeleteTopicsRequest,
    version: int,
    attempts: Attempts | None = None,
    complete: Callable[[m.DeleteTopicsResponse], m.DeleteTopicsResponse] = lambda response: response,
) -> Later[m.DeleteTopicsResponse]:
    ids = {name: topic.id for name in request.topic_names if (topic := metadata.image.topics.get(name)) is not None}

    def once_gone(response: m.DeleteTopicsResponse) -> Later[m.DeleteTopicsResponse]:
        gone = {ids.get(each.name or "", each.topic_id) for each in response.responses if not each.error_code}
        shown = metadata.once_shown(lambda: gone.isdisjoint(metadata.image.topics_by_id), SHOWN_MS)
        return shown.map(lambda _: response)

    return ask_for_client(metadata, call, request, version, attempts).map(complete).chain(once_gone)


def _topic(metadata: MetadataContext, ref: TopicRef) -> Topic | None:
    return metadata.image.topics_by_id.get(ref.topic_id) if ref.name is None else metadata.image.topics.get(ref.name)


def _refs(call: Call, request: m.DeleteTopicsRequest) -> list[TopicRef]:
    if call.version >= BY_ID_FROM:
        return [TopicRef(topic.name, topic.topic_id) for topic in request.topics]
    return [TopicRef(name) for name in request.topic_names]


def _answer(deleted: tuple[DeletedTopic, ...]) -> m.DeleteTopicsResponse:
    return m.DeleteTopicsResponse(
        responses=[
            Result(
                name=each.name,
                topic_id=each.topic_id,
                error_code=each.verdict.code,
                error_message=each.verdict.message,
            )
            for each in deleted
        ]
    )


def _refuse_all(refs: list[TopicRef], refused: Refused) -> m.DeleteTopicsResponse:
    return _answer(tuple(DeletedTopic(ref.name, ref.topic_id, Verdict.of(refused)) for ref in refs))


def _deleted_partitions(
    node: NodeContext, metadata: MetadataContext, topic: str | m.DeleteTopicsRequest.DeleteTopicState
) -> int:
    ref = TopicRef(topic) if isinstance(topic, str) else TopicRef(topic.name, topic.topic_id)
    known = _topic(metadata, ref)
    return 0 if known is None else len(known.partitions)


def _beyond_quota(
    topic: str | m.DeleteTopicsRequest.DeleteTopicState, code: ErrorCode, text: str
) -> m.DeleteTopicsResponse.DeletableTopicResult:
    if isinstance(topic, str):
        return m.DeleteTopicsResponse.DeletableTopicResult(name=topic, error_code=code, error_message=text)
    return m.DeleteTopicsResponse.DeletableTopicResult(
        name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=text
    )


MUTATIONS = Mutations(
    strict_from=5,
    lists=("topics", "topic_names"),
    count=_deleted_partitions,
    refuse=_beyond_quota,
    into="responses",
)


def _may(call: Call, name: str) -> bool:
    return may_by_cluster(call, ON_CLUSTER, name) or call.demand(*ON_TOPIC, name)


def _may_delete(call: Call, image: Image, ref: TopicRef) -> bool:
    topic = image.topics_by_id.get(ref.topic_id) if ref.name is None else None
    return topic is None or call.is_unlimited or _may(call, topic.name)


def _screen(metadata: MetadataContext, call: Call, request: m.DeleteTopicsRequest) -> Screened | None:
    if call.version < BY_ID_FROM:
        return split(
            request,
            "topic_names",
            partial(_may, call),
            lambda name: Result(name=name, error_code=ON_TOPIC.refusal, error_message=NOT_AUTHORISED),
            "responses",
        )

    def refuse(topic: m.DeleteTopicsRequest.DeleteTopicState) -> m.DeleteTopicsResponse.DeletableTopicResult:
        name = topic.name or topic_named(metadata, None, topic.topic_id)
        # A client that knows the id may not be allowed to see the name.
        is_known = topic.name is not None or (name is not None and call.may(*SEEN, name))
        return Result(
            name=name if is_known else None,
            topic_id=topic.topic_id,
            error_code=ON_TOPIC.refusal,
            error_message=NOT_AUTHORISED,
        )

    def is_allowed(topic: m.DeleteTopicsRequest.DeleteTopicState) -> bool:
        # A topic with both a name and an id is refused later; until then its partitions are counted by the name.
        meant = topic.name if topic.name is not None else topic_named(metadata, None, topic.topic_id)
        return meant is None or _may(call, meant)

    return split(request, "topics", is_allowed, refuse, "responses")


ON_CLUSTER = Need(Operation.DELETE, AclResource.CLUSTER)
ON_TOPIC = Need(Operation.DELETE, AclResource.TOPIC)
SEEN = Need(Operation.DESCRIBE, AclResource.TOPIC)
REFUSAL = Verdict(ON_TOPIC.refusal, NOT_AUTHORISED)

API = Api(
    key=20,
    name="DeleteTopics",
    versions=(1, 6),
    handle=handle,
    lists="topics",
    at_controller=True,
    forward=forward,
    mutations=MUTATIONS,
    pieces=(
        way("topics", "responses"),
        way("topic_names", "responses"),
    ),
    rights=Rights((ON_CLUSTER, ON_TOPIC), _screen),
)
