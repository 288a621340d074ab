"""Producers that write in one turn share one sync, and each gets its own result."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.base.histogram import Histogram
from millpond.base.later import Later, done
from millpond.broker.replication.acknowledgements import Acknowledgements, PendingAck
from millpond.broker.requests.request_counts import RequestCounts
from millpond.sim.world.clock import WALL_START_MS, VirtualClock
from millpond.wire import messages as m
from millpond.wire.batch import walk
from millpond.wire.records import Record, decode_batch, encode_batch
from support.seeds import seeds

PATIENCE_MS = 300


class Client:
    """A connection that records its replies."""

    def __init__(self, arrived_us: int) -> None:
        self.is_open = True
        self.arrived_us = arrived_us
        self.heard: list[bytes] = []

    def keep_slot(self, pending: Any) -> Any:
        return SimpleNamespace()

    def fill(self, slot: Any, parts: list[bytes]) -> None:
        self.heard += parts


class StubPartition:
    """A partition with one replica, whose log the test syncs."""

    def __init__(self) -> None:
        self.leader_role = None
        self.leader_epoch = 4
        self.acknowledged = Histogram()
        self.waits: list[tuple[int, Later[None]]] = []
        self.is_synced = False

    def after_commit(self, end_offset: int, value: None) -> Later[None]:
        later: Later[None] = done(None) if self.is_synced else Later()
        self.waits.append((end_offset, later))
        return later


class AcknowledgingNode:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.requests = RequestCounts(self.clock, [0])
        self.waiting = Acknowledgements(self.clock, self.requests, lambda: 60_000)
        self.partition: Any = StubPartition()

    def refuse(self, pending: PendingAck, refused: Refused) -> list[Any]:
        if pending.reply == b"bug":
            raise ZeroDivisionError
        return [b"refused " + pending.reply + b": " + refused.code.name.encode()]

    def add_pending(self, reply: bytes, end_offset: int, patience_ms: int = PATIENCE_MS) -> Client:
        client: Any = Client(self.clock.monotonic_us())
        request: Any = SimpleNamespace(timeout_ms=patience_ms)
        self.waiting.reply(client, request, self.partition, end_offset, reply, self.refuse)
        return client

    def turn(self) -> None:
        self.clock.run_for(0)

    def count(self) -> tuple[int, int]:
        return self.requests.times[0].count, self.partition.acknowledged.count


@pytest.fixture
def host() -> AcknowledgingNode:
    return AcknowledgingNode()


def test_those_of_one_turn_wait_as_one_and_until_the_last_is_safe(host: AcknowledgingNode) -> None:
    clients = [host.add_pending(b"a", 1), host.add_pending(b"b", 2), host.add_pending(b"c", 3)]
    assert host.partition.waits == []
    host.turn()
    ((end_offset, later),) = host.partition.waits
    assert end_offset == 3
    later_one = host.add_pending(b"d", 4)
    host.turn()
    later.finish(None)
    assert [each.heard for each in clients] == [[b"a"], [b"b"], [b"c"]]
    assert later_one.heard == []
    assert host.count() == (3, 3)
    assert [end for end, _ in host.partition.waits] == [3, 4]


def test_a_committed_duplicate_acknowledges_no_other_batch(host: AcknowledgingNode) -> None:
    host.add_pending(b"new", 9)
    host.add_pending(b"sent again", 3)
    host.turn()
    assert [end for end, _ in host.partition.waits] == [9]


def test_what_is_safe_when_the_turn_ends_is_answered_then(host: AcknowledgingNode) -> None:
    host.partition.is_synced = True
    client = host.add_pending(b"a", 1)
    assert client.heard == []
    host.turn()
    assert client.heard == [b"a"]


def test_a_failure_is_everybodys(host: AcknowledgingNode) -> None:
    clients = [host.add_pending(b"a", 1), host.add_pending(b"b", 2)]
    host.turn()
    host.partition.waits[0][1].fail(OSError("broken"))
    assert [each.heard for each in clients] == [
        [b"refused a: KAFKA_STORAGE_ERROR"],
        [b"refused b: KAFKA_STORAGE_ERROR"],
    ]
    assert host.count() == (0, 0)


def test_each_waits_for_as_long_as_it_said(host: AcknowledgingNode) -> None:
    short, long = host.add_pending(b"a", 1, 100), host.add_pending(b"b", 2, 200)
    host.turn()
    host.clock.run_for(100)
    assert (short.heard, long.heard) == ([b"refused a: REQUEST_TIMED_OUT"], [])
    host.partition.waits[1][1].finish(None)
    assert long.heard == [b"b"]
    host.clock.run_for(200)
    assert (len(short.heard), len(long.heard)) == (1, 1), "each is answered once"


def test_a_leadership_that_moved_meanwhile_acknowledges_nothing(host: AcknowledgingNode) -> None:
    """This node may lead again with a log of the same length but other records."""
    host.partition.is_synced = True
    client = host.add_pending(b"a", 1)
    host.partition.leader_epoch += 2
    host.turn()
    assert client.heard == [b"refused a: NOT_LEADER_OR_FOLLOWER"]
    assert host.partition.waits == []


def test_a_closed_connection_delays_no_other_and_is_not_counted(host: AcknowledgingNode) -> None:
    gone, here = host.add_pending(b"a", 1), host.add_pending(b"b", 2)
    host.turn()
    gone.is_open = False
    host.partition.waits[0][1].finish(None)
    assert (gone.heard, here.heard) == ([], [b"b"])
    assert host.count() == (1, 1)


def test_a_bug_in_one_reply_is_raised_once_all_have_heard(host: AcknowledgingNode) -> None:
    first, broken, last = host.add_pending(b"a", 1), host.add_pending(b"bug", 2), host.add_pending(b"c", 3)
    host.turn()
    with pytest.raises(ZeroDivisionError):
        host.partition.waits[0][1].fail(OSError("broken"))
    assert (len(first.heard), broken.heard, len(last.heard)) == (1, [], 1)


# A whole broker.


def request(**fields: Any) -> m.ProduceRequest:
    records = memoryview(encode_batch([Record(0, WALL_START_MS, None, b"v")], **fields))
    data = m.ProduceRequest.PartitionProduceData(index=0, records=records)
    topic = m.ProduceRequest.TopicProduceData(name="pond", partition_data=[data])
    return m.ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[topic])


def test_one_sync_serves_all_requests_of_a_turn(make_server: Callable[..., Any]) -> None:
    server = make_server()
    server.create("pond")
    producers = [server.connect() for _ in range(20)]
    producers[0].ask(request(), 9)
    before = server.syncs("pond-0")
    for producer in producers:
        producer.send(request(), 9)
    server.run(200)
    answers = [reply.responses[0].partition_responses[0] for each in producers for reply in each.replies()]
    assert [(each.error_code, each.base_offset) for each in answers] == [(0, at) for at in range(1, 21)]
    assert server.syncs("pond-0") - before == 1


def test_a_new_batch_is_not_acknowledged_with_the_duplicate_of_a_safe_one(make_server: Callable[..., Any]) -> None:
    server = make_server()
    server.create("pond")
    first, second = server.connect(), server.connect()
    identity = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    assert first.ask(request(**identity), 9).responses[0].partition_responses[0].base_offset == 0
    server.disk.fail_syncs("/pond-0/")
    second.send(request(), 9)
    first.send(request(**identity), 9)
    server.run(200)
    (answer,) = (reply.responses[0].partition_responses[0] for reply in second.replies())
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_topic_that_is_deleted_meanwhile_is_refused_not_forgotten(make_server: Callable[..., Any]) -> None:
    server = make_server()
    partition = server.create("pond")
    producer = server.connect()
    for _ in range(2):
        producer.send(request(), 9)
    server.broker.partitions.remove(partition)
    server.run(1_000)
    answers = [reply.responses[0].partition_responses[0].error_code for reply in producer.replies()]
    assert answers == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2


@pytest.mark.parametrize("seed", seeds(range(10)))
def test_what_is_acknowledged_survives_a_power_cut_whatever_came_with_it(
    make_server: Callable[..., Any], seed: int
) -> None:
    """All kinds of producers in the same turns; some retry or disconnect, syncs are slow or fail, segments roll."""
    random = Random(seed)
    server = make_server(seed=seed)
    server.create("pond", segment_bytes="16384")
    producers = [server.connect() for _ in range(6)]
    pending: list[list[bytes]] = [[] for _ in producers]
    sequences = [0 for _ in producers]
    sure: list[tuple[bytes, int]] = []

    known: list[list[tuple[bytes, bytes]]] = [[] for _ in producers]

    def send(who: int) -> None:
        value = b"%d-%d-" % (who, random.getrandbits(40)) + b"x" * random.choice((1, 600))
        fields: dict[str, Any] = {}
        if who < 3:
            fields = {"producer_id": who, "producer_epoch": 0, "base_sequence": sequences[who]}
            sequences[who] += 1
        batch = encode_batch([Record(0, WALL_START_MS, None, value)], **fields)
        known[who] = [*known[who][-3:], (value, batch)] if fields else []
        produce(who, value, batch)

    def send_again(who: int) -> None:
        if known[who]:
            produce(who, *random.choice(known[who]))

    def produce(who: int, value: bytes, batch: bytes) -> None:
        acks = random.choice((-1, -1, 1))
        data = m.ProduceRequest.PartitionProduceData(index=0, records=memoryview(batch))
        topic = m.ProduceRequest.TopicProduceData(name="pond", partition_data=[data])
        producers[who].send(m.ProduceRequest(acks=acks, timeout_ms=300, topic_data=[topic]), 9)
        pending[who].append(value if acks == -1 else b"")

    def hear(who: int) -> None:
        """Replies come in request order, which `replies` asserts."""
        for reply in producers[who].replies():
            answer, value = reply.responses[0].partition_responses[0], pending[who].pop(0)
            if value and not answer.error_code:
                sure.append((value, answer.base_offset))

    for step in range(150):
        # After a failed sync nothing is acknowledged.
        match random.choices(("send", "run", "slow", "hang up", "break"), (120, 40, 8, 2, step > 75))[0]:
            case "send":
                for _ in range(random.randint(1, 5)):
                    random.choice((send, send, send_again))(random.randrange(len(producers)))
            case "run":
                server.run(random.choice((0, 1, 5, 400)))
            case "slow":
                server.node.workers_delay_ms = random.choice((None, 5, 350))
            case "hang up":
                who = random.randrange(len(producers))
                hear(who)
                producers[who].link.end()
                producers[who], pending[who] = server.connect(), []
            case _:
                server.disk.fail_syncs("/pond-0/")
    server.run(1_000)
    server.node.workers_delay_ms = 350
    for who in (5, 4, 3, 2, 1, 0):
        send(who)
        send_again(who)
    server.run(5)
    for who in range(len(producers)):
        hear(who)
    server.node.crash()
    server.disk.heal()
    assert server.node.start(), server.node.journal_lines
    server.run(1_000)
    result = {}
    for segment in server.broker.partitions.get("pond", 0).log.segments:
        data = segment.file.read_at(0, segment.size)
        for position, header in walk(data):
            (record,) = decode_batch(data[position : position + header.size])
            result[record.offset] = record.value
    assert sure, "nothing was acknowledged"
    assert [(value, offset) for value, offset in sure if result.get(offset) != value] == []
