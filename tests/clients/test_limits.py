"""Clients that are hostile, broken or too many: only they are affected."""

from __future__ import annotations

import random
import signal
import socket
import struct
import time

import pytest
from crc32c import crc32c

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m
from millpond.wire.compression import compress
from millpond.wire.header import encode_request_header
from millpond.wire.records import Record, _varint, encode_batch, wrap_payload
from support.node import eventually
from support.raw import (
    LENGTH,
    Closed,
    Raw,
    batch,
    fetch_request,
    frame,
    produce_request,
    records_of,
)
from support.seeds import fresh_seed

MIB = 1 << 20
OUR_FAULT = "our own fault"


def answers(port):
    """Whether a well-behaved client is served."""
    with Raw(port) as raw:
        return raw.call(m.ApiVersionsRequest(), 0).error_code == ErrorCode.NONE


def framed(body):
    return LENGTH.pack(len(body)) + body


HOSTILE = {
    "a negative length": struct.pack(">i", -5),
    "a length beyond all limits": struct.pack(">i", (1 << 31) - 1),
    "a web browser": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a TLS greeting": bytes.fromhex("1603010200010001fc0303") + bytes(100),
    "an empty frame": framed(b""),
    "a frame too short for a header": framed(b"\x00\x12\x00"),
    "a client id beyond the frame": framed(struct.pack(">hhih", 18, 0, 1, 30000) + b"abc"),
    "a client id that is no text": framed(struct.pack(">hhih", 18, 0, 1, 2) + b"\xff\xfe"),
    "a header alone": framed(encode_request_header(3, 9, 1, "x")),
    "an array of two billion": framed(encode_request_header(3, 1, 1, "x") + struct.pack(">i", 2**31 - 1)),
    "an array of minus two billion": framed(encode_request_header(3, 1, 1, "x") + struct.pack(">i", -(2**31))),
    "a varint without end": framed(encode_request_header(3, 12, 1, "x") + b"\xff" * 30),
    "tags without end": framed(encode_request_header(3, 12, 1, "x")[:-1] + b"\xff\xff\xff\xff\x0f"),
    "a version never served": framed(encode_request_header(1, 3, 1, "x") + bytes(40)),
    "an unknown API": framed(encode_request_header(999, 0, 1, "x") + bytes(40)),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_bytes_close_only_their_own_connection(node, raw, what):
    with Raw(node.port) as hostile:
        hostile.send_bytes(HOSTILE[what])
        assert hostile.is_closed(), what
    assert raw.call(m.ApiVersionsRequest(), 0).error_code == ErrorCode.NONE
    assert OUR_FAULT not in node.wait_for_word("protocol error")


def test_no_mutation_of_a_request_is_our_own_fault(make_node):
    """A thousand requests with a few bytes changed: each is answered or its connection closed."""
    node = make_node({"max.partitions.per.topic": "10", "max.partitions": "2000"})
    seed = fresh_seed()
    dice = random.Random(seed)
    with Raw(node.port) as raw:
        raw.create_topic("pond", 2)
        raw.produce("pond", 0, batch(b"a", b"b"))
        keys = {each.api_key: each for each in raw.call(m.ApiVersionsRequest(), 0).api_keys}
    originals = [
        frame(request, version, 1)
        for request, versions in sample_requests()
        for version in versions
        if request.API_KEY in keys
    ]
    connection = Raw(node.port, timeout_seconds=0.05)
    for _ in range(1000):
        changed = bytearray(dice.choice(originals))
        for _ in range(dice.randint(1, 3)):
            changed[dice.randrange(8, len(changed))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        try:
            connection.send_bytes(bytes(changed))
            connection.receive_frame()
        except (Closed, ConnectionError, TimeoutError):
            connection.close()
            connection = Raw(node.port, timeout_seconds=0.05)
    connection.close()
    assert answers(node.port)
    assert OUR_FAULT not in node.journal(), node.journal()[-3000:]


def sample_requests():
    epochs = m.OffsetForLeaderEpochRequest
    offsets = m.ListOffsetsRequest
    configs = m.DescribeConfigsRequest
    fetch_by_id = fetch_request("", wait_ms=0)
    resource = configs.DescribeConfigsResource(resource_type=2, resource_name="pond", configuration_keys=None)
    created = m.CreateTopicsRequest.CreatableTopic(
        name="p", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    altered = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2,
        resource_name="pond",
        configs=[
            m.IncrementalAlterConfigsRequest.AlterableConfig(name="retention.ms", config_operation=0, value="9")
        ],
    )
    listed = offsets.ListOffsetsPartition(partition_index=0, timestamp=5)
    ended = epochs.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    removed = m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=0)
    return [
        (produce_request("pond", 0, batch(b"some", b"values")), (3, 9)),
        (produce_request("pond", 1, batch(b"v" * 50, codec=1)), (9,)),
        (fetch_request("pond", wait_ms=0), (4, 7, 12)),
        (fetch_by_id, (13, 18)),
        (offsets(replica_id=-1, topics=[offsets.ListOffsetsTopic(name="pond", partitions=[listed])]), (1, 11)),
        (m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name="pond")]), (1, 12)),
        (m.ApiVersionsRequest(client_software_name="a", client_software_version="1"), (3,)),
        (m.CreateTopicsRequest(topics=[created], timeout_ms=10), (4, 7)),
        (m.DeleteTopicsRequest(topic_names=["no"], timeout_ms=10), (5,)),
        (
            m.DeleteRecordsRequest(
                topics=[m.DeleteRecordsRequest.DeleteRecordsTopic(name="pond", partitions=[removed])], timeout_ms=9
            ),
            (2,),
        ),
        (m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), (4,)),
        (epochs(topics=[epochs.OffsetForLeaderTopic(topic="pond", partitions=[ended])]), (4,)),
        (configs(resources=[resource]), (1, 4)),
        (m.IncrementalAlterConfigsRequest(resources=[altered], validate_only=False), (1,)),
        (m.DescribeLogDirsRequest(topics=None), (4,)),
        (
            m.DescribeTopicPartitionsRequest(
                topics=[m.DescribeTopicPartitionsRequest.TopicRequest(name="pond")], cursor=None
            ),
            (0,),
        ),
    ]


