"""The voters of the quorum as recorded in its own log, and how they may change.

One voter is added or removed at a time: then any majority of the old voters and any majority of the new ones overlap,
so that no two disjoint sets can elect or commit. That holds only for consecutive sets, so a change begins only once
the last one is committed, and once the leader has committed something in its own epoch: otherwise an earlier leader's
change, which this one has never seen, may still take effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from uuid import UUID

from millpond.base.named_tuple import NamedTuple


class VoterEndPoint(NamedTuple):
    """A voter's address on the listener of this name."""

    name: str
    host: str
    port: int


class Voter(NamedTuple):
    """A voter as recorded: the node, its disk, and its addresses."""

    node_id: int
    directory_id: UUID
    end_points: tuple[VoterEndPoint, ...] = ()


def fault_of_change(old: Set[int], new: Set[int]) -> str | None:
    """Why these voters may not follow those; the same nodes may, with other disks or addresses."""
    if not new:
        return "at least one voter is required"
    return "only one voter at a time may be added or removed" if len(old ^ new) > 1 else None


def wanted_count(nodes: int, count_max: int) -> int:
    """How many of this many nodes should vote: an odd number, as an even one tolerates no more failures."""
    return max(min(nodes - 1 + nodes % 2, count_max - 1 + count_max % 2), 1)


def next_voters(
    voters: tuple[Voter, ...], able: Mapping[int, Voter], drained: Set[int], count: int
) -> tuple[Voter, ...] | None:
    """The next step towards the target number of voters; None if there is none.

    `able` are live nodes that may vote. One that is down keeps its vote: it may return, and only an operator can know
    that it will not. `drained` are to be removed, and go once others vote in their place.
    """
    for index, voter in enumerate(voters):
        voter_able = able.get(voter.node_id, voter)
        if voter_able != voter:
            return (*voters[:index], voter_able, *voters[index + 1 :])
    node_ids = {each.node_id for each in voters}
    staying = node_ids - drained
    fresh = sorted(able.keys() - node_ids - drained)
    if len(staying) < count and fresh:
        return (*voters, able[fresh[0]])
    leaving = sorted(node_ids & drained)
    if leaving and staying and len(staying) >= count:
        return tuple(each for each in voters if each.node_id != leaving[0])
    return None
