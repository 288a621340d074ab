"""Spark reads topics, writes topics and tables, and runs pipelines between them.

`import millpond.spark` before the session is created makes Spark's workers use this Python, which has the formats
`millpond` and `millpond_delta`. The names exported here are for pipelines in Python:

    from millpond.spark import Archive, Parse, Pipeline, Source

    Pipeline(
        name="orders",
        source=Source(topic="orders"),
        parse=Parse(format="json", schema="id long, at timestamp, total double"),
        jobs=[Archive(table="lake/orders")],
    ).run()

Names are loaded on first use; pyspark itself only when a session is created.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from millpond.spark.pipelines.worker_python import be_sparks_python

_DECLARED: Final = ("DeclarationError", "Duration", "Parse", "Pipeline", "Source", "SparkSettings", "Transform")
_HOMES: Final = {
    **dict.fromkeys(_DECLARED, "millpond.spark.pipelines.declaration"),
    "Aggregate": "millpond.spark.pipelines.kinds.aggregate",
    "Archive": "millpond.spark.pipelines.kinds.archive",
    "Latest": "millpond.spark.pipelines.kinds.latest",
    "Quality": "millpond.spark.pipelines.kinds.quality",
    "Replay": "millpond.spark.pipelines.kinds.replay",
    "Sessions": "millpond.spark.pipelines.kinds.sessions",
    "Skew": "millpond.spark.pipelines.kinds.skew",
    "SessionError": "millpond.spark.pipelines.session",
    "make_session": "millpond.spark.pipelines.session",
    "PipelineFailed": "millpond.spark.pipelines.runner",
}

__all__ = sorted(_HOMES)

be_sparks_python()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    exported = getattr(import_module(_HOMES[name]), name)
    globals()[name] = exported
    return exported


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
