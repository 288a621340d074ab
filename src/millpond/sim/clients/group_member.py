"""Simulated members of one group: the classic protocol with its leader, and the new one with its heartbeats.

A member works through a `Job`, which is told what it may work on and must let go before the member says so. What is
told and what is let go is written into the history, where two owners of one partition are found at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import NAMESPACE_OID, UUID, uuid5

from millpond.base.errors import ErrorCode
from millpond.sim.clients.client import Client
from millpond.sim.clients.script import Ask, Player, Rest, Script
from millpond.sim.history.groups import CoordinationHistory
from millpond.sim.world.clock import VirtualClock
from millpond.wire import messages as m

RETRY_MS = 100
PROTOCOL = "range"
GROUP_KEY, TRANSACTION_KEY = 0, 1
JOINING_EPOCH = 0
LEAVING_EPOCH = -1
NO_GENERATION = -1

FORGOTTEN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND)
"""The coordinator does not know this member (any more): it begins anew."""


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
        """For so long after a sign of life nobody else may have what is ours."""
        return min(self.session_ms, self.rebalance_ms)


@dataclass(slots=True)
class Membership:
    """Who a member is to its coordinator; goes along with its commits."""

    group_id: str
    member_id: str = ""
    generation: int = NO_GENERATION
    is_classic: bool = True
    partitions: frozenset[int] = frozenset()


def find_coordinator(client: Client, kind: int, key: str) -> Script[None]:
    """Ask until there is one: its topic is made for the first who asks."""
    request = m.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
    while True:
        reply = yield Ask(client, request, 4)
        if reply is not None and not reply.coordinators[0].error_code:
            return
        yield Rest(RETRY_MS)


class Job(Protocol):
    """What a member does with its partitions."""

    def begin(self, membership: Membership) -> None:
        """Work on the partitions of the membership, and on nothing else."""
        ...

    def finish(self, membership: Membership) -> Script[None]:
        """Let go of everything in order: the member is still known to its coordinator."""
        ...

    def stop(self) -> None:
        """Let go of everything at once."""
        ...


@dataclass(slots=True)
class _Share:
    """What a classic member heard of its generation."""

    generation: int
    leads: bool
    members: list[str] = field(default_factory=list)


class Member:
    """What both kinds of members have in common."""

    is_classic = True

    def __init__(
        self,
        clock: VirtualClock,
        client: Client,
        history: CoordinationHistory,
        group_id: str,
        topic: GroupTopic,
        job: Job,
        times: MemberTimes,
    ) -> None:
        self.client = client
        self.name = client.name
        self.membership = Membership(group_id, is_classic=self.is_classic)
        self.is_leaving = False
        self._clock = clock
        self._history = history
        self._topic = topic
        self._job = job
        self._times = times
        self._works = False
        self._player = Player(clock, self._live())

    def start(self) -> None:
        self._player.start()

    def leave(self) -> None:
        """Go, in order, as soon as the next heartbeat is due."""
        self.is_leaving = True

    def crash(self) -> None:
        """Be gone, without a word to anybody."""
        self._player.end()
        self._job.stop()
        self._works = False

    def freeze(self) -> None:
        self._player.freeze()

    def thaw(self) -> None:
        self._player.thaw()

    @property
    def is_over(self) -> bool:
        return self._player.is_over

    def _live(self) -> Script[None]:
        raise NotImplementedError

    # What both do

    def _begin(self, partitions: frozenset[int], alive_ms: int) -> None:
        self.membership.partitions = partitions
        self._history.hold(self._clock.now_ms, self.name, partitions, alive_ms + self._times.lease_ms)
        self._works = True
        self._job.begin(self.membership)

    def _finish(self) -> Script[None]:
        if self._works:
            self._works = False
            yield from self._job.finish(self.membership)
            self._let_go()

    def _lose(self) -> None:
        if self._works:
            self._works = False
            self._job.stop()
        self._let_go()

    def _let_go(self) -> None:
        self.membership.partitions = frozenset()
        self._history.let_go(self._clock.now_ms, self.name)


class ClassicMember(Member):
    """Joins, is given a share by the leader (eager, by ranges), and says by heartbeats that it is alive."""

    def _live(self) -> Script[None]:
        yield from find_coordinator(self.client, GROUP_KEY, self.membership.group_id)
        while not self.is_leaving:
            share = yield from self._join()
            if share is None:
                continue
            partitions = yield from self._sync(share)
            if partitions is None:
                continue
            self._begin(partitions, self._joined_ms)
            yield from self._beat()
        yield from self._finish()
        yield from self._leave()

    def _join(self) -> Script[_Share | None]:
        self._joined_ms = self._clock.now_ms
        request = m.JoinGroupRequest(
            group_id=self.membership.group_id,
            session_timeout_ms=self._times.session_ms,
            rebalance_timeout_ms=self._times.rebalance_ms,
            member_id=self.membership.member_id,
            protocol_type="consumer",
            protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name=PROTOCOL, metadata=self._subscription())],
        )
        reply = yield Ask(self.client, request, 7)
        code = None if reply is None else reply.error_code
        if code == ErrorCode.NONE:
            self.membership.member_id, self.membership.generation = reply.member_id, reply.generation_id
            return _Share(
                reply.generation_id,
                reply.leader == reply.member_id,
                [each.member_id for each in reply.members],
            )
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.membership.member_id = reply.member_id
            return None
        if code in FORGOTTEN:
            self.membership.member_id = ""
        yield Rest(RETRY_MS)
        return None

    def _subscription(self) -> bytes:
        told = m.ConsumerProtocolSubscription(topics=[self._topic.name], user_data=None, owned_partitions=[])
        return b"\0\1" + told.encode(1)

    def _sync(self, share: _Share) -> Script[frozenset[int] | None]:
        request = m.SyncGroupRequest(
            group_id=self.membership.group_id,
            generation_id=share.generation,
            member_id=self.membership.member_id,
            protocol_type="consumer",
            protocol_name=PROTOCOL,
            assignments=self._assignments(share.members) if share.leads else [],
        )
        while True:
            reply = yield Ask(self.client, request, 5)
            if reply is None:
                continue
            if reply.error_code == ErrorCode.NONE:
                break
            if reply.error_code in FORGOTTEN:
                self.membership.member_id = ""
            yield Rest(RETRY_MS)
            return None
        partitions = frozenset[int]()
        if reply.assignment:
            told, _ = m.ConsumerProtocolAssignment.decode(bytes(reply.assignment), 0, 2)
            partitions = frozenset(number for each in told.assigned_partitions for number in each.partitions)
        self._history.share(self._clock.now_ms, share.generation, self.membership.member_id, partitions)
        return partitions

    def _assignments(self, members: Sequence[str]) -> list[m.SyncGroupRequest.SyncGroupRequestAssignment]:
        numbers = list(range(self._topic.partitions))
        kind = m.ConsumerProtocolAssignment
        assignments = []
        for index, member_id in enumerate(sorted(members)):
            mine = numbers[len(numbers) * index // len(members) : len(numbers) * (index + 1) // len(members)]
            told = kind(assigned_partitions=[kind.TopicPartition(topic=self._topic.name, partitions=mine)])
            assignments.append(
                m.SyncGroupRequest.SyncGroupRequestAssignment(
                    member_id=member_id, assignment=b"\0\0" + told.encode(0)
                )
            )
        return assignments

    def _beat(self) -> Script[None]:
        """Until the group rebalances or forgets us."""
        while not self.is_leaving:
            yield Rest(self._times.heartbeat_ms)
            asked_ms = self._clock.now_ms
            request = m.HeartbeatRequest(
                group_id=self.membership.group_id,
                generation_id=self.membership.generation,
                member_id=self.membership.member_id,
            )
            reply = yield Ask(self.client, request, 4)
            code = None if reply is None else reply.error_code
            if code == ErrorCode.NONE:
                self._history.renew(self.name, asked_ms + self._times.lease_ms)
            elif code == ErrorCode.REBALANCE_IN_PROGRESS:
                yield from self._finish()
                return
            elif code in (*FORGOTTEN, ErrorCode.ILLEGAL_GENERATION):
                self._lose()
                if code in FORGOTTEN:
                    self.membership.member_id = ""
                return

    def _leave(self) -> Script[None]:
        leaving = m.LeaveGroupRequest.MemberIdentity(member_id=self.membership.member_id)
        yield Ask(self.client, m.LeaveGroupRequest(group_id=self.membership.group_id, members=[leaving]), 4)


class ConsumerMember(Member):
    """Says by heartbeats what it has, and hears what it shall have."""

    is_classic = False

    def _live(self) -> Script[None]:
        self.membership.member_id = str(uuid5(NAMESPACE_OID, self.name))
        yield from find_coordinator(self.client, GROUP_KEY, self.membership.group_id)
        epoch, says_all = JOINING_EPOCH, True
        while not self.is_leaving:
            asked_ms = self._clock.now_ms
            reply = yield Ask(self.client, self._heartbeat(epoch, says_all), 1)
            code = None if reply is None else reply.error_code
            if code == ErrorCode.NONE:
                if epoch == JOINING_EPOCH:
                    self._begin(frozenset(), asked_ms)
                self._history.renew(self.name, asked_ms + self._times.lease_ms)
                self.membership.generation = epoch = reply.member_epoch
                says_all = yield from self._obey(reply.assignment, asked_ms)
                if says_all:
                    continue
            elif code in FORGOTTEN:
                self._lose()
                epoch, says_all = JOINING_EPOCH, True
            else:
                says_all = True
            yield Rest(RETRY_MS if code else self._times.heartbeat_ms)
        yield from self._finish()
        yield Ask(self.client, self._heartbeat(LEAVING_EPOCH, says_all=False), 1)

    def _obey(self, assignment: m.ConsumerGroupHeartbeatResponse.Assignment | None, asked_ms: int) -> Script[bool]:
        """Take over what we are given now; whether the coordinator has to hear of it."""
        if assignment is None:
            return False
        wanted = frozenset(number for each in assignment.topic_partitions for number in each.partitions)
        if wanted == self.membership.partitions:
            return False
        yield from self._finish()
        self._begin(wanted, asked_ms)
        return True

    def _heartbeat(self, epoch: int, says_all: bool) -> m.ConsumerGroupHeartbeatRequest:
        request = m.ConsumerGroupHeartbeatRequest(
            group_id=self.membership.group_id, member_id=self.membership.member_id, member_epoch=epoch
        )
        if says_all:
            kind = m.ConsumerGroupHeartbeatRequest.TopicPartitions
            mine = sorted(self.membership.partitions)
            request.rebalance_timeout_ms = self._times.rebalance_ms
            request.subscribed_topic_names = [self._topic.name]
            request.topic_partitions = [kind(topic_id=self._topic.id, partitions=mine)] if mine else []
        return request
