"""Metrics of the groups that this node coordinates: members, lag and rebalances.

The coordinator knows a group's committed offsets, and the leader of a partition knows where it ends. This node uses
its own replica if it has one, and asks the leader otherwise. The age of the oldest unread record comes from its
batch: from a local file, or fetched from the leader. If only transaction markers are unread, the lag is zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from millpond.base.errors import Refused
from millpond.base.ids import TopicPartition
from millpond.base.later import Later, gather
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import FileRange
from millpond.broker.loop.steps import Steps, in_slices
from millpond.broker.metrics.bounds import ASK_MS, CONSUMER, Bounds, PartitionBounds, nothing
from millpond.broker.metrics.exposition import Exposition, escaped, labels
from millpond.broker.peers.peers import Peers
from millpond.broker.peers.requester import RequestLost
from millpond.broker.requests.call import NODE_CLIENT_ID
from millpond.wire import messages as m
from millpond.wire.batch import HEADER_BYTES, read_header

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, DataContext, MetadataContext, NodeContext
    from millpond.coordinators.groups.shard import GroupShard

ROWS_AT_ONCE: Final = 300
LOOKS_AT_ONCE: Final = 20
LOOKS_MAX: Final = 500
"""For each page, the age of the next record is looked up for this many partitions, those with the largest lag."""
LOOK_BYTES: Final = 1_024
"""Enough for the markers of a dozen transactions."""
FETCHES_MAX: Final = 50
"""How many of these lookups go to other nodes, because each response has a whole batch. Results are cached."""

FETCH_VERSION: Final = 12


class _Row(NamedTuple):
    """One group's position in one partition."""

    group: str
    partition: TopicPartition
    committed: int | None
    """None if the group has committed no offset: all records are unread."""

    def position(self, bounds: Bounds) -> int:
        """The next offset that the group reads."""
        return bounds.start if self.committed is None else max(self.committed, bounds.start)


class _Unread(NamedTuple):
    """The position of a group's next record."""

    partition: TopicPartition
    offset: int
    topic_id: UUID | None
    """A topic that was deleted and created again has other records at the same offsets."""


class _Next(NamedTuple):
    """The first record at or after an offset."""

    offset: int
    """The offset of the next record, or of where it may follow: only transaction markers come before it."""
    since_ms: int | None
    """When its batch was written; None if unknown."""


class _Looks(NamedTuple):
    """Pending lookups of unread records, in local files and on other nodes."""

    here: list[tuple[_Unread, FileRange]]
    elsewhere: list[tuple[_Unread, Later[_Next | None]]]


