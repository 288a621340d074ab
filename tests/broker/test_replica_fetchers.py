"""A node follows a leader that the test plays: which requests it sends, and how it handles the responses."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any
from uuid import UUID

import pytest
from tests.support.partitions import partition_context, view

from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.base.later import Later
from millpond.base.ports import Link
from millpond.broker.peers.peers import Peers
from millpond.broker.replication import fetchers as replica_fetchers
from millpond.broker.replication.fetchers import CUT_BELOW_COMMITTED, FetcherServices, ReplicaFetchers
from millpond.broker.replication.partitions import Partition
from millpond.broker.storage.checkpoint_writer import CheckpointWriter
from millpond.broker.storage.flusher import Flusher
from millpond.log.limits import LogLimits
from millpond.log.removal import RemovalJob
from millpond.log.store import LogStore
from millpond.replication.leader import PartitionView
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m
from millpond.wire.batch import patch_offset_and_epoch
from millpond.wire.frames import FrameReader, SpareRoom
from millpond.wire.header import decode_request_header, response_header

ME, LEADER, PORT = 1, 2, 9092
LENGTH = Struct(">i")
Reply = m.FetchResponse.PartitionData


class LeaderByHand:
    """The requests of one connection, in order; the test answers them."""

    def __init__(self, world: Any) -> None:
        self.asked: list[Any] = []
        self.links: list[Link] = []
        self._headers: list[tuple[int, int, int, Link]] = []
        world.network.listen("leader", PORT, self.accept)

    def accept(self, link: Link) -> Any:
        self.links.append(link)
        return _LeaderConnection(self, link)

    def hear(self, link: Link, frame: bytes) -> None:
        header = decode_request_header(frame)
        kind = m.FetchRequest if header.api_key == 1 else m.OffsetForLeaderEpochRequest
        request, end = kind.decode(frame, header.api_version, header.body_position)
        assert end == len(frame)
        self.asked.append(request)
        self._headers.append((header.api_key, header.api_version, header.correlation_id, link))

    def answer(self, response: Any) -> None:
        """Answer the oldest pending request."""
        api_key, version, correlation_id, link = self._headers.pop(0)
        self.asked.pop(0)
        frame = response_header(api_key, version, correlation_id) + response.encode(version)
        link.send([LENGTH.pack(len(frame)), frame])


class _LeaderConnection:
    def __init__(self, leader: LeaderByHand, link: Link) -> None:
        self._leader, self._link = leader, link
        self._reader = FrameReader(memoryview(bytearray(1 << 16)), 1 << 20, SpareRoom(1 << 20))

    def buffer(self) -> memoryview:
        return self._reader.buffer()

    def received(self, count: int) -> None:
        for frame in self._reader.advance(count):
            self._leader.hear(self._link, bytes(frame))

    def drained(self) -> None: ...

    def closed(self) -> None: ...


class FollowerNode:
    def __init__(self, make_batch: Callable[..., memoryview]) -> None:
        self.batch = make_batch
        self.sim = SimWorld(5)
        self.leader = LeaderByHand(self.sim.start("leader"))
        self.world = self.sim.start("me")
        self.store = LogStore(self.world.disk, "/data", LogLimits(segment_bytes=2000), self.world.entropy)
        self.store.open(0)
        self.flusher = Flusher(self.world.sync_workers, self.world.disk, "/data")
        self.journal: list[str] = []
        self.broker_epoch = 77
        self.services = FetcherServices(
            world=self.world,
            node_id=ME,
            broker_epoch=lambda: self.broker_epoch,
            peers=Peers(self.world, "me", lambda _: ("leader", PORT)),
            store=self.store,
            flusher=self.flusher,
            checkpoints=CheckpointWriter(self.store, self.world.sync_workers),
            journal=lambda event, **_: self.journal.append(event),
        )
        self.fetchers = ReplicaFetchers(self.services)

    def partition(self, index: int = 0, *, epoch: int = 3, follows: bool = True) -> Partition:
        name = TopicPartition("pond", index)
        log = self.store.create(name, UUID(int=7))
        made = Partition(
            name,
            UUID(int=7),
            log,
            partition_context(self.world.disk, self.world.clock, node_id=ME, flusher=self.flusher),
        )
        if follows:
            self.follow(made, epoch)
        return made

    def follow(self, partition: Partition, epoch: int) -> None:
        partition.apply_metadata(view(LEADER, epoch, epoch, "12", "12"))
        self.fetchers.follow(partition)

    def records(self, offset: int, *values: bytes, epoch: int = 3) -> bytes:
        made = self.batch(*values)
        patch_offset_and_epoch(made, 0, offset, epoch)
        return bytes(made)

    def next(self, *, within_ms: int = 2_000, count: int = 1) -> Any:
        """The oldest pending request."""
        assert self.sim.run_until(lambda: len(self.leader.asked) >= count, within_ms=within_ms), "nothing was asked"
        return self.leader.asked[0]

    def answer(self, *replies: Reply, session: int = 9, error: int = 0) -> None:
        self.next()
        topics = [m.FetchResponse.FetchableTopicResponse(topic_id=UUID(int=7), partitions=list(replies))]
        self.leader.answer(m.FetchResponse(error_code=error, session_id=session, responses=topics if replies else []))

    def silence(self, for_ms: int = 300) -> None:
        before = len(self.leader.asked)
        self.sim.run_for(for_ms)
        assert len(self.leader.asked) == before


def reply(index: int = 0, records: bytes = b"", *, high_watermark: int = 0, start: int = 0, error: int = 0) -> Reply:
    return Reply(
        partition_index=index,
        error_code=error,
        high_watermark=high_watermark,
        log_start_offset=start,
        records=records,
    )


def diverging(epoch: int, end_offset: int, index: int = 0) -> Reply:
    made = reply(index, high_watermark=90)
    made.diverging_epoch = m.FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return made


def wishes(request: m.FetchRequest) -> dict[int, tuple[int, int, int]]:
    """Leader epoch, fetch offset and last fetched epoch by partition."""
    return {
        each.partition: (each.current_leader_epoch, each.fetch_offset, each.last_fetched_epoch)
        for topic in request.topics
        for each in topic.partitions
    }


def forgotten(request: m.FetchRequest) -> list[int]:
    return [index for topic in request.forgotten_topics_data for index in topic.partitions]


@pytest.fixture
def host(make_batch: Callable[..., memoryview]) -> FollowerNode:
    return FollowerNode(make_batch)


def test_records_are_taken_over_as_they_are_and_the_next_fetch_says_so(host: FollowerNode) -> None:
    partition = host.partition()
    first = host.next()
    assert wishes(first) == {0: (3, 0, -1)}
    assert (first.replica_state.replica_id, first.replica_state.replica_epoch) == (ME, 77)
    assert (first.session_id, first.session_epoch, first.min_bytes) == (0, 0, 1)
    sent = host.records(0, b"a", b"b") + host.records(2, b"c")
    host.answer(reply(records=sent + host.records(3, b"cut")[:40], high_watermark=2))
    second = host.next()
    assert (second.session_id, second.session_epoch, wishes(second)) == (9, 1, {0: (3, 3, 3)})
    assert partition.log.read_batches(0, 1 << 20) == sent
    assert (partition.committed_offset, partition.log.end_offset) == (2, 3)


def test_only_partitions_with_news_are_named(host: FollowerNode) -> None:
    for index in range(5):
        host.partition(index)
    assert len(wishes(host.next())) == 5
    host.answer(*(reply(index) for index in range(5)))
    assert wishes(host.next()) == {}
    host.answer()
    assert wishes(host.next()) == {}
    host.answer(reply(3, host.records(0, b"x")), reply(4, high_watermark=0))
    request = host.next()
    assert (wishes(request), forgotten(request), request.session_epoch) == ({3: (3, 1, 3)}, [], 3)


def test_a_lost_session_begins_anew_with_everybody(host: FollowerNode) -> None:
    for index in range(3):
        host.partition(index)
    host.answer(reply(0, host.records(0, b"x")))
    host.answer(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    request = host.next()
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert wishes(request) == {0: (3, 1, 3), 1: (3, 0, -1), 2: (3, 0, -1)}


def test_a_leader_without_room_for_sessions_is_told_everything_each_time(host: FollowerNode) -> None:
    host.partition(0)
    host.partition(1)
    for _ in range(3):
        request = host.next()
        assert (len(wishes(request)), request.session_id, request.session_epoch) == (2, 0, 0)
        host.answer(reply(0), reply(1), session=0)


def test_a_connection_that_breaks_is_made_anew_after_a_while(host: FollowerNode) -> None:
    host.partition()
    host.answer(reply(0))
    host.next()
    host.leader.links[0].abort()
    host.leader.asked.clear()
    host.leader._headers.clear()
    request = host.next()
    assert (wishes(request), request.session_epoch, len(host.leader.links)) == ({0: (3, 0, -1)}, 0, 2)


def test_a_new_partition_does_not_wait_for_the_pending_fetch(host: FollowerNode) -> None:
    host.partition(0)
    host.answer(reply(0))
    host.next()
    late = host.partition(1)
    assert wishes(host.next(count=2)) == {}
    assert (wishes(host.leader.asked[1]), host.leader.asked[1].session_epoch) == ({1: (3, 0, -1)}, 2)
    host.answer()
    host.answer(reply(1, host.records(0, b"x")))
    assert wishes(host.next()) == {1: (3, 1, 3)}
    assert late.log.end_offset == 1


def test_what_begins_a_session_is_answered_at_once_so_that_others_can_join(host: FollowerNode) -> None:
    host.partition(0)
    assert host.next().max_wait_ms == 0
    host.partition(1)
    host.silence()
    host.answer()
    joining = host.next()
    assert wishes(joining) == {1: (3, 0, -1)}
    host.answer()
    assert host.next().max_wait_ms == replica_fetchers.WAIT_MS


def test_a_leader_without_room_for_sessions_is_not_asked_all_the_time(host: FollowerNode) -> None:
    host.partition(0)
    assert host.next().max_wait_ms == 0
    for _ in range(3):
        host.answer(session=0)
        again = host.next()
        assert (again.session_epoch, again.max_wait_ms) == (0, replica_fetchers.WAIT_MS)


def test_an_answer_to_an_older_question_changes_nothing(host: FollowerNode) -> None:
    host.partition(0)
    one = host.partition(1)
    host.answer(reply(0), reply(1))
    host.next()
    host.follow(one, 4)
    host.next(count=2)
    host.answer(reply(1, host.records(0, b"old")))
    host.sim.run_for(20)
    assert one.log.end_offset == 0
    host.answer(reply(1, host.records(0, b"new", epoch=4), high_watermark=1))
    assert wishes(host.next()) == {1: (4, 1, 4)}
    assert one.committed_offset == 1


def test_a_partition_that_fails_is_set_apart_and_the_others_go_on(host: FollowerNode) -> None:
    partition = host.partition(0)
    host.partition(1)
    host.answer(reply(0), reply(1, error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    request = host.next()
    assert (wishes(request), forgotten(request)) == ({}, [1])
    assert host.sim.run_until(lambda: any(1 in wishes(each) for each in host.leader.asked))
    host.answer(reply(0, host.records(0, b"x")))
    assert host.sim.run_until(lambda: partition.log.end_offset == 1)


def test_a_batch_that_was_damaged_on_its_way_is_asked_for_again(host: FollowerNode) -> None:
    partition = host.partition()
    damaged = bytearray(host.records(0, b"hello"))
    damaged[-3] ^= 1
    host.answer(reply(0, bytes(damaged), high_watermark=1))
    assert wishes(host.next()) == {0: (3, 0, -1)}
    assert partition.log.end_offset == partition.committed_offset == 0
    host.answer(reply(0, host.records(0, b"hello"), high_watermark=1))
    host.next()
    assert (partition.log.end_offset, partition.committed_offset, host.journal) == (1, 1, ["replica does not follow"])


def lead_and_lose(host: FollowerNode, partition: Partition) -> None:
    """This node led in epoch 3 and wrote records that were never replicated."""
    partition.apply_metadata(view(ME, 2, 2, "12", "12"))
    for number in range(20):
        partition.log.append(
            host.batch(b"v%d" % number), leader_epoch=2 if number < 10 else 3, now_ms=0, from_client=False
        )


def test_what_the_leader_does_not_have_is_cut_off_on_a_worker(host: FollowerNode) -> None:
    partition = host.partition(follows=False)
    other = host.partition(1)
    lead_and_lose(host, partition)
    host.follow(partition, 5)
    assert wishes(host.next())[0] == (5, 20, 3)
    host.answer(diverging(2, 12), reply(1))
    assert host.sim.run_until(lambda: host.fetchers.is_cutting(partition))
    assert sorted(forgotten(host.next())) == [0]
    host.answer(reply(1, host.records(0, b"x")))
    assert host.sim.run_until(lambda: host.fetchers.is_idle() and other.log.end_offset == 1)
    assert (partition.log.end_offset, partition.log.last_epoch, other.log.end_offset) == (10, 2, 1)
    assert host.sim.run_until(lambda: any(0 in wishes(each) for each in host.leader.asked))
    assert [wishes(each)[0] for each in host.leader.asked if 0 in wishes(each)] == [(5, 10, 2)]
    assert host.journal == ["replica truncated"]


def test_a_cut_waits_for_workers_that_have_files_of_the_log_in_hand(host: FollowerNode) -> None:
    """A removal in progress would delete files of the same names from the log that starts over."""
    partition = host.partition(follows=False)
    lead_and_lose(host, partition)
    removal = RemovalJob(host.world.disk, partition.log.folder, away=partition.log.durability.away)
    assert removal.begin()
    host.follow(partition, 5)
    host.answer(diverging(2, 12))
    host.sim.run_for(500)
    assert (partition.log.end_offset, host.fetchers.is_cutting(partition)) == (20, False)
    removal.end(is_done=True)
    assert host.sim.run_until(lambda: partition.log.end_offset == 10)


def test_epochs_that_wrote_nothing_are_forgotten_without_a_worker(host: FollowerNode) -> None:
    partition = host.partition(follows=False)
    partition.log.append(host.batch(b"v"), leader_epoch=2, now_ms=0, from_client=False)
    partition.log.epochs.assign(3, 1)
    host.follow(partition, 5)
    assert wishes(host.next()) == {0: (5, 1, 3)}
    host.answer(diverging(2, 1))
    assert wishes(host.next()) == {0: (5, 1, 2)}
    assert host.journal == []


def test_who_is_before_the_leaders_start_begins_anew_there(host: FollowerNode) -> None:
    partition = host.partition(follows=False)
    lead_and_lose(host, partition)
    host.follow(partition, 5)
    host.answer(reply(0, error=ErrorCode.OFFSET_OUT_OF_RANGE, start=105))
    asked = host.next()
    assert isinstance(asked, m.OffsetForLeaderEpochRequest)
    (wanted,) = asked.topics[0].partitions
    assert (asked.topics[0].topic, wanted.current_leader_epoch, wanted.leader_epoch) == ("pond", 5, 5)
    told = m.OffsetForLeaderEpochResponse.EpochEndOffset(partition=0, leader_epoch=5, end_offset=140)
    host.leader.answer(
        m.OffsetForLeaderEpochResponse(
            topics=[m.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic="pond", partitions=[told])]
        )
    )
    assert wishes(host.next()) == {0: (5, 105, -1)}
    assert (partition.log.start_offset, partition.log.end_offset, partition.committed_offset) == (105, 105, 105)
    batch = host.records(100, *(b"v%d" % number for number in range(10)), epoch=4)
    host.answer(reply(0, batch, high_watermark=110, start=105))
    assert wishes(host.next()) == {0: (5, 110, 4)}
    assert (partition.log.start_offset, partition.committed_offset) == (105, 110)


def test_the_start_of_the_log_follows_the_leaders(host: FollowerNode) -> None:
    partition = host.partition()
    host.answer(reply(0, host.records(0, b"a") + host.records(1, b"b"), high_watermark=2, start=1))
    assert host.next().topics[0].partitions[0].log_start_offset == 1
    assert (partition.log.start_offset, partition.committed_offset) == (1, 2)


def test_the_leader_hears_of_a_new_start_when_it_is_on_the_disk(
    host: FollowerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cluster seed 1200196: DeleteRecords was acknowledged, the follower was killed, and had the records again."""
    host.partition()
    asked: list[Later[None]] = []

    def write() -> Later[None]:
        asked.append(Later())
        return asked[-1]

    monkeypatch.setattr(host.services.checkpoints, "write", write)
    host.answer(reply(0, host.records(0, b"a") + host.records(1, b"b"), high_watermark=2, start=1))
    host.sim.run_until(lambda: bool(asked))
    host.silence()
    asked[0].fail(OSError("not now"))
    host.sim.run_until(lambda: len(asked) == 2)
    asked[1].finish(None)
    assert host.next().topics[0].partitions[0].log_start_offset == 1


