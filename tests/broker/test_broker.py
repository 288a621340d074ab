"""A whole broker: it starts, reports its address, drains, closes, and restarts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.broker.apis import APIS
from millpond.broker.broker import DRAIN_MS, Broker
from millpond.config.node import CLEANER_BACKOFF_MS, node_settings
from millpond.sim.clients.client import SimClient
from millpond.sim.node import PORT
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m


def metadata(*names: str) -> m.MetadataRequest:
    topics = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return m.MetadataRequest(topics=topics, allow_auto_topic_creation=True)


def fetch(topic: str) -> m.FetchRequest:
    """A fetch that waits for the first record."""
    partition = m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    wanted = m.FetchRequest.FetchTopic(topic=topic, partitions=[partition])
    return m.FetchRequest(max_wait_ms=30_000, min_bytes=1, max_bytes=1000, session_epoch=-1, topics=[wanted])


def produce(topic: str, records: memoryview, acks: int = -1) -> m.ProduceRequest:
    data = m.ProduceRequest.PartitionProduceData(index=0, records=records)
    topic_data = [m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
    return m.ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=topic_data)


def drain(server: Any) -> list[int]:
    """Start draining; the returned list gets the time at which draining ends."""
    ended: list[int] = []
    begun = server.sim.clock.now_ms
    server.broker.drain(lambda: ended.append(server.sim.clock.now_ms - begun))
    return ended


# Starting.


def test_a_started_broker_serves(server: Any) -> None:
    assert server.broker.address == ("node", PORT)
    client = SimClient(server.sim.network, "node", PORT)
    replies: list[Any] = []
    client.send(metadata("pond"), 9, replies.append)
    server.run(1000)
    (topic,) = replies[0].topics
    assert (topic.name, topic.error_code, len(topic.partitions)) == ("pond", 0, 1)
    assert server.broker.partitions.get("pond", 0) is not None


def test_a_client_learns_what_is_served_and_the_broker_who_asks(server: Any) -> None:
    caller = server.connect()
    request = m.ApiVersionsRequest(client_software_name="rod", client_software_version="2")
    reply = caller.ask(request, 3)
    assert {each.api_key for each in reply.api_keys} == {api.key for api in APIS if api.is_advertised}
    assert caller.connection.client_software == "rod 2"


def test_nothing_is_listened_to_when_the_address_is_taken(server: Any) -> None:
    with pytest.raises(OSError, match="in use"):
        server.sim.network.listen("node", PORT, lambda _: None)


def test_topics_and_records_are_there_after_a_restart(server: Any, make_batch: Callable[..., memoryview]) -> None:
    server.create("pond", 2, retention_ms="12345")
    caller = server.connect()
    caller.ask(produce("pond", make_batch(b"a")), 9)
    server.node.stop()
    server.run(DRAIN_MS)
    assert not server.node.is_up
    assert server.disk.exists("/var/pond/.kafka_cleanshutdown")
    assert server.node.start()
    partition = server.broker.partitions.get("pond", 0)
    assert (partition.log.end_offset, partition.log.limits.retention_ms) == (1, 12345)
    assert partition.leader_epoch == 0, "a clean end needs no new epoch"
    assert len(server.broker.partitions) == 2


def test_after_a_crash_leaders_begin_a_new_epoch(server: Any) -> None:
    server.create("pond")
    server.node.crash()
    assert server.node.start()
    assert server.broker.partitions.get("pond", 0).leader_epoch == 1


def test_after_a_folder_was_deleted_leaders_begin_a_new_epoch(
    server: Any, make_batch: Callable[..., memoryview]
) -> None:
    """Otherwise consumers that have read the lost records would get different ones at the same offsets."""
    server.create("pond")
    server.connect().ask(produce("pond", make_batch(b"a")), 9)
    server.node.stop()
    server.run(DRAIN_MS)
    server.disk.remove_folder("/var/pond/pond-0")
    assert server.node.start()
    partition = server.broker.partitions.get("pond", 0)
    assert (partition.log.end_offset, partition.leader_epoch) == (0, 1)


def test_settings_of_the_broker_that_change_while_it_runs_hold_after_a_restart(server: Any) -> None:
    caller = server.connect()
    config = m.IncrementalAlterConfigsRequest.AlterableConfig(
        name="log.cleaner.backoff.ms", config_operation=0, value="77"
    )
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=4, resource_name="", configs=[config]
    )
    reply = caller.ask(m.IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert reply.responses[0].error_code == 0
    assert server.broker.settings[CLEANER_BACKOFF_MS] == 77
    server.node.kill()
    assert server.node.start()
    assert server.broker.settings[CLEANER_BACKOFF_MS] == 77


def test_a_partition_that_cannot_be_opened_has_no_leader_and_the_others_have(
    server: Any, make_batch: Callable[..., memoryview]
) -> None:
    for name in ("bad", "good"):
        server.create(name)
        server.connect().ask(produce(name, make_batch(b"a")), 9)
    server.node.kill()
    server.disk.fail_reads("/bad-0/", times=None)
    assert server.node.start()
    server.disk.heal()
    reply = server.connect().ask(metadata("bad", "good"), 9)
    told = {topic.name: topic.partitions[0].error_code for topic in reply.topics}
    assert told == {"bad": ErrorCode.LEADER_NOT_AVAILABLE, "good": ErrorCode.NONE}
    assert any("bad-0" in line and "cannot be opened" in line for line in server.node.journal_lines)


# Addresses.


class Everywhere:
    """A network on which the broker listens on all addresses."""

    def __init__(self, network: Any, host: str) -> None:
        self._network = network
        self._host = host

    def listen(self, host: str, port: int, accept: Any, *how: Any) -> Any:
        listener = self._network.listen(host, port, accept, *how)
        return type("Listener", (), {"host": self._host, "port": listener.port, "close": listener.close})


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::", ""])
def test_a_broker_that_listens_everywhere_tells_each_client_the_address_it_came_in_by(
    make_link: Any, wildcard: str
) -> None:
    sim = SimWorld()
    world = sim.start("node")
    everywhere: Any = Everywhere(world.network, wildcard)
    settings = node_settings({"listen": "0.0.0.0:9092"})
    broker = Broker(replace(world, network=everywhere), settings, lambda *_, **__: None)
    broker.start()
    for local_host in ("192.168.0.7", "10.1.1.1"):
        connection: Any = broker.connections.accept(make_link(local_host=local_host))
        assert broker.contexts.node.addresses_for(connection) == [(1, local_host, 9092, None)]


def test_an_advertised_address_is_told_to_all(make_server: Any) -> None:
    server = make_server({"advertised.listener": "pond.example:19092", "broker.rack": "cellar", "node.id": "5"})
    reply = server.connect().ask(metadata(), 9)
    (broker,) = reply.brokers
    assert (broker.node_id, broker.host, broker.port, broker.rack) == (5, "pond.example", 19092, "cellar")
    (end_point,) = server.broker.image.brokers[5].end_points
    assert (end_point.host, end_point.port) == ("pond.example", 19092)


# Shutdown.


def test_draining_answers_pending_fetches_and_closes(server: Any) -> None:
    server.create("pond")
    waiting, idle = server.connect(), server.connect()
    waiting.send(fetch("pond"), 12)
    ended = drain(server)
    (reply,) = waiting.replies()
    assert reply.responses[0].partitions[0].error_code == 0
    assert [link.events[0] for link in (waiting.link, idle.link)] == ["close", "close"]
    server.run(1)
    assert ended == [0]


def test_draining_waits_for_acknowledgements(server: Any, make_batch: Callable[..., memoryview]) -> None:
    server.create("pond")
    producer = server.connect()
    producer.send(produce("pond", make_batch(b"a")), 9)
    ended = drain(server)
    assert producer.link.events == []
    server.run(DRAIN_MS)
    (reply,) = producer.replies()
    assert reply.responses[0].partition_responses[0].error_code == 0
    assert producer.link.events[0] == "close"
    assert ended[0] < DRAIN_MS


def test_who_never_stops_writing_does_not_spoil_the_end(
    server: Any, make_batch: Callable[..., memoryview], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that always has a request pending is cut off, and what it wrote in that very turn is synced."""
    server.create("pond")
    producer = server.connect()
    producer.link.stuck = True
    producer.send(metadata("pond"), 9)
    drop_all = server.broker.connections.drop_all

    def write_and_drop_all() -> None:
        producer.send(produce("pond", make_batch(b"a")), 9)
        drop_all()

    monkeypatch.setattr(server.broker.connections, "drop_all", write_and_drop_all)
    idle: list[bool] = []
    server.broker.drain(lambda: idle.append(server.broker.flusher.is_idle()))
    server.run(2 * DRAIN_MS)
    assert idle == [True]
    server.broker.close()
    assert server.disk.exists("/var/pond/.kafka_cleanshutdown")


