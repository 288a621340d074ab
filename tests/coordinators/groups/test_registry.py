"""What the log tells of groups, record by record, also where compaction has left gaps."""

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.coordinators.groups.records import OffsetKey, group_record, offset_record
from millpond.wire import messages as m


@pytest.fixture
def registry(make_coordinator):
    return make_coordinator().shard.registry


def offset(partition: int, group: str = "g") -> tuple[bytes, bytes | None]:
    return offset_record(OffsetKey(group, "t", partition), m.OffsetCommitValue(offset=1, metadata=""))


def generation(number: int, *members: str, is_led: bool = True) -> tuple[bytes, bytes | None]:
    kind = m.GroupMetadataValue
    listed = [kind.MemberMetadata(member_id=each, session_timeout=10_000) for each in members]
    leader = members[0] if members and is_led else None
    return group_record(
        "g", kind(protocol_type="consumer", generation=number, protocol="range", leader=leader, members=listed)
    )


def consumer_epoch(epoch: int | None) -> tuple[bytes, bytes | None]:
    key = b"\x00\x03" + m.ConsumerGroupMetadataKey(group_id="g").encode(3)
    return key, None if epoch is None else b"\x00\x00" + m.ConsumerGroupMetadataValue(epoch=epoch).encode(0)


def test_offset_makes_a_group_and_its_tombstone_ends_it(registry) -> None:
    registry.replay(0, *offset(0))
    assert registry.known("g").protocol_type is None
    key, _ = offset(0)
    registry.replay(1, key, None)
    assert registry.groups == {}


def test_last_generation_counts(registry) -> None:
    registry.replay(0, *generation(3, "a", "b"))
    registry.replay(1, *generation(4, "b"))
    group = registry.known("g")
    assert (group.generation, list(group.members), group.leader, group.state_name) == (4, ["b"], "b", "Stable")


def test_group_that_ends_keeps_its_offsets_as_a_simple_one(registry) -> None:
    registry.replay(0, *offset(0))
    registry.replay(1, *generation(3))
    registry.replay(2, *group_record("g", None))
    assert (registry.known("g").protocol_type, registry.known("g").is_written) == (None, False)


@pytest.mark.parametrize("record", [group_record("g", None), (offset(0)[0], None), consumer_epoch(None)])
def test_tombstone_of_what_is_not_there_means_nothing(registry, record: tuple) -> None:
    registry.replay(0, *record)
    assert registry.groups == {}


def test_group_changes_its_kind_and_keeps_its_offsets(registry) -> None:
    registry.replay(0, *offset(0))
    registry.replay(1, *generation(3))
    registry.replay(2, *group_record("g", None))
    registry.replay(3, *consumer_epoch(4))
    assert registry.known("g").type_name == "consumer"
    registry.replay(4, *consumer_epoch(None))
    registry.replay(5, *generation(5))
    assert registry.known("g").type_name == "classic"
    assert registry.offsets.has_any("g")


def test_members_of_a_group_that_turned_back_are_asked_to_join_and_watched(coordinator) -> None:
    coordinator.now_ms += 500
    coordinator.shard.on_timer(coordinator.now_ms)
    coordinator.shard.replay(0, *generation(3, "a", is_led=False))
    assert coordinator.group().state_name == "PreparingRebalance"
    assert coordinator.heartbeat("a", 3) == ErrorCode.REBALANCE_IN_PROGRESS
    coordinator.pass_time(10_000)
    assert coordinator.group().state_name == "Empty"


def test_who_is_not_there(registry) -> None:
    for ask, code in [
        (lambda: registry.known("g"), ErrorCode.GROUP_ID_NOT_FOUND),
        (lambda: registry.with_members("g"), ErrorCode.UNKNOWN_MEMBER_ID),
        (lambda: registry.with_members(""), ErrorCode.INVALID_GROUP_ID),
    ]:
        with pytest.raises(Refused) as refused:
            ask()
        assert refused.value.code is code
