"""Measures CPU time, as far as a shared machine allows."""

from __future__ import annotations

import time
from collections.abc import Callable

TRIES = 3

REFERENCE_SECONDS = 0.0006
"""What `_reference` takes on the machine that the tests' limits are meant for."""


def least_seconds(work: Callable[[], object]) -> float:
    """The minimum of a few tries: CPU time that the hypervisor gives to other guests counts as the thread's own.

    On a machine slower than the reference, scaled to the reference.
    """
    return min(_seconds(work) for _ in range(TRIES)) / slowness()


def slowness() -> float:
    """How many times slower this machine is than the reference at present; 1 if it is faster."""
    return max(min(_seconds(_reference) for _ in range(5)) / REFERENCE_SECONDS, 1.0)


def _reference() -> list[str]:
    numbers = {str(number): number for number in range(4_000)}
    return sorted(numbers)


def _seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began
