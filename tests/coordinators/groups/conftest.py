"""Fixtures for transcripts: a shard, its log, a stopped clock, and clients whose requests are short to write."""

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from millpond.coordinators.groups.consumer.group import ConsumerGroup
from millpond.coordinators.groups.memory import ENDLESS, GroupMemory
from millpond.coordinators.groups.settings import GroupSettings
from millpond.coordinators.groups.shard import GroupShard
from millpond.coordinators.shard import Effects, Request
from millpond.metadata.image import Image
from millpond.metadata.records import PartitionRecord, RemoveTopicRecord, TopicRecord
from millpond.wire import messages as m

Reply = m.Message


class CountingEntropy:
    def __init__(self) -> None:
        self.drawn = 0

    def uuid(self) -> UUID:
        self.drawn += 1
        return UUID(int=self.drawn)

    def below(self, bound: int) -> int:
        return 0


def subscription(*topics: str, version: int = 1) -> bytes:
    return struct.pack(">h", version) + m.ConsumerProtocolSubscription(topics=list(topics)).encode(version)


def assignment(*places: tuple[str, int]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in places:
        by_topic.setdefault(topic, []).append(partition)
    kind = m.ConsumerProtocolAssignment
    parts = [kind.TopicPartition(topic=topic, partitions=partitions) for topic, partitions in by_topic.items()]
    return struct.pack(">h", 0) + kind(assigned_partitions=parts).encode(0)


@dataclass
class Logged:
    offset: int
    key: bytes
    value: bytes | None
    producer: tuple[int, int] | None = None
    marker: bool | None = None
    at_ms: int = 0


@dataclass
class Coordinator:
    """Requests go in; records are appended and replayed at once, as the runtime does; replies are kept by request."""

    settings: GroupSettings
    image: Image
    now_ms: int = 1_000_000
    bytes_max: int = ENDLESS
    log: list[Logged] = field(default_factory=list)
    replies: dict[Any, list[Reply]] = field(default_factory=dict)
    versions: dict[Any, int] = field(default_factory=dict)
    request_ids: Any = field(default_factory=count)

    def __post_init__(self) -> None:
        self.entropy = CountingEntropy()
        self.shard = self.new_shard()
        self.take(self.shard.on_loaded(self.now_ms))

    # The runtime's part.

    def new_shard(self) -> GroupShard:
        memory = GroupMemory(lambda: self.bytes_max)
        return GroupShard(self.image, self.settings, self.entropy, memory=memory)

    def take(self, effects: Effects, producer: tuple[int, int] | None = None) -> Effects:
        for record in effects.records:
            offset = len(self.log)
            self.log.append(Logged(offset, record.key, record.value, producer, at_ms=self.now_ms))
            if producer is None:
                self.shard.replay(offset, record.key, record.value)
            else:
                self.shard.replay_transactional(*producer, offset, record.key, record.value)
        for request_id, response in effects.replies:
            response.encode(self.versions[request_id])  # what cannot be sent is no reply
            self.replies.setdefault(request_id, []).append(response)
        return effects

    def marker(self, producer_id: int, epoch: int, committed: bool) -> None:
        self.log.append(Logged(len(self.log), b"", None, (producer_id, epoch), committed, self.now_ms))
        self.shard.replay_marker(producer_id, epoch, committed, len(self.log) - 1)

    def loaded_again(self, until: int | None = None) -> GroupShard:
        """A fresh shard that has read the log, or a beginning of it."""
        fresh = self.new_shard()
        for each in self.log[:until]:
            fresh.set_time(each.at_ms, each.at_ms)
            if each.marker is not None and each.producer:
                fresh.replay_marker(*each.producer, each.marker, each.offset)
            elif each.producer:
                fresh.replay_transactional(*each.producer, each.offset, each.key, each.value)
            else:
                fresh.replay(each.offset, each.key, each.value)
        return fresh

    def fail_over(self) -> None:
        """The node dies; another one loads the log."""
        self.shard = self.loaded_again()
        self.take(self.shard.on_loaded(self.now_ms))

    def send(self, body: m.Message, version: int, *, client_id: str = "client") -> Any:
        """Hand in a request; returns its id."""
        request_id = next(self.request_ids)
        self.versions[request_id] = version
        producer = None
        if isinstance(body, m.TxnOffsetCommitRequest):
            producer = body.producer_id, body.producer_epoch
        request = Request(body, version, request_id, client_id, "/10.0.0.1")
        self.take(self.shard.step(request, self.now_ms), producer)
        return request_id

    def answer(self, request_id: Any) -> Any:
        """The one reply to a request; None while it is pending."""
        replies = self.replies.get(request_id, [])
        assert len(replies) <= 1, f"answered {len(replies)} times"
        return replies[0] if replies else None

    def ask(self, body: m.Message, version: int, **more: Any) -> Any:
        return self.answer(self.send(body, version, **more))

    def pass_time(self, milliseconds: int) -> None:
        """Let the clock run, stopping wherever the shard wants to be called."""
        end_ms = self.now_ms + milliseconds
        while (deadline := self.shard.next_deadline_ms()) is not None and deadline <= end_ms:
            self.now_ms = max(self.now_ms, deadline)
            self.take(self.shard.on_timer(self.now_ms))
        self.now_ms = end_ms

    # The clients' part.

    def join(self, member_id: str = "", *, version: int = 9, group: str = "g", **more: Any) -> Any:
        topics = more.pop("topics", ("t",))
        names = more.pop("protocols", ("range",))
        client_id = more.pop("client_id", "client")
        protocol = m.JoinGroupRequest.JoinGroupRequestProtocol
        body = m.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=more.pop("session_ms", 10_000),
            rebalance_timeout_ms=more.pop("rebalance_ms", 60_000),
            member_id=member_id,
            protocol_type=more.pop("protocol_type", "consumer"),
            protocols=[protocol(name=name, metadata=subscription(*topics)) for name in names],
            group_instance_id=more.pop("instance", None),
            **more,
        )
        return self.send(body, version, client_id=client_id)

    def join_new(self, **more: Any) -> tuple[str, Any]:
        """The two joins of a new dynamic member: ask for an id, come with it."""
        told = self.answer(self.join(**more))
        assert told.error_code == 79
        return told.member_id, self.join(told.member_id, **more)

    def sync(self, member_id: str, generation: int, given: dict[str, bytes] | None = None, **more: Any) -> Any:
        each = m.SyncGroupRequest.SyncGroupRequestAssignment
        body = m.SyncGroupRequest(
            group_id=more.pop("group", "g"),
            generation_id=generation,
            member_id=member_id,
            group_instance_id=more.pop("instance", None),
            assignments=[each(member_id=name, assignment=data) for name, data in (given or {}).items()],
            **more,
        )
        return self.send(body, 5)

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None) -> int:
        body = m.HeartbeatRequest(
            group_id="g", generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        code: int = self.ask(body, 4).error_code
        return code

    def consumer_beat(self, member_id: str, epoch: int = 0, *, group: str = "n", **more: Any) -> Any:
        """A heartbeat of the new protocol."""
        body = m.ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=more.pop("topics", ["t"]),
            topic_partitions=[] if epoch == 0 else None,
            **more,
        )
        return self.ask(body, 1)

    def leave(self, *members: str, instances: Iterable[str] = ()) -> list[int]:
        kind = m.LeaveGroupRequest.MemberIdentity
        leaving = [kind(member_id=each) for each in members]
        leaving += [kind(member_id="", group_instance_id=each) for each in instances]
        reply = self.ask(m.LeaveGroupRequest(group_id="g", members=leaving), 5)
        assert reply.error_code == 0
        return [each.error_code for each in reply.members]

    def commit(self, offset: int, member_id: str = "", generation: int = -1, **more: Any) -> int:
        kind = m.OffsetCommitRequest
        place = kind.OffsetCommitRequestPartition(
            partition_index=more.pop("partition", 0),
            committed_offset=offset,
            committed_leader_epoch=more.pop("leader_epoch", -1),
            committed_metadata=more.pop("metadata", ""),
        )
        version = more.pop("version", 9)
        topic = kind.OffsetCommitRequestTopic(
            name=more.pop("topic", "t"), topic_id=more.pop("topic_id", UUID(int=0)), partitions=[place]
        )
        body = kind(
            group_id=more.pop("group", "g"),
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=more.pop("instance", None),
            topics=[topic],
            **more,
        )
        code: int = self.ask(body, version).topics[0].partitions[0].error_code
        return code

    def commit_in_transaction(self, offset: int, producer: int = 7, epoch: int = 0, **more: Any) -> int:
        kind = m.TxnOffsetCommitRequest
        place = kind.TxnOffsetCommitRequestPartition(
            partition_index=more.pop("partition", 0), committed_offset=offset, committed_metadata=""
        )
        version = more.pop("version", 5)
        topic = kind.TxnOffsetCommitRequestTopic(
            name=more.pop("topic", "t"), topic_id=more.pop("topic_id", UUID(int=0)), partitions=[place]
        )
        body = kind(
            transactional_id="x",
            group_id=more.pop("group", "g"),
            producer_id=producer,
            producer_epoch=epoch,
            topics=[topic],
            **more,
        )
        answered = self.ask(body, version).topics[0]
        assert (answered.name, answered.topic_id) == (topic.name, topic.topic_id)
        code: int = answered.partitions[0].error_code
        return code

    def committed(self, partition: int = 0, *, topic: str = "t", group: str = "g", stable: bool = False) -> Any:
        """The offset as a reader gets it; an error code where there is one."""
        kind = m.OffsetFetchRequest
        asked = kind.OffsetFetchRequestGroup(
            group_id=group, topics=[kind.OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])]
        )
        reply = self.ask(kind(groups=[asked], require_stable=stable), 9)
        found = reply.groups[0].topics[0].partitions[0]
        return f"error {found.error_code}" if found.error_code else found.committed_offset

    # Plots that many plays begin with.

    def stable(self, count_: int = 1, **more: Any) -> tuple[list[str], int]:
        """Members of a first generation that all have what the leader gave them: one partition of t each."""
        joins = [self.join_new(**more) for _ in range(count_)]
        self.pass_time(3000 * (count_ + 1))
        return self.settle([request_id for _, request_id in joins], more.get("group", "g"))

    def settle(self, request_ids: list[Any], group: str = "g") -> tuple[list[str], int]:
        """Everybody fetches what the leader shares out."""
        replies = [self.answer(request_id) for request_id in request_ids]
        assert [reply.error_code for reply in replies] == [0] * len(replies)
        ids = [reply.member_id for reply in replies]
        generation = replies[0].generation_id
        given = {member_id: assignment(("t", number)) for number, member_id in enumerate(ids)}
        syncs = [
            self.sync(each.member_id, generation, given if each.leader == each.member_id else None, group=group)
            for each in replies
        ]
        assert [self.answer(request_id).assignment for request_id in syncs] == [given[each] for each in ids]
        return ids, generation

    def group(self, group_id: str = "g") -> Any:
        return self.shard.groups[group_id]


