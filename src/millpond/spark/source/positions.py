"""From what the options say of an edge to offsets of the cluster's partitions."""

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


def resolve(cluster: Cluster, bound: Bound, places: Collection[TopicPartition], isolation: Isolation) -> Offsets:
    """The offset of every place. OptionError when the options name other partitions, or a time that no record has."""
    match bound:
        case Edge("earliest"):
            return cluster_offsets.earliest(cluster, places)
        case Edge():
            return cluster_offsets.latest(cluster, places, isolation)
        case AtOffsets(offsets):
            _check_same(offsets, places)
            found = dict(offsets)
            found |= cluster_offsets.earliest(cluster, [place for place in places if offsets[place] == EARLIEST])
            found |= cluster_offsets.latest(
                cluster, [place for place in places if offsets[place] == LATEST], isolation
            )
            return found
        case AtTimes():
            return _at_times(cluster, bound, places, isolation)
    assert_never(bound)


def _at_times(cluster: Cluster, bound: AtTimes, places: Collection[TopicPartition], isolation: Isolation) -> Offsets:
    if isinstance(bound.times_ms, int):
        times_ms = dict.fromkeys(places, bound.times_ms)
    else:
        _check_same(bound.times_ms, places)
        times_ms = dict(bound.times_ms)
    found: Offsets = {}
    late: list[TopicPartition] = []
    for place, offset in cluster_offsets.at_times(cluster, times_ms, isolation).items():
        if offset is not None:
            found[place] = offset
        elif bound.no_match == "latest":
            late.append(place)
        else:
            raise OptionError(
                f"{place.topic}[{place.partition}] has no record at {times_ms[place]} ms or later; to start such a "
                "partition at its end, set startingOffsetsByTimestampStrategy=latest"
            )
    return found | cluster_offsets.latest(cluster, late, isolation)


def _check_same(named: Iterable[TopicPartition], places: Iterable[TopicPartition]) -> None:
    named, places = set(named), set(places)
    if named != places:
        missing = ", ".join(f"{place.topic}[{place.partition}]" for place in sorted(places - named))
        surplus = ", ".join(f"{place.topic}[{place.partition}]" for place in sorted(named - places))
        raise OptionError(
            "offsets or timestamps must be given for exactly the partitions that are read (-1 for latest, -2 for "
            "earliest)" + (f"; missing: {missing}" if missing else "") + (f"; not read: {surplus}" if surplus else "")
        )
