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


class ReplicatedLeader:
    def __init__(self, server: Any, make_batch: Callable[..., memoryview]) -> None:
        self.server = server
        self.batch = make_batch
        self.follower = server.connect()
        self.session_id = self.session_epoch = 0
        end_points = (BrokerEndpoint("PLAINTEXT", "b", 9092),)
        self.tell(
            RegisterBrokerRecord(FOLLOWER, UUID(int=2), 5, end_points, fenced=False),
            TopicRecord("pond", POND),
            *(PartitionRecord(each, POND, (ME, FOLLOWER), (ME, FOLLOWER), leader=ME) for each in range(COUNT)),
        )

    def tell(self, *records: Any) -> None:
        for record in records:
            self.server.broker.image.replay(record)
        self.server.broker._on_records(list(records)).then(lambda _: None)

    def partition(self, index: int = 0) -> Partition:
        partition = self.server.broker.partitions.by_id(POND, index)
        assert partition is not None
        return partition

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
        reports = []
        for reply in self.follower.replies():
            self.session_id = reply.session_id or self.session_id
            if reply.error_code:
                reports.append({-1: ErrorCode(reply.error_code).name})
                continue
            reports.append(
                {each.partition_index: outcome(each) for topic in reply.responses for each in topic.partitions}
            )
        return reports

    def settle(self) -> list[dict[int, Any]]:
        self.server.run(3)
        return self.answers()


def outcome(reply: Any) -> Any:
    if reply.error_code:
        return ErrorCode(reply.error_code).name
    if reply.diverging_epoch.epoch >= 0:
        return reply.diverging_epoch.epoch, reply.diverging_epoch.end_offset
    return [header.base_offset for _, header in walk(bytes(reply.records))]


@pytest.fixture
def replicas(server: Any, make_batch: Callable[..., memoryview]) -> ReplicatedLeader:
    return ReplicatedLeader(server, make_batch)


def everything(offset: int = 0) -> dict[int, int]:
    return dict.fromkeys(range(COUNT), offset)


