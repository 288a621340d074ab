"""What a group member does with its partitions: fetch committed offsets, fetch records, process and commit them."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from millpond.base.errors import ErrorCode
from millpond.sim.clients.client import Client
from millpond.sim.clients.group_member import GroupTopic
from millpond.sim.clients.requests import (
    COMMIT_VERSION,
    RETRY_MS,
    Membership,
    commit_request,
    fetch_offsets,
    fetch_request,
)
from millpond.sim.clients.script import Script, ScriptRunner, Send, Sleep
from millpond.sim.history.groups import CoordinationHistory, Fate, OffsetCommit
from millpond.sim.world.clock import VirtualClock
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
"""Errors that mean a commit was certainly not applied."""


def fetch_records(
    client: Client, topic: GroupTopic, positions: Mapping[int, int], *, max_bytes: int = 1
) -> Script[tuple[int, list[Record]]]:
    """Records of the first of these partitions that has some; none after a timeout or an error."""
    request = fetch_request(topic.name, positions, max_bytes=max_bytes, max_wait_ms=FETCH_WAIT_MS)
    reply = yield Send(client, request, 11)
    if reply is None or reply.error_code:
        yield Sleep(RETRY_MS)
        return -1, []
    for part in reply.responses[0].partitions if reply.responses else ():
        try:
            records = _first_from(bytes(part.records or b""), positions[part.partition_index])
        except CorruptBatch:
            # A client rejects it by its checksum and fetches again, until the broker has repaired the log.
            yield Sleep(RETRY_MS)
            continue
        if records:
            return part.partition_index, records
    return -1, []


def _first_from(data: bytes, position: int) -> list[Record]:
    """Records of the first batch that has some at or after this position."""
    for at, _ in walk(data):
        check_batch(data, at)
        records = [each for each in decode_batch(data, at) if each.offset >= position]
        if records:
            return records
    return []


class ReadJob:
    """Processes every record and commits now and then; before it gives partitions up it commits what it processed."""

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
        self._runner: ScriptRunner | None = None

    def begin(self, membership: Membership) -> None:
        self._positions = {}
        self._runner = ScriptRunner(self._clock, self._work(membership))
        self._runner.start()

    def finish(self, membership: Membership) -> Script[None]:
        self.stop()
        if self._positions and self._random.random() < 0.7:
            yield from self._commit(membership)

    def stop(self) -> None:
        if self._runner is not None:
            self._runner.end()
            self._runner = None

    def freeze(self) -> None:
        if self._runner is not None:
            self._runner.freeze()

    def thaw(self) -> None:
        if self._runner is not None:
            self._runner.thaw()

    def _work(self, membership: Membership) -> Script[None]:
        if not membership.partitions:
            return
        committed = yield from fetch_offsets(
            self._client,
            self._clock,
            membership.group_id,
            self._topic.name,
            membership.partitions,
            self._on_offset,
            require_stable=False,
        )
        order = list(committed)
        positions = {partition: max(offset, 0) for partition, offset in committed.items()}
        while True:
            self._random.shuffle(order)
            in_order = {partition: positions[partition] for partition in order}
            partition, records = yield from fetch_records(self._client, self._topic, in_order)
            for record in records:
                self._history.process(partition, record.offset)
                positions[partition] = self._positions[partition] = record.offset + 1
            if self._positions and self._random.random() < 0.5:
                yield from self._commit(membership)
            yield Sleep(self._random.randint(1, self._pace_ms))

    def _on_offset(self, sent_ms: int, partition: int, offset: int) -> None:
        self._history.check_offset(self._clock.now_ms, sent_ms, self._client.name, partition, offset)

    def _commit(self, membership: Membership) -> Script[None]:
        """Commit all positions; a refused commit is dropped, one without a response is repeated later."""
        commits = self._history.request_commit(self._client.name, membership.generation, self._positions)
        request = commit_request(membership, self._topic.name, self._positions)
        reply = yield Send(self._client, request, COMMIT_VERSION)
        answers = {part.partition_index: part for part in reply.topics[0].partitions} if reply is not None else {}
        for commit in commits:
            answer = answers.get(commit.partition)
            self._settle(commit, None if answer is None else answer.error_code)

    def _settle(self, commit: OffsetCommit, code: int | None) -> None:
        if code == ErrorCode.NONE:
            self._history.settle(self._clock.now_ms, commit, Fate.DONE)
            if self._positions.get(commit.partition) == commit.offset:
                del self._positions[commit.partition]
        elif code in NOT_A_MEMBER:
            self._history.settle(self._clock.now_ms, commit, Fate.REFUSED)