def test_where_records_must_be_synced_the_next_fetch_waits_for_the_disk(host: FollowerNode) -> None:
    partition = host.partition()
    partition.flush_ack = "always"
    host.answer(reply(0, host.records(0, b"a")))
    assert host.sim.run_until(lambda: partition.log.end_offset == 1)
    host.next()
    assert partition.log.synced_offset == 1


def test_who_has_a_new_leader_claims_only_what_is_synced(host: FollowerNode) -> None:
    partition = host.partition()
    partition.flush_ack = "always"
    host.next()
    # The previous leader's response was appended, and its sync is still running.
    partition.append_fetched(memoryview(bytearray(host.records(0, b"a"))))
    host.follow(partition, 4)
    while wishes(host.next()).get(0, (0,))[0] != 4:
        host.answer()
    assert wishes(host.next())[0][:2] == (4, 1)
    assert partition.log.synced_offset == 1


def test_who_shall_have_a_partition_alone_claims_only_what_is_synced(host: FollowerNode) -> None:
    partition = host.partition(follows=False)
    partition.apply_metadata(PartitionView(LEADER, 3, 3, (ME, LEADER), (LEADER,), False, (ME,), (LEADER,)))
    host.fetchers.follow(partition)
    host.answer(reply(0, host.records(0, b"a")))
    assert host.sim.run_until(lambda: partition.log.end_offset == 1)
    host.next()
    assert partition.log.synced_offset == 1


