"""What something takes of the processor, as far as a shared machine lets that be known."""

from __future__ import annotations

import time
from collections.abc import Callable

TRIES = 3

REFERENCE_SECONDS = 0.0006
"""What `_reference` takes on the machine for which the limits of tests are meant."""


def least_seconds(work: Callable[[], object]) -> float:
    """The least of a few tries: what the host of a virtual machine takes for others counts as a thread's own time.

    On a slower machine than the reference, what it would have taken there.
    """
    return min(_seconds(work) for _ in range(TRIES)) / slowness()


def slowness() -> float:
    """How many times longer than the reference machine this one takes at present; 1 where it is faster."""
    return max(min(_seconds(_reference) for _ in range(5)) / REFERENCE_SECONDS, 1.0)


def _reference() -> list[str]:
    numbers = {str(number): number for number in range(4_000)}
    return sorted(numbers)


def _seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began
