"""What a node retains: through kill -9 under load, torn files, clean shutdowns, and two nodes on one folder."""

from __future__ import annotations

import random
import time

import pytest

from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.log.limits import LogLimits
from millpond.log.store import LogStore
from millpond.node.disk import RealDisk
from millpond.node.entropy import SystemEntropy
from millpond.wire import messages as m
from millpond.wire.batch import walk
from support.crashes import kill_in_a_loop
from support.node import Node, NodeEnded
from support.raw import Raw, batch, produce_request
from support.seeds import fresh_seed

LOG = "00000000000000000000.log"
CLEAN_MARKER = ".kafka_cleanshutdown"

either_end = pytest.mark.parametrize("crash", [False, True], ids=["clean end", "kill -9"])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_six_kills_under_load_lose_double_and_disorder_nothing(make_node):
    """`make chaos` runs for much longer."""
    seed = fresh_seed()
    tally = kill_in_a_loop(make_node(), loops=6, seed=seed)
    assert tally.killed >= 3
    assert tally.acknowledged > 600
    assert tally.read_back == tally.consumed == tally.acknowledged


# Torn tails.


@pytest.fixture
def crashed(make_node):
    """A node that was killed with three batches of two records in one partition."""
    node = make_node()
    with Raw(node.port) as raw:
        raw.create_topic("torn")
        for number in range(3):
            raw.produce("torn", 0, batch(b"%d-a" % number, b"%d-b" % number))
    node.kill9()
    return node


def batch_starts(path):
    return [position for position, _ in walk(path.read_bytes())]


def read_with_the_log_room(folder):
    """The values in partition torn-0 after recovery, and the outcome of another write."""
    store = LogStore(RealDisk(), str(folder), LogLimits(), SystemEntropy())
    report = store.open(time.time_ns() // 1_000_000)
    assert not report.failed, report.failed
    assert not report.clean
    log = store.logs[TopicPartition("torn", 0)]
    appended = log.append(memoryview(bytearray(batch(b"next"))), leader_epoch=1, now_ms=time.time_ns() // 1_000_000)
    data = log.read_batches(log.start_offset, 1 << 20)
    headers = [header for _, header in walk(data)]
    store.abandon()
    return appended.first_offset, [header.base_offset for header in headers]


@pytest.mark.parametrize("what", ["zeros", "noise", "half a batch", "a batch again"])
def test_rubbish_after_the_last_batch_is_cut_off(crashed, what):
    path = crashed.data / "torn-0" / LOG
    whole = path.read_bytes()
    last = whole[batch_starts(path)[-1] :]
    rubbish = {
        "zeros": bytes(5000),
        "noise": random.Random(1).randbytes(5000),
        "half a batch": last[: len(last) // 2],
        "a batch again": last,
    }[what]
    path.write_bytes(whole + rubbish)
    next_offset, bases = read_with_the_log_room(crashed.data)
    assert (next_offset, bases) == (6, [0, 2, 4, 6])


@pytest.mark.parametrize("cut", [1, 40, 80])
def test_a_node_with_a_torn_tail_starts_serves_and_goes_on(crashed, cut):
    path = crashed.data / "torn-0" / LOG
    path.write_bytes(path.read_bytes()[:-cut])
    crashed.start()
    with Raw(crashed.port) as raw:
        assert [each.value for each in raw.read_all("torn")] == [b"0-a", b"0-b", b"1-a", b"1-b"]
        assert raw.produce("torn", 0, batch(b"next")).base_offset == 4
    crashed.restart(crash=True)
    with Raw(crashed.port) as raw:
        assert raw.read_all("torn")[-1].value == b"next"


@pytest.mark.smoke
def test_after_a_kill_the_log_is_read_and_not_believed(crashed):
    """A flipped byte in the last batch is found: recovery did read the log."""
    path = crashed.data / "torn-0" / LOG
    assert not (crashed.data / CLEAN_MARKER).exists()
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1
    path.write_bytes(damaged)
    crashed.start()
    with Raw(crashed.port) as raw:
        assert [each.value for each in raw.read_all("torn")] == [b"0-a", b"0-b", b"1-a", b"1-b"]


def test_a_torn_end_of_the_metadata_does_not_keep_a_node_from_starting(make_node):
    node = make_node()
    with Raw(node.port) as raw:
        raw.create_topic("first")
        raw.produce("first", 0, batch(b"kept"))
        raw.create_topic("second")
    node.kill9()
    path = node.data / "__cluster_metadata-0" / LOG
    path.write_bytes(path.read_bytes()[:-1])
    node.start()
    with Raw(node.port) as raw:
        assert [each.value for each in raw.read_all("first")] == [b"kept"]
        names = [each.name for each in raw.call(m.MetadataRequest(topics=None), 12).topics]
        assert names == ["first"]
        raw.create_topic("second")


# What survives.


def describe(raw):
    found = raw.call(m.MetadataRequest(topics=None), 12)
    return found.cluster_id, {each.name: (each.topic_id, len(each.partitions)) for each in found.topics}


def configs(raw, topic):
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name=topic, configuration_keys=None
    )
    reply = raw.call(m.DescribeConfigsRequest(resources=[resource]), 4)
    return {each.name: each.value for each in reply.results[0].configs}


@either_end
def test_topics_settings_and_records_last(make_node, crash):
    node = make_node()
    with Raw(node.port) as raw:
        raw.create_topic("a", 3, retention_ms="123456", max_message_bytes="5000")
        raw.create_topic("gone")
        raw.call(m.DeleteTopicsRequest(topic_names=["gone"], timeout_ms=1000), 5)
        for number in range(20):
            raw.produce("a", number % 3, batch(b"%d" % number))
        before = describe(raw), configs(raw, "a"), [raw.read_all("a", index) for index in range(3)]
    node.restart(crash=crash)
    with Raw(node.port) as raw:
        assert (describe(raw), configs(raw, "a"), [raw.read_all("a", index) for index in range(3)]) == before
        assert raw.produce("a", 0, batch(b"x" * 6000)).error_code == ErrorCode.MESSAGE_TOO_LARGE


@either_end
def test_an_idempotent_producer_goes_on_where_it_was(make_node, crash):
    node = make_node()

    def numbered(sequence, *values):
        return batch(*values, producer_id=7, producer_epoch=0, base_sequence=sequence)

    with Raw(node.port) as raw:
        raw.create_topic("a")
        raw.produce("a", 0, numbered(0, b"a", b"b"))
        raw.produce("a", 0, numbered(2, b"c"))
    node.restart(crash=crash)
    with Raw(node.port) as raw:
        again = raw.produce("a", 0, numbered(2, b"c"))
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 2)
        assert raw.produce("a", 0, numbered(5, b"gap")).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert raw.produce("a", 0, numbered(3, b"d")).base_offset == 3
        assert [each.value for each in raw.read_all("a")] == [b"a", b"b", b"c", b"d"]


@either_end
def test_deleted_records_stay_deleted(make_node, crash):
    node = make_node()
    with Raw(node.port) as raw:
        raw.create_topic("a")
        for number in range(10):
            raw.produce("a", 0, batch(b"%d" % number))
        wanted = m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=7)
        topics = [m.DeleteRecordsRequest.DeleteRecordsTopic(name="a", partitions=[wanted])]
        assert (
            raw.call(m.DeleteRecordsRequest(topics=topics, timeout_ms=1000), 2).topics[0].partitions[0].low_watermark
        )
    node.restart(crash=crash)
    with Raw(node.port) as raw:
        assert [each.offset for each in raw.read_all("a")] == [7, 8, 9]


