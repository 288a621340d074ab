"""A cluster with compacted topics, in which nodes are down for longer than tombstones are retained.

Keys are written and deleted. After healing, a replica that holds a record which a later acknowledged one replaced or
deleted must hold that one, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from millpond.log.partition_log import PartitionLog
from millpond.sim.cluster.checkers import Inspector
from millpond.sim.cluster.plan import FAULTS, FaultPlan, Plan, TopicPlan, make_plan
from millpond.sim.cluster.scenario import Scenario
from millpond.sim.history.records import Content, Status, TopicIdPartition
from millpond.sim.records.checkers import TopicRules
from millpond.wire.batch import walk
from millpond.wire.records import Record, decode_batch

LONG_ABSENCE = "long absence"
RETURNED = "a replaced or deleted record has returned"

COMPACTED_FAULTS = (*(kind for kind in FAULTS if kind != "bit rot"), "old disk", *[LONG_ABSENCE] * 10)
"""Without bit rot: compaction copies batches without checking them, so corruption spreads within a log."""

RETENTION_MS = (200, 800, 1_500)
ABSENCE_MS = (4_000, 6_000)
TOMBSTONE_SHARE = 0.45
READ_BYTES = 1 << 20


def make_compacted_plan(seed: int | str, kinds: Sequence[str] = COMPACTED_FAULTS, nodes: int | None = None) -> Plan:
    """Like any other plan, with seconds in place of the days of `delete.retention.ms`."""
    plan = make_plan(f"compacted {seed}", kinds, nodes)
    random = Random(f"compacted plan {seed}")
    return replace(
        plan,
        node={
            **plan.node,
            "log.cleaner.backoff.ms": str(random.choice((50, 200))),
            "leader.imbalance.check.interval.seconds": "1",
        },
        topics=tuple(_compacted(topic, random) for topic in plan.topics),
        faults=tuple(_long(fault, random) for fault in plan.faults),
        admin_operations=random.choice((0, 0, 5)),
    )


def _compacted(topic: TopicPlan, random: Random) -> TopicPlan:
    configs = {
        **topic.configs,
        "cleanup.policy": "compact",
        "delete.retention.ms": str(random.choice(RETENTION_MS)),
        "min.cleanable.dirty.ratio": random.choice(("0", "0.3")),
        "segment.ms": str(random.choice((100, 400))),
        "file.delete.delay.ms": str(random.choice((0, 300, 60_000))),
    }
    return replace(topic, partitions=min(topic.partitions, 2), configs=configs)


def _long(fault: FaultPlan, random: Random) -> FaultPlan:
    lasts_ms = random.choice(ABSENCE_MS)
    # Early enough for the node to come back while clients still work.
    return replace(fault, at_ms=fault.at_ms % 3_000, lasts_ms=lasts_ms) if fault.kind == LONG_ABSENCE else fault


class CompactedScenario(Scenario):
    rules = TopicRules(is_compacted=True)

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        super().__init__(seed, plan or make_compacted_plan(seed))
        names = {topic.name for topic in self.plan.topics}
        self.inspector = Inspector(self.cluster, self.injector, passes_over=names)
        self._keys: list[bytes] = []

    def _contents(self, producer: str, random: Random) -> list[Content]:
        """Each key is written once and deleted at most once, so that a record that returns is visible."""
        contents = []
        for _ in range(random.choice((1, 1, 3))):
            self._tags += 1
            key, value = b"k%d" % self._tags, random.randbytes(random.randint(1, 200))
            if self._keys and random.random() < TOMBSTONE_SHARE:
                # Mostly an old key: a node that has been down since then has its value and not its tombstone.
                key = self._keys.pop(random.randrange(len(self._keys)))
                contents.append(Content(f"{producer}:{self._tags}", key, None, self.sim.clock.wall_ms()))
            else:
                self._keys.append(key)
                contents.append(Content(f"{producer}:{self._tags}", key, value, self.sim.clock.wall_ms()))
        return contents

    def _judge(self) -> None:
        super()._judge()
        for node_id, node in self.cluster.running():
            for partition in self.partitions:
                replica = node.broker.partitions.by_id(partition.topic_id, partition.partition_index)
                if replica is not None and replica.log.is_online:
                    for finding in self._look_at_replica(partition, replica.log):
                        self._blame(f"{RETURNED}: {partition} at node {node_id}: {finding}")

    def _look_at_replica(self, partition: TopicIdPartition, log: PartitionLog) -> Iterator[str]:
        latest: dict[bytes | None, Record] = {}
        for record in _records(log):
            latest[record.key] = record
        for batch in self.history.batches:
            if batch.partition != partition or batch.status is not Status.ACKNOWLEDGED:
                continue
            for offset, content in enumerate(batch.contents, batch.base_offset):
                latest_value = latest.get(content.key)
                if latest_value is not None and latest_value.offset < offset and latest_value.value is not None:
                    yield f"{content.key!r} at {latest_value.offset}, though {content.tag!r} is written at {offset}"


def _records(log: PartitionLog) -> Iterator[Record]:
    offset = int(log.start_offset)
    while offset < log.end_offset and (data := log.read_batches(offset, READ_BYTES)):
        for position, header in walk(data):
            if not header.is_control:
                yield from decode_batch(data, position)
            offset = header.next_offset