def test_what_is_forgotten_is_not_asked_for_any_more(host: FollowerNode) -> None:
    host.partition(0)
    gone = host.partition(1)
    host.answer(reply(0), reply(1))
    host.next()
    host.fetchers.forget(gone)
    host.answer()
    assert forgotten(host.next()) == [1]
    host.answer(reply(1, host.records(0, b"late")))
    host.next()
    assert gone.log.end_offset == 0


def test_without_followed_partitions_nothing_is_fetched(host: FollowerNode) -> None:
    partition = host.partition()
    host.answer(reply(0))
    host.next()
    host.fetchers.forget(partition)
    host.answer()
    host.sim.run_for(50)
    host.silence(2_000)
    host.follow(partition, 4)
    request = host.next()
    assert (wishes(request), forgotten(request)) == ({0: (4, 0, -1)}, [])


def test_a_log_that_has_failed_claims_nothing(host: FollowerNode) -> None:
    host.partition(0)
    failed = host.partition(1, follows=False)
    failed.log.fail(OSError("a sync failed"))
    host.follow(failed, 3)
    assert wishes(host.next()) == {0: (3, 0, -1)}


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda _: diverging(3, 2), id="cut back"),
        pytest.param(lambda _: diverging(3, 4), id="forget epochs that wrote nothing"),
        pytest.param(lambda host: reply(records=host.records(4, b"e")), id="append"),
        pytest.param(lambda _: reply(start=2), id="begin later"),
        pytest.param(lambda _: reply(), id="nothing"),
    ],
)
def test_a_log_that_fails_while_the_leader_answers_takes_nothing_in(
    host: FollowerNode, answer: Callable[[FollowerNode], Reply]
) -> None:
    """Damage can be found at any time: the node must keep running, to fetch the replica from its leader again."""
    partition = host.partition()
    host.answer(reply(records=host.records(0, b"a", b"b", b"c", b"d")))
    host.next()
    partition.log.fail(OSError("damaged"))
    host.answer(answer(host))
    host.silence(2_000)
    assert (partition.log.start_offset, partition.log.end_offset, partition.log.last_epoch) == (0, 4, 3)


