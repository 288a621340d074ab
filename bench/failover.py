"""How long writes stall when one node of three is killed, suspended or stopped in order.

A client that learns of a new leader as soon as any node does writes to every partition repeatedly: this measures the
cluster, not a client library's retries. The result is the longest time between two acknowledgements: of the worst
partition that the node led, and of the worst of all others.
"""

from __future__ import annotations

import contextlib
import random
import select
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from bench import raw
from bench.cluster import Nodes, partitions_of
from bench.measure import Plan
from bench.node import HOST, Node
from millpond.config.node import BROKER_HEARTBEAT_INTERVAL_MS
from millpond.wire import messages as m

TOPIC = "failover"
PARTITIONS = 6
LOOK_SECONDS = 0.02
WRITE_SECONDS = 0.005
SLICE_SECONDS = 0.01
ANSWER_SECONDS_MAX = 2.0
AGAIN_SECONDS_MAX = 60.0
CALM_SECONDS = 0.5
ELECTED_SECONDS = 5.0
"""How long a controller is active before it is stopped: after a controller that lasted less than four seconds, the
next election waits longer."""
HEARTBEAT_SECONDS = BROKER_HEARTBEAT_INTERVAL_MS.default / 1000
ELECT_LEADERS_VERSION = 2


@dataclass(frozen=True, slots=True)
class Outage:
    """The result of one trial, in milliseconds."""

    moved_ms: float
    others_ms: float


@dataclass(frozen=True, slots=True)
class Scenario:
    title: str
    of_controller: bool
    begin: Callable[[Node], object]
    end: Callable[[Node], object]


SCENARIOS = (
    Scenario("kill -9 of a leader", False, Node.kill, Node.start),
    Scenario("kill -9 of the controller, a leader", True, Node.kill, Node.start),
    Scenario("SIGSTOP of a leader", False, Node.pause, Node.resume),
    Scenario("SIGSTOP of the controller, a leader", True, Node.pause, Node.resume),
    Scenario("planned: SIGTERM of a leader", False, Node.stop, Node.start),
    Scenario("planned: SIGTERM of the controller, a leader", True, Node.stop, Node.start),
)


