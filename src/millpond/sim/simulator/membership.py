"""How a simulated consumer belongs to its group: eager and cooperative by the classic protocol, and the new one.

A membership says which partitions are its holder's now, and asks the holder to let go of some before others get them.
"""

from __future__ import annotations

from typing import Final, Protocol
from uuid import NAMESPACE_OID, UUID, uuid5

from millpond.base.errors import ErrorCode
from millpond.sim.clients.assignors import ranges, sticky
from millpond.sim.clients.cluster_client import ClusterClient
from millpond.sim.clients.group_member import (
    FORGOTTEN,
    GROUP_KEY,
    JOINING_EPOCH,
    LEAVING_EPOCH,
    RETRY_MS,
    find_coordinator,
)
from millpond.sim.clients.script import Ask, Rest, Script
from millpond.wire import messages as m

SESSION_MS: Final = 1_500
REBALANCE_MS: Final = 3_000
HEARTBEAT_MS: Final = 200
PATIENCE_MS: Final = REBALANCE_MS + 2_000
"""How long a request to join may wait for the others."""
JOIN_VERSION: Final = 9
SYNC_VERSION: Final = 5
AWAY_EPOCH: Final = -2
ASSIGNORS: Final = {"eager": "range", "cooperative": "cooperative-sticky"}


class Holder(Protocol):
    """Whoever works on the partitions."""

    name: str
    life: int
    """How many times its process was started."""
    owned: frozenset[int]

    def partition_count(self) -> int: ...

    def take(self, partitions: frozenset[int]) -> None:
        """From now on these are yours, too."""
        ...

    def let_go(self, partitions: frozenset[int]) -> Script[None]:
        """Finish what is under way with these, commit it, and leave them alone."""
        ...

    def lose(self) -> None:
        """Nothing is yours any more: others may work on it already."""
        ...


class Membership:
    """What all kinds have in common. `member_id` and `generation` go along with commits."""

    def __init__(
        self, client: ClusterClient, group: str, topic: str, topic_id: UUID, holder: Holder, instance: str | None
    ) -> None:
        self.group = group
        self.member_id = ""
        self.generation = -1
        self.instance = instance
        self.is_leaving = False
        self.state = "joining"
        self._client = client
        self._topic = topic
        self._topic_id = topic_id
        self._holder = holder

    def live(self) -> Script[None]:
        raise NotImplementedError


