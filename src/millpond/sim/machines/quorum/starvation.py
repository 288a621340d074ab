"""A quorum on a machine with far too little CPU: each node pauses again and again, for longer than votes take.

Nothing is healed: the quorum has to work like this. The check limits how long it is without a leader.
"""

from __future__ import annotations

from millpond.quorum.replica import Replica
from millpond.sim.machines.quorum.scenario import TIMING, Scenario
from millpond.sim.machines.run import Outcome, Violation, Weather

NO_LEADER_FOR_LONG = "no leader for long"
VOTERS = 5
RUN_MS = 60_000
LOOK_MS = 100
STALL_MS = 3 * TIMING.election_ms
"""The longest pause of a node: longer than the others wait for its vote at first."""
LEADERLESS_MS_MAX = 20_000


class Starvation(Scenario):
    def __init__(self, seed: int, replica_class: type[Replica] = Replica) -> None:
        super().__init__(seed, replica_class)
        self.make_hosts(VOTERS)
        self.weather = Weather(delay_ms_max=3, sync_ms_max=10)
        self.trouble_ms = RUN_MS
        self.leaderless_ms_max = 0
        self._led_ms = 0

    def _live(self) -> None:
        for host in self.hosts:
            host.start()
            self.starve(host, STALL_MS, RUN_MS)
        self._propose_again()
        while self.now_ms < RUN_MS:
            self.run_until(self.now_ms + LOOK_MS)
            self._look()
        self._check_acknowledged()

    def _look(self) -> None:
        if self._is_led():
            self._led_ms = self.now_ms
        self.leaderless_ms_max = max(self.leaderless_ms_max, self.now_ms - self._led_ms)
        if self.leaderless_ms_max > LEADERLESS_MS_MAX:
            raise Violation(f"{NO_LEADER_FOR_LONG}: {self.leaderless_ms_max} ms")

    def _is_led(self) -> bool:
        """Whether a majority follows one of them."""
        replicas = [host.replica for host in self.hosts if host.replica is not None]
        followed = [(each.epoch, each.leader_id) for each in replicas]
        return any(each.is_leader and followed.count((each.epoch, each.leader_id)) > VOTERS // 2 for each in replicas)


def run_seed(seed: int, replica_class: type[Replica] = Replica) -> Outcome:
    return Starvation(seed, replica_class).run()
