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


class ReplicaHost:
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
def host(make_batch: Callable[..., memoryview]) -> ReplicaHost:
    return ReplicaHost(make_batch)


# While running.


def test_a_new_topic_is_opened_where_it_lives(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME, OTHER, ME]))
    assert host.open_names() == ["pond-0", "pond-2"]
    assert host.folders() == ["pond-0", "pond-2"]
    partition = host.partitions.by_id(POND, 2)
    assert partition is not None
    assert (partition.topic_id, partition.log.topic_id, partition.leader_epoch) == (POND, POND, 2)
    host.append("pond")


def test_a_topic_may_grow(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME]))
    host.append("pond")
    host.commit(PartitionRecord(1, POND, (ME,), (ME,), leader=ME))
    assert host.open_names() == ["pond-0", "pond-1"]
    assert host.partitions.get("pond", 0).log.end_offset == 1  # type: ignore[union-attr]


def test_a_deleted_topic_is_gone_at_once_and_its_files_go_later(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME, ME]), *created("weir", WEIR, [ME]))
    host.append("pond")
    log = host.partitions.get("pond", 0).log  # type: ignore[union-attr]
    host.commit(RemoveTopicRecord(POND))
    assert host.open_names() == ["weir-0"]
    assert log.closed
    assert "pond-0" not in host.folders()
    assert len(host.folders()) == 3, "two wait for their removal"
    for job in host.removals:
        job.run()
    assert host.folders() == ["weir-0"]


def test_a_name_may_be_used_again_at_once(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME]))
    host.append("pond")
    host.commit(RemoveTopicRecord(POND))
    host.commit(*created("pond", WEIR, [ME]))
    fresh = host.partitions.get("pond", 0)
    assert fresh is not None
    assert (fresh.topic_id, fresh.log.end_offset) == (WEIR, 0)


def test_a_topic_that_comes_and_goes_in_one_step_leaves_nothing(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME]), RemoveTopicRecord(POND))
    assert (host.open_names(), host.folders()) == ([], [])


def test_a_new_leader_epoch_reaches_the_partition(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME, OTHER]))
    host.commit(PartitionChangeRecord(0, POND, leader=ME), PartitionChangeRecord(1, POND, leader=OTHER))
    assert host.partitions.get("pond", 0).leader_epoch == 1  # type: ignore[union-attr]


def test_changed_settings_reach_the_topic_they_are_for(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME, ME]), *created("weir", WEIR, [ME]))
    host.commit(
        ConfigRecord(ResourceType.TOPIC, "pond", "retention.ms", "5"),
        ConfigRecord(ResourceType.TOPIC, "pond", "flush.ack", "never"),
        ConfigRecord(ResourceType.TOPIC, "gone", "flush.ack", "never"),
    )
    told = [(each.log.limits.retention_ms, each.acknowledges_after_sync) for each in host.partitions]
    usual = LogLimits().retention_ms
    assert told == [(5, False), (5, False), (usual, True)]
    host.commit(ConfigRecord(ResourceType.TOPIC, "pond", "retention.ms", None))
    assert [each.log.limits.retention_ms for each in host.partitions] == [usual] * 3


def test_a_setting_of_the_broker_reaches_all_who_have_none_of_their_own(host: ReplicaHost) -> None:
    host.commit(
        *created("pond", POND, [ME]),
        ConfigRecord(ResourceType.TOPIC, "pond", "flush.messages", "9"),
        *created("weir", WEIR, [ME]),
    )
    host.texts = {"log.flush.interval.messages": "4"}
    assert [each.flush_messages for each in host.partitions] == [9, FOREVER]
    host.commit(ConfigRecord(ResourceType.BROKER, "", "log.flush.interval.messages", "4"))
    assert [each.flush_messages for each in host.partitions] == [9, 4]


def test_settings_that_come_with_the_topic_hold_from_the_first_record(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME]), ConfigRecord(ResourceType.TOPIC, "pond", "max.message.bytes", "10"))
    assert host.partitions.get("pond", 0).log.limits.max_message_bytes == 10  # type: ignore[union-attr]


