"""Progress of a pipeline: figures of every job, from its query's progress reports.

`JobWatch` turns progress into figures and adds up what Spark reports per batch. A `Snapshot` has all figures at one
point in time: the live table, status.json and the metrics all show the same snapshot.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from millpond.spark.pipelines.plan import Query

State = Literal["starting", "running", "waiting", "finished", "stopping", "stopped", "failed"]
"""A `waiting` job has read everything; a `finished` one was set to end at that point."""

IDLE_SECONDS: Final = 5.0
"""Rates older than this are not current."""

Ends = Mapping[str, Mapping[int, int]]
"""The end of the log by topic and partition."""


@dataclass(frozen=True, slots=True)
class JobFigures:
    """A job at one moment. None means unknown."""

    name: str
    kind: str
    state: State = "starting"
    batch: int | None = None
    input_per_second: float | None = None
    done_per_second: float | None = None
    lag: int | None = None
    batch_ms: int | None = None
    rows_in: int = 0
    rows_out: int | None = None
    bad: int | None = None
    late: int | None = None
    """Late rows that were dropped by the watermark."""
    state_rows: int | None = None
    watermark: str | None = None
    figures: Mapping[str, int | float | str] = field(default_factory=dict)
    """Figures reported by the job."""
    writes: Mapping[str, str] = field(default_factory=dict)
    """The target of its rows: {"table": "…"} or {"topic": "…"}."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A pipeline at one moment."""

    name: str
    state: State
    pid: int
    started_ms: int
    at_ms: int
    jobs: tuple[JobFigures, ...] = ()
    master: str = ""
    source: str = ""
    folder: str = ""
    log: str = ""
    """Spark's own log."""
    metrics: str = ""
    """Where the metrics are served."""
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    """New records in each dead-letter topic during the run."""
    error: str | None = None

    def as_object(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_object(cls, raw: Mapping[str, Any]) -> Snapshot:
        """The inverse of `as_object`; unknown keys of other versions are ignored."""
        jobs = tuple(JobFigures(**_fields_of(JobFigures, each)) for each in raw.get("jobs", ()))
        return cls(**_fields_of(cls, raw) | {"jobs": jobs})


def _fields_of(kind: type, raw: Mapping[str, Any]) -> dict[str, Any]:
    names = kind.__dataclass_fields__  # type: ignore[attr-defined]
    return {key: each for key, each in raw.items() if key in names}


class JobWatch:
    """Follows one job's query. Totals count from its start."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.kind = name, kind
        self.figures: dict[str, int | float | str] = {}
        self._last: dict[str, Any] = {}
        self._last_batch: dict[str, Any] = {}
        """The last progress of a finished batch; Spark also reports progress while idle."""
        self._progress_at = 0.0
        self._last_mark: tuple[Any, ...] = ()
        self._rows_in = 0
        self._rows_out: int | None = None
        self._late: int | None = None
        self._observed: dict[str, int] = {}

    def look(self, query: Query, ends: Ends | None = None) -> JobFigures:
        """Read new progress and return the figures."""
        for progress in self._new(query):
            self._take(progress)
        return self._figures_of(query, ends)

    def _new(self, query: Query) -> Iterator[dict[str, Any]]:
        last = as_dict(query.lastProgress)
        if last is None or _mark(last) == self._last_mark:
            return
        # Batches between two calls are still in recentProgress.
        recent = [each for each in map(as_dict, getattr(query, "recentProgress", None) or ()) if each is not None]
        marks = [_mark(each) for each in recent]
        start = marks.index(self._last_mark) + 1 if self._last_mark in marks else 0
        self._last_mark = _mark(last)
        self._progress_at = time.monotonic()
        yield from recent[start:] or [last]

    def _take(self, progress: dict[str, Any]) -> None:
        self._last = progress
        if is_idle(progress):
            return
        self._last_batch = progress
        self._rows_in += progress.get("numInputRows") or 0
        out = (progress.get("sink") or {}).get("numOutputRows")
        if out is not None and out >= 0:
            self._rows_out = (self._rows_out or 0) + out
        for operator in progress.get("stateOperators") or ():
            self._late = (self._late or 0) + (operator.get("numRowsDroppedByWatermark") or 0)
        for row in (progress.get("observedMetrics") or {}).values():
            for name, number in row.items():
                if isinstance(number, int) and not isinstance(number, bool):
                    self._observed[name] = self._observed.get(name, 0) + number

    def _figures_of(self, query: Query, ends: Ends | None) -> JobFigures:
        last, last_batch = self._last, self._last_batch
        operators = last.get("stateOperators") or ()
        is_fresh = time.monotonic() - self._progress_at < IDLE_SECONDS + _seconds(last)
        lag = lag_of(last, ends)
        error = query.exception()
        observed = dict(self._observed)
        observed_out = observed.pop("rows_out", None)
        return JobFigures(
            name=self.name,
            kind=self.kind,
            state=_state(query, last, lag, error is not None),
            batch=last_batch.get("batchId"),
            input_per_second=_rate(last.get("inputRowsPerSecond")) if is_fresh else 0.0 if last else None,
            done_per_second=_rate(last.get("processedRowsPerSecond")) if is_fresh else 0.0 if last else None,
            lag=lag,
            batch_ms=(last_batch.get("durationMs") or {}).get("triggerExecution"),
            rows_in=self._rows_in,
            rows_out=observed_out if observed_out is not None else self._rows_out,
            bad=observed.pop("bad", None),
            late=self._late,
            state_rows=sum(each.get("numRowsTotal") or 0 for each in operators) if operators else None,
            watermark=(last.get("eventTime") or {}).get("watermark"),
            figures=observed | self.figures,
        )


def as_dict(progress: Any) -> dict[str, Any] | None:
    """Progress as plain values, for any Spark version."""
    if progress is None:
        return None
    text = getattr(progress, "json", None)
    fields: dict[str, Any] = json.loads(text) if isinstance(text, str) else dict(progress)
    return fields


def is_idle(progress: Mapping[str, Any]) -> bool:
    """Whether this progress report is not about a batch. A batch that only closes windows reads no rows, but is not
    idle."""
    spent = progress.get("durationMs")
    return spent is not None and "addBatch" not in spent


def _mark(progress: Mapping[str, Any]) -> tuple[Any, ...]:
    return progress.get("batchId"), progress.get("timestamp"), progress.get("numInputRows")


def _seconds(progress: Mapping[str, Any]) -> float:
    return float((progress.get("durationMs") or {}).get("triggerExecution") or 0) / 1000


def _rate(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _state(query: Query, last: Mapping[str, Any], lag: int | None, has_failed: bool) -> State:
    if has_failed:
        return "failed"
    if not query.isActive:
        return "finished"
    if not last:
        # The first batch may take long and has no progress before its end.
        status = getattr(query, "status", None) or {}
        return "running" if status.get("isDataAvailable") else "starting"
    return "waiting" if not last.get("numInputRows") and not lag else "running"


def lag_of(progress: Mapping[str, Any], ends: Ends | None = None) -> int | None:
    """The job's lag in records: for every source, from its last finished offset to the newest known end (`ends` from
    the cluster, or the source's own latest offset)."""
    total: int | None = None
    for source in progress.get("sources") or ():
        done = read_offsets(source.get("endOffset"))
        latest = read_offsets(source.get("latestOffset"))
        if not done:
            continue
        for topic, partitions in done.items():
            for partition, offset in partitions.items():
                known_ends = [
                    where[topic][partition]
                    for where in (latest, ends or {})
                    if topic in where and partition in where[topic]
                ]
                if known_ends:
                    total = (total or 0) + max(0, max(known_ends) - offset)
        total = _unread_partitions(done, latest, ends or {}, total)
    return total


def _unread_partitions(done: Ends, latest: Ends, ends: Ends, total: int | None) -> int | None:
    """New partitions that no batch has read: all of their records are lag."""
    new: dict[tuple[str, int], int] = {}
    for where in (latest, ends):
        for topic in where.keys() & done.keys():
            for partition, end in where[topic].items():
                if partition not in done[topic]:
                    new[topic, partition] = max(end, new.get((topic, partition), 0))
    return (total or 0) + sum(new.values()) if new else total


def read_offsets(text: Any) -> dict[str, dict[int, int]]:
    """Offsets as the source writes them, {"topic": {"0": 5}}; empty if they are anything else."""
    try:
        offsets = json.loads(text) if isinstance(text, str) else text
        return {topic: {int(at): int(offset) for at, offset in each.items()} for topic, each in offsets.items()}
    except (ValueError, AttributeError, TypeError):
        return {}
