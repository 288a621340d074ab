"""A node's metrics, in simulated worlds: the numbers match what was done."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.permissions import permitted

from millpond.base.errors import ErrorCode
from millpond.base.later import Later
from millpond.broker.loop.shared_run import SharedRun
from millpond.broker.loop.steps import PAUSE_MS, PAUSE_SHARE, Steps, run_steps
from millpond.broker.metrics.exposition import Exposition, labels
from millpond.broker.metrics.groups import GroupMetrics
from millpond.broker.metrics.page import ASK_BYTES, FRESH_MS, GIVEN_BYTES_MAX, SHARE, Page, PageMaker
from millpond.broker.metrics.readiness import unready_reason
from millpond.sim.clients.client import SimClient
from millpond.sim.cluster.cluster import SimCluster
from millpond.sim.history.records import History
from millpond.sim.node import PORT
from millpond.sim.world.clock import WALL_START_MS, VirtualClock
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m

Samples = dict[str, float]


def samples(text: str) -> Samples:
    """Values by name and labels."""
    result: Samples = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            assert name not in result, f"{name} is there twice"
            result[name] = float(value)
    return result


def page_of(sim: Any, broker: Any, maker: PageMaker | None = None) -> str:
    replies: list[Page] = []
    (maker or broker.contexts.bind(PageMaker)()).page().then(replies.append)
    assert sim.run_until(lambda: bool(replies), within_ms=10_000)
    return b"".join(replies[0].parts).decode()


def produce(caller: Any, records: Any, *, topic: str = "pond", index: int = 0, acks: int = -1) -> Any:
    data = m.ProduceRequest.PartitionProduceData(index=index, records=bytes(records))
    request = m.ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )
    return caller.ask(request, 9)


def commit(caller: Any, offset: int, *, topic: str = "pond", group: str = "g") -> None:
    kind = m.OffsetCommitRequest
    partition = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = kind(group_id=group, topics=[kind.OffsetCommitRequestTopic(name=topic, partitions=[partition])])
    reply = caller.ask(request, 8, within_ms=5_000)
    assert reply.topics[0].partitions[0].error_code == 0


# The format.


def test_families_stand_together_and_labels_are_escaped() -> None:
    page = Exposition()
    first, second = page.gauge("one", "The first."), page.counter("two_total", "The second.")
    first.add(1, labels(name='a "b"\\\nc'))
    second.add(2)
    page.seal()
    first.add(3.5)
    assert b"".join(page.parts()).decode() == (
        "# HELP one The first.\n# TYPE one gauge\n"
        'one{name="a \\"b\\"\\\\\\nc"} 1\none 3.5\n'
        "# HELP two_total The second.\n# TYPE two_total counter\ntwo_total 2\n"
    )


def test_steps_give_way_and_wait() -> None:
    clock = VirtualClock()
    moments: list[int] = []

    def work() -> Steps[str]:
        moments.append(clock.now_ms)
        yield None
        moments.append(clock.now_ms)
        with pytest.raises(OSError, match="gone"):
            yield _failing()
        return "done"

    replies: list[str] = []
    run_steps(clock, work()).then(replies.append)
    assert replies == []
    clock.run_for(10)
    assert replies == ["done"]
    assert moments == [0, PAUSE_MS]


def _failing() -> Any:
    from millpond.base.later import failed

    return failed(OSError("gone"))


# One node.


def test_what_is_written_read_and_acknowledged_is_counted(server: Any, make_batch: Callable[..., memoryview]) -> None:
    server.create()
    caller = server.connect()
    records = make_batch(b"one", b"two")
    assert produce(caller, records).responses[0].partition_responses[0].error_code == 0
    fetched = m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    caller.ask(
        m.FetchRequest(
            max_wait_ms=0,
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=[m.FetchRequest.FetchTopic(topic="pond", partitions=[fetched])],
        ),
        11,
    )
    metrics = samples(page_of(server.sim, server.broker))
    at = '{topic="pond",partition="0"}'
    assert metrics["millpond_partition_written_records_total" + at] == 2
    assert metrics["millpond_partition_written_bytes_total" + at] == len(records)
    assert metrics["millpond_partition_read_bytes_total" + at] == len(records)
    assert metrics["millpond_partition_log_end_offset" + at] == metrics["millpond_partition_high_watermark" + at] == 2
    assert metrics["millpond_partition_size_bytes" + at] == len(records)
    assert metrics["millpond_partition_in_sync_replicas" + at] == metrics["millpond_partition_leader" + at] == 1
    assert metrics["millpond_partition_under_replicated" + at] == 0
    assert metrics['millpond_produce_acknowledge_seconds_count{topic="pond"}'] == 1
    assert metrics['millpond_requests_total{api="Produce"}'] == metrics['millpond_requests_total{api="Fetch"}'] == 1
    assert metrics['millpond_request_seconds_count{api="Produce"}'] == 1
    assert metrics["millpond_partitions_led"] == 1
    assert (
        metrics["millpond_node_ready"]
        == metrics["millpond_controller_active"]
        == metrics["millpond_quorum_voters"]
        == 1
    )
    assert metrics["millpond_disk_free_bytes"] > 0


def test_the_acknowledgement_is_timed_from_the_arrival(server: Any, make_batch: Callable[..., memoryview]) -> None:
    """The simulated disk takes time to sync; acks=1 does not wait for it."""
    server.create()
    caller = server.connect()
    produce(caller, make_batch(b"quick"), acks=1)
    histogram = server.broker.partitions.get("pond", 0).acknowledged
    assert (histogram.count, histogram.sum_us) == (1, 0)
    began_ms = server.sim.clock.now_ms
    produce(caller, make_batch(b"slow"))
    assert histogram.count == 2
    assert 0 < histogram.sum_us <= (server.sim.clock.now_ms - began_ms) * 1000


def test_errors_are_counted_by_api_and_name(server: Any, make_batch: Callable[..., memoryview]) -> None:
    server.create()
    caller = server.connect()
    reply = produce(caller, make_batch(b"x"), topic="absent")
    assert reply.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    metrics = samples(page_of(server.sim, server.broker))
    assert metrics['millpond_request_errors_total{api="Produce",error="UNKNOWN_TOPIC_OR_PARTITION"}'] == 1
    assert not any("acknowledge_seconds_count" in name for name in metrics)


def test_partitions_without_a_committed_offset_are_unread(server: Any, make_batch: Callable[..., memoryview]) -> None:
    server.create(partitions=2)
    caller = server.connect()
    caller.ask(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4, within_ms=5_000)
    produce(caller, make_batch(b"a", b"b"))
    produce(caller, make_batch(b"c", b"d", b"e"), index=1)
    commit(caller, 1)
    metrics = samples(page_of(server.sim, server.broker))
    at = '{group="g",topic="pond",partition="1"}'
    assert metrics["millpond_group_lag_records" + at] == 3
    assert metrics["millpond_group_lost_records" + at] == 0
    assert "millpond_group_committed_offset" + at not in metrics


def test_the_lag_of_a_group_in_records_and_seconds(server: Any, make_batch: Callable[..., memoryview]) -> None:
    server.create()
    caller = server.connect()
    caller.ask(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4, within_ms=5_000)
    for at in range(3):
        produce(caller, make_batch(b"a", b"b", timestamp=WALL_START_MS + at * 1_000))
    commit(caller, 3)
    commit(caller, 6, group='a "b"')
    server.sim.run_for(10_000)
    maker = server.broker.contexts.bind(PageMaker)()
    at = '{group="g",topic="pond",partition="0"}'
    for _ in range(2):
        # The second time the record's age comes from the cache, and still grows.
        now_ms = server.sim.clock.wall_ms()
        metrics = samples(page_of(server.sim, server.broker, maker))
        assert metrics["millpond_group_committed_offset" + at] == 3
        assert metrics["millpond_group_lag_records" + at] == 3
        assert metrics["millpond_group_lost_records" + at] == 0
        seconds = (now_ms - WALL_START_MS - 1_000) / 1000
        assert seconds <= metrics["millpond_group_lag_seconds" + at] <= seconds + 1
        server.sim.run_for(5_000)
    ahead = '{group="a \\"b\\"",topic="pond",partition="0"}'
    assert metrics["millpond_group_lag_records" + ahead] == metrics["millpond_group_lag_seconds" + ahead] == 0
    files = [segment.open_file for segment in server.broker.partitions.get("pond", 0).log.segments]
    assert not any(file is not None and file.is_held() for file in files)


def test_the_age_of_a_record_is_that_of_the_topic_that_is_there_now(
    server: Any, make_batch: Callable[..., memoryview]
) -> None:
    server.create()
    caller = server.connect()
    caller.ask(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4, within_ms=5_000)
    produce(caller, make_batch(b"old", timestamp=WALL_START_MS))
    commit(caller, 0)
    server.sim.run_for(100_000)
    maker = server.broker.contexts.bind(PageMaker)()
    age = 'millpond_group_lag_seconds{group="g",topic="pond",partition="0"}'
    assert samples(page_of(server.sim, server.broker, maker))[age] >= 100
    server.delete("pond")
    server.run(2_000)
    server.create()
    produce(caller, make_batch(b"new", timestamp=server.broker.clock.wall_ms()))
    commit(caller, 0)
    server.sim.run_for(2_000)
    assert samples(page_of(server.sim, server.broker, maker))[age] < 50


def test_the_end_of_a_transaction_is_no_lag(server: Any, make_batch: Callable[..., memoryview]) -> None:
    partition = server.create()
    caller = server.connect()
    caller.ask(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4, within_ms=5_000)
    for sequence in range(2):
        permit = permitted(partition.log.producers, 7, 0, sequence, server.broker.clock.wall_ms())
        fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}
        partition.append(make_batch(b"a", **fields), zstd=True, verification=permit)
        partition.append_marker(7, 0, True, 0, 0)
    server.sim.run_for(5_000)
    maker = server.broker.contexts.bind(PageMaker)()
    at = '{group="g",topic="pond",partition="0"}'
    # The records are at 0 and 2, their transaction markers at 1 and 3.
    for committed, lag in ((0, 4), (1, 2), (2, 2), (3, 0), (4, 0)):
        commit(caller, committed)
        # A page is cached briefly.
        server.sim.run_for(2_000)
        metrics = samples(page_of(server.sim, server.broker, maker))
        assert metrics["millpond_group_lag_records" + at] == lag, committed
        assert (metrics["millpond_group_lag_seconds" + at] > 0) == (lag > 0), committed
    commit(caller, 3)
    produce(caller, make_batch(b"b", timestamp=server.broker.clock.wall_ms()))
    server.sim.run_for(2_000)
    # Nothing is cached from the scrape before the record.
    metrics = samples(page_of(server.sim, server.broker, maker))
    assert metrics["millpond_group_lag_records" + at] == 1
    assert 1 < metrics["millpond_group_lag_seconds" + at] < 5


def test_records_that_were_deleted_unread_are_lost(server: Any, make_batch: Callable[..., memoryview]) -> None:
    partition = server.create()
    caller = server.connect()
    caller.ask(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4, within_ms=5_000)
    produce(caller, make_batch(b"a", b"b", b"c"))
    commit(caller, 0)
    partition.delete_before(2)
    metrics = samples(page_of(server.sim, server.broker))
    at = '{group="g",topic="pond",partition="0"}'
    assert (metrics["millpond_group_lost_records" + at], metrics["millpond_group_lag_records" + at]) == (2, 1)


def test_rebalances_and_members_are_counted_while_the_group_is_there(server: Any) -> None:
    server.create()
    caller = server.connect()
    caller.ask(m.FindCoordinatorRequest(key="g", key_type=0), 3, within_ms=5_000)
    request = m.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="me",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=["pond"],
        topic_partitions=[],
    )
    assert caller.ask(request, 1, within_ms=5_000).error_code == 0
    server.run(1_000)
    metrics = samples(page_of(server.sim, server.broker))
    assert metrics['millpond_group_members{group="g"}'] == 1
    assert metrics['millpond_group_rebalances_total{group="g"}'] >= 1
    assert any(name.startswith('millpond_group_state{group="g",state=') for name in metrics)
    server.broker.rebalances.add("gone", 1, 5)
    page_of(server.sim, server.broker)
    assert server.broker.rebalances.of("gone").times == 0
    # A group that is created while others are being collected has not gone.
    steps = server.broker.contexts.bind(GroupMetrics)()._collect_groups(Exposition())
    next(steps)
    server.broker.rebalances.add("comes", 1, 5)
    list(steps)
    assert server.broker.rebalances.of("comes").times == 1


def test_dead_letters_and_retention_are_those_of_their_topics(
    server: Any, make_batch: Callable[..., memoryview]
) -> None:
    server.create("orders.dlq", retention_ms="60000", retention_bytes="1000")
    server.create("kept", cleanup_policy="compact")
    produce(server.connect(), make_batch(b"a", b"b"), topic="orders.dlq")
    metrics = samples(page_of(server.sim, server.broker))
    assert metrics['millpond_dead_letters{topic="orders.dlq"}'] == 2
    assert metrics['millpond_topic_retention_seconds{topic="orders.dlq"}'] == 60
    assert metrics['millpond_topic_retention_bytes{topic="orders.dlq"}'] == 1000
    assert 'millpond_topic_retention_seconds{topic="kept"}' not in metrics


def test_many_partitions_are_told_in_slices_and_once_for_all_who_ask(server: Any) -> None:
    server.create("wide", 400)
    maker = server.broker.contexts.bind(PageMaker)()
    replies: list[Page] = []
    for _ in range(3):
        maker.page().then(replies.append)
    turns = 0
    while not replies:
        assert server.sim.clock.step()
        turns += 1
    assert turns > 400 / 50, "all at once"
    assert len(replies) == 3
    assert replies[0] is replies[1] is replies[2]
    assert len(samples(b"".join(replies[0].parts).decode())) > 400 * 10
    maker.page().then(replies.append)
    assert replies[3] is replies[0], "asked again at once"
    server.sim.run_for(FRESH_MS)
    maker.page().then(replies.append)
    assert server.sim.run_until(lambda: len(replies) == 5, within_ms=5_000)
    assert replies[4] is not replies[0]


class BusyClock:
    """A clock on which work takes as long as the test says."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self.worked_us = 0

    def monotonic_us(self) -> int:
        return int(self._clock.monotonic_us()) + self.worked_us

    def monotonic_ms(self) -> int:
        return self.monotonic_us() // 1000

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)


