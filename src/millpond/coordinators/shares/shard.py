"""One partition of `__share_group_state`: the share coordinator for the share partitions that hash to it.

The leader of a partition reads the state when it begins to serve a share group, and writes what members acknowledge.
Each write is an update; after a number of updates it is a snapshot, and the records before that are superseded
(`first_needed_offset`). Two epochs fence writers: the state epoch, which rises when the state is initialised again,
and the epoch of the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Any, Final
from uuid import UUID

from millpond.base.errors import ErrorCode, MalformedMessage
from millpond.base.named_tuple import NamedTuple
from millpond.base.values import dataclass
from millpond.coordinators.shard import CoordinatorRecord, Effects, Request
from millpond.coordinators.shares.keys import SharePartition
from millpond.coordinators.shares.records import (
    SNAPSHOT_KEY,
    read_key,
    read_snapshot,
    read_update,
    snapshot_record,
    tombstone,
    update_record,
)
from millpond.coordinators.shares.state import NO_OFFSET, UNKNOWN_COUNT, ShareState, on_wire
from millpond.coordinators.shares.state_batches import RecordState, StateBatch, from_wire, to_wire
from millpond.wire import messages as m

SNAPSHOT_EPOCHS: Final = 1 << 16
"""Snapshot epochs are 16 bits wide and begin again at 0."""
SNAPSHOTS_AT_ONCE_MAX: Final = 100
"""Maximum snapshots of a sweep: they make one batch."""
SNAPSHOT_RANGES_AT_ONCE: Final = 500
"""A sweep takes no further snapshot once they have so many ranges."""
TOMBSTONES_AT_ONCE_MAX: Final = 1_000

WRITABLE_STATES: Final = frozenset(RecordState) - {RecordState.ACQUIRED}

UNINITIALISED: Final = "the state of this share partition has not been initialised"


@dataclass(frozen=True, slots=True)
class ShareCoordinatorSettings:
    updates_per_snapshot: int = 500
    """`share.coordinator.snapshot.update.records.per.snapshot`"""
    cold_interval_ms: int = 300_000
    """`share.coordinator.cold.partition.snapshot.interval.ms`"""


class Verdict(NamedTuple):
    """The result for one share partition: an error, or what to write."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    record: CoordinatorRecord | None = None


TopicExists = Callable[[UUID, int], bool]
"""Whether a topic of this id has this partition."""


