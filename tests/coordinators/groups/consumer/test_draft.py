from __future__ import annotations

from millpond.coordinators.groups.consumer.draft import Draft
from millpond.coordinators.groups.consumer.members import CurrentAssignment, Member, MemberMetadata
from millpond.coordinators.groups.consumer.records import decode_record
from millpond.coordinators.groups.consumer.state import GroupState


def test_the_group_itself_changes_only_by_replay() -> None:
    state = GroupState()
    draft = Draft("g", state)
    assert draft.state is state, "nothing is copied until something is written"
    draft.set_epoch(1, 2)
    draft.set_metadata("m", MemberMetadata(instance_id="i"))
    draft.set_current("m", CurrentAssignment(1))
    assert state == GroupState()
    for record in draft.records:
        state.replay(*decode_record(*record))
    assert state == draft.state


def test_a_successor_has_what_its_predecessor_had() -> None:
    draft = Draft("g", GroupState())
    draft.set_metadata("m", MemberMetadata(instance_id="i"))
    draft.set_target("m", frozenset())
    draft.replace_member(draft.state.members["m"], Member("n", MemberMetadata(instance_id="i"), CurrentAssignment(0)))
    assert list(draft.state.members) == ["n"]
    assert list(draft.state.targets) == ["n"]
    assert draft.state.static_ids == {"i": "n"}
