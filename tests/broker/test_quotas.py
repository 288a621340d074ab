"""Quotas in process: which quota applies, what is counted, how long a client is throttled, and that others are
not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.base.ids import NO_TOPIC_ID
from millpond.base.principal import Principal
from millpond.broker.security.bucket import WAIT_MS_MAX
from millpond.broker.security.quotas import DEFAULT, limit_for
from millpond.wire import messages as m

Alter = m.AlterClientQuotasRequest
Describe = m.DescribeClientQuotasRequest

WINDOWS = {"quota.window.num": "2", "controller.quota.window.num": "1"}
"""One second's worth may be used at once."""


class QuotaNode:
    """A node, its clients, and an operator that sets quotas."""

    def __init__(self, make_server: Callable[..., Any], make_batch: Callable[..., memoryview]) -> None:
        self.server = make_server(WINDOWS)
        self.server.create("pond")
        self.batch = make_batch
        self.operator = self.server.connect()
        self.operator.client_id = "operator"

    def client(self, client_id: str = "app", user: str | None = None) -> Any:
        caller = self.server.connect()
        caller.client_id = client_id
        if user is not None:
            caller.connection.principal = Principal("User", user)
        return caller

    def set(self, entity: dict[str, str | None], **values: float | None) -> Any:
        request = Alter(
            entries=[
                Alter.EntryData(
                    entity=[Alter.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
                    ops=[
                        Alter.OpData(key=key, value=value or 0.0, remove=value is None)
                        for key, value in values.items()
                    ],
                )
            ]
        )
        (entry,) = self.operator.ask(request, 1).entries
        assert entry.error_code == ErrorCode.NONE, entry.error_message

    def produce(self, client: Any, size: int, *, acks: int = 1) -> Any:
        partition = m.ProduceRequest.PartitionProduceData(index=0, records=self.batch(b"x" * size))
        topic = m.ProduceRequest.TopicProduceData(name="pond", partition_data=[partition])
        request = m.ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])
        if not acks:
            client.send(request, 9, is_answered=False)
            return None
        return client.ask(request, 9)

    def fetch(self, client: Any, *, offset: int = 0, epoch: int = -1, bytes_max: int = 1 << 20) -> Any:
        partition = m.FetchRequest.FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=bytes_max, current_leader_epoch=-1
        )
        topic = m.FetchRequest.FetchTopic(topic="pond", topic_id=NO_TOPIC_ID, partitions=[partition])
        request = m.FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=bytes_max, session_epoch=epoch, topics=[topic])
        return client.ask(request, 12)


@pytest.fixture
def host(make_server: Callable[..., Any], make_batch: Callable[..., memoryview]) -> QuotaNode:
    return QuotaNode(make_server, make_batch)


def is_paused(client: Any) -> bool:
    reads = [event for event in client.link.events if event in ("pause", "resume")]
    return bool(reads) and reads[-1] == "pause"


# Which quota applies.


def test_the_closest_quota_counts() -> None:
    entities = [
        ("alice", "app"),
        ("alice", DEFAULT),
        ("alice", None),
        (DEFAULT, "app"),
        (DEFAULT, DEFAULT),
        (DEFAULT, None),
        (None, "app"),
        (None, DEFAULT),
    ]
    limits: dict[Any, float] = {entity: float(at) for at, entity in enumerate(entities)}
    for at, entity in enumerate(entities):
        assert limit_for(limits, "alice", "app") == (entity, float(at))
        del limits[entity]
    assert limit_for(limits, "alice", "app") is None
    limits = {("alice", "app"): 1.0, (None, "app"): 2.0}
    assert limit_for(limits, "bob", "app") == ((None, "app"), 2.0)
    assert limit_for(limits, "bob", "web") is None


def test_a_node_without_quotas_does_not_even_ask(host: QuotaNode) -> None:
    quotas = host.server.broker.quotas
    assert not quotas.is_on
    client = host.client()
    assert host.produce(client, 10_000).throttle_time_ms == 0
    assert client.connection.metered is None
    host.set({"ip": None}, connection_creation_rate=1000)
    assert not quotas.is_on, "those of addresses are not asked for with requests"
    host.set({"user": "alice"}, producer_byte_rate=5)
    assert quotas.is_on
    host.set({"user": "alice"}, producer_byte_rate=None)
    assert not quotas.is_on


