"""Where partitions begin and end, and which offset a place named by `--from` is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, assert_never

from millpond.cli.connect import ANSWER_SECONDS
from millpond.cli.errors import Failed, failed
from millpond.cli.times import At, Beginning, End, Last, Place, Since

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


class Bounds(NamedTuple):
    """The first offset that is still there, and the one that the next record gets."""

    start: int
    end: int


Partition = tuple[str, int]

EARLIEST: Final = -2
LATEST: Final = -1


def bounds_of(admin: AdminClient, partitions: Sequence[Partition]) -> dict[Partition, Bounds]:
    starts = offsets_at(admin, partitions, EARLIEST)
    ends = offsets_at(admin, partitions, LATEST)
    return {each: Bounds(starts[each], ends[each]) for each in partitions}


def resolve(admin: AdminClient, bounds: dict[Partition, Bounds], place: Place) -> dict[Partition, int]:
    """The offset to begin at in each partition. A place outside what is there is moved to its edge."""
    match place:
        case Beginning():
            return {each: bound.start for each, bound in bounds.items()}
        case End():
            return {each: bound.end for each, bound in bounds.items()}
        case Last(count):
            return {each: max(bound.start, bound.end - count) for each, bound in bounds.items()}
        case At(offset):
            if all(offset > bound.end for bound in bounds.values()):
                furthest = max(bound.end for bound in bounds.values())
                raise Failed(f"There is no offset {offset} yet: the next record gets {furthest}.")
            return {each: min(max(bound.start, offset), bound.end) for each, bound in bounds.items()}
        case Since(time_ms):
            found = offsets_at(admin, list(bounds), time_ms)
            # Where nothing is that young, the answer is -1: what comes will be.
            return {each: found[each] if found[each] >= 0 else bound.end for each, bound in bounds.items()}
        case _:
            assert_never(place)


def offsets_at(
    admin: AdminClient, partitions: Sequence[Partition], moment: int, *, committed_only: bool = False
) -> dict[Partition, int]:
    """The offset of a moment in each partition: milliseconds since 1970, EARLIEST or LATEST.

    With `committed_only` the latest is where the first open transaction begins.
    """
    from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    edges: dict[int, Callable[[], object]] = {EARLIEST: OffsetSpec.earliest, LATEST: OffsetSpec.latest}
    spec: Any = edges[moment]() if moment in edges else OffsetSpec.for_timestamp(moment)
    wanted = {TopicPartition(topic, index): spec for topic, index in partitions}
    level = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
    futures = admin.list_offsets(wanted, isolation_level=level, request_timeout=ANSWER_SECONDS)
    found = {}
    for asked, future in futures.items():
        try:
            found[asked.topic, asked.partition] = int(future.result().offset)
        except KafkaException as refusal:
            raise failed(f"Offsets of {asked.topic}-{asked.partition} are not known", refusal.args[0]) from None
    return found
