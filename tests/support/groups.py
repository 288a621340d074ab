"""Groups of real consumers: short timeouts for node and clients, three libraries behind one interface,
assignments.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaError, TopicPartition

from millpond.wire import messages as m
from support.raw import Raw, batch

SECONDS_MAX = 60.0

NODE_SETTINGS = {
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.session.timeout.ms": "6000",
    "offsets.topic.num.partitions": "4",
}
"""Quick rebalances, where an operator would rather have fewer of them."""

PROTOCOLS = ("range", "cooperative-sticky", "consumer")
"""How librdkafka assigns partitions: eager, incremental, and by the coordinator (KIP-848)."""

_METADATA_HEAD = struct.Struct("<7si")


def settings_for(bootstrap: str, group: str, protocol: str, **more: Any) -> dict[str, Any]:
    """Settings of a librdkafka consumer; dots in names are written as underscores."""
    result: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "client.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 50,
        "fetch.error.backoff.ms": 20,
        "retry.backoff.ms": 20,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
        "topic.metadata.refresh.interval.ms": 300,
        "log_level": 0,
    }
    if protocol == "consumer":
        result["group.protocol"] = "consumer"
    else:
        result |= {
            "partition.assignment.strategy": protocol,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 100,
        }
    return result | {name.replace("_", "."): value for name, value in more.items()}


def generation_of(consumer: Consumer) -> int:
    """The generation, or member epoch, that the consumer believes it is in; -1 for none."""
    head, generation = _METADATA_HEAD.unpack_from(bytes(consumer.consumer_group_metadata()))
    assert head == b"CGMDv2:"
    return int(generation)


class Place(NamedTuple):
    """One record as a consumer sees it."""

    topic: str
    partition: int
    offset: int
    value: bytes


class Committed(NamedTuple):
    offset: int
    metadata: str
    leader_epoch: int | None
    """None if the library does not provide it."""


# Several consumers in one thread.


class Crew:
    """librdkafka consumers that are polled in turn, so that all of them take part in rebalances."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.members: list[Consumer] = []
        self.seen: list[Place] = []
        self.errors: list[KafkaError] = []
        self.next: dict[Consumer, dict[tuple[str, int], int]] = {}
        """By member and partition: the offset after the last record received. librdkafka's position sometimes loses
        it, when a rebalance ends while a member is closed."""

    def join(self, group: str, topics: Sequence[str], protocol: str, **settings: Any) -> Consumer:
        callbacks = {name: settings.pop(name) for name in ("on_assign", "on_revoke", "on_lost") if name in settings}
        made = Consumer(settings_for(self.bootstrap, group, protocol, **settings))
        made.subscribe(list(topics), **callbacks)
        self.members.append(made)
        self.next[made] = {}
        return made

    def leave(self, member: Consumer) -> None:
        self.members.remove(member)
        member.close()

    def poll(self) -> list[Place]:
        """Poll each member once; returns the records."""
        came = []
        for each in self.members:
            for message in each.consume(500, timeout=0.005):
                if message.error() is not None:
                    self.errors.append(message.error())
                else:
                    came.append(Place(message.topic(), message.partition(), message.offset(), message.value()))
                    self.next[each][message.topic(), message.partition()] = message.offset() + 1
        self.seen += came
        return came

    def poll_until(self, condition: Callable[[], Any], what: str, seconds: float = SECONDS_MAX) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s; {self.shares()}; {self.errors}"
            self.poll()

    def poll_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.poll()

    def shares(self) -> list[list[tuple[str, int]]]:
        """The current assignment of each member."""
        return [share_of(each) for each in self.members]

    def poll_until_shared(self, topic_partitions: Iterable[tuple[str, int]]) -> list[list[tuple[str, int]]]:
        """Poll until each of these partitions has exactly one owner, and no more members are idle than necessary."""
        wanted = sorted(topic_partitions)
        idle = max(0, len(self.members) - len(wanted))

        def is_shared() -> bool:
            shares = self.shares()
            return sorted(each for share in shares for each in share) == wanted and shares.count([]) == idle

        self.poll_until(is_shared, f"sharing {wanted}")
        return self.shares()

    def close(self) -> None:
        while self.members:
            self.leave(self.members[-1])


