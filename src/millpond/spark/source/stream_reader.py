"""`spark.readStream.format("millpond")`: chooses the offsets of the next batch, and detects lost ones.

Spark calls `latestOffset` only when every batch before is complete, so its `start` is what the query has finished.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from millpond.remote import offsets as cluster_offsets
from millpond.remote.cluster import Cluster
from millpond.spark.options import (
    COMMIT_GROUP,
    FAIL_ON_DATA_LOSS,
    MAX_OFFSETS_PER_TRIGGER,
    MAX_RECORDS_PER_PARTITION,
    MAX_TRIGGER_DELAY_MS,
    MIN_OFFSETS_PER_TRIGGER,
    MIN_PARTITIONS,
    Options,
)
from millpond.spark.source.admission import Gate, backlog, cap
from millpond.spark.source.data_loss import report_loss
from millpond.spark.source.first_contact import connect
from millpond.spark.source.group_progress import GroupProgress
from millpond.spark.source.offset_spec import Offsets, from_json, moves_with_time, starting, to_json
from millpond.spark.source.positions import resolve
from millpond.spark.source.ranges import split
from millpond.spark.source.stream_offsets import Span, StreamOffsets
from millpond.spark.source.subscription import look, subscription_of

if TYPE_CHECKING:
    import pyarrow as pa

IDLE_SECONDS: Final = 0.5
"""How long `latestOffset` waits for new records. Spark calls it again at once, up to fifty times a second."""
ASK_AGAIN_SECONDS: Final = 0.025


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options) -> None:
        self._options = options
        self._subscription = subscription_of(options)
        self._start = starting(options)
        self._offsets = StreamOffsets(self._subscription, options.isolation, fails=options[FAIL_ON_DATA_LOSS])
        group = options.get(COMMIT_GROUP)
        self._group = None if group is None else GroupProgress(group, options.kafka)
        offsets_min = options.get(MIN_OFFSETS_PER_TRIGGER)
        self._gate = None if offsets_min is None else Gate(offsets_min, options[MAX_TRIGGER_DELAY_MS], _now_ms)
        self._connected: Cluster | None = None
        self._initial: Offsets | None = None
        self._has_noted_initial = False
        self._latest: Offsets = {}
        self._is_available_now = False
        self._target: Offsets | None = None

    def __reduce__(self) -> tuple[type[StreamReader], tuple[Options]]:
        # Tasks get a copy of the reader and need only its options.
        return StreamReader, (self._options,)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        # Spark calls this twice for the first batch: when planning and when running it.
        if self._initial is None:
            self._initial = self._first_offsets()
        return to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        offsets_max, offsets_min = (
            self._options.get(MAX_OFFSETS_PER_TRIGGER),
            self._options.get(MIN_OFFSETS_PER_TRIGGER),
        )
        # Spark cannot combine the two; any limit but ReadAllAvailable means here that both options hold.
        if offsets_max is not None:
            return ReadMaxRows(offsets_max)
        return ReadAllAvailable() if offsets_min is None else ReadMinRows(offsets_min)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._is_available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        position = from_json(start)
        if self._group is not None:
            self._group.finished(position)
        if self._must_note_initial(position):
            return start
        span = self._offsets.available(self._cluster, position)
        deadline = time.monotonic() + IDLE_SECONDS
        while True:
            self._latest = span.ends
            chosen = self._choose(position, span, limit)
            if chosen != position or self._is_available_now or time.monotonic() >= deadline:
                return to_json(chosen)
            time.sleep(ASK_AGAIN_SECONDS)
            span = Span(span.starts, self._offsets.latest(self._cluster, span))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return to_json(self._latest) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        position, ends = from_json(start), from_json(end)
        if position == ends or self._is_initial_again(position, ends):
            return []
        parts = split(
            self._offsets.ranges(self._cluster, position, ends),
            tasks_min=self._options.get(MIN_PARTITIONS),
            offsets_max=self._options.get(MAX_RECORDS_PER_PARTITION),
        )
        return [InputPartition(each) for each in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from millpond.spark.source.range_reader import read_rows

        return read_rows(self._options, partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        if self._group is not None:
            self._group.finished(from_json(end))

    def stop(self) -> None:
        if self._connected is not None:
            self._connected.close()
        if self._group is not None:
            self._group.close()

    @property
    def _cluster(self) -> Cluster:
        if self._connected is None:
            self._connected = connect(self._options)
        return self._connected

    def _first_offsets(self) -> Offsets:
        partitions = look(self._cluster, self._subscription, all_must_exist=True).partitions
        starts = resolve(self._cluster, self._start, partitions, self._options.isolation)
        earliest = cluster_offsets.earliest(self._cluster, partitions)
        latest = cluster_offsets.latest(self._cluster, partitions)
        for partition, offset in starts.items():
            if not earliest[partition] <= offset <= latest[partition]:
                report_loss(
                    f"{partition}: the query was to start at offset {offset}, the log has {earliest[partition]} to "
                    f"{latest[partition]}",
                    fails=self._options[FAIL_ON_DATA_LOSS],
                )
                starts[partition] = earliest[partition]
        return starts

    def _must_note_initial(self, position: Offsets) -> bool:
        """Whether the first batch should be an empty one that ends where the query starts.

        Spark stores the end of each batch but not the start of the first: after a crash it asks again, and "latest"
        would be a later offset by then. The records in between would never be read.
        """
        if self._has_noted_initial or position != self._initial or not moves_with_time(self._start):
            return False
        self._has_noted_initial = True
        self._latest = position
        return True

    def _is_initial_again(self, position: Offsets, ends: Offsets) -> bool:
        """Whether this repeats the empty first batch after a crash: it ends where the query started."""
        return (
            not self._has_noted_initial
            and position == self._initial
            and moves_with_time(self._start)
            and all(end <= position.get(partition, 0) for partition, end in ends.items())
        )

    def _choose(self, position: Offsets, span: Span, limit: ReadLimit) -> Offsets:
        """The end of the next batch; `begun` itself for none."""
        starts, ends = span.starts, self._until_target(position, span)
        if not backlog(starts, ends):
            return position if ends.keys() == position.keys() and starts == position else ends
        if isinstance(limit, ReadAllAvailable):
            return self._distinct(position, ends)
        if self._gate is not None and not self._is_available_now and not self._gate.opens(starts, ends):
            return position
        offsets_max = self._options.get(MAX_OFFSETS_PER_TRIGGER)
        return self._distinct(position, ends if offsets_max is None else cap(starts, ends, offsets_max))

    def _until_target(self, position: Offsets, span: Span) -> Offsets:
        """The ends; with Trigger.AvailableNow, at most those at the query's start."""
        if not self._is_available_now:
            return span.ends
        if self._target is None:
            self._target = span.ends
        return {
            partition: min(end, self._target.get(partition, span.starts[partition]))
            for partition, end in span.ends.items()
        }

    def _distinct(self, position: Offsets, ends: Offsets) -> Offsets:
        """An end that differs from the start: a recreated topic may end exactly at the old position."""
        return {
            partition: end - 1 if self._offsets.begins_again(partition) and end == position[partition] else end
            for partition, end in ends.items()
        }


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
