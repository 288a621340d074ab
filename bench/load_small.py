"""Loads by small requests: what consumers send while there is little or nothing to read, one in flight on each of
many connections.

Every request is encoded once; only what must change from one to the next (a session's epoch, an offset) is put in.
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
from bench.load_raw import OFFSET, percentiles_ms, raise_descriptor_limit
from bench.node import HOST
from bench.noise import Measured
from millpond.wire import messages as m

TOPIC = "small"
RECORDS = 200
"""So many are in the topic, a batch each."""
WAIT_MS = 5
"""So long a fetch waits that finds nothing: not for long, so that there are many of them."""
JOIN_SECONDS_MAX = 30.0
SESSION_MS = 1_800_000
JOIN_VERSION, SYNC_VERSION, COORDINATOR_VERSION = 5, 3, 2
MARK = 0x0123456789ABCDEF
EPOCH_MARK = 0x01234567
INT32 = struct.Struct(">i")

Frames = Iterator[bytes]


@dataclass(slots=True)
class Asker:
    """One connection, and what it asks next."""

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
    """`kind` is one of `KINDS`; each connection is a member of a group of its own, where that matters."""

    def __init__(self, port: int, kind: str, version: int, connections: int) -> None:
        raise_descriptor_limit()
        self._askers: dict[int, Asker] = {}
        self._poll = select.epoll()
        with raw.RawClient(HOST, port) as first:
            first.create_topic(TOPIC)
            for _ in range(RECORDS if kind.startswith("fetch") else 0):
                first.send(raw.produce_frame(TOPIC, 0, raw.batch(1, 100), raw.ACKS_LEADER))
                raw.check_produced(first.receive())
            if not kind.startswith("fetch"):
                _await_coordinator(first, f"group-{kind}-{version}-0")
        for number in range(connections):
            client = raw.RawClient(HOST, port)
            frames, api_key = KINDS[kind](client, f"group-{kind}-{version}-{number}", version)
            asker = Asker(client, frames, api_key, version)
            for _ in range(2):
                _check(asker.ask())
            # They are waited for by `poll` alone.
            client.socket.setblocking(True)
            self._askers[client.socket.fileno()] = asker
            self._poll.register(client.socket.fileno(), select.EPOLLIN)

    def run(self, seconds: float) -> Measured:
        askers, poll = self._askers, self._poll.poll
        read, write, now = os.read, os.write, time.perf_counter_ns
        waits: list[int] = []
        sent_at: dict[int, int] = {}
        began = now()
        deadline = began + int(seconds * 1e9)
        for descriptor, asker in askers.items():
            sent_at[descriptor] = now()
            write(descriptor, next(asker.frames))
        open_requests = len(askers)
        while open_requests:
            for descriptor, _ in poll():
                asker = askers[descriptor]
                reply = read(descriptor, 4096)
                if len(reply) != asker.reply_bytes:
                    raise RuntimeError(f"an answer of {len(reply)} bytes, not {asker.reply_bytes}")
                at = now()
                waits.append(at - sent_at[descriptor])
                if at < deadline:
                    sent_at[descriptor] = at
                    write(descriptor, next(asker.frames))
                else:
                    open_requests -= 1
                    _check(raw.decoded(reply[raw.LENGTH.size :], asker.api_key, asker.version))
        took = (now() - began) / 1e9
        return {"seconds": took, "messages": len(waits), "requests": len(waits), **percentiles_ms(waits)}


def _check(response: m.Message) -> None:
    """Raise unless all went well: a fast refusal must not look like a fast broker."""
    codes = [getattr(response, "error_code", 0)]
    for topic in getattr(response, "topics", ()) or getattr(response, "responses", ()):
        codes += [each.error_code for each in topic.partitions]
    if any(codes):
        raise RuntimeError(f"refused with {codes}")


def _await_coordinator(client: raw.RawClient, group: str) -> None:
    deadline = time.monotonic() + JOIN_SECONDS_MAX
    while time.monotonic() < deadline:
        reply = client.call(m.FindCoordinatorRequest(key=group), COORDINATOR_VERSION)
        assert isinstance(reply, m.FindCoordinatorResponse)
        if not reply.error_code:
            return
        time.sleep(0.05)
    raise TimeoutError("nobody coordinates groups")


def _same(request: m.Message, version: int) -> Frames:
    return repeat(raw.framed(request, version))


# Groups.


def _joined(client: raw.RawClient, group: str) -> tuple[str, int]:
    """Id and generation of the only member of a classic group."""
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=bytes(200))
    joined: Any = m.JoinGroupResponse(member_id="", error_code=-1)
    while joined.error_code:
        request = m.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=joined.member_id,
            protocol_type="consumer",
            protocols=[protocol],
        )
        joined = client.call(request, JOIN_VERSION)
    given = m.SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=bytes(200))
    synced: Any = client.call(
        m.SyncGroupRequest(
            group_id=group, generation_id=joined.generation_id, member_id=joined.member_id, assignments=[given]
        ),
        SYNC_VERSION,
    )
    _check(synced)
    return joined.member_id, joined.generation_id


def _heartbeat(client: raw.RawClient, group: str, version: int) -> tuple[Frames, int]:
    member_id, generation = _joined(client, group)
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
    _check(joined)
    beat = m.ConsumerGroupHeartbeatRequest(
        group_id=group, member_id=joined.member_id, member_epoch=joined.member_epoch
    )
    return _same(beat, version), 68


def _commit(client: raw.RawClient, group: str, version: int) -> tuple[Frames, int]:
    member_id, generation = _joined(client, group)
    kind = m.OffsetCommitRequest
    partition = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=MARK)
    request = kind(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[kind.OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
    )
    before, _, after = raw.framed(request, version).partition(OFFSET.pack(MARK))
    return (before + OFFSET.pack(offset) + after for offset in count()), 8


# Fetches.


def _fetch_request(client: raw.RawClient, version: int, wait_ms: int, bytes_max: int) -> m.FetchRequest:
    asked = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name=TOPIC)])
    found: Any = client.call(asked, raw.METADATA_VERSION)
    wanted = m.FetchRequest.FetchPartition(partition=0, fetch_offset=MARK, partition_max_bytes=bytes_max)
    topic = m.FetchRequest.FetchTopic(topic=TOPIC, topic_id=found.topics[0].topic_id, partitions=[wanted])
    return m.FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=[topic])


def _at_offset(request: m.FetchRequest, offset: int) -> m.FetchRequest:
    request.topics[0].partitions[0].fetch_offset = offset
    return request


def _begin_session(client: raw.RawClient, request: m.FetchRequest, version: int) -> None:
    """Let the request begin a session; from then on it goes on with it, with a mark for its epoch."""
    request.session_epoch = 0
    began: Any = client.call(request, version)
    _check(began)
    assert began.session_id, "the node gives no session"
    request.session_id, request.session_epoch = began.session_id, EPOCH_MARK


def _fetch_waits(client: raw.RawClient, group: str, version: int) -> tuple[Frames, int]:
    """A session in which nothing is new: nothing is asked for by name, and nothing comes."""
    request = _at_offset(_fetch_request(client, version, WAIT_MS, 1 << 20), RECORDS)
    _begin_session(client, request, version)
    request.topics = []
    before, _, after = raw.framed(request, version).partition(INT32.pack(EPOCH_MARK))
    return (before + INT32.pack(epoch) + after for epoch in count(1)), 1


def _fetch_one(client: raw.RawClient, group: str, version: int) -> tuple[Frames, int]:
    """A session that gets one record each time."""
    request = _at_offset(_fetch_request(client, version, 500, 1), 0)
    _begin_session(client, request, version)
    head, _, rest = raw.framed(_at_offset(request, MARK), version).partition(INT32.pack(EPOCH_MARK))
    before, _, after = rest.partition(OFFSET.pack(MARK))
    return (head + INT32.pack(epoch) + before + OFFSET.pack(epoch % RECORDS) + after for epoch in count(1)), 1


def _fetch_full(client: raw.RawClient, group: str, version: int) -> tuple[Frames, int]:
    """The same without a session, as librdkafka does."""
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
