"""Clients that are hostile, broken or too many: only they are affected."""

from __future__ import annotations

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
from millpond.wire.records import Record, encode_batch
from support.raw import (
    LENGTH,
    Raw,
    batch,
    fetch_request,
    frame,
    produce_request,
)

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


@pytest.mark.smoke
def test_half_a_request_and_then_silence_affects_no_other_client(node):
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


def test_a_client_that_never_reads_costs_no_memory_and_affects_no_other(full_topic):
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
        partition = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=900)
        topics = [m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[partition])]
        raw.call(m.ListOffsetsRequest(replica_id=-1, topics=topics), 7)
        assert peak_bytes(node) - before < 400 * MIB
        assert raw.produce(topic, 0, batch(b"next")).error_code == ErrorCode.NONE
    assert OUR_FAULT not in node.journal()


def peak_bytes(node):
    """The node's peak memory."""
    with open(f"/proc/{node.pid}/status") as status:
        (line,) = (line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


# Shutdown.


@pytest.mark.smoke
def test_sigterm_with_pending_fetches_ends_soon_cleanly_and_answers(make_node, topic):
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
