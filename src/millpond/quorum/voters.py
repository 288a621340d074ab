"""The voters of the quorum as a record of its own log names them, and how they may change.

One voter comes or goes at a time: then any majority of the old voters and any majority of the new ones meet, so that
nobody is elected, and nothing committed, by two sets that know nothing of each other. That holds for two sets that
follow each other, hence a change begins only when the last one is committed, and only once the leader has committed
something in its own epoch: else an earlier leader's change, which this one has never seen, may still be about.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from uuid import UUID

from millpond.base.named_tuple import NamedTuple


class VoterEndPoint(NamedTuple):
    """Where a voter is reached by those who go by their listener of this name."""

    name: str
    host: str
    port: int


class Voter(NamedTuple):
    """A voter as it is written down: which node, on which disk, and where the others reach it."""

    node_id: int
    directory_id: UUID
    end_points: tuple[VoterEndPoint, ...] = ()


def fault_of_change(old: Set[int], new: Set[int]) -> str | None:
    """Why these voters may not follow those; the same ones may, with other disks or addresses."""
    if not new:
        return "somebody must vote"
    return "only one voter at a time may come or go" if len(old ^ new) > 1 else None


def wanted_count(nodes: int, count_max: int) -> int:
    """How many of so many nodes should vote: an odd number, as one more would survive no more losses."""
    return max(min(nodes - 1 + nodes % 2, count_max - 1 + count_max % 2), 1)


def next_voters(
    voters: tuple[Voter, ...], able: Mapping[int, Voter], drained: Set[int], count: int
) -> tuple[Voter, ...] | None:
    """The next step towards so many voters; None where there is none to take.

    `able` are nodes that are there and may vote. One that is away keeps its vote: it may come back, and only somebody
    who knows that it does not can say so. `drained` are to be taken away, and go once others vote in their place.
    """
    for index, voter in enumerate(voters):
        known = able.get(voter.node_id, voter)
        if known != voter:
            return (*voters[:index], known, *voters[index + 1 :])
    node_ids = {each.node_id for each in voters}
    staying = node_ids - drained
    fresh = sorted(able.keys() - node_ids - drained)
    if len(staying) < count and fresh:
        return (*voters, able[fresh[0]])
    leaving = sorted(node_ids & drained)
    if leaving and staying and len(staying) >= count:
        return tuple(each for each in voters if each.node_id != leaving[0])
    return None
