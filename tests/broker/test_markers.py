"""Markers reach every partition of a transaction, on any leader; it completes only once all are committed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import TopicPartition
from millpond.base.later import Later
from millpond.broker.coordination import markers
from millpond.broker.coordination.markers import ASK_MS, MARKERS_AT_ONCE_MAX, TRY_AGAIN_MS, Markers
from millpond.broker.peers.requester import RequestLost
from millpond.coordinators.transactions.shard import WriteMarkers
from millpond.metadata.image import Image
from millpond.metadata.records import PartitionChangeRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m

ME, B, C = 1, 2, 3
POND, STATE = UUID(int=10), UUID(int=11)
EPOCH = 4


class Peers:
    """The other nodes: each request waits here until the test answers it."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[tuple[str, int]], Later[Any]]] = []

    def ask(self, node_id: int, request: m.WriteTxnMarkersRequest, version: int, timeout_ms: int) -> Later[Any]:
        (marker,) = request.markers
        assert (version, timeout_ms, marker.coordinator_epoch, marker.transaction_version) == (2, ASK_MS, EPOCH, 2)
        names = [(topic.name, index) for topic in marker.topics for index in topic.partition_indexes]
        later: Later[Any] = Later()
        self.asked.append((node_id, names, later))
        return later

    def answer(self, node_id: int, **codes: ErrorCode) -> None:
        """Answer the last request; without codes, all markers are written."""
        at = [asked_id for asked_id, _, _ in self.asked].index(node_id)
        _, names, later = self.asked.pop(at)
        result = m.WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult
        topics = [
            m.WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(
                name=name, partitions=[result(partition_index=i, error_code=codes.get(f"p{i}", ErrorCode.NONE))]
            )
            for name, i in names
        ]
        marker = m.WriteTxnMarkersResponse.WritableTxnMarkerResult(producer_id=7, topics=topics)
        later.finish(m.WriteTxnMarkersResponse(markers=[marker]))

    def lose(self) -> None:
        asked, self.asked = self.asked, []
        for _, _, later in asked:
            later.fail(RequestLost("cut"))

    def seen(self) -> list[tuple[int, list[int]]]:
        return [(node_id, [index for _, index in names]) for node_id, names, _ in self.asked]


class LocalPartition:
    """A partition that this node leads; the test decides when a marker in it is committed."""

    def __init__(self) -> None:
        self.name = TopicPartition("pond", 0)
        self.written: list[bool] = []
        self.commits: list[Later[Any]] = []
        self.refusal: Refused | None = None

    def append_marker(self, producer_id: int, epoch: int, committed: bool, *_: int) -> Any:
        if self.refusal is not None:
            raise self.refusal
        self.written.append(committed)
        return SimpleNamespace(first_offset=5, last_offset=5)

    def after_commit(self, end_offset: int, value: Any) -> Later[Any]:
        assert end_offset == 6
        self.commits.append(Later())
        return self.commits[-1]


class CoordinatorNode:
    """This node coordinates; `leaders` maps each partition of the topic to its leader."""

    def __init__(self, leaders: list[int]) -> None:
        self.sim = SimWorld(1)
        self.clock = self.sim.start("node").clock
        self.node_id = ME
        self.image = Image()
        self.is_stopping = False
        for topic, topic_id, nodes, epoch in (
            ("pond", POND, leaders, 0),
            ("__transaction_state", STATE, [ME], EPOCH),
        ):
            self.image.replay(TopicRecord(topic, topic_id))
            for index, leader in enumerate(nodes):
                replicas = (leader, *({ME, B, C} - {leader}))
                self.image.replay(
                    PartitionRecord(index, topic_id, replicas, replicas, leader=leader, leader_epoch=epoch)
                )
        self.own = LocalPartition()
        self.own_is_open = True
        self.marker_peers = Peers()
        self.partitions = SimpleNamespace(by_id=lambda *_: self.own if self.own_is_open else None)
        self.groups = SimpleNamespace(topic="__consumer_offsets")
        self.completed: list[str] = []
        shard = SimpleNamespace(
            coordinator_epoch=EPOCH,
            markers_written=lambda name, *_: self.completed.append(name),
            awaits_markers=lambda name, *_: name not in self.completed,
        )
        shard_host = SimpleNamespace(shard=shard, run=lambda decide: decide(shard, 0))
        self.transactions = SimpleNamespace(
            topic="__transaction_state", partition_of=lambda _: 0, shard_host_of=lambda _: shard_host
        )
        self.markers = Markers(self)  # type: ignore[arg-type]
        self.order = WriteMarkers(
            "tx", 7, 1, True, EPOCH, tuple(TopicPartition("pond", i) for i in range(len(leaders))), 2
        )

    def begin(self) -> Peers:
        self.markers.carry_out(self.order)
        return self.marker_peers

    def lead(self, topic_id: UUID, index: int, leader: int) -> None:
        self.image.replay(PartitionChangeRecord(index, topic_id, leader=leader))
        self.markers.on_leaders_changed()

    def ends(self, step: Callable[[], None]) -> bool:
        """Whether this step, and none before it, completes the transaction."""
        assert self.completed == []
        assert self.markers.under_way("tx")
        step()
        return self.completed == ["tx"] and not self.markers.under_way("tx")


