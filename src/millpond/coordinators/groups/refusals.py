"""A refusal as the response of each kind of request.

Also used for requests that never reach a shard: when the coordinator is elsewhere, or still loading.
"""

from __future__ import annotations

from millpond.base.errors import ErrorCode, Refused
from millpond.coordinators.groups.offset_commit import refused_commit, refused_in_transaction
from millpond.coordinators.groups.offset_fetch import GROUP_ERROR_FROM, SEVERAL_GROUPS_FROM
from millpond.coordinators.groups.rebalance import refused_join
from millpond.coordinators.shard import Request
from millpond.wire import messages as m


def refusal(request: Request, refused: Refused) -> m.Message:
    body, code = request.body, refused.code
    match body:
        case m.JoinGroupRequest():
            return refused_join(request, code, body.member_id)
        case m.SyncGroupRequest():
            return m.SyncGroupResponse(error_code=code)
        case m.HeartbeatRequest():
            return m.HeartbeatResponse(error_code=code)
        case m.LeaveGroupRequest():
            return m.LeaveGroupResponse(error_code=code)
        case m.OffsetCommitRequest():
            return refused_commit(body, code)
        case m.TxnOffsetCommitRequest():
            return refused_in_transaction(body, code)
        case m.OffsetFetchRequest():
            return _refused_fetch(body, request.version, code)
        case m.OffsetDeleteRequest():
            return m.OffsetDeleteResponse(error_code=code)
        case m.DescribeGroupsRequest():
            kind = m.DescribeGroupsResponse.DescribedGroup
            return m.DescribeGroupsResponse(groups=[kind(group_id=each, error_code=code) for each in body.groups])
        case m.ListGroupsRequest():
            return m.ListGroupsResponse(error_code=code)
        case m.DeleteGroupsRequest():
            result, names = m.DeleteGroupsResponse.DeletableGroupResult, body.groups_names
            return m.DeleteGroupsResponse(
                results=[result(group_id=each, error_code=code, error_message=refused.message) for each in names]
            )
        case m.ConsumerGroupDescribeRequest():
            described = m.ConsumerGroupDescribeResponse.DescribedGroup
            return m.ConsumerGroupDescribeResponse(
                groups=[
                    described(group_id=each, error_code=code, error_message=refused.message)
                    for each in body.group_ids
                ]
            )
        case m.ConsumerGroupHeartbeatRequest():
            return m.ConsumerGroupHeartbeatResponse(error_code=code, error_message=refused.message)
        case m.ShareGroupHeartbeatRequest():
            return m.ShareGroupHeartbeatResponse(error_code=code, error_message=refused.message)
        case m.AlterShareGroupOffsetsRequest():
            return m.AlterShareGroupOffsetsResponse(error_code=code, error_message=refused.message)
        case m.DeleteShareGroupOffsetsRequest():
            return m.DeleteShareGroupOffsetsResponse(error_code=code, error_message=refused.message)
        case m.ShareGroupDescribeRequest():
            shared = m.ShareGroupDescribeResponse.DescribedGroup
            return m.ShareGroupDescribeResponse(
                groups=[
                    shared(group_id=each, error_code=code, error_message=refused.message) for each in body.group_ids
                ]
            )
        case _:
            raise AssertionError(f"{type(body).__name__} is not a request to a group coordinator")


def _refused_fetch(body: m.OffsetFetchRequest, version: int, code: ErrorCode) -> m.OffsetFetchResponse:
    if version >= SEVERAL_GROUPS_FROM:
        answered = m.OffsetFetchResponse.OffsetFetchResponseGroup
        return m.OffsetFetchResponse(
            groups=[answered(group_id=each.group_id, error_code=code) for each in body.groups]
        )
    if version >= GROUP_ERROR_FROM:
        return m.OffsetFetchResponse(error_code=code)
    partition = m.OffsetFetchResponse.OffsetFetchResponsePartition
    return m.OffsetFetchResponse(
        topics=[
            m.OffsetFetchResponse.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    partition(partition_index=number, committed_offset=-1, metadata="", error_code=code)
                    for number in topic.partition_indexes
                ],
            )
            for topic in body.topics or ()
        ]
    )
