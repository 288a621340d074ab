"""The ready-made kinds of jobs, one file each. `KINDS` is the table that declarations are read by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from millpond.spark.pipelines.kind import Context, Job, Kind, Query, Report
from millpond.spark.pipelines.kinds import aggregate, archive, latest, quality, replay, sessions, skew

__all__ = ["KINDS", "Context", "Job", "Kind", "Query", "Report"]

_ALL: Final[tuple[Kind[Any], ...]] = (
    archive.KIND,
    aggregate.KIND,
    latest.KIND,
    sessions.KIND,
    quality.KIND,
    replay.KIND,
    skew.KIND,
)

KINDS: Final[Mapping[str, Kind[Any]]] = {kind.name: kind for kind in _ALL}
"""By their name in a declaration. Importing this imports every kind, and no kind imports pyspark at its head."""