def share_of(consumer: Consumer) -> list[tuple[str, int]]:
    return sorted((each.topic, each.partition) for each in consumer.assignment())


@contextmanager
def crew_of(bootstrap: str) -> Iterator[Crew]:
    crew = Crew(bootstrap)
    try:
        yield crew
    finally:
        crew.close()


def partitions(topic: str, count: int) -> list[tuple[str, int]]:
    return [(topic, number) for number in range(count)]


def write(raw: Raw, topic: str, partition_count: int, per_partition: int, first: int = 0) -> set[tuple[int, bytes]]:
    """Write numbered records into every partition; returns what a reader of all of them has to see."""
    written = set()
    for partition in range(partition_count):
        values = [b"%d-%d" % (partition, number) for number in range(first, first + per_partition)]
        reply = raw.produce(topic, partition, batch(*values))
        assert not reply.error_code, reply
        written |= {(partition, value) for value in values}
    return written


# Groups as the coordinator describes them.


def describe(raw: Raw, group: str) -> Any:
    """DescribeGroups of one group, with all optional fields."""
    return raw.call(m.DescribeGroupsRequest(groups=[group], include_authorized_operations=False), 6).groups[0]


def describe_consumer(raw: Raw, group: str) -> Any:
    request = m.ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=False)
    return raw.call(request, 1).groups[0]


def fetch_offsets(raw: Raw, group: str) -> dict[tuple[str, int], int]:
    """Every offset that the group has committed."""
    asked = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)
    reply = raw.call(m.OffsetFetchRequest(groups=[asked], require_stable=True), 8).groups[0]
    assert not reply.error_code, reply
    return {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in reply.topics
        for partition in topic.partitions
        if partition.committed_offset >= 0
    }


# Three libraries, one member each.


class Member(Protocol):
    """One consumer in a group."""

    def read(self, count: int) -> list[Place]:
        """This many records, or fewer if no more come."""
        ...

    def commit(self) -> None:
        """Commit everything that was read, and wait."""
        ...

    def commit_later(self) -> None:
        """Commit everything that was read, without waiting; the commit is complete once the member is closed."""
        ...

    def commit_at(self, topic: str, partition: int, offset: int, metadata: str) -> None: ...

    def committed(self, topic: str, partition: int) -> Committed | None: ...

    def close(self) -> None: ...


Join = Callable[[str, str, Sequence[str]], Member]
"""Bootstrap, group and topics."""


class ConfluentMember:
    def __init__(self, bootstrap: str, group: str, topics: Sequence[str], protocol: str) -> None:
        self.consumer = Consumer(settings_for(bootstrap, group, protocol))
        self.consumer.subscribe(list(topics))

    def read(self, count: int) -> list[Place]:
        result: list[Place] = []
        deadline = time.monotonic() + SECONDS_MAX
        while len(result) < count and time.monotonic() < deadline:
            for each in self.consumer.consume(count - len(result), timeout=0.1):
                assert each.error() is None, each.error()
                result.append(Place(each.topic(), each.partition(), each.offset(), each.value()))
        return result

    def commit(self) -> None:
        for each in self.consumer.commit(asynchronous=False):
            assert each.error is None, each.error

    def commit_later(self) -> None:
        self.consumer.commit(asynchronous=True)

    def commit_at(self, topic: str, partition: int, offset: int, metadata: str) -> None:
        wanted = TopicPartition(topic, partition, offset, metadata, 0)
        (done,) = self.consumer.commit(offsets=[wanted], asynchronous=False)
        assert done.error is None, done.error

    def committed(self, topic: str, partition: int) -> Committed | None:
        (position,) = self.consumer.committed([TopicPartition(topic, partition)], timeout=SECONDS_MAX)
        assert position.error is None, position.error
        return (
            None
            if position.offset < 0
            else Committed(position.offset, position.metadata or "", position.leader_epoch)
        )

    def close(self) -> None:
        self.consumer.close()


