"""Which records a change writes, in which order: a follower that has only some of them must make sense of them."""

from __future__ import annotations

from typing import Any

from millpond.coordinators.groups.consumer.records import decode_record


def written(harness: Any, start: int) -> list[str]:
    """The kinds of records since then; a tombstone has a minus."""
    kinds = []
    for record in harness.log[start:]:
        key, value = decode_record(*record)
        name = type(key).__name__.removeprefix("ConsumerGroup").removesuffix("Key")
        kinds.append(name if value is not None else f"-{name}")
    return kinds


def test_a_join(harness: Any) -> None:
    harness.join("m1", "a")
    assert written(harness, 0) == [
        "MemberMetadata",
        "Metadata",
        "TargetAssignmentMember",
        "TargetAssignmentMetadata",
        "CurrentMemberAssignment",
    ]


def test_a_join_by_pattern_and_a_change_of_it(harness: Any) -> None:
    harness.join("m1", subscribed_topic_regex="a")
    assert written(harness, 0)[:3] == ["MemberMetadata", "RegularExpression", "Metadata"]
    start = len(harness.log)
    harness.beat("m1", 1, subscribed_topic_regex="a+")
    assert written(harness, start)[:4] == ["MemberMetadata", "RegularExpression", "-RegularExpression", "Metadata"]


def test_a_departure(harness: Any) -> None:
    harness.join("m1", "a")
    start = len(harness.log)
    harness.leave("m1")
    assert written(harness, start) == [
        "-CurrentMemberAssignment",
        "-TargetAssignmentMember",
        "-MemberMetadata",
        "Metadata",
    ]


def test_a_new_host_is_written_and_turns_nothing(harness: Any) -> None:
    harness.join("m1", "a")
    start = len(harness.log)
    harness.beat("m1", 1, rack_id="r2")
    assert written(harness, start) == ["MemberMetadata"]
    assert harness.group.state.epoch == 1


def test_a_static_member_that_comes_back(harness: Any) -> None:
    harness.join("m1", "a", instance_id="i")
    harness.beat("m1", -2, instance_id="i")
    start = len(harness.log)
    harness.join("m2", "a", instance_id="i")
    assert written(harness, start) == [
        "-CurrentMemberAssignment",
        "-TargetAssignmentMember",
        "-MemberMetadata",
        "MemberMetadata",
        "TargetAssignmentMember",
        "CurrentMemberAssignment",
        "CurrentMemberAssignment",
    ]


def test_topics_that_change(harness: Any) -> None:
    harness.join("m1", subscribed_topic_regex="a.*")
    start = len(harness.log)
    harness.create("a2", 1)
    harness.topics_changed()
    assert written(harness, start) == ["RegularExpression", "Metadata"]
