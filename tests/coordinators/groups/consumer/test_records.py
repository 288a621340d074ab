"""The records byte for byte, and there and back."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import MalformedMessage
from millpond.coordinators.groups.consumer.members import (
    ClassicProtocols,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
    TopicIdPartition,
)
from millpond.coordinators.groups.consumer.records import (
    TYPES,
    current_of,
    current_value,
    decode_record,
    encode_record,
    metadata_of,
    metadata_value,
    target_of,
    target_value,
)
from millpond.wire import messages as m

TOPIC = UUID(int=5)
TEXT = st.text("abcé", max_size=3)
PARTITIONS = st.frozensets(st.builds(TopicIdPartition, st.sampled_from([TOPIC, UUID(int=1)]), st.integers(0, 9)))
NUMBERS = st.integers(-2, 1 << 31 - 1)


def test_the_bytes_of_a_record() -> None:
    value = current_value(
        CurrentAssignment(3, 2, MemberState.UNREVOKED, frozenset([TopicIdPartition(TOPIC, 1)]), frozenset())
    )
    record = encode_record(m.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"), value)
    assert record.key == b"\0\x08" + b"\0\1g" + b"\0\1m"
    topic = TOPIC.bytes + b"\x02\0\0\0\1" + b"\0"
    assert record.value == b"\0\0" + b"\0\0\0\3" + b"\0\0\0\2" + b"\1" + b"\x02" + topic + b"\x01" + b"\0"


def test_a_tombstone() -> None:
    key = m.ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="a.*")
    record = encode_record(key, None)
    assert record.key[:2] == b"\0\x10"
    assert record.value is None
    assert decode_record(*record) == (key, None)


def test_every_type_is_known_by_the_version_of_its_key() -> None:
    for version, (key, value) in TYPES.items():
        assert (version, version) == key.VERSIONS
        assert decode_record(*encode_record(key(), value())) == (key(), value())


def test_records_of_others_are_refused() -> None:
    with pytest.raises(MalformedMessage, match="type 2"):
        decode_record(b"\0\2\0\1g", None)


@given(
    st.builds(
        MemberMetadata,
        instance_id=st.none() | TEXT,
        rack_id=st.none() | TEXT,
        client_id=TEXT,
        client_host=TEXT,
        topics=st.lists(TEXT).map(tuple),
        regex=st.none() | TEXT,
        rebalance_timeout_ms=NUMBERS,
        assignor=st.none() | TEXT,
        classic=st.none()
        | st.builds(ClassicProtocols, NUMBERS, st.lists(st.tuples(TEXT, st.binary(max_size=3))).map(tuple)),
    )
)
def test_members_come_back_as_they_were(metadata: MemberMetadata) -> None:
    key = m.ConsumerGroupMemberMetadataKey(group_id="g", member_id="m")
    _, value = decode_record(*encode_record(key, metadata_value(metadata)))
    assert isinstance(value, m.ConsumerGroupMemberMetadataValue)
    assert metadata_of(value) == metadata


@given(st.builds(CurrentAssignment, NUMBERS, NUMBERS, st.sampled_from(MemberState), PARTITIONS, PARTITIONS))
def test_assignments_come_back_as_they_were(current: CurrentAssignment) -> None:
    assert current_of(current_value(current)) == current
    assert target_of(target_value(current.assigned)) == current.assigned
