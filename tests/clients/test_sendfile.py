"""Records leave the node as the same bytes, whether the kernel copies them or Python does."""

from __future__ import annotations

import shutil

import pytest

from millpond.wire.batch import walk
from support.node import Node
from support.raw import Raw, batch, fetch_request

BATCHES = (1, 40, 7_000, 9_000, 64_000, 300_000, 900_000)
"""Value sizes: below and above what is joined with its neighbours, and above what a socket takes at once."""

WAYS = {
    "sendfile": ({"network.sendfile": "true"}, {}),
    "copied": ({"network.sendfile": "false"}, {}),
    "plain kernel": ({"network.sendfile": "true"}, {"MILLPOND_PLAIN": "1"}),
    "copied, plain kernel": ({"network.sendfile": "false"}, {"MILLPOND_PLAIN": "1"}),
}


def fetched(port, end):
    """The replies of many fetches, byte for byte: each offset separately, and large ones over two partitions."""
    replies = []
    with Raw(port) as raw:
        for offset in range(end):
            raw.send(fetch_request("data", 0, offset, wait_ms=0, partition_bytes_max=100_000), 12)
            replies.append(raw.receive_frame())
        for bytes_max in (1, 10_000, 1_000_000, 50 << 20):
            request = fetch_request("data", 0, 0, wait_ms=0, bytes_max=bytes_max, partition_bytes_max=50 << 20)
            request.topics[0].partitions.append(fetch_request("data", 1).topics[0].partitions[0])
            raw.send(request, 12)
            replies.append(raw.receive_frame())
    # Correlation ids count the requests of a connection, so they are the same everywhere.
    return replies


@pytest.mark.smoke
def test_every_way_out_gives_the_same_bytes(make_node, tmp_path):
    writer = make_node({"log.segment.bytes": "2000000"})
    sent = b""
    with Raw(writer.port) as raw:
        raw.create_topic("data", 2)
        for codec in (0, 1, 4):
            for size in BATCHES:
                value = bytes(range(256)) * (size // 256 + 1)
                data = batch(value[:size], b"second", codec=codec)
                assert not raw.produce("data", 0, data).error_code
                sent += data
                raw.produce("data", 1, batch(b"other", value[: size // 2], codec=codec))
        end = raw.fetch("data").high_watermark
    writer.terminate()
    result = {}
    for number, (way, (settings, environment)) in enumerate(WAYS.items()):
        root = tmp_path / f"reader-{number}"
        shutil.copytree(writer.data, root / "data")
        node = Node(root, settings, environment).start()
        try:
            result[way] = fetched(node.port, end)
        finally:
            node.kill9()
    assert end == 2 * 3 * len(BATCHES)
    for way, replies in result.items():
        assert replies == result["sendfile"], way
    whole = result["sendfile"][-1]
    for position, header in walk(sent):
        # From the CRC on, a stored batch is exactly what the producer sent.
        assert sent[position + 17 : position + header.size] in whole
