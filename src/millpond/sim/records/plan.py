"""What a seed decides before a run: settings, topics, clients and faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

WORK_MS = 8_000
"""How long clients work under faults, in virtual time."""

WIDE_SHARE = 0.25
WIDE_PARTITIONS = (12, 20)
"""With this many partitions, one sync of the whole file system replaces those of the logs."""

FAULTS = (
    "power cut",
    "power cut at operation",
    "power cut at operation",
    "kill",
    "kill",
    "stop",
    "failing sync",
    "failing sync, then kill",
    "full disk",
    "failing reads",
    "no more open files",
    "resets",
    "lost packets",
    "slow network",
    "slow disk",
    "stuck disk",
    "cold disk",
    "clock jump",
    "clock behind",
    "suspension",
    "pause",
    "offline partition",
    "offline partition",
)


@dataclass(slots=True)
class TopicPlan:
    name: str
    partitions: int
    configs: dict[str, str]

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.configs.get("cleanup.policy", "")

    @property
    def survives(self) -> bool:
        return self.configs.get("flush.ack") != "never"


@dataclass(slots=True)
class ProducerPlan:
    acks: int
    idempotent: bool
    version: int
    codec: int
    in_flight_max: int
    batches: int
    pace_ms: int


@dataclass(slots=True)
class FaultPlan:
    kind: str
    at_ms: int
    lasts_ms: int
    luck: float

    def __str__(self) -> str:
        return f"{self.kind} at {self.at_ms} ms for {self.lasts_ms} ms"


@dataclass(slots=True)
class Plan:
    node: Mapping[str, str]
    topics: list[TopicPlan]
    producers: list[ProducerPlan]
    readers: list[int]
    """The Fetch version of each."""
    faults: list[FaultPlan]
    admin_operations: int
    ends_with_power_cut: bool
    values_bytes_max: int
    keys: int
    disk_delay_ms: int = 5
    deletions: int = 0
    """How often a topic is deleted and created again while clients use it."""


def make_plan(seed: int | str, kinds: Sequence[str] = FAULTS) -> Plan:
    """The plan of a seed, with faults of these kinds only."""
    random = Random(f"plan {seed}")
    topics = [_topic(random, f"topic{number}") for number in range(random.randint(1, 3))]
    # It has its own random numbers, so that the rest of the plan stays the same.
    wide = Random(f"wide {seed}")
    if wide.random() < WIDE_SHARE:
        topics[0].partitions = wide.randint(*WIDE_PARTITIONS)
    faults = sorted((_fault(random, kinds) for _ in range(random.randint(1, 7))), key=lambda fault: fault.at_ms)
    return Plan(
        node={
            "log.retention.check.interval.ms": str(random.choice((200, 1_000, 10_000))),
            "log.cleaner.backoff.ms": str(random.choice((200, 1_000, 10_000))),
            "log.flush.offset.checkpoint.interval.ms": str(random.choice((100, 1_000, 60_000))),
            "log.segment.delete.delay.ms": str(random.choice((0, 500, 3_000))),
            "max.inflight.requests.per.connection": str(random.choice((1, 2, 100))),
        },
        topics=topics,
        producers=[_producer(random) for _ in range(random.randint(1, 4))],
        readers=[random.choice((4, 6, 7, 11, 12, 13, 16, 18)) for _ in range(random.randint(1, 2))],
        faults=faults,
        admin_operations=random.choice((0, 0, 1, 3)),
        ends_with_power_cut=random.random() < 0.5,
        values_bytes_max=random.choice((30, 300, 1_500)),
        keys=random.choice((2, 10, 50)),
        disk_delay_ms=random.choice((1, 5, 30)),
        deletions=wide.choice((0, 0, 0, 3, 6)),
    )


def _topic(random: Random, name: str) -> TopicPlan:
    configs = {"segment.bytes": str(random.choice((1 << 14, 1 << 15, 1 << 20)))}
    kind = random.random()
    if kind < 0.25:
        configs["cleanup.policy"] = random.choice(("compact", "compact", "compact,delete"))
        configs["min.cleanable.dirty.ratio"] = random.choice(("0.01", "0.5"))
        configs["delete.retention.ms"] = random.choice(("0", "86400000"))
    elif kind < 0.5:
        configs["retention.ms"] = random.choice(("2000", "8000"))
        configs["segment.ms"] = random.choice(("500", "2000"))
    elif kind < 0.65:
        configs["retention.bytes"] = random.choice(("20000", "60000"))
    if random.random() < 0.15:
        configs["flush.ack"] = "never"
    if random.random() < 0.15:
        configs["message.timestamp.type"] = "LogAppendTime"
    if random.random() < 0.3:
        configs["index.interval.bytes"] = random.choice(("0", "512"))
    if random.random() < 0.2:
        configs["flush.ms"] = "500"
    return TopicPlan(name, random.randint(1, 3), configs)


def _producer(random: Random) -> ProducerPlan:
    idempotent = random.random() < 0.7
    return ProducerPlan(
        acks=-1 if idempotent else random.choice((0, 1, -1)),
        idempotent=idempotent,
        version=random.choice((3, 5, 7, 8, 9, 11, 12, 13)),
        codec=random.choice((0, 0, 1, 3)),
        in_flight_max=random.choice((1, 5)),
        batches=random.randint(5, 80),
        pace_ms=random.choice((5, 50, 200)),
    )


def _fault(random: Random, kinds: Sequence[str]) -> FaultPlan:
    return FaultPlan(
        random.choice(kinds), random.randint(0, WORK_MS), random.choice((20, 300, 2_000)), random.random()
    )
