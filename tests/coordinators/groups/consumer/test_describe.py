from __future__ import annotations

from typing import Any

from millpond.wire import messages as m


def test_a_group_as_tools_show_it(harness: Any) -> None:
    harness.join("m1", "a", instance_id="i", rack_id="r")
    harness.join("m2", subscribed_topic_regex="a")
    harness.beat("m1", 1)
    found = harness.group.describe(1)
    assert (found.group_id, found.group_state, found.group_epoch, found.assignment_epoch) == (
        "g",
        "Reconciling",
        2,
        2,
    )
    assert found.assignor_name == "uniform"
    first, second = found.members
    assert (first.member_id, first.instance_id, first.rack_id, first.member_epoch) == ("m1", "i", "r", 1)
    assert (first.client_id, first.client_host, first.subscribed_topic_names) == ("c", "/h", ["a"])
    assert (second.subscribed_topic_names, second.subscribed_topic_regex) == ([], "a")
    (assigned,) = first.assignment.topic_partitions
    assert assigned.topic_name == "a"
    assert assigned.topic_id == harness.image.topics["a"].id
    assert first.assignment == first.target_assignment
    assert second.assignment.topic_partitions == []
    (waiting,) = second.target_assignment.topic_partitions
    assert sorted(assigned.partitions + waiting.partitions) == [0, 1, 2, 3]
    assert (first.member_type, second.member_type) == (1, 1)
    for version in (0, 1):
        m.ConsumerGroupDescribeResponse(groups=[found]).encode(version)


def test_partitions_of_deleted_topics_are_left_out(harness: Any) -> None:
    harness.join("m1", "a", "b")
    harness.delete("a")
    (member,) = harness.group.describe().members
    assert [each.topic_name for each in member.assignment.topic_partitions] == ["b"]
