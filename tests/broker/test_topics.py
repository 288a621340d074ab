"""Logs follow the metadata: opened, added, configured, deleted; folders that belong to no topic are set aside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from tests.support.partitions import partition_context

from millpond.base.ids import NO_TOPIC_ID, TopicPartition
from millpond.base.later import Later
from millpond.broker.replication.partitions import Partition, Partitions
from millpond.broker.replication.replica_manager import AT_ONCE, LEAVING_MS, REOPEN_MS, TURN_MS, ReplicaManager
from millpond.config.effective import NodeLayers
from millpond.config.node import node_settings
from millpond.log.limits import FOREVER, LogLimits
from millpond.log.store import LogStore
from millpond.metadata.image import Image
from millpond.metadata.records import (
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RemoveTopicRecord,
    ResourceType,
    TopicRecord,
)
from millpond.metadata.topics import METADATA_TOPIC
from millpond.sim.world.clock import WALL_START_MS, VirtualClock
from millpond.sim.world.disk import SimDisk
from millpond.sim.world.entropy import SeededEntropy

ME, OTHER = 1, 2
POND, WEIR = UUID(int=7), UUID(int=8)


def created(name: str, topic_id: UUID, replicas: list[int]) -> list[Record]:
    """The records of a new topic: one partition for each replica."""
    return [
        TopicRecord(name, topic_id),
        *(
            PartitionRecord(index, topic_id, (replica,), (replica,), leader=replica, leader_epoch=index)
            for index, replica in enumerate(replicas)
        ),
    ]


class Fetchers:
    """Records who follows whom."""

    def __init__(self) -> None:
        self.leaders: dict[str, tuple[int, int]] = {}
        self.cutting: set[str] = set()

    def follow(self, partition: Partition) -> None:
        assert partition.follower is not None
        self.leaders[partition.name.folder] = partition.follower.leader, partition.follower.leader_epoch

    def forget(self, partition: Partition) -> None:
        self.leaders.pop(partition.name.folder, None)

    def is_cutting(self, partition: Partition) -> bool:
        return partition.name.folder in self.cutting


class Play:
    def __init__(self, make_batch: Callable[..., memoryview]) -> None:
        self.disk = SimDisk()
        self.clock = VirtualClock()
        self.image = Image()
        self.texts: dict[str, str] = {}
        self.journal: list[str] = []
        self.removals: list[Any] = []
        self.late: list[int] = []
        self.confessions: list[int] = []
        self.fetchers = Fetchers()
        self.noted: dict[tuple[UUID, int], int] = {}
        self.batch = make_batch
        self.boot()

    def boot(self) -> None:
        """Start, or restart after the process was killed."""
        self.disk.drop_process()
        self.store = LogStore(self.disk, "/data", LogLimits(), SeededEntropy(1))
        self.store.open(0)
        self.partitions = Partitions()
        self.keeper = ReplicaManager(
            node_id=ME,
            image=self.image,
            store=self.store,
            partitions=self.partitions,
            layers=lambda: NodeLayers(node_settings(self.texts)),
            clock=self.clock,
            context=partition_context(self.disk, self.clock, node_id=ME),
            fetchers=self.fetchers,
            high_watermark=lambda topic_id, index: self.noted.get((topic_id, index), 0),
            remove_later=self.removals.append,
            journal=lambda event, **facts: self.journal.append(f"{event} {facts}"),
            on_late=lambda: self.late.append(len(self.partitions.of_topic(POND))),
            report_lost_records=lambda: self.confessions.append(len(self.partitions)),
        )

    def commit(self, *records: Record) -> Later[None]:
        """Do what the controller does: replay, then notify."""
        for record in records:
            self.image.replay(record)
        return self.keeper.on_records(records)

    def turn(self) -> int:
        """Run one turn of the loop, and return the number of open partitions."""
        self.clock.step()
        return len(self.partitions)

    def open_names(self) -> list[str]:
        return [partition.name.folder for partition in self.partitions]

    def folders(self) -> list[str]:
        return [name for name in self.disk.list("/data") if name != ".lock"]

    def append(self, topic: str, index: int = 0) -> None:
        partition = self.partitions.get(topic, index)
        assert partition is not None
        partition.append(self.batch(b"v", timestamp=WALL_START_MS), zstd=True)


@pytest.fixture
def play(make_batch: Callable[..., memoryview]) -> Play:
    return Play(make_batch)


# While running.


def test_a_new_topic_is_opened_where_it_lives(play: Play) -> None:
    play.commit(*created("pond", POND, [ME, OTHER, ME]))
    assert play.open_names() == ["pond-0", "pond-2"]
    assert play.folders() == ["pond-0", "pond-2"]
    partition = play.partitions.by_id(POND, 2)
    assert partition is not None
    assert (partition.topic_id, partition.log.topic_id, partition.leader_epoch) == (POND, POND, 2)
    play.append("pond")


def test_a_topic_may_grow(play: Play) -> None:
    play.commit(*created("pond", POND, [ME]))
    play.append("pond")
    play.commit(PartitionRecord(1, POND, (ME,), (ME,), leader=ME))
    assert play.open_names() == ["pond-0", "pond-1"]
    assert play.partitions.get("pond", 0).log.end_offset == 1  # type: ignore[union-attr]


def test_a_deleted_topic_is_gone_at_once_and_its_files_go_later(play: Play) -> None:
    play.commit(*created("pond", POND, [ME, ME]), *created("weir", WEIR, [ME]))
    play.append("pond")
    log = play.partitions.get("pond", 0).log  # type: ignore[union-attr]
    play.commit(RemoveTopicRecord(POND))
    assert play.open_names() == ["weir-0"]
    assert log.closed
    assert "pond-0" not in play.folders()
    assert len(play.folders()) == 3, "two wait for their removal"
    for job in play.removals:
        job.run()
    assert play.folders() == ["weir-0"]


def test_a_name_may_be_used_again_at_once(play: Play) -> None:
    play.commit(*created("pond", POND, [ME]))
    play.append("pond")
    play.commit(RemoveTopicRecord(POND))
    play.commit(*created("pond", WEIR, [ME]))
    fresh = play.partitions.get("pond", 0)
    assert fresh is not None
    assert (fresh.topic_id, fresh.log.end_offset) == (WEIR, 0)


def test_a_topic_that_comes_and_goes_in_one_step_leaves_nothing(play: Play) -> None:
    play.commit(*created("pond", POND, [ME]), RemoveTopicRecord(POND))
    assert (play.open_names(), play.folders()) == ([], [])


def test_a_new_leader_epoch_reaches_the_partition(play: Play) -> None:
    play.commit(*created("pond", POND, [ME, OTHER]))
    play.commit(PartitionChangeRecord(0, POND, leader=ME), PartitionChangeRecord(1, POND, leader=OTHER))
    assert play.partitions.get("pond", 0).leader_epoch == 1  # type: ignore[union-attr]


def test_changed_settings_reach_the_topic_they_are_for(play: Play) -> None:
    play.commit(*created("pond", POND, [ME, ME]), *created("weir", WEIR, [ME]))
    play.commit(
        ConfigRecord(ResourceType.TOPIC, "pond", "retention.ms", "5"),
        ConfigRecord(ResourceType.TOPIC, "pond", "flush.ack", "never"),
        ConfigRecord(ResourceType.TOPIC, "gone", "flush.ack", "never"),
    )
    told = [(each.log.limits.retention_ms, each.acknowledges_after_sync) for each in play.partitions]
    usual = LogLimits().retention_ms
    assert told == [(5, False), (5, False), (usual, True)]
    play.commit(ConfigRecord(ResourceType.TOPIC, "pond", "retention.ms", None))
    assert [each.log.limits.retention_ms for each in play.partitions] == [usual] * 3


def test_a_setting_of_the_broker_reaches_all_who_have_none_of_their_own(play: Play) -> None:
    play.commit(
        *created("pond", POND, [ME]),
        ConfigRecord(ResourceType.TOPIC, "pond", "flush.messages", "9"),
        *created("weir", WEIR, [ME]),
    )
    play.texts = {"log.flush.interval.messages": "4"}
    assert [each.flush_messages for each in play.partitions] == [9, FOREVER]
    play.commit(ConfigRecord(ResourceType.BROKER, "", "log.flush.interval.messages", "4"))
    assert [each.flush_messages for each in play.partitions] == [9, 4]


def test_settings_that_come_with_the_topic_hold_from_the_first_record(play: Play) -> None:
    play.commit(*created("pond", POND, [ME]), ConfigRecord(ResourceType.TOPIC, "pond", "max.message.bytes", "10"))
    assert play.partitions.get("pond", 0).log.limits.max_message_bytes == 10  # type: ignore[union-attr]


def test_a_partition_that_cannot_be_made_is_reported_and_tried_again(play: Play) -> None:
    play.disk.open_files_max = play.disk.open_files
    play.commit(*created("pond", POND, [ME]))
    play.commit(*created("weir", WEIR, [ME]))
    assert play.open_names() == []
    assert "partition cannot be opened" in play.journal[0]
    assert "pond-0" in play.journal[0]
    play.clock.run_for(2 * REOPEN_MS)
    assert play.open_names() == []
    play.commit(RemoveTopicRecord(WEIR))
    play.disk.open_files_max = 1000
    play.clock.run_for(REOPEN_MS)
    assert play.open_names() == ["pond-0"]
    assert play.clock.pending() == 0


# Many at once: a few in each turn of the loop.

MANY = 3 * AT_ONCE


def test_many_partitions_are_made_a_few_in_each_turn(play: Play) -> None:
    followed = play.commit(*created("pond", POND, [ME] * MANY))
    assert (len(play.partitions), followed.ended) == (AT_ONCE, False)
    assert len(play.folders()) == AT_ONCE
    assert play.keeper.is_to_open(POND)
    assert [play.keeper.is_to_open(POND, index) for index in (0, MANY - 1, MANY)] == [False, True, False]
    assert [play.turn(), play.turn(), play.turn()] == [2 * AT_ONCE, MANY, MANY]
    assert followed.ended
    assert not play.keeper.is_to_open(POND)
    assert play.clock.pending() == 0


def test_a_turn_ends_sooner_while_the_disk_is_slow(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder = play.disk.make_folder

    def slowly(path: str) -> None:
        play.clock.now_ms += 2 * TURN_MS
        make_folder(path)

    monkeypatch.setattr(play.disk, "make_folder", slowly)
    play.commit(*created("pond", POND, [ME] * 3))
    assert [len(play.partitions), play.turn(), play.turn()] == [1, 2, 3]


def test_many_partitions_go_at_once_for_clients_and_a_few_in_each_turn_on_the_disk(play: Play) -> None:
    play.commit(*created("pond", POND, [ME] * MANY))
    play.clock.run_for(1)
    followed = play.commit(RemoveTopicRecord(POND))
    assert (play.open_names(), len(play.removals), followed.ended) == ([], AT_ONCE, False)
    play.clock.run_for(1)
    assert (len(play.removals), followed.ended, play.store.logs) == (MANY, True, {})


def test_a_topic_that_is_deleted_while_it_is_made_leaves_nothing(play: Play) -> None:
    made = play.commit(*created("pond", POND, [ME] * MANY))
    play.turn()
    assert play.keeper.name_of(POND) == "pond"
    deleted = play.commit(RemoveTopicRecord(POND))
    assert play.open_names() == []
    play.clock.run_for(1)
    assert (made.ended, deleted.ended, len(play.removals)) == (True, True, 2 * AT_ONCE)
    for job in play.removals:
        job.run()
    assert (play.open_names(), play.folders(), play.journal) == ([], [], [])
    assert not play.keeper.is_to_open(POND)


def test_a_name_is_used_again_while_its_first_topic_is_made_and_deleted(play: Play) -> None:
    play.commit(*created("pond", POND, [ME] * MANY))
    play.append("pond")
    play.commit(RemoveTopicRecord(POND))
    followed = play.commit(*created("pond", WEIR, [ME] * MANY))
    assert play.open_names() == [], "the old folders go first"
    play.clock.run_for(1)
    assert followed.ended
    assert len(play.partitions.of_topic(WEIR)) == len(play.partitions) == MANY
    assert {(each.log.topic_id, each.log.end_offset) for each in play.partitions} == {(WEIR, 0)}


def test_what_changes_meanwhile_holds_for_those_that_are_made_later(play: Play) -> None:
    play.commit(*created("pond", POND, [ME] * MANY))
    play.commit(
        PartitionChangeRecord(MANY - 1, POND, leader=ME),
        ConfigRecord(ResourceType.TOPIC, "pond", "retention.ms", "5"),
    )
    play.clock.run_for(1)
    assert play.partitions.get("pond", MANY - 1).leader_epoch == MANY  # type: ignore[union-attr]
    assert {each.log.limits.retention_ms for each in play.partitions} == {5}


def test_a_change_that_makes_nothing_does_not_wait_for_one_that_does(play: Play) -> None:
    made = play.commit(*created("pond", POND, [ME] * MANY))
    assert play.commit(ConfigRecord(ResourceType.TOPIC, "pond", "retention.ms", "5")).ended
    followed = play.keeper.followed()
    play.clock.run_for(1)
    assert made.ended
    assert followed.ended


def test_a_crash_while_a_topic_is_made(play: Play) -> None:
    play.commit(*created("pond", POND, [ME] * MANY))
    play.append("pond")
    play.boot()
    play.keeper.open_all()
    assert len(play.partitions) == MANY
    assert play.journal == []


def test_a_node_that_stops_makes_nothing_more_but_takes_away_what_is_deleted(play: Play) -> None:
    play.commit(*created("weir", WEIR, [ME] * MANY))
    play.clock.run_for(1)
    deleted = play.commit(RemoveTopicRecord(WEIR))
    made = play.commit(*created("pond", POND, [ME] * MANY))
    play.keeper.stop()
    assert (made.ended, deleted.ended) == (True, True)
    assert len(play.removals) == len(play.folders()) == MANY
    play.commit(*created("late", UUID(int=9), [ME]))
    play.clock.run_for(1)
    assert (play.open_names(), play.store.logs) == ([], {})
    play.store.close()
    play.boot()
    play.keeper.open_all()
    assert len(play.partitions.of_topic(POND)) == MANY
    assert play.journal == []


# Starting.


def test_a_start_opens_what_the_metadata_has(play: Play) -> None:
    play.commit(*created("pond", POND, [ME, OTHER]), *created("weir", WEIR, [ME]))
    play.commit(ConfigRecord(ResourceType.TOPIC, "weir", "retention.ms", "5"))
    play.append("pond")
    play.store.close()
    play.boot()
    play.keeper.open_all()
    assert play.open_names() == ["pond-0", "weir-0"]
    assert play.partitions.get("pond", 0).log.end_offset == 1  # type: ignore[union-attr]
    assert play.partitions.get("weir", 0).log.limits.retention_ms == 5  # type: ignore[union-attr]
    assert play.journal == []


def test_a_partition_that_is_missing_on_the_disk_begins_empty(play: Play) -> None:
    for record in created("pond", POND, [ME]):
        play.image.replay(record)
    play.keeper.open_all()
    assert play.open_names() == play.folders() == ["pond-0"]


def test_a_folder_that_belongs_to_no_topic_is_set_aside(play: Play) -> None:
    play.commit(*created("pond", POND, [ME]), *created("weir", WEIR, [ME]))
    play.append("pond")
    play.store.close()
    play.image.replay(RemoveTopicRecord(POND))
    play.boot()
    play.keeper.open_all()
    assert play.open_names() == ["weir-0"]
    (stray,) = (name for name in play.folders() if name.startswith("pond-0"))
    assert stray.endswith("-stray")
    assert play.disk.size(f"/data/{stray}/00000000000000000000.log") > 0
    assert stray in play.journal[0]


def test_a_folder_that_cannot_be_opened_and_belongs_to_no_topic_leaves_its_name_to_the_next_one(play: Play) -> None:
    play.commit(*created("pond", POND, [ME]), *created("weir", WEIR, [ME]))
    play.append("pond")
    play.store.close()
    for name in play.disk.list("/data/pond-0"):
        play.disk.remove(f"/data/pond-0/{name}")
    play.image.replay(RemoveTopicRecord(POND))
    play.boot()
    assert list(play.store.failed) == [TopicPartition("pond", 0)]
    play.keeper.open_all()
    assert not play.store.failed
    play.commit(*created("pond", UUID(int=9), [ME]))
    assert sorted(play.open_names()) == ["pond-0", "weir-0"]


def test_a_damaged_folder_of_an_earlier_topic_leaves_its_name_to_the_new_one(play: Play) -> None:
    play.commit(*created("pond", POND, [ME]))
    play.append("pond")
    play.store.close()
    play.disk.remove("/data/pond-0/00000000000000000000.log")
    for record in (RemoveTopicRecord(POND), *created("pond", WEIR, [ME])):
        play.image.replay(record)
    play.boot()
    assert TopicPartition("pond", 0) in play.store.damaged
    play.keeper.open_all()
    fresh = play.partitions.get("pond", 0)
    assert fresh is not None
    assert (fresh.log.end_offset, fresh.log.topic_id) == (0, WEIR)


def test_a_folder_of_an_earlier_topic_of_that_name_is_set_aside(play: Play) -> None:
    play.commit(*created("pond", POND, [ME]))
    play.append("pond")
    play.store.close()
    for record in (RemoveTopicRecord(POND), *created("pond", WEIR, [ME])):
        play.image.replay(record)
    play.boot()
    play.keeper.open_all()
    fresh = play.partitions.get("pond", 0)
    assert fresh is not None
    assert (fresh.log.end_offset, fresh.log.topic_id) == (0, WEIR)
    assert any(name.endswith("-stray") for name in play.folders())


@pytest.mark.parametrize("has_records", [False, True])
def test_a_folder_without_an_owner_is_kept_only_while_it_is_empty(play: Play, has_records: bool) -> None:
    log = play.store.create(TopicPartition("pond", 0), NO_TOPIC_ID)
    if has_records:
        log.append(play.batch(b"v"), leader_epoch=0, now_ms=WALL_START_MS)
    for record in created("pond", POND, [ME]):
        play.image.replay(record)
    play.keeper.open_all()
    kept = play.partitions.get("pond", 0)
    assert kept is not None
    assert (kept.log.end_offset, kept.log.topic_id) == (0, POND)
    assert (kept.log is log) is not has_records
    assert any(name.endswith("-stray") for name in play.folders()) is has_records


def test_the_metadata_log_is_nobodys_stray(play: Play) -> None:
    play.store.create(TopicPartition(METADATA_TOPIC, 0), UUID(int=1))
    play.keeper.open_all()
    assert play.folders() == [f"{METADATA_TOPIC}-0"]
    assert play.journal == []


# Partitions that could not be opened at first.


def test_a_name_waits_until_the_workers_have_done_with_it(play: Play) -> None:
    play.commit(*created("pond", POND, [ME]))
    play.append("pond")
    old = play.partitions.get("pond", 0).log  # type: ignore[union-attr]
    ticket = old.sync_target()
    play.commit(RemoveTopicRecord(POND))
    play.commit(*created("pond", WEIR, [ME]))
    play.clock.run_for(10 * LEAVING_MS)
    assert play.open_names() == []
    old.synced(ticket)
    play.clock.run_for(LEAVING_MS)
    assert play.open_names() == ["pond-0"]
    assert play.partitions.get("pond", 0).topic_id == WEIR  # type: ignore[union-attr]
    assert play.clock.pending() == 0


def reopened_after_trouble(play: Play) -> None:
    """Start while the disk fails, repair the disk, wait."""
    play.store.close()
    play.disk.fail_reads("pond-0", times=None)
    play.boot()
    play.keeper.open_all()
    assert play.open_names() == []
    play.clock.run_for(REOPEN_MS)
    play.disk.heal()
    play.clock.run_for(2 * REOPEN_MS)


def test_a_fault_of_the_disk_at_the_start_may_pass(play: Play) -> None:
    play.commit(*created("pond", POND, [ME]))
    play.append("pond")
    reopened_after_trouble(play)
    assert play.open_names() == ["pond-0"]
    assert play.partitions.get("pond", 0).log.end_offset == 1  # type: ignore[union-attr]
    assert [line.split(" {")[0] for line in play.journal] == [
        "partition cannot be opened",
        "partition cannot be opened",
        "partition is open now",
    ]
    assert play.late == [1]
    assert play.clock.pending() == 0


def test_what_is_found_late_may_belong_to_nobody(play: Play) -> None:
    play.commit(*created("pond", POND, [ME]))
    play.append("pond")
    play.image.replay(RemoveTopicRecord(POND))
    for record in created("pond", WEIR, [ME]):
        play.image.replay(record)
    reopened_after_trouble(play)
    assert play.partitions.get("pond", 0).log.end_offset == 0  # type: ignore[union-attr]
    assert [name for name in play.folders() if name.endswith("-stray")]


def test_damage_is_told_and_left_to_a_person(play: Play) -> None:
    play.commit(*created("pond", POND, [ME]))
    play.append("pond")
    play.store.close()
    play.disk.remove("/data/.kafka_cleanshutdown")
    play.disk.flip_bit(f"/data/pond-0/{0:020d}.log", 30)
    play.boot()
    play.keeper.open_all()
    assert play.open_names() == []
    assert "cannot be opened" in play.journal[0]
    assert play.clock.pending() == 0


# Roles.


def replicated(leader: int, epoch: int = 3, isr: tuple[int, ...] = (ME, OTHER)) -> list[Record]:
    return [
        TopicRecord("pond", POND),
        PartitionRecord(0, POND, (ME, OTHER), isr, leader=leader, leader_epoch=epoch, partition_epoch=1),
    ]


def test_a_replica_follows_its_leader_and_leads_when_it_is_told(play: Play) -> None:
    play.commit(*replicated(OTHER))
    partition = play.partitions.get("pond", 0)
    assert partition is not None
    assert (partition.is_leader, play.fetchers.leaders) == (False, {"pond-0": (OTHER, 3)})
    play.commit(PartitionChangeRecord(0, POND, isr=(OTHER,)))
    assert play.fetchers.leaders == {"pond-0": (OTHER, 3)}, "who is in sync changes nothing for a follower"
    play.commit(PartitionChangeRecord(0, POND, isr=(ME,), leader=ME))
    assert (partition.is_leader, partition.leader_epoch, play.fetchers.leaders) == (True, 4, {})
    play.commit(PartitionChangeRecord(0, POND, leader=OTHER))
    assert (partition.is_leader, play.fetchers.leaders) == (False, {"pond-0": (OTHER, 5)})
    play.commit(PartitionChangeRecord(0, POND, leader=-1))
    assert (partition.is_leader, play.fetchers.leaders) == (False, {})


def test_a_log_that_is_being_cut_takes_its_role_when_that_is_over(play: Play) -> None:
    play.commit(*replicated(OTHER))
    partition = play.partitions.get("pond", 0)
    assert partition is not None
    play.fetchers.cutting.add("pond-0")
    play.commit(PartitionChangeRecord(0, POND, leader=ME))
    assert not partition.is_leader
    play.fetchers.cutting.clear()
    play.keeper.give_role(partition)
    assert (partition.is_leader, partition.leader_epoch) == (True, 4)


def test_what_is_deleted_or_moved_away_is_followed_no_more(play: Play) -> None:
    play.commit(*replicated(OTHER))
    play.commit(PartitionChangeRecord(0, POND, replicas=(OTHER,), isr=(OTHER,)))
    assert (play.fetchers.leaders, play.open_names(), len(play.removals)) == ({}, [], 1)
    play.commit(PartitionChangeRecord(0, POND, replicas=(OTHER, ME)))
    assert play.open_names() == ["pond-0"]
    play.commit(RemoveTopicRecord(POND))
    assert (play.fetchers.leaders, play.open_names()) == ({}, [])


def test_a_replica_that_moves_away_before_it_is_its_turn_leaves_nothing(play: Play) -> None:
    play.commit(*created("pond", POND, [ME] * MANY))
    while play.turn() < MANY:
        pass
    play.boot()
    play.keeper.open_all(at_once=False)
    assert len(play.partitions) < MANY, "the last one is not open yet"
    play.commit(PartitionChangeRecord(MANY - 1, POND, replicas=(OTHER,), isr=(OTHER,), leader=OTHER))
    while play.turn() < MANY - 1:
        pass
    play.turn()
    assert TopicPartition("pond", MANY - 1) not in play.store.logs
    assert len(play.removals) == 1


def test_a_topic_that_is_deleted_before_it_is_opened_leaves_nothing(play: Play) -> None:
    play.commit(*created("pond", POND, [ME] * MANY))
    while play.turn() < MANY:
        pass
    play.boot()
    play.keeper.open_all(at_once=False)
    play.commit(RemoveTopicRecord(POND))
    while play.clock.pending():
        play.turn()
    assert (play.store.logs, len(play.removals)) == ({}, MANY)


def test_a_replica_begins_where_it_was_committed_before(play: Play) -> None:
    play.commit(*created("pond", POND, [ME]))
    for _ in range(5):
        play.append("pond")
    play.image = Image()
    play.boot()
    play.noted[POND, 0] = 3
    play.commit(*replicated(OTHER))
    partition = play.partitions.get("pond", 0)
    assert partition is not None
    assert (partition.committed_offset, partition.log.end_offset) == (3, 5)


def test_an_image_that_has_caught_up_by_a_leap_decides_what_stays(play: Play) -> None:
    play.commit(*created("weir", WEIR, [ME]), *created("pond", POND, [ME]))
    play.image.replay(RemoveTopicRecord(WEIR))
    play.image.replay(PartitionChangeRecord(0, POND, leader=ME))
    play.keeper.open_all(at_once=False)
    assert play.open_names() == ["pond-0"]
    assert play.partitions.by_id(POND, 0).leader_epoch == 1  # type: ignore[union-attr]
    assert any("set aside" in line for line in play.journal)


def test_a_damaged_replica_begins_anew_once_nobody_counts_on_it(play: Play) -> None:
    play.commit(*created("pond", POND, [ME]))
    play.append("pond")
    play.image = Image()
    log = play.store.get(TopicPartition("pond", 0))
    assert log is not None
    ticket = log.sync_target()
    ticket.run()
    log.synced(ticket)
    play.store.checkpoint()
    file = play.disk.open("/data/pond-0/00000000000000000000.log")
    file.truncate(20)
    file.close()
    play.boot()
    assert TopicPartition("pond", 0) in play.store.damaged
    play.commit(*replicated(OTHER))
    assert play.open_names() == [], "it is in sync, as others believe"
    play.commit(PartitionChangeRecord(0, POND, isr=(OTHER,)))
    assert (play.open_names(), play.fetchers.leaders) == (["pond-0"], {"pond-0": (OTHER, 3)})
    partition = play.partitions.get("pond", 0)
    assert partition is not None
    assert partition.log.end_offset == 0
    assert any("begins anew" in line for line in play.journal)


def test_a_topic_that_went_before_its_turn_leaves_nothing_to_the_next_of_its_name(play: Play) -> None:
    play.commit(*created("pond", POND, [ME]))
    play.append("pond")
    play.boot()
    play.keeper.open_all(at_once=False)
    # It is opened at once here; one of many would still be closed.
    partition = play.partitions.get("pond", 0)
    assert partition is not None
    play.partitions.discard(partition)
    play.commit(RemoveTopicRecord(POND))
    play.commit(*created("pond", WEIR, [ME]))
    fresh = play.partitions.get("pond", 0)
    assert fresh is not None
    assert (fresh.topic_id, fresh.log.end_offset) == (WEIR, 0)


def test_what_is_told_twice_is_opened_once(play: Play) -> None:
    play.commit(*replicated(OTHER))
    partition = play.partitions.get("pond", 0)
    play.keeper.on_records(replicated(OTHER))
    assert play.partitions.get("pond", 0) is partition


# Missing folders.


def test_a_replica_whose_folder_is_gone_does_not_begin_at_record_0_while_others_count_on_it(play: Play) -> None:
    """As leader it would have the others truncate to nothing."""
    play.commit(*replicated(ME))
    play.append("pond")
    play.store.get(TopicPartition("pond", 0)).close()  # type: ignore[union-attr]
    play.store.checkpoint()
    play.disk.remove_folder("/data/pond-0")
    play.boot()
    play.keeper.open_all()
    assert (play.open_names(), play.confessions) == ([], [0])
    assert "its folder is gone" in play.journal[0]
    play.clock.run_for(REOPEN_MS)
    assert (play.open_names(), play.confessions) == ([], [0]), "it is said once"
    play.commit(PartitionChangeRecord(0, POND, leader=OTHER, isr=(OTHER,)))
    assert play.open_names() == ["pond-0"]
    assert play.fetchers.leaders == {"pond-0": (OTHER, 4)}


def test_a_folder_of_a_topic_that_was_deleted_just_before_a_crash_is_not_missed(play: Play) -> None:
    play.commit(*replicated(ME), *created("weir", WEIR, [ME]))
    play.append("weir")
    for log in play.store.logs.values():
        log.close()
    play.store.checkpoint()
    play.commit(RemoveTopicRecord(WEIR))
    for job in play.removals:
        job.run()
    play.boot()
    assert play.store.missing == {TopicPartition("weir", 0)}
    play.keeper.open_all()
    assert not play.store.missing
    assert play.confessions == []


def test_the_only_replica_begins_anew_when_its_folder_is_gone(play: Play) -> None:
    play.commit(*created("pond", POND, [ME]))
    play.append("pond")
    play.store.close()
    play.disk.remove_folder("/data/pond-0")
    play.boot()
    play.keeper.open_all()
    assert play.open_names() == ["pond-0"]