def test_all_clients_of_a_user_share_his_quota_and_others_have_none(host: QuotaNode) -> None:
    host.set({"user": "alice"}, producer_byte_rate=10_000)
    first, second = host.client("one", "alice"), host.client("two", "alice")
    assert host.produce(first, 9_000).throttle_time_ms == 0
    assert host.produce(second, 9_000).throttle_time_ms > 700
    assert host.produce(host.client("one", "bob"), 90_000).throttle_time_ms == 0


def test_with_a_default_each_has_his_own(host: QuotaNode) -> None:
    host.set({"user": None, "client-id": None}, producer_byte_rate=10_000)
    for user, client_id in (("alice", "one"), ("alice", "two"), ("bob", "one")):
        client = host.client(client_id, user)
        assert host.produce(client, 9_000).throttle_time_ms == 0
    assert host.produce(host.client("one", "alice"), 9_000).throttle_time_ms > 700


def test_a_quota_that_changes_counts_from_the_next_request(host: QuotaNode) -> None:
    client = host.client("one", "alice")
    assert host.produce(client, 9_000).throttle_time_ms == 0
    host.set({"user": "alice"}, producer_byte_rate=1000)
    assert host.produce(client, 2_000).throttle_time_ms > 1000
    host.set({"user": "alice"}, producer_byte_rate=None)
    host.server.run(2_000)
    assert host.produce(client, 90_000).throttle_time_ms == 0


def test_a_new_login_brings_the_quota_of_its_user(host: QuotaNode) -> None:
    host.set({"user": "alice"}, producer_byte_rate=1)
    client = host.client("one", "bob")
    assert host.produce(client, 9_000).throttle_time_ms == 0
    client.connection.principal = Principal("User", "alice")
    assert host.produce(client, 9_000).throttle_time_ms > 0


def test_nodes_have_no_quota(host: QuotaNode) -> None:
    host.set({"client-id": None}, producer_byte_rate=1, request_percentage=0.0001)
    assert host.produce(host.client("millpond-node-7"), 9_000).throttle_time_ms == 0
    assert host.produce(host.client("another"), 9_000).throttle_time_ms > 0


def test_a_client_without_an_id_has_the_default_of_client_ids(host: QuotaNode) -> None:
    host.set({"client-id": None}, producer_byte_rate=1)
    client = host.client()
    client.client_id = None
    assert host.produce(client, 100).throttle_time_ms > 0


# Waiting.


def test_the_first_request_that_exceeds_is_told_so_and_nothing_more_is_read(host: QuotaNode) -> None:
    host.set({"user": "alice"}, producer_byte_rate=10_000)
    client, other = host.client(user="alice"), host.client(user="bob")
    assert host.produce(client, 5_000).throttle_time_ms == 0
    assert not is_paused(client)
    reply = host.produce(client, 15_000)
    assert 1000 < reply.throttle_time_ms < 1100
    assert reply.responses[0].partition_responses[0].error_code == ErrorCode.NONE, "it is written all the same"
    assert is_paused(client)
    host.server.run(reply.throttle_time_ms - 100)
    assert is_paused(client)
    assert host.produce(other, 5_000).throttle_time_ms == 0
    host.server.run(200)
    assert not is_paused(client)
    assert host.produce(client, 10).throttle_time_ms == 0


def test_what_came_behind_waits_and_is_answered_in_order(host: QuotaNode) -> None:
    host.set({"user": "alice"}, request_percentage=100, producer_byte_rate=1000)
    client = host.client(user="alice")
    assert host.produce(client, 3_000).throttle_time_ms > 2000
    client.send(m.ApiVersionsRequest(), 0)
    client.send(m.MetadataRequest(topics=[]), 9)
    host.server.run(1_000)
    assert client.replies() == []
    host.server.run(3_000)
    assert [type(each) for each in client.replies()] == [m.ApiVersionsResponse, m.MetadataResponse]


def test_who_is_not_answered_waits_too(host: QuotaNode) -> None:
    host.set({"user": "alice"}, producer_byte_rate=1000)
    client = host.client(user="alice")
    host.produce(client, 3_000, acks=0)
    assert is_paused(client)
    host.server.run(4_000)
    assert not is_paused(client)


