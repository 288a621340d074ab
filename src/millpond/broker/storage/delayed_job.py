"""Jobs on files that are delayed so that readers can finish."""

from __future__ import annotations

from typing import Protocol


class DelayedJob(Protocol):
    """A job that runs on a worker after a delay."""

    @property
    def folder(self) -> str:
        """The folder whose files it changes."""
        ...

    @property
    def delay_ms(self) -> int: ...

    @property
    def is_tried_again(self) -> bool:
        """Whether to retry after a failure. Not if its file names may be reused: a retry could remove new files."""
        ...

    def begin(self) -> bool:
        """Called on the event loop just before `run`; returns whether the job is still wanted."""
        ...

    def run(self) -> None: ...

    def end(self, *, is_done: bool) -> None:
        """Called on the event loop after `run`."""
        ...
