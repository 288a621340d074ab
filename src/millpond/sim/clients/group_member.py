"""Simulated group members: the classic protocol, eager or cooperative, and the consumer protocol (KIP-848).

A member reports its assignment to a `RebalanceListener`, which works on the partitions and gives them up before the
member says so to the coordinator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import NAMESPACE_OID, UUID, uuid5

from millpond.base.errors import ErrorCode
from millpond.sim.clients.assignors import cooperative_sticky, ranges
from millpond.sim.clients.client import Client
from millpond.sim.clients.requests import GROUP_KEY, RETRY_MS, Membership, find_coordinator
from millpond.sim.clients.script import Script, Send, Sleep
from millpond.sim.world.clock import VirtualClock
from millpond.wire import messages as m

JOIN_VERSION: Final = 9
SYNC_VERSION: Final = 5
JOINING_EPOCH: Final = 0
LEAVING_EPOCH: Final = -1
STATIC_LEAVING_EPOCH: Final = -2

UNKNOWN_MEMBER: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND)
"""The coordinator does not know the member: it has to join again."""


@dataclass(slots=True, frozen=True)
class GroupTopic:
    name: str
    id: UUID
    partitions: int


@dataclass(slots=True, frozen=True)
class MemberTimes:
    session_ms: int = 2_000
    rebalance_ms: int = 3_000
    heartbeat_ms: int = 300

    @property
    def lease_ms(self) -> int:
        """For this long after a heartbeat the member's partitions cannot belong to another member."""
        return min(self.session_ms, self.rebalance_ms)


class RebalanceListener:
    """Works on the partitions of one member. The names are those of Kafka's ConsumerRebalanceListener."""

    def partition_count(self) -> int:
        """The number of partitions that the leader of a classic group assigns."""
        raise NotImplementedError

    def on_assigned(self, added: frozenset[int]) -> Script[None]:
        """The membership has these partitions from now on, besides those it had; there may be none."""
        raise NotImplementedError

    def on_revoked(self, revoked: frozenset[int]) -> Script[None]:
        """Finish and commit the work on these partitions, which the membership still has; there may be none."""
        raise NotImplementedError

    def on_lost(self) -> None:
        """Stop at once: other members may own the partitions already."""
        raise NotImplementedError

    def on_heartbeat(self, sent_ms: int) -> None:
        """The coordinator has accepted a request that was sent at this time."""

    def on_synced(self, assigned: frozenset[int]) -> None:
        """The leader of a classic group assigned these in the membership's generation."""


class GroupMember:
    """What the protocols have in common."""

    def __init__(
        self,
        clock: VirtualClock,
        client: Client,
        group_id: str,
        topic: str,
        topic_id: UUID,
        listener: RebalanceListener,
        times: MemberTimes,
        *,
        instance_id: str | None = None,
        incarnation: str = "",
    ) -> None:
        """`incarnation` differs each time the member is started; the client's name by default."""
        self.membership = Membership(group_id, instance_id=instance_id)
        self.is_leaving = False
        self.state = "joining"
        self._clock = clock
        self._client = client
        self._topic = topic
        self._topic_id = topic_id
        self._listener = listener
        self._times = times
        self._incarnation = incarnation or client.name

    def run(self) -> Script[None]:
        raise NotImplementedError

    def _take_assignment(self, assigned: frozenset[int]) -> Script[bool]:
        """Give up what is revoked, then take what is added; whether anything was revoked."""
        revoked = self.membership.partitions - assigned
        if revoked:
            yield from self._revoke(revoked)
        added = assigned - self.membership.partitions
        self.membership.partitions = assigned
        yield from self._listener.on_assigned(added)
        return bool(revoked)

    def _revoke(self, revoked: frozenset[int]) -> Script[None]:
        yield from self._listener.on_revoked(revoked)
        self.membership.partitions -= revoked

    def _lose(self) -> None:
        self._listener.on_lost()
        self.membership.partitions = frozenset()


