"""OffsetFetch (9), versions 1-10: how far groups have read.

2 all topics, an error of the whole group · 5 leader epoch · 6 flexible · 7 only offsets that no transaction can still
change · 8 several groups at once · 9 member epochs of the new protocol · 10 topic ids.

librdkafka sends this once per assignment. After NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE it looks for the
coordinator but never sends it again: its consumer keeps partitions that it does not read, until the next rebalance.
Its admin client crashes on these codes (its issue 5040). COORDINATOR_LOAD_IN_PROGRESS makes it retry, but on the same
node: only a member's heartbeats would reveal another, and consumers with manual assignments send none. So a retry
is answered KAFKA_STORAGE_ERROR, after which librdkafka does find the coordinator and asks there. Only consumers
retry.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import NO_TOPIC_ID
from millpond.base.later import Later, done
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import Need, Rights, Screened, may_topic, topic_refusal
from millpond.broker.coordinator_calls.group_calls import GROUPS_AT_ONCE, ask_group, refuse_group
from millpond.broker.loop.steps import Steps, ask_in_steps
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, MetadataContext, NodeContext

SEVERAL_GROUPS_FROM = 8
GIVEN_UP: Final = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
"""Codes after which librdkafka does not retry."""
AGAIN_WITHIN_MS: Final = 1_500
"""librdkafka's consumers retry within this time; its admin client does not."""
SENT_AWAY_MAX: Final = 100
READ_AT_ONCE: Final = 500
"""This many topics and partitions of a group are read in one turn of the loop, between two commits. Clients that must
not see a half-committed transaction ask for stable offsets, and retry while any offset is unstable."""


LARGE_BYTES: Final = 128 << 10
"""A worker encodes a response with more metadata than this."""


def handle(
    node: NodeContext, coordination: CoordinationContext, call: Call, request: m.OffsetFetchRequest
) -> Outcome:
    answer = _ask(node, coordination, call, request).chain(partial(_whole, call))
    if "rdkafka" not in call.connection.client_software:
        return answer
    return answer.map(lambda response: _to_be_asked_again(node, call, request.group_id, response))


def _ask(
    node: NodeContext, coordination: CoordinationContext, call: Call, request: m.OffsetFetchRequest
) -> Later[m.OffsetFetchResponse]:
    if call.version < SEVERAL_GROUPS_FROM:
        return ask_group(coordination, call, request.group_id, request)
    groups = _whole_once(request.groups)
    # Each group may have another coordinator.
    questions = (
        partial(
            ask_group,
            coordination,
            call,
            group.group_id,
            m.OffsetFetchRequest(groups=[group], require_stable=request.require_stable),
        )
        for group in groups
    )
    return ask_in_steps(node.clock, questions, GROUPS_AT_ONCE).map(_join)


def _whole(call: Call, response: m.OffsetFetchResponse) -> Later[m.OffsetFetchResponse]:
    """Builds the response for groups with very many offsets in steps, from a snapshot of the offsets."""
    # Imported here because it loads the whole coordinator, which a node does not need in order to start.
    from millpond.coordinators.groups.offset_fetch import AllOffsets

    answered: list[Any] = [response, *response.groups]
    unbuilt = [each for each in answered if isinstance(each.topics, AllOffsets)]

    def build() -> Steps[m.OffsetFetchResponse]:
        for each in unbuilt:
            each.topics = yield from each.topics.topics_in_steps()
        return response

    return call.connection.run_in_turns(build()) if unbuilt else done(response)


def _has_many_offsets(response: m.OffsetFetchResponse) -> bool:
    everywhere: list[Any] = [response, *response.groups]
    partitions = [topic.partitions for each in everywhere for topic in each.topics]
    count = sum(map(len, partitions))
    return count > READ_AT_ONCE or sum(len(each.metadata or "") for some in partitions for each in some) > LARGE_BYTES


def _whole_once(groups: list[Any]) -> list[Any]:
    """All offsets of one group, requested many times, would fill the memory: they are sent once."""
    whole = {each.group_id: each for each in groups if each.topics is None}
    return [each for each in groups if each.topics is not None or whole[each.group_id] is each]


def _to_be_asked_again(
    node: NodeContext, call: Call, group_id: str, response: m.OffsetFetchResponse
) -> m.OffsetFetchResponse:
    now_ms = node.clock.monotonic_ms()
    if response.error_code in GIVEN_UP:
        response.error_code = _word(call.connection.sent_away_ms, group_id, now_ms)
    for group in response.groups:
        if group.error_code in GIVEN_UP:
            group.error_code = _word(call.connection.sent_away_ms, group.group_id, now_ms)
    return response


