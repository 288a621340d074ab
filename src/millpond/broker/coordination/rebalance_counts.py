"""How often each group has rebalanced since this node began to coordinate, and how long that kept it from reading."""

from __future__ import annotations

from collections.abc import Set

from millpond.base.named_tuple import NamedTuple


class Rebalanced(NamedTuple):
    times: int
    paused_ms: int


class RebalanceCounts:
    def __init__(self) -> None:
        self._by_group: dict[str, Rebalanced] = {}

    def add(self, group_id: str, times: int, paused_ms: int) -> None:
        """One rebalance is over; with it so many count that were not told of one by one."""
        before = self._by_group.get(group_id, Rebalanced(0, 0))
        self._by_group[group_id] = Rebalanced(before.times + times, before.paused_ms + paused_ms)

    def of(self, group_id: str) -> Rebalanced:
        return self._by_group.get(group_id, Rebalanced(0, 0))

    def groups(self) -> Set[str]:
        """Those that have rebalanced, as of now."""
        return set(self._by_group)

    def forget(self, groups: Set[str]) -> None:
        """They have gone, or are coordinated elsewhere: nobody asks for them here any more."""
        for group_id in groups:
            self._by_group.pop(group_id, None)
