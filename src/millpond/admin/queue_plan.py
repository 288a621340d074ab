"""Capacity planning of a work queue: workers, records in flight and partitions. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from millpond.admin.plan import Line, Section
from millpond.base.units import show_number
from millpond.config.group import SHARE_PARTITION_MAX_RECORD_LOCKS, SHARE_RECORD_LOCK_DURATION_MS

LOCKS_MAX: Final = SHARE_PARTITION_MAX_RECORD_LOCKS.default
LOCK_SECONDS: Final = SHARE_RECORD_LOCK_DURATION_MS.default / 1000


@dataclass(frozen=True, slots=True)
class QueueDemand:
    """The work that each record is."""

    records_per_second: float
    peak: float
    """The peak, as a multiple of the average."""
    work_seconds: float
    """How long a worker needs for one record."""
    held: int = 1
    """Records that a worker holds at a time; it works on them one after another."""


@dataclass(frozen=True, slots=True)
class QueuePlan:
    workers: int
    """Busy all the time, on average."""
    workers_peak: int
    in_flight: int
    """Records that are out with workers at the peak."""
    partitions: int
    """At least this many, so that the limit of records in flight does not hold workers up."""
    held_seconds: float
    """How long a worker has a record, from its delivery to its acknowledgement."""

    @property
    def must_renew(self) -> bool:
        """Whether the default lock expires before the last record that a worker holds is done."""
        return self.held_seconds > LOCK_SECONDS


def make_queue_plan(demand: QueueDemand) -> QueuePlan:
    busy = demand.records_per_second * demand.work_seconds
    workers_peak = _whole(busy * demand.peak)
    in_flight = workers_peak * demand.held
    return QueuePlan(
        workers=_whole(busy),
        workers_peak=workers_peak,
        in_flight=in_flight,
        partitions=_whole(in_flight / LOCKS_MAX),
        held_seconds=demand.work_seconds * demand.held,
    )


def queue_section(plan: QueuePlan, demand: QueueDemand) -> Section:
    """The calculations behind the numbers."""
    rate, work = show_number(demand.records_per_second), show_number(demand.work_seconds)
    advice = "renew, hold fewer, or raise the lock" if plan.must_renew else "within the lock"
    return Section(
        "Work queue",
        [
            Line("workers", f"{rate}/s × {work} s", f"{plan.workers:,}"),
            Line("at peak", f"{rate}/s × {work} s × {show_number(demand.peak)}", f"{plan.workers_peak:,}"),
            Line("in flight", f"{plan.workers_peak:,} workers × {demand.held:,} held", f"{plan.in_flight:,}"),
            Line("partitions", f"{plan.in_flight:,} ÷ {LOCKS_MAX:,} locks", f"{plan.partitions:,} at least"),
            Line(
                "a record is held",
                f"{demand.held:,} × {work} s, against {show_number(LOCK_SECONDS)} s",
                f"{show_number(plan.held_seconds)} s: {advice}",
            ),
        ],
    )


def _whole(number: float) -> int:
    """Round up, ignoring floating-point noise."""
    return max(1, ceil(number - 1e-9))
