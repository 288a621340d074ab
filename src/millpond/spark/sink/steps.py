"""The named steps of an exactly-once write, which tests can observe.

`MILLPOND_SPARK_STEPS=module:function` calls the function with each step's name, in the process that executes the
step: the tests use this to crash at each step.
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
    if _observer is not None:
        _observer(step.value)


def _load(name: str | None) -> Callable[[str], object] | None:
    if not name:
        return None
    module, _, function = name.partition(":")
    step: Callable[[str], object] = getattr(import_module(module), function)
    return step


_observer: Final = _load(os.environ.get(VARIABLE))
