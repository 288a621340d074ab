"""The short path for Fetch reads and answers small requests exactly as the general path does."""

from __future__ import annotations

from struct import pack_into
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import MalformedMessage
from millpond.wire import messages as m
from millpond.wire.header import decode_request_header, encode_request_header, response_header
from millpond.wire.kernel.fetch import REPLY_TAIL
from support.twins import compiled, needs

VERSIONS = st.integers(12, 18)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text("abcXYZ019._-", min_size=1, max_size=126)
SOME_ID = UUID(int=7)

Partition = m.FetchRequest.FetchPartition
Topic = m.FetchRequest.FetchTopic


kernel = compiled("_small")
pytestmark = needs(kernel)


def topic_of(name: str = "pond", topic_id: UUID = SOME_ID, **fields: Any) -> m.FetchRequest.FetchTopic:
    wanted = Partition(**{"partition": 0, "fetch_offset": 3, "partition_max_bytes": 100, **fields})
    return Topic(topic=name, topic_id=topic_id, partitions=[wanted])


def frame_of(version: int, client_id: str | None = "client", correlation_id: int = 5, **fields: Any) -> memoryview:
    request = m.FetchRequest(**{"max_wait_ms": 500, "min_bytes": 1, "topics": [topic_of()], **fields})
    header = encode_request_header(1, version, correlation_id, client_id)
    return memoryview(bytearray(header + request.encode(version)))


@given(
    version=VERSIONS,
    client_id=st.one_of(st.none(), st.text("abc-é", max_size=40)),
    correlation_id=INT32,
    asked=st.fixed_dictionaries(
        {
            "max_wait_ms": INT32,
            "min_bytes": INT32,
            "max_bytes": INT32,
            "isolation_level": st.integers(-128, 127),
            "session_id": INT32,
            "session_epoch": INT32,
        }
    ),
    name=NAMES,
    topic_id=st.uuids(),
    wanted=st.one_of(
        st.none(),
        st.fixed_dictionaries(
            {
                "partition": INT32,
                "current_leader_epoch": INT32,
                "fetch_offset": INT64,
                "last_fetched_epoch": INT32,
                "log_start_offset": INT64,
                "partition_max_bytes": INT32,
            }
        ),
    ),
)
def test_reads_the_same_fields_as_the_general_path(
    version: int,
    client_id: str | None,
    correlation_id: int,
    asked: dict[str, int],
    name: str,
    topic_id: UUID,
    wanted: dict[str, int] | None,
) -> None:
    topics = [] if wanted is None else [topic_of(name, topic_id, **wanted)]
    short = kernel.short_fetch(frame_of(version, client_id, correlation_id, topics=topics, **asked))
    if client_id is not None and not client_id.isascii():
        assert short is None
        return
    assert (short.version, short.correlation_id) == (version, correlation_id)
    assert short.client_id == (None if client_id is None else client_id.encode())
    assert {each: getattr(short, each) for each in asked} == asked
    if wanted is None:
        assert short.key is None
        return
    topic = topic_id.bytes if version >= 13 else name.encode()
    assert short.key == topic + wanted["partition"].to_bytes(4, "big", signed=True)
    assert short.leader_epoch == wanted["current_leader_epoch"]
    assert short.fetch_offset == wanted["fetch_offset"]
    assert short.bytes_max == wanted["partition_max_bytes"]


@pytest.mark.parametrize("version", range(12, 19))
def test_leaves_other_requests_to_the_general_path(version: int) -> None:
    assert kernel.short_fetch(frame_of(version)) is not None
    forgotten = m.FetchRequest.ForgottenTopic(topic="pond", topic_id=SOME_ID, partitions=[0])
    two = topic_of()
    two.partitions *= 2
    others = [
        frame_of(version, topics=[topic_of(), topic_of("other")]),
        frame_of(version, topics=[two]),
        frame_of(version, topics=[Topic(topic="pond", topic_id=SOME_ID, partitions=[])]),
        frame_of(version, forgotten_topics_data=[forgotten]),
        frame_of(version, rack_id="r"),
        frame_of(version, cluster_id="c"),
        frame_of(version, client_id="c" * 2_000),
        memoryview(bytes(frame_of(version)) + b"\0"),
        frame_of(version)[:-1],
        memoryview(b""),
        memoryview(b"\0\1"),
    ]
    if version < 15:
        others += [frame_of(version, replica_id=0), frame_of(version, replica_id=-2)]
    else:
        others.append(frame_of(version, replica_state=m.FetchRequest.ReplicaState(replica_id=1)))
    if version == 12:
        others.append(frame_of(version, topics=[topic_of("n" * 127)]))
    if version >= 17:
        others.append(frame_of(version, topics=[topic_of(replica_directory_id=SOME_ID)]))
    if version >= 18:
        others.append(frame_of(version, topics=[topic_of(high_watermark=3)]))
    for frame in others:
        assert kernel.short_fetch(frame) is None
    for api_key, asked in ((0, version), (2, version), (257, version), (1, 11), (1, 19), (1, -1)):
        frame = frame_of(version)
        pack_into(">hh", frame, 0, api_key, asked)
        if (api_key, asked) != (1, version):
            assert kernel.short_fetch(frame) is None


