"""One seeded run of a replicated partition: brokers that fail, a controller, and a client that writes numbers.

The controller never fails, as the quorum has its own scenarios; but messages to and from it may be lost, late,
duplicated or out of order. Where records are acknowledged before they are synced, power cuts come one at a time, as
`min.insync.replicas` promises to survive. Where replicas sync first, they come at any time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import ClassVar

from millpond.base.errors import ErrorCode
from millpond.base.ids import EpochEnd
from millpond.metadata import leadership
from millpond.metadata.leadership import NO_LEADER, IsrChange, Leadership, Loss
from millpond.replication.follower import Append, AskAgain, Fetched, FetchFrom, PartitionFollower, Restart, Truncate
from millpond.replication.leader import IsrRequest, PartitionLeader, PartitionView, Rules
from millpond.sim.machines.memory_log import MemoryLog
from millpond.sim.machines.replication.checkers import (
    ACKNOWLEDGED_LOST,
    LOSS_INVENTED,
    STRANGER_TRUSTED,
    Checkers,
)
from millpond.sim.machines.run import Host, Outcome, Run, Violation

HEALING_MS = 12_000
PATIENCE_MS = 2_000
"""Longer than a client of a healthy partition ever waits from one write to the next acknowledgement."""
LAG_MS_MAX = 1_500
SESSION_MS = 1_000
HEARTBEAT_MS = 250
FETCH_WAIT_MS = 100
RETRY_MS = 50
REQUEST_TIMEOUT_MS = 700
LATE_COPY_SHARE = 0.5
LATE_COPY_MS_MAX = 5_000
CONTROLLER = 0


@dataclass(slots=True)
class Session:
    """The controller's view of a broker."""

    incarnation: int
    directory: int
    epoch: int
    fenced: bool
    heard_ms: int


class Controller:
    """Registers brokers, fences silent ones, and changes the leadership as `metadata` decides."""

    def __init__(self, run: Scenario, replicas: tuple[int, ...], rules: leadership.Rules) -> None:
        self.run = run
        self.rules = rules
        self.state = Leadership(replicas, (), NO_LEADER)
        self.sessions: dict[int, Session] = {}
        self.version = 0
        """Represents the offset of the metadata log: it rises with every change."""

    def can_lead(self, broker: int) -> bool:
        session = self.sessions.get(broker)
        return session is not None and not session.fenced

    def epoch_of(self, broker: int) -> int:
        session = self.sessions.get(broker)
        return session.epoch if session else -2

    def register(self, broker: int, incarnation: int, directory: int, clean_epoch: int) -> int | None:
        """Register a new incarnation. Without the epoch of its last one, a broker may have lost records; with another
        disk, it has lost all.

        None for an old request that arrives late: connections end with the incarnation that opened them.
        """
        known = self.sessions.get(broker)
        if known is not None and known.incarnation == incarnation:
            return known.epoch
        if known is not None and incarnation < known.incarnation:
            return None
        if known is not None:
            known.fenced = True
            loss = Loss.NOTHING if clean_epoch == known.epoch else Loss.UNSYNCED
            if directory != known.directory:
                loss = Loss.ALL
            self.run.saw_loss(broker, known.incarnation, incarnation, loss)
            self.apply(leadership.without(self.state, broker, self.rules, self.can_lead, loss=loss))
        self.version += 1
        self.sessions[broker] = Session(incarnation, directory, self.version, True, self.run.now_ms)
        return self.version

    def heartbeat(self, broker: int, epoch: int) -> None:
        session = self.sessions.get(broker)
        if session is None or session.epoch != epoch:
            return
        session.heard_ms = self.run.now_ms
        if session.fenced:
            session.fenced = False
            if not self.state.isr and not self.state.elr and self.state.leader_epoch == 0:
                self.found()
            else:
                self.apply(leadership.back(self.state, broker, self.rules, self.can_lead))

    def found(self) -> None:
        """Create the partition once all its replicas have registered."""
        if all(self.can_lead(broker) for broker in self.state.replicas):
            replicas = self.state.replicas
            self.apply(Leadership(replicas, replicas, replicas[0], leader_epoch=1, partition_epoch=1))

    def watch(self) -> None:
        for broker, session in self.sessions.items():
            if not session.fenced and self.run.now_ms - session.heard_ms > SESSION_MS:
                session.fenced = True
                self.run.note("controller fences", broker)
                self.apply(leadership.without(self.state, broker, self.rules, self.can_lead))
        self.run.publish()
        self.run.later(HEARTBEAT_MS, None, self.watch)

    def alter(self, asked: IsrChange) -> ErrorCode:
        result = leadership.decide_isr_change(self.state, asked, self.rules, self.can_lead, self.epoch_of)
        if isinstance(result, ErrorCode):
            return result
        self.apply(result)
        return ErrorCode.NONE

    def elect_preferred(self) -> None:
        self.apply(leadership.change(self.state, self.state.isr, self.rules, self.can_lead, prefer_first=True))

    def apply(self, after: Leadership) -> None:
        if after != self.state:
            self.run.note("controller:", after)
            self.state = after
            self.version += 1
            self.run.after_change()
            self.run.publish()

    def view(self) -> PartitionView:
        state = self.state
        return PartitionView(
            state.leader, state.leader_epoch, state.partition_epoch, state.replicas, state.isr, state.is_recovering
        )


