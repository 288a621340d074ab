"""A member of a classic group: its metadata, its assignment, and its pending requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from millpond.coordinators.groups.classic_size import member_record_bytes
from millpond.coordinators.groups.history import DETAIL_LENGTH_MAX, Cause, Why
from millpond.coordinators.groups.memory import MEMBER_BYTES, protocols_bytes, text_bytes
from millpond.coordinators.shard import Request
from millpond.wire.messages import GroupMetadataValue, JoinGroupRequest, JoinGroupResponse

Protocols = tuple[tuple[str, bytes], ...]
"""The protocols that a member supports, preferred first, each with its metadata for the leader."""

NO_MEMBER_ID = ""
CLIENT_ID_IN_MEMBER_ID_MAX = 249


@dataclass(slots=True)
class Member:
    """`joining` and `syncing` are pending requests; they and `is_new` are lost with the node."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    joining: Request | None = None
    syncing: Request | None = None
    is_new: bool = False
    """It has not been in a generation yet, so it does not know its id and cannot send heartbeats."""

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def is_waiting(self) -> bool:
        return self.joining is not None or self.syncing is not None

    @property
    def kept_bytes(self) -> int:
        """The memory that it takes; its assignment is counted with those of the group."""
        names = (self.id, self.instance_id, self.client_id, self.client_host)
        return MEMBER_BYTES + sum(map(text_bytes, names)) + protocols_bytes(self.protocols)

    @property
    def record_bytes(self) -> int:
        """The largest size of its part of the group's record, whatever the group's protocol."""
        names = (self.id, self.instance_id, self.client_id, self.client_host)
        return member_record_bytes(names, self.protocols) + len(self.assignment)

    @property
    def protocol_names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.protocols)

    def metadata_for(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: Iterable[str]) -> str:
        """The candidate that this member prefers."""
        return next(name for name, _ in self.protocols if name in candidates)

    def as_join_member(self, protocol: str | None) -> JoinGroupResponse.JoinGroupResponseMember:
        return JoinGroupResponse.JoinGroupResponseMember(
            member_id=self.id, group_instance_id=self.instance_id, metadata=self.metadata_for(protocol)
        )

    def as_record(self, protocol: str | None, assignment: bytes) -> GroupMetadataValue.MemberMetadata:
        return GroupMetadataValue.MemberMetadata(
            member_id=self.id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.metadata_for(protocol),
            assignment=assignment,
        )

    def cause(self, why: Why, now_ms: int, detail: str | None = None) -> Cause:
        return Cause(
            why,
            self.id,
            now_ms,
            self.instance_id,
            self.client_id,
            self.client_host,
            (detail or "")[:DETAIL_LENGTH_MAX],
        )


def member_from_join(request: Request, body: JoinGroupRequest, member_id: str) -> Member:
    return Member(
        id=member_id,
        instance_id=body.group_instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=rebalance_timeout_of(body),
        session_timeout_ms=body.session_timeout_ms,
        protocols=protocols_of(body),
        is_new=True,
    )


def without_body(request: Request) -> Request:
    """What is kept of a pending request: how to answer it. Its content was processed, and may be large."""
    return replace(request, body=type(request.body)())


def member_from_record(record: GroupMetadataValue.MemberMetadata, protocol: str | None) -> Member:
    """A member from its record, which contains only the elected protocol."""
    return Member(
        id=record.member_id,
        instance_id=record.group_instance_id,
        client_id=record.client_id,
        client_host=record.client_host,
        rebalance_timeout_ms=record.session_timeout if record.rebalance_timeout < 0 else record.rebalance_timeout,
        session_timeout_ms=record.session_timeout,
        protocols=((protocol or "", record.subscription),),
        assignment=record.assignment,
    )


def protocols_of(body: JoinGroupRequest) -> Protocols:
    """If a name is repeated, the first counts."""
    protocols: dict[str, bytes] = {}
    for each in body.protocols:
        protocols.setdefault(each.name, each.metadata)
    return tuple(protocols.items())


def rebalance_timeout_of(body: JoinGroupRequest) -> int:
    """The first version has no such field: the session timeout is used instead."""
    return body.session_timeout_ms if body.rebalance_timeout_ms < 0 else body.rebalance_timeout_ms


def new_member_id(client_id: str, instance_id: str | None, unique: str) -> str:
    return f"{(instance_id or client_id)[:CLIENT_ID_IN_MEMBER_ID_MAX]}-{unique}"
