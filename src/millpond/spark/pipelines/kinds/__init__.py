"""The built-in kinds of jobs, one file each. Declarations look them up in `KINDS`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from millpond.spark.pipelines.kind import Kind
from millpond.spark.pipelines.kinds import aggregate, archive, latest, quality, replay_work, sessions, skew
from millpond.spark.pipelines.tables import Job

_ALL: Final[tuple[Kind[Any], ...]] = (
    archive.KIND,
    aggregate.KIND,
    latest.KIND,
    sessions.KIND,
    quality.KIND,
    replay_work.KIND,
    skew.KIND,
)

KINDS: Final[Mapping[str, Kind[Any]]] = {kind.name: kind for kind in _ALL}
"""By their name in a declaration. Importing this imports every kind, so no kind imports pyspark at module level."""


def kind_of(job: Job) -> Kind[Any]:
    return KINDS[job.kind]
