"""Loads by many at a time: producers and consumers of one topic, and the members of many groups."""

from __future__ import annotations

import os
import select
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import Consumer

from bench import librdkafka, raw
from bench.groups import COMMIT_VERSION, SYNC_VERSION, await_coordinator, commit_request, join_request, sync_request
from bench.load_confluent import CALL_MESSAGES, FLUSH_SECONDS, producer_config
from bench.load_raw import Reader, percentiles_ms, raise_descriptor_limit
from bench.node import HOST
from bench.noise import Measured
from millpond.wire import messages as m

JOIN_SECONDS_MAX = 60.0
JOIN_VERSION, HEARTBEAT_VERSION = 3, 3
HEARTBEAT_SECONDS = 3.0
COMMIT_SECONDS = 5.0
"""The default intervals of clients."""

SESSION_MS = 45_000
WAIT_MS = 500
LOOK_SECONDS = 0.02
ROUND_SECONDS = 0.05
"""Responses of one round arrive closer together than this."""


class Crowd:
    """Producers by librdkafka that write to any partition, and a group of confluent-kafka consumers that reads all of
    it. A message counts when it has been read."""

    def __init__(
        self,
        port: int,
        topic: str,
        producers: int,
        consumers: int,
        partitions: int,
        value_bytes: int,
        acks: int,
        bytes_max: int,
    ) -> None:
        self._value_bytes = value_bytes
        self._messages_each = bytes_max // value_bytes // producers
        self._is_over = False
        self._counts = [0] * consumers
        values = [b"v" * value_bytes]
        config = producer_config(port, acks)
        self._producers = [
            librdkafka.Producer(config, topic, values, CALL_MESSAGES, librdkafka.ANY_PARTITION)
            for _ in range(producers)
        ]
        self._consumers = [Consumer(self._settings(port)) for _ in range(consumers)]
        self._shares = [0] * consumers
        for slot, each in enumerate(self._consumers):
            each.subscribe([topic], on_assign=partial(self._share, slot), on_revoke=partial(self._share, slot, None))
        self._threads = [
            threading.Thread(target=self._read, args=(slot, each), daemon=True)
            for slot, each in enumerate(self._consumers)
        ]
        for thread in self._threads:
            thread.start()
        deadline = time.monotonic() + JOIN_SECONDS_MAX
        while sum(self._shares) < partitions:
            if time.monotonic() > deadline:
                raise TimeoutError("the group did not come together")
            time.sleep(0.05)

    @staticmethod
    def _settings(port: int) -> dict[str, str | int]:
        return {
            "bootstrap.servers": f"{HOST}:{port}",
            "group.id": "crowd",
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 200_000,
            "fetch.queue.backoff.ms": 5,
        }

    def _share(self, slot: int, *given: Any) -> None:
        """The number of assigned partitions; 0 after a revocation."""
        partitions = given[-1] if given[0] is not None else []
        self._shares[slot] = len(partitions)

    def _read(self, slot: int, consumer: Consumer) -> None:
        while not self._is_over:
            found = consumer.consume(CALL_MESSAGES, 0.1)
            self._counts[slot] += sum(each.error() is None for each in found)

    def _write(self, producer: librdkafka.Producer, deadline: float, written: list[int]) -> None:
        count = 0
        while time.perf_counter() < deadline and count < self._messages_each:
            accepted = producer.produce(CALL_MESSAGES)
            count += accepted
            if accepted < CALL_MESSAGES:
                producer.poll(5)
        producer.flush(FLUSH_SECONDS * 1000)
        written.append(count)

    def run(self, seconds: float) -> Measured:
        before = sum(self._counts)
        began = time.perf_counter()
        written: list[int] = []
        writers = [
            threading.Thread(target=self._write, args=(each, began + seconds, written)) for each in self._producers
        ]
        for each in writers:
            each.start()
        for each in writers:
            each.join()
        if len(written) < len(writers):
            raise RuntimeError("a producer could not write all that it had")
        wrote = time.perf_counter() - began
        count = sum(written)
        while sum(self._counts) - before < count:
            if time.perf_counter() - began > FLUSH_SECONDS:
                raise TimeoutError(f"{count - sum(self._counts) + before} of {count} messages were not read")
            time.sleep(0.002)
        took = time.perf_counter() - began
        return {
            "seconds": took,
            "messages": count,
            "bytes": count * self._value_bytes,
            "written_per_s": count / wrote,
        }

    def close(self) -> None:
        self._is_over = True
        for each in self._threads:
            each.join()
        for consumer in self._consumers:
            consumer.close()