def test_draining_does_not_wait_for_ever(server: Any) -> None:
    server.create("pond")
    stuck = server.connect()
    stuck.link.stuck = True
    stuck.send(metadata("pond"), 9)
    ended = drain(server)
    server.run(DRAIN_MS - 1)
    assert ended == []
    server.run(10)
    assert len(ended) == 1
    assert stuck.link.events == ["abort"]


def test_draining_accepts_no_new_connections(server: Any, make_link: Any) -> None:
    drain(server)
    assert server.broker.connections.accept(make_link()) is None
    assert server.sim.network.listeners == {}


def test_a_client_that_is_still_owed_an_answer_may_ask_where_the_broker_is(server: Any) -> None:
    caller = server.connect()
    caller.send(metadata("new"), 9)
    ended = drain(server)
    caller.send(metadata(), 9)
    server.run(DRAIN_MS)
    created, asked = caller.replies()
    assert created.topics[0].error_code == 0
    assert [(broker.host, broker.port) for broker in asked.brokers] == [("node", PORT)]
    assert len(ended) == 1


def test_draining_twice_is_draining_once(server: Any) -> None:
    first, second = drain(server), drain(server)
    server.run(DRAIN_MS)
    assert (len(first), second) == (1, [])


def test_nothing_happens_by_itself_after_draining(server: Any) -> None:
    drain(server)
    server.run(DRAIN_MS)
    assert server.sim.clock.pending() == 0


def test_an_end_on_a_full_disk_is_an_end(server: Any, make_batch: Callable[..., memoryview]) -> None:
    server.create("pond")
    server.connect().ask(produce("pond", make_batch(b"a")), 9)
    drain(server)
    server.run(DRAIN_MS)
    server.disk.fill()
    server.broker.close()
    assert any("the end could not be noted" in line for line in server.node.journal_lines)
    server.node.crash()
    server.disk.make_room()
    assert server.node.start()
    assert server.broker.partitions.get("pond", 0).log.end_offset == 1


def test_closing_makes_all_of_it_durable(server: Any, make_batch: Callable[..., memoryview]) -> None:
    server.create("pond")
    server.connect().ask(produce("pond", make_batch(b"a"), acks=1), 9)
    assert server.broker.partitions.get("pond", 0).log.synced_offset == 0
    drain(server)
    server.run(DRAIN_MS)
    server.broker.close()
    server.node.crash()
    assert server.node.start()
    partition = server.broker.partitions.get("pond", 0)
    assert (partition.log.end_offset, partition.leader_epoch) == (1, 0)
