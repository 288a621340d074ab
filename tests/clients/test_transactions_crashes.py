"""Transactions and idempotent producers through crashes, broken connections and forgotten producer ids."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from confluent_kafka import KafkaException, Producer

from millpond.coordinators.transactions.records import read_value, record_of
from millpond.coordinators.transactions.states import State
from millpond.coordinators.transactions.transaction import TRANSACTIONS_V2
from millpond.wire.batch import walk
from millpond.wire.records import Record, decode_batch, encode_batch
from support import seeds
from support.groups import fetch_offsets
from support.node import HOST, eventually, free_port
from support.proxy import Proxy
from support.raw import Closed, Raw, batch
from support.raw_transactions import (
    NODE_SETTINGS,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    RawProducer,
    committed_values,
    end_offset,
    find_coordinator,
    producers_of,
    state_of,
    wait_for_state,
)
from support.transactions import ConfluentWriter

both_versions = pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
TOPIC = "records"


def begin(node, *, v2=False, timeout_ms=60_000):
    """A transaction over two partitions and the offsets of a group, left open."""
    with Raw(node.port) as raw:
        raw.create_topic(TOPIC, 2)
        find_coordinator(raw, TOPIC)
        producer = RawProducer(raw, TOPIC, v2=v2, timeout_ms=timeout_ms).begin_session()
        for partition in (0, 1):
            producer.send(TOPIC, partition, b"in doubt")
        if not v2:
            producer.add_group(TOPIC)
        assert not producer.commit_offset(TOPIC, TOPIC, 5)
    return producer


def outcome(raw):
    """What readers see of it: the records of both partitions and the group's offset, which must agree."""
    values = [committed_values(raw, TOPIC, partition) for partition in (0, 1)]
    offsets = fetch_offsets(raw, TOPIC)
    assert (values, offsets) in (
        ([[b"in doubt"], [b"in doubt"]], {(TOPIC, 0): 5}),
        ([[], []], {}),
    ), "a transaction is there in part"
    return "committed" if offsets else "aborted"


@both_versions
@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_goes_on_after_a_crash_in_the_middle_of_it(make_node, v2, committed):
    node = make_node(NODE_SETTINGS)
    producer = begin(node, v2=v2)
    node.restart(crash=True)
    with Raw(node.port) as raw:
        producer.raw = raw
        assert state_of(raw, TOPIC).transaction_state == "Ongoing"
        assert end_offset(raw, TOPIC, READ_COMMITTED) == 0
        assert producers_of(raw, TOPIC)[producer.id].current_txn_start_offset == 0
        producer.end(committed)
        wait_for_state(raw, TOPIC, "CompleteCommit" if committed else "CompleteAbort")
        assert outcome(raw) == ("committed" if committed else "aborted")


def test_a_transaction_that_nobody_comes_back_for_is_aborted_in_time(make_node):
    node = make_node(NODE_SETTINGS)
    began = time.monotonic()
    begin(node, timeout_ms=2000)
    node.restart(crash=True)
    with Raw(node.port) as raw:
        wait_for_state(raw, TOPIC, "CompleteAbort", seconds=8.0)
        assert time.monotonic() - began > 1.5
        assert outcome(raw) == "aborted"


@both_versions
@pytest.mark.parametrize("committed", [True, False])
def test_what_was_decided_is_carried_out_after_a_crash(make_node, v2, committed):
    """A crash after the decision is durable and before any marker is written: the test edits the log to look like
    that.
    """
    node = make_node(NODE_SETTINGS)
    begin(node, v2=v2)
    node.kill9()
    decide_in_the_log(node, State.PREPARE_COMMIT if committed else State.PREPARE_ABORT, raises_epoch=v2)
    node.start()
    with Raw(node.port) as raw:
        wait_for_state(raw, TOPIC, "CompleteCommit" if committed else "CompleteAbort")
        assert outcome(raw) == ("committed" if committed else "aborted")
        # Its next transaction works like any other.
        later = RawProducer(raw, TOPIC, v2=v2).begin_session()
        later.send(TOPIC, 0, b"later")
        later.commit()
        wait_for_state(raw, TOPIC, "CompleteCommit")
        assert committed_values(raw, TOPIC)[-1] == b"later"