@dataclass(slots=True, eq=False)
class Member:
    """One consumer of one group: a connection that fetches its partition, and one to the group's coordinator."""

    group: str
    reader: Reader
    partition: int
    fetching: raw.RawClient
    coordinated: raw.RawClient
    member_id: str = ""
    generation: int = -1
    offset: int = 0
    beats_at: float = 0.0
    commits_at: float = 0.0
    in_flight: int = 0
    """Outstanding requests to the coordinator."""


def _send_join(member: Member) -> None:
    request = join_request(member.group, member.member_id, SESSION_MS)
    member.coordinated.send(raw.framed(request, JOIN_VERSION))


def _together(members: list[Member], deadline: float) -> Member:
    """Wait until one generation has all of these members, which have sent JoinGroup; its leader.

    A member of a generation without the others joins again.
    """
    waiting = list(members)
    leader, known = members[0], 0
    while True:
        # Not `select`, which is limited to 1,024 descriptors.
        poll = select.poll()
        for each in waiting:
            poll.register(each.coordinated.socket, select.POLLIN)
        readable = {descriptor for descriptor, _ in poll.poll(ROUND_SECONDS * 1000)}
        for each in [each for each in waiting if each.coordinated.socket.fileno() in readable]:
            reply = raw.decoded(each.coordinated.receive(), m.JoinGroupRequest.API_KEY or 0, JOIN_VERSION)
            assert isinstance(reply, m.JoinGroupResponse)
            if reply.error_code:
                raise RuntimeError(f"{each.group} was refused with {reply.error_code}")
            waiting.remove(each)
            each.member_id, each.generation = reply.member_id, reply.generation_id
            if reply.leader == reply.member_id:
                leader, known = each, len(reply.members)
        if not waiting and known == len(members) and len({each.generation for each in members}) == 1:
            return leader
        if time.monotonic() > deadline:
            raise TimeoutError(f"{leader.group} did not come together")
        if not readable:
            for each in members:
                if each not in waiting:
                    waiting.append(each)
                    _send_join(each)


