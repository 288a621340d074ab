"""Requests of classic consumer groups, for clients that send them as raw frames."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from bench import raw
from millpond.wire import messages as m

COORDINATOR_SECONDS_MAX = 60.0
COORDINATOR_VERSION, JOIN_VERSION, SYNC_VERSION, COMMIT_VERSION = 2, 5, 3, 7
SESSION_MS = 1_800_000
METADATA = bytes(200)
"""As large as a subscription or an assignment usually is."""


def await_coordinator(client: raw.RawClient, group: str) -> None:
    deadline = time.monotonic() + COORDINATOR_SECONDS_MAX
    while time.monotonic() < deadline:
        response: Any = client.call(m.FindCoordinatorRequest(key=group), COORDINATOR_VERSION)
        if not response.error_code:
            return
        time.sleep(0.05)
    raise TimeoutError(f"group {group} has no coordinator")


def join_request(group: str, member_id: str = "", session_ms: int = SESSION_MS) -> m.JoinGroupRequest:
    kind = m.JoinGroupRequest
    return kind(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=session_ms,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[kind.JoinGroupRequestProtocol(name="range", metadata=METADATA)],
    )


def sync_request(group: str, generation: int, member_id: str, members: Iterable[str] = ()) -> m.SyncGroupRequest:
    """`members` are those that the leader assigns partitions to."""
    kind = m.SyncGroupRequest
    assignments = [kind.SyncGroupRequestAssignment(member_id=each, assignment=METADATA) for each in members]
    return kind(group_id=group, generation_id=generation, member_id=member_id, assignments=assignments)


def commit_request(
    group: str, generation: int, member_id: str, topic: str, offsets: Mapping[int, int]
) -> m.OffsetCommitRequest:
    kind = m.OffsetCommitRequest
    partitions = [
        kind.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        for index, offset in offsets.items()
    ]
    return kind(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[kind.OffsetCommitRequestTopic(name=topic, partitions=partitions)],
    )


def join_alone(client: raw.RawClient, group: str) -> tuple[str, int]:
    """Member id and generation of the only member of a group."""
    joined: Any = m.JoinGroupResponse(member_id="", error_code=-1)
    while joined.error_code:
        joined = client.call(join_request(group, joined.member_id), JOIN_VERSION)
    member_id, generation = joined.member_id, joined.generation_id
    check(client.call(sync_request(group, generation, member_id, [member_id]), SYNC_VERSION))
    return member_id, generation


def check(response: m.Message) -> None:
    """Raise on any error code: a fast refusal must not look like a fast broker."""
    codes = [getattr(response, "error_code", 0)]
    for topic in getattr(response, "topics", ()) or getattr(response, "responses", ()):
        codes += [each.error_code for each in topic.partitions]
    if any(codes):
        raise RuntimeError(f"{type(response).__name__} has error codes {sorted(set(codes))}")