class ClassicMember(GroupMember):
    """Joins; the group's leader assigns partitions; heartbeats tell when to join again."""

    is_cooperative = False
    join_client: Client | None = None
    """For requests to join, which wait for the other members: nothing else should queue behind them."""
    _assigned_count = 0
    """How many partitions this member assigned as the group's leader; 0 while it is not the leader."""

    def run(self) -> Script[None]:
        yield from find_coordinator(self._client, GROUP_KEY, self.membership.group_id)
        while not self.is_leaving:
            joined = yield from self._join()
            if joined is None:
                continue
            assigned = yield from self._sync(joined)
            if assigned is None:
                continue
            self.state = "stable"
            has_revoked = yield from self._take_assignment(assigned)
            # A cooperative member that gave up partitions joins again, so that the next round can assign them.
            if not (has_revoked and self.is_cooperative):
                yield from self._heartbeat_until_rebalance()
        yield from self._revoke(self.membership.partitions)
        if self.membership.instance_id is None:
            leaving = m.LeaveGroupRequest.MemberIdentity(member_id=self.membership.member_id)
            yield Send(self._client, m.LeaveGroupRequest(group_id=self.membership.group_id, members=[leaving]), 4)
        self.state = "gone"

    @property
    def _assignor(self) -> str:
        return "cooperative-sticky" if self.is_cooperative else "range"

    def _join(self) -> Script[m.JoinGroupResponse | None]:
        self.state = "joining"
        sent_ms = self._clock.now_ms
        membership = self.membership
        request = m.JoinGroupRequest(
            group_id=membership.group_id,
            session_timeout_ms=self._times.session_ms,
            rebalance_timeout_ms=self._times.rebalance_ms,
            member_id=membership.member_id,
            group_instance_id=membership.instance_id,
            protocol_type="consumer",
            protocols=[
                m.JoinGroupRequest.JoinGroupRequestProtocol(name=self._assignor, metadata=self._subscription())
            ],
        )
        reply: m.JoinGroupResponse | None = yield Send(self.join_client or self._client, request, JOIN_VERSION)
        code = None if reply is None else reply.error_code
        if reply is not None and code == ErrorCode.NONE:
            membership.member_id, membership.generation = reply.member_id, reply.generation_id
            self._listener.on_heartbeat(sent_ms)
            return reply
        if reply is not None and code == ErrorCode.MEMBER_ID_REQUIRED:
            membership.member_id = reply.member_id
            return None
        self._forget_if_unknown(code)
        yield Sleep(RETRY_MS)
        return None

    def _subscription(self) -> bytes:
        kind = m.ConsumerProtocolSubscription
        mine = sorted(self.membership.partitions) if self.is_cooperative else []
        owned = [kind.TopicPartition(topic=self._topic, partitions=mine)] if mine else []
        return b"\0\1" + kind(topics=[self._topic], user_data=None, owned_partitions=owned).encode(1)

    def _sync(self, joined: m.JoinGroupResponse) -> Script[frozenset[int] | None]:
        leads = joined.leader == joined.member_id and not joined.skip_assignment
        self._assigned_count = self._listener.partition_count() if leads else 0
        request = m.SyncGroupRequest(
            group_id=self.membership.group_id,
            generation_id=joined.generation_id,
            member_id=self.membership.member_id,
            group_instance_id=self.membership.instance_id,
            protocol_type="consumer",
            protocol_name=self._assignor,
            assignments=self._assignments(joined) if leads else [],
        )
        reply = None
        while reply is None:
            reply = yield Send(self.join_client or self._client, request, SYNC_VERSION)
        if reply.error_code:
            self._forget_if_unknown(reply.error_code)
            yield Sleep(RETRY_MS)
            return None
        partitions = frozenset[int]()
        if reply.assignment:
            assignment, _ = m.ConsumerProtocolAssignment.decode(bytes(reply.assignment), 0, 2)
            partitions = frozenset(number for each in assignment.assigned_partitions for number in each.partitions)
        self._listener.on_synced(partitions)
        return partitions

    def _assignments(self, joined: m.JoinGroupResponse) -> list[m.SyncGroupRequest.SyncGroupRequestAssignment]:
        owned = {each.member_id: _owned_partitions(each) for each in joined.members}
        count = self._assigned_count
        shares = cooperative_sticky(count, owned) if self.is_cooperative else ranges(count, sorted(owned))
        kind = m.ConsumerProtocolAssignment
        return [
            m.SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=member_id,
                assignment=b"\0\0"
                + kind(assigned_partitions=[kind.TopicPartition(topic=self._topic, partitions=sorted(mine))]).encode(
                    0
                ),
            )
            for member_id, mine in shares.items()
        ]

    def _heartbeat_until_rebalance(self) -> Script[None]:
        membership = self.membership
        while not self.is_leaving:
            yield Sleep(self._times.heartbeat_ms)
            sent_ms = self._clock.now_ms
            request = m.HeartbeatRequest(
                group_id=membership.group_id,
                generation_id=membership.generation,
                member_id=membership.member_id,
                group_instance_id=membership.instance_id,
            )
            reply = yield Send(self._client, request, 4)
            code = None if reply is None else reply.error_code
            if code == ErrorCode.NONE:
                self._listener.on_heartbeat(sent_ms)
            has_new_partitions = 0 < self._assigned_count < self._listener.partition_count()
            if code == ErrorCode.REBALANCE_IN_PROGRESS or (code == ErrorCode.NONE and has_new_partitions):
                if not self.is_cooperative:
                    yield from self._revoke(membership.partitions)
                return
            if code in (*UNKNOWN_MEMBER, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID):
                self._lose()
                self._forget_if_unknown(code)
                return

    def _forget_if_unknown(self, code: int | None) -> None:
        if code in (*UNKNOWN_MEMBER, ErrorCode.FENCED_INSTANCE_ID):
            self.membership.member_id = ""
            if self.membership.partitions:
                self._lose()


