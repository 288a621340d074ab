"""One run of a quorum by seed: replicas, a network that misbehaves, disks that forget, and a client that counts.

The same seed is the same run. Everything is decided by one generator, and nothing looks at a real clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from uuid import UUID

from millpond.quorum.events import Answered, Appended, Asked, Event, Stop, Time
from millpond.quorum.messages import Fetch, FetchSnapshot, ReplicaKey, Request, Response, Vote, VoteResponse
from millpond.quorum.ports import Election
from millpond.quorum.ready import Ask, Durable, Ready, Reply
from millpond.quorum.replica import QuorumBroken, Replica
from millpond.sim.quorum.checkers import (
    ACKNOWLEDGED_LOST,
    COMMITTED_CHANGED,
    CUT_OFF_LEADER,
    NOT_HEALED,
    Checkers,
    Violation,
)
from millpond.sim.quorum.toy_log import ToyLog

TROUBLE_MS = 12_000
HEALING_MS = 15_000
REQUEST_TIMEOUT_MS = 1_500
SNAPSHOT_ENTRIES = 12
STORY_LINES = 400
CUT_OFF_MS = 6_000
"""Twice as long as a leader waits for a majority, for clocks that run slow."""


class Dice:
    """The `Chance` of one host."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)


@dataclass(slots=True)
class Weather:
    """How the network and the disks behave for now."""

    loss: float = 0.0
    copies: float = 0.0
    delay_ms_max: int = 5
    sync_ms_max: int = 5


@dataclass(slots=True)
class Outcome:
    """What a run showed; `violation` is None when nothing went wrong."""

    seed: int
    violation: str | None = None
    events: int = 0
    committed: int = 0
    acknowledged: int = 0
    elections: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    trace: int = 0
    """The same for the same run, another for another."""
    story: list[str] = field(default_factory=list)


class Host:
    """One machine: a replica while it runs, and a disk that outlives it."""

    def __init__(self, scenario: Scenario, node_id: int, directory: int) -> None:
        self.scenario = scenario
        self.node_id = node_id
        self.key = ReplicaKey(node_id, UUID(int=directory))
        self.log = ToyLog()
        self.saved = Election()
        self.unsaved: deque[Election] = deque()
        self.replica: Replica | None = None
        self.life = 0
        self.rate = 1.0
        self.paused_until_ms = 0
        self.is_syncing = False
        self.committed = -1
        self.seen_end = 0
        self.wake_ms = -1
        self.led_since_ms = -1
        self.heard_ms: dict[int, int] = {}
        """When each node last came to fetch, whatever the replica made of it."""
        self.acknowledging: deque[tuple[int, int, int]] = deque()

    def now_ms(self) -> int:
        return int(self.scenario.now_ms * self.rate)

    def start(self) -> None:
        self.life += 1
        self.is_syncing = False
        self.committed = -1
        self.wake_ms = -1
        chance = Dice(self.scenario.random)
        self.replica = self.scenario.make_replica(self, chance)
        self.persist(self.replica.version)
        self.set_timer()

    def stop(self, *, power: bool) -> None:
        """A killed process leaves what it wrote to the kernel, a power cut only what was synced, and some more."""
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
        self.log = ToyLog()
        self.saved = Election()
        self.unsaved.clear()
        self.seen_end = 0
        self.key = ReplicaKey(self.node_id, UUID(int=self.key.directory_id.int + 1000))

    def step(self, event: Event) -> None:
        replica = self.replica
        if replica is None:
            return
        ready = replica.step(event, self.now_ms())
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
        """Save and sync everything as it is now; what comes meanwhile waits for the next round."""
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

        self.scenario.later(1 + self.scenario.random.randrange(self.scenario.weather.sync_ms_max), self, done)

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
                self.wake_ms = -1
                self.step(Time())

        self.scenario.at(wake_ms, self, wake)


