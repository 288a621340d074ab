"""Read one range as Arrow batches in a task, over connections that the worker process reuses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from millpond.base.ids import TopicPartition
from millpond.client.errors import ClientError
from millpond.columns.batches import arrow_batches
from millpond.remote.cluster import Cluster
from millpond.remote.errors import OffsetsGone
from millpond.remote.reader import FETCH_BYTES, PATIENCE_SECONDS, RawBatch, read_range
from millpond.spark.options import (
    FAIL_ON_DATA_LOSS,
    INCLUDE_HEADERS,
    POLL_TIMEOUT_MS,
    VALUE_FORMAT,
    OptionError,
    Options,
)
from millpond.spark.source.data_loss import confirm, may_be_gone, report_loss, was_recreated
from millpond.spark.source.ranges import Range

if TYPE_CHECKING:
    import pyarrow as pa

FETCH_SETTING: Final = "max.partition.fetch.bytes"
FETCH_BYTES_MAX: Final = 256 << 20

_idle: Final[dict[frozenset[tuple[str, str]], list[Cluster]]] = defaultdict(list)
"""Idle connections of this worker process, which Spark reuses for many tasks."""


@contextmanager
def pooled_cluster(settings: Mapping[str, str]) -> Iterator[Cluster]:
    """A cluster for one task. After an error its connections are closed."""
    idle = _idle[frozenset(settings.items())]
    cluster = idle.pop() if idle else Cluster(settings)
    try:
        yield cluster
    except BaseException:
        cluster.close()
        raise
    idle.append(cluster)


def read_rows(options: Options, work: object) -> Iterator[pa.RecordBatch]:
    """The rows of one range. `work` comes from planning; None if the plan is empty."""
    if work is None:
        return
    _check(work)
    assert isinstance(work, Range)
    with pooled_cluster(options.kafka) as cluster:
        if options[VALUE_FORMAT] == "raw":
            yield from _batches(cluster, options, work, with_headers=options[INCLUDE_HEADERS])
            return
        from millpond.spark.bad_records import Sieve

        sieve = Sieve(options)
        with_headers = options[INCLUDE_HEADERS] or sieve.needs_headers
        for batch in _batches(cluster, options, work, with_headers=with_headers):
            for part in sieve.parts(batch):
                sifted = sieve.sift(part, *work.partition)
                if sifted.num_rows:
                    yield sifted
        sieve.flush()


def _batches(cluster: Cluster, options: Options, work: Range, *, with_headers: bool) -> Iterator[pa.RecordBatch]:
    raw = _raw_batches(cluster, options, work)
    return arrow_batches(raw, work.partition, work.end, with_headers=with_headers)


def _raw_batches(cluster: Cluster, options: Options, work: Range) -> Iterator[tuple[int, RawBatch]]:
    """The range's batches as fetched, each with its first offset to use.

    If part of the range is gone and failOnDataLoss=false, only the rest.
    """
    fails = options[FAIL_ON_DATA_LOSS]
    if (lost := _why_gone(cluster, work)) is not None:
        report_loss(lost, fails=fails)
        return
    at, end = work.start, work.end
    poll_timeout_ms = options.get(POLL_TIMEOUT_MS)
    while at < end:
        try:
            for batch in read_range(
                cluster,
                work.partition,
                at,
                end,
                isolation=options.isolation,
                fetch_bytes=_fetch_bytes(options),
                patience_seconds=PATIENCE_SECONDS if poll_timeout_ms is None else poll_timeout_ms / 1000,
            ):
                first, at = at, max(at, batch.header.next_offset)
                yield first, batch
            return
        except OffsetsGone as gone:
            report_loss(
                f"{work.partition}: offsets {at} to {end} were to be read, the log has {gone.earliest} to "
                f"{gone.latest}",
                fails=fails,
            )
            at, end = max(at, gone.earliest), min(end, gone.latest)
        except ClientError as fault:
            if not may_be_gone(fault) or (lost := _why_gone(cluster, work)) is None:
                raise
            report_loss(lost, fails=fails)
            return


def _why_gone(cluster: Cluster, work: Range) -> str | None:
    """The reason if the range's topic or partition is gone; None while the cluster has it."""
    topic, index = work.partition
    info = confirm(
        lambda: cluster.topics([topic]).get(topic),
        lambda seen: seen is not None and index in seen.partitions,
    )
    if info is None or index not in info.partitions:
        return f"{work.partition} is gone, its offsets {work.start} to {work.end} were to be read"
    if was_recreated(work.topic_id, info.topic_id):
        return f"{work.partition} was recreated, offsets {work.start} to {work.end} of the old one were to be read"
    return None


def _check(work: object) -> None:
    match work:
        case Range(TopicPartition(str(), int()), int(start), int(end)) if 0 <= start <= end:
            return
    raise ClientError(
        f"a task was given {work!r} instead of a range of offsets: is this another version of millpond?"
    )


def _fetch_bytes(options: Options) -> int:
    given = options.kafka.get(FETCH_SETTING)
    if given is None:
        return FETCH_BYTES
    if not given.isdecimal() or not 1 <= int(given) <= FETCH_BYTES_MAX:
        raise OptionError(f"option kafka.{FETCH_SETTING} cannot be {given!r}: it is 1 to {FETCH_BYTES_MAX}")
    return int(given)
