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
from millpond.broker.replication.isr import AGAIN_MS, ASKED_AT_ONCE, SECOND_LOOK_MS, IsrKeeper
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


class Play:
    """Node 1 leads partitions with replicas 1, 2, 3; the test plays the controller and the followers."""

    def __init__(self, make_batch: Callable[..., memoryview], partitions: int = 1) -> None:
        self.clock = VirtualClock()
        disk = self.disk = SimDisk()
        store = LogStore(disk, "/data", LogLimits(), SeededEntropy(1))
        store.open(0)
        self.partitions = Partitions()
        self.asked: list[tuple[Any, Later[Any]]] = []
        self.keeper = IsrKeeper(
            node_id=ME,
            clock=self.clock,
            partitions=self.partitions,
            lag_ms_max=lambda: LAG_MS,
            broker_epoch_of=lambda _: 77,
            ask_controller=self._ask,
            journal=lambda *_, **__: None,
        )
        self.welcome = {2, 3}
        context = partition_context(
            disk,
            self.clock,
            on_isr_change=self.keeper.look_soon,
            can_join=lambda broker, _: broker in self.welcome,
            give_away=self.keeper.give_away,
        )
        for index in range(partitions):
            name = TopicPartition("pond", index)
            partition = Partition(name, TOPIC_ID, store.create(name, TOPIC_ID), context)
            self.partitions.add(partition)
            partition.follow(view(ME, 5, 10, "123", "12"))
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
        leading = (partition or self.pond).leading
        assert leading is not None
        leading.on_fetch(node_id, 1, offset, start_offset)
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
def play(make_batch: Callable[..., memoryview]) -> Play:
    return Play(make_batch)


def test_whoever_has_caught_up_joins_at_once(play: Play) -> None:
    play.append()
    play.fetch(2, 1)
    play.fetch(3, 0)
    assert play.wanted() == []
    play.fetch(3, 1)
    assert play.wanted() == [{0: "123"}]
    (part,) = play.asked[0][0].topics[0].partitions
    assert (part.leader_epoch, part.partition_epoch) == (5, 10)
    assert [each.broker_epoch for each in part.new_isr_with_epochs] == [-1, 1, 1]


def test_one_request_for_each_partition_and_one_message_for_all(
    make_batch: Callable[..., memoryview],
) -> None:
    play = Play(make_batch, 3)
    for partition in play.partitions:
        assert partition.leading is not None
        partition.leading.on_fetch(3, 1, 0, 0)
    play.clock.run_for(1)
    assert play.wanted() == [{0: "123", 1: "123", 2: "123"}]
    play.fetch(3, 0)
    play.clock.run_for(2 * LAG_MS)
    assert len(play.asked) == 1, "nobody has answered yet"


def test_who_is_asked_to_join_counts_before_the_controller_agrees(play: Play) -> None:
    play.append()
    play.fetch(2, 1)
    play.fetch(3, 1)
    play.append()
    play.fetch(2, 2)
    assert play.pond.committed_offset == 1, "3 may be in sync by now"
    play.answer(ErrorCode.INELIGIBLE_REPLICA)
    assert play.pond.committed_offset == 1, "a copy of the request may be in flight"
    assert play.wanted() == [{0: "123"}, {0: "12"}]
    play.answer(ErrorCode.NONE)
    play.pond.follow(view(ME, 5, 11, "123", "12"))
    play.clock.run_for(1)
    assert play.pond.committed_offset == 2


def test_a_withdrawal_is_sent_again_until_the_metadata_tells(play: Play) -> None:
    play.append()
    play.fetch(2, 1)
    play.fetch(3, 1)
    play.answer(ErrorCode.INELIGIBLE_REPLICA)
    play.answer(ErrorCode.NOT_CONTROLLER)
    play.clock.run_for(AGAIN_MS + 1)
    assert play.wanted() == [{0: "123"}, {0: "12"}, {0: "12"}]


