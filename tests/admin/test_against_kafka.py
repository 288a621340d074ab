"""What `admin` says of any Kafka cluster, shown on Apache Kafka itself. Skipped where its archives cannot be had."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer

from millpond.admin.balance import plan_balance, plan_leaders
from millpond.admin.dead_letters.letters import Filter
from millpond.admin.dead_letters.purge import apply_purge, plan_purge
from millpond.admin.dead_letters.redrive import Redrive, RedriveOrder
from millpond.admin.dead_letters.topics import list_letter_topics
from millpond.admin.errors import NotDeadLetters, Refused
from millpond.admin.groups import EMPTY, STABLE, delete_groups, describe_group, list_groups
from millpond.admin.history import read_history
from millpond.admin.lag import LagWatch
from millpond.admin.moves import read_placement
from millpond.admin.offset_reset import apply_reset, plan_reset
from millpond.admin.offsets import Beginning
from millpond.admin.placement import PlannedMove
from millpond.admin.queues.find import find_queue_name
from millpond.admin.queues.jobs import peek
from millpond.admin.queues.queue import QueueName
from millpond.admin.queues.watch import read_queues
from millpond.admin.settings import Subject, alter_settings
from millpond.admin.throttle import clear_throttle, set_throttle
from millpond.admin.topics import alter_topic, delete_topics, describe_topics, grow_topic
from millpond.admin.transactions import (
    abort_transaction,
    describe_transaction,
    hanging_producers,
    held_back,
    list_transactions,
    open_producers,
)
from millpond.admin.waves import run_moves
from millpond.admin.workload import measure_traffic
from millpond.base.ids import TopicPartition
from millpond.cli import command
from millpond.cli.stop import Stop
from millpond.client.dead_letters import dead_letter, origin_of
from millpond.client.message import Message, header_list
from millpond.remote.cluster import Cluster
from millpond.remote.topics import TopicExists, create_topic
from support.kafka_broker import PASSWORD, USER, KafkaBroker
from support.node import eventually
from support.patience import with_time

pytestmark = [with_time, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    try:
        yield broker.start()
    finally:
        broker.terminate()


def test_everything_that_people_ask(kafka: KafkaBroker) -> None:
    """One walk, because the broker takes long to start."""
    with Cluster({"bootstrap.servers": kafka.bootstrap, "default.api.timeout.ms": "30000"}) as cluster:
        topics(cluster)
        settings(kafka)
        moves(cluster)
        groups(kafka, cluster)
        transactions(kafka, cluster)
        dead_letters(kafka, cluster)
        assert read_history(cluster, "group-consumer") is None


def moves(cluster: Cluster) -> None:
    """One broker has its share; a limit that a killed command has left is found and taken away."""
    create_topic(cluster, "carried", 2)
    eventually(lambda: len(read_placement(cluster).of_topic("carried")) == 2)
    load = read_placement(cluster)
    assert plan_balance(load) == plan_leaders(load, measure_traffic(cluster, 0.1)) == []
    (node,) = load.racks
    move = PlannedMove(TopicPartition("carried", 0), (node,), (node,))
    assert run_moves(cluster, [move], stop=Stop(), rate=1_000_000).moved == [move]
    set_throttle(cluster, [PlannedMove(TopicPartition("carried", 1), (node,), (node, node + 1))], 1_000_000)
    lists = ("leader.replication.throttled.replicas", f"1:{node}", "topic")
    eventually(lambda: lists in settings_of(cluster, "carried"))
    assert clear_throttle(cluster)
    eventually(lambda: not settings_of(cluster, "carried"))
    delete_topics(cluster, ["carried"])


def settings(kafka: KafkaBroker) -> None:
    """`millpond config` as a user types it, on topics, a broker, all brokers and groups."""

    def config(verb: str, *words: str, code: int = 0) -> str:
        done = CliRunner().invoke(command, ["config", verb, *words, "-b", kafka.bootstrap])
        assert done.exit_code == code, done.output
        return done.output

    def value(*words: str) -> str:
        return config("get", *words, "--value").rstrip("\n")

    topic, every, one, group = ("topic", "orders"), ("node", "all"), ("node", "1"), ("group", "not-yet")
    assert config("set", *topic, "retention.ms=5000", "cleanup.policy=compact,delete").splitlines() == [
        "retention.ms: 604800000 → 5000",
        "cleanup.policy: delete → compact,delete",
    ]
    assert eventually(lambda: value(*topic, "retention.ms") == "5000")
    result = config("get", *topic, "retention.ms")
    assert "  from: topic\n  type: whole number\n" in result, "Kafka does not say what it would be otherwise"
    assert "from: topic; unset it would be delete\n" in config("get", *topic, "cleanup.policy")
    # What Kafka says of it, without the signs of a web page.
    assert "retention policy" in result.replace("\n ", "")
    assert "<" not in result
    assert "did you mean retention.ms?" in config("set", *topic, "retention.m=1", code=1)
    assert "retention.ms" in config("set", *topic, "segment.bytes=1048577", "retention.ms=soon", code=1)
    assert value(*topic, "segment.bytes") == "1048576"
    assert "would take it" in config("unset", *topic, "retention.ms", "--dry-run")
    assert config("unset", *topic, "retention.ms", "cleanup.policy").splitlines() == [
        "retention.ms: 5000 → –",
        "cleanup.policy: compact,delete → delete",
    ]
    assert eventually(lambda: "retention.ms" not in config("list", *topic))

    config("set", *one, "log.retention.ms=80000")
    assert eventually(lambda: value(*one, "log.retention.ms") == "80000")
    # What counts then is log.retention.hours, 168.
    assert "unset it would be 604800000" in config("get", *one, "log.retention.ms")
    config("set", *every, "log.retention.ms=70000")
    assert eventually(lambda: "unset it would be 70000" in config("get", *one, "log.retention.ms"))
    assert ["log.retention.ms", "70000"] in [line.split()[:2] for line in config("list", *every).splitlines()]
    assert config("unset", *one, "log.retention.ms") == "log.retention.ms: 80000 → 70000\n"
    config("unset", *every, "log.retention.ms")
    # It had no value before, which is another thing than an empty one.
    assert eventually(lambda: json.loads(config("get", *one, "log.retention.ms", "--json"))[0]["value"] is None)
    assert "can only be set when a node starts" in config("set", *one, "process.roles=broker", code=1)
    assert "There is no node 7 now: there are 1, or all." in config("list", "node", "7", code=1)

    # A listener's own value, of which Kafka says nothing as long as it has none.
    config("set", *one, "listener.name.clear.max.connections=500")
    assert eventually(lambda: "listener.name.clear.max.connections" in config("list", *one))
    config("unset", *one, "listener.name.clear.max.connections")
    login = "listener.name.login.plain.sasl.jaas.config"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    result = config("set", *one, f'{login}={module} required user_{USER}="{PASSWORD}";')
    assert result == f"{login}: (hidden)\n"
    assert f"{login} = (hidden)" in config("get", *one, login)
    assert "is a secret" in config("get", *one, login, "--value", code=1)
    assert PASSWORD not in config("list", *one, "--all", "--json")
    assert config("unset", *one, login) == f"{login}: (hidden)\n"

    assert config("set", *group, "consumer.session.timeout.ms=50000").endswith("45000 → 50000\n")
    assert eventually(lambda: value(*group, "consumer.session.timeout.ms") == "50000")
    assert config("unset", *group, "consumer.session.timeout.ms").endswith("50000 → 45000\n")


def settings_of(cluster: Cluster, topic: str) -> list[tuple[str, str | None, str]]:
    (facts,) = describe_topics(cluster, [topic])
    return [(each.name, each.value, each.source) for each in facts.settings if "throttled" in each.name]


def topics(cluster: Cluster) -> None:
    create_topic(cluster, "orders", 1, settings={"retention.ms": "60000"})
    with pytest.raises(TopicExists):
        create_topic(cluster, "orders")
    grow_topic(cluster, "orders", 2)
    alter_topic(cluster, "orders", {"segment.bytes": "1048576"}, unset=["retention.ms"])
    assert eventually(lambda: len(cluster.topics(["orders"])["orders"].partitions) == 2)
    (facts,) = describe_topics(cluster, ["orders"])
    assert [(each.start, each.end, each.size_bytes) for each in facts.partitions] == [(0, 0, 0)] * 2
    assert [(each.name, each.value) for each in facts.settings if each.source == "topic"] == [
        ("segment.bytes", "1048576")
    ]
    create_topic(cluster, "short-lived")
    assert eventually(lambda: "short-lived" in cluster.topics())
    delete_topics(cluster, ["short-lived"])
    assert eventually(lambda: "short-lived" not in cluster.topics())


def groups(kafka: KafkaBroker, cluster: Cluster) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for _ in range(5):
        producer.produce("orders", b"v", partition=0)
    assert producer.flush(60) == 0
    zero = TopicPartition("orders", 0)
    for protocol in ("classic", "consumer"):
        name = f"group-{protocol}"
        settings = {
            "group.id": name,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "client.id": "till",
        }
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "enable.auto.commit": False, **settings})
        consumer.subscribe(["orders"])
        message = None
        while message is None or message.error():
            message = consumer.poll(0.2)
        consumer.commit(message, asynchronous=False)
        group = describe_group(cluster, name)
        assert (group.state, group.type, [each.client for each in group.members]) == (STABLE, protocol, ["till"])
        assert group.members[0].partitions == (zero, TopicPartition("orders", 1))
        assert (name, STABLE, protocol) in [(each.group, each.state, each.type) for each in list_groups(cluster)]
        with pytest.raises(Refused, match="has 1 active member"):
            plan_reset(cluster, name, [("orders", None)], Beginning())
        consumer.close()
        assert eventually(lambda name=name: describe_group(cluster, name).state == EMPTY)
        (lag,) = LagWatch(cluster, [name], sample_seconds=0).look()
        assert (lag.lag, lag.partitions[0].committed) == (4, 1)
        assert lag.behind_ms is not None
        apply_reset(cluster, plan_reset(cluster, name, [("orders", [0])], Beginning()))
        (lag,) = LagWatch(cluster, [name], sample_seconds=0).look()
        assert lag.lag == 5
    delete_groups(cluster, ["group-classic"])
    assert "group-classic" not in [each.group for each in list_groups(cluster)]


def transactions(kafka: KafkaBroker, cluster: Cluster) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "payments"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("orders", b"open", partition=1)
    assert producer.flush(60) == 0
    transaction = describe_transaction(cluster, "payments")
    one = TopicPartition("orders", 1)
    assert (transaction.state, transaction.partitions) == ("ongoing", (one,))
    assert list_transactions(cluster) == [transaction]
    (opened,) = open_producers(cluster, [one])
    assert (opened.producer_id, opened.first_offset) == (transaction.producer_id, 0)
    assert held_back(cluster, [opened]) == {one: 1}
    assert hanging_producers(cluster, ["orders"]) == []
    abort_transaction(cluster, "payments")
    assert eventually(lambda: open_producers(cluster, [one]) == [])


def dead_letters(kafka: KafkaBroker, cluster: Cluster) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    create_topic(cluster, "graveyard", 1)
    with pytest.raises(NotDeadLetters, match=r"its record 0:0 has no header dlq\.topic"):
        plan_purge(cluster, "orders")
    for number in range(20):
        message = Message("orders", 0, number, 1_000, b"k", b"%d" % number)
        sent = dead_letter(
            message, ValueError("bad"), to="graveyard", origin=origin_of(message), attempts=1, group="g", now_ms=1
        )
        producer.produce("graveyard", sent.value, sent.key, headers=header_list(sent.headers))
    assert producer.flush(60) == 0
    (facts,) = list_letter_topics(cluster)[0]
    assert (facts.topic, facts.records, facts.waiting) == ("graveyard", 20, 20)
    Redrive(cluster, RedriveOrder("graveyard", Filter(), batch=6)).run(lambda _: None)
    (facts,) = list_letter_topics(cluster)[0]
    assert (facts.records, facts.waiting) == (20, 0)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "look", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    values: list[bytes] = []
    while len(values) < 25:
        message = consumer.poll(20)
        assert message is not None, values
        if message.error() is None:
            values.append(bytes(message.value() or b""))
    consumer.close()
    assert sorted(values) == sorted([b"v"] * 5 + [b"%d" % number for number in range(20)])
    plan = plan_purge(cluster, "graveyard", only_redriven=True)
    assert (plan.records, plan.waiting) == (20, 0)
    apply_purge(cluster, plan)
    assert list_letter_topics(cluster)[0][0].records == 0


def test_queues_with_less_than_our_own_leaders_say(kafka: KafkaBroker) -> None:
    """Kafka takes the question for windows for one to the coordinator: there is no window in the answer."""
    runner = CliRunner()
    options = ("--bootstrap", kafka.bootstrap)

    def run(*words: str) -> str:
        done = runner.invoke(command, ["queue", *words, *options])
        assert done.exit_code == 0, (words, done.output, done.exception)
        return done.stdout

    with Cluster({"bootstrap.servers": kafka.bootstrap, "default.api.timeout.ms": "30000"}) as cluster:
        create_topic(cluster, "jobs", 1)
        alter_settings(cluster, Subject("group", "workers"), {"share.auto.offset.reset": "earliest"})
        run("send", "jobs", "a", "b", "c")
        name = QueueName("workers", "jobs")
        # The state topic of share groups is created first.
        assert '"value":"a"' in run("receive", "jobs", "--group", "workers", "--wait", "2m", "--release")
        assert eventually(lambda: describe_group(cluster, "workers").state == EMPTY)
        (queue,) = read_queues(cluster, ["workers"]).queues
        (partition,) = queue.partitions
        assert (queue.name, queue.waiting, queue.out, queue.totals) == (name, 3, None, None)
        assert (partition.start, partition.end, partition.is_started) == (0, 3, True)
        assert partition.oldest_age_ms is not None
        assert [bytes(each.record.value or b"") for each in peek(cluster, name, 2).jobs] == [b"a", b"b"]
        assert find_queue_name(cluster, "jobs") == name
        assert "jobs of group workers: empty, 0 members, 3 waiting" in run("describe", "jobs", "--sample", "0")
        assert "3 records will not be delivered" in run("purge", "jobs", "--yes")
        assert eventually(lambda: read_queues(cluster, ["workers"]).queues[0].unfinished == 0)