class Scenario:
    """Runs one seed. `make_replica` can be replaced by one with a bug in it."""

    def __init__(self, seed: int, replica_class: type[Replica] = Replica) -> None:
        self.random = Random(seed)
        self.now_ms = 0
        self.weather = Weather()
        self.checkers = Checkers()
        self.outcome = Outcome(seed)
        self._replica_class = replica_class
        self._queue: list[tuple[int, int, Host | None, Callable[[], None]]] = []
        self._count = 0
        self._cuts: set[tuple[int, int]] = set()
        self._request_ids = 0
        self._waiting: dict[int, tuple[Host, int, Ask, Host]] = {}
        self._requests: dict[int, Request] = {}
        self._values = 0
        self._acknowledged: list[tuple[int, int, int]] = []
        self._acknowledged_ms = 0
        self._trace = 0
        self._strikes = 0
        self._story: deque[tuple[int, tuple[object, ...]]] = deque(maxlen=STORY_LINES)
        count = self.random.choice((1, 3, 3, 3, 5))
        observers = self.random.choice((0, 0, 1))
        self.hosts = [Host(self, node_id, node_id) for node_id in range(1, count + observers + 1)]
        self.voters = tuple(host.key for host in self.hosts[:count])

    def make_replica(self, host: Host, chance: Dice) -> Replica:
        return self._replica_class(host.key, self.voters, host.log, host.saved, chance, host.now_ms())

    # Time.

    def at(self, time_ms: int, host: Host | None, action: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._queue, (time_ms, self._count, host, action))

    def later(self, delay_ms: int, host: Host | None, action: Callable[[], None]) -> None:
        self.at(self.now_ms + delay_ms, host, action)

    def _run_until(self, end_ms: int) -> None:
        while self._queue and self._queue[0][0] <= end_ms:
            time_ms, _, host, action = heappop(self._queue)
            self.now_ms = max(self.now_ms, time_ms)
            if host is not None and host.paused_until_ms > self.now_ms:
                self.at(host.paused_until_ms, host, action)
                continue
            self.outcome.events += 1
            action()
        self.now_ms = end_ms

    # The network.

    def ask(self, sender: Host, ask: Ask) -> None:
        self._request_ids += 1
        request_id = self._request_ids
        receiver = self.hosts[ask.node_id - 1]
        self._waiting[request_id] = (sender, sender.life, ask, receiver)
        self._requests[request_id] = ask.request
        self.note(sender.node_id, "->", ask.node_id, ask.request)

        def deliver() -> None:
            self.note("  ", receiver.node_id, "got it from", sender.node_id)
            self._trace = hash((self._trace, self.now_ms, request_id))
            if isinstance(ask.request, Fetch | FetchSnapshot):
                receiver.heard_ms[sender.node_id] = self.now_ms
            receiver.step(Asked(request_id, ask.request))

        self._carry(sender, receiver, deliver)
        self.later(REQUEST_TIMEOUT_MS, sender, lambda: self._answer(request_id, None))

    def reply(self, sender: Host, reply: Reply) -> None:
        request = self._requests[reply.request_id]
        response = reply.response
        self.note(sender.node_id, "=>", response)
        if isinstance(request, Vote) and isinstance(response, VoteResponse):
            self.checkers.saw_vote(sender.node_id, request, response)
        self.checkers.saw_epoch(sender.node_id, response.epoch)
        waiting = self._waiting.get(reply.request_id)
        if waiting is not None:
            self._carry(sender, waiting[0], lambda: self._answer(reply.request_id, response))

    def _answer(self, request_id: int, response: Response | None) -> None:
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            sender, life, ask, _ = waiting
            if sender.life == life:
                sender.step(Answered(ask, response))

    def _carry(self, sender: Host, receiver: Host, deliver: Callable[[], None]) -> None:
        if (sender.node_id, receiver.node_id) in self._cuts:
            return
        for _ in range(2 if self.random.random() < self.weather.copies else 1):
            if self.random.random() >= self.weather.loss:
                self.later(self.random.randrange(self.weather.delay_ms_max), receiver, deliver)

    # Looking.

    def after_step(self, host: Host, replica: Replica, event: Event) -> None:
        self.checkers.look_at(replica, host.log, host.committed)
        self._look_at_leader(host, replica, event)
        if host.log.end_offset > host.seen_end:
            self.checkers.saw_records(host.log, host.seen_end, host.log.end_offset)
        host.seen_end = host.log.end_offset
        host.committed = replica.high_watermark
        if replica.is_leader:
            while host.acknowledging and host.acknowledging[0][0] < replica.high_watermark:
                offset, epoch, value = host.acknowledging.popleft()
                if epoch == replica.epoch:
                    self._acknowledged.append((offset, epoch, value))
                    self._acknowledged_ms = self.now_ms
        else:
            host.acknowledging.clear()
        if replica.high_watermark - host.log.start_offset > SNAPSHOT_ENTRIES and self.random.random() < 0.2:
            host.log.take_snapshot(replica.high_watermark)

    def _look_at_leader(self, host: Host, replica: Replica, event: Event) -> None:
        """A leader must not go on without a majority that comes to fetch."""
        if not replica.is_leader:
            host.led_since_ms = -1
            return
        if host.led_since_ms < 0:
            host.led_since_ms = self.now_ms
            self.outcome.elections += 1
            if self._strikes and self.now_ms < TROUBLE_MS:
                self._strikes -= 1
                self.later(self.random.randrange(300), None, lambda: self._strike(host))
        heard = sum(
            1
            for voter in self.voters
            if voter == host.key
            or self.now_ms - max(host.heard_ms.get(voter.node_id, 0), host.led_since_ms) < CUT_OFF_MS
        )
        if isinstance(event, Time) and heard <= len(self.voters) // 2:
            raise Violation(f"{CUT_OFF_LEADER}: node {host.node_id} leads epoch {replica.epoch} and nobody comes")

    def note(self, *parts: object) -> None:
        """A line of the story; it is put into words only if somebody will read it."""
        self._story.append((self.now_ms, parts))

    # What happens.

    def run(self) -> Outcome:
        try:
            self._live()
        except Violation as violation:
            self.outcome.violation = str(violation)
        except QuorumBroken as broken:
            self.outcome.violation = f"{COMMITTED_CHANGED}: {broken}"
        self.outcome.committed = len(self.checkers.committed)
        self.outcome.acknowledged = len(self._acknowledged)
        self.outcome.trace = self._trace
        if self.outcome.violation is not None:
            self.outcome.story = [f"{time_ms:6} {' '.join(map(str, parts))}" for time_ms, parts in self._story]
        return self.outcome

    def _live(self) -> None:
        for host in self.hosts:
            host.start()
        self._propose_again()
        self._fault_bad_network()
        self._fault_slow_disk()
        for _ in range(self.random.choice((3, 10, 30, 60))):
            self.at(self.random.randrange(TROUBLE_MS), None, self._fault)
        self._run_until(TROUBLE_MS)
        self._heal()
        self._run_until(TROUBLE_MS + HEALING_MS)
        self._check_healed()

    def _propose_again(self) -> None:
        """A client writes to whoever says it leads."""
        for host in self.hosts:
            replica = host.replica
            if replica is None or host.paused_until_ms > self.now_ms:
                continue
            if replica.is_leader and self.random.random() < 0.7:
                self._values += 1
                host.acknowledging.append((host.log.end_offset, replica.epoch, self._values))
                host.log.append(replica.epoch, self._values)
                host.step(Appended())
        if self.now_ms < TROUBLE_MS + HEALING_MS:
            self.later(
                10 + self.random.randrange(200 if self.now_ms < TROUBLE_MS else 1000), None, self._propose_again
            )

    def _fault(self) -> None:
        kind = self.random.choice(FAULTS)
        self.outcome.faults[kind] = self.outcome.faults.get(kind, 0) + 1
        self.note("---", kind)
        getattr(self, f"_fault_{kind}")()

    def _any_host(self) -> Host:
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

    def _stop(self, host: Host, *, power: bool) -> None:
        if host.replica is None:
            return
        host.stop(power=power)
        self.later(self.random.choice((1, 1, 50, 400, 3000)), None, lambda: self._start(host))

    def _start(self, host: Host) -> None:
        if host.replica is None:
            host.start()

    def _fault_doomed_leaders(self) -> None:
        """The next leaders get no further than their first steps: that is where epochs go wrong."""
        self._strikes += self.random.randint(1, 3)

    def _strike(self, host: Host) -> None:
        if self.random.random() < 0.5:
            self._stop(host, power=True)
        else:
            self._isolate(host)

    def _fault_pause(self) -> None:
        self._any_host().paused_until_ms = self.now_ms + self.random.choice((100, 1000, 3000, 6000))

    def _fault_cut_one_way(self) -> None:
        one, other = self._any_host(), self.random.choice(self.hosts)
        self._cut({(one.node_id, other.node_id)})

    def _fault_isolate(self) -> None:
        self._isolate(self._any_host())

    def _isolate(self, host: Host) -> None:
        alone = host.node_id
        self._cut({pair for other in self.hosts for pair in ((alone, other.node_id), (other.node_id, alone))})

    def _fault_split(self) -> None:
        side = {host.node_id for host in self.hosts if self.random.random() < 0.5}
        everyone = [host.node_id for host in self.hosts]
        self._cut({(one, other) for one in everyone for other in everyone if (one in side) != (other in side)})

    def _cut(self, pairs: set[tuple[int, int]]) -> None:
        mended = sorted(pairs)
        self._cuts |= pairs
        self.later(self.random.choice((200, 1000, 4000)), None, lambda: self._cuts.difference_update(mended))

    def _fault_bad_network(self) -> None:
        self.weather.loss = self.random.choice((0.0, 0.0, 0.05, 0.2))
        self.weather.copies = self.random.choice((0.0, 0.1, 0.5))
        self.weather.delay_ms_max = self.random.choice((2, 20, 100, 600))

    def _fault_slow_disk(self) -> None:
        self.weather.sync_ms_max = self.random.choice((2, 20, 100, 500))

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
        """A disk is replaced by an empty one. The quorum must be able to spare it."""
        voters = {host.node_id for host in self.hosts if host.key in self.voters}
        host = self._any_host()
        left = len(voters - {host.node_id})
        if left <= len(self.voters) // 2 or "wiped" in self.outcome.faults:
            return
        self.outcome.faults["wiped"] = 1
        if host.replica is not None:
            host.stop(power=True)
        host.wipe()
        self.checkers.forget(host.node_id)
        self._start(host)

    # The end.

    def _heal(self) -> None:
        self.note("--- healed")
        self.weather = Weather()
        self._cuts.clear()
        for host in self.hosts:
            host.paused_until_ms = 0
            self._start(host)

    def _check_healed(self) -> None:
        for offset, epoch, value in self._acknowledged:
            committed = self.checkers.committed[offset] if offset < len(self.checkers.committed) else None
            if committed is None or (committed.epoch, committed.value) != (epoch, value):
                raise Violation(f"{ACKNOWLEDGED_LOST}: {value} at {offset} in epoch {epoch}, there is {committed}")
        replicas = [host.replica for host in self.hosts if host.replica is not None]
        leaders = [replica for replica in replicas if replica.is_leader]
        if len(leaders) != 1:
            raise Violation(f"{NOT_HEALED}: {len(leaders)} leaders")
        for replica in replicas:
            if replica.epoch != leaders[0].epoch or replica.leader_id != leaders[0].me.node_id:
                raise Violation(f"{NOT_HEALED}: node {replica.me.node_id} does not follow {leaders[0].me.node_id}")
            if leaders[0].high_watermark - replica.high_watermark > 50:
                raise Violation(f"{NOT_HEALED}: node {replica.me.node_id} stays behind")
        late = TROUBLE_MS + HEALING_MS // 2
        if self._acknowledged_ms < late:
            raise Violation(f"{NOT_HEALED}: nothing was committed at the end")


FAULTS = (
    "power_cut",
    "power_cut",
    "kill",
    "blackout",
    "doomed_leaders",
    "doomed_leaders",
    "doomed_leaders",
    "pause",
    "cut_one_way",
    "isolate",
    "split",
    "bad_network",
    "slow_disk",
    "clock_drift",
    "hand_over",
    "wipe",
)


def run_seed(seed: int, replica_class: type[Replica] = Replica) -> Outcome:
    return Scenario(seed, replica_class).run()