@pytest.mark.parametrize("acks", [0, 1])
def test_what_was_written_without_waiting_survives_a_clean_end(make_node, acks):
    node = make_node()
    with Raw(node.port) as raw:
        raw.create_topic("a")
        if acks:
            raw.produce("a", 0, batch(b"x"), acks=1)
        else:
            raw.send(produce_request("a", 0, batch(b"x"), acks=0), 9)
            raw.call(m.ApiVersionsRequest(), 0)
    node.terminate()
    assert (node.data / CLEAN_MARKER).exists()
    node.start()
    assert not (node.data / CLEAN_MARKER).exists(), "from now on the end may be any"
    with Raw(node.port) as raw:
        assert [each.value for each in raw.read_all("a")] == [b"x"]


# Two nodes.


@pytest.mark.smoke
def test_a_second_node_on_the_same_folder_is_turned_away_and_harms_nothing(make_node, tmp_path):
    node = make_node()
    with Raw(node.port) as raw:
        raw.create_topic("a")
        second = Node(tmp_path / "second", {"data.folder": str(node.data)})
        with pytest.raises(NodeEnded, match="another process uses the data folder"):
            second.start()
        assert raw.produce("a", 0, batch(b"x")).error_code == ErrorCode.NONE
    node.restart()


def test_a_node_whose_address_is_taken_says_so_and_leaves_its_folder_usable(make_node, tmp_path):
    node = make_node()
    second = Node(tmp_path / "second", {"listen": node.bootstrap})
    with pytest.raises(NodeEnded, match=r"[Aa]ddress already in use"):
        second.start()
    del second.settings["listen"]
    second.start()
    second.kill9()