def decide_in_the_log(node, state, *, raises_epoch):
    """Append the decision that the coordinator would have written to its log, while the node is down."""
    for log in node.data.glob("__transaction_state-*/*.log"):
        data = log.read_bytes()
        batches = list(walk(data))
        if not batches:
            continue
        position, header = batches[-1]
        last = decode_batch(data, position)[-1]
        current = read_value(TOPIC, last.value)
        decided = current.moved(state, current.updated_ms + 1)
        if raises_epoch:
            # As EndTxn of version 2 does.
            decided = replace(decided, producer_epoch=decided.producer_epoch + 1, client_version=TRANSACTIONS_V2)
        record = record_of(decided)
        written = Record(header.next_offset, last.timestamp, record.key, record.value)
        log.write_bytes(
            data + encode_batch([written], base_offset=header.next_offset, leader_epoch=header.leader_epoch)
        )
        return
    raise AssertionError("the coordinator has written nothing")


@pytest.mark.slow
def test_an_end_that_a_crash_interrupts_is_whole_or_not_at_all(make_node):
    node = make_node(NODE_SETTINGS)
    dice = seeds.dice(7)
    for turn in range(4):
        name = f"turn-{turn}"
        with Raw(node.port) as raw:
            raw.create_topic(name, 2)
            producer = RawProducer(raw, name, v2=turn % 2 == 1).begin_session()
            for partition in (0, 1):
                producer.send(name, partition, b"x")
            answered = False
            try:
                raw.socket.settimeout(dice.choice((0.0001, 0.0005, 0.001, 0.002)))
                answered = producer.ask_to_end(True).error_code == 0
            except (TimeoutError, Closed):
                pass
        node.restart(crash=True)
        with Raw(node.port) as raw:
            eventually(
                lambda raw=raw, name=name: state_of(raw, name).transaction_state in ("Ongoing", "CompleteCommit")
            )
            ended = state_of(raw, name).transaction_state
            values = [committed_values(raw, name, partition) for partition in (0, 1)]
            assert values == ([[b"x"], [b"x"]] if ended == "CompleteCommit" else [[], []])
            assert ended == "CompleteCommit" or not answered, "a commit that was acknowledged is gone"


def test_a_living_producer_commits_through_a_crash(make_node):
    node = make_node(NODE_SETTINGS)
    with Raw(node.port) as raw:
        raw.create_topic(TOPIC)
    writer = ConfluentWriter(node.bootstrap, TOPIC)
    expected = []
    for turn in range(2):
        writer.begin()
        values = [b"%d-before" % turn, b"%d-after" % turn]
        writer.send(TOPIC, 0, values[0])
        node.restart(crash=True)
        writer.send(TOPIC, 0, values[1])
        writer.commit()
        expected += values
    assert not writer.failed
    with Raw(node.port) as raw:
        wait_for_state(raw, TOPIC, "CompleteCommit")
        assert committed_values(raw, TOPIC) == expected
        assert end_offset(raw, TOPIC, READ_UNCOMMITTED) == len(expected) + 2


def test_a_batch_written_before_a_crash_is_not_written_again_after_it(make_node):
    node = make_node(NODE_SETTINGS)
    with Raw(node.port) as raw:
        raw.create_topic(TOPIC)
        producer = RawProducer(raw, TOPIC, v2=True).begin_session()
        first, second = (producer.batch(TOPIC, 0, value) for value in (b"first", b"second"))
        assert [producer.produce(TOPIC, 0, each).base_offset for each in (first, second)] == [0, 1]
    node.restart(crash=True)
    with Raw(node.port) as raw:
        producer.raw = raw
        assert [producer.produce(TOPIC, 0, each).base_offset for each in (first, second)] == [0, 1]
        producer.commit()
        wait_for_state(raw, TOPIC, "CompleteCommit")
        assert committed_values(raw, TOPIC) == [b"first", b"second"]


IDEMPOTENT = {
    "enable.idempotence": True,
    "linger.ms": 1,
    "batch.num.messages": 20,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 50,
    "log_level": 0,
}


def test_broken_connections_lead_to_no_doubles(make_node):
    """The connection breaks while acknowledgements are in flight: the producer retries, and the node detects the
    duplicates.
    """
    node, port = make_node(start=False), free_port()
    node.settings["advertised.listener"] = f"{HOST}:{port}"
    node.start()
    with Raw(node.port) as raw:
        raw.create_topic(TOPIC)
    proxy = Proxy(port, node.port)
    failed = []
    producer = Producer({"bootstrap.servers": f"{HOST}:{port}", **IDEMPOTENT})
    count = 2000
    for number in range(count):
        producer.produce(
            TOPIC, b"%d" % number, partition=0, on_delivery=lambda error, _: error and failed.append(error)
        )
        if number % 200 == 199:
            proxy.mute = True
            producer.flush(0.05)
            proxy.cut()
            proxy.mute = False
    assert producer.flush(30.0) == 0
    proxy.close()
    assert not failed
    assert proxy.cuts > 5
    with Raw(node.port) as raw:
        assert [int(each.value) for each in raw.read_all(TOPIC)] == list(range(count))


