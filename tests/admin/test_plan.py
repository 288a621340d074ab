"""The arithmetic of a plan, held to a worked example: a million messages of 1 KB a second, kept for a week."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.admin.plan import Demand, Engine, Machine, make_plan, sums

MB, GB, TB, PB = 1e6, 1e9, 1e12, 1e15
WEEK = 7 * 86_400

EXAMPLE = Demand(
    messages_per_second=1e6,
    message_bytes=1e3,
    peak=2,
    replication=3,
    retention_seconds=WEEK,
    groups=2,
    partition_bytes_per_second=10 * MB,
    headroom=2,
)
MACHINE = Machine(disk_bytes=20 * TB, disk_bytes_per_second=100 * MB, network_bytes_per_second=1.25 * GB)


def test_the_worked_example() -> None:
    plan = make_plan(EXAMPLE, MACHINE)
    # "1 GB/s of incoming data, and plan for a peak of twice that"
    assert (plan.incoming, plan.incoming_peak) == (1 * GB, 2 * GB)
    # "3 GB/s of disk writes on average and 6 GB/s at peak"
    assert (plan.disk_writes, plan.disk_writes_peak) == (3 * GB, 6 * GB)
    # "2 GB/s toward consumers, and the followers … another 2 GB/s …, about 4 GB/s of network egress"
    assert (plan.to_consumers, plan.to_followers, plan.outgoing) == (2 * GB, 2 * GB, 4 * GB)
    # "about 86 TB per day, around 605 TB for the week, and roughly 1.8 PB once tripled"
    assert plan.kept_per_day == pytest.approx(86 * TB, rel=0.01)
    assert plan.kept == pytest.approx(605 * TB, rel=0.001)
    assert plan.stored == pytest.approx(1.8 * PB, rel=0.01)
    # "20 TB of usable disk each put the floor at about 90 machines": 90.72, and machines come whole.
    assert plan.brokers_by["disk"] == pytest.approx(90, rel=0.01)
    assert int(plan.brokers_by["disk"]) == 90
    assert plan.brokers == 91
    # "that count conveniently also covers the bandwidth"
    assert max(plan.brokers_by, key=lambda name: plan.brokers_by[name]) == "disk"
    # "about 11 MB/s per broker, rising to roughly 33 MB/s of disk writes"
    assert plan.leader_writes_per_broker == pytest.approx(11 * MB, rel=0.02)
    assert plan.disk_writes_per_broker == pytest.approx(33 * MB, rel=0.02)
    # "at least 100 partitions on the main topic, and choosing 200 leaves headroom", "200 partitions at 5 MB/s each"
    assert (plan.partitions_min, plan.partitions) == (100, 200)
    assert plan.incoming / plan.partitions == 5 * MB


def test_every_sum_is_shown_with_its_result() -> None:
    printed = {
        (section.title, line.label, line.sum): line.result
        for section in sums(make_plan(EXAMPLE, MACHINE), EXAMPLE, MACHINE)
        for line in section.lines
    }
    assert printed["Incoming data", "incoming", "1,000,000/s × 1 KB"] == "1 GB/s"
    assert printed["Storage", "retention", "86.4 TB × 7 days"] == "605 TB"
    assert printed["Storage", "with replicas", "605 TB × 3"] == "1.81 PB"
    assert printed["Brokers", "for the disk", "1.81 PB ÷ 20 TB"] == "90.7"
    assert printed["Brokers", "brokers", "the disk decides, rounded up"] == "91"
    assert printed["Partitions", "with headroom", "100 × 2"] == "200"


@pytest.mark.parametrize(
    ("machine", "decides"),
    [
        ({"disk_bytes": 1 * TB}, "disk"),
        ({"disk_bytes_per_second": 1 * MB}, "disk speed"),
        ({"network_bytes_per_second": 1 * MB}, "network"),
        ({"engine": Engine(1 * MB, 1 * GB, 1e6)}, "cores"),
        ({"disk_bytes": 1e30, "disk_bytes_per_second": 1e30, "network_bytes_per_second": 1e30}, "replicas"),
    ],
)
def test_the_scarcest_resource_decides(machine: dict[str, Any], decides: str) -> None:
    plan = make_plan(EXAMPLE, replace(MACHINE, **machine))
    assert max(plan.brokers_by, key=lambda name: plan.brokers_by[name]) == decides
    assert plan.brokers >= max(plan.brokers_by.values()) - 1e-6


def test_a_measured_core_shares_its_time_among_writing_reading_and_answering() -> None:
    engine = Engine(write_bytes_per_second=600 * MB, read_bytes_per_second=2 * GB, requests_per_second=10_000)
    machine = replace(MACHINE, cores=2, engine=engine)
    plan = make_plan(EXAMPLE, machine)
    # 6 GB/s ÷ 600 MB/s + 8 GB/s ÷ 2 GB/s + 20,000/s ÷ 10,000/s = 10 + 4 + 2 cores, two to a broker.
    assert plan.brokers_by["cores"] == pytest.approx(8)
    brokers = next(section for section in sums(plan, EXAMPLE, machine) if section.title == "Brokers")
    assert [line.result for line in brokers.lines if "core" in line.label] == ["10", "4", "2", "8"]


@given(
    st.builds(
        Demand,
        messages_per_second=st.floats(0.01, 1e8),
        message_bytes=st.floats(1, 1e7),
        peak=st.floats(1, 20),
        replication=st.integers(1, 5),
        retention_seconds=st.floats(1, 1e9),
        groups=st.integers(0, 50),
        partition_bytes_per_second=st.floats(1e3, 1e9),
        headroom=st.floats(1, 10),
    )
)
def test_every_plan_meets_its_demand(demand: Demand) -> None:
    plan = make_plan(demand, MACHINE)
    assert plan.brokers * MACHINE.disk_bytes >= plan.stored * (1 - 1e-6)
    assert plan.brokers * MACHINE.disk_bytes_per_second >= plan.disk_writes_peak * (1 - 1e-6)
    assert plan.brokers >= demand.replication
    assert plan.partitions >= plan.partitions_min >= 1
    assert plan.partitions_min * demand.partition_bytes_per_second >= plan.incoming * (1 - 1e-6)
    lines = [line for section in sums(plan, demand, MACHINE) for line in section.lines]
    assert all(line.result and len(line.sum) < 50 for line in lines)