class Names(tuple[str, ...]):
    """Names that count how often somebody goes through them."""

    walks = 0

    def __iter__(self) -> Iterator[str]:
        Names.walks += 1
        return super().__iter__()

    def __contains__(self, name: object) -> bool:
        Names.walks += 1
        return super().__contains__(name)


@pytest.fixture
def watch_names() -> Callable[[ConsumerGroup], Callable[[], int]]:
    """Watch the subscriptions of a group's members: how often were they gone through since the last question?"""

    def taken() -> int:
        walks, Names.walks = Names.walks, 0
        return walks

    def watch(group: ConsumerGroup) -> Callable[[], int]:
        members = group.state.members
        for member in list(members.values()):
            metadata = replace(member.metadata, topics=Names(member.metadata.topics))
            members[member.id] = replace(member, metadata=metadata)
        taken()
        return taken

    return watch


@pytest.fixture
def image() -> Image:
    """Topics t, u and v of eight partitions each."""
    image = Image()
    for number, name in enumerate(("t", "u", "v"), 1):
        image.replay(TopicRecord(name, UUID(int=number)))
        for partition in range(8):
            image.replay(
                PartitionRecord(
                    partition_id=partition,
                    topic_id=UUID(int=number),
                    isr=(1,),
                    replicas=(1,),
                    removing_replicas=(),
                    adding_replicas=(),
                    leader=1,
                    leader_epoch=0,
                    partition_epoch=0,
                )
            )
    return image


@pytest.fixture
def make_coordinator(image: Image) -> Callable[..., Coordinator]:
    def make(**settings: Any) -> Coordinator:
        return Coordinator(GroupSettings(**settings), image)

    return make


@pytest.fixture
def coordinator(make_coordinator: Callable[..., Coordinator]) -> Coordinator:
    return make_coordinator()


@pytest.fixture
def remove_topic(image: Image) -> Callable[[str], None]:
    def remove(name: str) -> None:
        image.replay(RemoveTopicRecord(image.topics[name].id))

    return remove


@pytest.fixture
def add_topic(image: Image) -> Callable[[str], None]:
    def add(name: str) -> None:
        topic_id = UUID(int=1000 + image.topics_version)
        image.replay(TopicRecord(name, topic_id))
        image.replay(PartitionRecord(0, topic_id, (1,), (1,), leader=1))

    return add


@pytest.fixture
def assigned() -> Callable[..., bytes]:
    return assignment


@pytest.fixture
def subscribed() -> Callable[..., bytes]:
    return subscription