def test_each_leader_is_asked_once_for_all_its_partitions() -> None:
    coordinator = CoordinatorNode([ME, B, C, B])
    peers = coordinator.begin()
    assert peers.seen() == [(B, [1, 3]), (C, [2])]
    assert coordinator.own.written == [True]
    peers.answer(C)
    peers.answer(B)
    assert coordinator.ends(lambda: coordinator.own.commits[0].finish(None))


def test_a_marker_counts_when_it_is_committed_and_the_last_one_ends_the_transaction_once() -> None:
    """KAFKA-17507 and 17877: the reply came before all markers were committed, or one was counted twice."""
    coordinator = CoordinatorNode([ME, B])
    peers = coordinator.begin()
    coordinator.own.commits[0].finish(None)
    coordinator.sim.run_for(5_000)
    assert coordinator.completed == [], "what another node has not said is not done"
    assert coordinator.ends(lambda: peers.answer(B))
    coordinator.sim.run_for(60_000)
    assert (coordinator.completed, peers.asked, coordinator.own.written) == (["tx"], [], [True])


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_ENOUGH_REPLICAS]
)
def test_what_may_pass_is_asked_again_and_only_where_it_is_left(code: ErrorCode) -> None:
    coordinator = CoordinatorNode([B, B, C])
    peers = coordinator.begin()
    peers.answer(C)
    peers.answer(B, p1=code)
    assert peers.asked == []
    coordinator.sim.run_for(TRY_AGAIN_MS)
    assert peers.seen() == [(B, [1])]
    assert coordinator.ends(lambda: peers.answer(B))


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
def test_a_marker_that_was_overtaken_is_done(code: ErrorCode) -> None:
    coordinator = CoordinatorNode([B])
    peers = coordinator.begin()
    assert coordinator.ends(lambda: peers.answer(B, p0=code))


def test_a_lost_answer_is_no_answer() -> None:
    coordinator = CoordinatorNode([B])
    peers = coordinator.begin()
    peers.lose()
    coordinator.sim.run_for(TRY_AGAIN_MS)
    assert peers.seen() == [(B, [0])]


def test_a_new_leader_is_asked_at_once_and_the_old_one_is_not_heard_any_more() -> None:
    coordinator = CoordinatorNode([B, B])
    peers = coordinator.begin()
    (_, _, silent) = peers.asked.pop()
    coordinator.lead(POND, 0, C)
    assert peers.seen() == [(C, [0])]
    peers.answer(C)
    late = m.WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(partition_index=0, error_code=ErrorCode.NONE)
    topic = m.WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(name="pond", partitions=[late])
    marker = m.WriteTxnMarkersResponse.WritableTxnMarkerResult(producer_id=7, topics=[topic])
    silent.finish(m.WriteTxnMarkersResponse(markers=[marker]))
    assert coordinator.completed == [], "partition 1 has said nothing"
    coordinator.sim.run_for(TRY_AGAIN_MS)
    assert peers.seen() == [(B, [1])]
    assert coordinator.ends(lambda: peers.answer(B))


def test_a_partition_without_leader_waits_for_one() -> None:
    coordinator = CoordinatorNode([B])
    coordinator.image.replay(PartitionChangeRecord(0, POND, leader=-1))
    peers = coordinator.begin()
    coordinator.sim.run_for(60_000)
    assert (peers.asked, coordinator.completed) == ([], [])
    coordinator.lead(POND, 0, C)
    assert coordinator.ends(lambda: peers.answer(C))


def test_a_partition_that_is_not_open_here_is_not_gone() -> None:
    coordinator = CoordinatorNode([ME])
    coordinator.own_is_open = False
    coordinator.begin()
    coordinator.sim.run_for(60_000)
    assert coordinator.completed == []
    coordinator.own_is_open = True
    coordinator.sim.run_for(20_000)
    assert coordinator.ends(lambda: coordinator.own.commits[0].finish(None))


def test_a_deleted_topic_needs_no_marker() -> None:
    coordinator = CoordinatorNode([B])
    peers = coordinator.begin()
    peers.lose()
    coordinator.image.replay(RemoveTopicRecord(POND))
    assert coordinator.ends(lambda: coordinator.sim.run_for(TRY_AGAIN_MS))


