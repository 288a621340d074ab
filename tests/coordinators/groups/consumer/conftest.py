"""A pond to test groups in: topics that can grow, a group whose records are replayed as a runtime would, clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode
from millpond.coordinators.groups.consumer.embedded import partitions_of
from millpond.coordinators.groups.consumer.group import ConsumerGroup
from millpond.coordinators.groups.consumer.members import Partitions, TopicIdPartition, by_topic, from_topics
from millpond.coordinators.groups.consumer.pattern_topics import PatternTopics
from millpond.coordinators.groups.consumer.records import TYPES, decode_record
from millpond.coordinators.groups.consumer.settings import ConsumerGroupSettings
from millpond.coordinators.groups.records import key_version
from millpond.coordinators.shard import CoordinatorRecord, Effects, Request, Sees, sees_all
from millpond.metadata.image import Image
from millpond.metadata.records import PartitionRecord, RemoveTopicRecord, TopicRecord
from millpond.wire import messages as m

REBALANCE_TIMEOUT_MS = 60_000


class CountingEntropy:
    """Ids that are easy to read."""

    def __init__(self) -> None:
        self.given = 0

    def uuid(self) -> UUID:
        self.given += 1
        return UUID(int=self.given)

    def below(self, bound: int) -> int:
        return 0


class GroupHarness:
    """Topics, one group, its log, and the time."""

    def __init__(self, settings: ConsumerGroupSettings | None = None, **topics: int) -> None:
        self.image = Image()
        self.now_ms = 1_000
        self.log: list[CoordinatorRecord] = []
        self.topics_made = 0
        self.settings = settings or ConsumerGroupSettings()
        self.entropy = CountingEntropy()
        self.group = self.new_group()
        for name, partitions in topics.items():
            self.create(name, partitions)

    def new_group(self) -> ConsumerGroup:
        return ConsumerGroup("g", PatternTopics(self.image), self.settings, self.entropy)

    # Topics.

    def create(self, name: str, partitions: int) -> UUID:
        self.topics_made += 1
        topic_id = UUID(int=0xA000 + self.topics_made)
        self.image.replay(TopicRecord(name, topic_id))
        self.grow(name, partitions)
        return topic_id

    def grow(self, name: str, partitions: int) -> None:
        topic = self.image.topics[name]
        for number in range(len(topic.partitions), partitions):
            self.image.replay(PartitionRecord(number, topic.id, (1,), (1,), leader=1))

    def delete(self, name: str) -> None:
        self.image.replay(RemoveTopicRecord(self.image.topics[name].id))

    def parts(self, **numbers: Iterable[int]) -> Partitions:
        """`parts(a=[0, 1])`: partitions by topic name."""
        return from_topics((self.image.topics[name].id, each) for name, each in numbers.items())

    # Steps, as a runtime takes them.

    def run(self, effects: Effects) -> Effects:
        for record in effects.records:
            self.log.append(record)
            replay_into(self.group, record)
        return effects

    def ask(
        self, body: m.Message, version: int = 1, *, client_id: str = "c", host: str = "/h", sees: Sees = sees_all
    ) -> Any:
        """Send a request of either protocol; the one reply."""
        handlers: dict[type[m.Message], Callable[[Request, int], Effects]] = {
            m.ConsumerGroupHeartbeatRequest: self.group.heartbeat,
            m.JoinGroupRequest: self.group.classic_join,
            m.SyncGroupRequest: self.group.classic_sync,
            m.HeartbeatRequest: self.group.classic_heartbeat,
            m.LeaveGroupRequest: self.group.classic_leave,
        }
        effects = handlers[type(body)](Request(body, version, "a client", client_id, host, sees), self.now_ms)
        self.run(effects)
        ((request_id, response),) = effects.replies
        assert request_id == "a client"
        return response

    def pass_time(self, duration_ms: int) -> Effects:
        """Let time pass, waking the group whenever it wants to be woken."""
        end = self.now_ms + duration_ms
        total = Effects()
        while (deadline := self.group.next_deadline_ms()) is not None and deadline <= end:
            self.now_ms = max(self.now_ms, deadline)
            total.add(self.run(self.group.on_timer(self.now_ms)))
        self.now_ms = end
        return total

    def topics_changed(self) -> Effects:
        return self.run(self.group.on_topics_changed(self.now_ms))

    def reload(self) -> None:
        """The coordinator moves: all that is not in the log is gone."""
        self.group = self.new_group()
        for record in self.log:
            replay_into(self.group, record)
        self.group.on_loaded(self.now_ms)
        self.topics_changed()

    # Heartbeats in short.

    def beat(
        self, member_id: str, epoch: int, *, version: int = 1, **fields: Any
    ) -> m.ConsumerGroupHeartbeatResponse:
        owned = fields.pop("owned", None)
        sees = fields.pop("sees", sees_all)
        body = m.ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=member_id,
            member_epoch=epoch,
            topic_partitions=None if owned is None else owned_list(owned),
            **fields,
        )
        return cast(m.ConsumerGroupHeartbeatResponse, self.ask(body, version, sees=sees))

    def join(self, member_id: str, *topics: str, version: int = 1, **fields: Any) -> m.ConsumerGroupHeartbeatResponse:
        fields.setdefault("rebalance_timeout_ms", REBALANCE_TIMEOUT_MS)
        if "subscribed_topic_regex" not in fields:
            fields.setdefault("subscribed_topic_names", list(topics))
        return self.beat(member_id, 0, version=version, owned=frozenset(), **fields)

    def leave(self, member_id: str, **fields: Any) -> m.ConsumerGroupHeartbeatResponse:
        return self.beat(member_id, -1, **fields)


def replay_into(group: ConsumerGroup, record: CoordinatorRecord) -> None:
    """What the shard of all groups does; records of classic groups are not for this one."""
    if key_version(record.key) in TYPES:
        group.replay(*decode_record(record.key, record.value), 0)


def owned_list(owned: Partitions) -> list[m.ConsumerGroupHeartbeatRequest.TopicPartitions]:
    return [
        m.ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=numbers)
        for topic_id, numbers in by_topic(owned)
    ]


def given(response: m.ConsumerGroupHeartbeatResponse) -> Partitions | None:
    """The assignment in a reply."""
    if response.assignment is None:
        return None
    return from_topics((each.topic_id, each.partitions) for each in response.assignment.topic_partitions)


@dataclass
class Consumer:
    """A client of the new protocol, as far as the group can tell: it lets go before it takes."""

    harness: GroupHarness
    id: str
    topics: tuple[str, ...] = ()
    regex: str | None = None
    instance_id: str | None = None
    assignor: str | None = None
    epoch: int = 0
    owned: Partitions = frozenset()
    told: Partitions = frozenset()
    reported: Partitions | None = None
    must_say_all: bool = True
    error: ErrorCode = field(default=ErrorCode.NONE)

    @property
    def holds(self) -> Partitions:
        return self.owned | self.told

    def beat(self, *, lose_reply: bool = False) -> None:
        joining = self.epoch == 0
        full = joining or self.must_say_all
        fields: dict[str, Any] = {}
        if full:
            fields["rebalance_timeout_ms"] = REBALANCE_TIMEOUT_MS
            fields["subscribed_topic_names"] = list(self.topics)
            fields["subscribed_topic_regex"] = self.regex or ""
            fields["instance_id"] = self.instance_id
            fields["server_assignor"] = self.assignor
        # It says that it holds what it has been told and has not begun to read: it may begin at any moment.
        if full or self.reported != self.holds:
            fields["owned"] = frozenset() if joining else self.holds
        response = self.harness.beat(self.id, self.epoch, **fields)
        if lose_reply:
            self.must_say_all = True
            return
        self.reported = self.holds
        self.must_say_all = False
        self.error = ErrorCode(response.error_code)
        if self.error in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.drop_all()
            return
        if self.error is not ErrorCode.NONE:
            return
        self.epoch = response.member_epoch
        assignment = given(response)
        if assignment is not None:
            self.told, self.reported = assignment, None

    def drop_all(self) -> None:
        self.epoch, self.owned, self.told, self.reported, self.must_say_all = 0, frozenset(), frozenset(), None, True

    def revoke(self) -> None:
        self.owned &= self.told

    def take(self) -> None:
        """Begin to read what it was told, once it reads nothing else."""
        if self.owned <= self.told:
            self.owned = self.told

    def work(self) -> None:
        self.beat()
        self.revoke()
        self.take()


class Classic:
    """A classic consumer that shares out cooperatively, request by request."""

    def __init__(
        self, harness: Any, *topics: str, instance_id: str | None = None, assignors: str = "cooperative"
    ) -> None:
        self.harness: GroupHarness = harness
        self.topics, self.instance_id = topics, instance_id
        self.assignors = assignors.split(",")
        self.id, self.generation = "", -1
        self.owned: Partitions = frozenset()

    def subscription(self) -> bytes:
        owned = [
            m.ConsumerProtocolSubscription.TopicPartition(
                topic=self.harness.image.topics_by_id[topic].name, partitions=numbers
            )
            for topic, numbers in by_topic(self.owned)
        ]
        return b"\0\1" + m.ConsumerProtocolSubscription(topics=list(self.topics), owned_partitions=owned).encode(1)

    def join(self, version: int = 5, **fields: Any) -> Any:
        protocols = [
            m.JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=self.subscription())
            for name in self.assignors
        ]
        asked: dict[str, Any] = {
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "member_id": self.id,
            "group_instance_id": self.instance_id,
            "protocol_type": "consumer",
            "protocols": protocols,
        }
        response = self.harness.ask(m.JoinGroupRequest(group_id="g", **{**asked, **fields}), version)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = response.member_id
            return self.join(version, **fields)
        if response.error_code == 0:
            self.id, self.generation = response.member_id, response.generation_id
        return response

    def sync(self, **fields: Any) -> Any:
        asked: dict[str, Any] = {"generation_id": self.generation, "member_id": self.id}
        response = self.harness.ask(
            m.SyncGroupRequest(group_id="g", group_instance_id=self.instance_id, **{**asked, **fields}), 5
        )
        if response.error_code == 0:
            self.owned = partitions_of(response.assignment, self.harness.image)
        return response

    def beat(self, **fields: Any) -> ErrorCode:
        asked: dict[str, Any] = {"generation_id": self.generation, "member_id": self.id}
        body = m.HeartbeatRequest(group_id="g", group_instance_id=self.instance_id, **{**asked, **fields})
        return ErrorCode(self.harness.ask(body, 4).error_code)

    def leave(self, version: int = 5, **fields: Any) -> Any:
        identity = m.LeaveGroupRequest.MemberIdentity(
            **{"member_id": self.id, "group_instance_id": self.instance_id, **fields}
        )
        body = m.LeaveGroupRequest(group_id="g", members=[identity])
        if version < 3:
            body = m.LeaveGroupRequest(group_id="g", member_id=self.id)
        return self.harness.ask(body, version)


@pytest.fixture
def make_harness() -> Callable[..., GroupHarness]:
    return GroupHarness


@pytest.fixture
def harness() -> GroupHarness:
    """Two topics, `a` of four partitions and `b` of two."""
    return GroupHarness(a=4, b=2)


@pytest.fixture
def make_consumer() -> Callable[..., Consumer]:
    return Consumer


@pytest.fixture
def in_reply() -> Callable[[m.ConsumerGroupHeartbeatResponse], Partitions | None]:
    return given


@pytest.fixture
def replay() -> Callable[[ConsumerGroup, CoordinatorRecord], None]:
    return replay_into


@pytest.fixture
def partition() -> Callable[[UUID, int], TopicIdPartition]:
    return TopicIdPartition


@pytest.fixture
def make_classic() -> Callable[..., Classic]:
    return Classic
