"""Work on files that waits for readers to finish."""

from __future__ import annotations

from typing import Protocol


class DelayedJob(Protocol):
    """Work for a worker thread, some time from now."""

    @property
    def delay_ms(self) -> int: ...

    @property
    def is_tried_again(self) -> bool:
        """Whether its files have the same names for ever: others would be removed the next time."""
        ...

    def begin(self) -> bool:
        """On the loop, just before `run`: whether it is still wanted."""
        ...

    def run(self) -> None: ...

    def end(self, *, is_done: bool) -> None:
        """On the loop, after `run`."""
        ...