class GroupMetrics:
    def __init__(
        self, node: NodeContext, metadata: MetadataContext, data: DataContext, coordination: CoordinationContext
    ) -> None:
        self._node = node
        self._metadata = metadata
        self._data = data
        self._coordination = coordination
        client_id = f"{NODE_CLIENT_ID}{node.node_id}"
        self._peers = Peers(node.world, client_id, coordination.addresses)
        self.bounds: Final = PartitionBounds(node, metadata, data, self._peers)
        self._known: Mapping[_Unread, _Next] = {}
        """The groups' next records as of the last page. Cached because their write time does not change."""

    def collect(self, page: Exposition) -> Steps[None]:
        rows: list[_Row] = []
        yield from self._collect_groups(page)
        wanted = yield from self._collect_rows(rows)
        bounds = yield from self.bounds.find(wanted)
        following = yield from self._following(rows, bounds)
        committed = page.gauge("millpond_group_committed_offset", "The next record that the group will read.")
        lag = page.gauge("millpond_group_lag_records", "Committed records that the group has not read.")
        seconds = page.gauge(
            "millpond_group_lag_seconds", "For how long the oldest record that the group has not read has been there."
        )
        lost = page.gauge("millpond_group_lost_records", "Records that were deleted before the group read them.")
        now_ms = self._node.clock.wall_ms()
        for some in in_slices(rows, ROWS_AT_ONCE):
            for row in some:
                topic, index = row.partition
                named = f'{{group="{escaped(row.group)}",topic="{escaped(topic)}",partition="{index}"}}'
                if row.committed is not None:
                    committed.add(row.committed, named)
                found = bounds.get(row.partition)
                if found is None:
                    continue
                unread = row.position(found)
                upcoming = following.get(self._unread(row.partition, unread), _Next(unread, None))
                behind = max(found.end - upcoming.offset, 0)
                lag.add(behind, named)
                lost.add(0 if row.committed is None else unread - row.committed, named)
                if not behind:
                    seconds.add(0, named)
                elif upcoming.since_ms is not None:
                    seconds.add(max(now_ms - upcoming.since_ms, 0) / 1000, named)
            page.seal()
            yield None

    def _collect_groups(self, page: Exposition) -> Steps[None]:
        members = page.gauge("millpond_group_members", "Members of the group.")
        state = page.gauge("millpond_group_state", "1 for the state that the group is in.")
        times = page.counter(
            "millpond_group_rebalances_total", "Rebalances of the group since this node coordinates it."
        )
        paused = page.counter(
            "millpond_group_rebalance_seconds_total", "How long the group's rebalances took, all together."
        )
        # Taken before the first yield: a group that appears between two steps is not in `known`, but must be kept.
        before = self._coordination.rebalances.groups()
        known: set[str] = set()
        for shard_host in list(self._coordination.groups.shard_hosts()):
            shard: GroupShard = shard_host.shard
            for some in in_slices(list(shard.groups.values()), ROWS_AT_ONCE):
                for group in some:
                    known.add(group.group_id)
                    named = labels(group=group.group_id)
                    rebalanced = self._coordination.rebalances.of(group.group_id)
                    members.add(group.member_count, named)
                    state.add(1, labels(group=group.group_id, state=group.state_name))
                    times.add(rebalanced.times, named)
                    paused.add(rebalanced.paused_ms / 1000, named)
                page.seal()
                yield None
        self._coordination.rebalances.forget(before - known)

    def _collect_rows(self, rows: list[_Row]) -> Steps[Mapping[TopicPartition, None]]:
        """Add a row for every partition of the topics that each group reads; return the partitions."""
        wanted: dict[TopicPartition, None] = {}
        for shard_host in list(self._coordination.groups.shard_hosts()):
            shard: GroupShard = shard_host.shard
            for group_id in list(dict.fromkeys((*shard.offsets.by_group, *shard.groups))):
                # The group may have changed or gone since the last yield. One group's offsets are few enough for a
                # single step.
                committed: dict[TopicPartition, int | None] = {
                    TopicPartition(key.topic, key.partition): each.offset
                    for key, each in shard.offsets.of_group(group_id)
                    if not shard.offsets.is_deleted(key.topic, each)
                }
                for partition in self._partitions_of(shard, group_id, committed):
                    rows.append(_Row(group_id, partition, committed.get(partition)))
                    wanted[partition] = None
                    if len(rows) % ROWS_AT_ONCE == 0:
                        yield None
        return wanted

    def _partitions_of(
        self, shard: GroupShard, group_id: str, committed: Iterable[TopicPartition]
    ) -> Iterable[TopicPartition]:
        """Partitions with a committed offset, and all other partitions of these and of the subscribed topics."""
        names = dict.fromkeys(each.topic for each in committed)
        group = shard.groups.get(group_id)
        # A share group has no committed offsets, so it has no lag of this kind.
        if group is not None and group.type_name != "share":
            names.update(dict.fromkeys(sorted(group.subscribed_topics)))
        topics = self._metadata.image.topics
        others = (
            TopicPartition(name, at) for name in names if name in topics for at in range(len(topics[name].partitions))
        )
        return dict.fromkeys((*committed, *others))

    def _following(self, rows: list[_Row], bounds: Mapping[TopicPartition, Bounds]) -> Steps[Mapping[_Unread, _Next]]:
        """The next record of each group and partition, where it can be determined."""
        lags: dict[_Unread, int] = {}
        for some in in_slices(rows, ROWS_AT_ONCE):
            for row in some:
                found = bounds.get(row.partition)
                if found is not None and row.position(found) < found.end:
                    unread = self._unread(row.partition, row.position(found))
                    lags[unread] = found.end - unread.offset
            if len(lags) > 2 * LOOKS_MAX:
                lags = {each: lags[each] for each in nlargest(LOOKS_MAX, lags, key=lags.__getitem__)}
            yield None
        following: dict[_Unread, _Next] = {}
        looks = _Looks([], [])
        try:
            for chosen in in_slices(nlargest(LOOKS_MAX, lags, key=lags.__getitem__), LOOKS_AT_ONCE):
                for each in chosen:
                    known = self._known.get(each)
                    if known is None:
                        self._look(each, looks)
                    else:
                        following[each] = known
                yield None
            if looks.here:
                seen = yield self._node.workers.run(lambda: [_next_on_disk(*each) for each in looks.here])
                following.update((each, at) for (each, _), at in zip(looks.here, seen, strict=True) if at is not None)
        finally:
            for _, part in looks.here:
                part.file.release()
        seen = yield gather([later for _, later in looks.elsewhere])
        following.update((each, at) for (each, _), at in zip(looks.elsewhere, seen, strict=True) if at is not None)
        # Cache only records that were found: a position with none yet may have one for the next page.
        self._known = {each: at for each, at in following.items() if at.offset == each.offset}
        return following

    def _unread(self, partition: TopicPartition, offset: int) -> _Unread:
        topic = self._metadata.image.topics.get(partition.topic)
        return _Unread(partition, offset, None if topic is None else topic.id)

    def _look(self, unread: _Unread, looks: _Looks) -> None:
        known = self._metadata.image.partition(*unread.partition)
        replica = self._data.partitions.get(*unread.partition)
        if replica is not None:
            try:
                part = replica.log.read(unread.offset, LOOK_BYTES).range
            except Refused:
                # The log is being truncated, or the disk fails; the page does without this age.
                return
            if part is not None:
                looks.here.append((unread, part))
        elif known is not None and known.leader >= 0 and len(looks.elsewhere) < FETCHES_MAX:
            asked = self._peers.ask(known.leader, _fetch(unread), FETCH_VERSION, ASK_MS)
            # Read it right away: the next response overwrites the buffer that its records are in.
            later = asked.map(lambda response: _next_sent(unread, response)).recover(RequestLost, nothing)
            looks.elsewhere.append((unread, later))