def test_a_throttle_beyond_the_idle_time_ends_the_connection(host: QuotaNode) -> None:
    """The node cannot notice that a throttled peer has gone: dead connections would be kept for days."""
    host.set({"user": "alice"}, producer_byte_rate=1)
    client = host.client(user="alice")
    assert host.produce(client, 1_000_000).throttle_time_ms > 900_000_000
    host.server.run(500_000)
    assert "abort" not in client.link.events
    host.server.run(200_000)
    assert "abort" in client.link.events
    assert host.produce(host.client(user="alice"), 1).throttle_time_ms > 900_000_000, "reconnecting does not help"


def test_one_that_goes_while_it_waits_is_forgotten(host: QuotaNode) -> None:
    host.set({"user": "alice"}, producer_byte_rate=1000)
    client = host.client(user="alice")
    host.produce(client, 3_000)
    client.link.end()
    host.server.run(5_000)
    assert client.link.events.count("resume") == 0


def test_reconnecting_does_not_evade_a_quota(host: QuotaNode) -> None:
    host.set({"user": "alice"}, producer_byte_rate=1000)
    waits = [host.produce(host.client(user="alice"), 1_000).throttle_time_ms for _ in range(4)]
    assert waits == sorted(waits)
    assert waits[-1] > 2500


def test_what_was_written_counts_though_its_producer_goes_before_the_answer(host: QuotaNode) -> None:
    host.set({"user": "alice"}, producer_byte_rate=1000)
    host.server.node.workers_delay_ms = 500
    for _ in range(3):
        client = host.client(user="alice")
        partition = m.ProduceRequest.PartitionProduceData(index=0, records=host.batch(b"x" * 2000))
        topic = m.ProduceRequest.TopicProduceData(name="pond", partition_data=[partition])
        client.send(m.ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), 9)
        client.link.end()
    host.server.node.workers_delay_ms = None
    assert host.produce(host.client(user="alice"), 1).throttle_time_ms > 5_000


def test_who_waits_for_no_answer_is_held_up_before_the_first(host: QuotaNode) -> None:
    host.set({"user": "alice"}, producer_byte_rate=10_000)
    host.server.node.workers_delay_ms = 300
    client = host.client(user="alice")
    end_offset = host.server.broker.partitions.get("pond", 0).log.end_offset
    for _ in range(20):
        partition = m.ProduceRequest.PartitionProduceData(index=0, records=host.batch(b"x" * 6000))
        topic = m.ProduceRequest.TopicProduceData(name="pond", partition_data=[partition])
        client.send(m.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic]), 9)
    assert host.server.broker.partitions.get("pond", 0).log.end_offset == end_offset + 2
    host.server.run(14_000)
    assert 15 < host.server.broker.partitions.get("pond", 0).log.end_offset - end_offset <= 20


def test_a_producer_is_throttled_only_beyond_its_quota(host: QuotaNode) -> None:
    host.set({"user": "alice"}, producer_byte_rate=10_000)
    client = host.client(user="alice")
    assert host.produce(client, 5_000).throttle_time_ms == 0
    assert host.produce(client, 5_000).throttle_time_ms > 0


# Reading.


def test_a_fetch_takes_what_there_is_and_then_nothing(host: QuotaNode) -> None:
    writer = host.client("writer")
    for _ in range(10):
        host.produce(writer, 1_000)
    host.set({"client-id": "app"}, consumer_byte_rate=3_000)
    reader = host.client("app")
    first = host.fetch(reader)
    size = len(first.responses[0].partitions[0].records)
    assert 2_000 < size <= 3_000, "no more than there is"
    assert first.throttle_time_ms == 0
    second = host.fetch(reader, offset=2)
    assert len(second.responses[0].partitions[0].records) > 1_000, "a batch is read whole"
    assert second.throttle_time_ms > 0
    third = host.fetch(host.client("app"), offset=3)
    assert (third.responses, third.error_code) == ([], ErrorCode.NONE)
    assert 0 < third.throttle_time_ms <= second.throttle_time_ms
    host.server.run(1_500)
    assert len(host.fetch(reader, offset=3).responses[0].partitions[0].records) > 1_000


