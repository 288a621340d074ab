from __future__ import annotations

from typing import Any

from millpond.coordinators.groups.consumer.members import Member, MemberMetadata
from millpond.coordinators.groups.consumer.records import decode_record
from millpond.coordinators.groups.consumer.target import metadata_hash, preferred_assignor
from millpond.wire import messages as m


def test_the_hash_changes_with_the_subscribed_topics_and_with_nothing_else(harness: Any) -> None:
    image = harness.image
    before = metadata_hash(["a", "missing"], image)
    assert before == metadata_hash({"missing", "a"}, image) != 0
    harness.grow("b", 5)
    harness.create("c", 1)
    assert metadata_hash(["a"], image) == before
    harness.grow("a", 5)
    grown = metadata_hash(["a"], image)
    assert grown != before
    harness.delete("a")
    assert metadata_hash(["a"], image) == 0
    harness.create("a", 5)
    assert metadata_hash(["a"], image) not in (before, grown, 0), "created again it is another topic"
    assert -(1 << 63) <= before < 1 << 63


class Unordered(str):
    def __lt__(self, other: object) -> bool:
        raise AssertionError(f"{self} was put in order")


def test_names_of_no_topic_are_not_put_in_order(harness: Any) -> None:
    """A member may be subscribed to very many."""
    unknown = [Unordered(f"missing {number}") for number in range(3)]
    assert metadata_hash([*unknown, "a"], harness.image) == metadata_hash(["a"], harness.image)


def test_the_assignor_that_most_want() -> None:
    members = [
        Member(str(number), MemberMetadata(assignor=name)) for number, name in enumerate(["r", "r", "u", None])
    ]
    assert preferred_assignor(members, ("u", "r")) == "r"
    assert preferred_assignor(members[1:], ("u", "r")) == "u"
    assert preferred_assignor([], ("u", "r")) == "u"
    assert preferred_assignor([Member("m", MemberMetadata(assignor="gone"))], ("u", "r")) == "u"


def test_only_members_whose_target_changed_are_written(harness: Any) -> None:
    harness.join("m1", "a")
    harness.join("m2", "b")
    start = len(harness.log)
    harness.join("m3", "b")
    targets = [
        key.member_id
        for key, _ in (decode_record(*record) for record in harness.log[start:])
        if isinstance(key, m.ConsumerGroupTargetAssignmentMemberKey)
    ]
    assert sorted(targets) == ["m2", "m3"]


def test_a_static_member_has_its_place_by_its_instance(harness: Any) -> None:
    harness.join("x", "b", instance_id="2", server_assignor="range")
    harness.join("y", "b", instance_id="1", server_assignor="range")
    harness.grow("b", 3)
    harness.topics_changed()
    harness.beat("y", 2)
    assert {name: len(target) for name, target in harness.group.state.targets.items()} == {"x": 1, "y": 2}
