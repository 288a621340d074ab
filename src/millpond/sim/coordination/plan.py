"""What one seed decides before a run of groups and transactions begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from millpond.sim.clients.copy_worker import WorkerStyle
from millpond.sim.clients.group_member import MemberTimes
from millpond.sim.records.plan import FaultPlan

WORK_MS = 8_000
"""How long the workers run under faults, in virtual time."""

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


class Work(Enum):
    READ = "read"
    """Members of a group process records and commit offsets by themselves."""
    COPY = "copy"
    """They write to another topic, in transactions that commit the offsets, too."""


class Sharing(Enum):
    """How partitions are assigned to workers."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    MIXED = "mixed"
    """Members of both protocols in one group, which migrates between them as members come and go."""
    FIXED = "fixed"
    """Each worker has fixed partitions; only its transactional id fences an older incarnation."""


class Churn(Enum):
    LEAVE = "leave"
    CRASH = "crash"
    FREEZE = "freeze"
    REPLACE = "replace"
    """Freeze the worker, replace it, and thaw the old one later."""


@dataclass(slots=True, frozen=True)
class ChurnPlan:
    kind: Churn
    at_ms: int
    slot: int
    lasts_ms: int


@dataclass(slots=True)
class CoordinationPlan:
    node: Mapping[str, str]
    work: Work
    sharing: Sharing
    workers: list[WorkerStyle]
    times: MemberTimes
    input_partitions: int
    output_partitions: int
    batches: list[tuple[int, int]]
    """Input partition and number of records of each batch."""
    faults: list[FaultPlan]
    churn: list[ChurnPlan]
    ends_with_power_cut: bool
    disk_delay_ms: int
    request_timeout_ms: int = 5_000
    """How long a worker waits for a response; the request may arrive after that."""
    orphan_at_ms: int | None = None
    """When a worker begins a transaction that it never ends."""


def make_coordination_plan(
    seed: int | str,
    kinds: Sequence[str] = FAULTS,
    *,
    work: Work | None = None,
    sharing: Sharing | None = None,
    versions: Sequence[bool] = (True, False),
) -> CoordinationPlan:
    """The plan of a seed, with faults of these kinds only. `versions` are those of transactions, as `is_v2`."""
    random = Random(f"coordination plan {seed}")
    work = work or random.choice((Work.READ, Work.COPY, Work.COPY))
    if sharing is None:
        sharing = random.choice([each for each in Sharing if work is Work.COPY or each is not Sharing.FIXED])
    size = random.randint(1, 4)
    partitions = random.randint(2, 5)
    faults = [_fault(random, kinds) for _ in range(random.randint(1, 6) if kinds else 0)]
    churn = [_churn(random, size) for _ in range(random.randint(0, 6))]
    pace_ms = random.choice((30, 100, 300))
    pipelining = Random(f"pipelining crew {seed}")
    return CoordinationPlan(
        node={
            "offsets.topic.num.partitions": str(random.randint(1, 2)),
            "transaction.state.log.num.partitions": str(random.randint(1, 2)),
            "group.initial.rebalance.delay.ms": str(random.choice((-1, 0, 100, 500))),
            "group.min.session.timeout.ms": "100",
            "group.consumer.session.timeout.ms": "2000",
            "group.consumer.heartbeat.interval.ms": "300",
            "group.consumer.assignors": random.choice(("uniform", "range")),
            "log.flush.offset.checkpoint.interval.ms": str(random.choice((100, 1_000, 60_000))),
            "log.cleaner.backoff.ms": str(random.choice((200, 10_000))),
            # An empty group without offsets is removed with its generations, so only where there are no members.
            "offsets.retention.check.interval.ms": "500" if sharing is Sharing.FIXED else "600000",
        },
        work=work,
        sharing=sharing,
        workers=[
            replace(_style(random, versions, pace_ms), pipelines=pipelining.random() < 0.5) for _ in range(size)
        ],
        times=MemberTimes(),
        input_partitions=partitions,
        output_partitions=random.randint(1, 3),
        batches=[
            (random.randrange(partitions), random.choice((1, 1, 2, 3))) for _ in range(random.choice((15, 40, 80)))
        ],
        faults=sorted(faults, key=lambda fault: fault.at_ms),
        churn=sorted(churn, key=lambda each: each.at_ms),
        ends_with_power_cut=random.random() < 0.3,
        disk_delay_ms=random.choice((1, 5, 30)),
        request_timeout_ms=random.choice((1_000, 5_000)),
        orphan_at_ms=random.randint(0, WORK_MS) if work is Work.COPY and random.random() < 0.4 else None,
    )


def _style(random: Random, versions: Sequence[bool], pace_ms: int) -> WorkerStyle:
    return WorkerStyle(
        is_v2=random.choice(versions),
        timeout_ms=random.choice((1_500, 4_000)),
        pace_ms=pace_ms,
        abort_share=random.choice((0.0, 0.2)),
        is_careless=random.random() < 0.5,
        sends_late=random.random() < 0.5,
        ends_slowly=random.random() < 0.5,
    )


def _churn(random: Random, size: int) -> ChurnPlan:
    return ChurnPlan(
        random.choice(list(Churn)),
        random.randint(0, WORK_MS),
        random.randrange(size),
        random.choice((300, 3_000, 5_000)),
    )


def _fault(random: Random, kinds: Sequence[str]) -> FaultPlan:
    return FaultPlan(
        random.choice(kinds), random.randint(0, WORK_MS), random.choice((20, 300, 2_000)), random.random()
    )
