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


class Play:
    """A node, its clients, and an operator that sets quotas."""

    def __init__(self, make_desk: Callable[..., Any], make_batch: Callable[..., memoryview]) -> None:
        self.desk = make_desk(WINDOWS)
        self.desk.create("pond")
        self.batch = make_batch
        self.operator = self.desk.connect()
        self.operator.client_id = "operator"

    def client(self, client_id: str = "app", user: str | None = None) -> Any:
        caller = self.desk.connect()
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
def play(make_desk: Callable[..., Any], make_batch: Callable[..., memoryview]) -> Play:
    return Play(make_desk, make_batch)


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


def test_a_node_without_quotas_does_not_even_ask(play: Play) -> None:
    quotas = play.desk.broker.quotas
    assert not quotas.is_on
    client = play.client()
    assert play.produce(client, 10_000).throttle_time_ms == 0
    assert client.connection.metered is None
    play.set({"ip": None}, connection_creation_rate=1000)
    assert not quotas.is_on, "those of addresses are not asked for with requests"
    play.set({"user": "alice"}, producer_byte_rate=5)
    assert quotas.is_on
    play.set({"user": "alice"}, producer_byte_rate=None)
    assert not quotas.is_on


def test_all_clients_of_a_user_share_his_quota_and_others_have_none(play: Play) -> None:
    play.set({"user": "alice"}, producer_byte_rate=10_000)
    first, second = play.client("one", "alice"), play.client("two", "alice")
    assert play.produce(first, 9_000).throttle_time_ms == 0
    assert play.produce(second, 9_000).throttle_time_ms > 700
    assert play.produce(play.client("one", "bob"), 90_000).throttle_time_ms == 0


def test_with_a_default_each_has_his_own(play: Play) -> None:
    play.set({"user": None, "client-id": None}, producer_byte_rate=10_000)
    for user, client_id in (("alice", "one"), ("alice", "two"), ("bob", "one")):
        client = play.client(client_id, user)
        assert play.produce(client, 9_000).throttle_time_ms == 0
    assert play.produce(play.client("one", "alice"), 9_000).throttle_time_ms > 700


def test_a_quota_that_changes_counts_from_the_next_request(play: Play) -> None:
    client = play.client("one", "alice")
    assert play.produce(client, 9_000).throttle_time_ms == 0
    play.set({"user": "alice"}, producer_byte_rate=1000)
    assert play.produce(client, 2_000).throttle_time_ms > 1000
    play.set({"user": "alice"}, producer_byte_rate=None)
    play.desk.run(2_000)
    assert play.produce(client, 90_000).throttle_time_ms == 0


def test_whoever_logs_in_as_another_has_the_quota_of_that_one(play: Play) -> None:
    play.set({"user": "alice"}, producer_byte_rate=1)
    client = play.client("one", "bob")
    assert play.produce(client, 9_000).throttle_time_ms == 0
    client.connection.principal = Principal("User", "alice")
    assert play.produce(client, 9_000).throttle_time_ms > 0


def test_nodes_have_no_quota(play: Play) -> None:
    play.set({"client-id": None}, producer_byte_rate=1, request_percentage=0.0001)
    assert play.produce(play.client("millpond-node-7"), 9_000).throttle_time_ms == 0
    assert play.produce(play.client("another"), 9_000).throttle_time_ms > 0


def test_a_client_without_an_id_has_the_default_of_client_ids(play: Play) -> None:
    play.set({"client-id": None}, producer_byte_rate=1)
    client = play.client()
    client.client_id = None
    assert play.produce(client, 100).throttle_time_ms > 0


# Waiting.


def test_the_first_request_that_exceeds_is_told_so_and_nothing_more_is_read(play: Play) -> None:
    play.set({"user": "alice"}, producer_byte_rate=10_000)
    client, other = play.client(user="alice"), play.client(user="bob")
    assert play.produce(client, 5_000).throttle_time_ms == 0
    assert not is_paused(client)
    reply = play.produce(client, 15_000)
    assert 1000 < reply.throttle_time_ms < 1100
    assert reply.responses[0].partition_responses[0].error_code == ErrorCode.NONE, "it is written all the same"
    assert is_paused(client)
    play.desk.run(reply.throttle_time_ms - 100)
    assert is_paused(client)
    assert play.produce(other, 5_000).throttle_time_ms == 0
    play.desk.run(200)
    assert not is_paused(client)
    assert play.produce(client, 10).throttle_time_ms == 0


