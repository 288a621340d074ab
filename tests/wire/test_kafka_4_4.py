"""Versions that Kafka 4.4 added and the other oracles do not know: bytes as franz-go (kmsg 1.15) writes them."""

from __future__ import annotations

from uuid import UUID

import pytest

from millpond.wire import messages as m

TOPIC_ID = UUID(bytes=bytes(range(1, 17)))
COMMIT, COMMITTED, DELETED = m.TxnOffsetCommitRequest, m.TxnOffsetCommitResponse, m.DeleteGroupsResponse


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "data"),
    [
        (None, -1, "046b676f07312e32322e3200ffffffff00"),
        ("pond", 3, "046b676f07312e32322e3205706f6e640000000300"),
    ],
)
def test_api_versions_request_5(cluster_id: str | None, node_id: int, data: str) -> None:
    request = m.ApiVersionsRequest(
        client_software_name="kgo", client_software_version="1.22.2", cluster_id=cluster_id, node_id=node_id
    )
    assert request.encode(5).hex() == data
    assert m.ApiVersionsRequest.decode(bytes.fromhex(data), 5) == (request, len(data) // 2)


@pytest.mark.parametrize(
    ("message", "version", "data"),
    [
        (
            COMMIT(
                transactional_id="tx",
                group_id="g",
                producer_id=7,
                producer_epoch=3,
                generation_id=5,
                member_id="m",
                group_instance_id="i1",
                topics=[
                    COMMIT.TxnOffsetCommitRequestTopic(
                        topic_id=TOPIC_ID,
                        partitions=[
                            COMMIT.TxnOffsetCommitRequestPartition(
                                partition_index=2,
                                committed_offset=42,
                                committed_leader_epoch=4,
                                committed_metadata="note",
                            )
                        ],
                    )
                ],
            ),
            6,
            "03747802670000000000000007000300000005026d036931020102030405060708090a0b0c0d0e0f10"
            "0200000002000000000000002a00000004056e6f7465000000",
        ),
        (
            COMMITTED(
                throttle_time_ms=9,
                topics=[
                    COMMITTED.TxnOffsetCommitResponseTopic(
                        topic_id=TOPIC_ID,
                        partitions=[COMMITTED.TxnOffsetCommitResponsePartition(partition_index=2, error_code=100)],
                    )
                ],
            ),
            6,
            "00000009020102030405060708090a0b0c0d0e0f1002000000020064000000",
        ),
        (m.DeleteGroupsRequest(groups_names=["g", "h"]), 3, "030267026800"),
        (
            DELETED(
                throttle_time_ms=9,
                results=[
                    DELETED.DeletableGroupResult(
                        group_id="g", error_code=68, error_message="the group has members: stop them first"
                    ),
                    DELETED.DeletableGroupResult(group_id="h"),
                ],
            ),
            3,
            "000000090302670044277468652067726f757020686173206d656d626572733a2073746f70207468656d"
            "2066697273740002680000000000",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, m.Message) else "",
)
def test_message_of_a_newer_version(message: m.Message, version: int, data: str) -> None:
    assert message.encode(version).hex() == data
    assert type(message).decode(bytes.fromhex(data), version) == (message, len(data) // 2)


def test_older_versions_leave_the_new_fields_out() -> None:
    topic = COMMIT.TxnOffsetCommitRequestTopic(name="pond", topic_id=TOPIC_ID, partitions=[])
    decoded, _ = COMMIT.decode(COMMIT(topics=[topic]).encode(5), 5)
    assert decoded.topics == [COMMIT.TxnOffsetCommitRequestTopic(name="pond", partitions=[])]
    result = DELETED.DeletableGroupResult(group_id="g", error_code=68, error_message="why")
    answered, _ = DELETED.decode(DELETED(results=[result]).encode(2), 2)
    assert answered.results == [DELETED.DeletableGroupResult(group_id="g", error_code=68)]
