"""A leader and one follower's session: responses include partitions with news, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode
from millpond.broker.fetch import replica_sessions as sessions
from millpond.broker.fetch.replica_sessions import ReplicaSession
from millpond.broker.replication.partitions import Partition
from millpond.metadata.records import (
    BrokerEndpoint,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    ResourceType,
    TopicRecord,
)
from millpond.wire import messages as m
from millpond.wire.batch import walk

ME, FOLLOWER = 1, 2
POND = UUID(int=70)
COUNT = 5


class Play:
    def __init__(self, desk: Any, make_batch: Callable[..., memoryview]) -> None:
        self.desk = desk
        self.batch = make_batch
        self.follower = desk.connect()
        self.session_id = self.session_epoch = 0
        end_points = (BrokerEndpoint("PLAINTEXT", "b", 9092),)
        self.tell(
            RegisterBrokerRecord(FOLLOWER, UUID(int=2), 5, end_points, fenced=False),
            TopicRecord("pond", POND),
            *(PartitionRecord(each, POND, (ME, FOLLOWER), (ME, FOLLOWER), leader=ME) for each in range(COUNT)),
        )

    def tell(self, *records: Any) -> None:
        for record in records:
            self.desk.broker.image.replay(record)
        self.desk.broker._on_records(list(records)).then(lambda _: None)

    def partition(self, index: int = 0) -> Partition:
        found = self.desk.broker.partitions.by_id(POND, index)
        assert found is not None
        return found

    def write(self, index: int = 0, *values: bytes) -> None:
        self.partition(index).append(self.batch(*(values or (b"v",))), zstd=True)

    def ask(
        self,
        wishes: dict[int, int] | None = None,
        *,
        forgotten: tuple[int, ...] = (),
        wait_ms: int = 500,
        epoch: int = 0,
        last_epoch: int = -1,
        max_bytes: int = 10 << 20,
        partition_bytes: int = 1 << 20,
        start: int = 0,
        broker_epoch: int = 5,
    ) -> None:
        kind = m.FetchRequest
        topic = kind.FetchTopic(
            topic_id=POND,
            partitions=[
                kind.FetchPartition(
                    partition=index,
                    fetch_offset=offset,
                    current_leader_epoch=epoch,
                    last_fetched_epoch=last_epoch,
                    log_start_offset=start,
                    partition_max_bytes=partition_bytes,
                )
                for index, offset in (wishes or {}).items()
            ],
        )
        request = kind(
            replica_state=kind.ReplicaState(replica_id=FOLLOWER, replica_epoch=broker_epoch),
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            session_id=self.session_id,
            session_epoch=self.session_epoch,
            topics=[topic] if wishes else [],
            forgotten_topics_data=[kind.ForgottenTopic(topic_id=POND, partitions=list(forgotten))]
            if forgotten
            else [],
        )
        self.session_epoch += 1
        self.follower.send(request, 17)

    def begin(self, wishes: dict[int, int]) -> None:
        """A session with a pending fetch for these partitions."""
        self.ask(wishes, wait_ms=0)
        assert self.answers() == [{index: [] for index in wishes}]
        self.ask()
        assert self.settle() == []

    def answers(self) -> list[dict[int, Any]]:
        """For each response and partition: the base offsets, the name of the error, or nothing."""
        told = []
        for reply in self.follower.replies():
            self.session_id = reply.session_id or self.session_id
            if reply.error_code:
                told.append({-1: ErrorCode(reply.error_code).name})
                continue
            told.append(
                {each.partition_index: outcome(each) for topic in reply.responses for each in topic.partitions}
            )
        return told

    def settle(self) -> list[dict[int, Any]]:
        self.desk.run(3)
        return self.answers()


def outcome(reply: Any) -> Any:
    if reply.error_code:
        return ErrorCode(reply.error_code).name
    if reply.diverging_epoch.epoch >= 0:
        return reply.diverging_epoch.epoch, reply.diverging_epoch.end_offset
    return [header.base_offset for _, header in walk(bytes(reply.records))]


@pytest.fixture
def play(desk: Any, make_batch: Callable[..., memoryview]) -> Play:
    return Play(desk, make_batch)


def everything(offset: int = 0) -> dict[int, int]:
    return dict.fromkeys(range(COUNT), offset)


def test_a_session_looks_only_at_partitions_with_news(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    read_one = ReplicaSession._read_one

    def counted(self: Any, wanted: Any, *args: Any, **options: Any) -> Any:
        looks.append(wanted.key[1])
        return read_one(self, wanted, *args, **options)

    monkeypatch.setattr(ReplicaSession, "_read_one", counted)
    play.begin(everything())
    assert sorted(looks) == list(range(COUNT))
    looks.clear()
    play.write(3)
    play.write(3)
    assert (play.settle(), looks) == ([{3: [0, 1]}], [3]), "both go in one answer"
    play.ask({3: 2})
    looks.clear()
    play.desk.run(600)
    assert (play.answers(), looks) == ([{3: []}], []), "at the deadline only what was committed is told"
    play.ask()
    play.desk.run(600)
    assert (play.answers(), looks) == ([{}], [])


def test_the_next_request_ends_the_wait_of_the_one_before(play: Play) -> None:
    play.begin({0: 0})
    play.write(1)
    play.ask({1: 0})
    assert play.settle() == [{}, {1: [0]}]


def test_what_has_been_sent_is_not_sent_again_before_it_is_asked_for(play: Play) -> None:
    play.begin({0: 0, 1: 0})
    play.write(0)
    assert play.settle() == [{0: [0]}]
    play.ask()
    play.write(0)
    assert play.settle() == []
    play.ask({0: 1})
    assert play.settle() == [{}, {0: [1]}]


def test_a_full_answer_leaves_the_others_for_the_next(play: Play) -> None:
    for index in range(3):
        play.write(index, b"x" * 500)
    play.ask({0: 0, 1: 0, 2: 0}, max_bytes=700)
    assert [each for each in play.settle()[0].items() if each[1]] == [(0, [0])]
    play.write(0, b"x" * 500)
    for wishes, served in (({0: 1}, 1), ({1: 1}, 2), ({2: 1}, 0)):
        play.ask(wishes, max_bytes=700)
        (told,) = play.settle()
        assert [index for index, offsets in told.items() if offsets] == [served]


def test_one_that_is_far_behind_gets_an_answer_alone_only_if_nobody_else_has_news(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "SHARE_BYTES_MIN", 600)
    for _ in range(4):
        play.write(0, b"x" * 500)
    play.write(1, b"x" * 500)
    play.ask({0: 0}, max_bytes=2000)
    assert play.settle() == [{0: [0, 1, 2]}]
    play.ask({0: 0, 1: 0}, max_bytes=2000)
    assert play.settle() == [{0: [0], 1: [0]}]


def test_a_cold_partition_does_not_hold_up_the_others(play: Play) -> None:
    play.write(0)
    play.desk.disk.cold_share = 1.0
    play.ask({0: 0, 1: 0})
    assert play.answers() == []
    assert play.desk.sim.run_until(lambda: bool(play.follower.link.received), within_ms=100)
    assert play.answers()[0][0] == [0], "read by a worker, then sent"


def test_forgotten_partitions_wake_nobody(play: Play) -> None:
    play.begin({0: 0, 1: 0})
    play.ask(forgotten=(0,))
    assert play.settle() == [{}]
    play.write(0)
    assert play.settle() == []
    assert not play.partition(0).replica_watchers
    play.write(1)
    assert play.settle() == [{1: [0]}]


def test_leaders_that_lead_no_more_say_so_at_once(play: Play) -> None:
    play.begin({0: 0, 1: 0, 2: 0})
    play.tell(PartitionChangeRecord(0, POND, leader=FOLLOWER))
    assert play.settle() == [{0: "FENCED_LEADER_EPOCH"}]
    play.ask(forgotten=(0,))
    play.tell(PartitionChangeRecord(1, POND, leader=ME))
    assert play.settle() == [{1: "FENCED_LEADER_EPOCH"}]
    play.write(1)
    assert play.partition(1).committed_offset == 0, "what it had in another epoch counts no more"
    play.ask(forgotten=(1,))
    play.tell(RemoveTopicRecord(POND))
    assert play.settle() == [{2: "UNKNOWN_TOPIC_ID"}]


def test_a_start_that_moved_is_told_at_once(play: Play) -> None:
    play.write(0)
    play.begin({0: 1})
    play.partition(0).delete_before(1)
    assert play.settle() == [{0: []}]
    play.ask({0: 1}, start=1)
    assert play.settle() == []


def test_a_follower_that_was_idle_for_long_is_not_behind_at_the_next_record(play: Play) -> None:
    play.begin({0: 0})
    play.desk.run(20_000)
    play.write(0)
    leading = play.partition(0).leading
    assert leading is not None
    play.desk.broker.isr_keeper.look_soon(POND, 0)
    play.desk.run(100)
    assert leading.pending is None
    play.desk.run(20_000)
    assert leading.pending is not None


def test_other_sessions_are_not_taken_for_this_one(play: Play) -> None:
    play.begin({0: 0})
    play.ask(wait_ms=0)
    assert play.answers() == [{}, {}]
    play.session_epoch = 7
    play.ask()
    assert play.answers() == [{-1: "INVALID_FETCH_SESSION_EPOCH"}]
    play.session_id += 1
    play.session_epoch = 1
    play.ask()
    assert play.answers() == [{-1: "FETCH_SESSION_ID_NOT_FOUND"}]


def test_a_new_session_takes_the_place_of_the_old_one(play: Play) -> None:
    play.begin({0: 0})
    play.session_id = play.session_epoch = 0
    play.ask({1: 0})
    assert play.settle() == [{}]
    assert not play.partition(0).replica_watchers
    assert len(play.partition(1).replica_watchers) == 1


def test_a_follower_whose_connection_ends_is_watched_for_no_more(play: Play) -> None:
    play.begin({0: 0})
    play.follower.link.end()
    assert not play.partition(0).replica_watchers


def test_who_has_registered_anew_says_again_how_far_it_is(play: Play) -> None:
    play.begin({0: 0})
    play.ask(broker_epoch=6)
    assert play.settle() == [{}, {-1: "FETCH_SESSION_ID_NOT_FOUND"}]


@pytest.mark.parametrize("broker_epoch", [-1, 4, 6, 1 << 62])
def test_who_is_not_the_follower_that_the_metadata_knows_takes_nothing_from_it(play: Play, broker_epoch: int) -> None:
    play.begin(everything())
    stranger = Play.__new__(Play)
    stranger.desk, stranger.follower = play.desk, play.desk.connect()
    stranger.session_id = stranger.session_epoch = 0
    play.write(0)
    play.settle()
    assert play.partition(0).committed_offset == 0
    stranger.ask({0: 1}, last_epoch=0, broker_epoch=broker_epoch)
    (told,) = stranger.settle()
    assert told[0] in ("NOT_LEADER_OR_FOLLOWER", "UNKNOWN_LEADER_EPOCH")
    assert stranger.session_id == 0
    assert play.partition(0).committed_offset == 0, "it counts nothing"
    play.ask({0: 1}, last_epoch=0)
    assert play.settle() == []
    assert play.partition(0).committed_offset == 1, "and the follower goes on in its session"


def test_a_leader_that_hears_of_all_at_once_obeys_the_new_settings_in_its_new_role(play: Play) -> None:
    """As after a snapshot. A replica that is eligible by the new `min.insync.replicas` must have all acknowledged
    records.
    """
    play.tell(
        ConfigRecord(ResourceType.TOPIC, "pond", "flush.ack", "never"),
        ConfigRecord(ResourceType.TOPIC, "pond", "min.insync.replicas", "1"),
    )
    play.write(0)
    play.tell(
        PartitionChangeRecord(0, POND, isr=(ME,), eligible_leader_replicas=(FOLLOWER,)),
        ConfigRecord(ResourceType.TOPIC, "pond", "min.insync.replicas", "2"),
    )
    play.settle()
    assert play.partition(0).view.isr == (ME,)  # type: ignore[union-attr]
    assert play.partition(0).committed_offset == 0


def test_more_partitions_than_are_looked_at_in_a_turn_are_all_told(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "READ_AT_ONCE", 2)
    monkeypatch.setattr(sessions, "REQUESTED_AT_ONCE", 1)
    monkeypatch.setattr(sessions, "REQUESTED_PER_STEP", 2)
    for index in range(COUNT):
        play.write(index)
    play.ask(everything())
    told = play.settle()
    for _ in range(COUNT):
        play.ask()
        told += play.settle()
    assert [sorted(each) for each in told[:3]] == [[0, 1], [2, 3], [4]]
    assert all(each == [0] for answer in told[:3] for each in answer.values())


def test_the_last_of_many_partitions_is_told_though_the_first_have_no_news(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "READ_AT_ONCE", 2)
    monkeypatch.setattr(sessions, "REQUESTED_AT_ONCE", 1)
    play.write(COUNT - 1)
    play.ask(everything())
    (told,) = play.settle()
    assert told[COUNT - 1] == [0]


def test_a_session_that_ends_while_its_wishes_are_taken_watches_nothing(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "REQUESTED_AT_ONCE", 1)
    monkeypatch.setattr(sessions, "REQUESTED_PER_STEP", 1)
    play.ask(everything())
    (session,) = play.desk.broker.replica_sessions._sessions.values()
    session.end()
    told = play.settle()
    assert told == [{-1: "FETCH_SESSION_ID_NOT_FOUND"}]
    assert not any(play.partition(index).replica_watchers for index in range(COUNT))
