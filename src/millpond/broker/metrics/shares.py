"""Metrics of share groups: records by state where this node leads, and lag where it coordinates.

A leader has a window only while members of the group read. The share coordinator knows what is finished at any time;
it gets the end of each partition as the metrics of consumer groups do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from millpond.base.ids import TopicPartition
from millpond.base.values import dataclass
from millpond.broker.loop.steps import Steps, in_slices
from millpond.broker.metrics.exposition import Exposition, Family, labels
from millpond.broker.shares.counts import Totals
from millpond.broker.shares.manager import QueueKey
from millpond.broker.shares.oldest import find_oldest

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, DataContext, MetadataContext, NodeContext
    from millpond.broker.metrics.bounds import PartitionBounds
    from millpond.broker.shares.share_leader import ShareLeader
    from millpond.broker.shares.window import ShareWindow

QUEUES_MAX: Final = 1_000
"""Queues with samples of their own. All others are added up in one without names."""
WINDOWS_AT_ONCE: Final = 100
LOOKS_MAX: Final = 1_000
"""For each page, the oldest record is looked up in this many windows."""
RANGES_AT_ONCE: Final = 2_000
DELIVERED: Final = "delivered"


@dataclass(slots=True)
class _Queue:
    """The sums over the windows of a queue."""

    totals: Totals
    available: int = 0
    acquired: int = 0
    delayed: int = 0
    archiving: int = 0
    oldest_ms: int | None = None
    """The earliest timestamp of an oldest record."""
    is_read: bool = False
    """Whether there is a window now."""

    def note(self, leader: ShareLeader) -> None:
        window = _window(leader)
        counts = window.counts()
        self.is_read = True
        # Also what nobody has acquired yet.
        self.available += counts.available + max(leader.partition.committed_offset - window.end_offset, 0)
        self.acquired += counts.acquired
        self.delayed += counts.delayed
        self.archiving += counts.archiving
        timestamp_ms = leader.oldest.timestamp_ms(window.start_offset)
        if timestamp_ms >= 0:
            self.oldest_ms = timestamp_ms if self.oldest_ms is None else min(self.oldest_ms, timestamp_ms)


class ShareMetrics:
    def __init__(
        self,
        node: NodeContext,
        metadata: MetadataContext,
        data: DataContext,
        coordination: CoordinationContext,
        bounds: PartitionBounds,
    ) -> None:
        self._node = node
        self._metadata = metadata
        self._data = data
        self._coordination = coordination
        self._bounds = bounds

    def collect(self, page: Exposition) -> Steps[None]:
        shares = self._data.shares()
        page.gauge("millpond_share_partitions", "Share windows in memory: partitions led here, by share group.").add(
            len(shares)
        )
        queues = yield from self._collect_windows()
        named = self._named(queues)
        yield from self._show_windows(page, queues, named)
        yield from self._collect_lag(page)

    def _collect_windows(self) -> Steps[dict[QueueKey, _Queue]]:
        queues: dict[QueueKey, _Queue] = {}
        shares = self._data.shares()
        for key, totals in list(shares.ended_totals.items()):
            queues[key] = _Queue(Totals())
            queues[key].totals.include(totals)
        # All at once: the totals of a window that ends while this waits are in neither place twice, nor in none.
        leaders = [each for group in shares.groups() for each in group.leaders.values() if each.window is not None]
        looked = 0
        for some in in_slices(leaders, WINDOWS_AT_ONCE):
            if looked < LOOKS_MAX:
                looked += len(some)
                starts = [(each.oldest, _window(each).start_offset) for each in some if not each.ended]
                yield find_oldest(self._node.workers, starts)
            for each in some:
                queue = queues.setdefault(QueueKey(each.key.group_id, each.key.topic_id), _Queue(Totals()))
                queue.totals.include(_window(each).totals)
                if not each.ended:
                    queue.note(each)
            yield None
        return queues

    def _named(self, keys: Iterable[QueueKey]) -> dict[QueueKey, str]:
        """The labels of each queue; those beyond the limit have empty ones. Deleted topics have none."""
        topics = self._metadata.image.topics_by_id
        known = sorted((each.group_id, topics[each.topic_id].name, each) for each in keys if each.topic_id in topics)
        return {
            key: labels(group=group, topic=topic) if number < QUEUES_MAX else labels(group="", topic="")
            for number, (group, topic, key) in enumerate(known)
        }

    def _show_windows(
        self, page: Exposition, queues: dict[QueueKey, _Queue], named: dict[QueueKey, str]
    ) -> Steps[None]:
        records = page.gauge(
            "millpond_share_group_records",
            "Unfinished records of partitions led here that members of the share group read, by state.",
        )
        oldest = page.gauge(
            "millpond_share_group_oldest_seconds",
            "For how long the oldest of them has been there.",
        )
        deliveries = page.counter(
            "millpond_share_group_deliveries_total", "Records delivered to members; a second delivery counts again."
        )
        outcomes = page.counter(
            "millpond_share_group_outcomes_total", "How deliveries ended, or that a dead letter was written."
        )
        now_ms = self._node.clock.wall_ms()
        for some in in_slices(_merged(queues, named).items(), WINDOWS_AT_ONCE):
            for label, queue in some:
                deliveries.add(queue.totals.delivered, label)
                for name in queue.totals.__slots__:
                    if name != DELIVERED:
                        outcomes.add(getattr(queue.totals, name), _with(label, "outcome", name))
                if queue.is_read:
                    _show_states(records, label, queue)
                    oldest.add(0 if queue.oldest_ms is None else max(now_ms - queue.oldest_ms, 0) / 1000, label)
            page.seal()
            yield None

    def _collect_lag(self, page: Exposition) -> Steps[None]:
        lag = page.gauge(
            "millpond_share_group_lag_records",
            "Committed records that the share group has not finished, in share partitions coordinated here.",
        )
        finished: dict[TopicPartition, list[tuple[QueueKey, int, int]]] = {}
        cost = 0
        for shard_host in list(self._coordination.shares.shard_hosts()):
            for key, state in list(shard_host.shard.states.items()):
                topic = self._metadata.image.topics_by_id.get(key.topic_id)
                if topic is not None and state.start_offset >= 0:
                    entry = (QueueKey(key.group_id, key.topic_id), state.start_offset, state.complete_count())
                    finished.setdefault(TopicPartition(topic.name, key.partition), []).append(entry)
                cost += 1 + state.range_count
                if cost >= RANGES_AT_ONCE:
                    cost = 0
                    yield None
        bounds = yield from self._bounds.find(finished)
        lags: dict[QueueKey, int] = {}
        for some in in_slices(finished.items(), WINDOWS_AT_ONCE):
            for name, entries in some:
                found = bounds.get(name)
                for queue, start_offset, complete_count in entries if found is not None else ():
                    assert found is not None
                    left = max(found.end - max(start_offset, found.start) - complete_count, 0)
                    lags[queue] = lags.get(queue, 0) + left
            yield None
        sums: dict[str, int] = {}
        for queue, label in self._named(lags).items():
            sums[label] = sums.get(label, 0) + lags[queue]
        for label, total in sums.items():
            lag.add(total, label)
        page.seal()


def _window(leader: ShareLeader) -> ShareWindow:
    assert leader.window is not None
    return leader.window


def _merged(queues: dict[QueueKey, _Queue], named: dict[QueueKey, str]) -> dict[str, _Queue]:
    """By labels: queues with the same ones are added up."""
    merged: dict[str, _Queue] = {}
    for key, label in named.items():
        queue, into = queues[key], merged.get(label)
        if into is None:
            merged[label] = queue
            continue
        into.totals.include(queue.totals)
        into.is_read = into.is_read or queue.is_read
        for name in ("available", "acquired", "delayed", "archiving"):
            setattr(into, name, getattr(into, name) + getattr(queue, name))
        into.oldest_ms = min((each for each in (into.oldest_ms, queue.oldest_ms) if each is not None), default=None)
    return merged


def _show_states(records: Family, label: str, queue: _Queue) -> None:
    for state in ("available", "acquired", "delayed", "archiving"):
        records.add(getattr(queue, state), _with(label, "state", state))


def _with(label: str, name: str, value: str) -> str:
    return f'{label[:-1]},{name}="{value}"}}'