class ClassicMembership(Membership):
    """Joins; the leader of the group shares out; heartbeats tell when to join again."""

    def __init__(
        self,
        client: ClusterClient,
        group: str,
        topic: str,
        topic_id: UUID,
        holder: Holder,
        instance: str | None,
        *,
        patient: ClusterClient,
        is_cooperative: bool,
    ) -> None:
        """`patient` waits as long as the others may take to join."""
        super().__init__(client, group, topic, topic_id, holder, instance)
        self._patient = patient
        self._is_cooperative = is_cooperative
        self._assignor = ASSIGNORS["cooperative" if is_cooperative else "eager"]
        self._shared_out = 0
        """How many partitions this member has shared out as the leader of its group; 0 while another one leads."""

    def live(self) -> Script[None]:
        yield from find_coordinator(self._client, GROUP_KEY, self.group)
        while not self.is_leaving:
            joined = yield from self._join()
            if joined is None:
                continue
            assigned = yield from self._sync(joined)
            if assigned is None:
                continue
            self.state = "stable"
            holder = self._holder
            gone = holder.owned - assigned
            if gone:
                yield from holder.let_go(gone)
            holder.take(assigned - holder.owned)
            # Only who let go of something has news for the others, who wait for it.
            if not (gone and self._is_cooperative):
                yield from self._beat()
        yield from self._holder.let_go(self._holder.owned)
        if self.instance is None:
            leaving = m.LeaveGroupRequest.MemberIdentity(member_id=self.member_id)
            yield Ask(self._client, m.LeaveGroupRequest(group_id=self.group, members=[leaving]), 4)
        self.state = "gone"

    def _join(self) -> Script[m.JoinGroupResponse | None]:
        self.state = "joining"
        request = m.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[
                m.JoinGroupRequest.JoinGroupRequestProtocol(name=self._assignor, metadata=self._subscription())
            ],
        )
        reply: m.JoinGroupResponse | None = yield Ask(self._patient, request, JOIN_VERSION)
        code = None if reply is None else reply.error_code
        if reply is not None and code == ErrorCode.NONE:
            self.member_id, self.generation = reply.member_id, reply.generation_id
            return reply
        if reply is not None and code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
            return None
        if code in FORGOTTEN:
            self._forget()
        yield Rest(RETRY_MS)
        return None

    def _subscription(self) -> bytes:
        kind = m.ConsumerProtocolSubscription
        mine = sorted(self._holder.owned) if self._is_cooperative else []
        owned = [kind.TopicPartition(topic=self._topic, partitions=mine)] if mine else []
        return b"\0\1" + kind(topics=[self._topic], user_data=None, owned_partitions=owned).encode(1)

    def _sync(self, joined: m.JoinGroupResponse) -> Script[frozenset[int] | None]:
        leads = joined.leader == joined.member_id and not joined.skip_assignment
        self._shared_out = self._holder.partition_count() if leads else 0
        request = m.SyncGroupRequest(
            group_id=self.group,
            generation_id=joined.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocol_name=self._assignor,
            assignments=self._assignments(joined) if leads else [],
        )
        reply = yield Ask(self._patient, request, SYNC_VERSION)
        code = None if reply is None else reply.error_code
        if reply is None or code != ErrorCode.NONE:
            if code in FORGOTTEN:
                self._forget()
            yield Rest(RETRY_MS)
            return None
        if not reply.assignment:
            return frozenset()
        told, _ = m.ConsumerProtocolAssignment.decode(bytes(reply.assignment), 0, 2)
        return frozenset(number for each in told.assigned_partitions for number in each.partitions)

    def _assignments(self, joined: m.JoinGroupResponse) -> list[m.SyncGroupRequest.SyncGroupRequestAssignment]:
        owned = {each.member_id: self._owned_by(each) for each in joined.members}
        count = self._holder.partition_count()
        shares = sticky(count, owned) if self._is_cooperative else ranges(count, sorted(owned))
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

    def _owned_by(self, member: m.JoinGroupResponse.JoinGroupResponseMember) -> frozenset[int]:
        told, _ = m.ConsumerProtocolSubscription.decode(bytes(member.metadata), 1, 2)
        return frozenset(number for each in told.owned_partitions for number in each.partitions)

    def _beat(self) -> Script[None]:
        """Until the group rebalances or forgets us."""
        while not self.is_leaving:
            yield Rest(HEARTBEAT_MS)
            request = m.HeartbeatRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance,
            )
            reply = yield Ask(self._client, request, 4)
            code = None if reply is None else reply.error_code
            has_grown = 0 < self._shared_out < self._holder.partition_count()
            if code == ErrorCode.REBALANCE_IN_PROGRESS or (code == ErrorCode.NONE and has_grown):
                if not self._is_cooperative:
                    yield from self._holder.let_go(self._holder.owned)
                return
            if code in (*FORGOTTEN, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID):
                self._forget()
                return

    def _forget(self) -> None:
        self.member_id = ""
        self._holder.lose()


class ConsumerMembership(Membership):
    """KIP-848: says by heartbeats what it has, and is told what it shall have."""

    def live(self) -> Script[None]:
        self.member_id = str(uuid5(NAMESPACE_OID, f"{self._holder.name} {self._holder.life}"))
        yield from find_coordinator(self._client, GROUP_KEY, self.group)
        epoch, says_all = JOINING_EPOCH, True
        while not self.is_leaving:
            reply = yield Ask(self._client, self._heartbeat(epoch, says_all), 1)
            code = None if reply is None else reply.error_code
            if reply is not None and code == ErrorCode.NONE:
                self.state = "stable"
                self.generation = epoch = reply.member_epoch
                says_all = yield from self._obey(reply.assignment)
                if says_all:
                    continue
            elif code in FORGOTTEN:
                self._holder.lose()
                self.state = "joining"
                epoch, says_all = JOINING_EPOCH, True
            else:
                says_all = True
            yield Rest(RETRY_MS if code else HEARTBEAT_MS)
        yield from self._holder.let_go(self._holder.owned)
        yield Ask(self._client, self._heartbeat(LEAVING_EPOCH if self.instance is None else AWAY_EPOCH, False), 1)
        self.state = "gone"

    def _obey(self, assignment: m.ConsumerGroupHeartbeatResponse.Assignment | None) -> Script[bool]:
        """Take what we are given now, and let go of what we are not; whether the coordinator has to hear of it."""
        if assignment is None:
            return False
        wanted = frozenset(number for each in assignment.topic_partitions for number in each.partitions)
        holder = self._holder
        if wanted == holder.owned:
            return False
        if gone := holder.owned - wanted:
            yield from holder.let_go(gone)
        holder.take(wanted - holder.owned)
        return True

    def _heartbeat(self, epoch: int, says_all: bool) -> m.ConsumerGroupHeartbeatRequest:
        request = m.ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=epoch, instance_id=self.instance
        )
        if says_all:
            kind = m.ConsumerGroupHeartbeatRequest.TopicPartitions
            mine = sorted(self._holder.owned)
            request.rebalance_timeout_ms = REBALANCE_MS
            request.subscribed_topic_names = [self._topic]
            request.topic_partitions = [kind(topic_id=self._topic_id, partitions=mine)] if mine else []
        return request
