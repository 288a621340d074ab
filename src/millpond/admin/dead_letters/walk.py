"""Read a topic's letters from the end backwards until time is up: the newest matter most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from millpond.admin.dead_letters.letters import Letter, LetterTopic
from millpond.admin.offsets import Bounds
from millpond.base.ids import TopicPartition

WINDOW_MAX: Final = 100_000
"""Limit on offsets read from a partition in one go."""


class BackwardWalk:
    """Reads one window of each partition per round, from the end backwards, with growing windows.

    Within a window, letters come in log order.
    """

    def __init__(
        self,
        topic: LetterTopic,
        bounds: Mapping[TopicPartition, Bounds],
        *,
        window: int,
        is_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_up` is polled to see whether time has run out."""
        self._topic = topic
        self._left = {each: bound for each, bound in bounds.items() if bound.start < bound.end}
        self._window = window
        self._time_is_up = is_up
        self.total = sum(bound.end - bound.start for bound in self._left.values())
        """Offsets in total; not every offset holds a letter."""
        self.looked = 0
        self._before = 0
        """Offsets already read before the current window."""
        self.is_whole = True
        """False: time ran out before the start of the partitions was reached."""

    def letters(self, is_enough: Callable[[int], bool] = lambda _: False) -> Iterator[Letter]:
        """Yield letters; `is_enough` is asked between windows whether a partition needs no further reading."""
        window = self._window
        while self._left:
            for partition, bound in list(self._left.items()):
                begin = max(bound.start, bound.end - window)
                self._before = self.looked
                for letter in self._topic.letters({partition: Bounds(begin, bound.end)}, self._note, self._is_up):
                    yield letter
                    if self._is_up():
                        self._note(letter.message.offset + 1 - begin)
                        return
                if not self.is_whole:
                    return
                self._note(bound.end - begin)
                if begin == bound.start or is_enough(partition.partition):
                    del self._left[partition]
                else:
                    self._left[partition] = Bounds(bound.start, begin)
                if self._left and self._is_up():
                    return
            window = min(window * 2, WINDOW_MAX)

    def _note(self, looked: int, _: int = 0) -> None:
        """Record the progress within the current window."""
        self.looked = self._before + looked

    def _is_up(self) -> bool:
        self.is_whole = self.is_whole and not self._time_is_up()
        return not self.is_whole