def test_a_session_goes_on_while_its_consumer_waits_and_none_begins(host: QuotaNode) -> None:
    writer = host.client("writer")
    for _ in range(4):
        host.produce(writer, 5_000)
    reader = host.client("app")
    started = host.fetch(reader, epoch=0, bytes_max=100)
    assert started.session_id > 0
    host.set({"client-id": "app"}, consumer_byte_rate=1_000)
    reader.ask(_go_on(started.session_id, 1), 12)
    sessions = len(host.server.broker.fetch_sessions)
    other = host.client("app")
    response = host.fetch(other, epoch=0)
    assert (response.session_id, response.responses) == (0, [])
    assert response.throttle_time_ms > 0
    assert len(host.server.broker.fetch_sessions) == sessions
    # The existing session continues: its epoch also counts empty responses.
    again = host.client("app")
    reply = again.ask(_go_on(started.session_id, 2), 12)
    assert (reply.error_code, reply.session_id, reply.responses) == (ErrorCode.NONE, started.session_id, [])
    host.server.run(30_000)
    reply = again.ask(_go_on(started.session_id, 3), 12)
    assert reply.error_code == ErrorCode.NONE
    assert reply.responses


def _go_on(session_id: int, epoch: int) -> m.FetchRequest:
    return m.FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, session_id=session_id, session_epoch=epoch, topics=[]
    )


# Time.


def test_loop_time_is_counted_and_throttles_are_at_most_one_window(host: QuotaNode) -> None:
    host.set({"user": "alice"}, request_percentage=0.001)
    client = host.client(user="alice")
    clock = host.server.broker.clock
    tick = iter(range(10**9))

    class Slow:
        """A clock on which every operation takes time."""

        def monotonic_us(self) -> int:
            return clock.monotonic_us() + next(tick) * 5_000

        def __getattr__(self, name: str) -> Any:
            return getattr(clock, name)

    host.server.broker.quotas._clock = Slow()
    waits = [client.ask(m.MetadataRequest(topics=[]), 9, within_ms=5_000).throttle_time_ms for _ in range(3)]
    assert waits[0] == waits[-1] == 1000, "by far too much, and still no more than a window"
    assert is_paused(client)


# Partitions.


def create(host: QuotaNode, client: Any, *names: str, partitions: int = 1, version: int = 6) -> Any:
    topics = [
        m.CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
        )
        for name in names
    ]
    return client.ask(m.CreateTopicsRequest(topics=topics, timeout_ms=1000), version, within_ms=5_000)


def codes(reply: Any, field: str = "topics") -> dict[str, ErrorCode]:
    return {each.name: ErrorCode(each.error_code) for each in getattr(reply, field)}


BEYOND = ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_topics_beyond_the_quota_are_refused_for_now(host: QuotaNode) -> None:
    host.set({"user": "alice"}, controller_mutation_rate=4)
    client = host.client(user="alice")
    reply = create(host, client, "a", "b", "c", partitions=3)
    # A client with quota left may exceed it, once.
    assert codes(reply) == {"a": ErrorCode.NONE, "b": ErrorCode.NONE, "c": BEYOND}
    assert 490 < reply.throttle_time_ms <= 500
    assert "controller_mutation_rate" in next(each.error_message for each in reply.topics if each.name == "c")
    assert host.server.broker.image.topics.keys() >= {"a", "b"}
    assert "c" not in host.server.broker.image.topics
    assert is_paused(client)
    host.server.run(600)
    assert codes(create(host, client, "c", partitions=3)) == {"c": ErrorCode.NONE}


def test_an_older_client_gets_what_it_wants_and_waits_afterwards(host: QuotaNode) -> None:
    host.set({"user": "alice"}, controller_mutation_rate=4)
    client = host.client(user="alice")
    reply = create(host, client, "a", "b", "c", partitions=4, version=5)
    assert set(codes(reply).values()) == {ErrorCode.NONE}
    assert 1990 < reply.throttle_time_ms <= 2000


def test_to_delete_and_to_add_partitions_counts_as_well(host: QuotaNode) -> None:
    client = host.client(user="alice")
    create(host, client, "a", "b", "c", partitions=4)
    host.set({"user": "alice"}, controller_mutation_rate=3)
    topics = [m.DeleteTopicsRequest.DeleteTopicState(name=name) for name in ("a", "b", "nothing")]
    reply = client.ask(m.DeleteTopicsRequest(topics=topics, timeout_ms=1000), 6, within_ms=5_000)
    assert codes(reply, "responses") == {
        "a": ErrorCode.NONE,
        "b": BEYOND,
        "nothing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert "b" in host.server.broker.image.topics
    host.server.run(2_000)
    reply = client.ask(m.DeleteTopicsRequest(topic_names=["b"], timeout_ms=1000), 5, within_ms=5_000)
    assert codes(reply, "responses") == {"b": ErrorCode.NONE}
    host.server.run(1_000)
    grown = [
        m.CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
        for name, count in (("c", 9), ("pond", 2))
    ]
    request = m.CreatePartitionsRequest(topics=grown, timeout_ms=1000, validate_only=False)
    reply = client.ask(request, 3, within_ms=5_000)
    assert codes(reply, "results") == {"c": ErrorCode.NONE, "pond": BEYOND}


def test_only_to_ask_whether_a_topic_could_be_made_costs_nothing(host: QuotaNode) -> None:
    host.set({"user": "alice"}, controller_mutation_rate=1)
    client = host.client(user="alice")
    topics = [
        m.CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=9, replication_factor=1, assignments=[], configs=[]
        )
        for name in ("a", "b")
    ]
    reply = client.ask(m.CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=True), 6, within_ms=5_000)
    assert (set(codes(reply).values()), reply.throttle_time_ms) == ({ErrorCode.NONE}, 0)
    assert codes(create(host, client, "a")) == {"a": ErrorCode.NONE}


