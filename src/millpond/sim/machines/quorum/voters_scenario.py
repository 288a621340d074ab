"""A quorum whose voters change under the usual faults.

Nodes that are not founders, or whose disk was wiped, start as observers that know only which nodes to contact, like
nodes that join a running cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar
from uuid import UUID

from millpond.quorum.events import NewVoters
from millpond.quorum.ports import Election
from millpond.quorum.replica import Replica
from millpond.quorum.voters import Voter
from millpond.sim.machines.quorum.scenario import TIMING, QuorumHost, Scenario
from millpond.sim.machines.run import Outcome

CHANGE_TRIES = 25
CHANGE_AGAIN_MS = 80
SPARED_MS = 2_000
"""How long no voter is removed after the loss of a disk, which the leader may not know yet."""

Change = Callable[[set[int]], set[int]]


class VotersScenario(Scenario):
    faults: ClassVar[tuple[str, ...]] = (
        # A starved quorum makes hardly any changes.
        *(each for each in Scenario.faults if each != "starve"),
        *("add_voter",) * 5,
        *("remove_voter",) * 5,
        *("two_changes",) * 3,
        *("remove_leader",) * 2,
        *("remove_who_is_away",) * 2,
        *("change_and_die",) * 3,
    )

    def __init__(self, seed: int, replica_class: type[Replica] = Replica) -> None:
        super().__init__(seed, replica_class)
        founders = self.random.choice((1, 1, 2, 3, 3))
        count = founders + self.random.choice((1, 2, 2, 3))
        self.hosts = [QuorumHost(self, node_id, 0) for node_id in range(1, count + 1)]
        self.voters = tuple(host.key for host in self.hosts[:founders])
        self._wiped_ms = -SPARED_MS
        self._joined = {host.node_id for host in self.hosts[founders:]}
        for host in self.hosts:
            host.saved = self.first_election(host)

    def first_election(self, host: QuorumHost) -> Election:
        return Election(is_new=True)

    def make_replica(self, host: QuorumHost) -> Replica:
        is_joined = host.node_id in self._joined
        return self._replica_class(
            host.key,
            () if is_joined else self.voters,
            host.log,
            host.saved,
            self,
            host.now_ms(),
            TIMING,
            [each for each in self._nodes if each != host.node_id] if is_joined else (),
        )

    # Changes.

    def _change(
        self, change: Change, then: Callable[[QuorumHost], None] | None = None, tries: int = CHANGE_TRIES
    ) -> None:
        """Ask any node that claims to lead, until one has started the change."""
        is_begun = False
        for host in self.hosts:
            replica = host.replica
            if replica is None or not replica.is_leader or host.paused_until_ms > self.now_ms:
                continue
            old = {each.node_id for each in replica.voters}
            new = change(set(old))
            voters = tuple(Voter(each, UUID(int=0)) for each in sorted(new))
            if (self.now_ms - self._wiped_ms < SPARED_MS and new < old) or self._has_fresh_disk(new):
                continue
            if new == old or replica.objection(voters, host.now_ms()) is not None:
                continue
            self.note("--- node", host.node_id, "changes the voters to", sorted(new))
            self.outcome.faults["changed"] = self.outcome.faults.get("changed", 0) + 1
            is_begun = True
            host.step(NewVoters(voters))
            if then is not None:
                then(host)
        if not is_begun and tries and self.now_ms < self.trouble_ms:
            self.later(CHANGE_AGAIN_MS, None, lambda: self._change(change, then, tries - 1))

    def _has_fresh_disk(self, voters: set[int]) -> bool:
        """Whether one of these was wiped and the leader has not noticed, as the disk keeps its id here. It does not
        vote, and two voters would need its vote."""
        return any(host.saved.is_new for host in self.hosts if host.node_id in voters & self._joined)

    def _adding(self) -> Change:
        node_id = self.random.choice(self._nodes)
        return lambda voters: voters | {node_id}

    def _removing(self) -> Change:
        node_id = self.random.choice(self._nodes)
        return lambda voters: voters - {node_id}

    def _any_change(self) -> Change:
        return self._adding() if self.random.random() < 0.5 else self._removing()

    def _fault_add_voter(self) -> None:
        self._change(self._adding())

    def _fault_remove_voter(self) -> None:
        self._change(self._removing())

    def _fault_two_changes(self) -> None:
        """Two changes at once, by clients that do not know of each other."""
        one, other = self._any_change(), self._any_change()
        self._change(one)
        self._change(other)

    def _fault_remove_leader(self) -> None:
        leaders = [host.node_id for host in self.hosts if host.replica is not None and host.replica.is_leader]
        self._change(lambda voters: voters - set(leaders))

    def _fault_remove_who_is_away(self) -> None:
        """The removed voter is down, and asks for votes when it is back."""
        host = self._any_host()
        self.isolate(host.node_id, self._nodes)
        self._change(lambda voters: voters - {host.node_id})

    def _fault_change_and_die(self) -> None:
        """The leader dies or is isolated in the middle of a change."""
        change = self._any_change()
        self._change(change, lambda host: self.later(self.random.randrange(40), None, lambda: self._strike(host)))

    def _can_spare(self, host: QuorumHost) -> bool:
        """All sets of voters that any node may still use."""
        for each in self.hosts:
            named = each.log.voters
            voters = {key.node_id for key in self.voters} if named is None else {one.node_id for one in named}
            others = [one for one in self.hosts if one.node_id in voters and one is not host]
            if host.node_id in voters and (
                len(others) <= len(voters) // 2 or any(one.saved.is_new for one in others)
            ):
                return False
        self._joined.add(host.node_id)
        self._wiped_ms = self.now_ms
        return True

    # The end.

    def _trouble(self) -> str | None:
        replicas = [host.replica for host in self.hosts if host.replica is not None]
        leader = next((replica for replica in replicas if replica.is_leader), None)
        if leader is not None and not leader.is_voter:
            return f"node {leader.me.node_id} leads and is no voter"
        for replica in replicas:
            if leader is not None and replica.log.voters != leader.log.voters:
                return f"node {replica.me.node_id} knows other voters than its leader"
        return super()._trouble()


def run_voters_seed(seed: int, replica_class: type[Replica] = Replica) -> Outcome:
    return VotersScenario(seed, replica_class).run()
