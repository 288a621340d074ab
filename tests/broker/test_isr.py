"""Which ISR changes a leader requests, when, and how it handles the responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from tests.support.partitions import ME, partition_context, view

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import TopicPartition
from millpond.base.later import Later
from millpond.broker.replication.isr import PARTITIONS_PER_REQUEST_MAX, RECHECK_MS, RETRY_DELAY_MS, IsrKeeper
from millpond.broker.replication.leader_role import AILING_MS
from millpond.broker.replication.partitions import Partition, Partitions
from millpond.log.limits import LogLimits
from millpond.log.store import LogStore
from millpond.replication.leader import PartitionView
from millpond.sim.world.clock import VirtualClock
from millpond.sim.world.disk import SimDisk
from millpond.sim.world.entropy import SeededEntropy
from millpond.wire import messages as m

TOPIC_ID = UUID(int=7)
LAG_MS = 10_000


class IsrLeader:
    """Node 1 leads partitions with replicas 1, 2, 3; the test plays the controller and the followers."""

    def __init__(self, make_batch: Callable[..., memoryview], partitions: int = 1) -> None:
        self.clock = VirtualClock()
        disk = self.disk = SimDisk()
        store = LogStore(disk, "/data", LogLimits(), SeededEntropy(1))
        store.open(0)
        self.partitions = Partitions()
        self.asked: list[tuple[Any, Later[Any]]] = []
        self.journal: list[tuple[str, dict[str, Any]]] = []
        self.keeper = IsrKeeper(
            node_id=ME,
            clock=self.clock,
            partitions=self.partitions,
            lag_ms_max=lambda: LAG_MS,
            broker_epoch_of=lambda _: 77,
            ask_controller=self._ask,
            journal=lambda event, **facts: self.journal.append((event, facts)),
        )
        self.welcome = {2, 3}
        context = partition_context(
            disk,
            self.clock,
            on_isr_change=self.keeper.check_soon,
            can_join=lambda broker, _: broker in self.welcome,
            resign_leadership=self.keeper.resign_leadership,
        )
        for index in range(partitions):
            name = TopicPartition("pond", index)
            partition = Partition(name, TOPIC_ID, store.create(name, TOPIC_ID), context)
            self.partitions.add(partition)
            partition.apply_metadata(view(ME, 5, 10, "123", "12"))
        self.batch = make_batch
        self.keeper.start()

    def _ask(self, request: Any, version: int, timeout_ms: int) -> Later[Any]:
        assert (request.broker_id, request.broker_epoch, version) == (ME, 77, 3)
        later: Later[Any] = Later()
        self.asked.append((request, later))
        return later

    @property
    def pond(self) -> Partition:
        return next(iter(self.partitions))

    def append(self) -> None:
        self.pond.append(self.batch(b"v"), zstd=True)

    def fetch(self, node_id: int, offset: int, partition: Partition | None = None, *, start_offset: int = 0) -> None:
        leader_role = (partition or self.pond).leader_role
        assert leader_role is not None
        leader_role.on_fetch(node_id, 1, offset, start_offset)
        self.clock.run_for(1)

    def wanted(self) -> list[dict[int, str]]:
        """The ISRs requested so far, by request and by partition."""
        return [
            {
                part.partition_index: "".join(str(each.broker_id) for each in part.new_isr_with_epochs)
                for part in request.topics[0].partitions
            }
            for request, _ in self.asked
        ]

    def answer(self, error: ErrorCode, number: int = -1, epoch: int = 11) -> None:
        request, later = self.asked[number]
        kind = m.AlterPartitionResponse
        parts = [
            kind.PartitionData(partition_index=part.partition_index, error_code=error, partition_epoch=epoch)
            for part in request.topics[0].partitions
        ]
        later.finish(kind(topics=[kind.TopicData(topic_id=TOPIC_ID, partitions=parts)]))


@pytest.fixture
def leader(make_batch: Callable[..., memoryview]) -> IsrLeader:
    return IsrLeader(make_batch)


def test_a_replica_that_has_caught_up_joins_at_once(leader: IsrLeader) -> None:
    leader.append()
    leader.fetch(2, 1)
    leader.fetch(3, 0)
    assert leader.wanted() == []
    leader.fetch(3, 1)
    assert leader.wanted() == [{0: "123"}]
    assert leader.journal == [
        (
            "requesting ISR expansion",
            {"partition": "pond-0", "isr": [1, 2], "new_isr": [1, 2, 3], "more_partitions": 0},
        )
    ]
    (part,) = leader.asked[0][0].topics[0].partitions
    assert (part.leader_epoch, part.partition_epoch) == (5, 10)
    assert [each.broker_epoch for each in part.new_isr_with_epochs] == [-1, 1, 1]


def test_one_request_for_each_partition_and_one_message_for_all(
    make_batch: Callable[..., memoryview],
) -> None:
    leader = IsrLeader(make_batch, 3)
    for partition in leader.partitions:
        assert partition.leader_role is not None
        partition.leader_role.on_fetch(3, 1, 0, 0)
    leader.clock.run_for(1)
    assert leader.wanted() == [{0: "123", 1: "123", 2: "123"}]
    leader.fetch(3, 0)
    leader.clock.run_for(2 * LAG_MS)
    assert len(leader.asked) == 1, "the first request is unanswered"


def test_who_is_asked_to_join_counts_before_the_controller_agrees(leader: IsrLeader) -> None:
    leader.append()
    leader.fetch(2, 1)
    leader.fetch(3, 1)
    leader.append()
    leader.fetch(2, 2)
    assert leader.pond.committed_offset == 1, "3 may be in sync by now"
    leader.answer(ErrorCode.INELIGIBLE_REPLICA)
    assert leader.pond.committed_offset == 1, "a copy of the request may be in flight"
    assert leader.wanted() == [{0: "123"}, {0: "12"}]
    leader.answer(ErrorCode.NONE)
    leader.pond.apply_metadata(view(ME, 5, 11, "123", "12"))
    leader.clock.run_for(1)
    assert leader.pond.committed_offset == 2


def test_a_withdrawal_is_sent_again_until_the_metadata_tells(leader: IsrLeader) -> None:
    leader.append()
    leader.fetch(2, 1)
    leader.fetch(3, 1)
    leader.answer(ErrorCode.INELIGIBLE_REPLICA)
    leader.answer(ErrorCode.NOT_CONTROLLER)
    leader.clock.run_for(RETRY_DELAY_MS + 1)
    assert leader.wanted() == [{0: "123"}, {0: "12"}, {0: "12"}]


def test_a_controller_that_raises_no_epoch_leaves_nothing_open(leader: IsrLeader) -> None:
    """A controller of an earlier version."""
    leader.append()
    leader.fetch(2, 1)
    leader.fetch(3, 1)
    leader.append()
    leader.fetch(2, 2)
    leader.welcome.remove(3)
    leader.answer(ErrorCode.INELIGIBLE_REPLICA)
    leader.answer(ErrorCode.NONE, epoch=10)
    assert leader.pond.committed_offset == 2
    leader.clock.run_for(2 * RETRY_DELAY_MS)
    assert len(leader.asked) == 2


def test_a_replica_that_falls_behind_leaves_after_the_lag_time(leader: IsrLeader) -> None:
    leader.append()
    leader.clock.run_for(LAG_MS - 1)
    assert leader.wanted() == []
    leader.clock.run_for(LAG_MS)
    assert leader.wanted() == [{0: "1"}]
    assert [event for event, _ in leader.journal] == ["requesting ISR shrink"]
    assert leader.pond.committed_offset == 0, "it counts until the controller agrees"
    leader.pond.apply_metadata(view(ME, 5, 11, "123", "1"))
    leader.clock.run_for(50)
    assert leader.pond.committed_offset == 1


def test_who_has_everything_stays_however_long_nothing_is_written(leader: IsrLeader) -> None:
    leader.append()
    leader.fetch(2, 1)
    leader.clock.run_for(5 * LAG_MS)
    assert leader.wanted() == []


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.NOT_CONTROLLER, ErrorCode.INVALID_UPDATE_VERSION])
def test_the_same_is_asked_again_until_the_metadata_tells(leader: IsrLeader, error: ErrorCode) -> None:
    leader.fetch(3, 0)
    leader.answer(error)
    leader.clock.run_for(RETRY_DELAY_MS + 1)
    assert leader.wanted() == [{0: "123"}] * 2
    leader.answer(error)
    leader.pond.apply_metadata(view(ME, 5, 11, "123", "123"))
    leader.clock.run_for(3 * RETRY_DELAY_MS)
    assert len(leader.asked) == 2


def test_a_controller_that_cannot_be_found_is_asked_again(leader: IsrLeader) -> None:
    leader.fetch(3, 0)
    leader.asked[0][1].fail(Refused(ErrorCode.NOT_CONTROLLER))
    leader.clock.run_for(RETRY_DELAY_MS + 1)
    assert leader.wanted() == [{0: "123"}] * 2


def test_an_answer_to_an_earlier_leadership_changes_nothing(leader: IsrLeader) -> None:
    leader.fetch(3, 0)
    leader.pond.apply_metadata(view(ME, 6, 11, "123", "12"))
    leader_role = leader.pond.leader_role
    assert leader_role is not None
    leader.fetch(3, 0)
    assert len(leader.asked) == 1, "one message at a time"
    request = leader_role.pending
    leader.answer(ErrorCode.INELIGIBLE_REPLICA, 0)
    assert leader_role.pending is request is not None
    assert len(leader.asked) == 2
    leader.clock.run_for(3 * RETRY_DELAY_MS)
    assert len(leader.asked) == 2


def test_of_many_partitions_some_are_asked_for_at_a_time(make_batch: Callable[..., memoryview]) -> None:
    leader = IsrLeader(make_batch, PARTITIONS_PER_REQUEST_MAX + 3)
    for partition in leader.partitions:
        assert partition.leader_role is not None
        partition.leader_role.on_fetch(3, 1, 0, 0)
    leader.clock.run_for(1)
    while len(leader.asked) < 10 and not leader.asked[-1][1].ended:
        leader.answer(ErrorCode.NONE)
    sizes = [len(each) for each in leader.wanted()]
    assert max(sizes) <= PARTITIONS_PER_REQUEST_MAX
    assert sum(sizes) == PARTITIONS_PER_REQUEST_MAX + 3


def test_a_leader_that_may_lack_records_says_that_it_has_recovered(leader: IsrLeader) -> None:
    leader.pond.apply_metadata(PartitionView(ME, 6, 11, (1, 2, 3), (1,), is_recovering=True))
    leader.clock.run_for(1)
    assert leader.wanted() == [{0: "1"}]
    assert [event for event, _ in leader.journal] == ["requesting ISR confirmation"]


def test_a_loop_that_stood_still_reads_first_and_judges_then(leader: IsrLeader) -> None:
    leader.append()
    leader.fetch(2, 1)
    leader.clock.run_for(LAG_MS // 2 - 10)
    leader.append()
    # The check that is due now runs late: no fetch could be received during the stall.
    timer = leader.keeper._timer
    assert timer is not None
    timer.cancel()
    leader.clock.call_later(3 * LAG_MS, leader.keeper._on_check_timer)
    leader.clock.run_for(3 * LAG_MS - 1)
    leader.fetch(3, 2)
    assert leader.wanted() == [], "3 has caught up; whether 2 keeps up is not known yet"
    leader.fetch(2, 2)
    leader.clock.run_for(RECHECK_MS + 1)
    assert leader.wanted() == [{0: "123"}]


def test_a_broker_that_is_welcome_again_need_not_fetch_first(leader: IsrLeader) -> None:
    leader.welcome.discard(3)
    leader.fetch(3, 0)
    leader.clock.run_for(10)
    assert leader.wanted() == []
    leader.welcome.add(3)
    leader.keeper.check_all()
    assert leader.wanted() == [{0: "123"}]


def test_a_keeper_that_was_stopped_asks_for_nothing(leader: IsrLeader) -> None:
    leader.keeper.stop()
    leader.append()
    leader.fetch(3, 1)
    leader.clock.run_for(3 * LAG_MS)
    assert leader.wanted() == []


# A disk that stops writing.


def test_a_leader_whose_log_has_failed_gives_the_leadership_away(leader: IsrLeader) -> None:
    leader.append()
    leader.pond.log.fail(OSError("it has failed"))
    with pytest.raises(Refused):
        leader.append()
    leader.clock.run_for(1)
    assert leader.wanted() == [{0: "2"}]
    leader.answer(ErrorCode.NOT_CONTROLLER)
    leader.clock.run_for(RETRY_DELAY_MS)
    assert leader.wanted() == [{0: "2"}] * 2
    leader.pond.apply_metadata(view(2, 6, 11, "123", "2"))
    leader.clock.run_for(3 * RETRY_DELAY_MS)
    assert len(leader.asked) == 2


def test_a_failed_log_without_requests_is_found_by_the_next_check(leader: IsrLeader) -> None:
    leader.fetch(2, 0)
    leader.pond.log.fail(OSError("it has failed"))
    leader.clock.run_for(LAG_MS)
    assert {0: "2"} in leader.wanted()


def test_a_leader_that_cannot_write_removes_no_replica(leader: IsrLeader) -> None:
    leader.append()
    leader.fetch(2, 0)
    leader.pond.log.fail(OSError("it has failed"))
    for _ in range(5):
        leader.clock.run_for(LAG_MS)
        leader.answer(ErrorCode.NOT_CONTROLLER)
    assert all(each == {0: "2"} for each in leader.wanted())
    assert leader.pond.leader_role is not None
    assert leader.pond.leader_role.pending is None, "no replica can fetch from it, so a lagging one says nothing"


def test_a_leader_that_cannot_write_gives_way_to_who_has_everything_committed(
    leader: IsrLeader,
) -> None:
    leader.pond.apply_metadata(PartitionView(ME, 5, 11, (1, 2, 3), (1,), elr=(3,)))
    leader.pond.log.fail(OSError("it has failed"))
    leader.clock.run_for(LAG_MS)
    assert {0: "3"} in leader.wanted()
    assert {0: "2"} not in leader.wanted()


def test_without_another_in_sync_the_leadership_stays(leader: IsrLeader) -> None:
    leader.welcome.discard(2)
    leader.pond.log.fail(OSError("it has failed"))
    with pytest.raises(Refused):
        leader.append()
    leader.clock.run_for(3 * RETRY_DELAY_MS)
    assert leader.wanted() == []
    leader.welcome.add(2)
    leader.clock.run_for(RETRY_DELAY_MS)
    assert leader.wanted()[:1] == [{0: "2"}]


@pytest.mark.parametrize("heals", [True, False])
def test_a_full_disk_moves_the_leadership_unless_there_is_room_again_soon(leader: IsrLeader, heals: bool) -> None:
    leader.append()
    leader.disk.fill(0)
    with pytest.raises(Refused):
        leader.append()
    leader.clock.run_for(AILING_MS // 2)
    if heals:
        leader.disk.make_room()
        leader.append()
    leader.clock.run_for(AILING_MS)
    assert leader.wanted()[:1] == ([] if heals else [{0: "2"}])


def test_a_replica_that_does_not_know_where_the_log_begins_does_not_join(leader: IsrLeader) -> None:
    """An acknowledged DeleteRecords would be undone if this replica led next."""
    leader.append()
    leader.fetch(2, 1)
    leader.pond.log.delete_before(1)
    leader.fetch(3, 1)
    leader.clock.run_for(2 * LAG_MS)
    assert leader.wanted() == []
    leader.fetch(3, 1, start_offset=1)
    assert leader.wanted() == [{0: "123"}]
