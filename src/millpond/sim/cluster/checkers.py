"""Invariants of a cluster, checked from inside while it runs and again after all faults have healed."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from millpond.base.errors import Refused
from millpond.broker.replication.fetchers import CUT_BELOW_COMMITTED
from millpond.broker.replication.partitions import Partition
from millpond.config.node import BROKER_SESSION_TIMEOUT_MS
from millpond.metadata.codec import encode_record
from millpond.metadata.image import Image
from millpond.metadata.snapshot import records_of
from millpond.sim.cluster.cluster import SimCluster
from millpond.sim.cluster.fault_injector import FaultInjector
from millpond.wire.batch import CorruptBatch, check_batch, walk

READ_BYTES = 1 << 20
UNCHANGED_LOOKS = 4
"""A replica that seems unchanged is read again in one of this many checks."""
DOUBT_LATE_MS = 300
"""How long after its session, besides clock drift, a node may take to notice that it is fenced."""

TWO_CONTROLLERS = "two leaders of the quorum in one epoch"
METADATA_DIFFERS = "committed metadata differs"
TWO_LEADERS = "two leaders of a partition in one leader epoch"
SAME_NAME_OTHER_BATCH = "one offset in one leader epoch is two batches"
VISIBLE_CHANGED = "a committed batch changed"
TRUSTED_LACKS_RECORDS = "a replica that may lead lacks committed records"
STRANGER_TRUSTED = "a broker that cannot lead does"
HIGH_WATERMARK_FELL = "the high watermark of a leader fell"
ROT_SPREAD = "damage has spread to another replica"
WRONG_EPOCHS = "a replica's leader epochs do not match its batches"
COMMITTED_CUT = "a replica was truncated below its committed offset"
LEASE_OUTLIVED = "a broker was fenced while it held a lease"
NO_DOUBT = "a broker that was fenced long ago still acts as leader"
NOT_HEALED = "not healthy after healing"

Replica = tuple[int, UUID, int]
"""A node id, a topic id and a partition index."""


@dataclass(slots=True)
class _Batch:
    """What identifies a batch beyond its offset and epoch."""

    crc: int
    next_offset: int


@dataclass(slots=True)
class _Facts:
    """What the replicas of one partition have contained so far."""

    batches: dict[tuple[int, int], _Batch] = field(default_factory=dict)
    """By base offset and leader epoch."""
    leaders: dict[int, int] = field(default_factory=dict)
    """By leader epoch."""
    visible: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Leader epoch and CRC by base offset, of the batches that a leader has committed."""
    ends: dict[int, int] = field(default_factory=dict)
    """The highest committed offset by leader epoch."""

    @property
    def visible_end(self) -> int:
        return max(self.ends.values(), default=0)

    def end_before(self, leader_epoch: int) -> int:
        """The end of the log that a leader of this epoch must have; later leaders may have committed more."""
        return max((end for epoch, end in self.ends.items() if epoch <= leader_epoch), default=0)