def test_the_same_order_again_changes_nothing_and_another_one_replaces_it() -> None:
    coordinator = CoordinatorNode([B])
    peers = coordinator.begin()
    coordinator.begin()
    assert peers.seen() == [(B, [0])]
    (_, _, first) = peers.asked.pop()
    coordinator.order = WriteMarkers("tx", 7, 3, False, EPOCH, coordinator.order.partitions, 2)
    coordinator.begin()
    first.fail(RequestLost("cut"))
    coordinator.sim.run_for(TRY_AGAIN_MS * 4)
    assert peers.seen() == [(B, [0])], "the order before is not tried again"
    assert coordinator.ends(lambda: peers.answer(B))


def test_an_order_that_was_given_anew_and_is_carried_out_late_ends_no_later_transaction() -> None:
    coordinator = CoordinatorNode([B])
    peers = coordinator.begin()
    assert coordinator.ends(lambda: peers.answer(B))
    # The way a coordinator that was reloaded meanwhile orders it, once its log is committed.
    coordinator.begin()
    assert (peers.asked, coordinator.markers.under_way("tx")) == ([], False)


def test_who_coordinates_no_more_gives_the_order_up_and_says_nothing_of_it() -> None:
    """The next coordinator finds the decision in its log, and writes the markers under its own epoch."""
    coordinator = CoordinatorNode([B])
    peers = coordinator.begin()
    replies: list[object] = []
    coordinator.markers.written("tx", 10_000).then(replies.append)
    peers.lose()
    coordinator.lead(STATE, 0, C)
    coordinator.sim.run_for(60_000)
    assert (peers.asked, coordinator.completed) == ([], [])
    assert not coordinator.markers.under_way("tx")
    assert replies == [None], "the caller asks again and learns the new coordinator"


def test_many_markers_are_written_in_several_turns_of_the_loop() -> None:
    coordinator = CoordinatorNode([ME] * 200)
    names = [f"tx{number}" for number in range(10)]
    for name in names:
        coordinator.markers.carry_out(WriteMarkers(name, 7, 1, True, EPOCH, coordinator.order.partitions, 2))
    assert all(map(coordinator.markers.under_way, names))
    written = [0, len(coordinator.own.written)]
    while coordinator.sim.clock.step():
        written.append(len(coordinator.own.written))
    assert written[-1] == 10 * 200
    assert max(after - before for before, after in pairwise(written)) <= MARKERS_AT_ONCE_MAX
    for commit in coordinator.own.commits:
        commit.finish(None)
    assert coordinator.completed == names


def test_those_of_one_transaction_are_asked_for_in_several_turns_and_the_leaders_are_those_of_the_turn() -> None:
    coordinator = CoordinatorNode([B] * (MARKERS_AT_ONCE_MAX + 2))
    peers = coordinator.begin()
    assert peers.seen() == [(B, list(range(MARKERS_AT_ONCE_MAX)))]
    peers.answer(B)
    assert (peers.asked, coordinator.completed) == ([], [])
    coordinator.lead(POND, MARKERS_AT_ONCE_MAX, C)
    coordinator.sim.run_for(1)
    assert peers.seen() == [(C, [MARKERS_AT_ONCE_MAX]), (B, [MARKERS_AT_ONCE_MAX + 1])]
    peers.answer(B)
    assert coordinator.ends(lambda: peers.answer(C))


@pytest.mark.parametrize("leader", [ME, B])
def test_what_a_marker_costs_does_not_grow_with_the_partitions_of_its_transaction(
    leader: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[object] = []

    class CountingTarget(markers._Target):
        def __hash__(self) -> int:
            looked_up.append(self)
            return super().__hash__()

        def __eq__(self, other: object) -> bool:
            looked_up.append(self)
            return super().__eq__(other)

    monkeypatch.setattr(markers, "_Target", CountingTarget)
    coordinator = CoordinatorNode([leader] * 400)
    peers = coordinator.begin()
    coordinator.sim.run_for(1)
    while peers.asked:
        peers.answer(leader)
    for commit in coordinator.own.commits:
        commit.finish(None)
    assert coordinator.completed == ["tx"]
    assert len(looked_up) < 400 * 30


def test_an_order_that_is_replaced_before_its_turn_is_not_carried_out() -> None:
    coordinator = CoordinatorNode([ME] * MARKERS_AT_ONCE_MAX)
    coordinator.markers.carry_out(WriteMarkers("first", 8, 1, True, EPOCH, coordinator.order.partitions, 2))
    coordinator.begin()
    coordinator.order = WriteMarkers("tx", 7, 3, False, EPOCH, coordinator.order.partitions, 2)
    coordinator.begin()
    coordinator.sim.run_for(1)
    assert coordinator.own.written == [True] * MARKERS_AT_ONCE_MAX + [False] * MARKERS_AT_ONCE_MAX
