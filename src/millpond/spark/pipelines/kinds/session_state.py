"""The state of sessions that not only a gap ends: events are buffered until the watermark has passed them, then
processed in event-time order. The sessions are therefore independent of the order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql import Row
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import DecimalType, IntegralType, LongType, StructField, StructType

from millpond.spark.pipelines.kinds.columns import EVENT_TIME, aliased, quote
from millpond.spark.pipelines.kinds.session_folds import END, EVENTS, START, Fold
from millpond.spark.pipelines.values import Duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

Event: TypeAlias = tuple[Any, ...]
"""Time (microseconds), whether it ends the session, and the inputs of the measures."""
Session: TypeAlias = tuple[Any, ...]
"""First and last time (microseconds), number of events, and the measures so far."""


@dataclass(frozen=True)
class Rules:
    """When a session ends, and how its measures are aggregated."""

    gap_us: int
    longest_us: int | None
    functions: tuple[str, ...]

    def take(self, session: Session | None, events: Sequence[Event]) -> tuple[Session | None, list[Session]]:
        """Process events in event-time order; return the session that is still open, and those that have ended."""
        ended: list[Session] = []
        for event in events:
            # As in Spark's session windows, an event exactly at the end of the gap still belongs to the session.
            if session is not None and event[0] > self.end_us(session):
                ended.append(session)
                session = None
            session = self._begin(event) if session is None else self._extend(session, event)
            if event[1]:
                ended.append(session)
                session = None
        return session, ended

    def end_us(self, session: Session) -> int:
        """The latest time of an event that still belongs to the session."""
        by_gap: int = session[1] + self.gap_us
        return by_gap if self.longest_us is None else min(by_gap, session[0] + self.longest_us)

    def _begin(self, event: Event) -> Session:
        return (
            event[0],
            event[0],
            1,
            *[_first_value(function, each) for function, each in zip(self.functions, event[2:], strict=True)],
        )

    def _extend(self, session: Session, event: Event) -> Session:
        folded = [_fold(*each) for each in zip(self.functions, session[3:], event[2:], strict=True)]
        return (session[0], event[0], session[2] + 1, *folded)


def _first_value(function: str, value: Any) -> Any:
    return int(value is not None) if function == "count" else value


def _fold(function: str, current: Any, value: Any) -> Any:
    """As in SQL, nulls are ignored, except by first and last."""
    match function:
        case "first":
            return current
        case "last":
            return value
        case "count":
            return current + (value is not None)
    if value is None or current is None:
        return current if value is None else value
    return current + value if function == "sum" else min(current, value) if function == "min" else max(current, value)


class Keeper(StatefulProcessor):
    """The session state of one key: the events that wait for the watermark, and the open session."""

    def __init__(self, rules: Rules, event_schema: StructType, session_schema: StructType, names: list[str]) -> None:
        self.rules = rules
        self.event_schema = event_schema
        self.session_schema = session_schema
        self.names = names
        """The names of the output columns."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.waiting = handle.getListState("waiting", self.event_schema)
        self.open = handle.getValueState("open", self.session_schema)
        self.timer = handle.getValueState("timer", "due_ms long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        width = len(self.event_schema)
        # The columns of the event are the last ones, after the key and the time.
        events = [tuple(row)[-width:] for row in rows]
        self.waiting.appendList(events)
        self._wake_at(min(event[0] for event in events))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        now_us = timerValues.getCurrentWatermarkInMs() * 1000
        events = sorted(self.waiting.get(), key=lambda event: event[0])
        ready = [event for event in events if event[0] <= now_us]
        rest = events[len(ready) :]
        session, ended = self.rules.take(self.open.get(), ready)
        if session is not None and self.rules.end_us(session) <= now_us:
            ended.append(session)
            session = None
        self._keep(rest, session)
        return iter([Row(**dict(zip(self.names, (*key, *each), strict=True))) for each in ended])

    def _keep(self, rest: list[Event], session: Session | None) -> None:
        self.timer.clear()
        if rest:
            self.waiting.put(rest)
            self._wake_at(rest[0][0])
        else:
            self.waiting.clear()
        if session is not None:
            self.open.update(session)
            self._wake_at(self.rules.end_us(session))
        else:
            self.open.clear()

    def _wake_at(self, time_us: int) -> None:
        """Each key has one timer, set to the earliest time needed."""
        due_ms = -(-time_us // 1000)
        due = self.timer.get()
        if due is not None and due[0] <= due_ms:
            return
        if due is not None:
            self.handle.deleteTimer(due[0])
        self.handle.registerTimer(due_ms)
        self.timer.update((due_ms,))

    def close(self) -> None:
        pass


def sessions_with_state(
    timed: DataFrame,
    key: Mapping[str, str],
    folds: tuple[Fold, ...],
    *,
    gap: Duration,
    longest: Duration | None,
    ends_when: str,
) -> DataFrame:
    """One row for each session of a stream with `_event_time`."""
    parts = [f"_part_{number}" for number in range(len(folds))]
    ends = f.coalesce(f.expr(ends_when), f.lit(False)) if ends_when else f.lit(False)
    events = timed.select(
        *aliased(key),
        f.col(EVENT_TIME),
        f.unix_micros(EVENT_TIME).alias("_at"),
        ends.alias("_ends"),
        *[f.expr(fold.sql).alias(part) for fold, part in zip(folds, parts, strict=True)],
    )
    schema = events.schema
    event_schema = StructType([schema["_at"], schema["_ends"], *[schema[part] for part in parts]])
    measures = [_measure_field(fold, schema[part]) for fold, part in zip(folds, parts, strict=True)]
    times = [StructField(START, LongType()), StructField(END, LongType()), StructField(EVENTS, LongType())]
    session_schema = StructType([*times, *measures])
    output = StructType([*[schema[name] for name in key], *session_schema])
    rules = Rules(gap.ms * 1000, longest.ms * 1000 if longest else None, tuple(x.function for x in folds))
    rows = events.groupBy(*[quote(name) for name in key]).transformWithState(
        Keeper(rules, event_schema, session_schema, output.names), output, "append", "EventTime"
    )
    return reduce(lambda frame, name: frame.withColumn(name, f.timestamp_micros(name)), (START, END), rows)


def _measure_field(fold: Fold, part: StructField) -> StructField:
    """The type of a measure: a sum or count may exceed the type of its input."""
    kind = part.dataType
    if fold.function == "count" or (fold.function == "sum" and isinstance(kind, IntegralType)):
        kind = LongType()
    elif fold.function == "sum" and isinstance(kind, DecimalType):
        kind = DecimalType(38, kind.scale)
    return StructField(fold.name, kind)
