"""One step of a member towards its target: first revoke, then wait for others to revoke, then take.

Only partitions that change owners are touched. A partition goes to its new owner when no member holds it any longer,
and a member holds what it was assigned until it reports the revocation.
"""

from __future__ import annotations

from dataclasses import replace

from millpond.coordinators.groups.consumer.members import (
    NO_PARTITIONS,
    CurrentAssignment,
    Member,
    MemberState,
    Partitions,
)
from millpond.coordinators.groups.consumer.state import GroupState


def reconciled(state: GroupState, member: Member, owned: Partitions | None) -> CurrentAssignment:
    """The member's assignment after a heartbeat in which it reported `owned` (None if it did not)."""
    current = member.current
    if current.is_reconciled(state.assignment_epoch):
        return current
    epoch = current.epoch
    if current.state is MemberState.UNREVOKED:
        if _holds(owned, current.revoking):
            return current
        # It has done what it was asked. The target may have moved on, so it advances by one epoch, not straight to
        # the target's: its next epoch distinguishes it from before.
        epoch += 1
    return _towards_target(state, member, epoch, owned)


def _towards_target(state: GroupState, member: Member, epoch: int, owned: Partitions | None) -> CurrentAssignment:
    current = member.current
    target = state.target(member.id)
    kept = current.assigned & target
    revoking = current.assigned - target
    if revoking and _holds(owned, revoking):
        return replace(current.at_epoch(epoch), state=MemberState.UNREVOKED, assigned=kept, revoking=revoking)
    # Its own revocation of these is not written yet, but has just been reported.
    just_released = revoking | current.revoking
    held_by_others = frozenset(
        each
        for each in target - kept
        if each in state.owners and not (each in just_released and state.owners[each] == member.id)
    )
    return replace(
        current.at_epoch(state.assignment_epoch),
        state=MemberState.UNRELEASED if held_by_others else MemberState.STABLE,
        assigned=target - held_by_others,
        revoking=NO_PARTITIONS,
    )


def _holds(owned: Partitions | None, partitions: Partitions) -> bool:
    """Whether the member may still hold any of them. No report means yes."""
    return owned is None or not owned.isdisjoint(partitions)