@dataclass(slots=True)
class PendingFetch:
    asked: FetchFrom
    answer: Callable[[Fetched], None]
    deadline_ms: int


class BrokerHost(Host):
    """One broker with one replica."""

    def __init__(self, run: Scenario, node_id: int) -> None:
        super().__init__(node_id)
        self.run = run
        self.log = MemoryLog(run.read_entries_max)
        self.directory = 0
        self.clean_epoch = -1
        """The epoch of the last registered incarnation, from the disk, unless a power cut came after it."""
        self.pending = -1
        """The incarnation that is being registered and has no epoch yet; also on the disk."""
        self.checkpoint = 0
        self.is_up = False
        self.epoch = -1
        self.partition_epoch = -1
        self.leader: PartitionLeader | None = None
        self.follower: PartitionFollower | None = None
        self.leader_epoch = -1
        self.is_syncing = False
        self.synced_end = 0
        self.seen_end = 0
        self.seen_high_watermark = 0
        self.acknowledging: deque[tuple[int, int, int]] = deque()
        self.pending_fetches: list[PendingFetch] = []
        self.may_have_lost = False
        self.power_cuts = 0

    # Starting and stopping.

    def start(self) -> None:
        self.life += 1
        self.is_up = True
        self.epoch = self.partition_epoch = self.leader_epoch = -1
        self.leader = self.follower = None
        self.is_syncing = False
        # Data that an earlier incarnation wrote and never synced can be read, and is still not durable.
        self.synced_end = self.log.synced_end
        self.seen_end = self.log.end_offset
        if self.pending < 0:
            self.pending = self.run.new_incarnation(self)
        self.register(self.pending, self.clean_epoch)

    def stop(self, *, power: bool = False, clean: bool = False) -> None:
        self.checkpoint = (
            min(self.high_watermark, self.log.end_offset) if clean else min(self.checkpoint, self.log.end_offset)
        )
        self.life += 1
        self.is_up = False
        self.leader = self.follower = None
        self.acknowledging.clear()
        self.pending_fetches.clear()
        # A killed process loses nothing that it wrote: the kernel still has it.
        if power:
            self.power_cuts += 1
            self.log.cut_power(self.run.random)
            self.clean_epoch = self.pending = -1
        elif clean:
            self.log.synced(self.log.mark())

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self.log = MemoryLog(self.run.read_entries_max)
        self.directory += 1
        self.checkpoint = self.seen_end = self.synced_end = 0

    @property
    def high_watermark(self) -> int:
        if self.leader is not None:
            return self.leader.high_watermark
        return self.follower.high_watermark if self.follower is not None else self.checkpoint

    def register(self, incarnation: int, clean_epoch: int) -> None:
        life, directory = self.life, self.directory

        def at_controller() -> None:
            epoch = self.run.controller.register(self.node_id, incarnation, directory, clean_epoch)
            if epoch is None:
                return
            self.run.carry(CONTROLLER, self.node_id, self, lambda: answered(epoch))

        def answered(epoch: int) -> None:
            if not self._waits(life):
                return
            # An incarnation that ends before this leaves the epoch of the one before it and continues it:
            # neither of them has lost anything.
            self.epoch = self.clean_epoch = epoch
            self.pending = -1
            self.may_have_lost = False
            self.beat()

        self.run.carry(self.node_id, CONTROLLER, None, at_controller)
        self.run.later(
            RETRY_MS * 4, self, lambda: self.register(incarnation, clean_epoch) if self._waits(life) else None
        )

    def _waits(self, life: int) -> bool:
        return self.is_up and self.life == life and self.epoch < 0

    def beat(self) -> None:
        life, epoch = self.life, self.epoch

        def again() -> None:
            if self.life == life:
                self.run.carry(
                    self.node_id, CONTROLLER, None, lambda: self.run.controller.heartbeat(self.node_id, epoch)
                )
                self.run.later(HEARTBEAT_MS, self, again)

        again()

    # Metadata.

    def on_view(self, view: PartitionView, version: int) -> None:
        # Views older than our registration were for an earlier incarnation, which may have had more records.
        if not self.is_up or self.epoch < 0 or version < self.epoch:
            return
        if view.partition_epoch <= self.partition_epoch or view.leader_epoch < self.leader_epoch:
            return
        self.partition_epoch = view.partition_epoch
        if view.leader_epoch == self.leader_epoch:
            if self.leader is not None:
                self.leader.on_view(view)
                self.after()
            return
        self.leader_epoch = view.leader_epoch
        high_watermark = self.high_watermark
        self.leader = self.follower = None
        self.acknowledging.clear()
        for pending in self.pending_fetches:
            pending.answer(Fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self.pending_fetches.clear()
        if view.leader == self.node_id:
            self.seen_high_watermark = max(min(high_watermark, self.log.end_offset), 0)
            self.leader = self.run.leader_class(
                self.node_id,
                view,
                self.own_end(),
                self.seen_high_watermark,
                self.run.rules,
                self.run.can_join,
                self.run.now_ms,
                self.log.end_offset,
                self.log.end_offset,
            )
            self.run.checkers.saw_leader(self.node_id, view.leader_epoch)
            self.look_at_isr()
        elif view.leader != NO_LEADER:
            self.follower = self.run.follower_class(view.leader, view.leader_epoch, self.log, high_watermark)
            self.run.on_follow(self)
            self.fetch()
        self.after()

    def own_end(self) -> int:
        return self.synced_end if self.run.sync_first else self.log.end_offset

    # Leading.

    def produce(self, value: int) -> None:
        leader = self.leader
        assert leader is not None
        if not leader.is_writable:
            return
        self.acknowledging.append((self.log.end_offset, self.leader_epoch, value))
        self.log.append(self.leader_epoch, value)
        leader.on_append(self.log.end_offset, self.own_end())
        self.after()

    def look_at_isr(self) -> None:
        leader, life = self.leader, self.life
        if leader is None:
            return
        request = leader.isr_request(self.run.now_ms)
        if request is not None:
            self.ask_for_isr(leader, request)
        self.run.later(100, self, lambda: self.look_at_isr() if self.leader is leader and self.life == life else None)

    def ask_for_isr(self, leader: PartitionLeader, asked: IsrRequest) -> None:
        """Repeat the AlterPartition request until there is a response or a metadata change."""
        if self.leader is not leader or leader.pending is not asked:
            return
        change = IsrChange(self.node_id, self.epoch, asked.leader_epoch, asked.partition_epoch, asked.isr)

        def at_controller() -> None:
            error = self.run.controller.alter(change)
            if error is not ErrorCode.NONE:
                self.run.carry(CONTROLLER, self.node_id, self, lambda: self.on_isr_response(leader, asked, error))

        self.run.carry(self.node_id, CONTROLLER, None, at_controller)
        if self.run.late_copies.random() < LATE_COPY_SHARE:
            # An abandoned connection may be read much later.
            late_ms = self.run.late_copies.randint(REQUEST_TIMEOUT_MS, LATE_COPY_MS_MAX)
            self.run.later(late_ms, None, partial(self._alter_late, change))
        self.run.later(REQUEST_TIMEOUT_MS, self, lambda: self.ask_for_isr(leader, asked))

    def _alter_late(self, change: IsrChange) -> None:
        """The response is ignored."""
        self.run.controller.alter(change)

    def on_isr_response(self, leader: PartitionLeader, asked: IsrRequest, error: ErrorCode) -> None:
        if self.leader is leader:
            instead = leader.on_isr_response(asked, error)
            if instead is not None:
                self.ask_for_isr(leader, instead)
            self.after()

    def serve(self, follower: BrokerHost, epoch: int, asked: FetchFrom, answer: Callable[[Fetched], None]) -> None:
        leader = self.leader
        if not self.is_up:
            return
        if leader is None or asked.leader_epoch < self.leader_epoch:
            answer(Fetched(ErrorCode.FENCED_LEADER_EPOCH))
        elif asked.leader_epoch > self.leader_epoch:
            answer(Fetched(ErrorCode.UNKNOWN_LEADER_EPOCH))
        else:
            diverging = self.run.divergence(self.log, asked)
            if diverging is not None:
                answer(Fetched(ErrorCode.NONE, diverging=diverging))
                return
            leader.on_fetch(follower.node_id, epoch, asked.offset, self.run.now_ms)
            if asked.offset < self.log.end_offset:
                answer(self.fetched(asked))
            else:
                self.pending_fetches.append(PendingFetch(asked, answer, self.run.now_ms + FETCH_WAIT_MS))
                self.run.later(FETCH_WAIT_MS, self, self.after)
            self.after()

    def fetched(self, asked: FetchFrom) -> Fetched:
        return Fetched(ErrorCode.NONE, self.high_watermark, records=self.log.read(asked.offset) or None)

    # Following.

    def fetch(self) -> None:
        follower, life = self.follower, self.life
        if follower is None:
            return
        if self.run.sync_first and self.synced_end < self.log.end_offset:
            # The next fetch offset reports what we have, so it waits for the disk.
            self.sync(self.fetch)
            return
        response = follower.fetch()
        leader = self.run.hosts[follower.leader - 1]
        epoch = self.epoch

        def answer(fetched: Fetched) -> None:
            self.run.carry(
                leader.node_id, self.node_id, self, lambda: self.on_fetched(follower, life, response, fetched)
            )

        self.run.carry(self.node_id, leader.node_id, leader, lambda: leader.serve(self, epoch, response, answer))
        lost = Fetched(ErrorCode.NETWORK_EXCEPTION)
        self.run.later(REQUEST_TIMEOUT_MS, self, lambda: self.on_fetched(follower, life, response, lost))

    def on_fetched(self, follower: PartitionFollower, life: int, asked: FetchFrom, fetched: Fetched) -> None:
        if self.life != life or self.follower is not follower or follower.asked is not asked:
            return
        delay_ms = 0
        for effect in follower.on_response(asked, fetched):
            match effect:
                case Append(records):
                    self.log.append_fetched(bytes(records))
                case Truncate(offset):
                    self.log.truncate_to(offset)
                    self.seen_end = min(self.seen_end, offset)
                    self.synced_end = min(self.synced_end, offset)
                case Restart():
                    raise AssertionError("nothing is deleted here")
                case AskAgain():
                    delay_ms = RETRY_MS
        follower.follow_high_watermark(fetched)
        self.after()
        self.run.later(delay_ms, self, lambda: self.fetch() if self.follower is follower else None)

    # The disk.

    def sync(self, done: Callable[[], None] | None = None) -> None:
        if self.is_syncing:
            if done is not None:
                life = self.life
                self.run.later(5, self, lambda: done() if self.life == life else None)
            return
        self.is_syncing = True
        life, changes, end = self.life, self.log.mark(), self.log.end_offset

        def finished() -> None:
            if self.life != life:
                return
            self.is_syncing = False
            self.log.synced(changes)
            self.synced_end = min(end, self.log.end_offset)
            if self.leader is not None:
                self.leader.on_append(self.log.end_offset, self.own_end())
            self.checkpoint = max(self.checkpoint, self.high_watermark)
            self.after()
            if done is not None:
                done()

        self.run.later(1 + self.run.below(self.run.weather.sync_ms_max), self, finished)

    # After everything.

    def after(self) -> None:
        """Answer pending requests, and check everything."""
        run, log = self.run, self.log
        end = log.end_offset
        if end > self.seen_end:
            run.checkers.saw_records(log, self.seen_end)
        self.seen_end = end
        leader = self.leader
        if leader is not None:
            high_watermark = leader.high_watermark
            if high_watermark != self.seen_high_watermark:
                run.checkers.saw_high_watermark(self.node_id, log, self.seen_high_watermark, high_watermark)
                self.seen_high_watermark = high_watermark
            while self.acknowledging and self.acknowledging[0][0] < high_watermark:
                run.acknowledge(self.acknowledging.popleft())
            if self.pending_fetches:
                waiting, self.pending_fetches = self.pending_fetches, []
                for pending in waiting:
                    if pending.asked.offset < end or run.now_ms >= pending.deadline_ms:
                        pending.answer(self.fetched(pending.asked))
                    else:
                        self.pending_fetches.append(pending)
        if (run.sync_first or run.chance() < 0.005) and log.mark() and not self.is_syncing:
            self.sync()


class Scenario(Run):
    """Runs one seed; leader and follower can be replaced by ones with a bug in them."""

    faults: ClassVar[tuple[str, ...]] = (
        "power_cut",
        "power_cut",
        "kill",
        "restart",
        "pause",
        "isolate",
        "split",
        "cut_one_way",
        "cut_from_controller",
        "bad_network",
        "slow_disk",
        "preferred_leader",
        "doomed_leaders",
        "wipe",
    )

    def __init__(
        self,
        seed: int,
        leader_class: type[PartitionLeader] = PartitionLeader,
        follower_class: type[PartitionFollower] = PartitionFollower,
    ) -> None:
        super().__init__(seed)
        self.leader_class = leader_class
        self.follower_class = follower_class
        self.checkers = Checkers()
        self.late_copies = Random(f"late copies {seed}")
        """AlterPartition requests that arrive a second time."""
        self.sync_first = self.random.random() < 0.4
        self.read_entries_max = self.random.choice((1, 1, 2, 8))
        count = self.random.choice((2, 3, 3, 3, 4))
        min_isr = self.random.choice((1, 2)) if self.sync_first else 2
        self.rules = Rules(min_isr, LAG_MS_MAX)
        self.hosts = [BrokerHost(self, node_id) for node_id in range(1, count + 1)]
        self.controller = Controller(
            self, tuple(range(1, count + 1)), leadership.Rules(min_isr, syncs_first=self.sync_first)
        )
        self._power_cuts: list[int] = []
        """The number of power cuts before each incarnation of a broker."""
        self._values = 0
        self._strikes = 0
        self._acknowledged: list[tuple[int, int, int]] = []
        self._acknowledged_ms = 0

    # For hosts.

    def new_incarnation(self, host: BrokerHost) -> int:
        self._power_cuts.append(host.power_cuts)
        return len(self._power_cuts) - 1

    def saw_loss(self, broker: int, before: int, now: int, loss: Loss) -> None:
        """The controller decided what a broker lost between two incarnations."""
        if loss is not Loss.NOTHING and self._power_cuts[before] == self._power_cuts[now]:
            raise Violation(f"{LOSS_INVENTED}: node {broker} is taken for one that lost {loss.name}")

    def can_join(self, broker: int, epoch: int) -> bool:
        return self.controller.can_lead(broker) and self.controller.epoch_of(broker) == epoch

    def divergence(self, log: MemoryLog, asked: FetchFrom) -> EpochEnd | None:
        if asked.offset == 0:
            return None
        mine = log.end_of(asked.last_epoch)
        if mine is None:
            return EpochEnd(0, log.start_offset)
        return mine if mine.epoch != asked.last_epoch or mine.end_offset < asked.offset else None

    def on_follow(self, host: BrokerHost) -> None:
        """A hook for mutants."""

    def acknowledge(self, record: tuple[int, int, int]) -> None:
        self._acknowledged.append(record)
        self._acknowledged_ms = self.now_ms
        self.trace(*record)

    def publish(self) -> None:
        view, version = self.controller.view(), self.controller.version
        for host in self.hosts:
            self.carry(CONTROLLER, host.node_id, host, partial(host.on_view, view, version))

    def after_change(self) -> None:
        state = self.controller.state
        for broker in (*state.isr, *state.elr):
            host = self.hosts[broker - 1]
            if not host.may_have_lost:
                self.checkers.saw_trusted(broker, host.log)
        if state.leader != NO_LEADER:
            self.checkers.saw_leader(state.leader, state.leader_epoch)
        if state.leader != NO_LEADER and (
            state.leader not in state.isr or not self.controller.can_lead(state.leader)
        ):
            raise Violation(f"{STRANGER_TRUSTED}: {state.leader} leads, in sync are {state.isr}")
        if state.leader != NO_LEADER and self._strikes and self.now_ms < self.trouble_ms:
            self._strikes -= 1
            doomed = self.hosts[state.leader - 1]
            self.later(self.random.randrange(400), None, lambda: self._strike(doomed))

    # Events.

    def run(self) -> Outcome:
        outcome = self.play(self._live)
        outcome.committed = len(self.checkers.visible)
        outcome.acknowledged = len(self._acknowledged)
        outcome.elections = self.controller.state.leader_epoch
        return outcome

    def _live(self) -> None:
        for host in self.hosts:
            host.start()
        self.controller.watch()
        self._produce_again()
        self.plan_faults()
        self.run_until(self.trouble_ms)
        self._heal()
        self.run_until_well(HEALING_MS, self._trouble)
        self._check_acknowledged()

    def _produce_again(self) -> None:
        for host in self.hosts:
            if host.leader is not None and host.paused_until_ms <= self.now_ms and self.random.random() < 0.8:
                self._values += 1
                host.produce(self._values)
        self.later(
            5 + self.random.randrange(120 if self.now_ms < self.trouble_ms else 600), None, self._produce_again
        )

    def _any_host(self) -> BrokerHost:
        leaders = [host for host in self.hosts if host.leader is not None]
        return (
            self.random.choice(leaders) if leaders and self.random.random() < 0.5 else self.random.choice(self.hosts)
        )

    @property
    def _nodes(self) -> list[int]:
        return [host.node_id for host in self.hosts]

    def _is_whole(self) -> bool:
        state = self.controller.state
        return set(state.isr) == set(state.replicas) and all(
            host.is_up and host.epoch >= 0 and not host.may_have_lost for host in self.hosts
        )

    def _fault_power_cut(self) -> None:
        """With records in page caches only, as many machines may fail at once as the topic's settings allow for."""
        host = self._any_host()
        if host.is_up and (self.sync_first or self._is_whole()):
            # Until it has reported a possible loss, the controller cannot know.
            host.may_have_lost |= not self.sync_first
            self._stop(host, power=True)

    def _fault_wipe(self) -> None:
        """A disk is replaced by an empty one: one at a time, and only where one copy is not enough."""
        host = self._any_host()
        if self._is_whole() and self.rules.min_isr > 1:
            self.outcome.faults["wiped"] = self.outcome.faults.get("wiped", 0) + 1
            host.may_have_lost = True
            self._stop(host, power=True)
            host.wipe()

    def _fault_kill(self) -> None:
        host = self._any_host()
        if host.is_up:
            self._stop(host)

    def _fault_restart(self) -> None:
        host = self._any_host()
        if host.is_up and host.epoch >= 0:
            self._stop(host, clean=True)

    def _stop(self, host: BrokerHost, *, power: bool = False, clean: bool = False) -> None:
        host.stop(power=power, clean=clean)
        self.later(self.random.choice((1, 50, 400, 2500)), None, lambda: self._start(host))

    def _start(self, host: BrokerHost) -> None:
        if not host.is_up:
            host.start()

    def _fault_pause(self) -> None:
        self._any_host().paused_until_ms = self.now_ms + self.random.choice((100, 800, 2500))

    def _fault_isolate(self) -> None:
        self.isolate(self._any_host().node_id, [CONTROLLER, *self._nodes])

    def _fault_split(self) -> None:
        self.split([CONTROLLER, *self._nodes])

    def _fault_cut_one_way(self) -> None:
        self.cut({(self._any_host().node_id, self.random.choice(self._nodes))})

    def _fault_cut_from_controller(self) -> None:
        node = self._any_host().node_id
        self.cut({(CONTROLLER, node)} if self.random.random() < 0.5 else {(node, CONTROLLER)})

    def _fault_preferred_leader(self) -> None:
        if self.controller.state.leader_epoch:
            self.controller.elect_preferred()

    def _fault_doomed_leaders(self) -> None:
        self._strikes += self.random.randint(1, 3)

    def _strike(self, host: BrokerHost) -> None:
        if host.is_up and self.random.random() < 0.5:
            self._stop(host)
        else:
            self.isolate(host.node_id, [CONTROLLER, *self._nodes])

    def _heal(self) -> None:
        self.calm()
        for host in self.hosts:
            host.paused_until_ms = 0
            self._start(host)

    def _trouble(self) -> str | None:
        state = self.controller.state
        if state.leader == NO_LEADER:
            return f"no leader, {state}"
        if set(state.isr) != set(state.replicas):
            return f"in sync are {state.isr} of {state.replicas}"
        if self.now_ms - self._acknowledged_ms > PATIENCE_MS:
            return "nothing is acknowledged"
        return None

    def _check_acknowledged(self) -> None:
        log = self.hosts[self.controller.state.leader - 1].log
        for offset, epoch, value in self._acknowledged:
            entry = log.entry(offset) if offset < log.end_offset else None
            if entry is None or (entry.epoch, entry.value) != (epoch, value):
                raise Violation(f"{ACKNOWLEDGED_LOST}: {value} at {offset} in {epoch}; there is {entry}")


def run_seed(
    seed: int,
    leader_class: type[PartitionLeader] = PartitionLeader,
    follower_class: type[PartitionFollower] = PartitionFollower,
) -> Outcome:
    return Scenario(seed, leader_class, follower_class).run()