def _word(sent_away_ms: dict[str, int], group_id: str, now_ms: int) -> ErrorCode:
    last_ms = sent_away_ms.pop(group_id, None)
    sent_away_ms[group_id] = now_ms
    if len(sent_away_ms) > SENT_AWAY_MAX:
        del sent_away_ms[next(iter(sent_away_ms))]
    is_again = last_ms is not None and now_ms - last_ms < AGAIN_WITHIN_MS
    return ErrorCode.KAFKA_STORAGE_ERROR if is_again else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def _whole_group(group: m.OffsetFetchRequest.OffsetFetchRequestGroup) -> str | None:
    return group.group_id if group.topics is None else None


def _join(parts: list[m.OffsetFetchResponse]) -> m.OffsetFetchResponse:
    return m.OffsetFetchResponse(groups=[group for part in parts for group in part.groups])


def _screen(metadata: MetadataContext, call: Call, request: m.OffsetFetchRequest) -> Screened | None:
    """Refuses groups that the client may not see. Offsets of topics that it may not see are left out, or refused if
    requested by name."""
    if call.is_unlimited:
        return None
    if call.version < SEVERAL_GROUPS_FROM:
        if not call.demand(*ON_GROUP, request.group_id):
            return Screened(None, refuse_group(call, request, Refused(ON_GROUP.refusal)))
        hide = _hide_topics(metadata, call, request, _OldTopic, _OldPartition)
        return Screened(request, adjust=hide)
    refused = [each.group_id for each in request.groups if not call.demand(*ON_GROUP, each.group_id)]
    request.groups = _whole_once([each for each in request.groups if each.group_id not in refused])
    # A list, because a group may be named twice with topics.
    hides = [_hide_topics(metadata, call, each, _Topic, _Partition) for each in request.groups]

    def adjust(response: m.OffsetFetchResponse) -> m.OffsetFetchResponse:
        for hide, group in zip(hides, response.groups, strict=True):
            hide(group)
        response.groups += [_Group(group_id=each, error_code=ON_GROUP.refusal) for each in refused]
        return response

    return Screened(request, adjust=adjust) if request.groups else Screened(None, adjust(m.OffsetFetchResponse()))


def _hide_topics(
    metadata: MetadataContext, call: Call, asked: Any, topic_kind: type[Any], partition_kind: type[Any]
) -> Callable[[Any], Any]:
    """Removes hidden topics from the request; the returned function puts their refusals into the response."""
    refusals = []
    for topic in asked.topics or ():
        topic_id = getattr(topic, "topic_id", NO_TOPIC_ID)
        code = topic_refusal(metadata, call, ON_TOPIC, topic.name, topic_id)
        if code is ErrorCode.NONE:
            continue
        partitions = [
            partition_kind(
                partition_index=index,
                committed_offset=-1,
                committed_leader_epoch=-1,
                metadata="",
                error_code=code,
            )
            for index in topic.partition_indexes
        ]
        named = {"name": topic.name} | ({"topic_id": topic_id} if topic_id != NO_TOPIC_ID else {})
        refusals.append((topic, topic_kind(**named, partitions=partitions)))
    if refusals:
        hidden = {id(topic) for topic, _ in refusals}
        asked.topics = [each for each in asked.topics if id(each) not in hidden]

    def adjust(answer: Any) -> Any:
        if not answer.error_code:
            # A request that names no topics is answered with all of them.
            answer.topics = [
                each
                for each in answer.topics
                if may_topic(metadata, call, Operation.DESCRIBE, each.name, getattr(each, "topic_id", NO_TOPIC_ID))
            ]
            answer.topics += [refusal for _, refusal in refusals]
        return answer

    return adjust


_OldTopic = m.OffsetFetchResponse.OffsetFetchResponseTopic
_OldPartition = m.OffsetFetchResponse.OffsetFetchResponsePartition
_Group = m.OffsetFetchResponse.OffsetFetchResponseGroup
_Topic = m.OffsetFetchResponse.OffsetFetchResponseTopics
_Partition = m.OffsetFetchResponse.OffsetFetchResponsePartitions
ON_GROUP = Need(Operation.DESCRIBE, AclResource.GROUP)
ON_TOPIC = Need(Operation.DESCRIBE, AclResource.TOPIC)

API = Api(
    key=9,
    name="OffsetFetch",
    versions=(1, 10),
    handle=handle,
    lists="groups",
    pieces=(
        way(
            "groups.topics.partition_indexes",
            "groups.topics.partitions",
            once=_whole_group,
            items=READ_AT_ONCE,
            one_by_one=True,
        ),
        way("topics.partition_indexes", "topics.partitions", items=READ_AT_ONCE, one_by_one=True),
    ),
    is_large=_has_many_offsets,
    rights=Rights((ON_GROUP, ON_TOPIC), _screen),
)