def test_many_partitions_join_in_slices_without_delay(host: FollowerNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_fetchers, "WISHES_MAX", 4)
    for index in range(10):
        host.partition(index)
    named: list[int] = []
    waits: list[int] = []
    for _ in range(3):
        request = host.next()
        named += wishes(request)
        waits.append(request.max_wait_ms)
        host.answer(*(reply(index) for index in wishes(request)))
    assert (named, waits) == (list(range(10)), [0, 0, 500])
    assert wishes(host.next()) == {}


def test_a_leader_that_does_not_know_it_yet_is_asked_again_soon_and_then_less_often(host: FollowerNode) -> None:
    host.partition()
    waits = []
    for _ in range(7):
        host.answer(reply(0, error=ErrorCode.UNKNOWN_LEADER_EPOCH), session=0)
        began_ms = host.sim.clock.now_ms
        host.next()
        waits.append(host.sim.clock.now_ms - began_ms)
    assert waits[0] <= 15, waits
    assert all(50 <= wait <= 115 for wait in waits[5:]), waits


def test_a_node_that_is_not_registered_asks_nothing(host: FollowerNode) -> None:
    host.broker_epoch = -1
    host.partition()
    host.silence(500)
    host.broker_epoch = 78
    assert host.next().replica_state.replica_epoch == 78


