"""One seeded run of a quorum: replicas, disks that lose data, and a client that writes numbers."""

from __future__ import annotations

from collections import deque
from typing import ClassVar
from uuid import UUID

from millpond.quorum.events import Answered, Appended, Asked, Event, Stop, Time
from millpond.quorum.messages import Fetch, FetchSnapshot, ReplicaKey, Request, Response, Vote, VoteResponse
from millpond.quorum.patience import Timing
from millpond.quorum.ports import Election
from millpond.quorum.ready import Ask, Durable, Ready, Reply
from millpond.quorum.replica import QuorumBroken, Replica
from millpond.sim.machines.memory_log import MemoryLog
from millpond.sim.machines.quorum.checkers import (
    ACKNOWLEDGED_LOST,
    COMMITTED_CHANGED,
    CUT_OFF_LEADER,
    Checkers,
)
from millpond.sim.machines.run import Host, Outcome, Run, Violation

HEALING_MS = 8_000
PATIENCE_MS = 2_000
"""Longer than a client of a healthy quorum ever waits from one write to the commit of the next."""
TIMING = Timing(election_ms=300, fetch_ms=600, fetch_wait_ms=150, retry_ms=30, backoff_ms_max=300)
"""Short, so that much happens between two faults."""
SNAPSHOT_ENTRIES = 12
LATE_MS = 50
TURN_MS = 30
"""How long a starved host runs at most before its next pause."""
CUT_OFF = 3
"""A multiple of how long a leader waits for a majority, to allow for slow clocks."""


class QuorumHost(Host):
    """One machine: a replica while it runs, and a disk that survives it."""

    def __init__(self, scenario: Scenario, node_id: int, directory: int) -> None:
        super().__init__(node_id)
        self.scenario = scenario
        self.key = ReplicaKey(node_id, UUID(int=directory))
        self.log = MemoryLog(scenario.read_entries_max)
        self.saved = Election()
        self.unsaved: deque[Election] = deque()
        self.replica: Replica | None = None
        self.rate = 1.0
        self.is_syncing = False
        self.committed = -1
        self.seen_end = 0
        self.wake_ms = -1
        self.led_since_ms = -1
        self.heard_ms: dict[int, int] = {}
        """When each node last fetched, whatever the replica answered."""
        self.acknowledging: deque[tuple[int, int, int]] = deque()

    def now_ms(self) -> int:
        return self.scenario.now_ms if self.rate == 1.0 else int(self.scenario.now_ms * self.rate)

    def start(self) -> None:
        self.life += 1
        self.is_syncing = False
        self.committed = -1
        self.wake_ms = -1
        self.replica = self.scenario.make_replica(self)
        self.persist(self.replica.version)
        self.set_timer()

    def stop(self, *, power: bool) -> None:
        """A killed process loses nothing it wrote; a power cut loses part of what was not synced."""
        self.replica = None
        self.life += 1
        self.acknowledging.clear()
        if power:
            for _ in range(self.scenario.random.randint(0, len(self.unsaved))):
                self.saved = self.unsaved.popleft()
            self.log.cut_power(self.scenario.random)
        elif self.unsaved:
            self.saved = self.unsaved[-1]
        self.unsaved.clear()
        self.seen_end = self.log.end_offset

    def wipe(self) -> None:
        self.log = MemoryLog(self.scenario.read_entries_max)
        self.saved = self.scenario.first_election(self)
        self.unsaved.clear()
        self.seen_end = 0

    def step(self, event: Event) -> None:
        replica = self.replica
        if replica is None:
            return
        try:
            ready = replica.step(event, self.now_ms())
        except QuorumBroken as broken:
            raise Violation(f"{COMMITTED_CHANGED}: {broken}") from broken
        self.scenario.after_step(self, replica, event)
        self.carry_out(ready)

    def carry_out(self, ready: Ready) -> None:
        if ready.save is not None:
            self.unsaved.append(ready.save)
        for message in ready.send:
            if isinstance(message, Ask):
                self.scenario.ask(self, message)
            else:
                self.scenario.reply(self, message)
        if ready.must_persist:
            self.persist(ready.version)
        self.set_timer()

    def persist(self, version: int) -> None:
        """Save and sync the present state; later changes wait for the next round."""
        if self.is_syncing or self.replica is None:
            return
        self.is_syncing = True
        elections, changes, life = len(self.unsaved), self.log.mark(), self.life

        def done() -> None:
            if self.life != life or self.replica is None:
                return
            self.is_syncing = False
            for _ in range(elections):
                self.saved = self.unsaved.popleft()
            self.log.synced(changes)
            self.step(Durable(version))
            if self.replica is not None and (self.unsaved or self.log.mark()):
                self.persist(self.replica.version)

        self.scenario.later(1 + self.scenario.below(self.scenario.weather.sync_ms_max), self, done)

    def set_timer(self) -> None:
        replica = self.replica
        if replica is None:
            return
        deadline_ms = replica.next_deadline_ms()
        if deadline_ms is None:
            return
        wake_ms = max(int(deadline_ms / self.rate) + 1, self.scenario.now_ms)
        if self.wake_ms >= self.scenario.now_ms and self.wake_ms <= wake_ms:
            return
        self.wake_ms = wake_ms
        life = self.life

        def wake() -> None:
            if self.life == life and self.replica is not None and self.wake_ms == wake_ms:
                late_ms = self.scenario.now_ms - wake_ms
                if late_ms > LATE_MS:
                    # It was paused: it handles what arrived meanwhile before it checks its timers.
                    self.scenario.later(1, self, lambda: tell(late_ms))
                else:
                    tell()

        def tell(late_ms: int = 0) -> None:
            if self.life == life and self.replica is not None:
                self.wake_ms = -1
                self.step(Time(late_ms))

        self.scenario.at(wake_ms, self, wake)