class Groups:
    """Many groups of a few consumers each, all of one topic: one record a request at a steady pace, which every group
    reads; all members show that they are alive and commit as often as clients do."""

    def __init__(self, port: int, topic: str, groups: int, members_each: int, records_per_s: int) -> None:
        raise_descriptor_limit()
        self._topic = topic
        self._pace = records_per_s
        self._records = raw.batch(1, 100)
        self._writer = raw.RawClient(HOST, port)
        self._partitions = members_each
        self._frames = [
            raw.produce_frame(topic, partition, self._records, raw.ACKS_LEADER) for partition in range(members_each)
        ]
        self._end = [0] * members_each
        """The offset that each partition's next record gets."""
        await_coordinator(self._writer, f"group-{groups - 1}")
        self._members = [
            Member(
                f"group-{number}",
                Reader(topic, partition, len(self._records), WAIT_MS),
                partition,
                raw.RawClient(HOST, port),
                raw.RawClient(HOST, port),
            )
            for number in range(groups)
            for partition in range(members_each)
        ]
        self._join()
        self._poll = select.epoll()
        self._fetchers = {each.fetching.socket.fileno(): each for each in self._members}
        self._coordinated = {each.coordinated.socket.fileno(): each for each in self._members}
        for descriptor in (*self._fetchers, *self._coordinated):
            self._poll.register(descriptor, select.EPOLLIN)
        self._sent_at: dict[tuple[int, int], int] = {}
        now = time.monotonic()
        for place, each in enumerate(self._members):
            # Spread over time, as in a group that has run for a while.
            each.beats_at = now + HEARTBEAT_SECONDS * place / len(self._members)
            each.commits_at = now + COMMIT_SECONDS * place / len(self._members)
            each.fetching.send(each.reader.frame())

    def _join(self) -> None:
        deadline = time.monotonic() + JOIN_SECONDS_MAX
        # All at once: a broker may wait for seconds whether more come to a new group.
        for each in self._members:
            _send_join(each)
        for first in range(0, len(self._members), self._partitions):
            members = self._members[first : first + self._partitions]
            leader = _together(members, deadline)
            self._sync(members, leader)

    @staticmethod
    def _sync(members: list[Member], leader: Member) -> None:
        ids = [each.member_id for each in members]
        for each in members:
            request = sync_request(each.group, each.generation, each.member_id, ids if each is leader else [])
            each.coordinated.send(raw.framed(request, SYNC_VERSION))
        for each in members:
            reply = raw.decoded(each.coordinated.receive(), m.SyncGroupRequest.API_KEY or 0, SYNC_VERSION)
            assert isinstance(reply, m.SyncGroupResponse)
            if reply.error_code:
                raise RuntimeError(f"{each.group} was refused with {reply.error_code}")

    def run(self, seconds: float) -> Measured:
        now = time.perf_counter
        waits: list[int] = []
        began = now()
        due, gap = began, 1 / self._pace
        written = beats = wanted = 0
        deadline = began + seconds
        look_at = began
        while True:
            at = now()
            if due <= at < deadline:
                self._write(written % self._partitions)
                written += 1
                wanted += len(self._members) // self._partitions
                due = max(due + gap, at - 1.0)
            if at >= look_at:
                look_at = at + LOOK_SECONDS
                beats += self._look_after(time.monotonic())
            if at >= deadline and len(waits) >= wanted:
                break
            if at > deadline + FLUSH_SECONDS:
                raise TimeoutError(f"{wanted - len(waits)} of {wanted} deliveries did not come")
            rest = due - now() if due < deadline else 0.005
            for descriptor, _ in self._poll.poll(max(0.0, min(rest, 0.05))):
                if (member := self._fetchers.get(descriptor)) is not None:
                    self._take(member, waits)
                else:
                    self._coordinated[descriptor].coordinated.skip()
                    self._coordinated[descriptor].in_flight -= 1
        took = now() - began
        return {
            "seconds": took,
            "messages": len(waits),
            "written": written,
            "beats_and_commits": beats,
            **percentiles_ms(waits),
        }

    def _write(self, partition: int) -> None:
        self._sent_at[partition, self._end[partition]] = time.perf_counter_ns()
        self._end[partition] += 1
        self._writer.send(self._frames[partition])
        raw.check_produced(self._writer.receive())

    def _take(self, member: Member, waits: list[int]) -> None:
        count = member.reader.take(os.read(member.fetching.socket.fileno(), 1 << 18))
        if count is None:
            return
        now = time.perf_counter_ns()
        offsets = range(member.offset, member.offset + count)
        waits.extend(now - self._sent_at[member.partition, offset] for offset in offsets)
        member.offset += count
        member.fetching.send(member.reader.frame())

    def _look_after(self, now: float) -> int:
        """Send due heartbeats and commits; their number."""
        done = 0
        for each in self._members:
            if each.beats_at <= now and not each.in_flight:
                each.beats_at = now + HEARTBEAT_SECONDS
                beat = m.HeartbeatRequest(
                    group_id=each.group, generation_id=each.generation, member_id=each.member_id
                )
                each.coordinated.send(raw.framed(beat, HEARTBEAT_VERSION))
                each.in_flight += 1
                done += 1
            elif each.commits_at <= now and not each.in_flight:
                each.commits_at = now + COMMIT_SECONDS
                offsets = {each.partition: each.offset}
                commit = commit_request(each.group, each.generation, each.member_id, self._topic, offsets)
                each.coordinated.send(raw.framed(commit, COMMIT_VERSION))
                each.in_flight += 1
                done += 1
        return done
