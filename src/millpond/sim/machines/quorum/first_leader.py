"""A cluster whose first leader dies at once with its records, when only one voter has heard from it.

The leader's disk is slow, the others lose power as soon as they have voted, and the replica that has the first record
forgets its sender. When all are back, they must elect a leader.
"""

from __future__ import annotations

from millpond.quorum.events import Event
from millpond.quorum.messages import VoteResponse
from millpond.quorum.ready import Reply
from millpond.quorum.replica import Replica
from millpond.sim.machines.quorum.scenario import QuorumHost, Scenario
from millpond.sim.machines.run import Outcome

VOTERS = 3
DIES_WITHIN_MS = 5_000


class Founding(Scenario):
    def __init__(self, seed: int, replica_class: type[Replica] = Replica) -> None:
        super().__init__(seed, replica_class)
        self.make_hosts(VOTERS)
        self.trouble_ms = DIES_WITHIN_MS
        self._heir: QuorumHost | None = None
        """The replica that will have the first record."""

    def _live(self) -> None:
        for host in self.hosts:
            host.start()
        while self.now_ms < self.trouble_ms and not self._is_heard():
            self.run_until(self.now_ms + 1)
        for host in self.hosts:
            if host.replica is not None:
                host.stop(power=True)
        self.now_ms = self.trouble_ms
        self._propose_again()
        self._heal()
        self.run_until_well(self.trouble_ms, self._trouble)
        self._check_acknowledged()

    def reply(self, sender: QuorumHost, reply: Reply) -> None:
        super().reply(sender, reply)
        if self.now_ms >= self.trouble_ms or sender.saved.voted is None:
            return
        if isinstance(reply.response, VoteResponse) and reply.response.granted:
            self._heir = self._heir or sender
            if sender is not self._heir:
                self.later(0, None, lambda: sender.stop(power=True))

    def _look_at_leader(self, host: QuorumHost, replica: Replica, event: Event) -> None:
        if self.now_ms < self.trouble_ms:
            # From now on its disk does not respond.
            host.is_syncing = True
        super()._look_at_leader(host, replica, event)

    def _is_heard(self) -> bool:
        return self._heir is not None and self._heir.log.end_offset > 0 and not self._heir.log.mark()


def run_seed(seed: int, replica_class: type[Replica] = Replica) -> Outcome:
    return Founding(seed, replica_class).run()