def test_a_partition_that_cannot_be_made_is_reported_and_tried_again(host: ReplicaHost) -> None:
    host.disk.open_files_max = host.disk.open_files
    host.commit(*created("pond", POND, [ME]))
    host.commit(*created("weir", WEIR, [ME]))
    assert host.open_names() == []
    assert "partition cannot be opened" in host.journal[0]
    assert "pond-0" in host.journal[0]
    host.clock.run_for(2 * REOPEN_MS)
    assert host.open_names() == []
    host.commit(RemoveTopicRecord(WEIR))
    host.disk.open_files_max = 1000
    host.clock.run_for(REOPEN_MS)
    assert host.open_names() == ["pond-0"]
    assert host.clock.pending() == 0


# Many at once: a few in each turn of the loop.

MANY = 3 * AT_ONCE


def test_many_partitions_are_made_a_few_in_each_turn(host: ReplicaHost) -> None:
    followed = host.commit(*created("pond", POND, [ME] * MANY))
    assert (len(host.partitions), followed.ended) == (AT_ONCE, False)
    assert len(host.folders()) == AT_ONCE
    assert host.keeper.is_to_open(POND)
    assert [host.keeper.is_to_open(POND, index) for index in (0, MANY - 1, MANY)] == [False, True, False]
    assert [host.turn(), host.turn(), host.turn()] == [2 * AT_ONCE, MANY, MANY]
    assert followed.ended
    assert not host.keeper.is_to_open(POND)
    assert host.clock.pending() == 0


def test_a_turn_ends_sooner_while_the_disk_is_slow(host: ReplicaHost, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder = host.disk.make_folder

    def slowly(path: str) -> None:
        host.clock.now_ms += 2 * TURN_MS
        make_folder(path)

    monkeypatch.setattr(host.disk, "make_folder", slowly)
    host.commit(*created("pond", POND, [ME] * 3))
    assert [len(host.partitions), host.turn(), host.turn()] == [1, 2, 3]


def test_many_partitions_go_at_once_for_clients_and_a_few_in_each_turn_on_the_disk(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME] * MANY))
    host.clock.run_for(1)
    followed = host.commit(RemoveTopicRecord(POND))
    assert (host.open_names(), len(host.removals), followed.ended) == ([], AT_ONCE, False)
    host.clock.run_for(1)
    assert (len(host.removals), followed.ended, host.store.logs) == (MANY, True, {})


def test_a_topic_that_is_deleted_while_it_is_made_leaves_nothing(host: ReplicaHost) -> None:
    made = host.commit(*created("pond", POND, [ME] * MANY))
    host.turn()
    assert host.keeper.name_of(POND) == "pond"
    deleted = host.commit(RemoveTopicRecord(POND))
    assert host.open_names() == []
    host.clock.run_for(1)
    assert (made.ended, deleted.ended, len(host.removals)) == (True, True, 2 * AT_ONCE)
    for job in host.removals:
        job.run()
    assert (host.open_names(), host.folders(), host.journal) == ([], [], [])
    assert not host.keeper.is_to_open(POND)


def test_a_name_is_used_again_while_its_first_topic_is_made_and_deleted(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME] * MANY))
    host.append("pond")
    host.commit(RemoveTopicRecord(POND))
    followed = host.commit(*created("pond", WEIR, [ME] * MANY))
    assert host.open_names() == [], "the old folders go first"
    host.clock.run_for(1)
    assert followed.ended
    assert len(host.partitions.of_topic(WEIR)) == len(host.partitions) == MANY
    assert {(each.log.topic_id, each.log.end_offset) for each in host.partitions} == {(WEIR, 0)}


def test_what_changes_meanwhile_holds_for_those_that_are_made_later(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME] * MANY))
    host.commit(
        PartitionChangeRecord(MANY - 1, POND, leader=ME),
        ConfigRecord(ResourceType.TOPIC, "pond", "retention.ms", "5"),
    )
    host.clock.run_for(1)
    assert host.partitions.get("pond", MANY - 1).leader_epoch == MANY  # type: ignore[union-attr]
    assert {each.log.limits.retention_ms for each in host.partitions} == {5}


