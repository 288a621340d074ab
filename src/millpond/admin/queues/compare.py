"""The rates of a queue between two looks at it."""

from __future__ import annotations

from collections.abc import Callable

from millpond.admin.queues.queue import Queue, QueuePartition, QueueRates


def rates_between(before: Queue, now: Queue, seconds: float) -> QueueRates:
    earlier = {each.partition: each for each in before.partitions}
    pairs = [(earlier[each.partition], each) for each in now.partitions if each.partition in earlier]

    def rate(count_of: Callable[[QueuePartition], int | None]) -> float | None:
        counts = [(count_of(one), count_of(other)) for one, other in pairs]
        # A count that fell has restarted: the window was reloaded, or the offsets were reset.
        grown = [max(after - then, 0) for then, after in counts if then is not None and after is not None]
        return sum(grown) / max(seconds, 0.001) if grown else None

    return QueueRates(
        written=rate(lambda each: each.end),
        delivered=rate(lambda each: None if each.totals is None else each.totals.delivered),
        finished=rate(lambda each: each.done),
    )
