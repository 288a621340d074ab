"""Which topics have changed since a given change, for groups that process the changes one after the other."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Final

NAMES_KEPT: Final = 10_000


class TopicChanges:
    """Changes are numbered from 1. Those that all groups have seen are dropped, and so are the oldest if there are
    too many."""

    def __init__(self) -> None:
        self.count = 0
        """The number of the latest change."""
        self._names: OrderedDict[str, int] = OrderedDict()
        """Each with its latest change, in that order."""
        self._forgotten = 0
        """The latest change of which some names are lost."""

    def note(self, names: Iterable[str]) -> None:
        self.count += 1
        for name in names:
            self._names[name] = self.count
            self._names.move_to_end(name)
        while len(self._names) > NAMES_KEPT:
            _, self._forgotten = self._names.popitem(last=False)

    def since(self, number: int) -> Collection[str] | None:
        """The topics that have changed after this change; None if that is no longer known."""
        if number < self._forgotten:
            return None
        # A deterministic order with fast membership tests.
        names: dict[str, None] = {}
        for name in reversed(self._names):
            if self._names[name] <= number:
                break
            names[name] = None
        return names

    def forget(self) -> None:
        """All groups have seen all changes: drop the names."""
        self._names.clear()
        self._forgotten = self.count
