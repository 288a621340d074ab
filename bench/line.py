"""Rows and lines of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bench.measure import Plan
from bench.noise import LOOP, Measured


class LeftOut(Exception):
    """It cannot be measured here; the message says why."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table; `prototype` has the figures of the same name that a bare prototype reached."""

    title: str
    figures: Measured
    prototype: Measured = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """`bound` is the limit of the machine that its speed follows."""

    name: str
    run: Callable[[Plan], list[Line]]
    bound: str = LOOP