def test_a_change_that_makes_nothing_does_not_wait_for_one_that_does(host: ReplicaHost) -> None:
    made = host.commit(*created("pond", POND, [ME] * MANY))
    assert host.commit(ConfigRecord(ResourceType.TOPIC, "pond", "retention.ms", "5")).ended
    followed = host.keeper.followed()
    host.clock.run_for(1)
    assert made.ended
    assert followed.ended


def test_a_crash_while_a_topic_is_made(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME] * MANY))
    host.append("pond")
    host.boot()
    host.keeper.open_all()
    assert len(host.partitions) == MANY
    assert host.journal == []


def test_a_node_that_stops_makes_nothing_more_but_takes_away_what_is_deleted(host: ReplicaHost) -> None:
    host.commit(*created("weir", WEIR, [ME] * MANY))
    host.clock.run_for(1)
    deleted = host.commit(RemoveTopicRecord(WEIR))
    made = host.commit(*created("pond", POND, [ME] * MANY))
    host.keeper.stop()
    assert (made.ended, deleted.ended) == (True, True)
    assert len(host.removals) == len(host.folders()) == MANY
    host.commit(*created("late", UUID(int=9), [ME]))
    host.clock.run_for(1)
    assert (host.open_names(), host.store.logs) == ([], {})
    host.store.close()
    host.boot()
    host.keeper.open_all()
    assert len(host.partitions.of_topic(POND)) == MANY
    assert host.journal == []


# Starting.


def test_a_start_opens_what_the_metadata_has(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME, OTHER]), *created("weir", WEIR, [ME]))
    host.commit(ConfigRecord(ResourceType.TOPIC, "weir", "retention.ms", "5"))
    host.append("pond")
    host.store.close()
    host.boot()
    host.keeper.open_all()
    assert host.open_names() == ["pond-0", "weir-0"]
    assert host.partitions.get("pond", 0).log.end_offset == 1  # type: ignore[union-attr]
    assert host.partitions.get("weir", 0).log.limits.retention_ms == 5  # type: ignore[union-attr]
    assert host.journal == []


def test_a_partition_that_is_missing_on_the_disk_begins_empty(host: ReplicaHost) -> None:
    for record in created("pond", POND, [ME]):
        host.image.replay(record)
    host.keeper.open_all()
    assert host.open_names() == host.folders() == ["pond-0"]


def test_a_folder_that_belongs_to_no_topic_is_set_aside(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME]), *created("weir", WEIR, [ME]))
    host.append("pond")
    host.store.close()
    host.image.replay(RemoveTopicRecord(POND))
    host.boot()
    host.keeper.open_all()
    assert host.open_names() == ["weir-0"]
    (stray,) = (name for name in host.folders() if name.startswith("pond-0"))
    assert stray.endswith("-stray")
    assert host.disk.size(f"/data/{stray}/00000000000000000000.log") > 0
    assert stray in host.journal[0]


def test_a_folder_that_cannot_be_opened_and_belongs_to_no_topic_leaves_its_name_to_the_next_one(
    host: ReplicaHost,
) -> None:
    host.commit(*created("pond", POND, [ME]), *created("weir", WEIR, [ME]))
    host.append("pond")
    host.store.close()
    for name in host.disk.list("/data/pond-0"):
        host.disk.remove(f"/data/pond-0/{name}")
    host.image.replay(RemoveTopicRecord(POND))
    host.boot()
    assert list(host.store.failed) == [TopicPartition("pond", 0)]
    host.keeper.open_all()
    assert not host.store.failed
    host.commit(*created("pond", UUID(int=9), [ME]))
    assert sorted(host.open_names()) == ["pond-0", "weir-0"]


def test_a_damaged_folder_of_an_earlier_topic_leaves_its_name_to_the_new_one(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME]))
    host.append("pond")
    host.store.close()
    host.disk.remove("/data/pond-0/00000000000000000000.log")
    for record in (RemoveTopicRecord(POND), *created("pond", WEIR, [ME])):
        host.image.replay(record)
    host.boot()
    assert TopicPartition("pond", 0) in host.store.damaged
    host.keeper.open_all()
    fresh = host.partitions.get("pond", 0)
    assert fresh is not None
    assert (fresh.log.end_offset, fresh.log.topic_id) == (0, WEIR)