def test_what_came_behind_waits_and_is_answered_in_order(play: Play) -> None:
    play.set({"user": "alice"}, request_percentage=100, producer_byte_rate=1000)
    client = play.client(user="alice")
    assert play.produce(client, 3_000).throttle_time_ms > 2000
    client.send(m.ApiVersionsRequest(), 0)
    client.send(m.MetadataRequest(topics=[]), 9)
    play.desk.run(1_000)
    assert client.replies() == []
    play.desk.run(3_000)
    assert [type(each) for each in client.replies()] == [m.ApiVersionsResponse, m.MetadataResponse]


def test_who_is_not_answered_waits_too(play: Play) -> None:
    play.set({"user": "alice"}, producer_byte_rate=1000)
    client = play.client(user="alice")
    play.produce(client, 3_000, acks=0)
    assert is_paused(client)
    play.desk.run(4_000)
    assert not is_paused(client)


def test_whoever_waits_longer_than_others_may_be_idle_comes_again(play: Play) -> None:
    """The node cannot notice that a throttled peer has gone: dead connections would be kept for days."""
    play.set({"user": "alice"}, producer_byte_rate=1)
    client = play.client(user="alice")
    assert play.produce(client, 1_000_000).throttle_time_ms > 900_000_000
    play.desk.run(500_000)
    assert "abort" not in client.link.events
    play.desk.run(200_000)
    assert "abort" in client.link.events
    assert play.produce(play.client(user="alice"), 1).throttle_time_ms > 900_000_000, "that helps nobody"


def test_one_that_goes_while_it_waits_is_forgotten(play: Play) -> None:
    play.set({"user": "alice"}, producer_byte_rate=1000)
    client = play.client(user="alice")
    play.produce(client, 3_000)
    client.link.end()
    play.desk.run(5_000)
    assert client.link.events.count("resume") == 0


def test_to_come_again_by_another_connection_helps_nobody(play: Play) -> None:
    play.set({"user": "alice"}, producer_byte_rate=1000)
    waits = [play.produce(play.client(user="alice"), 1_000).throttle_time_ms for _ in range(4)]
    assert waits == sorted(waits)
    assert waits[-1] > 2500


def test_what_was_written_counts_though_its_producer_goes_before_the_answer(play: Play) -> None:
    play.set({"user": "alice"}, producer_byte_rate=1000)
    play.desk.node.workers_delay_ms = 500
    for _ in range(3):
        client = play.client(user="alice")
        partition = m.ProduceRequest.PartitionProduceData(index=0, records=play.batch(b"x" * 2000))
        topic = m.ProduceRequest.TopicProduceData(name="pond", partition_data=[partition])
        client.send(m.ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), 9)
        client.link.end()
    play.desk.node.workers_delay_ms = None
    assert play.produce(play.client(user="alice"), 1).throttle_time_ms > 5_000


def test_who_waits_for_no_answer_is_held_up_before_the_first(play: Play) -> None:
    play.set({"user": "alice"}, producer_byte_rate=10_000)
    play.desk.node.workers_delay_ms = 300
    client = play.client(user="alice")
    end_offset = play.desk.broker.partitions.get("pond", 0).log.end_offset
    for _ in range(20):
        partition = m.ProduceRequest.PartitionProduceData(index=0, records=play.batch(b"x" * 6000))
        topic = m.ProduceRequest.TopicProduceData(name="pond", partition_data=[partition])
        client.send(m.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic]), 9)
    assert play.desk.broker.partitions.get("pond", 0).log.end_offset == end_offset + 2
    play.desk.run(14_000)
    assert 15 < play.desk.broker.partitions.get("pond", 0).log.end_offset - end_offset <= 20


def test_a_producer_is_throttled_only_beyond_its_quota(play: Play) -> None:
    play.set({"user": "alice"}, producer_byte_rate=10_000)
    client = play.client(user="alice")
    assert play.produce(client, 5_000).throttle_time_ms == 0
    assert play.produce(client, 5_000).throttle_time_ms > 0


# Reading.


def test_a_fetch_takes_what_there_is_and_then_nothing(play: Play) -> None:
    writer = play.client("writer")
    for _ in range(10):
        play.produce(writer, 1_000)
    play.set({"client-id": "app"}, consumer_byte_rate=3_000)
    reader = play.client("app")
    first = play.fetch(reader)
    size = len(first.responses[0].partitions[0].records)
    assert 2_000 < size <= 3_000, "no more than there is"
    assert first.throttle_time_ms == 0
    second = play.fetch(reader, offset=2)
    assert len(second.responses[0].partitions[0].records) > 1_000, "a batch is read whole"
    assert second.throttle_time_ms > 0
    third = play.fetch(play.client("app"), offset=3)
    assert (third.responses, third.error_code) == ([], ErrorCode.NONE)
    assert 0 < third.throttle_time_ms <= second.throttle_time_ms
    play.desk.run(1_500)
    assert len(play.fetch(reader, offset=3).responses[0].partitions[0].records) > 1_000


