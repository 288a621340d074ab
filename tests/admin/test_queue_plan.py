"""The arithmetic of a plan for a work queue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.admin.queue_plan import LOCK_SECONDS, LOCKS_MAX, QueueDemand, make_queue_plan, queue_section


def test_workers_follow_from_the_work_and_not_from_partitions() -> None:
    demand = QueueDemand(records_per_second=500, peak=2, work_seconds=3, held=10)
    plan = make_queue_plan(demand)
    assert (plan.workers, plan.workers_peak, plan.in_flight, plan.partitions) == (1_500, 3_000, 30_000, 15)
    assert plan.must_renew is False, "30 s is the lock"
    shown = {line.label: line.result for line in queue_section(plan, demand).lines}
    assert shown == {
        "workers": "1,500",
        "at peak": "3,000",
        "in flight": "30,000",
        "partitions": "15 at least",
        "a record is held": "30 s: within the lock",
    }


def test_a_small_queue_needs_one_worker_and_one_partition() -> None:
    plan = make_queue_plan(QueueDemand(records_per_second=0.01, peak=1, work_seconds=40))
    assert (plan.workers, plan.workers_peak, plan.in_flight, plan.partitions) == (1, 1, 1, 1)
    assert plan.must_renew


@given(st.floats(0.001, 1e6), st.floats(1, 10), st.floats(0.001, 10_000), st.integers(1, 1_000))
def test_what_is_planned_is_enough(rate: float, peak: float, work_seconds: float, held: int) -> None:
    plan = make_queue_plan(QueueDemand(rate, peak, work_seconds, held))
    # Little's law: what is in work is what comes in a second, times the seconds that it takes.
    assert plan.workers >= rate * work_seconds * (1 - 1e-9) - 1e-9
    assert plan.workers_peak >= plan.workers
    assert plan.in_flight <= plan.partitions * LOCKS_MAX
    assert plan.held_seconds == pytest.approx(work_seconds * held)
    assert plan.must_renew == (work_seconds * held > LOCK_SECONDS)