def test_a_session_looks_only_at_partitions_with_news(
    replicas: ReplicatedLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    read_one = ReplicaSession._read_one

    def counted(self: Any, wanted: Any, *args: Any, **options: Any) -> Any:
        looks.append(wanted.key[1])
        return read_one(self, wanted, *args, **options)

    monkeypatch.setattr(ReplicaSession, "_read_one", counted)
    replicas.begin(everything())
    assert sorted(looks) == list(range(COUNT))
    looks.clear()
    replicas.write(3)
    replicas.write(3)
    assert (replicas.settle(), looks) == ([{3: [0, 1]}], [3]), "both go in one answer"
    replicas.ask({3: 2})
    looks.clear()
    replicas.server.run(600)
    assert (replicas.answers(), looks) == ([{3: []}], []), "at the deadline only committed changes are sent"
    replicas.ask()
    replicas.server.run(600)
    assert (replicas.answers(), looks) == ([{}], [])


def test_the_next_request_ends_the_wait_of_the_one_before(replicas: ReplicatedLeader) -> None:
    replicas.begin({0: 0})
    replicas.write(1)
    replicas.ask({1: 0})
    assert replicas.settle() == [{}, {1: [0]}]


def test_what_has_been_sent_is_not_sent_again_before_it_is_asked_for(replicas: ReplicatedLeader) -> None:
    replicas.begin({0: 0, 1: 0})
    replicas.write(0)
    assert replicas.settle() == [{0: [0]}]
    replicas.ask()
    replicas.write(0)
    assert replicas.settle() == []
    replicas.ask({0: 1})
    assert replicas.settle() == [{}, {0: [1]}]


def test_a_full_answer_leaves_the_others_for_the_next(replicas: ReplicatedLeader) -> None:
    for index in range(3):
        replicas.write(index, b"x" * 500)
    replicas.ask({0: 0, 1: 0, 2: 0}, max_bytes=700)
    assert [each for each in replicas.settle()[0].items() if each[1]] == [(0, [0])]
    replicas.write(0, b"x" * 500)
    for wishes, served in (({0: 1}, 1), ({1: 1}, 2), ({2: 1}, 0)):
        replicas.ask(wishes, max_bytes=700)
        (response,) = replicas.settle()
        assert [index for index, offsets in response.items() if offsets] == [served]


def test_a_lagging_partition_is_answered_alone_only_if_no_other_has_news(
    replicas: ReplicatedLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "SHARE_BYTES_MIN", 600)
    for _ in range(4):
        replicas.write(0, b"x" * 500)
    replicas.write(1, b"x" * 500)
    replicas.ask({0: 0}, max_bytes=2000)
    assert replicas.settle() == [{0: [0, 1, 2]}]
    replicas.ask({0: 0, 1: 0}, max_bytes=2000)
    assert replicas.settle() == [{0: [0], 1: [0]}]


def test_a_cold_partition_does_not_hold_up_the_others(replicas: ReplicatedLeader) -> None:
    replicas.write(0)
    replicas.server.disk.cold_share = 1.0
    replicas.ask({0: 0, 1: 0})
    assert replicas.answers() == []
    assert replicas.server.sim.run_until(lambda: bool(replicas.follower.link.received), within_ms=100)
    assert replicas.answers()[0][0] == [0], "read by a worker, then sent"


def test_forgotten_partitions_do_not_wake_the_fetch(replicas: ReplicatedLeader) -> None:
    replicas.begin({0: 0, 1: 0})
    replicas.ask(forgotten=(0,))
    assert replicas.settle() == [{}]
    replicas.write(0)
    assert replicas.settle() == []
    assert not replicas.partition(0).replica_watchers
    replicas.write(1)
    assert replicas.settle() == [{1: [0]}]


def test_leaders_that_lead_no_more_say_so_at_once(replicas: ReplicatedLeader) -> None:
    replicas.begin({0: 0, 1: 0, 2: 0})
    replicas.tell(PartitionChangeRecord(0, POND, leader=FOLLOWER))
    assert replicas.settle() == [{0: "FENCED_LEADER_EPOCH"}]
    replicas.ask(forgotten=(0,))
    replicas.tell(PartitionChangeRecord(1, POND, leader=ME))
    assert replicas.settle() == [{1: "FENCED_LEADER_EPOCH"}]
    replicas.write(1)
    assert replicas.partition(1).committed_offset == 0, "what it had in another epoch no longer counts"
    replicas.ask(forgotten=(1,))
    replicas.tell(RemoveTopicRecord(POND))
    assert replicas.settle() == [{2: "UNKNOWN_TOPIC_ID"}]


def test_a_start_that_moved_is_told_at_once(replicas: ReplicatedLeader) -> None:
    replicas.write(0)
    replicas.begin({0: 1})
    replicas.partition(0).delete_before(1)
    assert replicas.settle() == [{0: []}]
    replicas.ask({0: 1}, start=1)
    assert replicas.settle() == []


def test_a_follower_that_was_idle_for_long_is_not_behind_at_the_next_record(replicas: ReplicatedLeader) -> None:
    replicas.begin({0: 0})
    replicas.server.run(20_000)
    replicas.write(0)
    leader_role = replicas.partition(0).leader_role
    assert leader_role is not None
    replicas.server.broker.isr_keeper.check_soon(POND, 0)
    replicas.server.run(100)
    assert leader_role.pending is None
    replicas.server.run(20_000)
    assert leader_role.pending is not None


def test_other_sessions_are_not_taken_for_this_one(replicas: ReplicatedLeader) -> None:
    replicas.begin({0: 0})
    replicas.ask(wait_ms=0)
    assert replicas.answers() == [{}, {}]
    replicas.session_epoch = 7
    replicas.ask()
    assert replicas.answers() == [{-1: "INVALID_FETCH_SESSION_EPOCH"}]
    replicas.session_id += 1
    replicas.session_epoch = 1
    replicas.ask()
    assert replicas.answers() == [{-1: "FETCH_SESSION_ID_NOT_FOUND"}]


def test_a_new_session_takes_the_place_of_the_old_one(replicas: ReplicatedLeader) -> None:
    replicas.begin({0: 0})
    replicas.session_id = replicas.session_epoch = 0
    replicas.ask({1: 0})
    assert replicas.settle() == [{}]
    assert not replicas.partition(0).replica_watchers
    assert len(replicas.partition(1).replica_watchers) == 1


def test_a_follower_whose_connection_ends_is_watched_for_no_more(replicas: ReplicatedLeader) -> None:
    replicas.begin({0: 0})
    replicas.follower.link.end()
    assert not replicas.partition(0).replica_watchers


def test_who_has_registered_anew_says_again_how_far_it_is(replicas: ReplicatedLeader) -> None:
    replicas.begin({0: 0})
    replicas.ask(broker_epoch=6)
    assert replicas.settle() == [{}, {-1: "FETCH_SESSION_ID_NOT_FOUND"}]


@pytest.mark.parametrize("broker_epoch", [-1, 4, 6, 1 << 62])
def test_who_is_not_the_follower_that_the_metadata_knows_takes_nothing_from_it(
    replicas: ReplicatedLeader, broker_epoch: int
) -> None:
    replicas.begin(everything())
    stranger = ReplicatedLeader.__new__(ReplicatedLeader)
    stranger.server, stranger.follower = replicas.server, replicas.server.connect()
    stranger.session_id = stranger.session_epoch = 0
    replicas.write(0)
    replicas.settle()
    assert replicas.partition(0).committed_offset == 0
    stranger.ask({0: 1}, last_epoch=0, broker_epoch=broker_epoch)
    (response,) = stranger.settle()
    assert response[0] in ("NOT_LEADER_OR_FOLLOWER", "UNKNOWN_LEADER_EPOCH")
    assert stranger.session_id == 0
    assert replicas.partition(0).committed_offset == 0, "it counts nothing"
    replicas.ask({0: 1}, last_epoch=0)
    assert replicas.settle() == []
    assert replicas.partition(0).committed_offset == 1, "and the follower goes on in its session"


def test_a_leader_that_hears_of_all_at_once_obeys_the_new_settings_in_its_new_role(
    replicas: ReplicatedLeader,
) -> None:
    """As after a snapshot. A replica that is eligible by the new `min.insync.replicas` must have all acknowledged
    records.
    """
    replicas.tell(
        ConfigRecord(ResourceType.TOPIC, "pond", "flush.ack", "never"),
        ConfigRecord(ResourceType.TOPIC, "pond", "min.insync.replicas", "1"),
    )
    replicas.write(0)
    replicas.tell(
        PartitionChangeRecord(0, POND, isr=(ME,), eligible_leader_replicas=(FOLLOWER,)),
        ConfigRecord(ResourceType.TOPIC, "pond", "min.insync.replicas", "2"),
    )
    replicas.settle()
    assert replicas.partition(0).view.isr == (ME,)  # type: ignore[union-attr]
    assert replicas.partition(0).committed_offset == 0


def test_more_partitions_than_are_looked_at_in_a_turn_are_all_told(
    replicas: ReplicatedLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "READ_AT_ONCE", 2)
    monkeypatch.setattr(sessions, "REQUESTED_AT_ONCE", 1)
    monkeypatch.setattr(sessions, "REQUESTED_PER_STEP", 2)
    for index in range(COUNT):
        replicas.write(index)
    replicas.ask(everything())
    response = replicas.settle()
    for _ in range(COUNT):
        replicas.ask()
        response += replicas.settle()
    assert [sorted(each) for each in response[:3]] == [[0, 1], [2, 3], [4]]
    assert all(each == [0] for answer in response[:3] for each in answer.values())


def test_the_last_of_many_partitions_is_told_though_the_first_have_no_news(
    replicas: ReplicatedLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "READ_AT_ONCE", 2)
    monkeypatch.setattr(sessions, "REQUESTED_AT_ONCE", 1)
    replicas.write(COUNT - 1)
    replicas.ask(everything())
    (response,) = replicas.settle()
    assert response[COUNT - 1] == [0]


def test_a_session_that_ends_while_its_wishes_are_taken_watches_nothing(
    replicas: ReplicatedLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "REQUESTED_AT_ONCE", 1)
    monkeypatch.setattr(sessions, "REQUESTED_PER_STEP", 1)
    replicas.ask(everything())
    (session,) = replicas.server.broker.replica_sessions._sessions.values()
    session.end()
    response = replicas.settle()
    assert response == [{-1: "FETCH_SESSION_ID_NOT_FOUND"}]
    assert not any(replicas.partition(index).replica_watchers for index in range(COUNT))


def test_a_large_request_whose_connection_closes_holds_no_file_and_watches_nothing(
    replicas: ReplicatedLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "REQUESTED_AT_ONCE", 1)
    monkeypatch.setattr(sessions, "REQUESTED_PER_STEP", 2)
    for index in range(COUNT):
        replicas.write(index)
    replicas.ask(everything())
    replicas.follower.link.end()
    replicas.server.run(1000)
    assert not any(replicas.partition(index).replica_watchers for index in range(COUNT))
    logs = [replicas.partition(index).log for index in range(COUNT)]
    assert not any(segment.file.is_held() for log in logs for segment in log.segments)
