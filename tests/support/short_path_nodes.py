"""The same requests sent to two nodes: one answers small requests on its short paths, one on the general path only.

Both must give the same responses, byte for byte, and reach the same state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from millpond.base.principal import Principal
from millpond.broker.broker import Broker
from millpond.broker.replication.partitions import Partition
from millpond.replication.leader import PartitionView
from millpond.sim.node import SimNode
from millpond.sim.world.world import SimWorld
from support.fuzz.target import HostileLink
from support.fuzz.watch import Turn

START_MS = 60_000


class Heard:
    """What one client received."""

    def __init__(self) -> None:
        self.data = b""

    def take(self, data: bytes) -> None:
        self.data += data


class Side:
    """One node, and its connections by number."""

    def __init__(self, name: str, seed: int, texts: Mapping[str, str]) -> None:
        self.name = name
        self.sim = SimWorld(seed, shuffle=False)
        self.clock = self.sim.clock
        self.node = SimNode(self.sim, texts=texts)
        self.links: dict[int, HostileLink] = {}
        self.turn = Turn()
        """Required by `HostileLink`; turns are not measured here."""
        self.short_answers: Counter[str] = Counter()
        """How many requests of each API took a short path."""
        self.node.workers_delay_ms_usual = 0
        assert self.node.start(), self.node.journal_lines
        assert self.sim.run_until(lambda: self.broker.lifecycle.knows_itself, within_ms=START_MS)
        self.broker.dispatcher.load()
        for entry in self.broker.dispatcher._entries.values():
            api = entry.api
            if name == "general":
                entry.api = replace(api, short=None)
            elif api.short is not None:
                entry.api = replace(api, short=self._counted(api.name, api.short))

    def _counted(self, name: str, short: Callable[..., bool]) -> Callable[..., bool]:
        def way(connection: Any, frame: memoryview) -> bool:
            is_short = short(connection, frame)
            self.short_answers[name] += is_short
            return is_short

        return way

    @property
    def broker(self) -> Broker:
        return self.node.broker

    # Actions

    def do(self, what: str, *facts: Any) -> None:
        getattr(self, what)(*facts)

    def connect(self, number: int, principal: Principal | None, listener: str) -> None:
        link = HostileLink(self, f"10.0.0.{number % 250}:4242", Heard(), listener)  # type: ignore[arg-type]
        connections = self.broker.connections
        handler = connections.accept(link)
        assert handler is not None
        if principal is not None:
            connections.identify(handler, principal)
        link.start(handler)
        self.links[number] = link

    def deliver(self, number: int, data: bytes) -> None:
        if self.links[number].alive:
            self.links[number].deliver(data)

    def abort(self, number: int) -> None:
        self.links[number].abort()

    def deafen(self, number: int) -> None:
        self.links[number].reads = False

    def listen(self, number: int) -> None:
        self.links[number].read_all()

    def pass_time(self, ms: int) -> None:
        self.clock.run_until(within_ms=ms)

    def jump_wall(self, by_ms: int) -> None:
        self.sim.jump_wall(self.node.name, by_ms)

    def cool(self, share: float) -> None:
        self.node.disk.cold_share = share

    def fill(self, left_bytes: int) -> None:
        self.node.disk.fill(left_bytes)

    def make_room(self) -> None:
        self.node.disk.make_room()

    def change_role(
        self, topic: str, index: int, leader: int, replicas: tuple[int, ...], isr: tuple[int, ...]
    ) -> None:
        """Apply the metadata of a move or an election."""
        partition = self.partition(topic, index)
        if partition is not None and partition.view is not None:
            view = partition.view
            partition.apply_metadata(
                PartitionView(leader, view.leader_epoch + 1, view.partition_epoch + 1, replicas, isr)
            )

    # Observations

    def partition(self, topic: str, index: int) -> Partition | None:
        return self.broker.partitions.get(topic, index)

    def heard(self, number: int) -> bytes:
        heard: Any = self.links[number].answers
        data: bytes = heard.data
        return data

    def state(self) -> dict[str, object]:
        """All the state that must not depend on the path."""
        broker = self.broker
        result: dict[str, object] = {}
        for number, link in self.links.items():
            result[f"connection {number}"] = link.alive, self.heard(number)
        for partition in broker.partitions:
            log = partition.log
            result[f"partition {partition.name}"] = (
                log.start_offset,
                log.end_offset,
                partition.committed_offset,
                partition.written_bytes,
                partition.written_records,
                partition.read_bytes,
                len(partition.watchers),
                dict(log.producers._unwritten),
                (log.last_append_ms, log.epochs.entries),
                [(each.size, each.max_timestamp, each.max_timestamp_offset) for each in log.segments],
                {
                    number: (entry.epoch, entry.spans, entry.forgotten, entry.active_ms)
                    for number, entry in log.producers.entries.items()
                },
                partition.acknowledged.counts,
            )
        result["sessions"] = [
            (each.id, each.epoch, each.last_used_ms, each.owner, list(each.partitions.values()))
            for each in broker.fetch_sessions._sessions.values()
        ]
        result["pending"] = len(broker.pending_fetches)
        for index, shard in enumerate(broker.groups.shards()):
            groups = {name: (group.state_name, group.member_count) for name, group in shard.groups.items()}
            result[f"groups {index}"] = groups, shard.next_deadline_ms(), shard.offsets.by_group
            result[f"group timers {index}"] = shard.shared.timers._deadlines, shard.memory.used_bytes
        requests = broker.requests
        result["requests"] = dict(requests.received), requests.errors
        result["request times"] = {key: (each.counts, each.sum_us) for key, each in requests.times.items()}
        return result

    def files(self) -> dict[str, bytes]:
        for partition in self.broker.partitions:
            partition.log.segments.active.flush_indexes()
        return dict(self.node.disk.contents())
