"""Resolve an edge from the options to the partitions' offsets."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, assert_never

from millpond.base.ids import TopicPartition
from millpond.remote import offsets as cluster_offsets
from millpond.remote.offsets import Isolation
from millpond.spark.options import OptionError
from millpond.spark.source.offset_spec import EARLIEST, LATEST, AtOffsets, AtTimes, Bound, Edge, Offsets

if TYPE_CHECKING:
    from millpond.remote.cluster import Cluster


def resolve(cluster: Cluster, bound: Bound, partitions: Collection[TopicPartition], isolation: Isolation) -> Offsets:
    """The offset of each partition. OptionError for other partitions, or a time without a record."""
    match bound:
        case Edge("earliest"):
            return cluster_offsets.earliest(cluster, partitions)
        case Edge():
            return cluster_offsets.latest(cluster, partitions, isolation)
        case AtOffsets(offsets):
            _check_same(offsets, partitions)
            resolved = dict(offsets)
            resolved |= cluster_offsets.earliest(
                cluster, [partition for partition in partitions if offsets[partition] == EARLIEST]
            )
            resolved |= cluster_offsets.latest(
                cluster, [partition for partition in partitions if offsets[partition] == LATEST], isolation
            )
            return resolved
        case AtTimes():
            return _at_times(cluster, bound, partitions, isolation)
    assert_never(bound)


def _at_times(
    cluster: Cluster, bound: AtTimes, partitions: Collection[TopicPartition], isolation: Isolation
) -> Offsets:
    if isinstance(bound.times_ms, int):
        times_ms = dict.fromkeys(partitions, bound.times_ms)
    else:
        _check_same(bound.times_ms, partitions)
        times_ms = dict(bound.times_ms)
    resolved: Offsets = {}
    late: list[TopicPartition] = []
    for partition, offset in cluster_offsets.at_times(cluster, times_ms, isolation).items():
        if offset is not None:
            resolved[partition] = offset
        elif bound.no_match == "latest":
            late.append(partition)
        else:
            raise OptionError(
                f"{partition} has no record at {times_ms[partition]} ms or later; to start such a "
                "partition at its end, set startingOffsetsByTimestampStrategy=latest"
            )
    return resolved | cluster_offsets.latest(cluster, late, isolation)


def _check_same(named: Iterable[TopicPartition], partitions: Iterable[TopicPartition]) -> None:
    named, partitions = set(named), set(partitions)
    if named != partitions:
        missing = ", ".join(str(partition) for partition in sorted(partitions - named))
        surplus = ", ".join(str(partition) for partition in sorted(named - partitions))
        raise OptionError(
            "offsets or timestamps must be given for exactly the partitions that are read (-1 for latest, -2 for "
            "earliest)" + (f"; missing: {missing}" if missing else "") + (f"; not read: {surplus}" if surplus else "")
        )