def test_a_folder_of_an_earlier_topic_of_that_name_is_set_aside(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME]))
    host.append("pond")
    host.store.close()
    for record in (RemoveTopicRecord(POND), *created("pond", WEIR, [ME])):
        host.image.replay(record)
    host.boot()
    host.keeper.open_all()
    fresh = host.partitions.get("pond", 0)
    assert fresh is not None
    assert (fresh.log.end_offset, fresh.log.topic_id) == (0, WEIR)
    assert any(name.endswith("-stray") for name in host.folders())


@pytest.mark.parametrize("has_records", [False, True])
def test_a_folder_without_an_owner_is_kept_only_while_it_is_empty(host: ReplicaHost, has_records: bool) -> None:
    log = host.store.create(TopicPartition("pond", 0), NO_TOPIC_ID)
    if has_records:
        log.append(host.batch(b"v"), leader_epoch=0, now_ms=WALL_START_MS)
    for record in created("pond", POND, [ME]):
        host.image.replay(record)
    host.keeper.open_all()
    kept = host.partitions.get("pond", 0)
    assert kept is not None
    assert (kept.log.end_offset, kept.log.topic_id) == (0, POND)
    assert (kept.log is log) is not has_records
    assert any(name.endswith("-stray") for name in host.folders()) is has_records


def test_the_metadata_log_is_not_a_stray(host: ReplicaHost) -> None:
    host.store.create(TopicPartition(METADATA_TOPIC, 0), UUID(int=1))
    host.keeper.open_all()
    assert host.folders() == [f"{METADATA_TOPIC}-0"]
    assert host.journal == []


# Partitions that could not be opened at first.


def test_a_name_waits_until_the_workers_have_done_with_it(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME]))
    host.append("pond")
    old = host.partitions.get("pond", 0).log  # type: ignore[union-attr]
    ticket = old.sync_target()
    host.commit(RemoveTopicRecord(POND))
    host.commit(*created("pond", WEIR, [ME]))
    host.clock.run_for(10 * LEAVING_MS)
    assert host.open_names() == []
    old.synced(ticket)
    host.clock.run_for(LEAVING_MS)
    assert host.open_names() == ["pond-0"]
    assert host.partitions.get("pond", 0).topic_id == WEIR  # type: ignore[union-attr]
    assert host.clock.pending() == 0


def reopened_after_trouble(host: ReplicaHost) -> None:
    """Start while the disk fails, repair the disk, wait."""
    host.store.close()
    host.disk.fail_reads("pond-0", times=None)
    host.boot()
    host.keeper.open_all()
    assert host.open_names() == []
    host.clock.run_for(REOPEN_MS)
    host.disk.heal()
    host.clock.run_for(2 * REOPEN_MS)


def test_a_fault_of_the_disk_at_the_start_may_pass(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME]))
    host.append("pond")
    reopened_after_trouble(host)
    assert host.open_names() == ["pond-0"]
    assert host.partitions.get("pond", 0).log.end_offset == 1  # type: ignore[union-attr]
    assert [line.split(" {")[0] for line in host.journal] == [
        "partition cannot be opened",
        "partition cannot be opened",
        "partition is open now",
    ]
    assert host.late == [1]
    assert host.clock.pending() == 0


def test_a_log_opened_late_may_be_a_stray(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME]))
    host.append("pond")
    host.image.replay(RemoveTopicRecord(POND))
    for record in created("pond", WEIR, [ME]):
        host.image.replay(record)
    reopened_after_trouble(host)
    assert host.partitions.get("pond", 0).log.end_offset == 0  # type: ignore[union-attr]
    assert [name for name in host.folders() if name.endswith("-stray")]


def test_damage_is_told_and_left_to_a_person(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME]))
    host.append("pond")
    host.store.close()
    host.disk.remove("/data/.kafka_cleanshutdown")
    host.disk.flip_bit(f"/data/pond-0/{0:020d}.log", 30)
    host.boot()
    host.keeper.open_all()
    assert host.open_names() == []
    assert "cannot be opened" in host.journal[0]
    assert host.clock.pending() == 0


# Roles.


