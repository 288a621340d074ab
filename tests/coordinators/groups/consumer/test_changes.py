"""Which records a change writes, in which order: a follower that has only some of them must make sense of them."""

from __future__ import annotations

from typing import Any

from millpond.coordinators.groups.consumer.records import decode_record


def written(pond: Any, start: int) -> list[str]:
    """The kinds of records since then; a tombstone has a minus."""
    kinds = []
    for record in pond.log[start:]:
        key, value = decode_record(*record)
        name = type(key).__name__.removeprefix("ConsumerGroup").removesuffix("Key")
        kinds.append(name if value is not None else f"-{name}")
    return kinds


def test_a_join(pond: Any) -> None:
    pond.join("m1", "a")
    assert written(pond, 0) == [
        "MemberMetadata",
        "Metadata",
        "TargetAssignmentMember",
        "TargetAssignmentMetadata",
        "CurrentMemberAssignment",
    ]


def test_a_join_by_pattern_and_a_change_of_it(pond: Any) -> None:
    pond.join("m1", subscribed_topic_regex="a")
    assert written(pond, 0)[:3] == ["MemberMetadata", "RegularExpression", "Metadata"]
    start = len(pond.log)
    pond.beat("m1", 1, subscribed_topic_regex="a+")
    assert written(pond, start)[:4] == ["MemberMetadata", "RegularExpression", "-RegularExpression", "Metadata"]


def test_a_departure(pond: Any) -> None:
    pond.join("m1", "a")
    start = len(pond.log)
    pond.leave("m1")
    assert written(pond, start) == [
        "-CurrentMemberAssignment",
        "-TargetAssignmentMember",
        "-MemberMetadata",
        "Metadata",
    ]


def test_a_new_host_is_written_and_turns_nothing(pond: Any) -> None:
    pond.join("m1", "a")
    start = len(pond.log)
    pond.beat("m1", 1, rack_id="r2")
    assert written(pond, start) == ["MemberMetadata"]
    assert pond.group.state.epoch == 1


def test_a_static_member_that_comes_back(pond: Any) -> None:
    pond.join("m1", "a", instance_id="i")
    pond.beat("m1", -2, instance_id="i")
    start = len(pond.log)
    pond.join("m2", "a", instance_id="i")
    assert written(pond, start) == [
        "-CurrentMemberAssignment",
        "-TargetAssignmentMember",
        "-MemberMetadata",
        "MemberMetadata",
        "TargetAssignmentMember",
        "CurrentMemberAssignment",
        "CurrentMemberAssignment",
    ]


def test_topics_that_change(pond: Any) -> None:
    pond.join("m1", subscribed_topic_regex="a.*")
    start = len(pond.log)
    pond.create("a2", 1)
    pond.topics_changed()
    assert written(pond, start) == ["RegularExpression", "Metadata"]
