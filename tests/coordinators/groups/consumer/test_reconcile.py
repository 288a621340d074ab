"""Steps of one member towards its target, one row each."""

from __future__ import annotations

from uuid import UUID

import pytest

from millpond.coordinators.groups.consumer.draft import Draft
from millpond.coordinators.groups.consumer.members import CurrentAssignment, MemberState, Partitions, TopicIdPartition
from millpond.coordinators.groups.consumer.reconcile import reconciled
from millpond.coordinators.groups.consumer.state import GroupState

STABLE, UNREVOKED, UNRELEASED = MemberState


def parts(*numbers: int) -> Partitions:
    return frozenset(TopicIdPartition(UUID(int=1), number) for number in numbers)


NONE = parts()


@pytest.mark.parametrize(
    ("current", "target", "owned", "expected"),
    [
        # Nothing to do; another holds 9 throughout, and the target's epoch is 5.
        (CurrentAssignment(5, 4, STABLE, parts(1)), parts(1), None, CurrentAssignment(5, 4, STABLE, parts(1))),
        # Free partitions are taken at once.
        (CurrentAssignment(4, 3, STABLE, parts(1)), parts(1, 2), None, CurrentAssignment(5, 4, STABLE, parts(1, 2))),
        # Held ones are waited for.
        (CurrentAssignment(4, 3, STABLE), parts(2, 9), None, CurrentAssignment(5, 4, UNRELEASED, parts(2))),
        (CurrentAssignment(5, 4, UNRELEASED, parts(2)), parts(2, 9), None, "unchanged"),
        # Own ones are let go of first; nothing new comes before.
        (
            CurrentAssignment(4, 3, STABLE, parts(1, 2)),
            parts(2, 3),
            None,
            CurrentAssignment(4, 3, UNREVOKED, parts(2), parts(1)),
        ),
        (CurrentAssignment(4, 3, UNREVOKED, parts(2), parts(1)), parts(2, 3), None, "unchanged"),
        (CurrentAssignment(4, 3, UNREVOKED, parts(2), parts(1)), parts(2, 3), parts(1, 2), "unchanged"),
        (
            CurrentAssignment(4, 3, UNREVOKED, parts(2), parts(1)),
            parts(2, 3),
            parts(2),
            CurrentAssignment(5, 4, STABLE, parts(2, 3)),
        ),
        # What it never had it need not let go of.
        (CurrentAssignment(4, 3, STABLE, parts(1)), parts(2), NONE, CurrentAssignment(5, 4, STABLE, parts(2))),
        # Let go of one, to find that the target has moved on and asks for another.
        (
            CurrentAssignment(2, 1, UNREVOKED, parts(2, 3), parts(1)),
            parts(3),
            parts(2, 3),
            CurrentAssignment(3, 2, UNREVOKED, parts(3), parts(2)),
        ),
        # What it has just let go of can come back to it.
        (
            CurrentAssignment(4, 3, UNREVOKED, NONE, parts(1)),
            parts(1),
            NONE,
            CurrentAssignment(5, 4, STABLE, parts(1)),
        ),
        # While it waits, the target moves on and takes something away.
        (
            CurrentAssignment(4, 3, UNRELEASED, parts(1)),
            parts(9),
            None,
            CurrentAssignment(4, 3, UNREVOKED, NONE, parts(1)),
        ),
        (
            CurrentAssignment(4, 3, UNREVOKED, NONE, parts(1)),
            parts(9),
            NONE,
            CurrentAssignment(5, 4, UNRELEASED),
        ),
    ],
)
def test_step(
    current: CurrentAssignment, target: Partitions, owned: Partitions | None, expected: CurrentAssignment | str
) -> None:
    draft = Draft("g", GroupState())
    draft.set_assignment_epoch(5)
    draft.set_current("other", CurrentAssignment(5, assigned=parts(9)))
    draft.set_current("m", current)
    draft.set_target("m", target)
    found = reconciled(draft.state, draft.state.members["m"], owned)
    assert found == (current if expected == "unchanged" else expected)