def replicated(leader: int, epoch: int = 3, isr: tuple[int, ...] = (ME, OTHER)) -> list[Record]:
    return [
        TopicRecord("pond", POND),
        PartitionRecord(0, POND, (ME, OTHER), isr, leader=leader, leader_epoch=epoch, partition_epoch=1),
    ]


def test_a_replica_follows_its_leader_and_leads_when_it_is_told(host: ReplicaHost) -> None:
    host.commit(*replicated(OTHER))
    partition = host.partitions.get("pond", 0)
    assert partition is not None
    assert (partition.is_leader, host.fetchers.leaders) == (False, {"pond-0": (OTHER, 3)})
    host.commit(PartitionChangeRecord(0, POND, isr=(OTHER,)))
    assert host.fetchers.leaders == {"pond-0": (OTHER, 3)}, "who is in sync changes nothing for a follower"
    host.commit(PartitionChangeRecord(0, POND, isr=(ME,), leader=ME))
    assert (partition.is_leader, partition.leader_epoch, host.fetchers.leaders) == (True, 4, {})
    host.commit(PartitionChangeRecord(0, POND, leader=OTHER))
    assert (partition.is_leader, host.fetchers.leaders) == (False, {"pond-0": (OTHER, 5)})
    host.commit(PartitionChangeRecord(0, POND, leader=-1))
    assert (partition.is_leader, host.fetchers.leaders) == (False, {})


def test_a_log_that_is_being_cut_takes_its_role_when_that_is_over(host: ReplicaHost) -> None:
    host.commit(*replicated(OTHER))
    partition = host.partitions.get("pond", 0)
    assert partition is not None
    host.fetchers.cutting.add("pond-0")
    host.commit(PartitionChangeRecord(0, POND, leader=ME))
    assert not partition.is_leader
    host.fetchers.cutting.clear()
    host.keeper.give_role(partition)
    assert (partition.is_leader, partition.leader_epoch) == (True, 4)


def test_what_is_deleted_or_moved_away_is_followed_no_more(host: ReplicaHost) -> None:
    host.commit(*replicated(OTHER))
    host.commit(PartitionChangeRecord(0, POND, replicas=(OTHER,), isr=(OTHER,)))
    assert (host.fetchers.leaders, host.open_names(), len(host.removals)) == ({}, [], 1)
    host.commit(PartitionChangeRecord(0, POND, replicas=(OTHER, ME)))
    assert host.open_names() == ["pond-0"]
    host.commit(RemoveTopicRecord(POND))
    assert (host.fetchers.leaders, host.open_names()) == ({}, [])


def test_a_replica_that_moves_away_before_it_is_its_turn_leaves_nothing(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME] * MANY))
    while host.turn() < MANY:
        pass
    host.boot()
    host.keeper.open_all(at_once=False)
    assert len(host.partitions) < MANY, "the last one is not open yet"
    host.commit(PartitionChangeRecord(MANY - 1, POND, replicas=(OTHER,), isr=(OTHER,), leader=OTHER))
    while host.turn() < MANY - 1:
        pass
    host.turn()
    assert TopicPartition("pond", MANY - 1) not in host.store.logs
    assert len(host.removals) == 1


def test_a_topic_that_is_deleted_before_it_is_opened_leaves_nothing(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME] * MANY))
    while host.turn() < MANY:
        pass
    host.boot()
    host.keeper.open_all(at_once=False)
    host.commit(RemoveTopicRecord(POND))
    while host.clock.pending():
        host.turn()
    assert (host.store.logs, len(host.removals)) == ({}, MANY)


def test_a_replica_begins_where_it_was_committed_before(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME]))
    for _ in range(5):
        host.append("pond")
    host.image = Image()
    host.boot()
    host.noted[POND, 0] = 3
    host.commit(*replicated(OTHER))
    partition = host.partitions.get("pond", 0)
    assert partition is not None
    assert (partition.committed_offset, partition.log.end_offset) == (3, 5)