def _next_on_disk(unread: _Unread, part: FileRange) -> _Next | None:
    """Read the next record from a local file. Runs on a worker, because it may wait for the disk."""
    try:
        data = part.file.read_at(part.position, min(part.length, LOOK_BYTES))
    except OSError:
        return None
    return _next_in(unread, data)


def _next_sent(unread: _Unread, response: m.FetchResponse) -> _Next | None:
    """The same from a leader's response."""
    for topic in response.responses:
        for part in topic.partitions:
            if not part.error_code and part.records:
                return _next_in(unread, part.records)
    return None


def _next_in(unread: _Unread, data: Any) -> _Next | None:
    """The next record in these batches; None if there is none. The first has the offset, the last may be partial."""
    position, offset = 0, unread.offset
    while len(data) - position >= HEADER_BYTES:
        header = read_header(data, position)
        if not header.is_control:
            return _Next(offset, header.base_timestamp if header.base_timestamp >= 0 else None)
        position, offset = position + max(header.size, HEADER_BYTES), header.next_offset
    return _Next(offset, None) if position else None


def _fetch(unread: _Unread) -> m.FetchRequest:
    """A fetch of one batch or a few small ones: the response has at least one, however low the limit."""
    kind = m.FetchRequest
    wanted = kind.FetchPartition(
        partition=unread.partition.partition, fetch_offset=unread.offset, partition_max_bytes=LOOK_BYTES
    )
    return kind(
        replica_id=CONSUMER,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=LOOK_BYTES,
        session_id=0,
        session_epoch=-1,
        topics=[kind.FetchTopic(topic=unread.partition.topic, partitions=[wanted])],
    )