def test_an_answer_that_comes_while_records_are_synced_is_not_taken_for_theirs(host: FollowerNode) -> None:
    one = host.partition(0)
    one.flush_ack = "always"
    host.answer(reply(0))
    host.next()
    host.partition(1)
    host.next(count=2)
    # The high watermark advances before the leader knows that this node has the records.
    host.answer(reply(0, host.records(0, b"a")))
    host.answer(reply(0, high_watermark=1), reply(1))
    assert wishes(host.next()) == {0: (3, 1, 3)}
    host.answer(reply(0, high_watermark=1))
    host.next()
    assert one.committed_offset == 1


def test_committed_records_that_the_leader_lacks_are_kept_when_they_are_cut_off(host: FollowerNode) -> None:
    """A leader with wrong metadata must not be able to delete the last copy."""
    partition = host.partition()
    host.answer(reply(0, host.records(0, b"a") + host.records(1, b"b"), high_watermark=2))
    host.next()
    assert partition.committed_offset == 2
    before = partition.log.read_batches(1, 1 << 20)
    host.answer(diverging(3, 1))
    assert wishes(host.next()) == {0: (3, 1, 3)}
    assert host.journal == [CUT_BELOW_COMMITTED]
    assert host.world.disk.read(f"{partition.log.folder}/{1:020d}.cut") == before


def test_a_log_that_begins_anew_further_back_notes_that_before_it_grows(host: FollowerNode) -> None:
    """An old start offset that is still recorded would hide the new records after the next crash."""
    partition = host.partition()
    host.answer(reply(0, host.records(0, b"a") + host.records(1, b"b"), high_watermark=2, start=2))
    host.next()
    assert host.store.noted_start(partition.name) == partition.log.start_offset == 2
    host.answer(diverging(3, 1))
    assert wishes(host.next())[0][1] == 1
    assert host.store.noted_start(partition.name) == partition.log.start_offset == 1


def test_a_new_follower_tells_of_a_start_only_when_it_is_noted(host: FollowerNode) -> None:
    partition = host.partition(follows=False)
    partition.log.append(host.batch(b"v", b"w"), leader_epoch=2, now_ms=0, from_client=False)
    partition.log.delete_before(1)
    assert host.store.noted_start(partition.name) == 0
    host.follow(partition, 3)
    assert host.next().topics[0].partitions[0].log_start_offset == 1
    assert host.store.noted_start(partition.name) == 1
