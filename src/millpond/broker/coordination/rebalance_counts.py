"""How often each group has rebalanced since this node became its coordinator, and for how long that paused it."""

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
        """Count a finished rebalance, together with earlier ones that were not reported individually."""
        before = self._by_group.get(group_id, Rebalanced(0, 0))
        self._by_group[group_id] = Rebalanced(before.times + times, before.paused_ms + paused_ms)

    def of(self, group_id: str) -> Rebalanced:
        return self._by_group.get(group_id, Rebalanced(0, 0))

    def groups(self) -> Set[str]:
        """The groups that have rebalanced so far."""
        return set(self._by_group)

    def forget(self, groups: Set[str]) -> None:
        """Drop groups that were deleted or are coordinated elsewhere."""
        for group_id in groups:
            self._by_group.pop(group_id, None)
