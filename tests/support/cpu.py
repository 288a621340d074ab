"""What something takes of the processor, as far as a shared machine lets that be known."""

from __future__ import annotations

import time
from collections.abc import Callable

TRIES = 3


def least_seconds(work: Callable[[], object]) -> float:
    """The least of a few tries: what the host of a virtual machine takes for others counts as a thread's own time."""
    return min(_seconds(work) for _ in range(TRIES))


def _seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began