def test_a_session_goes_on_while_its_consumer_waits_and_none_begins(play: Play) -> None:
    writer = play.client("writer")
    for _ in range(4):
        play.produce(writer, 5_000)
    reader = play.client("app")
    started = play.fetch(reader, epoch=0, bytes_max=100)
    assert started.session_id > 0
    play.set({"client-id": "app"}, consumer_byte_rate=1_000)
    reader.ask(_go_on(started.session_id, 1), 12)
    sessions = len(play.desk.broker.fetch_sessions)
    other = play.client("app")
    told = play.fetch(other, epoch=0)
    assert (told.session_id, told.responses) == (0, [])
    assert told.throttle_time_ms > 0
    assert len(play.desk.broker.fetch_sessions) == sessions
    # The existing session continues: its epoch also counts empty responses.
    again = play.client("app")
    reply = again.ask(_go_on(started.session_id, 2), 12)
    assert (reply.error_code, reply.session_id, reply.responses) == (ErrorCode.NONE, started.session_id, [])
    play.desk.run(30_000)
    reply = again.ask(_go_on(started.session_id, 3), 12)
    assert reply.error_code == ErrorCode.NONE
    assert reply.responses


def _go_on(session_id: int, epoch: int) -> m.FetchRequest:
    return m.FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, session_id=session_id, session_epoch=epoch, topics=[]
    )


# Time.


def test_time_of_the_loop_is_counted_and_nobody_waits_longer_than_a_window(play: Play) -> None:
    play.set({"user": "alice"}, request_percentage=0.001)
    client = play.client(user="alice")
    clock = play.desk.broker.clock
    tick = iter(range(10**9))

    class Slow:
        """A clock on which every operation takes time."""

        def monotonic_us(self) -> int:
            return clock.monotonic_us() + next(tick) * 5_000

        def __getattr__(self, name: str) -> Any:
            return getattr(clock, name)

    play.desk.broker.quotas._clock = Slow()
    waits = [client.ask(m.MetadataRequest(topics=[]), 9, within_ms=5_000).throttle_time_ms for _ in range(3)]
    assert waits[0] == waits[-1] == 1000, "by far too much, and still no more than a window"
    assert is_paused(client)


# Partitions.


def create(play: Play, client: Any, *names: str, partitions: int = 1, version: int = 6) -> Any:
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


def test_topics_beyond_the_quota_are_refused_for_now(play: Play) -> None:
    play.set({"user": "alice"}, controller_mutation_rate=4)
    client = play.client(user="alice")
    reply = create(play, client, "a", "b", "c", partitions=3)
    # A client with quota left may exceed it, once.
    assert codes(reply) == {"a": ErrorCode.NONE, "b": ErrorCode.NONE, "c": BEYOND}
    assert 490 < reply.throttle_time_ms <= 500
    assert "controller_mutation_rate" in next(each.error_message for each in reply.topics if each.name == "c")
    assert play.desk.broker.image.topics.keys() >= {"a", "b"}
    assert "c" not in play.desk.broker.image.topics
    assert is_paused(client)
    play.desk.run(600)
    assert codes(create(play, client, "c", partitions=3)) == {"c": ErrorCode.NONE}


def test_an_older_client_gets_what_it_wants_and_waits_afterwards(play: Play) -> None:
    play.set({"user": "alice"}, controller_mutation_rate=4)
    client = play.client(user="alice")
    reply = create(play, client, "a", "b", "c", partitions=4, version=5)
    assert set(codes(reply).values()) == {ErrorCode.NONE}
    assert 1990 < reply.throttle_time_ms <= 2000


