"""A snapshot of a simulation as JSON, read from the engine's state, its disks and messages without changing them.

Records are read from the files on the simulated disks, so that those of a node that is down are visible, too. Lost,
duplicate and skipped records are found by comparing logs with what producers and consumers know.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, assert_never

from millpond.base.errors import RemoteError
from millpond.coordinators.groups.classic import ClassicGroup
from millpond.coordinators.groups.consumer.group import ConsumerGroup
from millpond.coordinators.groups.registry import AnyGroup
from millpond.coordinators.groups.shard import GroupShard
from millpond.coordinators.groups.share.group import ShareGroup
from millpond.metadata.image import Image, Topic
from millpond.sim.clients.isolation import COMMIT
from millpond.sim.node import DATA_FOLDER, SimNode
from millpond.sim.simulator.consumer import Consumer
from millpond.sim.simulator.ledger import ID_HEADER, Handled, Status
from millpond.sim.simulator.producer import Producer
from millpond.sim.simulator.share_consumer import ShareConsumer
from millpond.sim.simulator.share_windows import given_up, window_shapes
from millpond.sim.simulator.simulation import Simulation
from millpond.wire.batch import BatchHeader, walk
from millpond.wire.messages import ConsumerProtocolAssignment
from millpond.wire.records import Record, decode_batch

RECORDS_SHOWN: Final = 16
"""The last records of each log."""
NAMES_SHOWN: Final = 12
HANDLED_SHOWN: Final = 40
FLIGHTS_SHOWN: Final = 300
STORY_SHOWN: Final = 400


@dataclass(slots=True)
class LogRecord:
    offset: int
    id: int
    key: str | None
    value: str | None
    kind: str = "record"
    """record, marker, or the state of its transaction: open, committed, aborted."""


@dataclass(slots=True)
class Logs:
    """Logs on the disks. Unchanged files are not read again."""

    simulation: Simulation
    _read: dict[tuple[str, str], tuple[bytes, list[LogRecord]]] = field(default_factory=dict)

    def of(self, node: SimNode, topic: str, index: int) -> list[LogRecord]:
        folder = f"{DATA_FOLDER}/{topic}-{index}"
        if not node.disk.exists(folder):
            return []
        data = b"".join(
            node.disk.read(f"{folder}/{name}") for name in node.disk.list(folder) if name.endswith(".log")
        )
        known = self._read.get((node.name, folder))
        if known is not None and known[0] == data:
            return known[1]
        records = _decode(data)
        self._read[node.name, folder] = data, records
        return records


def _decode(data: bytes) -> list[LogRecord]:
    records: list[LogRecord] = []
    open_ones: dict[int, list[LogRecord]] = {}
    try:
        for at, header in walk(data):
            made = [_record(each, header) for each in decode_batch(data, at)]
            records += made
            if header.is_control:
                ending = "committed" if _is_commit(data, at) else "aborted"
                for each in open_ones.pop(header.producer_id, ()):
                    each.kind = ending
            elif header.is_transactional:
                open_ones.setdefault(header.producer_id, []).extend(made)
    except RemoteError:
        # A torn end, as a power cut leaves it; the next start truncates it.
        pass
    return records


def _record(record: Record, header: BatchHeader) -> LogRecord:
    if header.is_control:
        return LogRecord(record.offset, 0, None, None, "marker")
    id_text = dict(record.headers).get(ID_HEADER) or b"0"
    kind = "open" if header.is_transactional else "record"
    record_id = int(id_text) if id_text.isdigit() else 0
    return LogRecord(record.offset, record_id, _text(record.key), _text(record.value), kind)


def _is_commit(data: bytes, at: int) -> bool:
    return all((each.key or b"")[:4] == COMMIT for each in decode_batch(data, at))


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


class Observer:
    """Takes snapshots of one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._logs = Logs(simulation)

    def look(self, since_ms: int = 0, story_from: int = 0) -> dict[str, Any]:
        """The present state, the messages since a moment, and the event log from a line on."""
        simulation = self._simulation
        origin_ms = simulation.story.origin_ms
        image = self._image()
        groups = self._groups()
        flights = [each.shape(origin_ms) for each in simulation.flights.since(origin_ms + since_ms)]
        lines = simulation.story.from_line(story_from)
        return {
            "now_ms": simulation.now_ms,
            "nodes": [self._node(node_id, node, image) for node_id, node in simulation.cluster.nodes.items()],
            "controller": simulation.cluster.controller_id,
            "ways": [{"from": one, "to": other, "how": how} for (one, other), how in simulation.cuts.items()],
            "topics": [self._topic(name, image) for name in simulation.topics],
            "groups": [self._group(name, *found) for name, found in sorted(groups.items())],
            "producers": [self._producer(each) for each in simulation.producers.values()],
            "consumers": [
                *(self._consumer(each) for each in simulation.consumers.values()),
                *(self._share_consumer(each) for each in simulation.share_consumers.values()),
            ],
            "flights": flights[-FLIGHTS_SHOWN:],
            "story": [line._asdict() for line in lines[-STORY_SHOWN:]],
            "story_lines": len(simulation.story.lines),
            "handled": [self._handled(each) for each in simulation.ledger.handled[-HANDLED_SHOWN:]],
            "verdict": self.verdict(),
            "events": simulation.clock.events_run,
        }

    # Nodes and logs

    def _image(self) -> Image | None:
        """The controller's metadata; without a controller, that of any node."""
        simulation = self._simulation
        if simulation.cluster.image is not None:
            return simulation.cluster.image
        images = [simulation.cluster.nodes[each].broker.image for each in simulation.nodes_up()]
        return images[0] if images else None

    def _node(self, node_id: int, node: SimNode, image: Image | None) -> dict[str, Any]:
        broker = None if image is None else image.brokers.get(node_id)
        return {
            "id": node_id,
            "name": node.name,
            "is_up": node.is_up,
            "lives": node.incarnation,
            "is_controller": self._simulation.cluster.controller_id == node_id,
            "is_fenced": broker is None or broker.fenced,
        }

    def _topic(self, name: str, image: Image | None) -> dict[str, Any]:
        topic = None if image is None else image.topics.get(name)
        count = 0 if topic is None else len(topic.partitions)
        return {
            "name": name,
            "config": dict(image.topic_config(name)) if image is not None else {},
            "partitions": [self._partition(topic, index) for index in range(count)] if topic is not None else [],
        }

    def _partition(self, topic: Topic, index: int) -> dict[str, Any]:
        partition = topic.partitions[index]
        nodes = self._simulation.cluster.nodes
        return {
            "index": index,
            "leader": partition.leader if partition.leader in nodes and nodes[partition.leader].is_up else None,
            "leader_epoch": partition.leader_epoch,
            "replicas": list(partition.replicas),
            "isr": list(partition.isr),
            "eligible": list(partition.elr),
            "logs": [self._log(topic, index, each) for each in partition.replicas if each in nodes],
        }

    def _log(self, topic: Topic, index: int, node_id: int) -> dict[str, Any]:
        node = self._simulation.cluster.nodes[node_id]
        records = self._logs.of(node, topic.name, index)
        replica = node.broker.partitions.by_id(topic.id, index) if node.is_up else None
        facts: dict[str, Any] = {
            "node": node_id,
            "is_up": replica is not None,
            "role": "down" if replica is None else "leader" if replica.is_leader else "follower",
            "start": records[0].offset if records else 0,
            "end": records[-1].offset + 1 if records else 0,
            "high_watermark": None,
            "last_stable": None,
            "synced": None,
            "segments": None,
        }
        if replica is not None:
            records = [each for each in records if replica.log.start_offset <= each.offset < replica.log.end_offset]
            facts |= {
                "start": int(replica.log.start_offset),
                "end": int(replica.log.end_offset),
                "high_watermark": int(replica.committed_offset),
                "last_stable": int(replica.last_stable_offset),
                "synced": int(replica.log.synced_offset),
                "segments": len(replica.log.segments),
            }
        facts["count"] = len(records)
        facts["records"] = [
            {"offset": each.offset, "id": each.id, "key": each.key, "value": each.value, "kind": each.kind}
            for each in records[-RECORDS_SHOWN:]
        ]
        return facts

    def leader_log(self, topic: str, index: int) -> tuple[int, list[LogRecord]] | None:
        """The start offset and records of the leader's log; None while there is no leader."""
        image = self._image()
        partition = None if image is None else image.partition(topic, index)
        nodes = self._simulation.cluster.nodes
        if image is None or partition is None or partition.leader not in nodes or not nodes[partition.leader].is_up:
            return None
        replica = nodes[partition.leader].broker.partitions.by_id(image.topics[topic].id, index)
        if replica is None or not replica.is_leader:
            return None
        log = replica.log
        records = self._logs.of(nodes[partition.leader], topic, index)
        return int(log.start_offset), [each for each in records if log.start_offset <= each.offset < log.end_offset]

    # Groups

    def _groups(self) -> dict[str, tuple[AnyGroup, GroupShard]]:
        """The groups of active coordinators."""
        result: dict[str, tuple[AnyGroup, GroupShard]] = {}
        for node_id in self._simulation.nodes_up():
            for home in self._simulation.cluster.nodes[node_id].broker.groups.shard_hosts():
                if home.is_active:
                    result |= {name: (group, home.shard) for name, group in home.shard.groups.items()}
        return result

    def _group(self, name: str, group: AnyGroup, shard: GroupShard) -> dict[str, Any]:
        committed: dict[str, dict[int, int]] = {}
        for key, value in shard.offsets.of_group(name):
            committed.setdefault(key.topic, {})[key.partition] = value.offset
        members = self._classic_members(group) if isinstance(group, ClassicGroup) else self._members(group)
        generation = group.generation if isinstance(group, ClassicGroup) else group.state.epoch
        return {
            "name": name,
            "type": group.type_name,
            "protocol": _protocol_of(group),
            "state": group.state_name,
            "generation": generation,
            "members": members,
            "committed": committed,
            "lag": {topic: self._lag(topic, offsets) for topic, offsets in committed.items()},
            "windows": window_shapes(self._simulation, self._image(), name) if isinstance(group, ShareGroup) else [],
        }

    def _classic_members(self, group: ClassicGroup) -> list[dict[str, Any]]:
        shown = []
        for member in group.members.values():
            assigned: list[int] = []
            data = group.assignments.get(member.id, member.assignment)
            if len(data) > 2:
                told, _ = ConsumerProtocolAssignment.decode(bytes(data), 0, 2)
                assigned = sorted(number for each in told.assigned_partitions for number in each.partitions)
            facts = {"name": member.client_id, "id": member.id, "is_static": member.is_static}
            shown.append({**facts, "assigned": assigned})
        return shown

    def _members(self, group: ConsumerGroup | ShareGroup) -> list[dict[str, Any]]:
        return [
            {
                "name": member.metadata.client_id,
                "id": member.id,
                "is_static": member.metadata.instance_id is not None,
                "assigned": sorted(each.partition for each in member.current.assigned),
                "revoking": sorted(each.partition for each in member.current.revoking),
            }
            for member in group.state.members.values()
        ]

    def _lag(self, topic: str, offsets: dict[int, int]) -> dict[int, int]:
        """End offset minus committed offset by partition, also where nothing is committed."""
        lags: dict[int, int] = {}
        for index in range(self._simulation.partition_count(topic) if topic in self._simulation.topics else 0):
            log = self.leader_log(topic, index)
            if log is not None:
                start, records = log
                end = records[-1].offset + 1 if records else start
                lags[index] = max(end - max(offsets.get(index, 0), start), 0)
        return lags

    # Clients

    def _producer(self, producer: Producer) -> dict[str, Any]:
        mine = [each for each in self._simulation.ledger.records.values() if each.producer == producer.name]
        counts = Counter(each.status.value for each in mine)
        return {
            "name": producer.name,
            "acks": producer.options.acks,
            "counts": {status.value: counts[status.value] for status in Status},
            "buffered": producer.buffered,
            "buffer_max": producer.options.buffer_max,
            "blocked": len(producer.blocked),
            "last": [
                {"id": each.id, "name": each.name, "key": each.key, "status": each.status.value}
                | {"partition": each.partition, "offset": each.offset, "acks": each.acks}
                for each in mine[-NAMES_SHOWN:]
            ],
        }

    def _consumer(self, consumer: Consumer) -> dict[str, Any]:
        busy = consumer.busy_with
        return {
            "name": consumer.name,
            "group": consumer.plan.group,
            "topic": consumer.plan.topic,
            "protocol": consumer.plan.protocol,
            "is_static": consumer.plan.is_static,
            "commit": "transaction" if consumer.plan.output else consumer.plan.commit,
            "read_committed": consumer.plan.read_committed,
            "state": consumer.state,
            "life": consumer.incarnation,
            "owned": sorted(consumer.owned),
            "positions": {index: cursor.position for index, cursor in sorted(consumer.cursors.items())},
            "busy_with": None if busy is None else {"partition": busy[0], "offset": busy[1]},
            "handled": sum(each.consumer == consumer.name for each in self._simulation.ledger.handled),
        }

    def _share_consumer(self, worker: ShareConsumer) -> dict[str, Any]:
        busy = worker.busy_with
        return {
            "name": worker.name,
            "group": worker.plan.group,
            "topic": worker.plan.topic,
            "protocol": "share",
            "renews": worker.plan.renews,
            "state": worker.state,
            "life": worker.incarnation,
            "owned": sorted(worker.owned),
            "busy_with": None if busy is None else {"partition": busy[0], "offset": busy[1]},
            "held": len(worker.held),
            "handled": sum(each.consumer == worker.name for each in self._simulation.ledger.handled),
        }

    def _handled(self, each: Handled) -> dict[str, Any]:
        record = self._simulation.ledger.records.get(each.id)
        return {
            "at_ms": each.at_ms - self._simulation.story.origin_ms,
            "group": each.group,
            "consumer": each.consumer,
            "topic": each.topic,
            "partition": each.partition,
            "offset": each.offset,
            "name": "" if record is None else record.name,
            "key": None if record is None else record.key,
            "is_repeat": each.is_repeat,
        }

    # Verdict

    def verdict(self) -> dict[str, Any]:
        """Acknowledged records that are lost, duplicates in logs, and records that groups repeated or skipped."""
        ledger = self._simulation.ledger
        places: dict[str, Counter[int]] = {}
        reachable: dict[tuple[str, int], int] = {}
        for topic, known in self._simulation.topics.items():
            seen = places.setdefault(topic, Counter())
            for index in range(known.partitions):
                log = self.leader_log(topic, index)
                if log is not None:
                    reachable[topic, index] = log[0]
                    seen.update(each.id for each in log[1] if each.id and each.kind != "aborted")
        lost, deleted, compacted, twice = [], [], [], []
        acknowledged = 0
        for record in ledger.records.values():
            if record.status is not Status.ACKNOWLEDGED:
                continue
            acknowledged += 1
            start = reachable.get((record.topic, record.partition))
            if start is None or places[record.topic][record.id]:
                continue
            if 0 <= record.offset < start:
                deleted.append(record.name)
            elif self._is_compacted(record.topic):
                compacted.append(record.name)
            else:
                lost.append(record.name)
        for seen in places.values():
            often = [each for each, count in seen.items() if count > 1 and each in ledger.records]
            twice += [ledger.records[each].name for each in often]
        return {
            "acknowledged": acknowledged,
            "lost": _some(lost),
            "deleted": _some(deleted),
            "compacted": _some(compacted),
            "twice_in_log": _some(twice),
            "groups": {name: self._group_verdict(name) for name in sorted(self._group_topics())}
            | {name: self._share_verdict(name, topic) for name, topic in sorted(self._share_groups())},
            "outputs": {each: self._outputs(each) for each in sorted(self._output_topics())},
        }

    def _is_compacted(self, topic: str) -> bool:
        image = self._image()
        return image is not None and "compact" in image.topic_config(topic).get("cleanup.policy", "")

    def _group_topics(self) -> dict[str, str]:
        return {each.plan.group: each.plan.topic for each in self._simulation.consumers.values()}

    def _output_topics(self) -> set[str]:
        return {each.plan.output for each in self._simulation.consumers.values() if each.plan.output}

    def _group_verdict(self, group: str) -> dict[str, Any]:
        """Over the topic's records that were acknowledged or sent with acks=0."""
        ledger = self._simulation.ledger
        topic = self._group_topics()[group]
        found = self._groups().get(group)
        committed: dict[int, int] = {}
        if found is not None:
            committed = {
                key.partition: value.offset for key, value in found[1].offsets.of_group(group) if key.topic == topic
            }
        effects = ledger.effects.get(group, Counter())
        given_up = ledger.given_up.get(group, {})
        passed_over = [
            record.name
            for record in ledger.records.values()
            if record.topic == topic
            and record.status is Status.ACKNOWLEDGED
            and 0 <= record.offset < committed.get(record.partition, 0)
            and not effects[record.id]
            and record.id not in given_up
            and not record.transaction
        ]
        repeats = sum(each.group == group and each.is_repeat for each in ledger.handled)
        failing = [
            ledger.records[each].name
            for (name, each), _ in ledger.failures.items()
            if name == group and each not in given_up and each in ledger.records
        ]
        return {
            "topic": topic,
            "handled": sum(effects.values()),
            "records": len(effects),
            "twice": _some([ledger.records[each].name for each, count in effects.items() if count > 1]),
            "passed_over": _some(passed_over),
            "outside_twice": sum(count > 1 for count in ledger.outside.get(group, Counter()).values()),
            "recognised": repeats,
            "dead_letters": _some([ledger.records[each].name for each in given_up if each in ledger.records]),
            "failing": _some(failing),
        }

    def _share_groups(self) -> set[tuple[str, str]]:
        return {(each.plan.group, each.plan.topic) for each in self._simulation.share_consumers.values()}

    def _share_verdict(self, group: str, topic: str) -> dict[str, Any]:
        ledger = self._simulation.ledger
        effects = ledger.effects.get(group, Counter())
        lost = given_up(self._simulation, self._image(), group)
        failing = {each for name, each in ledger.failures if name == group} - {each.id for each in lost}
        return {
            "topic": topic,
            "handled": sum(effects.values()),
            "records": len(effects),
            "deliveries": sum(ledger.delivered.get(group, Counter()).values()),
            "twice": _some([ledger.records[each].name for each, count in effects.items() if count > 1]),
            "passed_over": _some([]),
            "given_up": _some([each.name for each in lost]),
            "outside_twice": 0,
            "recognised": 0,
            "dead_letters": _some([]),
            "failing": _some([ledger.records[each].name for each in sorted(failing) if not effects[each]]),
        }

    def _outputs(self, topic: str) -> dict[str, Any]:
        """How often a read_committed reader sees the output for each source record."""
        ledger = self._simulation.ledger
        seen: Counter[int] = Counter()
        hidden = 0
        for index in range(self._simulation.partition_count(topic)):
            log = self.leader_log(topic, index)
            for each in [] if log is None else log[1]:
                record = ledger.records.get(each.id)
                if record is not None and each.kind == "committed":
                    seen[record.source] += 1
                elif each.kind in ("open", "aborted"):
                    hidden += 1
        return {
            "sources": len(seen),
            "twice": _some([ledger.records[each].name for each, count in seen.items() if count > 1]),
            "not_shown": hidden,
        }


def _some(names: list[str]) -> dict[str, Any]:
    return {"count": len(names), "names": names[:NAMES_SHOWN]}


def _protocol_of(group: AnyGroup) -> str | None:
    match group:
        case ClassicGroup():
            return group.protocol
        case ConsumerGroup():
            return "kip-848"
        case ShareGroup():
            return "kip-932"
        case _:
            assert_never(group)