def test_a_controller_that_raises_no_epoch_leaves_nothing_open(play: Play) -> None:
    """A controller of an earlier version."""
    play.append()
    play.fetch(2, 1)
    play.fetch(3, 1)
    play.append()
    play.fetch(2, 2)
    play.welcome.remove(3)
    play.answer(ErrorCode.INELIGIBLE_REPLICA)
    play.answer(ErrorCode.NONE, epoch=10)
    assert play.pond.committed_offset == 2
    play.clock.run_for(2 * AGAIN_MS)
    assert len(play.asked) == 2


def test_whoever_falls_behind_leaves_after_its_time(play: Play) -> None:
    play.append()
    play.clock.run_for(LAG_MS - 1)
    assert play.wanted() == []
    play.clock.run_for(LAG_MS)
    assert play.wanted() == [{0: "1"}]
    assert play.pond.committed_offset == 0, "it counts until the controller agrees"
    play.pond.follow(view(ME, 5, 11, "123", "1"))
    play.clock.run_for(50)
    assert play.pond.committed_offset == 1


def test_who_has_everything_stays_however_long_nothing_is_written(play: Play) -> None:
    play.append()
    play.fetch(2, 1)
    play.clock.run_for(5 * LAG_MS)
    assert play.wanted() == []


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.NOT_CONTROLLER, ErrorCode.INVALID_UPDATE_VERSION])
def test_the_same_is_asked_again_until_the_metadata_tells(play: Play, error: ErrorCode) -> None:
    play.fetch(3, 0)
    play.answer(error)
    play.clock.run_for(AGAIN_MS + 1)
    assert play.wanted() == [{0: "123"}] * 2
    play.answer(error)
    play.pond.follow(view(ME, 5, 11, "123", "123"))
    play.clock.run_for(3 * AGAIN_MS)
    assert len(play.asked) == 2


def test_a_controller_that_cannot_be_found_is_asked_again(play: Play) -> None:
    play.fetch(3, 0)
    play.asked[0][1].fail(Refused(ErrorCode.NOT_CONTROLLER))
    play.clock.run_for(AGAIN_MS + 1)
    assert play.wanted() == [{0: "123"}] * 2


def test_an_answer_to_an_earlier_leadership_changes_nothing(play: Play) -> None:
    play.fetch(3, 0)
    play.pond.follow(view(ME, 6, 11, "123", "12"))
    leading = play.pond.leading
    assert leading is not None
    play.fetch(3, 0)
    assert len(play.asked) == 1, "one message at a time"
    asked = leading.pending
    play.answer(ErrorCode.INELIGIBLE_REPLICA, 0)
    assert leading.pending is asked is not None
    assert len(play.asked) == 2
    play.clock.run_for(3 * AGAIN_MS)
    assert len(play.asked) == 2


def test_of_many_partitions_some_are_asked_for_at_a_time(make_batch: Callable[..., memoryview]) -> None:
    play = Play(make_batch, ASKED_AT_ONCE + 3)
    for partition in play.partitions:
        assert partition.leading is not None
        partition.leading.on_fetch(3, 1, 0, 0)
    play.clock.run_for(1)
    while len(play.asked) < 10 and not play.asked[-1][1].ended:
        play.answer(ErrorCode.NONE)
    sizes = [len(each) for each in play.wanted()]
    assert max(sizes) <= ASKED_AT_ONCE
    assert sum(sizes) == ASKED_AT_ONCE + 3


def test_a_leader_that_may_lack_records_says_that_it_has_recovered(play: Play) -> None:
    play.pond.follow(PartitionView(ME, 6, 11, (1, 2, 3), (1,), is_recovering=True))
    play.clock.run_for(1)
    assert play.wanted() == [{0: "1"}]


