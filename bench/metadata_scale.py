"""The metadata of a large cluster in the simulator: 90 brokers, 100,000 partitions, and failures.

The voters and one observer are real brokers on simulated hosts, with quorum, controller, heartbeats and image; only
their logs are not opened, because one machine has no room for them. All other brokers are stand-ins, which register,
send heartbeats, and fetch the metadata over the simulated network without storing it. So the controller has all of
its work, and every other kind of work is measured once. Times are simulated (network and disk take time, the
processor does not); CPU times are those of this machine, by host.

`python -m bench.metadata_scale [BROKERS PARTITIONS]`
"""

from __future__ import annotations

import gc
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from uuid import UUID

import psutil  # type: ignore[import-untyped]

from millpond.base.later import Later, done
from millpond.broker.broker import Broker
from millpond.broker.peers.peers import Peers
from millpond.broker.peers.requester import RequestLost
from millpond.broker.quorum.snapshots import encode_snapshot
from millpond.broker.quorum.wire import FETCH_VERSION, decode_response, encode_request
from millpond.config.effective import NodeLayers
from millpond.config.node import node_settings
from millpond.metadata.codec import decode_record, encode_record
from millpond.metadata.elections import IsrRequest, decide_alter_partitions
from millpond.metadata.image import NO_DIRECTORY, Image
from millpond.metadata.leadership import IsrChange
from millpond.metadata.snapshot import records_of
from millpond.metadata.topics import NewTopic, decide_create_topics
from millpond.quorum.messages import Fetch, FetchResponse, ReplicaKey
from millpond.sim.world.host_clock import HostClock
from millpond.sim.world.network import SimNetwork
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m
from millpond.wire.batch import walk

BROKERS, PARTITIONS = 90, 100_000
PARTITIONS_PER_TOPIC = 200
REPLICAS = 3
VOTERS: Final = (1, 2, 3)
FOLLOWER: Final = 4
"""The one real broker that does not vote."""

PORT = 9092
HEARTBEAT_MS = 300
WAIT_MS = 500
QUIET_MS = 10_000
REGISTRATION_VERSION = 4
HEARTBEAT_VERSION = 1
ASK_MS = 5_000


def name_of(node_id: int) -> str:
    return f"n{node_id}"


# Processor time by host.


@dataclass(slots=True)
class Work:
    """The CPU time of one host."""

    cpu_ms: float = 0.0
    longest_ms: float = 0.0
    """The longest turn."""


class Meter:
    """Charges every turn to the host on which it runs."""

    def __init__(self, sim: SimWorld) -> None:
        self.work: dict[str, Work] = defaultdict(Work)
        self._sim = sim
        self._is_running = False

    def run(self, host: str, turn: Callable[[], None]) -> None:
        if self._is_running:
            turn()
            return
        self._is_running = True
        began = time.process_time_ns()
        try:
            turn()
        finally:
            self._is_running = False
            took_ms = (time.process_time_ns() - began) / 1e6
            work = self.work[host]
            work.cpu_ms += took_ms
            work.longest_ms = max(work.longest_ms, took_ms)

    @contextmanager
    def watching(self) -> Iterator[None]:
        run_timer, run_at = HostClock._run, SimNetwork.run_at
        meter = self

        def timed_run(clock: HostClock, callback: Callable[[], None]) -> None:
            host = next((each.name for each in meter._sim.hosts.values() if each.clock is clock), "")
            meter.run(host, lambda: run_timer(clock, callback))

        def timed_run_at(network: SimNetwork, host: str, callback: Callable[[], None]) -> None:
            meter.run(host, lambda: run_at(network, host, callback))

        HostClock._run, SimNetwork.run_at = timed_run, timed_run_at  # type: ignore[method-assign]
        try:
            yield
        finally:
            HostClock._run, SimNetwork.run_at = run_timer, run_at  # type: ignore[method-assign]

    def reset(self) -> None:
        self.work.clear()


# The nodes.


class Deaf:
    """An endpoint that ignores all data."""

    def __init__(self) -> None:
        self._scratch = memoryview(bytearray(4096))

    def buffer(self) -> memoryview:
        return self._scratch

    def received(self, count: int) -> None: ...

    def drained(self) -> None: ...

    def closed(self) -> None: ...


def _hear_nothing(_: object) -> Deaf:
    return Deaf()


