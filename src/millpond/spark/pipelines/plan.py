"""A planned job: what starts it, and what the runner then watches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias


class Query(Protocol):
    """What the runner watches: Spark's StreamingQuery, or background work."""

    @property
    def isActive(self) -> bool: ...  # noqa: N802

    @property
    def lastProgress(self) -> Any: ...  # noqa: N802

    def exception(self) -> Any: ...

    def stop(self) -> None: ...


Plan: TypeAlias = Callable[[], Query]
"""Starts a job whose columns and SQL Spark has accepted. No job is started before all are planned."""
