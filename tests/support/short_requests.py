"""Small requests as consumers, producers and group members send them all the time, and occasionally an odd one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from struct import pack_into
from typing import Any, Final
from uuid import UUID

from millpond.coordinators.groups.classic import State
from millpond.wire import messages as m
from millpond.wire.batch import batch_crc
from millpond.wire.records import Record, encode_batch
from support.raw_groups import subscription
from support.short_path_nodes import Side

TOPICS: Final = ("pond", "lake")
GROUPS: Final = ("crew", "guild", "team")
ODD_SHARE: Final = 0.06
"""How often each part of a request is not what a well-behaved client would send."""


@dataclass(slots=True)
class Producer:
    id: int
    epoch: int = 0
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)


class SmallRequests:
    """Generated from a seed, and from one node's current state."""

    def __init__(self, draw: Random, first: Side, acks: Sequence[int]) -> None:
        self._draw = draw
        self._first = first
        self._acks = acks
        self._producers = [Producer(100), Producer(101)]

    def _one(self, some: Any) -> Any:
        return self._draw.choice(list(some))

    def _mostly(self, usual: Any, *odd: Any) -> Any:
        return self._one(odd) if self._chance(ODD_SHARE) else self._one(usual)

    def _chance(self, share: float) -> bool:
        return self._draw.random() < share

    def _produce(self) -> tuple[m.Message, int]:
        kind, version = m.ProduceRequest, self._draw.randint(3, 13)
        topic, index = self._one(TOPICS), self._mostly((0,), 1, 7)
        now_ms = self._first.clock.wall_ms()
        stamp = self._mostly((now_ms,), -1, 0, now_ms - 100_000, now_ms + 100_000_000)
        value = bytes(self._mostly((0, 3, 10, 100, 300), 9000))
        records = [
            Record(at, stamp + self._one((0, 0, 5)), self._one((b"k", b"j", None)), value)
            for at in range(self._one((1, 1, 2, 3)))
        ]
        options: dict[str, Any] = {"codec": self._one((0, 0, 0, 0, 0, 1, 2, 3, 4))}
        if self._chance(0.3):
            producer = self._one(self._producers)
            sequence = producer.sequences.get((topic, index), 0)
            options |= {
                "producer_id": producer.id,
                "producer_epoch": producer.epoch,
                "base_sequence": max(sequence + self._mostly((0,), -1, 2), 0),
            }
            producer.sequences[topic, index] = options["base_sequence"] + len(records)
            if self._chance(0.05):
                producer.epoch += 1
                producer.sequences.clear()
        batch = bytearray(encode_batch(records, **options))
        if self._chance(0.02):
            batch[self._draw.randrange(len(batch))] ^= 1
        elif self._chance(0.02):
            # A header field that is wrong under a checksum that is right.
            batch[self._draw.randrange(21, 61)] ^= 1 << self._draw.randrange(8)
            pack_into(">I", batch, 17, batch_crc(batch, 0, len(batch)))
        data = kind.PartitionProduceData(index=index, records=bytes(batch))
        topics = [kind.TopicProduceData(**self._named(topic, version >= 13, "name"), partition_data=[data])]
        acks = self._mostly(self._acks, 0)
        return kind(
            transactional_id=None, acks=acks, timeout_ms=self._mostly((5000,), 0, 100), topic_data=topics
        ), version

    def _named(self, topic: str, by_id: bool, field_name: str = "topic") -> dict[str, Any]:
        if not by_id:
            return {field_name: topic}
        known = self._first.broker.image.topics.get(topic)
        return {"topic_id": known.id if known is not None and not self._chance(0.03) else UUID(int=5)}

    def _fetch(self) -> tuple[m.Message, int]:
        kind = m.FetchRequest
        version = self._mostly((12, 13, 15, 17, 18), 4, 7, 11)
        sessions = list(self._first.broker.fetch_sessions._sessions.values())
        session_id, epoch = 0, self._one((-1, -1, 0))
        topic, index = self._one(TOPICS), self._mostly((0,), 1, 7)
        names_one = True
        if version < 7:
            epoch = -1
        elif sessions and self._chance(0.75):
            session = self._one([each for each in sessions if len(each.partitions) == 1] or sessions)
            session_id, epoch = session.id, session.epoch + self._mostly((0,), 1)
            if not self._chance(0.03):
                version = self._one((13, 15, 17)) if session.uses_topic_ids else self._mostly((12,), 11)
            if session.partitions and self._chance(0.95):
                name, topic_id, index = self._one(session.partitions)
                topic = name or getattr(self._first.broker.image.topics_by_id.get(topic_id), "name", topic)
                names_one = self._chance(0.5)
            if self._chance(0.02):
                epoch = self._one((-1, 0))
        topics, forgotten = [], []
        for _ in range(1 if self._chance(0.93) else 2):
            if names_one:
                at = self._wanted(topic, index)
                topics.append(kind.FetchTopic(**self._named(topic, version >= 13), partitions=[at]))
            topic, index = self._one(TOPICS), 0
        if version >= 7 and self._chance(0.04):
            forgotten = [kind.ForgottenTopic(**self._named(topic, version >= 13), partitions=[index])]
        request = kind(
            max_wait_ms=self._mostly((0, 1, 5, 50, 500, 5000), -1),
            min_bytes=self._mostly((1,), 0, 2, 1000, -1),
            max_bytes=self._mostly((1 << 20,), 100, 1, 0, -1),
            isolation_level=self._mostly((0, 1), 2),
            session_id=session_id,
            session_epoch=epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
            rack_id=self._mostly(("",), "north") if version >= 11 else "",
        )
        return request, version

    def _wanted(self, topic: str, index: int) -> m.FetchRequest.FetchPartition:
        partition = self._first.partition(topic, index)
        start, end, high, epoch = 0, 0, 0, 0
        if partition is not None:
            start, end, high = partition.log.start_offset, partition.log.end_offset, partition.committed_offset
            epoch = partition.leader_epoch
        return m.FetchRequest.FetchPartition(
            partition=index,
            fetch_offset=self._mostly((start, end, end, end, high, end - 1, end - 3), end + 1, start - 1),
            current_leader_epoch=self._mostly((-1, epoch), epoch - 1, epoch + 1),
            partition_max_bytes=self._mostly((1 << 20,), 100, 1, 0, -1),
        )

    def _group(self, group_id: str) -> Any:
        home = self._first.broker.groups.active_shard_host(group_id)
        return None if home is None else home.shard.groups.get(group_id)

    def _membership(self, group_id: str) -> tuple[str, int]:
        """The identity of an existing member, or nearly so."""
        group = self._group(group_id)
        if group is None:
            return self._one((("", -1), ("nobody", 1)))
        is_classic = hasattr(group, "generation")
        members = list(group.members if is_classic else group.state.members)
        if not members or self._chance(0.08):
            return self._one((("", -1), ("nobody", 1), ("", 0)))
        member = self._one(members)
        epoch = group.generation if is_classic else group.state.members[member].epoch
        return member, epoch + self._one((0, 0, 0, 0, 0, 0, 1, -1))

    def _commit(self) -> tuple[m.Message, int]:
        kind, version = m.OffsetCommitRequest, self._mostly((7, 8, 9, 9), 2, 6, 10)
        group_id = self._one(GROUPS)
        member, generation = self._membership(group_id)
        part = kind.OffsetCommitRequestPartition
        topics = []
        for _ in range(1 if self._chance(0.95) else 2):
            partitions = [
                part(
                    partition_index=self._mostly((0, 1), 7),
                    committed_offset=self._mostly((0, 5), 1 << 40, -1),
                    committed_leader_epoch=self._one((-1, 0, 3)) if version >= 6 else -1,
                    committed_metadata=self._mostly((None, "", "note", "x" * 100), "é", "x" * 200, "y" * 5000),
                )
            ]
            name = self._mostly(TOPICS, "none", "")
            named = self._named(name, True) if version >= 10 else {"name": name}
            topics.append(kind.OffsetCommitRequestTopic(**named, partitions=partitions))
        request = kind(group_id=group_id, generation_id_or_member_epoch=generation, member_id=member, topics=topics)
        if version >= 7 and self._chance(0.03):
            request.group_instance_id = self._one(("one", "two"))
        return request, version

    def _member(self) -> tuple[m.Message, int]:
        """What members send about themselves."""
        group_id = self._one((*GROUPS, "crew", "crew"))
        group = self._group(group_id)
        is_consumer = group_id == "guild" if group is None else not hasattr(group, "generation")
        member, generation = self._membership(group_id)
        chance = self._draw.random()
        if group is not None and not is_consumer and group.state is State.STABLE and self._chance(0.8):
            # Otherwise some member would always be about to join.
            chance = 0.0
        if is_consumer:
            return self._consumer_beat(group_id, member, generation, chance)
        if chance < 0.55:
            version = self._mostly((3, 4), 0, 2)
            request = m.HeartbeatRequest(group_id=group_id, generation_id=generation, member_id=member)
            if version >= 3 and self._chance(0.03):
                request.group_instance_id = "one"
            return request, version
        if chance < 0.8:
            protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=subscription(["pond"]))
            pending = list(group.pending) if group is not None else []
            join = m.JoinGroupRequest(
                group_id=group_id,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=self._one((100, 1000)),
                member_id=self._one((member if member != "nobody" else "", "", *pending[:1] * 4)),
                group_instance_id=self._one((None, None, "one")),
                protocol_type="consumer",
                protocols=[protocol],
            )
            return join, 9
        if chance < 0.95:
            kind = m.SyncGroupRequest.SyncGroupRequestAssignment
            assignments = [kind(member_id=each, assignment=b"a") for each in (group.members if group else ())]
            sync = m.SyncGroupRequest(
                group_id=group_id,
                generation_id=generation,
                member_id=member,
                protocol_type="consumer",
                protocol_name="range",
                assignments=assignments,
            )
            return sync, 5
        return self._leave(group_id, member)

    def _leave(self, group_id: str, member: str) -> tuple[m.Message, int]:
        identity = m.LeaveGroupRequest.MemberIdentity(member_id=member, group_instance_id=None)
        return m.LeaveGroupRequest(group_id=group_id, members=[identity]), 4

    def _consumer_beat(self, group_id: str, member: str, epoch: int, chance: float) -> tuple[m.Message, int]:
        request = m.ConsumerGroupHeartbeatRequest(group_id=group_id, member_id=member, member_epoch=epoch)
        request.instance_id = request.rack_id = request.server_assignor = None
        request.subscribed_topic_names = request.subscribed_topic_regex = request.topic_partitions = None
        request.rebalance_timeout_ms = -1
        version = self._one((0, 1))
        if chance < 0.15:
            request.member_id = self._one(("m1", "m1", "m2"))
            request.member_epoch = 0
            request.rebalance_timeout_ms = 1000
            request.subscribed_topic_names = self._one((["pond"], ["pond"], ["pond", "lake"], ["none"]))
            request.topic_partitions = []
            request.instance_id = self._one((None, None, "one"))
        elif chance < 0.2:
            request.member_epoch = self._one((-1, -2))
        elif chance < 0.35:
            request.topic_partitions = []
        elif chance < 0.38:
            request.subscribed_topic_names = self._one((["pond"], ["lake"]))
        return request, version
