"""`millpond dlq purge`: cuts dead-letter topics from their beginning, by DeleteRecords."""

from __future__ import annotations

from dataclasses import dataclass, field

from millpond.cli.admin import settle
from millpond.cli.connect import ANSWER_SECONDS, Cluster
from millpond.cli.dlq_progress import read_redriven
from millpond.cli.dlq_read import letter_bounds, letters_between
from millpond.cli.offsets import Bounds, Partition, offsets_at


@dataclass(slots=True)
class Cut:
    """What is to go: in each partition everything before an offset."""

    offsets: dict[Partition, int] = field(default_factory=dict)
    records: int = 0
    waiting: int = 0
    """Letters among them that have not been redriven."""


def plan(cluster: Cluster, topic: str, before_ms: int | None, only_redriven: bool) -> Cut:
    admin = cluster.admin()
    bounds = letter_bounds(admin, topic)
    redriven = read_redriven(cluster, admin, topic)
    ends = {each: bound.end for each, bound in bounds.items()}
    if before_ms is not None:
        firsts = offsets_at(admin, list(bounds), before_ms)
        ends |= {each: min(first, ends[each]) for each, first in firsts.items() if first >= 0}
    cut = Cut(dict(ends))
    for letter in letters_between(cluster, {each: Bounds(bounds[each].start, end) for each, end in ends.items()}):
        place, offset = (topic, letter.message.partition), letter.message.offset
        if only_redriven and letter.place not in redriven:
            cut.offsets[place] = min(cut.offsets[place], offset)
        if offset < cut.offsets[place]:
            cut.records += 1
            cut.waiting += letter.place not in redriven
    return cut


def apply(cluster: Cluster, cut: Cut) -> None:
    from confluent_kafka import TopicPartition

    wanted = [TopicPartition(topic, index, offset) for (topic, index), offset in cut.offsets.items()]
    # A client without a name would be gone before it is answered.
    admin = cluster.admin()
    futures = admin.delete_records(wanted, request_timeout=ANSWER_SECONDS, operation_timeout=ANSWER_SECONDS)
    for each, future in futures.items():
        settle(f"The letters of {each.topic}-{each.partition} were not deleted", future)