@dataclass(slots=True)
class _Seen:
    """How much of one replica was checked, in which incarnation of its node."""

    incarnation: int
    end: int = 0
    batches: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Leader epoch, CRC and next offset by base offset, of the batches in this log."""
    leader_epoch: int = -1
    high_watermark: int = -1
    condition: tuple[object, ...] = ()
    """What the last check saw; a check that would see the same again is mostly skipped."""


class Inspector:
    """Checks every running node, and reports violations to the history of the run."""

    def __init__(self, cluster: SimCluster, injector: FaultInjector, *, passes_over: Container[str] = ()) -> None:
        """`passes_over` are topics whose logs cannot be compared, because each replica compacts its own."""
        self.cluster = cluster
        self._passes_over = passes_over
        self._trouble = injector
        self.looks = 0
        self._skips_unchanged = False
        self._controllers: dict[int, int] = {}
        self._images: dict[int, tuple[str, int]] = {}
        self._applied: dict[int, tuple[int, int]] = {}
        """The incarnation and metadata offset at which each node's image was checked last."""
        self._facts: dict[tuple[UUID, int], _Facts] = {}
        self._seen: dict[Replica, _Seen] = {}
        self._blamed: dict[str, None] = {}
        self._unaware_since_ms: dict[tuple[int, int], int] = {}
        """Since when a node has been running without knowing that it is fenced, by node and incarnation."""
        # A node that resumes answers what is in its sockets before anything else happens.
        cluster.on_resume = self._look_after_resume

    def look(self, *, at_all: bool = False) -> None:
        """Check every running node; with `at_all`, also replicas that seem unchanged."""
        self.looks += 1
        self._skips_unchanged = not at_all and self.looks % UNCHANGED_LOOKS > 0
        for finding in self._findings():
            self._blame(finding)

    def _blame(self, finding: str) -> None:
        if finding not in self._blamed:
            self._blamed[finding] = None
            self.cluster.note(f"!!! {finding}")
            self.cluster.history.violations.append(finding)

    def _findings(self) -> Iterator[str]:
        for node_id, node in self.cluster.nodes.items():
            if not node.is_up:
                continue
            yield from self._look_at_controller(node_id)
            for partition in node.broker.partitions:
                if partition.name.topic not in self._passes_over:
                    yield from self._look_at_partition(node_id, node.incarnation, partition)
        yield from self._look_at_trust()
        yield from self._look_at_leases()
        if self._trouble.rot is not None:
            yield from self._look_at_rot()

    def _look_at_rot(self) -> Iterator[str]:
        """A batch that is corrupt on one disk is intact on all others."""
        rot = self._trouble.rot
        assert rot is not None
        for node_id, node in self.cluster.nodes.items():
            replica = node.broker.partitions.by_id(rot.topic_id, rot.index) if node.is_up else None
            if node_id != rot.node_id and replica is not None and damage_of(replica, rot.offset):
                yield f"{ROT_SPREAD}: {replica.name.folder} at {rot.offset}, from node {rot.node_id} to {node_id}"

    # The metadata

    def _look_at_controller(self, node_id: int) -> Iterator[str]:
        controller = self.cluster.nodes[node_id].broker.controller
        if controller.is_active:
            known = self._controllers.setdefault(controller.leader_epoch, node_id)
            if known != node_id:
                yield f"{TWO_CONTROLLERS}: {known} and {node_id} in {controller.leader_epoch}"
        offset, incarnation = controller.applied_offset, self.cluster.nodes[node_id].incarnation
        if offset <= 0 or self._applied.get(node_id) == (incarnation, offset):
            return
        self._applied[node_id] = incarnation, offset
        digest = _digest(controller.image)
        told, teller = self._images.setdefault(offset, (digest, node_id))
        if told != digest:
            yield f"{METADATA_DIFFERS}: at {offset} nodes {teller} and {node_id} know different things"

    # Logs

    def _look_at_partition(self, node_id: int, incarnation: int, partition: Partition) -> Iterator[str]:
        name, key = partition.name.folder, (partition.topic_id, partition.name.partition)
        facts = self._facts.setdefault(key, _Facts())
        seen = self._seen.get((node_id, *key))
        if seen is None or seen.incarnation != incarnation:
            seen = self._seen[(node_id, *key)] = _Seen(incarnation)
        log = partition.log
        if log.failed is not None:
            return
        condition = (
            *(id(log), log.end_offset, log.start_offset),
            *(partition.is_leader, partition.leader_epoch, partition.committed_offset),
        )
        # Batches may have been replaced without a trace in these: that is checked less often.
        if self._skips_unchanged and condition == seen.condition:
            return
        seen.condition = condition
        try:
            yield from self._look_at_batches(node_id, name, partition, facts, seen)
        except Refused:
            # It is being truncated or closed.
            return
        if partition.is_leader:
            leader = facts.leaders.setdefault(partition.leader_epoch, node_id)
            if leader != node_id:
                yield f"{TWO_LEADERS}: {name}, {leader} and {node_id} in {partition.leader_epoch}"
            if seen.leader_epoch == partition.leader_epoch and partition.committed_offset < seen.high_watermark:
                yield (
                    f"{HIGH_WATERMARK_FELL}: {name} at node {node_id} from {seen.high_watermark} "
                    f"to {partition.committed_offset}"
                )
            seen.leader_epoch, seen.high_watermark = partition.leader_epoch, partition.committed_offset
            yield from self._look_at_visible(node_id, name, partition, facts, seen)

    def _look_at_batches(
        self, node_id: int, name: str, partition: Partition, facts: _Facts, seen: _Seen
    ) -> Iterator[str]:
        log = partition.log
        if log.end_offset < seen.end:
            self._forget(seen, log.end_offset)
        # It no longer has these records and may have started again after them; they need not have been committed.
        for base in [each for each, batch in seen.batches.items() if batch[2] <= log.start_offset]:
            del seen.batches[base]
        last = max((base for base in seen.batches), default=-1)
        # Check the last batch again: it may have been truncated and replaced.
        offset = max(last, int(log.start_offset))
        while offset < log.end_offset:
            try:
                data = log.read_batches(offset, READ_BYTES)
            except Refused:
                # It is being truncated.
                return
            if not data:
                break
            for _, header in walk(data):
                offset = header.next_offset
                epoch, batch = header.leader_epoch, _Batch(header.crc, header.next_offset)
                first = facts.batches.setdefault((header.base_offset, epoch), batch)
                if first.crc != batch.crc:
                    yield f"{SAME_NAME_OTHER_BATCH}: {name} at {header.base_offset} in {epoch}, node {node_id}"
                before = seen.batches.get(header.base_offset)
                if header.base_offset <= last and (before is None or before[:2] != (epoch, header.crc)):
                    # Everything was replaced between two checks: begin at the start.
                    seen.batches.clear()
                    seen.end = 0
                    return
                seen.batches[header.base_offset] = epoch, header.crc, header.next_offset
        seen.end = offset

    @staticmethod
    def _forget(seen: _Seen, end: int) -> None:
        for base in [each for each, batch in seen.batches.items() if batch[2] > end]:
            del seen.batches[base]
        seen.end = end

    def _look_at_visible(
        self, node_id: int, name: str, partition: Partition, facts: _Facts, seen: _Seen
    ) -> Iterator[str]:
        committed, led_in = partition.committed_offset, partition.leader_epoch
        for base, (epoch, crc, next_offset) in seen.batches.items():
            if next_offset > committed:
                continue
            first = facts.visible.setdefault(base, (epoch, crc))
            if first != (epoch, crc):
                yield f"{VISIBLE_CHANGED}: {name} at {base} was of epoch {first[0]}, at node {node_id} of {epoch}"
            facts.ends[led_in] = max(facts.ends.get(led_in, 0), next_offset)
        if partition.log.end_offset < facts.end_before(led_in):
            yield (
                f"{TRUSTED_LACKS_RECORDS}: {name} is led by node {node_id} with {partition.log.end_offset} of "
                f"{facts.end_before(led_in)} committed records"
            )

    # Trust

    def _look_at_trust(self) -> Iterator[str]:
        """Replicas in the ISR or eligible to lead have all records that any client may have seen."""
        image = self.cluster.image
        if image is None:
            return
        up = [node.broker.controller for node in self.cluster.nodes.values() if node.is_up]
        epochs = [controller.leader_epoch for controller in up if controller.is_active]
        if epochs and max(epochs) < max([*self._controllers, *(controller.leader_epoch for controller in up)]):
            # A later controller has been active: this one is isolated and commits nothing.
            return
        for topic in image.topics.values():
            for index, partition in enumerate(topic.partitions):
                facts = self._facts.get((topic.id, index))
                if partition.leader in image.brokers and partition.leader not in partition.isr:
                    yield f"{STRANGER_TRUSTED}: {topic.name}-{index}: {partition.leader} leads {partition.isr}"
                if facts is None:
                    continue
                for node_id in (*partition.isr, *partition.elr):
                    node = self.cluster.nodes[node_id]
                    if not node.is_up or self._trouble.may_have_lost(node_id):
                        continue
                    replica = node.broker.partitions.by_id(topic.id, index)
                    if replica is None or replica.log.failed is not None:
                        continue
                    if replica.log.end_offset < facts.visible_end and not partition.is_recovering:
                        yield (
                            f"{TRUSTED_LACKS_RECORDS}: {topic.name}-{index} at node {node_id} ends at "
                            f"{replica.log.end_offset} of {facts.visible_end}"
                        )

    # Leases

    def _look_after_resume(self) -> None:
        for finding in self._look_at_leases():
            self._blame(finding)

    def _look_at_leases(self) -> Iterator[str]:
        """No broker is fenced while it holds a lease, and a fenced broker stops acting as leader in time."""
        unaware: dict[tuple[int, int], int] = {}
        for node_id, node in self.cluster.running():
            lifecycle = node.broker.lifecycle
            if not self._is_fenced_unawares(node_id):
                continue
            now_ms = self.cluster.sim.clock.now_ms
            since_ms = unaware[node_id, node.incarnation] = self._unaware_since_ms.get(
                (node_id, node.incarnation), now_ms
            )
            if lifecycle.has_lease():
                yield f"{LEASE_OUTLIVED}: node {node_id}, incarnation {node.incarnation}"
            session_ms = node.broker.settings[BROKER_SESSION_TIMEOUT_MS]
            if now_ms - since_ms > session_ms * 5 // 4 + DOUBT_LATE_MS and not lifecycle.sessions_missed:
                yield f"{NO_DOUBT}: node {node_id}, incarnation {node.incarnation}"
        self._unaware_since_ms = unaware

    def _is_fenced_unawares(self, node_id: int) -> bool:
        """Whether the committed metadata fences this incarnation, and the node does not know it."""
        broker = self.cluster.nodes[node_id].broker
        lifecycle, known = broker.lifecycle, broker.image.brokers.get(node_id)
        up = [node.broker.controller for node in self.cluster.nodes.values() if node.is_up]
        newest = max(up, key=lambda controller: controller.applied_offset).image.brokers.get(node_id)
        return (
            newest is not None
            and newest.fenced
            and newest.epoch == lifecycle.broker_epoch
            and known is not None
            and known.epoch == newest.epoch
            and not known.fenced
            and not lifecycle.is_fenced
            and not lifecycle.wants_to_be_fenced
        )

    # The end

    def check_epochs(self) -> Iterator[str]:
        for node_id, node in self.cluster.running():
            for partition in node.broker.partitions:
                wrong = wrong_epochs(partition)
                if wrong is not None:
                    yield f"{WRONG_EPOCHS}: {partition.name.folder} at node {node_id}: {wrong}"

    def check_truncations(self) -> Iterator[str]:
        """No follower ever truncated committed records: no replica that lacks them is elected."""
        for node in self.cluster.nodes.values():
            for line in node.journal_lines:
                if CUT_BELOW_COMMITTED in line:
                    yield f"{COMMITTED_CUT}: {line}"

    def check_healed(self) -> Iterator[str]:
        """What is still wrong some time after all faults have healed."""
        image = self.cluster.image
        if image is None:
            yield f"{NOT_HEALED}: there is no active controller"
            return
        digest = _digest(image)
        for node_id, node in self.cluster.nodes.items():
            if not node.is_up:
                yield f"{NOT_HEALED}: node {node_id} is down"
            elif not image.is_active(node_id):
                yield f"{NOT_HEALED}: node {node_id} is fenced"
            elif _digest(node.broker.image) != digest:
                yield f"{NOT_HEALED}: node {node_id} does not know what the controller knows"
        for topic in image.topics.values():
            for index, partition in enumerate(topic.partitions):
                if partition.leader not in self.cluster.nodes:
                    yield f"{NOT_HEALED}: {topic.name}-{index} has no leader: {partition}"
                elif set(partition.isr) != set(partition.replicas):
                    yield f"{NOT_HEALED}: {topic.name}-{index} has {partition.isr} of {partition.replicas} in sync"
                else:
                    yield from self._look_at_replicas(topic.id, topic.name, index, partition.replicas)

    def _look_at_replicas(self, topic_id: UUID, name: str, index: int, replicas: tuple[int, ...]) -> Iterator[str]:
        """All replicas have the same bytes, all of them committed, since clients have stopped writing."""
        ends: dict[int, tuple[int, int] | None] = {}
        for node_id in replicas:
            node = self.cluster.nodes[node_id]
            partition = node.broker.partitions.by_id(topic_id, index) if node.is_up else None
            ends[node_id] = None if partition is None else (partition.log.end_offset, partition.committed_offset)
        if len(set(ends.values())) != 1 or None in ends.values():
            yield f"{NOT_HEALED}: {name}-{index} ends differently: {ends} (end, committed by node)"
        elif any(each is not None and each[0] != each[1] for each in ends.values()):
            yield f"{NOT_HEALED}: {name}-{index} has records that are not committed: {ends} (end, committed by node)"
        rot = self._trouble.rot
        if rot is not None and (rot.topic_id, rot.index) == (topic_id, index):
            rotten = self.cluster.nodes[rot.node_id].broker.partitions.by_id(topic_id, index)
            if rotten is not None and damage_of(rotten, rot.offset):
                yield f"{NOT_HEALED}: {name}-{index} is still damaged at {rot.offset} on node {rot.node_id}"


def wrong_epochs(replica: Partition) -> str | None:
    """Where a replica's leader epochs differ from those of its batches; followers truncate by the former."""
    log = replica.log
    if log.failed is not None or log.closed:
        return None
    for segment in log.segments:
        for _, header in segment.batches_from(segment.base_offset):
            known = log.epochs.of(header.base_offset)
            if header.base_offset >= log.start_offset and known != header.leader_epoch:
                return (
                    f"offset {header.base_offset} is of epoch {header.leader_epoch}, it goes by {log.epochs.entries}"
                )
    return None


def damage_of(replica: Partition, offset: int) -> str | None:
    """What is wrong with the replica's batch at this offset; None if it is intact or absent."""
    log = replica.log
    if log.failed is not None or not log.start_offset <= offset < log.end_offset:
        return None
    try:
        check_batch(log.read_batches(offset, 1), 0, compacted=True)
    except CorruptBatch as fault:
        return str(fault)
    except Refused:
        # It is being truncated or closed.
        return None
    return None


def _digest(image: Image) -> str:
    return hashlib.sha256(b"\n".join(sorted(map(encode_record, records_of(image))))).hexdigest()