@given(
    version=VERSIONS,
    has_topic=st.booleans(),
    cut=st.integers(0, 20),
    flips=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4),
    client_id=st.sampled_from([None, "", "client"]),
)
def test_every_accepted_request_is_valid_on_the_general_path(
    version: int, has_topic: bool, cut: int, flips: list[tuple[int, int]], client_id: str | None
) -> None:
    broken = bytearray(frame_of(version, client_id, topics=[topic_of()] if has_topic else []))
    for position, value in flips:
        broken[position % len(broken)] = value
    broken = broken[: len(broken) - cut]
    short = kernel.short_fetch(memoryview(broken))
    if short is None:
        return
    # The general path refuses only names that are not UTF-8.
    header = decode_request_header(broken)
    assert (header.api_key, header.api_version, header.correlation_id) == (1, short.version, short.correlation_id)
    try:
        decoded, end = m.FetchRequest.decode(broken, short.version, header.body_position)
    except MalformedMessage:
        assert short.version < 13
        assert not short.key[:-4].isascii()
        return
    assert end == len(broken)
    assert (decoded.replica_id, decoded.replica_state.replica_id) == (-1, -1)
    assert (decoded.rack_id, decoded.forgotten_topics_data, decoded.cluster_id) == ("", [], None)
    assert (decoded.max_wait_ms, decoded.min_bytes, decoded.max_bytes) == (
        short.max_wait_ms,
        short.min_bytes,
        short.max_bytes,
    )
    assert (decoded.isolation_level, decoded.session_id, decoded.session_epoch) == (
        short.isolation_level,
        short.session_id,
        short.session_epoch,
    )
    if short.key is None:
        assert decoded.topics == []
        return
    ((wanted,),) = [topic.partitions for topic in decoded.topics]
    assert wanted.partition.to_bytes(4, "big", signed=True) == short.key[-4:]
    assert (wanted.current_leader_epoch, wanted.fetch_offset, wanted.partition_max_bytes) == (
        short.leader_epoch,
        short.fetch_offset,
        short.bytes_max,
    )


@given(
    version=VERSIONS,
    name=st.text("abc", min_size=1, max_size=249),
    topic_id=st.uuids(),
    partition=st.integers(0, 2**31 - 1),
    offsets=st.tuples(*[st.integers(0, 2**63 - 1)] * 3),
    records=st.one_of(st.just(b""), st.binary(max_size=300), st.integers(16_370, 16_390).map(bytes)),
    isolation_level=st.sampled_from([0, 1]),
    session_id=st.integers(0, 2**31 - 1),
    correlation_id=INT32,
)
def test_encodes_the_same_response_as_the_general_path(
    version: int,
    name: str,
    topic_id: UUID,
    partition: int,
    offsets: tuple[int, int, int],
    records: bytes,
    isolation_level: int,
    session_id: int,
    correlation_id: int,
) -> None:
    short = kernel.short_fetch(
        frame_of(version, None, correlation_id, isolation_level=isolation_level, session_id=session_id, topics=[])
    )
    high_watermark, stable_offset, start_offset = offsets
    data = m.FetchResponse.PartitionData(
        partition_index=partition,
        high_watermark=high_watermark,
        last_stable_offset=stable_offset,
        log_start_offset=start_offset,
        aborted_transactions=[] if isolation_level else None,
        records=records,
    )
    topic = m.FetchResponse.FetchableTopicResponse(topic=name, topic_id=topic_id, partitions=[data])
    written = topic_id.bytes if version >= 13 else name.encode()
    head = short.reply(written, partition, high_watermark, stable_offset, start_offset, len(records))
    assert head + records + REPLY_TAIL == general(version, correlation_id, session_id, [topic])
    assert short.reply_nothing() == general(version, correlation_id, session_id, [])


def general(version: int, correlation_id: int, session_id: int, responses: list[Any]) -> bytes:
    response = m.FetchResponse(session_id=session_id, responses=responses)
    body = response_header(1, version, correlation_id) + response.encode(version)
    return len(body).to_bytes(4, "big") + body
