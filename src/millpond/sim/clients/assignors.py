"""How the leader of a classic group assigns partitions: range and cooperative-sticky."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def ranges(count: int, members: Sequence[str]) -> dict[str, frozenset[int]]:
    """Adjacent partitions to each member; the first members get one more if the number does not divide."""
    low, more = divmod(count, len(members))
    shares: dict[str, frozenset[int]] = {}
    first = 0
    for number, member in enumerate(members):
        size = low + (number < more)
        shares[member] = frozenset(range(first, first + size))
        first += size
    return shares


def cooperative_sticky(count: int, owned: Mapping[str, frozenset[int]]) -> dict[str, frozenset[int]]:
    """One round of the cooperative protocol: members keep what they own, as far as that is balanced.

    Partitions that have to move are unassigned in this round: their owner gives them up and joins again.
    """
    target = balanced(count, owned)
    claimed = {index: member for member, mine in owned.items() for index in mine}
    return {
        member: frozenset(index for index in mine if claimed.get(index, member) == member)
        for member, mine in target.items()
    }


def balanced(count: int, owned: Mapping[str, frozenset[int]]) -> dict[str, frozenset[int]]:
    """Assignments whose sizes differ by at most one, with as few moves as possible."""
    low, more = divmod(count, len(owned))
    shares: dict[str, set[int]] = {}
    taken: set[int] = set()
    # The members that own most keep the larger assignments.
    for member in sorted(owned, key=lambda each: (-len(owned[each]), each)):
        mine = sorted(index for index in owned[member] if index < count and index not in taken)
        size = low
        if len(mine) > low and more:
            size, more = low + 1, more - 1
        shares[member] = set(mine[:size])
        taken |= shares[member]
    free = [index for index in range(count) if index not in taken]
    for member in sorted(shares, key=lambda each: (len(shares[each]), each)):
        while free and len(shares[member]) < low:
            shares[member].add(free.pop(0))
    for member in sorted(shares, key=lambda each: (len(shares[each]), each)):
        if free:
            shares[member].add(free.pop(0))
    return {member: frozenset(shares[member]) for member in sorted(shares)}
