"""What a member of a group does with its partitions: asks where to begin, fetches, processes, commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random

from millpond.base.errors import ErrorCode
from millpond.sim.clients.client import Client
from millpond.sim.clients.group_member import RETRY_MS, GroupTopic, Membership
from millpond.sim.clients.script import Ask, Player, Rest, Script
from millpond.sim.history.groups import CoordinationHistory, Fate, OffsetCommit
from millpond.sim.world.clock import VirtualClock
from millpond.wire import messages as m
from millpond.wire.batch import CorruptBatch, check_batch, walk
from millpond.wire.records import Record, decode_batch

FETCH_WAIT_MS = 300
NOT_A_MEMBER = (
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
)
"""Answers to a commit that was certainly not taken."""

Told = Callable[[int, int, int], None]
"""Hears when an offset was asked for, the partition, and the offset."""


def fetch_offsets(
    client: Client,
    clock: VirtualClock,
    group_id: str,
    topic: GroupTopic,
    partitions: Iterable[int],
    told: Told,
    *,
    require_stable: bool,
) -> Script[dict[int, int]]:
    """How far the group is in each partition; asks until it hears so of all of them."""
    kind = m.OffsetFetchRequest
    left = sorted(partitions)
    offsets: dict[int, int] = {}
    while left:
        asked = kind.OffsetFetchRequestTopics(name=topic.name, partition_indexes=list(left))
        request = kind(
            groups=[kind.OffsetFetchRequestGroup(group_id=group_id, topics=[asked])], require_stable=require_stable
        )
        asked_ms = clock.now_ms
        reply = yield Ask(client, request, 8)
        if reply is not None and not reply.groups[0].error_code:
            for part in reply.groups[0].topics[0].partitions:
                if not part.error_code:
                    told(asked_ms, part.partition_index, part.committed_offset)
                    offsets[part.partition_index] = part.committed_offset
                    left.remove(part.partition_index)
        if left:
            yield Rest(RETRY_MS)
    return offsets


def fetch_records(
    client: Client, topic: GroupTopic, positions: Mapping[int, int], *, max_bytes: int = 1
) -> Script[tuple[int, list[Record]]]:
    """Records of one of these partitions, the first one that has some; none after a while, or when in trouble."""
    kind = m.FetchRequest
    request = kind(
        max_wait_ms=FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[
            kind.FetchTopic(
                topic=topic.name,
                partitions=[
                    kind.FetchPartition(partition=partition, fetch_offset=position, partition_max_bytes=max_bytes)
                    for partition, position in positions.items()
                ],
            )
        ],
        forgotten_topics_data=[],
    )
    reply = yield Ask(client, request, 11)
    if reply is None or reply.error_code:
        yield Rest(RETRY_MS)
        return -1, []
    for part in reply.responses[0].partitions if reply.responses else ():
        try:
            records = _first_from(bytes(part.records or b""), positions[part.partition_index])
        except CorruptBatch:
            # Its checksum is what a client refuses it by, and asks again; somebody has to mend it.
            yield Rest(RETRY_MS)
            continue
        if records:
            return part.partition_index, records
    return -1, []


def _first_from(data: bytes, position: int) -> list[Record]:
    """Those of the first batch that has some at or behind this position."""
    for at, _ in walk(data):
        check_batch(data, at)
        records = [each for each in decode_batch(data, at) if each.offset >= position]
        if records:
            return records
    return []


class ReadJob:
    """Processes every record and commits now and then; on the way out it commits what it has processed."""

    def __init__(
        self,
        clock: VirtualClock,
        client: Client,
        history: CoordinationHistory,
        topic: GroupTopic,
        random: Random,
        *,
        pace_ms: int,
    ) -> None:
        self._clock = clock
        self._client = client
        self._history = history
        self._topic = topic
        self._random = random
        self._pace_ms = pace_ms
        self._positions: dict[int, int] = {}
        self._player: Player | None = None

    def begin(self, membership: Membership) -> None:
        self._positions = {}
        self._player = Player(self._clock, self._work(membership))
        self._player.start()

    def finish(self, membership: Membership) -> Script[None]:
        self.stop()
        if self._positions and self._random.random() < 0.7:
            yield from self._commit(membership)

    def stop(self) -> None:
        if self._player is not None:
            self._player.end()
            self._player = None

    def freeze(self) -> None:
        if self._player is not None:
            self._player.freeze()

    def thaw(self) -> None:
        if self._player is not None:
            self._player.thaw()

    def _work(self, membership: Membership) -> Script[None]:
        if not membership.partitions:
            return
        committed = yield from fetch_offsets(
            self._client,
            self._clock,
            membership.group_id,
            self._topic,
            membership.partitions,
            self._told,
            require_stable=False,
        )
        order = list(committed)
        positions = {partition: max(offset, 0) for partition, offset in committed.items()}
        while True:
            self._random.shuffle(order)
            asked = {partition: positions[partition] for partition in order}
            partition, records = yield from fetch_records(self._client, self._topic, asked)
            for record in records:
                self._history.process(partition, record.offset)
                positions[partition] = self._positions[partition] = record.offset + 1
            if self._positions and self._random.random() < 0.5:
                yield from self._commit(membership)
            yield Rest(self._random.randint(1, self._pace_ms))

    def _told(self, asked_ms: int, partition: int, offset: int) -> None:
        self._history.told_offset(self._clock.now_ms, asked_ms, self._client.name, partition, offset)

    def _commit(self, membership: Membership) -> Script[None]:
        """Commit all positions; what is refused for good is forgotten, what is lost is committed again later."""
        kind = m.OffsetCommitRequest
        asked = self._history.ask_commit(self._client.name, membership.generation, self._positions)
        request = kind(
            group_id=membership.group_id,
            generation_id_or_member_epoch=membership.generation,
            member_id=membership.member_id,
            topics=[
                kind.OffsetCommitRequestTopic(
                    name=self._topic.name,
                    partitions=[
                        kind.OffsetCommitRequestPartition(
                            partition_index=commit.partition, committed_offset=commit.offset, committed_metadata=""
                        )
                        for commit in asked
                    ],
                )
            ],
        )
        reply = yield Ask(self._client, request, 9)
        answers = {part.partition_index: part for part in reply.topics[0].partitions} if reply is not None else {}
        for commit in asked:
            answer = answers.get(commit.partition)
            self._settle(commit, None if answer is None else answer.error_code)

    def _settle(self, commit: OffsetCommit, code: int | None) -> None:
        if code == ErrorCode.NONE:
            self._history.settle(self._clock.now_ms, commit, Fate.DONE)
            if self._positions.get(commit.partition) == commit.offset:
                del self._positions[commit.partition]
        elif code in NOT_A_MEMBER:
            self._history.settle(self._clock.now_ms, commit, Fate.REFUSED)
