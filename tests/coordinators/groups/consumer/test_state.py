"""Each record sets or forgets one thing; what is derived follows."""

from __future__ import annotations

from uuid import UUID

import pytest

from millpond.coordinators.groups.consumer.draft import Draft
from millpond.coordinators.groups.consumer.members import CurrentAssignment, Member, MemberMetadata, TopicIdPartition
from millpond.coordinators.groups.consumer.state import GroupState, ResolvedPattern
from millpond.wire import messages as m

P0, P1 = TopicIdPartition(UUID(int=1), 0), TopicIdPartition(UUID(int=1), 1)


@pytest.fixture
def draft() -> Draft:
    return Draft("g", GroupState())


def test_owners_follow_what_members_hold(draft: Draft) -> None:
    draft.set_current("m", CurrentAssignment(1, assigned=frozenset([P0]), revoking=frozenset([P1])))
    assert draft.state.owners == {P0: "m", P1: "m"}
    draft.set_current("m", CurrentAssignment(2, assigned=frozenset([P0])))
    assert draft.state.owners == {P0: "m"}
    draft.remove_member("m")
    assert draft.state.owners == {}
    assert draft.state.members == {}


def test_letting_go_late_does_not_take_from_the_new_owner(draft: Draft) -> None:
    draft.set_current("m", CurrentAssignment(1, assigned=frozenset([P0])))
    draft.set_current("n", CurrentAssignment(2, assigned=frozenset([P0])))
    draft.remove_member("m")
    assert draft.state.owners == {P0: "n"}


def test_instances_follow_what_members_say(draft: Draft) -> None:
    draft.set_metadata("m", MemberMetadata(instance_id="i"))
    assert draft.state.static_member("i") == Member("m", MemberMetadata(instance_id="i"))
    draft.set_metadata("n", MemberMetadata(instance_id="i"))
    draft.remove_member("m")
    assert draft.state.static_ids == {"i": "n"}
    draft.set_metadata("n", MemberMetadata(instance_id="j"))
    assert draft.state.static_ids == {"j": "n"}
    assert draft.state.static_member("i") is None


def test_the_order_of_a_members_records_does_not_matter(draft: Draft) -> None:
    draft.set_current("m", CurrentAssignment(3))
    draft.set_metadata("m", MemberMetadata(client_id="c"))
    assert draft.state.members == {"m": Member("m", MemberMetadata(client_id="c"), CurrentAssignment(3))}


def test_the_topics_of_a_pattern_are_named_once_however_many_share_it(draft: Draft) -> None:
    draft.set_pattern("a.*", ResolvedPattern(("a1", "a2")))
    draft.set_pattern("b.*", ResolvedPattern(("b1",)))
    for member in ("m", "n"):
        draft.set_metadata(member, MemberMetadata(topics=("t",), regex="a.*"))
    draft.set_metadata("o", MemberMetadata(regex="c.*"))
    assert list(draft.state.subscriptions()) == [("t",), ("t",), (), ("a1", "a2")]


def test_names_of_states(draft: Draft) -> None:
    assert draft.state.name == "Empty"
    draft.set_metadata("m", MemberMetadata())
    draft.set_epoch(1, 0)
    assert draft.state.name == "Assigning"
    draft.set_assignment_epoch(1)
    assert draft.state.name == "Reconciling"
    draft.set_current("m", CurrentAssignment(1))
    assert draft.state.name == "Stable"


def test_a_subscription_is_names_and_what_the_pattern_stood_for(draft: Draft) -> None:
    member = Member("m", MemberMetadata(topics=("x",), regex="a.*"))
    assert draft.state.topics_of(member) == ("x",)
    draft.set_pattern("a.*", ResolvedPattern(("a1", "a2"), 0, 5))
    assert draft.state.topics_of(member) == ("x", "a1", "a2")


def test_a_removed_group_leaves_nothing(draft: Draft) -> None:
    draft.set_metadata("m", MemberMetadata(instance_id="i", regex="a"))
    draft.set_pattern("a", ResolvedPattern(("a",)))
    draft.set_epoch(3, 9)
    draft.set_target("m", frozenset([P0]))
    draft.set_assignment_epoch(3)
    draft.set_current("m", CurrentAssignment(3, assigned=frozenset([P0])))
    keys = {record.key for record in draft.records}
    draft.remove_group()
    assert draft.state == GroupState()
    assert {record.key for record in draft.records if record.value is None} == keys


def test_what_older_brokers_wrote_is_read_past(draft: Draft) -> None:
    draft.write(m.ConsumerGroupPartitionMetadataKey(group_id="g"), m.ConsumerGroupPartitionMetadataValue())
    assert draft.state == GroupState()


def test_a_record_of_something_else_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="not a record"):
        GroupState().replay(m.OffsetCommitKey(), None)