@pytest.mark.smoke
def test_half_a_request_and_then_silence_hurts_nobody(node):
    whole = frame(produce_request("nowhere", 0, batch(b"x" * 1000)), 9, 1)
    silent = []
    for cut in (1, 3, 4, 5, 20, len(whole) // 2, len(whole) - 1):
        connection = Raw(node.port)
        connection.send_bytes(whole[:cut])
        silent.append(connection)
    assert answers(node.port)
    for connection in silent:
        connection.close()
    assert answers(node.port)
    assert OUR_FAULT not in node.journal()


def test_a_request_that_comes_byte_by_byte_is_answered(node):
    with Raw(node.port) as drip:
        for byte in frame(m.ApiVersionsRequest(client_software_name="slow", client_software_version="1"), 3, 7):
            drip.send_bytes(bytes([byte]))
            time.sleep(0.002)
        assert drip.receive(18, 3)[0] == 7


# Connection counts.


def test_connections_over_the_limit_are_closed_and_room_is_used_again(make_node):
    node = make_node({"max.connections": "5"})
    held = [Raw(node.port) for _ in range(5)]
    for connection in held:
        connection.call(m.ApiVersionsRequest(), 0)
    with Raw(node.port) as sixth:
        assert sixth.is_closed()
    for connection in held:
        assert connection.call(m.ApiVersionsRequest(), 0).error_code == 0
    held.pop().close()

    def has_room():
        try:
            return answers(node.port)
        except Closed:
            return False

    assert eventually(has_room)
    for connection in held:
        connection.close()


# Memory.


@pytest.fixture
def full_topic(make_node):
    """A node with twenty megabytes in one partition."""
    node = make_node()
    with Raw(node.port) as raw:
        raw.create_topic("full")
        for number in range(20):
            assert not raw.produce("full", 0, batch(b"%d" % number + bytes(MIB - 200)), acks=1).error_code
    return node


def test_a_client_that_never_reads_costs_no_memory_and_hurts_nobody(full_topic):
    node = full_topic
    with Raw(node.port) as raw:
        raw.read_all("full")
        before = node.resident_bytes()
        deaf = Raw(node.port)
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.socket.settimeout(0.5)
        asked = 0
        request = fetch_request("full", wait_ms=0, partition_bytes_max=20 * MIB)
        try:
            for _ in range(3000):
                deaf.send(request, 12)
                asked += 1
        except TimeoutError:
            pass
        assert [each.offset for each in raw.read_all("full")] == list(range(20))
        assert node.resident_bytes() - before < 40 * MIB
        assert raw.call(m.ApiVersionsRequest(), 0).error_code == ErrorCode.NONE
        deaf.close()
    assert asked > 10
    assert answers(node.port)


def test_a_slow_reader_gets_every_answer_whole_and_in_order(full_topic):
    with Raw(full_topic.port, timeout_seconds=30) as raw:
        sent = [raw.send(fetch_request("full", 0, number, wait_ms=0), 12) for number in range(20)]
        time.sleep(0.5)
        for number, correlation_id in enumerate(sent):
            received, reply = raw.receive(1, 12)
            assert received == correlation_id
            found = records_of(reply.responses[0].partitions[0].records)
            assert [each.offset for each in found] == [number]
            assert found[0].value.startswith(b"%d" % number)


def test_announced_bytes_are_not_allocated_bytes(make_node):
    """Three hundred peers announce a request of 90 MiB each and send a small part of it."""
    node = make_node()
    answers(node.port)
    before = node.resident_bytes()
    liars = [Raw(node.port) for _ in range(300)]
    for liar in liars:
        liar.send_bytes(LENGTH.pack(90 * MIB) + b"\x00" * 1000)
    assert answers(node.port)
    time.sleep(0.2)
    assert node.resident_bytes() - before < 60 * MIB
    for liar in liars:
        liar.close()


def bomb(codec):
    """A batch of one record that decompresses to 600 MiB: codecs read concatenated frames as one stream."""
    small = encode_batch([Record(0, 1000, b"key", b"")])
    # The record: length, attributes, two deltas, key, then a value prefixed with its length.
    head = b"\x80\x80\x80\x80\x05" + small[62:70] + b"\x80\x80\x80\x80\x05"
    pieces = compress(codec, head + bytes(10 * MIB)) + compress(codec, bytes(10 * MIB)) * 59
    made = bytearray(small[:61]) + pieces
    made[22] = codec
    struct.pack_into(">i", made, 8, len(made) - 12)
    struct.pack_into(">I", made, 17, crc32c(bytes(made[21:])))
    return bytes(made)


@pytest.mark.parametrize("codec", [1, 4], ids=["gzip", "zstd"])
def test_a_compression_bomb_does_not_go_off(make_node, topic, codec):
    """Small on the wire, huge when decompressed: no code that inspects it may decompress it whole."""
    node = make_node()
    with Raw(node.port) as raw:
        raw.create_topic(topic)
        raw.create_topic(f"{topic}-keyed", cleanup_policy="compact")
        raw.produce(topic, 0, batch(b"x"))
        before = node.resident_bytes()
        assert raw.produce(topic, 0, bomb(codec)).error_code == ErrorCode.NONE
        assert raw.produce(f"{topic}-keyed", 0, bomb(codec)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        wanted = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=900)
        topics = [m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])]
        raw.call(m.ListOffsetsRequest(replica_id=-1, topics=topics), 7)
        assert peak_bytes(node) - before < 400 * MIB
        assert raw.produce(topic, 0, batch(b"next")).error_code == ErrorCode.NONE
    assert OUR_FAULT not in node.journal()