def test_an_image_that_has_caught_up_by_a_leap_decides_what_stays(host: ReplicaHost) -> None:
    host.commit(*created("weir", WEIR, [ME]), *created("pond", POND, [ME]))
    host.image.replay(RemoveTopicRecord(WEIR))
    host.image.replay(PartitionChangeRecord(0, POND, leader=ME))
    host.keeper.open_all(at_once=False)
    assert host.open_names() == ["pond-0"]
    assert host.partitions.by_id(POND, 0).leader_epoch == 1  # type: ignore[union-attr]
    assert any("set aside" in line for line in host.journal)


def test_a_damaged_replica_is_recreated_once_it_is_not_in_sync(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME]))
    host.append("pond")
    host.image = Image()
    log = host.store.get(TopicPartition("pond", 0))
    assert log is not None
    ticket = log.sync_target()
    ticket.run()
    log.synced(ticket)
    host.store.checkpoint()
    file = host.disk.open("/data/pond-0/00000000000000000000.log")
    file.truncate(20)
    file.close()
    host.boot()
    assert TopicPartition("pond", 0) in host.store.damaged
    host.commit(*replicated(OTHER))
    assert host.open_names() == [], "it is in sync, as others believe"
    host.commit(PartitionChangeRecord(0, POND, isr=(OTHER,)))
    assert (host.open_names(), host.fetchers.leaders) == (["pond-0"], {"pond-0": (OTHER, 3)})
    partition = host.partitions.get("pond", 0)
    assert partition is not None
    assert partition.log.end_offset == 0
    assert any("damaged replica set aside" in line for line in host.journal)


def test_a_topic_that_went_before_its_turn_leaves_nothing_to_the_next_of_its_name(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME]))
    host.append("pond")
    host.boot()
    host.keeper.open_all(at_once=False)
    # It is opened at once here; one of many would still be closed.
    partition = host.partitions.get("pond", 0)
    assert partition is not None
    host.partitions.remove(partition)
    host.commit(RemoveTopicRecord(POND))
    host.commit(*created("pond", WEIR, [ME]))
    fresh = host.partitions.get("pond", 0)
    assert fresh is not None
    assert (fresh.topic_id, fresh.log.end_offset) == (WEIR, 0)


def test_what_is_told_twice_is_opened_once(host: ReplicaHost) -> None:
    host.commit(*replicated(OTHER))
    partition = host.partitions.get("pond", 0)
    host.keeper.on_records(replicated(OTHER))
    assert host.partitions.get("pond", 0) is partition


# Missing folders.


def test_a_replica_whose_folder_is_gone_does_not_begin_at_record_0_while_others_count_on_it(
    host: ReplicaHost,
) -> None:
    """As leader it would have the others truncate to nothing."""
    host.commit(*replicated(ME))
    host.append("pond")
    host.store.get(TopicPartition("pond", 0)).close()  # type: ignore[union-attr]
    host.store.checkpoint()
    host.disk.remove_folder("/data/pond-0")
    host.boot()
    host.keeper.open_all()
    assert (host.open_names(), host.confessions) == ([], [0])
    assert "its folder is missing" in host.journal[0]
    host.clock.run_for(REOPEN_MS)
    assert (host.open_names(), host.confessions) == ([], [0]), "it is said once"
    host.commit(PartitionChangeRecord(0, POND, leader=OTHER, isr=(OTHER,)))
    assert host.open_names() == ["pond-0"]
    assert host.fetchers.leaders == {"pond-0": (OTHER, 4)}


def test_a_folder_of_a_topic_that_was_deleted_just_before_a_crash_is_not_missed(host: ReplicaHost) -> None:
    host.commit(*replicated(ME), *created("weir", WEIR, [ME]))
    host.append("weir")
    for log in host.store.logs.values():
        log.close()
    host.store.checkpoint()
    host.commit(RemoveTopicRecord(WEIR))
    for job in host.removals:
        job.run()
    host.boot()
    assert host.store.missing == {TopicPartition("weir", 0)}
    host.keeper.open_all()
    assert not host.store.missing
    assert host.confessions == []


def test_the_only_replica_begins_anew_when_its_folder_is_gone(host: ReplicaHost) -> None:
    host.commit(*created("pond", POND, [ME]))
    host.append("pond")
    host.store.close()
    host.disk.remove_folder("/data/pond-0")
    host.boot()
    host.keeper.open_all()
    assert host.open_names() == ["pond-0"]
