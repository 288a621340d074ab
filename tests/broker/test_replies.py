"""From a response to the parts of a frame."""

from __future__ import annotations

from collections.abc import Callable
from struct import unpack
from typing import Any

import pytest

from millpond.broker.requests.replies import Encoded, UnwritableReply, encode_reply, release_ranges
from millpond.wire import messages as m
from millpond.wire.header import RequestHeader


@pytest.mark.parametrize(
    ("key", "version", "head"),
    [
        (3, 8, b"\0\0\0\x07"),
        (3, 9, b"\0\0\0\x07\0"),
        # Its reader cannot know yet which versions we support, so its header never has tagged fields.
        (18, 3, b"\0\0\0\x07"),
    ],
)
def test_the_length_and_the_header_come_first(key: int, version: int, head: bytes) -> None:
    header = RequestHeader(key, version, 7, None, 0)
    (frame,) = encode_reply(header, Encoded(b"body"))
    assert frame == bytes([0, 0, 0, len(head) + 4]) + head + b"body"


def test_records_stay_where_they_are_and_count_in_the_length(make_file: Callable[..., Any]) -> None:
    file = make_file(b"0123456789")
    data = m.FetchResponse.PartitionData(partition_index=0, high_watermark=5, records=[file.range()])
    topic = m.FetchResponse.FetchableTopicResponse(topic="pond", partitions=[data])
    parts = encode_reply(RequestHeader(1, 4, 7, None, 0), m.FetchResponse(responses=[topic]))
    assert [part for part in parts if not isinstance(part, bytes)] == data.records
    (length,) = unpack(">i", parts[0][:4])
    assert length + 4 == sum(map(len, parts))
    whole = b"".join(part if isinstance(part, bytes) else file.data for part in parts)
    decoded, end = m.FetchResponse.decode(whole, 4, 8)
    assert end == len(whole)
    assert bytes(decoded.responses[0].partitions[0].records) == file.data


def test_each_file_of_a_reply_is_given_back_once(make_file: Callable[..., Any]) -> None:
    one, two = make_file(b"a"), make_file(b"b")
    release_ranges([b"head", one.range(), b"", two.range(), one.range()])
    assert (one.holds, two.holds) == (0, 0)


def test_there_may_be_nothing_to_give_back() -> None:
    release_ranges(None)
    release_ranges([])


def test_a_reply_that_cannot_be_written_costs_one_connection_and_holds_no_file(make_file: Callable[..., Any]) -> None:
    file = make_file(b"0123456789")
    data = m.FetchResponse.PartitionData(partition_index=0, high_watermark=1 << 64, records=[file.range()])
    topic = m.FetchResponse.FetchableTopicResponse(topic="pond", partitions=[data])
    with pytest.raises(UnwritableReply, match="FetchResponse v4"):
        encode_reply(RequestHeader(1, 4, 7, None, 0), m.FetchResponse(responses=[topic]))
    assert file.holds == 0
