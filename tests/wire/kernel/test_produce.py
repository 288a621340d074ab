"""`single_produce` agrees with the general path on every version, and leaves other requests to it."""

from __future__ import annotations

from types import ModuleType
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from millpond.wire import messages as m
from millpond.wire.header import encode_request_header, response_header
from millpond.wire.kernel import produce as plain
from support.twins import compiled, twins

VERSIONS = st.integers(3, 13)
NAMES = st.text("abcXYZ019._-", min_size=1, max_size=126)
Data = m.ProduceRequest.PartitionProduceData
Topic = m.ProduceRequest.TopicProduceData


fast = compiled("_fast")


def frame_of(request: m.ProduceRequest, version: int) -> tuple[bytes, int]:
    header = encode_request_header(0, version, 7, "client")
    return header + request.encode(version), len(header)


@given(
    version=VERSIONS,
    name=NAMES,
    topic_id=st.uuids(),
    index=st.integers(0, 2**31 - 1),
    acks=st.sampled_from([-1, 0, 1]),
    timeout_ms=st.integers(0, 2**31 - 1),
    records=st.binary(max_size=400),
)
def test_reads_the_same_fields_as_the_general_path(
    kernel: ModuleType,
    version: int,
    name: str,
    topic_id: UUID,
    index: int,
    acks: int,
    timeout_ms: int,
    records: bytes,
) -> None:
    request = m.ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            Topic(name=name, topic_id=topic_id, partition_data=[Data(index=index, records=memoryview(records))])
        ],
    )
    frame, position = frame_of(request, version)
    single = kernel.single_produce(memoryview(frame), position, version)
    assert (single.acks, single.timeout_ms, single.partition) == (acks, timeout_ms, index)
    assert single.topic == (topic_id.bytes if version >= 13 else name.encode())
    assert frame[single.records_begin : single.records_end] == records


@given(version=VERSIONS, partitions=st.integers(0, 3), topics=st.integers(0, 3), transactional=st.booleans())
def test_leaves_other_requests_to_the_general_path(
    kernel: ModuleType, version: int, partitions: int, topics: int, transactional: bool
) -> None:
    request = m.ProduceRequest(
        transactional_id="t" if transactional else None,
        acks=1,
        topic_data=[
            Topic(name="a", partition_data=[Data(index=number, records=b"r") for number in range(partitions)])
            for _ in range(topics)
        ],
    )
    frame, position = frame_of(request, version)
    single = kernel.single_produce(frame, position, version)
    assert (single is not None) == (partitions == 1 and topics == 1 and not transactional)


def is_text(topic: bytes, version: int) -> bool:
    """Whether the topic's name is UTF-8; if not, the general path refuses the request."""
    try:
        return version >= 13 or bool(topic.decode() or True)
    except UnicodeDecodeError:
        return False


@given(version=VERSIONS, cut=st.integers(0, 400), flips=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255))))
def test_both_twins_read_hostile_bytes_alike(version: int, cut: int, flips: list[tuple[int, int]]) -> None:
    request = m.ProduceRequest(
        acks=1, topic_data=[Topic(name="topic", partition_data=[Data(index=0, records=b"x" * 200)])]
    )
    frame, position = frame_of(request, version)
    broken = bytearray(frame)
    for position, value in flips:
        broken[position % len(broken)] = value
    broken = broken[: max(len(broken) - cut, position)]
    answers = [module.single_produce(memoryview(broken), position, version) for module in twins(plain, fast)]
    assert all(answer == answers[0] for answer in answers)
    if answers[0] is not None and is_text(answers[0].topic, version):
        decoded, end = m.ProduceRequest.decode(broken, version, position)
        assert end == len(broken)
        assert bytes(decoded.topic_data[0].partition_data[0].records) == bytes(
            broken[answers[0].records_begin : answers[0].records_end]
        )


@given(
    version=VERSIONS,
    name=NAMES,
    topic_id=st.uuids(),
    index=st.integers(0, 2**31 - 1),
    offset=st.integers(0, 2**63 - 1),
    append_time_ms=st.integers(-1, 2**62),
    start_offset=st.integers(0, 2**63 - 1),
    correlation_id=st.integers(-(2**31), 2**31 - 1),
)
def test_encodes_the_same_response_as_the_general_path(
    version: int,
    name: str,
    topic_id: UUID,
    index: int,
    offset: int,
    append_time_ms: int,
    start_offset: int,
    correlation_id: int,
) -> None:
    topic = topic_id.bytes if version >= 13 else name.encode()
    quick = plain.single_produce_reply(version, correlation_id, topic, index, offset, append_time_ms, start_offset)
    general = m.ProduceResponse(
        responses=[
            m.ProduceResponse.TopicProduceResponse(
                name=name,
                topic_id=topic_id,
                partition_responses=[
                    m.ProduceResponse.PartitionProduceResponse(
                        index=index,
                        base_offset=offset,
                        log_append_time_ms=append_time_ms,
                        log_start_offset=start_offset,
                    )
                ],
            )
        ]
    )
    body = response_header(0, version, correlation_id) + general.encode(version)
    assert quick == len(body).to_bytes(4, "big") + body
