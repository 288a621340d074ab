"""Requests that several simulated clients send, and the exchanges that they repeat until they succeed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from millpond.base.ids import NO_TOPIC_ID
from millpond.sim.clients.client import Client
from millpond.sim.clients.script import Script, Send, Sleep
from millpond.sim.world.clock import VirtualClock
from millpond.wire import messages as m

RETRY_MS: Final = 100
COMMIT_VERSION: Final = 9
GROUP_KEY, TRANSACTION_KEY = 0, 1
READ_COMMITTED: Final = 1
NO_GENERATION: Final = -1

OnOffset = Callable[[int, int, int], None]
"""Gets the time at which an offset was requested, the partition, and the offset."""


@dataclass(slots=True)
class Membership:
    """How the coordinator knows a member; sent with its commits."""

    group_id: str
    member_id: str = ""
    generation: int = NO_GENERATION
    instance_id: str | None = None
    partitions: frozenset[int] = frozenset()


def find_coordinator(client: Client, kind: int, key: str) -> Script[None]:
    """Send until there is one: the first request creates the coordinator's topic."""
    request = m.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
    while True:
        reply = yield Send(client, request, 4)
        if reply is not None and not reply.coordinators[0].error_code:
            return
        yield Sleep(RETRY_MS)


def fetch_offsets(
    client: Client,
    clock: VirtualClock,
    group_id: str,
    topic: str,
    partitions: Iterable[int],
    on_offset: OnOffset | None = None,
    *,
    require_stable: bool,
) -> Script[dict[int, int]]:
    """The committed offset of each partition; repeats the request until all are known."""
    kind = m.OffsetFetchRequest
    missing = sorted(partitions)
    offsets: dict[int, int] = {}
    while missing:
        topics = [kind.OffsetFetchRequestTopics(name=topic, partition_indexes=list(missing))]
        request = kind(
            groups=[kind.OffsetFetchRequestGroup(group_id=group_id, topics=topics)], require_stable=require_stable
        )
        sent_ms = clock.now_ms
        reply = yield Send(client, request, 8)
        if reply is not None and not reply.groups[0].error_code:
            for part in reply.groups[0].topics[0].partitions:
                if not part.error_code:
                    if on_offset is not None:
                        on_offset(sent_ms, part.partition_index, part.committed_offset)
                    offsets[part.partition_index] = part.committed_offset
                    missing.remove(part.partition_index)
        if missing:
            yield Sleep(RETRY_MS)
    return offsets


def commit_request(membership: Membership, topic: str, offsets: Mapping[int, int]) -> m.OffsetCommitRequest:
    kind = m.OffsetCommitRequest
    return kind(
        group_id=membership.group_id,
        generation_id_or_member_epoch=membership.generation,
        member_id=membership.member_id,
        group_instance_id=membership.instance_id,
        topics=[
            kind.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    kind.OffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offset, committed_metadata=""
                    )
                    for partition, offset in offsets.items()
                ],
            )
        ],
    )


def fetch_request(
    topic: str,
    positions: Mapping[int, int],
    *,
    max_bytes: int,
    max_wait_ms: int,
    topic_id: UUID = NO_TOPIC_ID,
    isolation_level: int = 0,
    leader_epoch: int = -1,
    rack_id: str = "",
) -> m.FetchRequest:
    """A fetch of one topic, outside any fetch session."""
    kind = m.FetchRequest
    return kind(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=0,
        session_epoch=-1,
        rack_id=rack_id,
        topics=[
            kind.FetchTopic(
                topic=topic,
                topic_id=topic_id,
                partitions=[
                    kind.FetchPartition(
                        partition=partition,
                        current_leader_epoch=leader_epoch,
                        fetch_offset=position,
                        partition_max_bytes=max_bytes,
                    )
                    for partition, position in positions.items()
                ],
            )
        ],
        forgotten_topics_data=[],
    )


def produce_request(
    topic: str,
    batches: Iterable[tuple[int, bytes]],
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> m.ProduceRequest:
    """Batches for partitions of one topic."""
    kind = m.ProduceRequest
    return kind(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            kind.TopicProduceData(name=topic, partition_data=[kind.PartitionProduceData(index=index, records=data)])
            for index, data in batches
        ],
    )
