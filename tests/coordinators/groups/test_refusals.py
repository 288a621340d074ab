"""A refusal has the shape of its request, in every version."""

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.coordinators.groups.refusals import refusal
from millpond.coordinators.shard import Request
from millpond.wire import messages as m

REQUESTS = [
    m.JoinGroupRequest(member_id="m"),
    m.SyncGroupRequest(),
    m.HeartbeatRequest(),
    m.LeaveGroupRequest(),
    m.OffsetCommitRequest(),
    m.TxnOffsetCommitRequest(),
    m.OffsetFetchRequest(
        topics=[m.OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])],
        groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g")],
    ),
    m.OffsetDeleteRequest(),
    m.DescribeGroupsRequest(groups=["g"]),
    m.ListGroupsRequest(),
    m.DeleteGroupsRequest(groups_names=["g"]),
    m.ConsumerGroupHeartbeatRequest(),
    m.ConsumerGroupDescribeRequest(group_ids=["g"]),
]


@pytest.mark.parametrize("body", REQUESTS, ids=lambda body: type(body).__name__)
def test_can_be_sent(body: m.Message) -> None:
    first, last = body.VERSIONS
    for version in range(first, last + 1):
        response = refusal(Request(body, version, None), Refused(ErrorCode.NOT_COORDINATOR))
        assert isinstance(response, m.response_class(body.API_KEY or 0))
        response.encode(version)


def test_fetch_says_it_where_the_version_can() -> None:
    def told(version: int) -> m.OffsetFetchResponse:
        found = refusal(Request(REQUESTS[6], version, None), Refused(ErrorCode.NOT_COORDINATOR))
        assert isinstance(found, m.OffsetFetchResponse)
        return found

    assert told(1).topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert told(2).error_code == ErrorCode.NOT_COORDINATOR
    assert told(8).groups[0].error_code == ErrorCode.NOT_COORDINATOR


def test_of_a_request_that_is_not_ours() -> None:
    with pytest.raises(AssertionError):
        refusal(Request(m.FetchRequest(), 4, None), Refused(ErrorCode.NONE))