class KafkaPythonMember:
    def __init__(self, bootstrap: str, group: str, topics: Sequence[str]) -> None:
        from kafka import KafkaConsumer

        self.consumer = KafkaConsumer(
            *topics,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
            heartbeat_interval_ms=100,
            session_timeout_ms=6000,
            retry_backoff_ms=20,
        )

    def read(self, count: int) -> list[Place]:
        result: list[Place] = []
        deadline = time.monotonic() + SECONDS_MAX
        while len(result) < count and time.monotonic() < deadline:
            polled = self.consumer.poll(timeout_ms=100, max_records=count - len(result))
            for records in polled.values():
                result += [Place(each.topic, each.partition, each.offset, each.value) for each in records]
        return result

    def commit(self) -> None:
        self.consumer.commit()

    def commit_later(self) -> None:
        self.consumer.commit_async()

    def commit_at(self, topic: str, partition: int, offset: int, metadata: str) -> None:
        from kafka import OffsetAndMetadata
        from kafka import TopicPartition as PythonTopicPartition

        self.consumer.commit({PythonTopicPartition(topic, partition): OffsetAndMetadata(offset, metadata, 0)})

    def committed(self, topic: str, partition: int) -> Committed | None:
        from kafka import TopicPartition as PythonTopicPartition

        position = self.consumer.committed(PythonTopicPartition(topic, partition), metadata=True)
        return None if position is None else Committed(position.offset, position.metadata, position.leader_epoch)

    def close(self) -> None:
        self.consumer.close()


class AioKafkaMember:
    """Its background tasks run only during calls, which is enough for short tests."""

    def __init__(self, bootstrap: str, group: str, topics: Sequence[str]) -> None:
        from aiokafka import AIOKafkaConsumer

        self._loop = asyncio.new_event_loop()

        async def started() -> Any:
            made = AIOKafkaConsumer(
                *topics,
                bootstrap_servers=bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                fetch_max_wait_ms=50,
                heartbeat_interval_ms=100,
                session_timeout_ms=6000,
                retry_backoff_ms=20,
            )
            await made.start()
            return made

        self.consumer = self._loop.run_until_complete(started())
        self._later: asyncio.Task[Any] | None = None

    def read(self, count: int) -> list[Place]:
        async def reading() -> list[Place]:
            result: list[Place] = []
            deadline = time.monotonic() + SECONDS_MAX
            while len(result) < count and time.monotonic() < deadline:
                polled = await self.consumer.getmany(timeout_ms=100, max_records=count - len(result))
                for records in polled.values():
                    result += [Place(each.topic, each.partition, each.offset, each.value) for each in records]
            return result

        return self._loop.run_until_complete(reading())

    def commit(self) -> None:
        self._loop.run_until_complete(self.consumer.commit())

    def commit_later(self) -> None:
        self._later = self._loop.create_task(self.consumer.commit())

    def commit_at(self, topic: str, partition: int, offset: int, metadata: str) -> None:
        from aiokafka import TopicPartition as AioTopicPartition

        wanted = {AioTopicPartition(topic, partition): (offset, metadata)}
        self._loop.run_until_complete(self.consumer.commit(wanted))

    def committed(self, topic: str, partition: int) -> Committed | None:
        """The library has no public access to the metadata, although its coordinator fetches it."""
        from aiokafka import TopicPartition as AioTopicPartition

        topic_partition = AioTopicPartition(topic, partition)
        result = self._loop.run_until_complete(self.consumer._coordinator.fetch_committed_offsets([topic_partition]))
        return (
            Committed(result[topic_partition].offset, result[topic_partition].metadata, None)
            if topic_partition in result
            else None
        )

    def close(self) -> None:
        if self._later is not None:
            self._loop.run_until_complete(self._later)
        self._loop.run_until_complete(self.consumer.stop())
        self._loop.close()


def _confluent(protocol: str) -> Join:
    return lambda bootstrap, group, topics: ConfluentMember(bootstrap, group, topics, protocol)


JOINS: dict[str, Join] = {
    "confluent-kafka-range": _confluent("range"),
    "confluent-kafka-cooperative": _confluent("cooperative-sticky"),
    "confluent-kafka-consumer": _confluent("consumer"),
    "kafka-python": KafkaPythonMember,
    "aiokafka": AioKafkaMember,
}
