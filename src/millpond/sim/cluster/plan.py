"""What a seed decides before a cluster starts: nodes, topics, clients and faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

WORK_MS = 10_000
"""How long clients work under faults, in virtual time."""

FIRST_FAULTS = (
    "power cut",
    "power cut",
    "kill",
    "kill",
    "kill of a leader",
    "kill of the controller",
    "all killed",
    "blackout",
    "stop",
    "stop",
    "pause",
    "pause of a leader",
    "pause of the controller",
    "isolation",
    "isolation of a leader",
    "one way cut",
    "split",
    "flapping",
    "slow ways",
    "lossy ways",
    "resets",
    "slow disk",
    "stuck disk",
    "full disk",
    "failing sync",
    "failing reads",
    "no more open files",
    "clock rate",
    "clock jump",
    "wiped disk",
    "bit rot",
)
"""The kinds before those below were added: with these, old seeds are the same runs as then."""

FAULTS = (
    *FIRST_FAULTS,
    "suspension",
    "suspension of a leader",
    "suspension of the controller",
    "rejecting isolation",
    "rejecting isolation of a leader",
    "rejecting isolation of the controller",
    "rejecting split",
)


HEARTBEATS_MS = ((300, 1_500),) * 5 + ((600, 3_000),) * 2 + ((2_000, 9_000),)
"""Heartbeat interval and session timeout of brokers: mostly our defaults, now and then Kafka's."""


@dataclass(slots=True, frozen=True)
class TopicPlan:
    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class ProducerPlan:
    version: int
    in_flight_max: int
    batches: int
    pace_ms: int


@dataclass(slots=True, frozen=True)
class FaultPlan:
    """One fault, with its own random numbers, so that it stays the same when another one is left out."""

    kind: str
    at_ms: int
    lasts_ms: int
    dice: int

    def __str__(self) -> str:
        return f"{self.kind} at {self.at_ms} ms for {self.lasts_ms} ms"


@dataclass(slots=True, frozen=True)
class Plan:
    nodes: int
    node: Mapping[str, str]
    """Settings of every node."""
    topics: tuple[TopicPlan, ...]
    producers: tuple[ProducerPlan, ...]
    readers: tuple[int, ...]
    """The Fetch version of each."""
    faults: tuple[FaultPlan, ...]
    disk_delay_ms: int = 5
    admin_operations: int = 0
    """How often topics are created and deleted, or records deleted, under faults."""
    has_racks: bool = False
    """Whether each node is in its own rack, and readers in the racks of some of them."""


def make_plan(seed: int | str, kinds: Sequence[str] = FAULTS, nodes: int | None = None) -> Plan:
    """The plan of a seed, with faults of these kinds only."""
    random = Random(f"cluster plan {seed}")
    count = random.choice((3, 3, 3, 5))
    count = nodes or count
    faults = sorted(
        (_fault(random, kinds) for _ in range(random.choice((1, 3, 6, 12)))), key=lambda fault: fault.at_ms
    )
    return Plan(
        nodes=count,
        node={
            "log.flush.offset.checkpoint.interval.ms": str(random.choice((100, 1_000, 5_000))),
            "replica.lag.time.max.ms": str(random.choice((1_000, 3_000))),
            "metadata.log.max.record.bytes.between.snapshots": str(random.choice((500, 3_000, 1 << 20))),
            "metadata.log.max.snapshot.interval.ms": str(random.choice((700, 3_600_000))),
            "leader.imbalance.check.interval.seconds": str(random.choice((1, 300))),
            **(_heartbeats(seed) if set(kinds) - set(FIRST_FAULTS) else {}),
        },
        topics=tuple(_topic(random, f"topic{number}", count) for number in range(random.randint(1, 2))),
        producers=tuple(
            ProducerPlan(
                version=random.choice((9, 12, 13)),
                in_flight_max=random.choice((1, 5)),
                batches=random.randint(20, 60),
                pace_ms=random.choice((50, 200, 400)),
            )
            for _ in range(random.randint(1, 3))
        ),
        readers=tuple(random.choice((11, 12, 16, 18)) for _ in range(random.randint(1, 2))),
        faults=tuple(faults),
        disk_delay_ms=random.choice((1, 5, 30)),
        admin_operations=random.choice((0, 0, 5, 15)),
    )


def _heartbeats(seed: int | str) -> dict[str, str]:
    """Heartbeats, on which leases depend. It has its own random numbers: the rest of the plan stays the same."""
    interval_ms, session_ms = Random(f"heartbeats {seed}").choice(HEARTBEATS_MS)
    return {"broker.heartbeat.interval.ms": str(interval_ms), "broker.session.timeout.ms": str(session_ms)}


def _topic(random: Random, name: str, nodes: int) -> TopicPlan:
    factor = min(3, nodes)
    configs = {"min.insync.replicas": str(min(2, factor)), "segment.bytes": str(random.choice((1 << 14, 1 << 20)))}
    if random.random() < 0.4:
        configs["flush.ack"] = "always"
    return TopicPlan(name, random.randint(1, 3), factor, configs)


def _fault(random: Random, kinds: Sequence[str]) -> FaultPlan:
    return FaultPlan(
        random.choice(kinds),
        random.randrange(WORK_MS),
        random.choice((100, 800, 2_500, 5_000)),
        random.randrange(1 << 32),
    )