class Leaders:
    """The leader of each partition, according to the metadata with the highest leader epoch."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._known: dict[int, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._watch, args=(number,), daemon=True) for number in nodes.nodes]
        for thread in self._threads:
            thread.start()

    def of(self, partition: int) -> int:
        return self._known.get(partition, (0, -1))[1]

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _watch(self, number: int) -> None:
        client: raw.RawClient | None = None
        wanted = m.MetadataRequest.MetadataRequestTopic(name=TOPIC)
        request = m.MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)
        while not self._over.wait(LOOK_SECONDS):
            try:
                client = client or raw.RawClient(HOST, self._nodes[number].port, ANSWER_SECONDS_MAX)
                seen = client.call(request, raw.METADATA_VERSION)
            except OSError:
                if client is not None:
                    client.close()
                client = None
                continue
            assert isinstance(seen, m.MetadataResponse)
            with self._lock:
                for each in partitions_of(seen, TOPIC):
                    if each.leader_id > 0 and each.leader_epoch >= self._known.get(each.partition_index, (-1, -1))[0]:
                        self._known[each.partition_index] = (each.leader_epoch, each.leader_id)
        if client is not None:
            client.close()


class Prober(threading.Thread):
    """Writes to one partition, one record at a time, and records the times of acknowledgements."""

    def __init__(self, nodes: Nodes, leaders: Leaders, partition: int) -> None:
        super().__init__(daemon=True)
        self.acked: list[float] = []
        self._nodes = nodes
        self._leaders = leaders
        self._partition = partition
        self._frame = raw.produce_frame(TOPIC, partition, raw.batch(1, 100), raw.ACKS_ALL)
        self._over = threading.Event()

    def run(self) -> None:
        client: raw.RawClient | None = None
        at = -1
        while not self._over.wait(WRITE_SECONDS):
            leader = self._leaders.of(self._partition)
            if leader != at and client is not None:
                client.close()
                client = None
            if leader < 0:
                continue
            try:
                client = client or raw.RawClient(HOST, self._nodes[leader].port, ANSWER_SECONDS_MAX)
                at = leader
                if self._is_acked(client, leader):
                    self.acked.append(time.monotonic())
                    continue
            except (OSError, RuntimeError):
                pass
            # After an error or a change of leader, responses on this connection no longer count.
            if client is not None:
                client.close()
            client = None
        if client is not None:
            client.close()

    def _is_acked(self, client: raw.RawClient, leader: int) -> bool:
        client.send(self._frame)
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while time.monotonic() < deadline:
            if select.select([client.socket], [], [], SLICE_SECONDS)[0]:
                raw.check_produced(client.receive())
                return True
            if self._leaders.of(self._partition) != leader:
                return False
        return False

    def longest_ms(self, since: float) -> float:
        """The longest gap between two acknowledgements, starting with the last one before `since`."""
        acked = list(self.acked)
        before = [at for at in acked if at <= since]
        times = [*(before[-1:] or [since]), *(at for at in acked if at > since)]
        return max((b - a for a, b in pairwise(times)), default=0.0) * 1000

    def stop(self) -> None:
        self._over.set()
        self.join()


def measure_outages(plan: Plan) -> Iterator[tuple[Scenario, list[Outage]]]:
    """Run the trials of every scenario on one cluster."""
    trials = 2 if plan.quick else plan.slices * 10
    dice = random.Random(1)
    with Nodes(3) as nodes:
        nodes.create_topic(TOPIC, PARTITIONS)
        leaders = Leaders(nodes)
        probers = [Prober(nodes, leaders, partition) for partition in range(PARTITIONS)]
        for prober in probers:
            prober.start()
        try:
            for scenario in SCENARIOS:
                yield scenario, [_trial(nodes, leaders, probers, scenario, dice) for _ in range(trials)]
        except RuntimeError as fault:
            told = (f"node {number}: {nodes[number].last_words()}" for number in nodes.nodes)
            raise RuntimeError("\n".join((str(fault), *told))) from fault
        finally:
            for prober in probers:
                prober.stop()
            leaders.stop()


def _trial(nodes: Nodes, leaders: Leaders, probers: list[Prober], scenario: Scenario, dice: random.Random) -> Outage:
    _settle(nodes, probers)
    if scenario.of_controller:
        time.sleep(ELECTED_SECONDS)
    # A trial begins when its node has come back, which sets the pace of its heartbeats: without dice every trial
    # would fall between the same two of them.
    time.sleep(dice.random() * HEARTBEAT_SECONDS)
    victim = _victim(nodes, leaders, scenario)
    moved = {partition for partition in range(PARTITIONS) if leaders.of(partition) == victim}
    since = time.monotonic()
    scenario.begin(nodes[victim])
    _wait_for_acks(probers, moved, leaders, victim)
    time.sleep(CALM_SECONDS)
    longest = {partition: prober.longest_ms(since) for partition, prober in enumerate(probers)}
    scenario.end(nodes[victim])
    return Outage(
        max(longest[partition] for partition in moved),
        max((longest[partition] for partition in longest.keys() - moved), default=0.0),
    )


def _settle(nodes: Nodes, probers: list[Prober]) -> None:
    """Wait until all replicas are in sync, preferred leaders lead, and writes succeed."""
    nodes.wait_until_in_sync(TOPIC)
    with contextlib.suppress(OSError, RuntimeError):
        _elect_preferred(nodes)
    nodes.wait_until_in_sync(TOPIC)
    _wait_for_acks(probers)
    time.sleep(CALM_SECONDS)


def _elect_preferred(nodes: Nodes) -> None:
    kind = m.ElectLeadersRequest
    wanted = kind.TopicPartitions(topic=TOPIC, partitions=list(range(PARTITIONS)))
    with nodes[1].connect() as client:
        client.call(kind(election_type=0, topic_partitions=[wanted], timeout_ms=10_000), ELECT_LEADERS_VERSION)
    nodes.wait_until(lambda seen: all(each.leader_id == each.replica_nodes[0] for each in partitions_of(seen, TOPIC)))


def _victim(nodes: Nodes, leaders: Leaders, scenario: Scenario) -> int:
    controller = nodes.seen_by(1).controller_id
    leading = {leaders.of(partition) for partition in range(PARTITIONS)}
    if scenario.of_controller:
        if controller not in leading:
            raise RuntimeError(f"the controller, node {controller}, leads nothing")
        return controller
    return min(leading - {controller})


def _wait_for_acks(
    probers: list[Prober], moved: set[int] | None = None, leaders: Leaders | None = None, victim: int = 0
) -> None:
    """Wait until every partition accepts writes again, the moved ones at another node."""
    for partition in moved or ():
        assert leaders is not None
        _wait(lambda each: leaders.of(each) != victim, partition, "got no other leader")
    counts = [len(prober.acked) for prober in probers]
    for partition in range(len(probers)):
        _wait(lambda each: len(probers[each].acked) > counts[each] + 1, partition, "takes no writes")


def _wait(condition: Callable[[int], bool], partition: int, otherwise: str) -> None:
    deadline = time.monotonic() + AGAIN_SECONDS_MAX
    while not condition(partition):
        if time.monotonic() > deadline:
            raise RuntimeError(f"partition {partition} {otherwise}")
        time.sleep(SLICE_SECONDS)