def headers_bomb(count=67_000_000):
    """Two records, the second with very many empty headers: 12 KB on the wire."""
    body = b"\x00\xc8\x01\x02\x01\x01" + _varint(count) + b"\x00\x01" * count
    first = b"\x0c" + bytes(3) + b"\x01\x01\x00"
    return wrap_payload(first + _varint(len(body)) + body, 2, 1000, 1100, codec=4)


def test_a_lookup_by_time_is_neither_costly_nor_ended_by_a_hostile_batch(make_node, topic):
    node = make_node()
    garbage = wrap_payload(b"\xff" * 40, 2, 3000, 3100)
    with Raw(node.port) as raw, Raw(node.port) as other:
        raw.create_topic(topic)
        bomb_bytes = headers_bomb()
        assert len(bomb_bytes) < 20_000
        for data in (bomb_bytes, garbage):
            assert raw.produce(topic, 0, data).error_code == ErrorCode.NONE
        before, before_seconds = node.resident_bytes(), node.cpu_seconds()
        answers = []
        for asked in (900, 1050, 2000, 3050, -3):
            wanted = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=asked)
            topics = [m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])]
            raw.send(m.ListOffsetsRequest(replica_id=-1, topics=topics), 7)
            other.call(m.ApiVersionsRequest(), 0)
            part = raw.receive(2, 7)[1].topics[0].partitions[0]
            answers.append((part.error_code, part.timestamp, part.offset))
        corrupt = (ErrorCode.CORRUPT_MESSAGE, -1, -1)
        assert answers == [(0, 1000, 0), (0, 1100, 0), (0, 3000, 2), corrupt, corrupt]
        assert peak_bytes(node) - before < 100 * MIB
        assert node.cpu_seconds() - before_seconds < 1
    assert "connection closed" not in node.journal()


def peak_bytes(node):
    """The node's peak memory."""
    with open(f"/proc/{node.pid}/status") as status:
        (line,) = (line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


# Shutdown.


@pytest.mark.smoke
def test_sigterm_with_parked_fetches_ends_soon_cleanly_and_answers(make_node, topic):
    node = make_node()
    waiting = [Raw(node.port) for _ in range(20)]
    waiting[0].create_topic(topic)
    for connection in waiting:
        connection.send(fetch_request(topic, wait_ms=60_000), 12)
    time.sleep(0.2)
    node.signal(signal.SIGTERM)
    for connection in waiting:
        reply = connection.receive(1, 12)[1].responses[0].partitions[0]
        assert (reply.error_code, bytes(reply.records)) == (ErrorCode.NONE, b"")
        assert connection.is_closed()
        connection.close()
    assert node.terminate() == 0
    assert (node.data / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_that_is_asked_to_end_finishes_what_it_has_begun(make_node, topic, number):
    node = make_node()
    with Raw(node.port) as raw:
        raw.create_topic(topic)
        sent = [raw.send(produce_request(topic, 0, batch(b"%d" % each)), 9) for each in range(50)]
        assert raw.receive(0, 9)[0] == sent[0]
        node.signal(number)
        acknowledged = 1
        try:
            while True:
                reply = raw.receive(0, 9)[1].responses[0].partition_responses[0]
                assert reply.error_code == ErrorCode.NONE
                acknowledged += 1
        except Closed:
            pass
    assert node.terminate() == 0
    node.start()
    with Raw(node.port) as raw:
        assert len(raw.read_all(topic)) >= acknowledged