def is_committed(writer, values):
    """Whether the transaction with these records was committed; otherwise it is aborted."""
    writer.begin()
    for value in values:
        writer.producer.produce(TOPIC, value, partition=0)
    try:
        writer.producer.commit_transaction(30.0)
    except KafkaException:
        writer.abort()
        return False
    return True


def test_an_abort_while_a_batch_is_to_be_sent_again_costs_the_next_transaction_nothing(make_node):
    """librdkafka then reuses the sequences of that batch, which was written, for the next one."""
    node, port = make_node(NODE_SETTINGS, start=False), free_port()
    node.settings["advertised.listener"] = f"{HOST}:{port}"
    node.start()
    proxy = Proxy(port, node.port)
    with Raw(node.port) as raw:
        raw.create_topic(TOPIC)
        # Not retried before it is aborted.
        patience = {"linger_ms": 20, "retry_backoff_ms": 1000, "retry_backoff_max_ms": 1000}
        writer = ConfluentWriter(f"{HOST}:{port}", TOPIC, **patience)
        producer = writer.producer
        writer.begin()
        writer.send(TOPIC, 0, b"before")
        proxy.mute = True
        for _ in range(5):
            producer.produce(TOPIC, b"given up", partition=0)
        eventually(lambda: end_offset(raw, TOPIC, READ_UNCOMMITTED) == 6)
        proxy.cut()
        proxy.mute = False
        # The producer then knows that the response is lost.
        eventually(lambda: proxy.connections)
        writer.abort()
        values = [b"%d" % number for number in range(5)]
        # The first try is rejected, and leads to a new epoch.
        if not is_committed(writer, values):
            assert is_committed(writer, values)
        assert committed_values(raw, TOPIC) == values
    proxy.close()


@pytest.mark.parametrize("transactional", [False, True], ids=["idempotent", "transactional"])
def test_a_producer_outlives_the_memory_of_its_id(make_node, transactional):
    node = make_node({**NODE_SETTINGS, "producer.id.expiration.ms": "200", "log.retention.check.interval.ms": "100"})
    with Raw(node.port) as raw:
        raw.create_topic(TOPIC)
        if transactional:
            writer = ConfluentWriter(node.bootstrap, TOPIC)
        else:
            producer = Producer({"bootstrap.servers": node.bootstrap, **IDEMPOTENT})
        failed = []
        for turn in range(3):
            if transactional:
                writer.begin()
                writer.send(TOPIC, 0, b"%d" % turn)
                # An open transaction is never forgotten.
                time.sleep(0.5)
                assert len(producers_of(raw, TOPIC)) == 1
                writer.commit()
                wait_for_state(raw, TOPIC, "CompleteCommit")
            else:
                producer.produce(
                    TOPIC, b"%d" % turn, partition=0, on_delivery=lambda error, _: error and failed.append(error)
                )
                assert producer.flush(10.0) == 0
            assert eventually(lambda: not producers_of(raw, TOPIC)), "the id is remembered for ever"
        assert not failed
        assert committed_values(raw, TOPIC) == [b"0", b"1", b"2"]


@pytest.mark.smoke
def test_a_zombie_stays_fenced_through_a_crash(make_node):
    node = make_node(NODE_SETTINGS)
    with Raw(node.port) as raw:
        raw.create_topic(TOPIC)
        zombie = RawProducer(raw, TOPIC).begin_session()
        zombie.send(TOPIC, 0, b"zombie")
        successor = RawProducer(raw, TOPIC).begin_session()
    node.restart(crash=True)
    with Raw(node.port) as raw:
        zombie.raw = successor.raw = raw
        assert zombie.produce(TOPIC, 0, zombie.batch(TOPIC, 0, b"again")).error_code
        assert zombie.ask_to_end(True).error_code
        successor.send(TOPIC, 0, b"successor")
        successor.commit()
        wait_for_state(raw, TOPIC, "CompleteCommit")
        raw.produce(TOPIC, 0, batch(b"plain"))
        assert committed_values(raw, TOPIC) == [b"successor", b"plain"]