class ShareShard:
    def __init__(self, settings: ShareCoordinatorSettings, topic_exists: TopicExists) -> None:
        self.settings = settings
        self.states: dict[SharePartition, ShareState] = {}
        self._topic_exists = topic_exists
        self._end_offset = 0
        self._at_ms = 0
        self._sweep_ms: int | None = None
        self._without_snapshot: set[SharePartition] = set()
        """Share partitions of which the log has updates, but not the snapshot before: a later one must follow."""

    # Requests

    def step(self, request: Request, now_ms: int) -> Effects:
        self._at_ms = now_ms
        effects = Effects()
        match request.body:
            case m.InitializeShareGroupStateRequest() as body:
                response: m.Message = self._initialise(body, effects)
            case m.ReadShareGroupStateRequest() as body:
                response = self._read(body, effects)
            case m.WriteShareGroupStateRequest() as body:
                response = self._write(body, effects)
            case m.DeleteShareGroupStateRequest() as body:
                response = self._delete(body, effects)
            case m.ReadShareGroupStateSummaryRequest() as body:
                response = self._summarise(body)
            case _:
                raise AssertionError(f"{type(request.body).__name__} is not for a share coordinator")
        effects.reply(request.reply_to, response)
        return effects

    def on_topics_deleted(self, topic_ids: Collection[UUID], now_ms: int) -> Effects:
        """Delete their state; `on_timer` deletes the rest if one step is not enough."""
        effects = self.forget_topics(topic_ids)
        if len(effects.records) == TOMBSTONES_AT_ONCE_MAX:
            self._sweep_ms = now_ms + 1
        return effects

    def forget_topics(self, topic_ids: Collection[UUID]) -> Effects:
        """Topics were deleted: delete their state, as far as one step goes. Call again while it returns records."""
        gone = (tombstone(each) for each in self.states if each.topic_id in topic_ids)
        return Effects(records=list(islice(gone, TOMBSTONES_AT_ONCE_MAX)))

    def _gone_topics(self) -> set[UUID]:
        """Topics that were deleted while no coordinator was loaded, or that one step did not finish."""
        known = {each.topic_id for each in self.states}
        return {each for each in known if not self._topic_exists(each, 0)}

    def first_needed_offset(self) -> int:
        """Everything before it in the log is superseded, and may be deleted as far as it is committed."""
        return min((each.snapshot_offset for each in self.states.values()), default=self._end_offset)

    def _initialise(self, body: m.InitializeShareGroupStateRequest, effects: Effects) -> m.Message:
        kind = m.InitializeShareGroupStateResponse
        decided: set[SharePartition] = set()
        results = []
        for topic in body.topics:
            partitions = []
            for each in topic.partitions:
                key = SharePartition(body.group_id, topic.topic_id, each.partition)
                verdict = self._checked(key, decided) or self._decide_initialise(
                    key, each.state_epoch, each.start_offset
                )
                partitions.append(kind.PartitionResult(**_result(key, verdict, effects)))
            results.append(kind.InitializeStateResult(topic_id=topic.topic_id, partitions=partitions))
        return kind(results=results)

    def _decide_initialise(self, key: SharePartition, state_epoch: int, start_offset: int) -> Verdict:
        known = self.states.get(key)
        if known is not None and known.state_epoch > state_epoch:
            return Verdict(ErrorCode.FENCED_STATE_EPOCH, f"the state epoch is {known.state_epoch}")
        if known is not None and known.state_epoch == state_epoch:
            # The retry of a request: since the first one, members may have finished records.
            return Verdict()
        if start_offset < NO_OFFSET:
            return Verdict(ErrorCode.INVALID_REQUEST, f"start offset {start_offset}")
        snapshot_epoch = 0 if known is None else (known.snapshot_epoch + 1) % SNAPSHOT_EPOCHS
        leader_epoch = 0 if known is None else known.leader_epoch
        state = ShareState(state_epoch, leader_epoch, start_offset, snapshot_epoch=snapshot_epoch)
        return Verdict(record=snapshot_record(key, state))

    def _read(self, body: m.ReadShareGroupStateRequest, effects: Effects) -> m.Message:
        """A leader reads with its epoch, which from then on fences the leaders before it."""
        kind = m.ReadShareGroupStateResponse
        decided: set[SharePartition] = set()
        results = []
        for topic in body.topics:
            partitions = []
            for given in topic.partitions:
                key = SharePartition(body.group_id, topic.topic_id, given.partition)
                verdict = self._checked(key, decided) or self._decide_read(key, given.leader_epoch)
                result = kind.PartitionResult(
                    **_result(key, verdict, effects), state_epoch=0, start_offset=NO_OFFSET, state_batches=[]
                )
                if verdict.error is ErrorCode.NONE:
                    state = self.states[key]
                    result.state_epoch, result.start_offset = state.state_epoch, state.start_offset
                    result.state_batches = [kind.StateBatch(**to_wire(batch)) for batch in state.batches()]
                partitions.append(result)
            results.append(kind.ReadStateResult(topic_id=topic.topic_id, partitions=partitions))
        return kind(results=results)

    def _decide_read(self, key: SharePartition, leader_epoch: int) -> Verdict:
        state = self.states.get(key)
        if state is None:
            return Verdict(ErrorCode.INVALID_REQUEST, UNINITIALISED)
        if leader_epoch < state.leader_epoch and leader_epoch != -1:
            return _fenced_leader(state)
        if leader_epoch <= state.leader_epoch:
            return Verdict()
        return Verdict(record=self._change(key, state, leader_epoch, state.start_offset, ()))

    def _write(self, body: m.WriteShareGroupStateRequest, effects: Effects) -> m.Message:
        kind = m.WriteShareGroupStateResponse
        decided: set[SharePartition] = set()
        results = []
        for topic in body.topics:
            partitions = []
            for each in topic.partitions:
                key = SharePartition(body.group_id, topic.topic_id, each.partition)
                verdict = self._checked(key, decided) or self._decide_write(key, each)
                partitions.append(kind.PartitionResult(**_result(key, verdict, effects)))
            results.append(kind.WriteStateResult(topic_id=topic.topic_id, partitions=partitions))
        return kind(results=results)

    def _decide_write(self, key: SharePartition, given: m.WriteShareGroupStateRequest.PartitionData) -> Verdict:
        state = self.states.get(key)
        if state is None:
            return Verdict(ErrorCode.INVALID_REQUEST, UNINITIALISED)
        if given.leader_epoch < state.leader_epoch:
            return _fenced_leader(state)
        if given.state_epoch != state.state_epoch:
            return Verdict(ErrorCode.FENCED_STATE_EPOCH, f"the state epoch is {state.state_epoch}")
        batches = _batches_of(given.state_batches)
        if batches is None:
            return Verdict(ErrorCode.INVALID_REQUEST, "a state batch is out of bounds")
        start = max(given.start_offset, state.start_offset)
        kept = [each._replace(first=max(each.first, start)) for each in batches if each.last >= start]
        return Verdict(record=self._change(key, state, given.leader_epoch, start, kept))

    def _delete(self, body: m.DeleteShareGroupStateRequest, effects: Effects) -> m.Message:
        """Also of topics that no longer exist; state that does not exist is deleted already."""
        kind = m.DeleteShareGroupStateResponse
        decided: set[SharePartition] = set()
        results = []
        for topic in body.topics:
            partitions = []
            for each in topic.partitions:
                key = SharePartition(body.group_id, topic.topic_id, each.partition)
                verdict = self._malformed(key, decided) or Verdict(
                    record=tombstone(key) if key in self.states else None
                )
                partitions.append(kind.PartitionResult(**_result(key, verdict, effects)))
            results.append(kind.DeleteStateResult(topic_id=topic.topic_id, partitions=partitions))
        return kind(results=results)

    def _summarise(self, body: m.ReadShareGroupStateSummaryRequest) -> m.Message:
        """For people: no leader is fenced, and what was never initialised has no start offset."""
        kind = m.ReadShareGroupStateSummaryResponse
        decided: set[SharePartition] = set()
        results = []
        for topic in body.topics:
            partitions = []
            for each in topic.partitions:
                key = SharePartition(body.group_id, topic.topic_id, each.partition)
                refusal = self._checked(key, decided) or Verdict()
                state = self.states.get(key) if refusal.error is ErrorCode.NONE else None
                partitions.append(
                    kind.PartitionResult(
                        partition=each.partition,
                        error_code=refusal.error,
                        error_message=refusal.message,
                        state_epoch=state.state_epoch if state else 0,
                        leader_epoch=state.leader_epoch if state else 0,
                        start_offset=state.start_offset if state else NO_OFFSET,
                        delivery_complete_count=on_wire(state.complete_count()) if state else UNKNOWN_COUNT,
                    )
                )
            results.append(kind.ReadStateSummaryResult(topic_id=topic.topic_id, partitions=partitions))
        return kind(results=results)

    # Time

    def on_timer(self, now_ms: int) -> Effects:
        """Write snapshots of partitions that keep superseded records of others in the log, because their own latest
        snapshot is far back."""
        self._at_ms = now_ms
        if self._sweep_ms is None or now_ms < self._sweep_ms:
            return Effects()
        if gone := self._gone_topics():
            return self.on_topics_deleted(gone, now_ms)
        # A sweep of all partitions must not give the next one a reason.
        behind = max(self.settings.updates_per_snapshot, 2 * len(self.states))
        cold = sorted(
            (state.snapshot_offset, key)
            for key, state in self.states.items()
            if now_ms - state.snapshot_ms >= self.settings.cold_interval_ms
            and self._end_offset - state.snapshot_offset > behind
        )
        count = ranges = 0
        while count < min(len(cold), SNAPSHOTS_AT_ONCE_MAX) and ranges < SNAPSHOT_RANGES_AT_ONCE:
            ranges += self.states[cold[count][1]].range_count
            count += 1
        # If there are more, the next sweep follows at once.
        self._sweep_ms = now_ms + (1 if len(cold) > count else self.settings.cold_interval_ms)
        return Effects(
            records=[
                self._snapshot(key, self.states[key], self.states[key].leader_epoch, NO_OFFSET, ())
                for _, key in cold[:count]
            ]
        )

    def next_deadline_ms(self) -> int | None:
        return self._sweep_ms

    # Records

    def set_time(self, now_ms: int, wall_ms: int) -> None:
        self._at_ms = now_ms

    def replay(self, offset: int, key: bytes, value: bytes | None) -> None:
        self._end_offset = offset + 1
        found = read_key(key)
        if found is None:
            return
        kind, partition = found
        if kind == SNAPSHOT_KEY:
            self._without_snapshot.discard(partition)
        if kind == SNAPSHOT_KEY and value is None:
            self.states.pop(partition, None)
        elif kind == SNAPSHOT_KEY and value is not None:
            state = self.states[partition] = read_snapshot(value)
            state.snapshot_offset, state.snapshot_ms = offset, self._at_ms
        elif value is not None:
            self._replay_update(partition, value)

    def on_loaded(self, now_ms: int) -> Effects:
        if self._without_snapshot:
            # Their state is incomplete: finished records would be delivered again.
            raise MalformedMessage(f"updates without their snapshots: {sorted(self._without_snapshot)[:3]}")
        self._at_ms = now_ms
        self._sweep_ms = now_ms + self.settings.cold_interval_ms
        return self.on_topics_deleted(self._gone_topics(), now_ms)

    def unload(self, code: ErrorCode) -> Effects:
        """Nothing is pending here: every request is answered in its own step."""
        return Effects()

    # Internals

    def _replay_update(self, partition: SharePartition, value: bytes) -> None:
        state = self.states.get(partition)
        update = read_update(value)
        if state is None:
            # Its snapshot was deleted with the start of the log, because a later one follows.
            self._without_snapshot.add(partition)
            return
        if update.snapshot_epoch != state.snapshot_epoch:
            raise MalformedMessage(f"an update of {partition} without its snapshot {update.snapshot_epoch}")
        state.merge(update.leader_epoch, update.start_offset, update.batches)
        state.updates += 1
        state.batches_written += len(update.batches)

    def _change(
        self,
        key: SharePartition,
        state: ShareState,
        leader_epoch: int,
        start_offset: int,
        batches: Sequence[StateBatch],
    ) -> CoordinatorRecord:
        """An update, or a snapshot if enough updates have followed the last one. After a large snapshot these must
        have as many state batches as it has, so that snapshots cost little more than updates."""
        is_due = state.updates >= self.settings.updates_per_snapshot
        if is_due and state.batches_written >= state.snapshot_batches:
            return self._snapshot(key, state, leader_epoch, start_offset, batches)
        return update_record(key, state.snapshot_epoch, leader_epoch, start_offset, batches)

    def _snapshot(
        self,
        key: SharePartition,
        state: ShareState,
        leader_epoch: int,
        start_offset: int,
        batches: Sequence[StateBatch],
    ) -> CoordinatorRecord:
        whole = state.merged(leader_epoch, start_offset, batches)
        whole.snapshot_epoch = (state.snapshot_epoch + 1) % SNAPSHOT_EPOCHS
        return snapshot_record(key, whole)

    def _checked(self, key: SharePartition, decided: set[SharePartition]) -> Verdict | None:
        """Why a request for this share partition is refused, if it is."""
        if refusal := self._malformed(key, decided):
            return refusal
        if not self._topic_exists(key.topic_id, key.partition):
            return Verdict(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no partition {key.partition} of {key.topic_id}")
        return None

    def _malformed(self, key: SharePartition, decided: set[SharePartition]) -> Verdict | None:
        if not key.group_id:
            return Verdict(ErrorCode.INVALID_REQUEST, "the group id is empty")
        if key.partition < 0:
            return Verdict(ErrorCode.INVALID_REQUEST, f"partition {key.partition}")
        if key in decided:
            # The second decision would not see the first.
            return Verdict(ErrorCode.INVALID_REQUEST, f"partition {key.partition} of {key.topic_id} is named twice")
        decided.add(key)
        return None


def _result(key: SharePartition, verdict: Verdict, effects: Effects) -> dict[str, Any]:
    """The fields that all results have; the record of the verdict is taken up."""
    if verdict.record is not None:
        effects.records.append(verdict.record)
    return {"partition": key.partition, "error_code": verdict.error, "error_message": verdict.message}


def _fenced_leader(state: ShareState) -> Verdict:
    return Verdict(ErrorCode.FENCED_LEADER_EPOCH, f"a leader with epoch {state.leader_epoch} has read the state")


def _batches_of(batches: Iterable[m.WriteShareGroupStateRequest.StateBatch]) -> list[StateBatch] | None:
    """None if a batch cannot be."""
    found = []
    for each in batches:
        has_offsets = 0 <= each.first_offset <= each.last_offset
        if not has_offsets or each.delivery_state not in WRITABLE_STATES or each.delivery_count < 0:
            return None
        found.append(from_wire(each))
    return found
