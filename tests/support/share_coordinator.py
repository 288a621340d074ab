"""A share coordinator on a stage: what it writes is committed at once, and after each step it is loaded again."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from millpond.coordinators.shard import CoordinatorRecord, Effects, Request
from millpond.coordinators.shares.keys import SharePartition
from millpond.coordinators.shares.records import read_key
from millpond.coordinators.shares.shard import ShareCoordinatorSettings, ShareShard
from millpond.coordinators.shares.state_batches import RecordState
from millpond.wire import messages as m

TOPIC = UUID(int=7)
KINDS = {
    "available": RecordState.AVAILABLE,
    "accepted": RecordState.ACKNOWLEDGED,
    "archiving": RecordState.ARCHIVING,
    "archived": RecordState.ARCHIVED,
}
NAMES = {state: name for name, state in KINDS.items()}


class Coordinator:
    def __init__(self, updates_per_snapshot: int = 3) -> None:
        self.settings = ShareCoordinatorSettings(updates_per_snapshot, cold_interval_ms=1_000)
        self.topics = {TOPIC: 100}
        self.log: list[CoordinatorRecord] = []
        self.times: list[int] = []
        self.now_ms = 5_000
        self.shard = self._new()
        self.shard.on_loaded(self.now_ms)
        self.written: list[str] = []
        """The records of the last request."""

    def _new(self) -> ShareShard:
        return ShareShard(self.settings, lambda topic, partition: partition < self.topics.get(topic, 0))

    def reload(self) -> None:
        self.shard = self.replayed()
        self.shard.on_loaded(self.now_ms)

    def replayed(self, start: int = 0) -> ShareShard:
        """A shard loaded from the log, which begins at this offset."""
        shard = self._new()
        for offset in range(start, len(self.log)):
            shard.set_time(self.times[offset], self.times[offset])
            shard.replay(offset, *self.log[offset])
        return shard

    def take(self, effects: Effects) -> list[str]:
        for record in effects.records:
            self.shard.set_time(self.now_ms, self.now_ms)
            self.shard.replay(len(self.log), *record)
            self.log.append(record)
            self.times.append(self.now_ms)
        state = content(self.shard)
        assert content(self.replayed()) == state
        assert content(self.replayed(self.shard.first_needed_offset())) == state, "the rest of the log is not needed"
        return [_kind(record) for record in effects.records]

    def ask(self, body: m.Message, version: int = 0) -> Any:
        """The response, after a trip over the wire in the version that was asked in."""
        effects = self.shard.step(Request(body, version, "me"), self.now_ms)
        self.written = self.take(effects)
        ((token, response),) = effects.replies
        assert token == "me"
        return type(response).decode(response.encode(version), version)[0]

    # One partition of one topic.

    def initialise(self, state_epoch: int, start: int, *, partition: int = 0, topic: UUID = TOPIC) -> int:
        kind = m.InitializeShareGroupStateRequest
        given = kind.PartitionData(partition=partition, state_epoch=state_epoch, start_offset=start)
        body = kind(group_id="g", topics=[kind.InitializeStateData(topic_id=topic, partitions=[given])])
        return only(self.ask(body)).error_code

    def read(self, leader_epoch: int, *, partition: int = 0, topic: UUID = TOPIC) -> Any:
        kind = m.ReadShareGroupStateRequest
        given = kind.PartitionData(partition=partition, leader_epoch=leader_epoch)
        body = kind(group_id="g", topics=[kind.ReadStateData(topic_id=topic, partitions=[given])])
        got = only(self.ask(body))
        if got.error_code:
            return got.error_code
        return got.state_epoch, got.start_offset, shown(got.state_batches)

    def write(
        self,
        leader_epoch: int,
        start: int,
        *batches: tuple[int, int, str, int],
        state_epoch: int = 1,
        partition: int = 0,
        topic: UUID = TOPIC,
    ) -> int:
        kind = m.WriteShareGroupStateRequest
        given = kind.PartitionData(
            partition=partition,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start,
            state_batches=[
                kind.StateBatch(
                    first_offset=first, last_offset=last, delivery_state=KINDS[name], delivery_count=deliveries
                )
                for first, last, name, deliveries in batches
            ],
        )
        body = kind(group_id="g", topics=[kind.WriteStateData(topic_id=topic, partitions=[given])])
        return only(self.ask(body, 1)).error_code

    def delete(self, *, partition: int = 0, topic: UUID = TOPIC) -> int:
        kind = m.DeleteShareGroupStateRequest
        given = kind.PartitionData(partition=partition)
        body = kind(group_id="g", topics=[kind.DeleteStateData(topic_id=topic, partitions=[given])])
        return only(self.ask(body)).error_code

    def summary(self, *, partition: int = 0, topic: UUID = TOPIC) -> Any:
        kind = m.ReadShareGroupStateSummaryRequest
        given = kind.PartitionData(partition=partition, leader_epoch=0)
        body = kind(group_id="g", topics=[kind.ReadStateSummaryData(topic_id=topic, partitions=[given])])
        got = only(self.ask(body, 1))
        if got.error_code:
            return got.error_code
        return got.state_epoch, got.leader_epoch, got.start_offset, got.delivery_complete_count

    def pass_time(self, ms: int) -> list[str]:
        self.now_ms += ms
        return self.take(self.shard.on_timer(self.now_ms))


def only(response: Any) -> Any:
    ((result,),) = ([each.partitions for each in response.results],)
    (partition,) = result
    return partition


def shown(batches: Any) -> str:
    return ", ".join(
        f"{each.first_offset}-{each.last_offset} {NAMES[RecordState(each.delivery_state)]} x{each.delivery_count}"
        for each in batches
    )


def content(shard: ShareShard) -> dict[SharePartition, tuple[object, ...]]:
    """All that the records of a shard say."""
    return {
        key: (
            state.state_epoch,
            state.leader_epoch,
            state.start_offset,
            state.snapshot_epoch,
            state.snapshot_offset,
            state.snapshot_ms,
            state.updates,
            state.batches_written,
            state.snapshot_batches,
            state.batches(),
        )
        for key, state in shard.states.items()
    }


def _kind(record: CoordinatorRecord) -> str:
    found = read_key(record.key)
    assert found is not None
    kind = "update" if found[0] else "snapshot" if record.value is not None else "tombstone"
    return f"{kind} of {found[1].partition}"
