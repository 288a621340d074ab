"""Loads of small requests: what consumers send while there is little to read, one in flight on each of many
connections.

Every request is encoded once; only what changes from one to the next (a session's epoch, an offset) is filled in.
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, repeat
from typing import Any

from bench import raw
from bench.groups import SESSION_MS, await_coordinator, check, commit_request, join_alone
from bench.load_raw import OFFSET, percentiles_ms, raise_descriptor_limit
from bench.node import HOST
from bench.noise import Measured
from millpond.wire import messages as m

TOPIC = "small"
RECORDS = 200
"""Records in the topic, one per batch."""
WAIT_MS = 5
"""How long an empty fetch waits: short, so that there are many."""
MARK = 0x0123456789ABCDEF
EPOCH_MARK = 0x01234567
INT32 = struct.Struct(">i")

Frames = Iterator[bytes]


@dataclass(slots=True)
class Requests:
    """One connection, and its next requests."""

    client: raw.RawClient
    frames: Frames
    api_key: int
    version: int
    reply_bytes: int = 0

    def ask(self) -> m.Message:
        self.client.send(next(self.frames))
        reply = self.client.receive()
        self.reply_bytes = len(reply) + raw.LENGTH.size
        return raw.decoded(reply, self.api_key, self.version)


class SmallRequests:
    """`kind` is one of `KINDS`; each connection is the only member of a group, if it needs one."""

    def __init__(self, port: int, kind: str, version: int, connections: int) -> None:
        raise_descriptor_limit()
        self._connections: dict[int, Requests] = {}
        self._poll = select.epoll()
        with raw.RawClient(HOST, port) as first:
            first.create_topic(TOPIC)
            for _ in range(RECORDS if kind.startswith("fetch") else 0):
                first.send(raw.produce_frame(TOPIC, 0, raw.batch(1, 100), raw.ACKS_LEADER))
                raw.check_produced(first.receive())
            if not kind.startswith("fetch"):
                await_coordinator(first, f"group-{kind}-{version}-0")
        for number in range(connections):
            client = raw.RawClient(HOST, port)
            frames, api_key = KINDS[kind](client, f"group-{kind}-{version}-{number}", version)
            requests = Requests(client, frames, api_key, version)
            for _ in range(2):
                check(requests.ask())
            # Only `poll` waits for them.
            client.socket.setblocking(True)
            self._connections[client.socket.fileno()] = requests
            self._poll.register(client.socket.fileno(), select.EPOLLIN)

    def run(self, seconds: float) -> Measured:
        connections_by_descriptor, poll = self._connections, self._poll.poll
        read, write, now = os.read, os.write, time.perf_counter_ns
        waits: list[int] = []
        sent_at: dict[int, int] = {}
        began = now()
        deadline = began + int(seconds * 1e9)
        for descriptor, requests in connections_by_descriptor.items():
            sent_at[descriptor] = now()
            write(descriptor, next(requests.frames))
        open_requests = len(connections_by_descriptor)
        while open_requests:
            for descriptor, _ in poll():
                requests = connections_by_descriptor[descriptor]
                reply = read(descriptor, 4096)
                if len(reply) != requests.reply_bytes:
                    raise RuntimeError(f"a response of {len(reply)} bytes instead of {requests.reply_bytes}")
                at = now()
                waits.append(at - sent_at[descriptor])
                if at < deadline:
                    sent_at[descriptor] = at
                    write(descriptor, next(requests.frames))
                else:
                    open_requests -= 1
                    check(raw.decoded(reply[raw.LENGTH.size :], requests.api_key, requests.version))
        took = (now() - began) / 1e9
        return {"seconds": took, "messages": len(waits), "requests": len(waits), **percentiles_ms(waits)}


def _same(request: m.Message, version: int) -> Frames:
    return repeat(raw.framed(request, version))


# Groups.


def _heartbeat(client: raw.RawClient, group: str, version: int) -> tuple[Frames, int]:
    member_id, generation = join_alone(client, group)
    return _same(m.HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id), version), 12


def _consumer_heartbeat(client: raw.RawClient, group: str, version: int) -> tuple[Frames, int]:
    first = m.ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=f"member-of-{group}",
        member_epoch=0,
        rebalance_timeout_ms=SESSION_MS,
        subscribed_topic_names=[TOPIC],
        topic_partitions=[],
    )
    joined: Any = client.call(first, version)
    check(joined)
    beat = m.ConsumerGroupHeartbeatRequest(
        group_id=group, member_id=joined.member_id, member_epoch=joined.member_epoch
    )
    return _same(beat, version), 68


def _commit(client: raw.RawClient, group: str, version: int) -> tuple[Frames, int]:
    member_id, generation = join_alone(client, group)
    request = commit_request(group, generation, member_id, TOPIC, {0: MARK})
    before, _, after = raw.framed(request, version).partition(OFFSET.pack(MARK))
    return (before + OFFSET.pack(offset) + after for offset in count()), 8


# Fetches.


def _fetch_request(client: raw.RawClient, version: int, wait_ms: int, bytes_max: int) -> m.FetchRequest:
    request = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name=TOPIC)])
    metadata: Any = client.call(request, raw.METADATA_VERSION)
    partition = m.FetchRequest.FetchPartition(partition=0, fetch_offset=MARK, partition_max_bytes=bytes_max)
    topic = m.FetchRequest.FetchTopic(topic=TOPIC, topic_id=metadata.topics[0].topic_id, partitions=[partition])
    return m.FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=[topic])


def _at_offset(request: m.FetchRequest, offset: int) -> m.FetchRequest:
    request.topics[0].partitions[0].fetch_offset = offset
    return request


def _begin_session(client: raw.RawClient, request: m.FetchRequest, version: int) -> None:
    """Begin a session; later requests continue it, with a mark for its epoch."""
    request.session_epoch = 0
    began: Any = client.call(request, version)
    check(began)
    assert began.session_id, "the node did not create a session"
    request.session_id, request.session_epoch = began.session_id, EPOCH_MARK


def _fetch_waits(client: raw.RawClient, group: str, version: int) -> tuple[Frames, int]:
    """A session without changes: requests and responses name no partition."""
    request = _at_offset(_fetch_request(client, version, WAIT_MS, 1 << 20), RECORDS)
    _begin_session(client, request, version)
    request.topics = []
    before, _, after = raw.framed(request, version).partition(INT32.pack(EPOCH_MARK))
    return (before + INT32.pack(epoch) + after for epoch in count(1)), 1


def _fetch_one(client: raw.RawClient, group: str, version: int) -> tuple[Frames, int]:
    """A session that returns one record each time."""
    request = _at_offset(_fetch_request(client, version, 500, 1), 0)
    _begin_session(client, request, version)
    head, _, rest = raw.framed(_at_offset(request, MARK), version).partition(INT32.pack(EPOCH_MARK))
    before, _, after = rest.partition(OFFSET.pack(MARK))
    return (head + INT32.pack(epoch) + before + OFFSET.pack(epoch % RECORDS) + after for epoch in count(1)), 1


def _fetch_full(client: raw.RawClient, group: str, version: int) -> tuple[Frames, int]:
    """The same without a session, like librdkafka."""
    request = _fetch_request(client, version, 500, 1)
    before, _, after = raw.framed(request, version).partition(OFFSET.pack(MARK))
    return (before + OFFSET.pack(number % RECORDS) + after for number in count()), 1


def _fetch_full_waits(client: raw.RawClient, group: str, version: int) -> tuple[Frames, int]:
    request = _at_offset(_fetch_request(client, version, WAIT_MS, 1 << 20), RECORDS)
    return _same(request, version), 1


KINDS: dict[str, Callable[[raw.RawClient, str, int], tuple[Frames, int]]] = {
    "heartbeat": _heartbeat,
    "consumer-heartbeat": _consumer_heartbeat,
    "commit": _commit,
    "fetch-waits": _fetch_waits,
    "fetch-one": _fetch_one,
    "fetch-full": _fetch_full,
    "fetch-full-waits": _fetch_full_waits,
}
