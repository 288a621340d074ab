"""`millpond.arrow`: the records of topics as a stream of Arrow batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, Literal

import pyarrow as pa

from millpond.analysis.cluster_settings import cluster_settings
from millpond.analysis.layout import Bad, Layout
from millpond.analysis.parallel import THREADS_MAX, ParallelReader, Progress
from millpond.analysis.ranges import Bound, find_ranges, topic_names
from millpond.analysis.values import find_form
from millpond.remote.cluster import Cluster
from millpond.remote.errors import ConfigError
from millpond.remote.offsets import ISOLATION_LEVELS, Isolation

THREADS_LIMIT: Final = 64


def arrow(
    topics: str | Sequence[str],
    *,
    bootstrap: str | None = None,
    profile: str | None = None,
    client_config: str | None = None,
    settings: Mapping[str, str] | None = None,
    partitions: Collection[int] | None = None,
    start: Bound = None,
    end: Bound = None,
    last: int | None = None,
    value: str | None = None,
    schema: str | None = None,
    key: Literal["bytes", "text"] = "bytes",
    columns: Sequence[str] | None = None,
    bad: Bad = "fail",
    isolation: Isolation = "read_committed",
    threads: int | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> pa.RecordBatchReader:
    """The records of one or more topics, up to their present end, as a stream of record batches.

    The columns are topic, partition, offset, timestamp, key, value and headers. With `value="json"`, `value="avro"`
    or a schema, the fields of the value are columns instead, and the record's own have a leading underscore.

    `start` and `end` (exclusive) are an offset, `-N` for the last N of each partition, a datetime, a timedelta for a
    time ago, text as "5m" or "2026-01-31T08:30", or a dictionary of offsets by partition; `last=N` is `start=-N`. A
    time is the first record that is not older. Only `columns` are made, and only they are parsed. A value that does
    not parse is an error; with `bad="null"` its row stays, with the reason in `_fault`. `progress` is called between
    batches; what it raises ends the read.

    `pandas`: `millpond.arrow(…).read_pandas()`; Polars: `polars.from_arrow(millpond.arrow(…).read_all())`; DuckDB:
    `duckdb.from_arrow(millpond.arrow(…))`. See docs/analysis.md.
    """
    names = topic_names(topics)
    _check_choice("key", key, ("bytes", "text"))
    _check_choice("bad", bad, ("fail", "null"))
    _check_choice("isolation", isolation, tuple(ISOLATION_LEVELS))
    if threads is not None and not 1 <= threads <= THREADS_LIMIT:
        raise ConfigError(f"threads={threads} is not 1 to {THREADS_LIMIT}")
    chosen = cluster_settings(bootstrap, client_config, settings, profile)
    with Cluster(chosen) as cluster:
        ranges = find_ranges(
            cluster, names, partitions=partitions, start=start, end=end, last=last, isolation=isolation
        )
        form = find_form(cluster, names, value, schema, isolation)
    layout = Layout(form, key_is_text=key == "text", bad=bad, columns=columns)
    reader = ParallelReader(chosen, ranges, layout, isolation, threads or min(THREADS_MAX, os.cpu_count() or 1))
    return pa.RecordBatchReader.from_batches(layout.schema, _batches(reader, progress))


def _batches(reader: ParallelReader, progress: Callable[[Progress], object] | None) -> Iterator[pa.RecordBatch]:
    for batch, now in reader.batches():
        if progress is not None:
            progress(now)
        if batch is not None:
            yield batch


def _check_choice(name: str, chosen: str, choices: Sequence[str]) -> None:
    if chosen not in choices:
        raise ConfigError(f"{name}={chosen!r} is none of {', '.join(choices)}")
