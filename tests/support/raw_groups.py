"""Group members without a client library: each request of the group protocols, one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millpond.base.errors import ErrorCode, Refused
from millpond.wire import messages as m
from support.raw import Raw

JOIN_VERSION = 9
SYNC_VERSION = 5


def subscription(topics: Sequence[str], owned: Mapping[str, list[int]] | None = None) -> bytes:
    """A consumer's metadata when it joins a classic group."""
    kind = m.ConsumerProtocolSubscription
    partitions = [kind.TopicPartition(topic=topic, partitions=numbers) for topic, numbers in (owned or {}).items()]
    return b"\0\1" + kind(topics=list(topics), user_data=None, owned_partitions=partitions).encode(1)


def assignment(partitions: Mapping[str, list[int]]) -> bytes:
    kind = m.ConsumerProtocolAssignment
    told = [kind.TopicPartition(topic=topic, partitions=numbers) for topic, numbers in partitions.items()]
    return b"\0\0" + kind(assigned_partitions=told, user_data=None).encode(0)


def assigned(data: bytes) -> dict[str, list[int]]:
    """The partitions in an assignment, as classic consumers read it; empty bytes mean none."""
    if not data:
        return {}
    found, _ = m.ConsumerProtocolAssignment.decode(data, 0, 2)
    return {each.topic: sorted(each.partitions) for each in found.assigned_partitions}


class ClassicMember:
    """One member of a classic group, on its own connection."""

    def __init__(self, port: int, group: str, instance_id: str | None = None) -> None:
        self.raw = Raw(port)
        self.group = group
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.protocol = ""
        self.is_leader = False

    def __enter__(self) -> ClassicMember:
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()

    def ask_to_join(self, protocols: Mapping[str, bytes]) -> None:
        """Send the request; the response comes when all have joined. A new member first gets an id."""
        request = self._join_request(protocols)
        if not self.member_id and self.instance_id is None:
            reply = self.raw.call(request, JOIN_VERSION)
            if reply.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                raise Refused(ErrorCode(reply.error_code))
            request.member_id = self.member_id = reply.member_id
        self.raw.send(request, JOIN_VERSION)

    def joined(self) -> Any:
        """Wait for the response."""
        _, reply = self.raw.receive(m.JoinGroupRequest.API_KEY, JOIN_VERSION)
        if not reply.error_code:
            self.member_id = reply.member_id
            self.generation, self.protocol = reply.generation_id, reply.protocol_name
            self.is_leader = reply.leader == self.member_id
        return reply

    def join(self, protocols: Mapping[str, bytes]) -> Any:
        self.ask_to_join(protocols)
        return self.joined()

    def sync(self, shares: Mapping[str, bytes] | None = None) -> Any:
        kind = m.SyncGroupRequest
        return self.raw.call(
            kind(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
                protocol_type="consumer",
                protocol_name=self.protocol,
                assignments=[
                    kind.SyncGroupRequestAssignment(member_id=member_id, assignment=share)
                    for member_id, share in (shares or {}).items()
                ],
            ),
            SYNC_VERSION,
        )

    def heartbeat(self, generation: int | None = None) -> int:
        return int(
            self.raw.call(
                m.HeartbeatRequest(
                    group_id=self.group,
                    generation_id=self.generation if generation is None else generation,
                    member_id=self.member_id,
                    group_instance_id=self.instance_id,
                ),
                4,
            ).error_code
        )

    def commit(self, topic: str, offset: int, generation: int | None = None) -> int:
        result = self.generation if generation is None else generation
        return commit(self.raw, self.group, topic, offset, result, self.member_id, self.instance_id)

    def leave(self) -> int:
        leaving = m.LeaveGroupRequest.MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)
        return int(self.raw.call(m.LeaveGroupRequest(group_id=self.group, members=[leaving]), 5).error_code)

    def _join_request(self, protocols: Mapping[str, bytes]) -> m.JoinGroupRequest:
        kind = m.JoinGroupRequest
        return kind(
            group_id=self.group,
            session_timeout_ms=6000,
            rebalance_timeout_ms=6000,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[
                kind.JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols.items()
            ],
        )


def commit(
    raw: Raw,
    group: str,
    topic: str,
    offset: int,
    generation: int = -1,
    member_id: str = "",
    instance_id: str | None = None,
    *,
    leader_epoch: int = -1,
    metadata: str | None = "",
    retention_ms: int = -1,
    version: int = 9,
) -> int:
    """Commit an offset of partition 0; returns the error of that partition."""
    kind = m.OffsetCommitRequest
    place = kind.OffsetCommitRequestPartition(
        partition_index=0,
        committed_offset=offset,
        committed_leader_epoch=leader_epoch,
        committed_metadata=metadata,
    )
    reply = raw.call(
        kind(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            retention_time_ms=retention_ms,
            topics=[kind.OffsetCommitRequestTopic(name=topic, partitions=[place])],
        ),
        version,
    )
    return int(reply.topics[0].partitions[0].error_code)


def consumer_heartbeat(raw: Raw, group: str, member_id: str, epoch: int, **fields: Any) -> Any:
    """One heartbeat of a member of the new protocol; epoch 0 joins, -1 leaves, -2 leaves temporarily."""
    if not epoch:
        fields = {"rebalance_timeout_ms": 6000, "topic_partitions": [], **fields}
    return raw.call(
        m.ConsumerGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=epoch, **fields), 1
    )
