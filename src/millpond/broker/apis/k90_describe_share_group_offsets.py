"""DescribeShareGroupOffsets (90), versions 0-1: where share groups read, and how many records they have left.

1 lag: the records from the start offset on that are not finished; -1 if it is unknown. A partition that the group has
not read yet has the start offset -1.

With the tagged field `windows` a node answers for the partitions that it leads, from their share windows, and asks no
coordinator. With `ranges_max`, and one group, it lists the states of this many ranges of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import NO_TOPIC_ID, TopicPartition
from millpond.base.later import Later, done, gather
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import NOT_AUTHORISED, Need, Rights, Screened, both, on_each
from millpond.broker.coordination.share_state import StateSummary
from millpond.broker.coordinator_calls.group_calls import GROUPS_AT_ONCE
from millpond.broker.coordinator_calls.share_groups import state_of
from millpond.broker.loop.steps import ask_in_steps, run_steps
from millpond.broker.peers.requester import RequestLost
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.broker.share_requests.window_descriptions import describe_windows
from millpond.coordinators.shares.keys import SharePartition
from millpond.coordinators.shares.state import NO_OFFSET
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, DataContext, MetadataContext, NodeContext

LAG_FROM: Final = 1
LATEST: Final = -1
LIST_OFFSETS_VERSION: Final = 5
ASK_MS: Final = 2_000
"""How long another leader may take to tell the end of its partitions; without it the lag is unknown."""

Group = m.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
Topic = m.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic
Result = m.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition
SEE_TOPIC = Need(Operation.DESCRIBE, AclResource.TOPIC)


def handle(
    node: NodeContext,
    metadata: MetadataContext,
    data: DataContext,
    coordination: CoordinationContext,
    call: Call,
    request: m.DescribeShareGroupOffsetsRequest,
) -> Outcome:
    if request.windows:
        ranges_max = request.ranges_max if len(request.groups) == 1 else 0
        describe = partial(_window, node, metadata, data, coordination, ranges_max=ranges_max)
        windows = (partial(describe, each) for each in request.groups)
        described = ask_in_steps(node.clock, windows, 1)
        return described.map(lambda groups: m.DescribeShareGroupOffsetsResponse(groups=groups))
    ask = partial(_describe, metadata, data, coordination, with_lag=call.version >= LAG_FROM)
    answered = ask_in_steps(node.clock, (partial(ask, each) for each in request.groups), GROUPS_AT_ONCE)
    return answered.map(lambda groups: m.DescribeShareGroupOffsetsResponse(groups=groups))


def _window(
    node: NodeContext,
    metadata: MetadataContext,
    data: DataContext,
    coordination: CoordinationContext,
    asked: m.DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup,
    ranges_max: int,
) -> Later[Group]:
    return run_steps(node.clock, describe_windows(node, metadata, data, coordination, asked, ranges_max))


def _describe(
    metadata: MetadataContext,
    data: DataContext,
    coordination: CoordinationContext,
    asked: m.DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup,
    *,
    with_lag: bool,
) -> Later[Group]:
    group = Group(group_id=asked.group_id, topics=[])
    try:
        known = state_of(coordination, asked.group_id)
    except Refused as refused:
        if refused.code is not ErrorCode.GROUP_ID_NOT_FOUND or asked.topics is None:
            group.error_code, group.error_message = refused.code, refused.message
            return done(group)
        # What such a group has of a partition is the same as what one that never read it has.
        known = {}
    image = metadata.image
    if asked.topics is None:
        wanted: list[tuple[str, Iterable[int]]] = [
            (image.topics_by_id[topic_id].name, sorted(topic.partitions))
            for topic_id, topic in known.items()
            if topic_id in image.topics_by_id
        ]
    else:
        wanted = [(topic.topic_name, topic.partitions) for topic in asked.topics]
    results: dict[SharePartition, list[tuple[TopicPartition, Result]]] = {}
    for name, numbers in wanted:
        topic = image.topics.get(name)
        described = Topic(topic_name=name, partitions=[])
        if topic is not None:
            described.topic_id = topic.id
        for number in numbers:
            result = Result(partition_index=number, start_offset=NO_OFFSET)
            described.partitions.append(result)
            partition = image.partition(name, number)
            if topic is not None and partition is not None:
                result.leader_epoch = partition.leader_epoch
                if topic.id in known and number in known[topic.id].partitions:
                    key = SharePartition(asked.group_id, topic.id, number)
                    results.setdefault(key, []).append((TopicPartition(name, number), result))
        group.topics.append(described)
    summaries = [_summary(coordination, key, [each for _, each in some]) for key, some in results.items()]
    filled = gather(summaries)
    if not with_lag:
        return filled.map(lambda _: group)
    names = {name for some in results.values() for name, _ in some}

    def add_lags(found: list[StateSummary | None]) -> Later[Group]:
        return _ends(metadata, data, names).map(lambda ends: lag(found, ends))

    def lag(found: list[StateSummary | None], ends: Mapping[TopicPartition, int]) -> Group:
        for summary, some in zip(found, results.values(), strict=True):
            for name, result in some:
                if summary is not None and name in ends and summary.start_offset >= 0:
                    finished = max(summary.complete_count, 0)
                    result.lag = max(ends[name] - summary.start_offset - finished, 0)
        return group

    return filled.chain(add_lags)


def _summary(
    coordination: CoordinationContext, key: SharePartition, results: list[Result]
) -> Later[StateSummary | None]:
    """The summary of one share partition, also noted in its results; None if it cannot be read."""

    def note(summary: StateSummary) -> StateSummary:
        for each in results:
            each.start_offset = summary.start_offset
        return summary

    def refuse(refused: Refused) -> None:
        for each in results:
            each.error_code, each.error_message = refused.code, refused.message

    return coordination.share_state.summary(key).map(note).recover(Refused, refuse)


def _ends(
    metadata: MetadataContext, data: DataContext, names: Iterable[TopicPartition]
) -> Later[Mapping[TopicPartition, int]]:
    """The high watermarks of these partitions, where their leaders answer."""
    ends: dict[TopicPartition, int] = {}
    elsewhere: dict[int, dict[str, list[int]]] = {}
    for each in names:
        partition, known = data.partitions.get(*each), metadata.image.partition(*each)
        if partition is not None and partition.is_leader:
            ends[each] = partition.committed_offset
        elif known is not None and metadata.image.is_active(known.leader):
            elsewhere.setdefault(known.leader, {}).setdefault(each.topic, []).append(each.partition)

    def note(response: Any) -> None:
        for topic in response.topics:
            for part in topic.partitions:
                if not part.error_code:
                    ends[TopicPartition(topic.name, part.partition_index)] = part.offset

    asked = [
        data.replica_peers.ask(leader, _list_offsets(topics), LIST_OFFSETS_VERSION, ASK_MS)
        .map(note)
        .recover(RequestLost, lambda _: None)
        for leader, topics in elsewhere.items()
    ]
    return gather(asked).map(lambda _: ends)


def _list_offsets(topics: Mapping[str, list[int]]) -> m.ListOffsetsRequest:
    kind = m.ListOffsetsRequest
    return kind(
        replica_id=-1,
        topics=[
            kind.ListOffsetsTopic(
                name=name,
                partitions=[
                    kind.ListOffsetsPartition(partition_index=each, timestamp=LATEST, current_leader_epoch=-1)
                    for each in numbers
                ],
            )
            for name, numbers in topics.items()
        ],
    )


def _refuse(
    group: m.DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup, code: ErrorCode
) -> Group:
    return Group(group_id=group.group_id, topics=[], error_code=code, error_message=NOT_AUTHORISED)


def _screen(metadata: MetadataContext, call: Call, request: m.DescribeShareGroupOffsetsRequest) -> Screened | None:
    """Of topics that the client may not describe, it hears nothing; if it named them, that they are refused."""
    if call.is_unlimited:
        return None
    whole = {group.group_id for group in request.groups if group.topics is None}

    def adjust(response: m.DescribeShareGroupOffsetsResponse) -> m.DescribeShareGroupOffsetsResponse:
        for group in response.groups:
            for topic in group.topics:
                if group.group_id not in whole and not call.demand(*SEE_TOPIC, topic.topic_name):
                    topic.topic_id = NO_TOPIC_ID
                    topic.partitions = [_hidden(each.partition_index) for each in topic.partitions]
            if group.group_id in whole:
                group.topics = [each for each in group.topics if call.may(*SEE_TOPIC, each.topic_name)]
        return response

    return Screened(request, adjust=adjust)


def _hidden(number: int) -> Result:
    return Result(
        partition_index=number,
        start_offset=NO_OFFSET,
        error_code=SEE_TOPIC.refusal,
        error_message=NOT_AUTHORISED,
    )


API = Api(
    key=90,
    name="DescribeShareGroupOffsets",
    versions=(0, 1),
    handle=handle,
    lists="groups",
    pieces=(way("groups.topics.partitions", "groups.topics.partitions", one_by_one=True),),
    rights=both(
        on_each(
            Operation.DESCRIBE,
            AclResource.GROUP,
            of="groups",
            named=lambda group: group.group_id,
            refuse=_refuse,
            into="groups",
        ),
        Rights((SEE_TOPIC,), _screen),
    ),
)
