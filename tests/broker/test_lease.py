"""How long leases last, by which settings and by which clock."""

from __future__ import annotations

import pytest

from millpond.broker.quorum.lease import LeaseClock, fence_wait_ms, lease_ms, proof_age_ms_max
from millpond.config.node import node_settings
from millpond.sim.world.world import SimWorld

FAST, SLOW = 1.1, 0.9


@pytest.mark.parametrize(
    ("interval_ms", "session_ms", "lease"),
    [(300, 1500, 400), (2000, 9000, 2666), (100, 400, 200), (300, 500, 250), (1, 1, 0)],
)
def test_times_scale_with_the_settings(interval_ms: int, session_ms: int, lease: int) -> None:
    settings = node_settings(
        {"broker.heartbeat.interval.ms": str(interval_ms), "broker.session.timeout.ms": str(session_ms)}
    )
    assert lease_ms(settings) == lease
    assert fence_wait_ms(settings) * SLOW >= (lease + proof_age_ms_max(settings)) * FAST * SLOW
    assert fence_wait_ms(settings) / FAST >= (lease + proof_age_ms_max(settings)) / SLOW - 1
    assert fence_wait_ms(settings) < session_ms


class Machine:
    def __init__(self) -> None:
        self.sim = SimWorld(1)
        self.clock = self.sim.start("machine").clock
        self.settings = node_settings({})
        self.lease_clock = LeaseClock(self.clock, self.settings)

    def passed_ms(self, during: int) -> int:
        """How much lease time elapses while this much time passes."""
        before_ms = self.lease_clock.now_ms()
        self.sim.run_for(during)
        return self.lease_clock.now_ms() - before_ms


def test_time_passes_while_a_machine_is_suspended() -> None:
    machine = Machine()
    assert machine.passed_ms(1_000) == 1_000
    machine.sim.suspend("machine", 5_000)
    assert machine.passed_ms(5_000) == 5_000
    assert machine.clock.monotonic_ms() == 1_000


@pytest.mark.parametrize("by_ms", [200, 60_000, -7_200_000])
def test_a_wall_clock_that_leaps_voids_every_lease_and_costs_no_session(by_ms: int) -> None:
    machine = Machine()
    before_ms = machine.lease_clock.now_ms()
    machine.sim.jump_wall("machine", by_ms)
    assert machine.lease_clock.now_ms() - before_ms == lease_ms(machine.settings)
    assert machine.passed_ms(100) == 100, "once"


def test_a_wall_clock_that_is_slewed_is_no_leap() -> None:
    machine = Machine()
    for _ in range(100):
        machine.sim.jump_wall("machine", 5)
        assert machine.passed_ms(100) == 100
