"""The consumer against Millpond and against librdkafka's mock cluster."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as RawProducer

from millpond import (
    ClientError,
    Closed,
    ConfigError,
    ConsumeFailed,
    Consumer,
    Fenced,
    Producer,
    Timeout,
    UnknownTopic,
)
from millpond.base.ids import TopicPartition
from support.node import eventually

VALUES = [b"%d" % n for n in range(40)]


def take(consumer: Consumer, count: int, seconds: float = 15.0) -> list[bytes | None]:
    found: list[bytes | None] = []
    deadline = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        found += [message.value for message in consumer.poll(count - len(found), 0.2)]
    return found


@pytest.fixture
def filled(broker) -> str:
    topic = broker.topic()
    broker.fill(topic, VALUES, keys=8)
    return topic


@pytest.mark.smoke
def test_a_group_reads_everything_once_and_goes_on_where_it_committed(cluster) -> None:
    filled, group = cluster.topic(), cluster.group()
    cluster.fill(filled, VALUES, keys=8)
    with Consumer(
        group=group, topics=[filled], bootstrap=cluster.bootstrap, session_timeout_s=cluster.session_s
    ) as consumer:
        first = take(consumer, 15)
        consumer.commit()
        take(consumer, 5)  # not committed
    with Consumer(group, [filled], bootstrap=cluster.bootstrap, session_timeout_s=cluster.session_s) as consumer:
        rest = take(consumer, 25)
        assert sorted(first + rest) == sorted(VALUES)
        assert sum(consumer.lag().values()) == 0
        assert consumer.poll(10, 0.1) == []


@pytest.mark.smoke
def test_iterating_and_committing_message_by_message(broker, filled) -> None:
    group = broker.group()
    seen: list[bytes | None] = []
    with Consumer(group, [filled], bootstrap=broker.bootstrap) as consumer:
        for message in consumer:
            seen.append(message.value)
            consumer.commit()
            if len(seen) == 7:
                break
    with Consumer(group, [filled], bootstrap=broker.bootstrap) as consumer:
        seen += take(consumer, 33)
    assert sorted(seen) == sorted(VALUES), "what was prefetched but not handed out is not committed"


def test_batches_and_commit_of_one_message(broker, filled) -> None:
    group = broker.group()
    with Consumer(group, [filled], bootstrap=broker.bootstrap) as consumer:
        batch = next(consumer.batches(max_records=10))
        assert 1 <= len(batch) <= 10
        message = batch[0]
        consumer.commit(message)
        place = TopicPartition(message.topic, message.partition)
        assert consumer.committed([place]) == {place: message.offset + 1}
        consumer.commit(offsets={place: message.offset}, wait=False)
        assert eventually(lambda: consumer.committed([place]) == {place: message.offset})


def test_without_a_group_all_partitions_are_read_and_nothing_is_committed(broker, filled) -> None:
    with Consumer(topics=[filled], bootstrap=broker.bootstrap) as consumer:
        assert sorted(take(consumer, 40)) == sorted(VALUES)
        assert len(consumer.assignment()) == 4
        with pytest.raises(ConfigError, match="group"):
            consumer.commit()


def test_seeking(broker) -> None:
    topic = broker.topic()
    broker.fill(topic, VALUES, partition=2)
    with Consumer(None, [topic], bootstrap=broker.bootstrap) as consumer:
        place = TopicPartition(topic, 2)
        assert take(consumer, 3) == VALUES[:3]
        assert consumer.position(place) == 3
        consumer.seek(topic, 2, 30)
        assert take(consumer, 10) == VALUES[30:]
        consumer.seek_to_beginning()
        assert take(consumer, 2) == VALUES[:2]
        consumer.seek_to_end([place])
        assert consumer.poll(1, 0.3) == []
        broker.fill(topic, [b"new"], partition=2)
        assert take(consumer, 1) == [b"new"]


def test_seeking_forgets_what_was_prefetched(broker) -> None:
    topic = broker.topic()
    broker.fill(topic, VALUES, partition=0)
    with Consumer(None, [topic], bootstrap=broker.bootstrap) as consumer:
        assert next(iter(consumer)).value == b"0"
        consumer.seek(topic, 0, 20)
        assert next(iter(consumer)).value == b"20"


@pytest.mark.parametrize("group", [None, "timed"])
def test_from_a_time_and_back_to_one(broker, group: str | None) -> None:
    """Millpond only: the mock does not look offsets up by time."""
    topic = broker.topic(1)
    begin = 1_700_000_000_000
    with Producer(broker.bootstrap) as producer:
        for n in range(10):
            producer.send(topic, b"%d" % n, timestamp_ms=begin + n * 1000)
    when = datetime.fromtimestamp((begin + 4500) / 1000, UTC)
    with Consumer(group, [topic], bootstrap=broker.bootstrap, from_=when) as consumer:
        assert take(consumer, 5) == [b"5", b"6", b"7", b"8", b"9"]
        consumer.seek_to_time(begin + 8000)
        assert take(consumer, 2) == [b"8", b"9"]
        consumer.seek_to_time(datetime.now(UTC))
        assert consumer.poll(1, 0.2) == []
        if group:
            consumer.commit(offsets={TopicPartition(topic, 0): 2})
    if group:
        with Consumer(group, [topic], bootstrap=broker.bootstrap, from_=when) as consumer:
            assert take(consumer, 1) == [b"2"], "a committed position counts more than the time"


class Unsaid:
    """librdkafka, but the offsets of a time are not said so many times."""

    def __init__(
        self, raw: Any, times: int, partition_error: bool = False, code: int = KafkaError._TIMED_OUT
    ) -> None:
        self._raw = raw
        self.times = times
        self.partition_error = partition_error
        self.code = code

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def offsets_for_times(self, asked: list[Any], timeout: float) -> Any:
        answer = self._raw.offsets_for_times(asked, timeout=timeout)
        if not self.times:
            return answer
        self.times -= 1
        fault = KafkaError(self.code)
        if not self.partition_error:
            raise KafkaException(fault)
        return [SimpleNamespace(topic=each.topic, partition=each.partition, offset=0, error=fault) for each in answer]


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
@pytest.mark.parametrize("partition_error", [False, True])
def test_a_time_that_cannot_be_looked_up_is_never_the_earliest(broker, strategy: str, partition_error: bool) -> None:
    topic, begin = broker.topic(1), 1_700_000_000_000
    with Producer(broker.bootstrap) as producer:
        for n in range(10):
            producer.send(topic, b"%d" % n, timestamp_ms=begin + n * 1000)
    options: dict[str, Any] = {"from_": begin + 5000, "settings": {"partition.assignment.strategy": strategy}}
    with Consumer(broker.group(), [topic], bootstrap=broker.bootstrap, **options) as consumer:
        consumer._raw = Unsaid(consumer.raw, 2, partition_error)  # type: ignore[assignment]
        assert take(consumer, 5) == [b"5", b"6", b"7", b"8", b"9"], "asked for again"
    with Consumer(broker.group(), [topic], bootstrap=broker.bootstrap, **options) as consumer:
        consumer._raw = Unsaid(consumer.raw, 1000, partition_error)  # type: ignore[assignment]
        with pytest.raises(Timeout, match="the cluster did not return the offset"):
            take(consumer, 1)
        for _ in range(3):
            with pytest.raises(ConsumeFailed, match="cannot determine where to begin"):
                consumer.poll(10, 0.3)


@pytest.mark.parametrize("partition_error", [False, True])
@pytest.mark.parametrize(
    ("code", "expected", "calls"),
    [
        (KafkaError._TIMED_OUT, Timeout, 3),
        (KafkaError._TRANSPORT, Timeout, 3),
        (KafkaError.LEADER_NOT_AVAILABLE, ConsumeFailed, 3),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, UnknownTopic, 3),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, ConsumeFailed, 1),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, ConsumeFailed, 1),
    ],
)
def test_only_a_temporary_lookup_failure_is_retried(
    broker, filled, code: int, expected: type[ClientError], calls: int, partition_error: bool
) -> None:
    with Consumer(broker.group(), [filled], bootstrap=broker.bootstrap, from_=0) as consumer:
        failing = Unsaid(consumer.raw, 1000, partition_error, code)
        consumer._raw = failing  # type: ignore[assignment]
        with pytest.raises(ClientError, match="the cluster did not return the offset") as raised:
            take(consumer, 1)
        assert (type(raised.value), raised.value.code) == (expected, code)
        assert 1000 - failing.times == calls


def test_from_latest_only_the_new(broker, filled) -> None:
    with Consumer(None, [filled], bootstrap=broker.bootstrap, from_="latest") as consumer:
        assert consumer.poll(1, 0.5) == []
        broker.fill(filled, [b"new"])
        assert take(consumer, 1) == [b"new"]


def test_a_paused_partition_is_silent_until_resumed(broker) -> None:
    topic = broker.topic()
    for partition in (0, 1):
        broker.fill(topic, [b"%d" % partition] * 5, partition=partition)
    with Consumer(None, [topic], bootstrap=broker.bootstrap) as consumer:
        consumer.pause([TopicPartition(topic, 0)])
        assert take(consumer, 6, seconds=1.0) == [b"1"] * 5
        consumer.resume()
        assert take(consumer, 5) == [b"0"] * 5


@pytest.mark.smoke
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_rebalance_callbacks_tell_who_has_what(broker, protocol) -> None:
    """Millpond only: the mock does not speak the newer protocol, and the older one is tested by all the others."""
    topic, group = broker.topic(), broker.group()
    calls: list[tuple[str, int]] = []
    options: dict[str, Any] = {"bootstrap": broker.bootstrap, "protocol": protocol}
    if protocol == "classic":
        options["session_timeout_s"] = 2.0
    first = Consumer(
        group,
        [topic],
        on_assigned=lambda places: calls.append(("assigned", len(places))),
        on_revoked=lambda places: calls.append(("revoked", len(places))),
        **options,
    )
    assert eventually(lambda: first.poll(1, 0.05) or len(first.assignment()) == 4)
    assert calls == [("assigned", 4)]
    with Consumer(group, [topic], **options) as second:
        assert eventually(lambda: first.poll(1, 0.05) or second.poll(1, 0.05) or len(second.assignment()) == 2)
        assert ("revoked", 2) in calls
        assert set(first.assignment()) | set(second.assignment()) == {TopicPartition(topic, n) for n in range(4)}
    assert eventually(lambda: first.poll(1, 0.05) or len(first.assignment()) == 4)
    first.close()
    assert calls[-1] == ("revoked", 4)


def test_a_consumer_whose_instance_id_is_taken_over_is_fenced(broker) -> None:
    """librdkafka tells it once, and never reads again: a consumer that went on would wait for ever."""
    topic, group = broker.topic(1), broker.group()
    options = {"bootstrap": broker.bootstrap, "instance": "only", "session_timeout_s": 3.0}
    with Consumer(group, [topic], **options) as first:
        assert eventually(lambda: first.poll(1, 0.05) or first.assignment())
        with Consumer(group, [topic], **options) as second:
            with pytest.raises(Fenced, match="its own name"):
                eventually(lambda: first.poll(1, 0.05) or second.poll(1, 0.05))
            assert eventually(lambda: second.poll(1, 0.05) or second.assignment())


def test_the_end_is_known_when_it_is_reached(broker) -> None:
    topic = broker.topic()
    broker.fill(topic, VALUES, partition=1)
    with Consumer(None, [topic], bootstrap=broker.bootstrap) as consumer:
        assert not consumer.is_at_end()
        assert consumer.next(10) is not None
        assert not consumer.is_at_end()
        take(consumer, 39)
        assert eventually(lambda: consumer.poll(1, 0.05) or consumer.is_at_end())
        broker.fill(topic, [b"more"], partition=2)
        assert take(consumer, 1) == [b"more"]
        assert not consumer.is_at_end()


@pytest.mark.smoke
def test_lag_counts_what_is_left(broker) -> None:
    topic = broker.topic()
    broker.fill(topic, VALUES, partition=1)
    with Consumer(broker.group(), [topic], bootstrap=broker.bootstrap) as consumer:
        assert len(take(consumer, 15)) == 15
        assert consumer.lag() == {TopicPartition(topic, n): 25 if n == 1 else 0 for n in range(4)}


def test_the_end_of_a_transaction_is_no_lag(broker) -> None:
    topic = broker.topic(1)
    producer = RawProducer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(10)
    producer.begin_transaction()
    for value in VALUES[:3]:
        producer.produce(topic, value)
    producer.commit_transaction(10)
    only = TopicPartition(topic, 0)
    with Consumer(broker.group(), [topic], bootstrap=broker.bootstrap) as consumer:
        # All were fetched with the first, but records that were not handed out do not count as read.
        assert eventually(lambda: consumer.next(0.05)) is not None
        assert eventually(lambda: consumer.lag()[only] == 3)
        assert len(take(consumer, 2)) == 2
        assert eventually(lambda: consumer.poll(1, 0.05) or consumer.is_at_end())
        assert consumer.lag() == {only: 0}
        broker.fill(topic, [b"more"])
        assert consumer.lag() == {only: 1}


@pytest.mark.smoke
def test_a_topic_that_is_not_there(make_node) -> None:
    node = make_node({"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": "0"})
    with pytest.raises(UnknownTopic, match="nowhere"):
        Consumer(None, ["nowhere"], bootstrap=node.bootstrap)
    with Consumer("g", ["nowhere"], bootstrap=node.bootstrap) as consumer, pytest.raises(UnknownTopic):
        take(consumer, 1)
    with Consumer("g", ["nowhere"], bootstrap=node.bootstrap, wait_for_topics=True) as consumer:
        assert take(consumer, 1, seconds=1) == []


def test_a_closed_consumer_cannot_be_polled(broker) -> None:
    consumer = Consumer("g", ["orders"], bootstrap=broker.bootstrap)
    consumer.close()
    consumer.close()
    with pytest.raises(Closed):
        consumer.poll()


class Held:
    """librdkafka in a busy process: before one of its calls another thread has the interpreter for a while."""

    def __init__(self, raw: Any, name: str) -> None:
        self._raw = raw
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            time.sleep(0.03)
        return getattr(self._raw, name)


GROUP_WAYS = {
    "cooperative": {"session_timeout_s": 0.9},
    "eager": {"session_timeout_s": 0.9, "settings": {"partition.assignment.strategy": "range"}},
    "new protocol": {"protocol": "consumer"},
}


@pytest.mark.parametrize("way", GROUP_WAYS)
def test_a_poll_returns_no_records_of_partitions_revoked_during_it(broker, way) -> None:
    topic, group = broker.topic(), broker.group()
    for partition in range(4):
        broker.fill(topic, [b"x"] * 5_000, partition=partition)
    held: set[TopicPartition] = set()
    revocations = 0

    def revoked(partitions: list[TopicPartition]) -> None:
        nonlocal revocations
        revocations += 1
        held.difference_update(partitions)

    options: dict[str, Any] = {"bootstrap": broker.bootstrap, **GROUP_WAYS[way]}
    foreign = []
    with Consumer(group, [topic], on_assigned=held.update, on_revoked=revoked, **options) as first:
        first._raw = Held(first.raw, "consume")  # type: ignore[assignment]

        def churn() -> None:
            for _ in range(5):
                eventually(lambda: len(held) == 4)
                with Consumer(group, [topic], **options) as second:
                    eventually(lambda each=second: each.poll(1, 0.02) or each.assignment())

        churning = threading.Thread(target=churn)
        churning.start()
        while churning.is_alive():
            batch = first.poll(20, 0.05)
            foreign += [str(each) for each in batch if TopicPartition(each.topic, each.partition) not in held]
        churning.join()
    assert revocations >= 3
    assert foreign == [], f"{len(foreign)} records of others in {revocations} revocations"


def test_records_polled_with_a_failure_are_returned_afterwards(broker) -> None:
    topic, group = broker.topic(1), broker.group()
    broker.fill(topic, VALUES)
    wrongs = iter([RuntimeError("a callback of ours")])

    def assigned(partitions: list[TopicPartition]) -> None:
        for wrong in wrongs:
            raise wrong

    with Consumer(group, [topic], bootstrap=broker.bootstrap, on_assigned=assigned) as consumer:
        with pytest.raises(RuntimeError, match="of ours"):
            eventually(lambda: consumer.poll(10, 0.1))
        assert take(consumer, 40) == VALUES


def test_an_asynchronous_commit_counts_once_it_is_confirmed(broker) -> None:
    topic, group = broker.topic(1), broker.group()
    broker.fill(topic, VALUES)
    partition = TopicPartition(topic, 0)
    with Consumer(group, [topic], bootstrap=broker.bootstrap) as consumer:
        take(consumer, 10)
        sent: list[bool] = []
        raw_commit = consumer.raw.commit

        class Losing:
            """librdkafka, but a commit without waiting never arrives."""

            def __getattr__(self, name: str) -> Any:
                return getattr(raw, name)

            def commit(self, *, offsets: Any, asynchronous: bool) -> Any:
                sent.append(asynchronous)
                return None if asynchronous else raw_commit(offsets=offsets, asynchronous=False)

        raw, consumer._raw = consumer._raw, Losing()  # type: ignore[assignment]
        consumer.commit(wait=False)
        consumer.commit()
        assert sent == [True, False]
        assert consumer.committed([partition]) == {partition: 10}
        consumer._raw = raw
        take(consumer, 5)
        consumer.commit(wait=False)
        consumer.pause()
        assert eventually(lambda: consumer.poll(1, 0.05) or not consumer._uncommitted())
        assert consumer.committed([partition]) == {partition: 15}


def test_a_pause_also_holds_back_prefetched_records(broker) -> None:
    topic = broker.topic(2)
    for partition in (0, 1):
        broker.fill(topic, [b"%d" % partition] * 5, partition=partition)
    with Consumer(None, [topic], bootstrap=broker.bootstrap) as consumer:
        first = consumer.next(10)
        assert first is not None
        held = TopicPartition(topic, first.partition)
        consumer.pause([held])
        rest = [each.partition for each in iter(lambda: consumer.next(1.0), None)]
        assert rest == [1 - first.partition] * 5
        consumer.resume([held])
        assert len(take(consumer, 4)) == 4


def test_a_reassigned_partition_is_no_longer_paused(broker) -> None:
    """librdkafka remembers a pause through a revocation: a worker that was full then stood still for ever."""
    topic, group = broker.topic(2), broker.group()
    options = {
        "bootstrap": broker.bootstrap,
        "settings": {"partition.assignment.strategy": "range", "heartbeat.interval.ms": "300"},
    }
    with Consumer(group, [topic], **options) as first:
        assert eventually(lambda: first.poll(1, 0.05) or len(first.assignment()) == 2)
        first.pause()
        with Consumer(group, [topic], **options) as second:

            def is_shared() -> bool:
                first.poll(1, 0.05)
                second.poll(1, 0.05)
                return [len(each.assignment()) for each in (first, second)] == [1, 1]

            assert eventually(is_shared)
            for partition in (0, 1):
                broker.fill(topic, [b"%d" % partition] * 5, partition=partition)
            assert len(take(first, 5)) == 5


def test_partitions_revoked_on_close_can_be_committed(broker) -> None:
    topic, group = broker.topic(1), broker.group()
    broker.fill(topic, VALUES)
    consumer = Consumer(group, [topic], bootstrap=broker.bootstrap, on_revoked=lambda _: consumer.commit())
    assert take(consumer, 40) == VALUES
    consumer.close()
    consumer.close()
    with Consumer(group, [topic], bootstrap=broker.bootstrap) as after:
        assert after.committed([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 40}


def test_a_slow_consumer_stays_in_its_group(broker) -> None:
    """All of them were fetched at once, and librdkafka was not asked again before the last was handed out."""
    topic = broker.topic(1)
    broker.fill(topic, VALUES[:14])
    options: dict[str, Any] = {"session_timeout_s": 2.5, "settings": {"max.poll.interval.ms": 2500}}
    found: list[bytes | None] = []
    with Consumer(broker.group(), [topic], bootstrap=broker.bootstrap, **options) as consumer:
        while len(found) < 14:
            if message := consumer.next(5.0):
                found.append(message.value)
                time.sleep(0.25)
                consumer.commit()
    assert found == VALUES[:14]


def test_a_rebalance_does_not_wait_for_prefetched_records(broker) -> None:
    topic, group = broker.topic(2), broker.group()
    # At five a second the first would need a minute for all that it has at once.
    count = 150
    for partition in (0, 1):
        broker.fill(topic, [b"x"] * count, partition=partition)
    with Consumer(group, [topic], bootstrap=broker.bootstrap) as first:
        found = [first.next(60.0)]
        with Consumer(group, [topic], bootstrap=broker.bootstrap) as second:
            other: list[bytes | None] = []
            while not other and len(found) < 2 * count:
                found.append(first.next(1.0))
                first.commit()
                time.sleep(0.2)
                other += [message.value for message in second.poll(timeout_s=0.1)]
            assert other
            assert len(found) < 2 * count, "it had handed out everything before"