def _owned_partitions(member: m.JoinGroupResponse.JoinGroupResponseMember) -> frozenset[int]:
    subscription, _ = m.ConsumerProtocolSubscription.decode(bytes(member.metadata), 1, 2)
    return frozenset(number for each in subscription.owned_partitions for number in each.partitions)


class ConsumerMember(GroupMember):
    """Heartbeats report what it owns and return what it should own."""

    def run(self) -> Script[None]:
        self.membership.member_id = str(uuid5(NAMESPACE_OID, self._incarnation))
        yield from find_coordinator(self._client, GROUP_KEY, self.membership.group_id)
        epoch, is_full = JOINING_EPOCH, True
        while not self.is_leaving:
            sent_ms = self._clock.now_ms
            reply = yield Send(self._client, self._heartbeat(epoch, is_full), 1)
            code = None if reply is None else reply.error_code
            if reply is not None and code == ErrorCode.NONE:
                self.state = "stable"
                self._listener.on_heartbeat(sent_ms)
                self.membership.generation = epoch = reply.member_epoch
                is_full = yield from self._reconcile(reply.assignment)
                if is_full:
                    continue
            elif code in UNKNOWN_MEMBER:
                self._lose()
                self.state = "joining"
                epoch, is_full = JOINING_EPOCH, True
            else:
                is_full = True
            yield Sleep(RETRY_MS if code else self._times.heartbeat_ms)
        yield from self._revoke(self.membership.partitions)
        epoch = LEAVING_EPOCH if self.membership.instance_id is None else STATIC_LEAVING_EPOCH
        yield Send(self._client, self._heartbeat(epoch, is_full=False), 1)
        self.state = "gone"

    def _reconcile(self, assignment: m.ConsumerGroupHeartbeatResponse.Assignment | None) -> Script[bool]:
        """Take over the assignment; whether that changed anything, which the coordinator has to know."""
        if assignment is None:
            return False
        assigned = frozenset(number for each in assignment.topic_partitions for number in each.partitions)
        if assigned == self.membership.partitions:
            return False
        yield from self._take_assignment(assigned)
        return True

    def _heartbeat(self, epoch: int, is_full: bool) -> m.ConsumerGroupHeartbeatRequest:
        request = m.ConsumerGroupHeartbeatRequest(
            group_id=self.membership.group_id,
            member_id=self.membership.member_id,
            member_epoch=epoch,
            instance_id=self.membership.instance_id,
        )
        if is_full:
            kind = m.ConsumerGroupHeartbeatRequest.TopicPartitions
            mine = sorted(self.membership.partitions)
            request.rebalance_timeout_ms = self._times.rebalance_ms
            request.subscribed_topic_names = [self._topic]
            request.topic_partitions = [kind(topic_id=self._topic_id, partitions=mine)] if mine else []
        return request
