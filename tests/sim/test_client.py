"""The client side of the simulator against a node: replies in order, losses told once, promises kept."""

from __future__ import annotations

import pytest

from millpond.sim.client import SimClient
from millpond.sim.history import Content, History, Place, Promise, Status
from millpond.sim.node import SimNode
from millpond.sim.producer import SimProducer
from millpond.sim.reader import SimReader
from millpond.sim.world import SimWorld
from millpond.wire import messages as m


class Play:
    def __init__(self, make_client, make_admin, seed: int = 5) -> None:
        self.make_client = make_client
        self.sim = SimWorld(seed)
        self.node = SimNode(self.sim)
        self.history = History()
        assert self.node.start()
        made: list[int] = []
        make_admin(self.sim, self.history).create("t", 2, {}, lambda: made.append(1))
        assert self.sim.run_until(lambda: bool(made))
        (topic_id,) = self.history.topics["t"].ids
        self.places = [Place("t", topic_id, number) for number in range(2)]

    def client(self, name: str = "client") -> SimClient:
        return self.make_client(self.sim, name)

    def producer(self, **choices) -> SimProducer:
        return SimProducer(self.client("producer"), self.sim.clock, self.history, self.sim.network.random, **choices)

    def contents(self, count: int) -> list[Content]:
        return [Content(f"tag{number}", None, b"v" * number, self.sim.clock.wall_ms()) for number in range(count)]


@pytest.fixture
def play(make_client, make_admin) -> Play:
    return Play(make_client, make_admin)


def api_versions() -> m.ApiVersionsRequest:
    return m.ApiVersionsRequest(client_software_name="sim", client_software_version="1")


def test_replies_come_in_the_order_of_requests(play: Play) -> None:
    client, heard = play.client(), []
    for number in range(10):
        client.send(api_versions(), 3, lambda reply, number=number: heard.append((number, reply.error_code)))
    assert play.sim.run_until(lambda: len(heard) == 10)
    assert heard == [(number, 0) for number in range(10)]
    assert client.in_flight == 0


def test_a_broken_connection_is_told_once_for_each_request_and_made_anew(play: Play) -> None:
    client, heard = play.client(), []
    client.send(api_versions(), 3, heard.append)
    client.send(api_versions(), 3, heard.append)
    play.node.kill()
    assert play.sim.run_until(lambda: len(heard) == 2)
    assert heard == [None, None]
    play.node.start()
    client.send(api_versions(), 3, heard.append)
    assert play.sim.run_until(lambda: len(heard) == 3)
    assert heard[2].error_code == 0
    assert client.connections_made == 2


def test_a_silent_node_is_given_up_after_the_timeout(play: Play) -> None:
    client, heard = play.client(), []
    client.send(api_versions(), 3, heard.append)
    assert play.sim.run_until(lambda: len(heard) == 1)
    play.node.crash()
    before = play.sim.clock.now_ms
    client.send(api_versions(), 3, heard.append)
    assert play.sim.run_until(lambda: len(heard) == 2)
    assert heard[1] is None
    assert play.sim.clock.now_ms - before == client.timeout_ms


def test_an_idempotent_producer_writes_each_batch_once_through_lost_replies(play: Play) -> None:
    producer = play.producer()
    for number in range(30):
        producer.produce(play.places[0], [play.contents(31)[number]], Promise.SURVIVES)
        if number % 7 == 3:
            play.sim.run_for(8)
            producer.client.disconnect()
    assert play.sim.run_until(producer.is_idle)
    assert [batch.status for batch in play.history.batches] == [Status.ACKNOWLEDGED] * 30
    assert [batch.base_offset for batch in play.history.batches] == list(range(30))
    assert max(batch.attempts for batch in play.history.batches) > 1


def test_a_refused_batch_is_settled_as_refused_and_the_rest_goes_on(play: Play) -> None:
    producer = play.producer()
    old = [Content("late", None, b"", play.sim.clock.wall_ms() + 7_200_000)]
    refused = producer.produce(play.places[0], old, Promise.SURVIVES)
    assert play.sim.run_until(producer.is_idle)
    fine = producer.produce(play.places[0], play.contents(1), Promise.SURVIVES)
    assert play.sim.run_until(producer.is_idle)
    assert (refused.status, fine.status, fine.base_offset) == (Status.REFUSED, Status.ACKNOWLEDGED, 0)
    assert fine.producer_id != refused.producer_id


def test_without_acknowledgements_nothing_is_known(play: Play) -> None:
    producer = play.producer(acks=0, idempotent=False)
    batch = producer.produce(play.places[0], play.contents(2), Promise.NOTHING)
    assert batch.status is Status.UNKNOWN


def test_what_is_given_up_unsent_was_not_written(play: Play) -> None:
    producer = play.producer()
    batch = producer.produce(play.places[0], play.contents(2), Promise.SURVIVES)
    producer.close()
    assert batch.status is Status.REFUSED


@pytest.mark.parametrize("version", [4, 7, 12, 13, 18])
def test_a_reader_sees_everything_from_every_partition(play: Play, version: int) -> None:
    producer = play.producer(version=13)
    reader = SimReader(
        play.client("reader"), play.sim.clock, play.history, play.places, version=version, max_bytes=200, keep=True
    )
    reader.start()
    for number, content in enumerate(play.contents(20)):
        producer.produce(play.places[number % 2], [content], Promise.SURVIVES)
    assert play.sim.run_until(lambda: reader.records_read == 20)
    for number, place in enumerate(play.places):
        records = reader.views[place].records
        assert records is not None
        assert [Content.of(record).tag for record in records.values()] == [f"tag{n}" for n in range(number, 20, 2)]
    assert play.history.violations == []


def test_a_reader_goes_on_after_a_restart(play: Play) -> None:
    producer = play.producer()
    reader = SimReader(play.client("reader"), play.sim.clock, play.history, play.places)
    reader.start()
    producer.produce(play.places[0], play.contents(3), Promise.SURVIVES)
    assert play.sim.run_until(lambda: reader.records_read == 3)
    play.node.restart()
    producer.produce(play.places[0], play.contents(2), Promise.SURVIVES)
    assert play.sim.run_until(lambda: reader.records_read == 5)