class StandIn:
    """To the controller a broker: it registers, sends heartbeats, and fetches the metadata."""

    def __init__(self, cluster: LargeCluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.known_offset = 0
        """The high watermark that it knows."""
        self.fetched_bytes = 0
        self.epoch = -1
        self._offset = self._last_epoch = self._quorum_epoch = 0
        world = self._world = cluster.sim.start(name_of(node_id))
        world.network.listen(name_of(node_id), PORT, _hear_nothing)
        self._fetches, self._calls = (
            Peers(world, f"millpond-node-{node_id}", lambda other: (name_of(other), PORT)) for _ in range(2)
        )
        self._register()

    def _ask(self, request: m.Message, version: int, use: Callable[[Any], None], again: Callable[[], None]) -> None:
        def lost(failure: Exception) -> None:
            if not isinstance(failure, RequestLost):
                raise failure
            self._world.clock.call_later(100, again)

        asked = self._calls.ask(self.cluster.leader_id, request, version, ASK_MS)
        asked.then(use, lost)

    def _register(self) -> None:
        listener = m.BrokerRegistrationRequest.Listener(
            name="PLAINTEXT", host=name_of(self.node_id), port=PORT, security_protocol=0
        )
        request = m.BrokerRegistrationRequest(
            broker_id=self.node_id,
            cluster_id=self.cluster.cluster_id,
            incarnation_id=UUID(int=self.node_id),
            listeners=[listener],
            features=self.cluster.features,
            rack=None,
            log_dirs=[UUID(int=1000 + self.node_id)],
            previous_broker_epoch=-1,
        )

        def registered(response: m.BrokerRegistrationResponse) -> None:
            if response.error_code:
                self._world.clock.call_later(100, self._register)
                return
            self.epoch = response.broker_epoch
            self._beat()

        self._ask(request, REGISTRATION_VERSION, registered, self._register)

    def _beat(self) -> None:
        request = m.BrokerHeartbeatRequest(
            broker_id=self.node_id,
            broker_epoch=self.epoch,
            current_metadata_offset=max(self.known_offset - 1, self.epoch),
            want_fence=False,
            want_shut_down=False,
        )
        later = lambda _=None: self._world.clock.call_later(HEARTBEAT_MS, self._beat)  # noqa: E731
        self._ask(request, HEARTBEAT_VERSION, later, later)

    def follow(self, offset: int, last_epoch: int, quorum_epoch: int) -> None:
        """Fetch the metadata from here on, for ever."""
        self._offset, self._last_epoch, self._quorum_epoch = offset, last_epoch, quorum_epoch
        self._fetch()

    def _fetch(self) -> None:
        me = ReplicaKey(self.node_id, NO_DIRECTORY)
        fetch = Fetch(
            self._quorum_epoch, me, self._offset, self._last_epoch, self.known_offset, WAIT_MS, is_new=False
        )
        message, _ = encode_request(fetch, self.cluster.cluster_id)

        def fetched(answer: Any) -> None:
            response = decode_response(answer)
            if not isinstance(response, FetchResponse) or response.error:
                if response is not None:
                    self._quorum_epoch = max(self._quorum_epoch, response.epoch)
                self._world.clock.call_later(100, self._fetch)
                return
            if response.records:
                self.fetched_bytes += len(response.records)
                for _, header in walk(response.records):
                    self._offset, self._last_epoch = header.next_offset, header.leader_epoch
            self.known_offset = min(response.high_watermark, self._offset)
            self._fetch()

        def lost(_: Exception) -> None:
            self._world.clock.call_later(100, self._fetch)

        self._fetches.ask(self.cluster.leader_id, message, FETCH_VERSION, ASK_MS).then(fetched, lost)


class LargeCluster:
    def __init__(self, brokers: int, partitions: int) -> None:
        self.sim = SimWorld(1, shuffle=False)
        self.meter = Meter(self.sim)
        self.partitions = partitions
        nodes = ",".join(f"{each}@{name_of(each)}:{PORT}" for each in range(1, brokers + 1))
        self._texts = {
            "cluster.nodes": nodes,
            "cluster.voters": ",".join(map(str, VOTERS)),
            "data.folder": "/pond",
            "max.partitions": str(2 * partitions),
            "auto.leader.rebalance.enable": "false",
        }
        self.layers = NodeLayers(node_settings(self._texts | {"node.id": "1"}))
        self.real: dict[int, Broker] = {}
        self.stand_ins: dict[int, StandIn] = {}
        self._led: tuple[tuple[int, int, int], int] | None = None
        for node_id in (*VOTERS, FOLLOWER):
            self._start(node_id)
        self.wait(lambda: all(each.ready.ended for each in self.real.values()))
        for node_id in range(FOLLOWER + 1, brokers + 1):
            self.stand_ins[node_id] = StandIn(self, node_id)
        self.wait(lambda: sum(each.is_active for each in self.active.image.brokers.values()) == brokers)

    def _start(self, node_id: int) -> None:
        host = name_of(node_id)
        texts = self._texts | {"node.id": str(node_id), "listen": f"{host}:{PORT}"}
        broker = Broker(self.sim.start(host), node_settings(texts), _untold)
        # No machine has room for the logs of all.
        broker.replica_manager.open_all = _nothing  # type: ignore[method-assign]
        broker.replica_manager.on_records = _followed  # type: ignore[method-assign]
        broker.start()
        self.real[node_id] = broker

    @property
    def leader_id(self) -> int:
        """The node that the others take for the leader."""
        return next((node_id for node_id, each in self.real.items() if each.controller.is_active), VOTERS[0])

    @property
    def active(self) -> Broker:
        return self.real[self.leader_id]

    @property
    def cluster_id(self) -> str:
        return self.real[VOTERS[0]].image.cluster_id or ""

    @property
    def features(self) -> list[Any]:
        """The features that a real broker registers with."""
        known = self.real[FOLLOWER].image.brokers[FOLLOWER].features
        kind = m.BrokerRegistrationRequest.Feature
        return [
            kind(
                name=each.name,
                min_supported_version=each.min_supported_version,
                max_supported_version=each.max_supported_version,
            )
            for each in known
        ]

    def wait(self, condition: Callable[[], bool], within_ms: int = 120_000) -> int:
        """Run until the condition holds; the simulated time in ms."""
        began = self.sim.clock.now_ms
        if not self.sim.run_until(condition, within_ms=within_ms):
            raise RuntimeError("it does not come to rest")
        return self.sim.clock.now_ms - began

    def create(self) -> None:
        """All topics, one decision each."""
        count = self.partitions // PARTITIONS_PER_TOPIC
        entropy = self.active.world.entropy

        def decide(wanted: NewTopic) -> None:
            self.active.controller.submit(lambda image: decide_create_topics(image, self.layers, [wanted], entropy))

        for number in range(count):
            wanted = NewTopic(f"topic-{number}", PARTITIONS_PER_TOPIC, REPLICAS)
            self.meter.run(name_of(self.leader_id), partial(decide, wanted))
        self.wait(lambda: all(each.image.partitions_total >= self.partitions for each in self.real.values()))

    def follow(self) -> None:
        """From now on the stand-ins also fetch new metadata."""
        controller = self.active.controller
        log = controller.host.log
        for each in self.stand_ins.values():
            each.follow(log.end_offset, log.last_epoch, controller.host.epoch)
        self.sim.run_for(1_000)

    def led_by(self, node_id: int) -> int:
        """The number of partitions that it leads; cached until the metadata changes."""
        at = self.leader_id, self.active.controller.applied_offset, node_id
        if self._led is None or self._led[0] != at:
            held = self.active.image.partitions_of(node_id)
            self._led = at, sum(partition.leader == node_id for _, _, partition in held)
        return self._led[1]

    def knows_all(self, offset: int, without: int = -1) -> bool:
        real = all(each.controller.applied_offset >= offset for each in self.real.values())
        return real and all(
            each.known_offset >= offset for node_id, each in self.stand_ins.items() if node_id != without
        )


def _untold(event: str, **facts: object) -> None: ...


def _nothing(*, at_once: bool) -> None: ...


def _followed(records: Sequence[object]) -> Later[None]:
    return done(None)


# What is measured.


@dataclass(slots=True)
class Finding:
    title: str
    facts: dict[str, str] = field(default_factory=dict)

    def show(self) -> None:
        print(self.title)
        for name, text in self.facts.items():
            print(f"    {name:44} {text}", flush=True)


def measure(brokers: int, partitions: int) -> Iterator[Finding]:
    began = time.process_time()
    cluster = LargeCluster(brokers, partitions)
    meter = cluster.meter
    with meter.watching():
        meter.reset()
        cluster.create()
        controller, follower = meter.work[name_of(cluster.leader_id)], meter.work[name_of(FOLLOWER)]
        log_bytes = cluster.active.controller.log.size_bytes
        yield Finding(
            f"{partitions:,} partitions of {REPLICAS} replicas on {brokers} brokers",
            {
                "metadata log": f"{log_bytes / 1e6:.1f} MB, {log_bytes / partitions:.0f} B a partition",
                "made by the controller": f"{controller.cpu_ms / 1000:.1f} s CPU",
                "followed by a broker": f"{follower.cpu_ms / 1000:.1f} s CPU",
            },
        )
        yield _image_costs(cluster)
        cluster.follow()
        yield _quiet(cluster)
        yield _death(cluster, brokers, silently=False)
        yield _death(cluster, brokers - 1, silently=True)
        yield _return(cluster, brokers)
        yield _takeover(cluster)
    print(f"({time.process_time() - began:.0f} s CPU in all)")


def _image_costs(cluster: LargeCluster) -> Finding:
    image = cluster.active.image
    records = list(records_of(image))
    data = [encode_record(each) for each in records]

    def timed(work: Callable[[], object]) -> tuple[float, object]:
        began = time.process_time()
        result = work()
        return time.process_time() - began, result

    snapshot_s, snapshot = timed(lambda: encode_snapshot(iter(records), 0))
    decode_s, decoded = timed(lambda: [decode_record(each) for each in data])
    process = psutil.Process()
    before = process.memory_info().rss
    new = Image()
    replay_s, _ = timed(lambda: new.replay_all(decoded))  # type: ignore[arg-type]
    grown = process.memory_info().rss - before
    copy_s, _ = timed(new.copy)
    assert isinstance(snapshot, bytes)
    return Finding(
        "the image by itself",
        {
            "memory": f"{grown / 1e6:.0f} MB, {grown / cluster.partitions:.0f} B a partition",
            "a snapshot": f"{len(snapshot) / 1e6:.1f} MB, {snapshot_s:.1f} s CPU to write (on a worker)",
            "a broker that starts reads it in": f"{decode_s + replay_s:.1f} s CPU ({decode_s:.1f} to decode)",
            "a copy, for a controller that begins": f"{copy_s * 1000:.0f} ms CPU",
        },
    )


def _quiet(cluster: LargeCluster) -> Finding:
    meter = cluster.meter
    meter.reset()
    cluster.sim.run_for(QUIET_MS)
    controller, follower = meter.work[name_of(cluster.leader_id)], meter.work[name_of(FOLLOWER)]
    return Finding(
        f"nothing happens for {QUIET_MS // 1000} s",
        {
            "controller": f"{controller.cpu_ms / QUIET_MS:.1%} of a core",
            "a broker": f"{follower.cpu_ms / QUIET_MS:.1%} of a core",
        },
    )


def _death(cluster: LargeCluster, victim: int, *, silently: bool) -> Finding:
    meter, sim, active = cluster.meter, cluster.sim, cluster.active
    led = cluster.led_by(victim)
    held = sum(1 for _ in active.image.partitions_of(victim))
    fetched = {node_id: each.fetched_bytes for node_id, each in cluster.stand_ins.items()}
    start_offset = active.controller.host.log.end_offset
    meter.reset()
    (sim.crash if silently else sim.kill)(name_of(victim))
    fenced_ms = cluster.wait(lambda: active.image.brokers[victim].fenced)
    moved_ms = fenced_ms + cluster.wait(lambda: not cluster.led_by(victim) and active.controller.is_idle())
    offset = active.controller.applied_offset
    known_ms = moved_ms + cluster.wait(lambda: cluster.knows_all(offset, victim))
    controller, follower = meter.work[name_of(cluster.leader_id)], meter.work[name_of(FOLLOWER)]
    cluster.stand_ins.pop(victim)
    sent = [each.fetched_bytes - fetched[node_id] for node_id, each in cluster.stand_ins.items()]
    how = "a broker falls silent (its power is gone)" if silently else "a broker is killed (its connections break)"
    return Finding(
        f"{how}: it held {held:,} replicas and led {led:,}",
        {
            "fenced after": f"{fenced_ms:,} ms",
            "every leader has moved, at the controller": f"{moved_ms:,} ms",
            "every broker has heard": f"{known_ms:,} ms",
            "records": f"{offset - start_offset:,}",
            "bytes to each broker, and to all": f"{max(sent) / 1e3:.0f} kB, {sum(sent) / 1e6:.1f} MB",
            "controller": f"{controller.cpu_ms:.0f} ms CPU, longest turn {controller.longest_ms:.1f} ms",
            "a broker": f"{follower.cpu_ms:.0f} ms CPU, longest turn {follower.longest_ms:.1f} ms",
        },
    )


def _return(cluster: LargeCluster, node_id: int) -> Finding:
    """The broker is registered again, and every leader proposes it for the ISR: the controller's costs."""
    meter, active = cluster.meter, cluster.active
    start_offset = active.controller.host.log.end_offset
    meter.reset()
    back = cluster.stand_ins[node_id] = StandIn(cluster, node_id)
    log = active.controller.host.log
    back.follow(log.end_offset, log.last_epoch, active.controller.host.epoch)
    let_in_ms = cluster.wait(lambda: active.image.brokers[node_id].is_active)
    asked: dict[int, list[IsrRequest]] = defaultdict(list)
    for topic, index, partition in active.image.partitions_of(node_id):
        isr = (*partition.isr, node_id)
        epochs = tuple((each, active.image.brokers[each].epoch) for each in isr)
        leader_epoch = active.image.brokers[partition.leader].epoch
        change = IsrChange(partition.leader, leader_epoch, partition.leader_epoch, partition.partition_epoch, epochs)
        asked[partition.leader].append(IsrRequest(topic.id, index, change))

    def ask() -> None:
        for leader, requests in asked.items():
            epoch = active.image.brokers[leader].epoch
            active.controller.submit(
                lambda image, leader=leader, epoch=epoch, requests=requests: decide_alter_partitions(
                    image, cluster.layers, leader, epoch, requests
                )
            )

    meter.run(name_of(cluster.leader_id), ask)
    cluster.wait(lambda: active.controller.is_idle())
    offset = active.controller.applied_offset
    known_ms = cluster.wait(lambda: cluster.knows_all(offset))
    controller, follower = meter.work[name_of(cluster.leader_id)], meter.work[name_of(FOLLOWER)]
    return Finding(
        f"it comes back, and {sum(map(len, asked.values())):,} partitions take it in, as {len(asked)} leaders ask",
        {
            "let in after": f"{let_in_ms:,} ms",
            "every broker has heard of all": f"{known_ms:,} ms after the leaders have asked",
            "records": f"{offset - start_offset:,}",
            "controller": f"{controller.cpu_ms:.0f} ms CPU",
            "a broker": f"{follower.cpu_ms:.0f} ms CPU",
        },
    )


def _takeover(cluster: LargeCluster) -> Finding:
    meter, old = cluster.meter, cluster.leader_id
    led = cluster.led_by(old)
    meter.reset()
    del cluster.real[old]
    cluster.sim.kill(name_of(old))
    elected_ms = cluster.wait(lambda: any(each.controller.is_active for each in cluster.real.values()))
    active = cluster.active
    moved_ms = elected_ms + cluster.wait(
        lambda: active.image.brokers[old].fenced and not cluster.led_by(old) and active.controller.is_idle()
    )
    offset = active.controller.applied_offset
    known_ms = moved_ms + cluster.wait(lambda: cluster.knows_all(offset))
    controller = meter.work[name_of(cluster.leader_id)]
    return Finding(
        f"the active controller is killed: it led {led:,}",
        {
            "another one decides after": f"{elected_ms:,} ms",
            "every leader has moved": f"{moved_ms:,} ms",
            "every broker has heard": f"{known_ms:,} ms",
            "new controller": f"{controller.cpu_ms:.0f} ms CPU, longest turn {controller.longest_ms:.1f} ms",
        },
    )


def main() -> None:
    # One process holds the objects of several nodes, so its garbage collections say nothing about a node.
    gc.disable()
    brokers, partitions = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (BROKERS, PARTITIONS)
    for finding in measure(brokers, partitions):
        finding.show()


if __name__ == "__main__":
    main()
