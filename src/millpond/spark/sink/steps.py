"""The steps of an exactly-once write, named where they are done, so that any of them can be watched.

`MILLPOND_SPARK_STEPS=module:function` has the function called with each step's name, in whatever process does it: the
tests make each step the last one that way.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from importlib import import_module
from typing import Final

VARIABLE: Final = "MILLPOND_SPARK_STEPS"


class Step(Enum):
    OPENED = "task: transaction opened"
    FLUSHED = "task: rows flushed"
    CHECKED = "driver: transactions checked"
    DECIDED = "driver: decision recorded"
    ENDED_SOME = "driver: some transactions ended"
    ENDED_ALL = "driver: all transactions ended"
    ABORTED = "driver: batch given up"


def done(step: Step) -> None:
    if _witness is not None:
        _witness(step.value)


def _load(name: str | None) -> Callable[[str], object] | None:
    if not name:
        return None
    module, _, function = name.partition(":")
    step: Callable[[str], object] = getattr(import_module(module), function)
    return step


_witness: Final = _load(os.environ.get(VARIABLE))