# Describing and altering.


def describe(host: QuotaNode, *parts: tuple[str, int, str | None], strict: bool = False) -> Any:
    components = [Describe.ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in parts]
    return host.operator.ask(Describe(components=components, strict=strict), 1)


def test_quotas_are_described_as_they_were_set_and_survive_a_restart(host: QuotaNode) -> None:
    host.set({"user": "alice", "client-id": None}, producer_byte_rate=10, request_percentage=0.5)
    host.set({"ip": "10.0.0.7"}, connection_creation_rate=3)
    reply = describe(host, ("user", 0, "alice"))
    (entry,) = reply.entries
    assert {(part.entity_type, part.entity_name) for part in entry.entity} == {("user", "alice"), ("client-id", None)}
    assert {each.key: each.value for each in entry.values} == {"producer_byte_rate": 10.0, "request_percentage": 0.5}
    assert len(describe(host).entries) == 2
    assert describe(host, ("user", 0, "alice"), strict=True).entries == []
    wrong = describe(host, ("user", 0, None))
    assert (wrong.error_code, wrong.entries) == (ErrorCode.INVALID_REQUEST, None)
    assert describe(host, ("team", 2, None)).error_code == ErrorCode.UNSUPPORTED_VERSION
    host.server.node.stop()
    host.server.sim.run_for(2_000)
    assert host.server.node.start()
    host.operator = host.server.connect()
    assert len(describe(host).entries) == 2
    assert host.server.broker.quotas.is_on


# Extreme quotas and client counts.


def make_topic(client: Any, name: str, partitions: int) -> Any:
    topic = m.CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    return client.ask(m.CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)


@pytest.mark.parametrize("rate", [5e-324, 1e-308, 1e-300, 1e-9, 1e300, 1.7976931348623157e308])
def test_a_quota_of_any_size_ends_no_node(host: QuotaNode, rate: float) -> None:
    """The right to set quotas must not be enough to end all nodes, at every start."""
    client = host.client(user="alice")
    for value in (rate, 1.0, rate):
        host.set({"user": "alice"}, request_percentage=value, controller_mutation_rate=value)
        for at in range(3):
            topics = make_topic(client, f"new-{value}-{at}".replace("+", ""), 3).topics
            assert topics[0].error_code != ErrorCode.UNKNOWN_SERVER_ERROR
            client = host.client(user="alice")
            assert 0 <= client.ask(m.MetadataRequest(topics=[]), 9).throttle_time_ms <= WAIT_MS_MAX
            client = host.client(user="alice")


def test_partitions_that_cannot_be_made_are_not_counted(host: QuotaNode) -> None:
    host.set({"user": "alice"}, controller_mutation_rate=10)
    client = host.client(user="alice")
    (refused,) = make_topic(client, "huge", (1 << 31) - 1).topics
    assert refused.error_code not in (ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    (made,) = make_topic(host.client(user="alice"), "small", 1).topics
    assert made.error_code == ErrorCode.NONE, made.error_message


def test_a_crowd_of_names_takes_nothing_from_another_user(host: QuotaNode) -> None:
    """Mallory uses more client ids than are tracked individually."""
    host.server.broker.quotas._buckets._count_max = 10
    host.set({"user": None, "client-id": None}, producer_byte_rate=1000)
    for number in range(50):
        host.produce(host.client(f"id-{number}", "mallory"), 5_000)
    assert host.produce(host.client("app", "bob"), 500).throttle_time_ms == 0