class Scenario(Run):
    """Runs one seed. `make_replica` can be replaced by one with a bug in it."""

    faults: ClassVar[tuple[str, ...]] = (
        "power_cut",
        "power_cut",
        "kill",
        "blackout",
        "doomed_leaders",
        "doomed_leaders",
        "doomed_voters",
        "doomed_voters",
        "pause",
        "starve",
        "cut_one_way",
        "isolate",
        "split",
        "bad_network",
        "slow_disk",
        "clock_drift",
        "hand_over",
        "wipe",
    )

    def __init__(self, seed: int, replica_class: type[Replica] = Replica) -> None:
        super().__init__(seed)
        self.checkers = Checkers()
        self._replica_class = replica_class
        self._request_ids = 0
        self._waiting: dict[int, tuple[QuorumHost, int, Ask, QuorumHost]] = {}
        self._requests: dict[int, Request] = {}
        self._values = 0
        self._acknowledged: list[tuple[int, int, int]] = []
        self._acknowledged_ms = 0
        self._strikes = 0
        self._voter_strikes = 0
        self.read_entries_max = self.random.choice((1, 1, 2, 8))
        count = self.random.choice((1, 3, 3, 3, 5, 5))
        observers = self.random.choice((0, 0, 1))
        self.make_hosts(count, observers)

    def make_hosts(self, count: int, observers: int = 0) -> None:
        self.hosts = [QuorumHost(self, node_id, node_id) for node_id in range(1, count + observers + 1)]
        self.voters = tuple(host.key for host in self.hosts[:count])
        for host in self.hosts:
            host.saved = self.first_election(host)

    def first_election(self, host: QuorumHost) -> Election:
        """What is on the disk of a new replica."""
        return Election(is_new=host.key in self.voters)

    def make_replica(self, host: QuorumHost) -> Replica:
        return self._replica_class(host.key, self.voters, host.log, host.saved, self, host.now_ms(), TIMING)

    # The network.

    def ask(self, sender: QuorumHost, ask: Ask) -> None:
        self._request_ids += 1
        request_id = self._request_ids
        receiver = self.hosts[ask.node_id - 1]
        self._waiting[request_id] = (sender, sender.life, ask, receiver)
        self._requests[request_id] = ask.request
        self.note(sender.node_id, "->", ask.node_id, ask.request)

        def deliver() -> None:
            self.note("  ", receiver.node_id, "got it from", sender.node_id)
            self.trace(request_id)
            if isinstance(ask.request, Fetch | FetchSnapshot):
                receiver.heard_ms[sender.node_id] = self.now_ms
            receiver.step(Asked(request_id, ask.request))

        self.carry(sender.node_id, receiver.node_id, receiver, deliver)
        assert sender.replica is not None
        self.later(sender.replica.answer_ms(ask.request), sender, lambda: self._answer(request_id, None))

    def reply(self, sender: QuorumHost, reply: Reply) -> None:
        request = self._requests[reply.request_id]
        response = reply.response
        self.note(sender.node_id, "=>", response)
        if isinstance(request, Vote) and isinstance(response, VoteResponse):
            self.checkers.saw_vote(sender.node_id, request, response)
            if response.granted and not request.pre_vote and self._voter_strikes and self.now_ms < self.trouble_ms:
                self._voter_strikes -= 1
                self.later(self.random.randrange(30), None, lambda: self._stop(sender, power=True))
        self.checkers.saw_epoch(sender.node_id, response.epoch)
        waiting = self._waiting.get(reply.request_id)
        if waiting is not None:
            asker = waiting[0]
            self.carry(sender.node_id, asker.node_id, asker, lambda: self._answer(reply.request_id, response))

    def _answer(self, request_id: int, response: Response | None) -> None:
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            sender, life, ask, _ = waiting
            if sender.life == life:
                sender.step(Answered(ask, response))

    # Checks.

    def after_step(self, host: QuorumHost, replica: Replica, event: Event) -> None:
        log, high_watermark, end = host.log, replica.high_watermark, host.log.end_offset
        self.checkers.look_at(replica, log, host.committed)
        if end > host.seen_end:
            self.checkers.saw_records(log, host.seen_end, end)
        host.seen_end = end
        host.committed = high_watermark
        if replica.is_leader:
            self._look_at_leader(host, replica, event)
            while host.acknowledging and host.acknowledging[0][0] < high_watermark:
                offset, epoch, value = host.acknowledging.popleft()
                if epoch == replica.epoch:
                    self._acknowledged.append((offset, epoch, value))
                    self._acknowledged_ms = self.now_ms
        else:
            host.led_since_ms = -1
            host.acknowledging.clear()
        if high_watermark - log.start_offset > SNAPSHOT_ENTRIES and self.chance() < 0.2:
            log.take_snapshot(high_watermark)

    def _look_at_leader(self, host: QuorumHost, replica: Replica, event: Event) -> None:
        """A leader must resign without a majority that fetches."""
        if host.led_since_ms < 0:
            host.led_since_ms = self.now_ms
            self.outcome.elections += 1
            if self._strikes and self.now_ms < self.trouble_ms:
                self._strikes -= 1
                self.later(self.random.randrange(300), None, lambda: self._strike(host))
        if not isinstance(event, Time):
            return
        voters = replica.voters
        heard = sum(
            1
            for voter in voters
            if voter == host.key
            or self.now_ms - max(host.heard_ms.get(voter.node_id, 0), host.led_since_ms)
            < CUT_OFF * replica.check_quorum_ms
        )
        if heard <= len(voters) // 2:
            raise Violation(f"{CUT_OFF_LEADER}: node {host.node_id} leads epoch {replica.epoch} and nobody comes")

    # Events.

    def run(self) -> Outcome:
        outcome = self.play(self._live)
        outcome.committed = len(self.checkers.committed)
        outcome.acknowledged = len(self._acknowledged)
        return outcome

    def _live(self) -> None:
        for host in self.hosts:
            host.start()
        self._propose_again()
        self.plan_faults()
        self.run_until(self.trouble_ms)
        self._heal()
        self.run_until_well(HEALING_MS, self._trouble)
        self._check_acknowledged()

    def _propose_again(self) -> None:
        """A client writes to any node that claims to lead; after healing it does so at every turn."""
        for host in self.hosts:
            replica = host.replica
            if replica is None or host.paused_until_ms > self.now_ms:
                continue
            if replica.is_leader and (self.random.random() < 0.7 or self.now_ms >= self.trouble_ms):
                self._values += 1
                host.acknowledging.append((host.log.end_offset, replica.epoch, self._values))
                host.log.append(replica.epoch, self._values)
                host.step(Appended())
        if self.now_ms < self.trouble_ms + HEALING_MS:
            self.later(
                10 + self.random.randrange(200 if self.now_ms < self.trouble_ms else 1000), None, self._propose_again
            )

    def _any_host(self) -> QuorumHost:
        leaders = [host for host in self.hosts if host.replica is not None and host.replica.is_leader]
        return (
            self.random.choice(leaders) if leaders and self.random.random() < 0.5 else self.random.choice(self.hosts)
        )

    def _fault_power_cut(self) -> None:
        self._stop(self._any_host(), power=True)

    def _fault_kill(self) -> None:
        self._stop(self._any_host(), power=False)

    def _fault_blackout(self) -> None:
        for host in self.hosts:
            self._stop(host, power=True)

    def _stop(self, host: QuorumHost, *, power: bool) -> None:
        if host.replica is None:
            return
        host.stop(power=power)
        self.later(self.random.choice((1, 1, 50, 400, 3000)), None, lambda: self._start(host))

    def _start(self, host: QuorumHost) -> None:
        if host.replica is None:
            host.start()

    def _fault_doomed_leaders(self) -> None:
        """The next leaders fail right after their election, where mistakes with epochs show."""
        self._strikes += self.random.randint(1, 3)

    def _fault_doomed_voters(self) -> None:
        """The next voters lose power right after they have voted."""
        self._voter_strikes += self.random.randint(2, 6)

    def _strike(self, host: QuorumHost) -> None:
        if self.random.random() < 0.5:
            self._stop(host, power=True)
        else:
            self.isolate(host.node_id, self._nodes)

    def _fault_pause(self) -> None:
        self._any_host().paused_until_ms = self.now_ms + self.random.choice((50, 300, 1000, 3000))

    def _fault_starve(self) -> None:
        """All hosts share a machine with far too little CPU: each pauses again and again."""
        stall_ms, end_ms = self.random.choice((300, 700)), self.now_ms + self.random.choice((1000, 4000))
        for host in self.hosts:
            self.starve(host, stall_ms, min(end_ms, self.trouble_ms))

    def starve(self, host: QuorumHost, stall_ms: int, end_ms: int) -> None:
        stands_ms, runs_ms = 1 + self.below(stall_ms), 1 + self.below(TURN_MS)
        host.paused_until_ms = max(host.paused_until_ms, self.now_ms + stands_ms)
        if self.now_ms < end_ms:
            self.later(stands_ms + runs_ms, None, lambda: self.starve(host, stall_ms, end_ms))

    def _fault_cut_one_way(self) -> None:
        one, other = self._any_host(), self.random.choice(self.hosts)
        self.cut({(one.node_id, other.node_id)})

    def _fault_isolate(self) -> None:
        self.isolate(self._any_host().node_id, self._nodes)

    def _fault_split(self) -> None:
        self.split(self._nodes)

    @property
    def _nodes(self) -> list[int]:
        return [host.node_id for host in self.hosts]

    def _fault_clock_drift(self) -> None:
        # A clock may run fast or slow; it never runs backwards.
        host = self._any_host()
        before_ms = host.now_ms()
        host.rate = max(self.random.choice((0.8, 1.0, 1.25)), before_ms / max(self.now_ms, 1))

    def _fault_hand_over(self) -> None:
        for host in self.hosts:
            if host.replica is not None and host.replica.is_leader and host.paused_until_ms <= self.now_ms:
                host.step(Stop())

    def _fault_wipe(self) -> None:
        """A disk is replaced by an empty one, one at a time and only if the quorum can lose it."""
        host = self._any_host()
        if not self._can_spare(host):
            return
        self.outcome.faults["wiped"] = self.outcome.faults.get("wiped", 0) + 1
        if host.replica is not None:
            host.stop(power=True)
        host.wipe()
        self.checkers.forget(host.node_id)
        self._start(host)

    def _can_spare(self, host: QuorumHost) -> bool:
        others = [each for each in self.hosts if each is not host and each.key in self.voters]
        return len(others) > len(self.voters) // 2 and not any(each.saved.is_new for each in others)

    # The end.

    def _heal(self) -> None:
        self.calm()
        for host in self.hosts:
            host.paused_until_ms = 0
            self._start(host)

    def _trouble(self) -> str | None:
        replicas = [host.replica for host in self.hosts if host.replica is not None]
        leaders = [replica for replica in replicas if replica.is_leader]
        if len(leaders) != 1:
            return f"{len(leaders)} leaders"
        for replica in replicas:
            if replica.epoch != leaders[0].epoch or replica.leader_id != leaders[0].me.node_id:
                return f"node {replica.me.node_id} does not follow {leaders[0].me.node_id}"
            if leaders[0].high_watermark - replica.high_watermark > 50:
                return f"node {replica.me.node_id} stays behind"
        if self.now_ms - self._acknowledged_ms > PATIENCE_MS:
            return "nothing is committed"
        return None

    def _check_acknowledged(self) -> None:
        for offset, epoch, value in self._acknowledged:
            committed = self.checkers.committed[offset] if offset < len(self.checkers.committed) else None
            if committed is None or (committed.epoch, committed.value) != (epoch, value):
                raise Violation(f"{ACKNOWLEDGED_LOST}: {value} at {offset} in epoch {epoch}, there is {committed}")


def run_seed(seed: int, replica_class: type[Replica] = Replica) -> Outcome:
    return Scenario(seed, replica_class).run()