def test_a_loop_that_stood_still_reads_first_and_judges_then(play: Play) -> None:
    play.append()
    play.fetch(2, 1)
    play.clock.run_for(LAG_MS // 2 - 10)
    play.append()
    # The check that is due now runs late: no fetch could be received during the stall.
    timer = play.keeper._timer
    assert timer is not None
    timer.cancel()
    play.clock.call_later(3 * LAG_MS, play.keeper._look)
    play.clock.run_for(3 * LAG_MS - 1)
    play.fetch(3, 2)
    assert play.wanted() == [], "3 has caught up; whether 2 keeps up nobody knows yet"
    play.fetch(2, 2)
    play.clock.run_for(SECOND_LOOK_MS + 1)
    assert play.wanted() == [{0: "123"}]


def test_a_broker_that_is_welcome_again_need_not_fetch_first(play: Play) -> None:
    play.welcome.discard(3)
    play.fetch(3, 0)
    play.clock.run_for(10)
    assert play.wanted() == []
    play.welcome.add(3)
    play.keeper.look_again()
    assert play.wanted() == [{0: "123"}]


def test_a_keeper_that_was_stopped_asks_for_nothing(play: Play) -> None:
    play.keeper.stop()
    play.append()
    play.fetch(3, 1)
    play.clock.run_for(3 * LAG_MS)
    assert play.wanted() == []


# A disk that stops writing.


def test_a_leader_whose_log_has_failed_gives_the_leadership_away(play: Play) -> None:
    play.append()
    play.pond.log.fail(OSError("it has failed"))
    with pytest.raises(Refused):
        play.append()
    play.clock.run_for(1)
    assert play.wanted() == [{0: "2"}]
    play.answer(ErrorCode.NOT_CONTROLLER)
    play.clock.run_for(AGAIN_MS)
    assert play.wanted() == [{0: "2"}] * 2
    play.pond.follow(view(2, 6, 11, "123", "2"))
    play.clock.run_for(3 * AGAIN_MS)
    assert len(play.asked) == 2


def test_a_failure_that_nobody_met_is_found_by_the_next_look(play: Play) -> None:
    play.fetch(2, 0)
    play.pond.log.fail(OSError("it has failed"))
    play.clock.run_for(LAG_MS)
    assert {0: "2"} in play.wanted()


def test_a_leader_that_cannot_write_drops_nobody(play: Play) -> None:
    play.append()
    play.fetch(2, 0)
    play.pond.log.fail(OSError("it has failed"))
    for _ in range(5):
        play.clock.run_for(LAG_MS)
        play.answer(ErrorCode.NOT_CONTROLLER)
    assert all(each == {0: "2"} for each in play.wanted())
    assert play.pond.leading is not None
    assert play.pond.leading.pending is None, "nobody can fetch from it: that the other is behind says nothing"


def test_a_leader_that_cannot_write_gives_way_to_who_has_everything_committed(
    play: Play,
) -> None:
    play.pond.follow(PartitionView(ME, 5, 11, (1, 2, 3), (1,), elr=(3,)))
    play.pond.log.fail(OSError("it has failed"))
    play.clock.run_for(LAG_MS)
    assert {0: "3"} in play.wanted()
    assert {0: "2"} not in play.wanted()


def test_without_another_in_sync_the_leadership_stays(play: Play) -> None:
    play.welcome.discard(2)
    play.pond.log.fail(OSError("it has failed"))
    with pytest.raises(Refused):
        play.append()
    play.clock.run_for(3 * AGAIN_MS)
    assert play.wanted() == []
    play.welcome.add(2)
    play.clock.run_for(AGAIN_MS)
    assert play.wanted()[:1] == [{0: "2"}]


@pytest.mark.parametrize("heals", [True, False])
def test_a_full_disk_moves_the_leadership_unless_there_is_room_again_soon(play: Play, heals: bool) -> None:
    play.append()
    play.disk.fill(0)
    with pytest.raises(Refused):
        play.append()
    play.clock.run_for(AILING_MS // 2)
    if heals:
        play.disk.make_room()
        play.append()
    play.clock.run_for(AILING_MS)
    assert play.wanted()[:1] == ([] if heals else [{0: "2"}])


def test_a_replica_that_does_not_know_where_the_log_begins_does_not_join(play: Play) -> None:
    """An acknowledged DeleteRecords would be undone if this replica led next."""
    play.append()
    play.fetch(2, 1)
    play.pond.log.delete_before(1)
    play.fetch(3, 1)
    play.clock.run_for(2 * LAG_MS)
    assert play.wanted() == []
    play.fetch(3, 1, start_offset=1)
    assert play.wanted() == [{0: "123"}]
