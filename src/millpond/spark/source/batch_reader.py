"""`spark.read.format("millpond")`: a fixed range of every partition, planned on the driver and read by tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from millpond.remote import offsets as cluster_offsets
from millpond.remote.cluster import Cluster
from millpond.spark.options import (
    FAIL_ON_DATA_LOSS,
    MAX_RECORDS_PER_PARTITION,
    MIN_PARTITIONS,
    OptionError,
    Options,
)
from millpond.spark.source.data_loss import report_loss
from millpond.spark.source.first_contact import connect
from millpond.spark.source.offset_spec import check_order, ending, starting
from millpond.spark.source.positions import resolve
from millpond.spark.source.ranges import Range, split
from millpond.spark.source.subscription import look, subscription_of

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    def __init__(self, options: Options) -> None:
        self._options = options
        self._subscription = subscription_of(options)
        self._start = starting(options)
        self._end = ending(options)
        check_order(self._start, self._end)

    def partitions(self) -> list[InputPartition]:
        with connect(self._options) as cluster:
            ranges = self._ranges(cluster)
        return [
            InputPartition(each)
            for each in split(
                ranges,
                tasks_min=self._options.get(MIN_PARTITIONS),
                offsets_max=self._options.get(MAX_RECORDS_PER_PARTITION),
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from millpond.spark.source.range_reader import read_rows

        return read_rows(self._options, partition.value)

    def _ranges(self, cluster: Cluster) -> list[Range]:
        subscribed = look(cluster, self._subscription, all_must_exist=True)
        partitions = subscribed.partitions
        isolation = self._options.isolation
        starts = resolve(cluster, self._start, partitions, isolation)
        ends = resolve(cluster, self._end, partitions, isolation)
        earliest = cluster_offsets.earliest(cluster, partitions)
        # Not the LSO, even for read_committed: records of an open transaction count, and the tasks wait for its end.
        latest = cluster_offsets.latest(cluster, partitions)
        return [
            self._clipped(
                Range(partition, starts[partition], ends[partition], subscribed.ids[partition.topic]),
                earliest[partition],
                latest[partition],
            )
            for partition in partitions
        ]

    def _clipped(self, requested: Range, earliest: int, latest: int) -> Range:
        """The range clipped to the log; the rest is lost. A start after the end is an error, not a loss."""
        start, end = requested.start, requested.end
        if start > end:
            raise OptionError(
                f"{requested.partition} would be read from offset {start} to {end}: the start is after the end"
            )
        if start > latest:
            raise OptionError(
                f"{requested.partition} would be read from offset {start}, but it ends at {latest}: start earlier"
            )
        if start < earliest or end > latest:
            report_loss(
                f"{requested.partition}: offsets {start} to {end} were to be read, "
                f"the log has {earliest} to {latest}",
                fails=self._options[FAIL_ON_DATA_LOSS],
            )
        return replace(requested, start=max(start, earliest), end=min(end, latest))