def test_to_delete_and_to_add_partitions_counts_as_well(play: Play) -> None:
    client = play.client(user="alice")
    create(play, client, "a", "b", "c", partitions=4)
    play.set({"user": "alice"}, controller_mutation_rate=3)
    topics = [m.DeleteTopicsRequest.DeleteTopicState(name=name) for name in ("a", "b", "nothing")]
    reply = client.ask(m.DeleteTopicsRequest(topics=topics, timeout_ms=1000), 6, within_ms=5_000)
    assert codes(reply, "responses") == {
        "a": ErrorCode.NONE,
        "b": BEYOND,
        "nothing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert "b" in play.desk.broker.image.topics
    play.desk.run(2_000)
    reply = client.ask(m.DeleteTopicsRequest(topic_names=["b"], timeout_ms=1000), 5, within_ms=5_000)
    assert codes(reply, "responses") == {"b": ErrorCode.NONE}
    play.desk.run(1_000)
    grown = [
        m.CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
        for name, count in (("c", 9), ("pond", 2))
    ]
    request = m.CreatePartitionsRequest(topics=grown, timeout_ms=1000, validate_only=False)
    reply = client.ask(request, 3, within_ms=5_000)
    assert codes(reply, "results") == {"c": ErrorCode.NONE, "pond": BEYOND}


def test_only_to_ask_whether_a_topic_could_be_made_costs_nothing(play: Play) -> None:
    play.set({"user": "alice"}, controller_mutation_rate=1)
    client = play.client(user="alice")
    topics = [
        m.CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=9, replication_factor=1, assignments=[], configs=[]
        )
        for name in ("a", "b")
    ]
    reply = client.ask(m.CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=True), 6, within_ms=5_000)
    assert (set(codes(reply).values()), reply.throttle_time_ms) == ({ErrorCode.NONE}, 0)
    assert codes(create(play, client, "a")) == {"a": ErrorCode.NONE}


# Describing and altering.


def describe(play: Play, *parts: tuple[str, int, str | None], strict: bool = False) -> Any:
    components = [Describe.ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in parts]
    return play.operator.ask(Describe(components=components, strict=strict), 1)


def test_quotas_are_described_as_they_were_set_and_survive_a_restart(play: Play) -> None:
    play.set({"user": "alice", "client-id": None}, producer_byte_rate=10, request_percentage=0.5)
    play.set({"ip": "10.0.0.7"}, connection_creation_rate=3)
    reply = describe(play, ("user", 0, "alice"))
    (entry,) = reply.entries
    assert {(part.entity_type, part.entity_name) for part in entry.entity} == {("user", "alice"), ("client-id", None)}
    assert {each.key: each.value for each in entry.values} == {"producer_byte_rate": 10.0, "request_percentage": 0.5}
    assert len(describe(play).entries) == 2
    assert describe(play, ("user", 0, "alice"), strict=True).entries == []
    wrong = describe(play, ("user", 0, None))
    assert (wrong.error_code, wrong.entries) == (ErrorCode.INVALID_REQUEST, None)
    assert describe(play, ("team", 2, None)).error_code == ErrorCode.UNSUPPORTED_VERSION
    play.desk.node.stop()
    play.desk.sim.run_for(2_000)
    assert play.desk.node.start()
    play.operator = play.desk.connect()
    assert len(describe(play).entries) == 2
    assert play.desk.broker.quotas.is_on


# Extreme quotas and client counts.


def make_topic(client: Any, name: str, partitions: int) -> Any:
    topic = m.CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    return client.ask(m.CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)


@pytest.mark.parametrize("rate", [5e-324, 1e-308, 1e-300, 1e-9, 1e300, 1.7976931348623157e308])
def test_a_quota_of_any_size_ends_no_node(play: Play, rate: float) -> None:
    """The right to set quotas must not be enough to end all nodes, at every start."""
    client = play.client(user="alice")
    for value in (rate, 1.0, rate):
        play.set({"user": "alice"}, request_percentage=value, controller_mutation_rate=value)
        for at in range(3):
            topics = make_topic(client, f"new-{value}-{at}".replace("+", ""), 3).topics
            assert topics[0].error_code != ErrorCode.UNKNOWN_SERVER_ERROR
            client = play.client(user="alice")
            assert 0 <= client.ask(m.MetadataRequest(topics=[]), 9).throttle_time_ms <= WAIT_MS_MAX
            client = play.client(user="alice")


def test_partitions_that_cannot_be_made_are_not_counted(play: Play) -> None:
    play.set({"user": "alice"}, controller_mutation_rate=10)
    client = play.client(user="alice")
    (refused,) = make_topic(client, "huge", (1 << 31) - 1).topics
    assert refused.error_code not in (ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    (made,) = make_topic(play.client(user="alice"), "small", 1).topics
    assert made.error_code == ErrorCode.NONE, made.error_message


def test_a_crowd_of_names_takes_nothing_from_another_user(play: Play) -> None:
    """Mallory uses more client ids than are tracked individually."""
    play.desk.broker.quotas._buckets._count_max = 10
    play.set({"user": None, "client-id": None}, producer_byte_rate=1000)
    for number in range(50):
        play.produce(play.client(f"id-{number}", "mallory"), 5_000)
    assert play.produce(play.client("app", "bob"), 500).throttle_time_ms == 0
