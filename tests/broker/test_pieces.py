"""A request that is sliced: the slices contain all of it, in order and within the limit, and the responses are
merged.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from millpond.base.errors import ErrorCode, MalformedMessage
from millpond.broker.apis import APIS
from millpond.broker.serving.pieces import Indivisible, way, weight
from millpond.wire import messages as m
from support.fuzz.frames import FrameMaker
from support.fuzz.pools import Pools
from support.seeds import seeds

Markers = m.WriteTxnMarkersRequest
MARKERS = way("markers.topics.partition_indexes", "markers.topics.partition_indexes")


def markers_of(draw: Random) -> m.WriteTxnMarkersRequest:
    """Random sizes of all kinds, including empty lists."""

    def indexes() -> list[int]:
        return [draw.randrange(99) for _ in range(draw.choice((0, 1, 3, 240, 250, 251, 1200)))]

    def topics() -> list[Any]:
        return [
            Markers.WritableTxnMarkerTopic(name=f"topic-{number}", partition_indexes=indexes())
            for number in range(draw.choice((0, 1, 2, 9)))
        ]

    return Markers(
        markers=[
            Markers.WritableTxnMarker(
                producer_id=number, producer_epoch=0, transaction_result=True, coordinator_epoch=0, topics=topics()
            )
            for number in range(draw.choice((1, 2, 5, 400)))
        ]
    )


@pytest.mark.parametrize("seed", seeds(range(60)))
def test_pieces_put_together_are_the_whole(seed: int) -> None:
    whole = markers_of(Random(seed))
    data = whole.encode(1)
    pieces = list(MARKERS.cut(whole, 3_000))
    # What continues from one slice to the next is counted in neither.
    assert all(weight(piece) <= 1 + MARKERS.items + len(MARKERS.of) - 1 for piece, _ in pieces)
    assert len(pieces) <= 1 + 2 * weight(whole) // MARKERS.items + 1
    assert MARKERS.join(pieces) == Markers.decode(data, 1)[0]


def test_every_way_is_there_in_its_messages() -> None:
    for api in APIS:
        for pieces in api.pieces:
            for kind, names in ((m.request_class, pieces.of), (m.response_class, pieces.into)):
                struct: Any = kind(api.key)._schema.root
                for name in names:
                    (field,) = [each for each in struct.fields if each.name == name]
                    assert field.is_array, (api.name, name)
                    struct = field.struct


def test_one_that_is_too_heavy_is_refused() -> None:
    kind = m.AlterConfigsRequest
    configs = [kind.AlterableConfig(name=str(each), value="") for each in range(50)]
    request = kind(resources=[kind.AlterConfigsResource(resource_type=2, resource_name="pond", configs=configs)])
    with pytest.raises(Indivisible, match="50 items"):
        list(way("resources", "responses").cut(request, 50))
    ((piece, _),) = way("resources", "responses").cut(request, 51)
    assert piece == request


def test_what_an_item_is_part_of_counts_with_it() -> None:
    kind = m.AlterPartitionReassignmentsRequest
    partitions = [
        kind.ReassignablePartition(partition_index=each, replicas=[1] * replicas)
        for each, replicas in enumerate((1, 48, 1))
    ]
    request = kind(topics=[kind.ReassignableTopic(name="pond", partitions=partitions)])
    here = way("topics.partitions", "responses.partitions", items=5)
    with pytest.raises(Indivisible, match="48 items"):
        list(here.cut(request, 49))
    assert [weight(piece) - 1 for piece, _ in here.cut(request, 50)] == [3, 50, 3]


def test_a_structure_in_no_list_is_no_item() -> None:
    kind = m.UpdateRaftVoterRequest
    request = kind(listeners=[kind.Listener(name=str(each), host="here", port=1) for each in range(3)])
    assert weight(request) == 1 + 3


def test_what_is_answered_once_is_asked_once() -> None:
    names = [f"group-{each % 700}" for each in range(5_000)]
    pieces = way("groups", "groups", once=str).cut(m.DescribeGroupsRequest(groups=names), 10)
    assert [name for piece, _ in pieces for name in piece.groups] == names[:700]  # type: ignore[attr-defined]


def test_an_error_of_the_whole_is_that_of_all() -> None:
    good, bad = m.AlterPartitionResponse(topics=[]), m.AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)
    assert way("topics", "topics").join([(good, 0), (bad, 0)]) is bad


def test_nodes_that_are_told_beside_are_told_once() -> None:
    kind = m.ProduceResponse
    first, second = kind.NodeEndpoint(node_id=1, host="a", port=1), kind.NodeEndpoint(node_id=2, host="b", port=2)
    joined = way("topic_data", "responses", beside="node_endpoints").join(
        [(kind(node_endpoints=[first]), 0), (kind(node_endpoints=[first, second]), 0)]
    )
    assert joined.node_endpoints == [first, second]


def test_in_steps_messages_are_read_and_written_as_at_once() -> None:
    draw = Random(5)
    for api in APIS:
        maker = FrameMaker(draw, Pools(draw), (api.key,))
        for number in range(1, 4):
            maker.long_items = 1_300
            tokens = maker.long(api.key, number)
            head = len(maker.header(api.key, int.from_bytes(tokens[1][2], "big")))
            version = int.from_bytes(tokens[1][2], "big")
            body = b"".join(token[2] for token in tokens[head:])
            kind = m.request_class(api.key)
            try:
                message, end = kind.decode(body, version)
            except MalformedMessage:
                continue
            turns, (again, again_end) = taken(kind.decode_in_steps(body, version, 0, 1 << 31))
            # Compare the bytes: NaN does not equal itself.
            assert (again.encode(version), again_end) == (message.encode(version), end), api.name
            # Lists of numbers are read all at once and take no time.
            assert turns >= _structs(message) // 500
            encoded_turns, parts = taken(message.encode_in_steps(version))
            assert b"".join(parts) == message.encode(version)
            assert encoded_turns == turns


def taken(steps: Any) -> tuple[int, Any]:
    turns = 0
    while True:
        try:
            next(steps)
        except StopIteration as over:
            return turns, over.value
        turns += 1


def _structs(value: Any) -> int:
    """Structures in lists."""
    result = 0
    for name in value._names:
        inner = getattr(value, name)
        if isinstance(inner, list) and inner and hasattr(inner[0], "_names"):
            result += len(inner) + sum(map(_structs, inner))
    return result


def test_long_names_make_smaller_pieces() -> None:
    pieces = way("coordinator_keys", "coordinators")
    request = m.FindCoordinatorRequest(coordinator_keys=["x" * 10_000 for _ in range(500)])
    cut = list(pieces.cut(request, 3_000))
    assert sum(len(piece.coordinator_keys) for piece, _ in cut) == 500
    assert max(len(piece.coordinator_keys) for piece, _ in cut) == pieces.items // 11


OFFSETS = way("groups.topics.partition_indexes", "groups.topics.partitions")


def answered_group(name: str, code: ErrorCode, partitions: list[int]) -> m.OffsetFetchResponse:
    kind = m.OffsetFetchResponse
    topic = kind.OffsetFetchResponseTopics(
        name="pond",
        partitions=[
            kind.OffsetFetchResponsePartitions(partition_index=each, committed_offset=7, metadata="")
            for each in partitions
        ],
    )
    topics = [topic] if code is ErrorCode.NONE else []
    return kind(groups=[kind.OffsetFetchResponseGroup(group_id=name, error_code=code, topics=topics)])


@pytest.mark.parametrize("failed", [0, 1, 2])
def test_a_group_of_which_one_piece_failed_has_failed(failed: int) -> None:
    """Half of its offsets would pass for all of them, and its consumers would start at the wrong position."""
    codes = [ErrorCode.NOT_COORDINATOR if number == failed else ErrorCode.NONE for number in range(3)]
    answers = [(answered_group("crew", code, [number]), 2) for number, code in enumerate(codes)]
    (group,) = OFFSETS.join(answers).groups
    assert (group.error_code, group.topics) == (ErrorCode.NOT_COORDINATOR, [])


def test_another_group_is_not_touched_by_that() -> None:
    answers = [
        (answered_group("crew", ErrorCode.NONE, [0]), 0),
        (answered_group("guild", ErrorCode.NOT_COORDINATOR, []), 1),
    ]
    assert [(each.group_id, each.error_code) for each in OFFSETS.join(answers).groups] == [
        ("crew", ErrorCode.NONE),
        ("guild", ErrorCode.NOT_COORDINATOR),
    ]
