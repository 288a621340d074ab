"""The short paths for heartbeats and commits read and answer requests exactly as the general path does."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack_into
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import MalformedMessage
from millpond.wire import messages as m
from millpond.wire.header import decode_request_header, encode_request_header, response_header
from support.twins import compiled, needs

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text("abcXYZ019._-é", max_size=130)
CLIENTS = st.one_of(st.none(), st.text("abc-é", max_size=40))
COMMON = ("version", "correlation_id", "client_id", "group_id", "member_id")


class Kind(NamedTuple):
    """One kind of request: its reader, API key, versions and fields."""

    read: str
    api_key: int
    versions: range
    flexible_from: int
    fields: tuple[str, ...]
    message: Callable[..., m.Message]


def heartbeat(group: str = "g", member: str = "x", number: int = 3, **fields: Any) -> m.Message:
    return m.HeartbeatRequest(group_id=group, member_id=member, generation_id=number, **fields)


def consumer_heartbeat(group: str = "g", member: str = "x", number: int = 3, **fields: Any) -> m.Message:
    return m.ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=number, **fields)


def commit(
    group: str = "g",
    member: str = "x",
    number: int = 3,
    topic: str = "pond",
    partition: int = 0,
    offset: int = 7,
    leader_epoch: int = -1,
    metadata: str | None = "",
    **fields: Any,
) -> m.Message:
    kind = m.OffsetCommitRequest
    committed = kind.OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset,
        committed_leader_epoch=leader_epoch,
        committed_metadata=metadata,
    )
    topics = [kind.OffsetCommitRequestTopic(name=topic, partitions=[committed])]
    fields = {"topics": topics, **fields}
    return kind(group_id=group, member_id=member, generation_id_or_member_epoch=number, **fields)


COMMITTED = ("generation", "topic", "partition", "offset", "leader_epoch", "metadata")
KINDS = {
    "heartbeat": Kind("short_heartbeat", 12, range(3, 5), 4, ("generation",), heartbeat),
    "consumer heartbeat": Kind("short_consumer_heartbeat", 68, range(2), 0, ("epoch",), consumer_heartbeat),
    "commit": Kind("short_commit", 8, range(7, 10), 8, COMMITTED, commit),
}


kernel = compiled("_small")
pytestmark = needs(kernel)


def fields_of(kind: Kind, short: Any) -> list[Any] | None:
    return None if short is None else [getattr(short, name) for name in (*COMMON, *kind.fields)]


def frame_of(
    kind: Kind, message: m.Message, version: int, client_id: str | None = "client", correlation_id: int = 5
) -> memoryview:
    header = encode_request_header(kind.api_key, version, correlation_id, client_id)
    return memoryview(bytearray(header + message.encode(version)))


def is_short(kind: Kind, version: int, *texts: str | None) -> bool:
    """Whether the texts are ASCII, and short enough for the length prefix that the short path reads."""
    limit = 126 if version >= kind.flexible_from else 1 << 15
    return all(each is None or (each.isascii() and len(each) <= limit) for each in texts)


@given(
    name=st.sampled_from([*KINDS]),
    data=st.data(),
    client_id=CLIENTS,
    correlation_id=INT32,
    group=TEXTS,
    member=TEXTS,
    number=INT32,
)
def test_reads_the_same_fields_as_the_general_path(
    name: str,
    data: Any,
    client_id: str | None,
    correlation_id: int,
    group: str,
    member: str,
    number: int,
) -> None:
    kind = KINDS[name]
    version = data.draw(st.sampled_from([*kind.versions]))
    more: dict[str, Any] = {}
    if name == "commit":
        more = data.draw(
            st.fixed_dictionaries(
                {
                    "topic": TEXTS,
                    "partition": INT32,
                    "offset": INT64,
                    "leader_epoch": INT32,
                    "metadata": st.one_of(st.none(), TEXTS),
                }
            )
        )
    message = kind.message(group, member, number, **more)
    short = getattr(kernel, kind.read)(frame_of(kind, message, version, client_id, correlation_id))
    texts = group, member, more.get("topic"), more.get("metadata")
    if not is_short(kind, version, *texts) or not (client_id or "").isascii():
        assert short is None
        return
    said = [more[each] for each in COMMITTED[1:]] if more else []
    expected = [version, correlation_id, client_id or "", group, member, number, *said]
    assert fields_of(kind, short) == expected


@pytest.mark.parametrize("name", KINDS)
def test_leaves_other_requests_to_the_general_path(name: str) -> None:
    kind = KINDS[name]
    read = getattr(kernel, kind.read)
    for version in kind.versions:
        sound = frame_of(kind, kind.message(), version)
        assert read(sound) is not None
        others = [
            sound[:-1],
            memoryview(bytes(sound) + b"\0"),
            frame_of(kind, kind.message(), version, "c" * 1_100),
            memoryview(b""),
            memoryview(bytes([0, kind.api_key])),
        ]
        others += [frame_of(kind, kind.message(**fields), version) for fields in unusual(name, version)]
        for frame in others:
            assert read(frame) is None, bytes(frame)
        foreign = ((kind.api_key ^ 1, version), (kind.api_key + 256, version), (kind.api_key, kind.versions[-1] + 1))
        for api_key, asked in (*foreign, (kind.api_key, kind.versions[0] - 1)):
            frame = memoryview(bytearray(sound))
            pack_into(">hh", frame, 0, api_key, asked)
            assert read(frame) is None


def unusual(name: str, version: int) -> list[dict[str, Any]]:
    """Fields that make a request unusual."""
    if name == "heartbeat":
        return [{"group_instance_id": "i"}, {"group_instance_id": ""}]
    if name == "consumer heartbeat":
        owned = m.ConsumerGroupHeartbeatRequest.TopicPartitions(partitions=[0])
        more: list[dict[str, Any]] = [
            {"instance_id": "i"},
            {"rack_id": "r"},
            {"rebalance_timeout_ms": 3},
            {"subscribed_topic_names": []},
            {"subscribed_topic_names": ["pond"]},
            {"server_assignor": "uniform"},
            {"topic_partitions": []},
            {"topic_partitions": [owned]},
        ]
        return more + ([{"subscribed_topic_regex": "p.*"}, {"subscribed_topic_regex": ""}] if version else [])
    kind = m.OffsetCommitRequest
    one = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="")
    return [
        {"group_instance_id": "i"},
        {"topics": []},
        {"topics": [kind.OffsetCommitRequestTopic(name="pond", partitions=[])]},
        {"topics": [kind.OffsetCommitRequestTopic(name="pond", partitions=[one, one])]},
        {"topics": [kind.OffsetCommitRequestTopic(name="pond", partitions=[one])] * 2},
    ]


@given(
    name=st.sampled_from([*KINDS]),
    data=st.data(),
    cut=st.integers(0, 20),
    flips=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), max_size=4),
    client_id=st.sampled_from([None, "", "client"]),
)
def test_every_accepted_request_is_valid_on_the_general_path(
    name: str, data: Any, cut: int, flips: list[tuple[int, int]], client_id: str | None
) -> None:
    kind = KINDS[name]
    version = data.draw(st.sampled_from([*kind.versions]))
    broken = bytearray(frame_of(kind, kind.message(), version, client_id))
    for position, value in flips:
        broken[position % len(broken)] = value
    broken = broken[: len(broken) - cut]
    short = getattr(kernel, kind.read)(memoryview(broken))
    if short is None:
        return
    header = decode_request_header(broken)
    assert (header.api_key, header.api_version, header.client_id or "") == (
        kind.api_key,
        short.version,
        short.client_id,
    )
    try:
        decoded, end = m.request_class(kind.api_key).decode(broken, short.version, header.body_position)
    except MalformedMessage as fault:
        raise AssertionError(f"only the short path accepts {bytes(broken)!r}") from fault
    assert end == len(broken)
    number = short.epoch if name == "consumer heartbeat" else short.generation
    more = {each: getattr(short, each) for each in COMMITTED[1:]} if name == "commit" else {}
    assert decoded == kind.message(short.group_id, short.member_id, number, **more)


@given(data=st.data(), name=st.sampled_from([*KINDS]), correlation_id=INT32, interval_ms=st.integers(0, 2**31 - 1))
def test_encodes_the_same_response_as_the_general_path(
    data: Any, name: str, correlation_id: int, interval_ms: int
) -> None:
    kind = KINDS[name]
    version = data.draw(st.sampled_from([*kind.versions]))
    text = st.text("abc", min_size=1, max_size=126)
    member, number = data.draw(text), data.draw(INT32)
    more = {"topic": data.draw(text), "partition": data.draw(INT32)} if name == "commit" else {}
    message = kind.message("g", member, number, **more)
    short = getattr(kernel, kind.read)(frame_of(kind, message, version, None, correlation_id))
    response: m.Message
    if name == "heartbeat":
        reply, response = short.reply(), m.HeartbeatResponse()
    elif name == "consumer heartbeat":
        reply = short.reply(interval_ms)
        response = m.ConsumerGroupHeartbeatResponse(
            member_id=member, member_epoch=number, heartbeat_interval_ms=interval_ms
        )
    else:
        reply, answered = short.reply(), m.OffsetCommitResponse
        partition = answered.OffsetCommitResponsePartition(partition_index=more["partition"])
        response = answered(topics=[answered.OffsetCommitResponseTopic(name=more["topic"], partitions=[partition])])
    body = response_header(kind.api_key, version, correlation_id) + response.encode(version)
    assert reply == len(body).to_bytes(4, "big") + body