def test_a_step_is_followed_by_a_pause_that_is_longer() -> None:
    virtual = VirtualClock()
    clock: Any = BusyClock(virtual)
    moments: list[int] = []

    def work() -> Steps[None]:
        for took_ms in (0, 5, 10_000):
            moments.append(virtual.now_ms)
            clock.worked_us += took_ms * 1000
            yield None
        moments.append(virtual.now_ms)

    spent: list[int] = []
    run_steps(clock, work(), spent.append)
    virtual.run_for(10_000)
    assert moments == [0, PAUSE_MS, PAUSE_MS + 5 * PAUSE_SHARE, PAUSE_MS + 5 * PAUSE_SHARE + 50]
    assert spent == [0, 5_000, 10_000_000, 0]


@pytest.mark.parametrize("page_ms", [1, 100, 200])
def test_who_asks_without_a_pause_has_a_twentieth_of_the_loop(
    server: Any, monkeypatch: pytest.MonkeyPatch, page_ms: int
) -> None:
    clock = BusyClock(server.broker.clock)
    monkeypatch.setattr(server.broker.contexts.node, "clock", clock)

    def costly(_: Exposition) -> Steps[None]:
        for _step in range(20):
            clock.worked_us += page_ms * 50
            yield None

    maker = server.broker.contexts.bind(PageMaker)((costly,))
    given: list[Page] = []

    def ask() -> None:
        maker.page().then(take)

    def take(page: Page) -> None:
        given.append(page)
        page.body(False).then(lambda _: clock.call_soon(ask))

    began_us = clock.monotonic_us()
    ask()
    server.sim.run_for(60_000)
    passed_us = clock.monotonic_us() - began_us
    assert clock.worked_us * SHARE <= passed_us * 1.05
    pages = len(set(given))
    assert pages >= 10, "and pages there are"
    assert len(given) <= pages * (GIVEN_BYTES_MAX // ASK_BYTES + 1), "without end"


def test_a_large_page_is_not_sent_without_end(server: Any) -> None:
    def wordy(page: Exposition) -> Steps[None]:
        page.gauge("wordy", "x" * GIVEN_BYTES_MAX)
        yield None

    maker = server.broker.contexts.bind(PageMaker)((wordy,))
    given: list[Page] = []

    def take(page: Page) -> None:
        page.body(False).then(lambda _: given.append(page))

    for _ in range(3):
        maker.page().then(take)
    assert server.sim.run_until(lambda: len(given) == 3, within_ms=500)
    maker.page().then(take)
    server.sim.run_for(FRESH_MS // 2)
    assert len(given) == 3, "it is handed out for nothing"
    assert server.sim.run_until(lambda: len(given) == 4, within_ms=FRESH_MS)
    assert given[3] is not given[0]


def test_who_gives_up_is_forgotten_while_the_others_wait() -> None:
    under_way: list[Later[int]] = []

    def begin() -> Later[int]:
        under_way.append(Later())
        return under_way[-1]

    shared = SharedRun(begin)
    replies: list[int] = []
    impatient = shared.ask()
    shared.ask().then(replies.append)
    impatient.cancel()
    unobserved: Later[int] = Later()
    assert sys.getrefcount(impatient) == sys.getrefcount(unobserved), "a reference is left"
    under_way[0].finish(7)
    assert (replies, len(under_way)) == ([7], 1)
    shared.ask().then(replies.append, lambda _: replies.append(-1))
    under_way[1].fail(OSError("gone"))
    assert replies == [7, -1]


def test_a_log_that_has_failed_is_offline(server: Any) -> None:
    server.create().log.fail(OSError("broken"))
    metrics = samples(page_of(server.sim, server.broker))
    assert metrics["millpond_partitions_offline"] == 1
    assert metrics['millpond_partition_offline{topic="pond",partition="0"}'] == 1


# Several nodes.


class ThreeNodes:
    """A cluster of three nodes."""

    def __init__(self) -> None:
        self.sim = SimWorld(7)
        self.cluster = SimCluster(self.sim, 3, History())
        for node_id in self.cluster.nodes:
            assert self.cluster.start(node_id)
        assert self.sim.run_until(self.is_founded, within_ms=30_000)

    def is_founded(self) -> bool:
        image = self.cluster.image
        return image is not None and all(map(image.is_active, self.cluster.nodes))

    def broker(self, node_id: int) -> Any:
        return self.cluster.nodes[node_id].broker

    def ask(self, node_id: int, request: m.Message, version: int) -> Any:
        client = SimClient(self.sim.network, f"node{node_id}", PORT, "client", timeout_ms=20_000)
        replies: list[Any] = []
        client.send(request, version, replies.append)
        assert self.sim.run_until(lambda: bool(replies), within_ms=20_000)
        return replies[0]

    def create(self, name: str, factor: int, partitions: int = 1) -> None:
        topic = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)
        reply = self.ask(self.leader, m.CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 7)
        assert reply.topics[0].error_code == 0, reply
        assert self.sim.run_until(
            lambda: all(name in self.broker(each).image.topics for each in self.cluster.nodes), within_ms=5_000
        )

    @property
    def leader(self) -> int:
        controller_id = self.cluster.controller_id
        assert controller_id is not None
        return int(controller_id)

    def page(self, node_id: int) -> Samples:
        return samples(page_of(self.sim, self.broker(node_id)))

    def readiness(self, node_id: int) -> str | None:
        replies: list[str | None] = []
        broker = self.broker(node_id)
        run_steps(broker.clock, broker.contexts.bind(unready_reason)()).then(replies.append)
        assert self.sim.run_until(lambda: bool(replies), within_ms=5_000)
        return replies[0]


@pytest.fixture(scope="module")
def nodes() -> ThreeNodes:
    return ThreeNodes()


def test_the_coordinator_tells_the_lag_of_partitions_that_it_has_no_replica_of(
    nodes: ThreeNodes, make_batch: Callable[..., memoryview]
) -> None:
    nodes.create("single", 1, 3)
    found = nodes.ask(nodes.leader, m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4).coordinators[0]
    for _ in range(20):
        if not found.error_code:
            break
        nodes.sim.run_for(500)
        found = nodes.ask(nodes.leader, m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4).coordinators[
            0
        ]
    coordinator = found.node_id
    image = nodes.broker(coordinator).image
    index = next(at for at, each in enumerate(image.topics["single"].partitions) if each.leader != coordinator)
    leader = image.topics["single"].partitions[index].leader
    data = m.ProduceRequest.PartitionProduceData(index=index, records=bytes(make_batch(b"a", b"b")))
    topic_data = [m.ProduceRequest.TopicProduceData(name="single", partition_data=[data])]
    assert (
        not nodes.ask(leader, m.ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=topic_data), 9)
        .responses[0]
        .partition_responses[0]
        .error_code
    )
    kind = m.OffsetCommitRequest
    partition = kind.OffsetCommitRequestPartition(partition_index=index, committed_offset=1)
    nodes.ask(
        coordinator,
        kind(group_id="g", topics=[kind.OffsetCommitRequestTopic(name="single", partitions=[partition])]),
        8,
    )
    page = nodes.page(coordinator)
    at = f'{{group="g",topic="single",partition="{index}"}}'
    assert page["millpond_group_lag_records" + at] == 1
    assert page["millpond_group_lost_records" + at] == 0
    assert page["millpond_group_lag_seconds" + at] == pytest.approx(
        (nodes.sim.clock.wall_ms() - WALL_START_MS) / 1000, abs=5
    )
    controller = nodes.page(nodes.leader)
    assert {f'millpond_quorum_lag_records{{node="{each}"}}' for each in nodes.cluster.nodes} <= controller.keys()


def test_a_node_that_is_away_shows(nodes: ThreeNodes) -> None:
    nodes.create("triple", 3)
    nodes.sim.run_for(5_000)
    assert nodes.readiness(nodes.leader) is None
    gone = next(each for each in nodes.cluster.nodes if each != nodes.leader)
    nodes.cluster.nodes[gone].kill()
    assert nodes.sim.run_until(lambda: nodes.broker(nodes.leader).image.brokers[gone].fenced, within_ms=60_000)
    nodes.sim.run_for(1_000)
    assert nodes.page(nodes.leader)["millpond_cluster_brokers_fenced"] == 1
    pages = [nodes.page(each) for each in nodes.cluster.nodes if each != gone]
    assert sum(page["millpond_partitions_under_replicated"] for page in pages) >= 1
    assert sum(page["millpond_controller_active"] for page in pages) == 1
    in_sync = [
        value
        for page in pages
        for name, value in page.items()
        if re.match(r'millpond_partition_in_sync_replicas\{topic="triple"', name)
    ]
    assert in_sync == [2]
