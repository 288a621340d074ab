"""One seeded run of a share partition: leaders that change, members that fail, a coordinator that keeps the state.

One leader serves at a time, as leases have it, but writes of an earlier one may arrive late. Requests of members may
be lost or duplicated; the leader's writes arrive in order, as on one connection, and may be refused, or their answers
lost. After a lost answer the leader reads the state again. In odd seeds the group has a dead-letter topic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.shares.acquisition import AcquireMode
from millpond.broker.shares.next_records import Fact
from millpond.broker.shares.slots import Change
from millpond.broker.shares.verdicts import Acknowledgement, AcknowledgeType
from millpond.broker.shares.window import RETRY_MS, ShareWindow
from millpond.broker.shares.window_settings import ShareSettings
from millpond.coordinators.shard import CoordinatorRecord, Effects, Request
from millpond.coordinators.shares.keys import SharePartition
from millpond.coordinators.shares.shard import ShareCoordinatorSettings, ShareShard
from millpond.coordinators.shares.state import ShareState
from millpond.coordinators.shares.state_batches import StateBatch, from_wire, to_wire
from millpond.sim.machines.run import Host, Outcome, Run
from millpond.sim.machines.shares.checkers import Checkers
from millpond.wire import messages as m

TROUBLE_MS = 3_000
HEALING_MS = 20_000
LEADER = 0
PARTITION = SharePartition("g", UUID(int=1), 0)
DUE_CHECK_MS = 100
FINISHING = (AcknowledgeType.GAP, AcknowledgeType.ACCEPT, AcknowledgeType.REJECT)

Written = dict[int, tuple[int, int]]


class Coordinator:
    """The share coordinator of the partition, and its log, of which it keeps what it needs."""

    def __init__(self, settings: ShareCoordinatorSettings) -> None:
        self.settings = settings
        self.is_away = False
        self.log: list[CoordinatorRecord] = []
        self.log_start = 0
        self.now_ms = 0
        self.shard = self._load()
        self._initialise()

    @property
    def state(self) -> ShareState:
        return self.shard.states[PARTITION]

    def write(self, leader_epoch: int, change: Change) -> bool:
        """Whether the change was written; a later leader fences it."""
        kind = m.WriteShareGroupStateRequest
        batches = [kind.StateBatch(**to_wire(each)) for each in change.batches]
        given = kind.PartitionData(
            partition=0,
            state_epoch=1,
            leader_epoch=leader_epoch,
            start_offset=change.start_offset,
            delivery_complete_count=change.delivery_complete_count,
            state_batches=batches,
        )
        topics = [kind.WriteStateData(topic_id=PARTITION.topic_id, partitions=[given])]
        code = self._ask(kind(group_id=PARTITION.group_id, topics=topics)).error_code
        assert code in (ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH), code
        return bool(code == ErrorCode.NONE)

    def read(self, leader_epoch: int) -> tuple[int, list[StateBatch]]:
        kind = m.ReadShareGroupStateRequest
        given = kind.PartitionData(partition=0, leader_epoch=leader_epoch)
        topics = [kind.ReadStateData(topic_id=PARTITION.topic_id, partitions=[given])]
        got = self._ask(kind(group_id=PARTITION.group_id, topics=topics))
        assert got.error_code == ErrorCode.NONE, got
        return got.start_offset, [from_wire(each) for each in got.state_batches]

    def fail_over(self) -> None:
        """Another node loads the shard; what it no longer needs was deleted from the log."""
        self._replay(self.shard.on_timer(self.now_ms))
        first = self.shard.first_needed_offset()
        del self.log[: first - self.log_start]
        self.log_start = first
        self.shard = self._load()
        # Whoever initialised the state may ask again.
        self._initialise()

    def _initialise(self) -> None:
        kind = m.InitializeShareGroupStateRequest
        given = kind.PartitionData(partition=0, state_epoch=1, start_offset=0)
        topics = [kind.InitializeStateData(topic_id=PARTITION.topic_id, partitions=[given])]
        self._ask(kind(group_id=PARTITION.group_id, topics=topics))

    def _load(self) -> ShareShard:
        shard = ShareShard(self.settings, lambda *_: True)
        for offset, record in enumerate(self.log, self.log_start):
            shard.replay(offset, *record)
        shard.on_loaded(self.now_ms)
        return shard

    def _ask(self, body: m.Message) -> Any:
        effects = self.shard.step(Request(body, 1, None), self.now_ms)
        self._replay(effects)
        ((_, response),) = effects.replies
        return response.results[0].partitions[0]

    def _replay(self, effects: Effects) -> None:
        for record in effects.records:
            self.shard.replay(self.log_start + len(self.log), *record)
            self.log.append(record)


class Leader:
    """Serves the partition in one leader epoch."""

    def __init__(self, run: Scenario, epoch: int) -> None:
        self.run = run
        self.epoch = epoch
        self.window: ShareWindow | None = None
        self._arrives_ms = 0
        self._armed_ms: int | None = None
        self._writes_letters = False
        self._due_armed_ms: int | None = None
        self.load()

    def load(self) -> None:
        """Read what was written, after everything that is being written."""
        run, coordinator = self.run, self.run.coordinator
        self.window = self._armed_ms = self._due_armed_ms = None
        self._writes_letters = False

        def arrive() -> None:
            if coordinator.is_away or run.leader is not self:
                if run.leader is self:
                    run.later(50, None, self.load)
                return
            start, batches = coordinator.read(self.epoch)
            run.later(run.below(run.weather.delay_ms_max), None, partial(self._loaded, start, batches))

        self._send(arrive)

    def _loaded(self, start: int, batches: Sequence[StateBatch]) -> None:
        run = self.run
        if run.leader is not self or self.window is not None:
            return
        run.note("leader", self.epoch, "loads from", start, *batches)
        run.checkers.loaded(_by_offset(batches), start)
        self.window = ShareWindow.load(run.settings, start, batches)
        self.window.advance_start(run.log_start)
        self.settle(start)

    def hang(self, for_ms: int) -> None:
        """Messages to the coordinator take longer."""
        self._arrives_ms = max(self._arrives_ms, self.run.now_ms + for_ms)

    # What members ask for.

    def fetch(self, member: str, most: int, mode: AcquireMode) -> list[tuple[int, int]]:
        run, window = self.run, self.window
        if window is None:
            return []
        before = window.start_offset
        first, last = self._read()
        end, had_room = window.end_offset, window.has_room
        acquired = window.acquire(
            member,
            first,
            last,
            run.now_ms,
            max_records=most,
            batch_size=1 + run.below(6),
            mode=mode,
            batches=run.batches_in(first, last),
        )
        if any(each.last >= end for each in acquired):
            run.checkers.may_add(max(before, 0), end)
        offsets = [offset for each in acquired for offset in range(each.first, each.last + 1)]
        run.note(member, "acquires", *acquired)
        for begin, until, count in acquired:
            run.checkers.acquired(member, begin, until, count, run.now_ms + run.settings.lock_duration_ms)
        settings = run.settings
        if (
            offsets
            and had_room
            and settings.priority_enable
            and not (settings.key_order_enable or settings.delay_enable)
        ):
            run.checkers.chosen(offsets, window.start_offset, window.upcoming.looked)
        self.settle(before)
        return [(each.first, each.last) for each in acquired]

    def _read(self) -> tuple[int, int]:
        """Which offsets of the log are read to acquire them; what has to be looked at before is looked at."""
        run, window = self.run, self.window
        assert window is not None
        while (look := window.look_offset()) is not None and look < run.log_end:
            self._look(look, min(look + 1 + run.below(30), run.log_end) - 1)
        first = window.next_fetch_offset()
        last = min(first + 1 + run.below(30), run.log_end) - 1
        if run.settings.delay_enable and not run.settings.is_ordered:
            self._look(first, last)
        return first, last

    def _look(self, first: int, last: int) -> None:
        run, window = self.run, self.window
        assert window is not None
        facts = [fact for offset, fact in run.facts.items() if first <= offset <= last]
        window.learn(first, last, run.batches_in(first, last), facts, run.wall_ms)

    def acknowledge(self, member: str, verdicts: Sequence[Acknowledgement]) -> None:
        run, window = self.run, self.window
        if window is None:
            return
        kinds = {
            offset: AcknowledgeType(types[0] if len(types) == 1 else types[offset - first])
            for first, last, types, *_ in verdicts
            for offset in range(max(first, window.start_offset), last + 1)
        }
        try:
            change = window.acknowledge(member, verdicts, run.now_ms, run.wall_ms)
        except Refused as refusal:
            run.note(member, "is refused", *verdicts, refusal)
            if refusal.code is ErrorCode.INVALID_RECORD_STATE:
                run.checkers.acknowledged(member, kinds, run.now_ms, accepted=False)
            return
        run.note(member, "says", *verdicts)
        run.checkers.acknowledged(member, kinds, run.now_ms, accepted=True)
        renewed = [offset for offset, kind in kinds.items() if kind is AcknowledgeType.RENEW]
        run.checkers.renewed(renewed, run.now_ms + run.settings.lock_duration_ms)
        told = {offset: kind in FINISHING for offset, kind in kinds.items() if kind is not AcknowledgeType.RENEW}
        self.persist(change, told, [each for each, kind in kinds.items() if kind is AcknowledgeType.REJECT])

    def release(self, member: str, *, were_delivered: bool) -> None:
        if self.window is not None:
            self.run.note(member, "leaves")
            change = self.window.release_member(member, were_delivered=were_delivered)
            held = [each for each, (holder, _) in self.run.checkers.holders.items() if holder == member]
            pending = self.run.checkers.pending
            self.persist(change, dict.fromkeys((each for each in held if each not in pending), False))

    def on_timer(self, window: ShareWindow) -> None:
        if self.run.leader is not self or self.window is not window:
            return
        self._armed_ms = None
        change = window.on_timer(self.run.now_ms)
        written = _by_offset(change.batches)
        self.run.checkers.expired(written, self.run.now_ms)
        self.persist(change, dict.fromkeys(written, False))

    # Writing.

    def persist(self, change: Change, verdicts: Mapping[int, bool], rejected: Collection[int] = ()) -> None:
        run, window, coordinator = self.run, self.window, self.run.coordinator
        assert window is not None
        written = _by_offset(change.batches)
        run.checkers.began(verdicts, written, rejected)
        if not change.is_pending:
            self.settle(window.start_offset)
            return
        run.note("leader writes", *change.batches)

        def arrive() -> None:
            is_refused = coordinator.is_away or run.chance() < run.refusals
            before, coordinator.now_ms = coordinator.state.start_offset, run.now_ms
            is_written = not is_refused and coordinator.write(self.epoch, change)
            run.checkers.passed(before, coordinator.state.start_offset)
            if not is_refused and not is_written:
                run.note("a late write of epoch", self.epoch, "is fenced")
                return
            end = partial(self._written, window, change, verdicts, written, is_written)
            run.later(run.below(run.weather.delay_ms_max), None, end)

        self._send(arrive)
        self.settle(window.start_offset)

    def _written(
        self, window: ShareWindow, change: Change, verdicts: Mapping[int, bool], written: Written, is_written: bool
    ) -> None:
        run = self.run
        if run.leader is not self or self.window is not window:
            return
        if run.chance() < run.weather.loss / 4:
            run.note("the leader does not learn of", *change.batches)
            self.load()
            return
        before = window.start_offset
        if is_written:
            run.note("written", *change.batches)
            run.checkers.committed(verdicts, written, _due_in(change.batches))
            window.commit(change)
            run.outcome.acknowledged += 1
            run.outcome.committed += sum(verdicts.values())
        else:
            run.note("not written", *change.batches)
            run.checkers.rolled_back(verdicts, written, RETRY_MS, run.now_ms)
            window.roll_back(change, run.now_ms)
        self.settle(before)

    # Dead letters.

    def _write_letters(self, window: ShareWindow) -> None:
        """Write some letters to their topic, where they arrive late, or not at all."""
        run = self.run
        if run.leader is not self or self.window is not window:
            return
        due = window.letters_due(1 + run.below(8))
        if not due:
            self._writes_letters = False
            return
        if run.chance() < run.refusals:
            run.later(run.below(100), None, partial(self._write_letters, window))
            return
        ranges = [(first, last) for first, last, _ in due]

        def arrive() -> None:
            run.note("letters of", *ranges)
            run.checkers.letters.update(offset for first, last in ranges for offset in range(first, last + 1))
            run.later(run.below(run.weather.delay_ms_max), None, partial(self._archive, window, ranges))

        run.later(run.below(run.weather.delay_ms_max), None, arrive)

    def _archive(self, window: ShareWindow, ranges: Sequence[tuple[int, int]]) -> None:
        if self.run.leader is not self or self.window is not window:
            return
        self._writes_letters = False
        change = window.archive(ranges)
        written = _by_offset(change.batches)
        self.run.checkers.letters_begun(written)
        self.persist(change, dict.fromkeys(written, True))

    def settle(self, before: int) -> None:
        """Look at the window after an event, and set the timer that it asks for."""
        run, window = self.run, self.window
        assert window is not None
        run.checkers.passed(before, window.start_offset)
        run.checkers.looked(run.now_ms)
        run.trace(window.start_offset, window.end_offset, window.in_flight, window.held_count)
        deadline_ms = window.next_deadline_ms()
        if deadline_ms is not None and (self._armed_ms is None or deadline_ms < self._armed_ms):
            self._armed_ms = deadline_ms
            run.at(deadline_ms, None, partial(self.on_timer, window))
        if window.archiving_count and not self._writes_letters:
            self._writes_letters = True
            run.later(run.below(50), None, partial(self._write_letters, window))
        due_ms = window.next_due_ms()
        if due_ms >= 0:
            # As often as a real timer looks at the wall clock.
            at_ms = run.now_ms + min(max(due_ms - run.wall_ms, 0), DUE_CHECK_MS)
            if self._due_armed_ms is None or at_ms < self._due_armed_ms:
                self._due_armed_ms = at_ms
                run.at(at_ms, None, partial(self.on_due, window))

    def on_due(self, window: ShareWindow) -> None:
        if self.run.leader is not self or self.window is not window:
            return
        self._due_armed_ms = None
        window.free_due(self.run.wall_ms, 1 + self.run.below(3))
        self.settle(window.start_offset)

    def _send(self, arrive: Callable[[], None]) -> None:
        """Messages to the coordinator stay in order."""
        self._arrives_ms = max(self._arrives_ms, self.run.now_ms + self.run.below(self.run.weather.sync_ms_max))
        self.run.at(self._arrives_ms, None, arrive)


class Member(Host):
    """Fetches, works for a while, and gives its verdict."""

    def __init__(self, run: Scenario, node_id: int) -> None:
        super().__init__(node_id)
        self.run = run
        self.incarnation = 0
        self.join()

    @property
    def name(self) -> str:
        return f"m{self.node_id}.{self.incarnation}"

    def join(self) -> None:
        self.incarnation += 1
        self._fetch(self.incarnation)

    def crash(self) -> None:
        """Its connection breaks, and another process takes over; the leader may not notice."""
        run, name = self.run, self.name
        if run.chance() < 0.5:
            run.carry(self.node_id, LEADER, None, lambda: run.leader.release(name, were_delivered=run.chance() < 0.5))
        self.incarnation += 1
        run.later(run.below(300), None, partial(self._fetch, self.incarnation))

    def _fetch(self, incarnation: int) -> None:
        run = self.run
        if incarnation != self.incarnation:
            return
        mode = AcquireMode.RECORD_LIMIT if run.chance() < 0.4 else AcquireMode.BATCH_OPTIMIZED
        most, name = 1 + run.below(8), self.name

        def arrive() -> None:
            got = run.leader.fetch(name, most, mode)
            if got:
                run.carry(LEADER, self.node_id, self, partial(self._receive, incarnation, got))

        run.carry(self.node_id, LEADER, None, arrive)
        run.later(20 + run.below(120), self, partial(self._fetch, incarnation))

    def _receive(self, incarnation: int, got: Sequence[tuple[int, int]]) -> None:
        """Give a verdict on each range, whole or in parts, sooner or later, or never."""
        run = self.run
        for first, last in got:
            position = first
            while position <= last:
                until = last if run.chance() < 0.6 else min(last, position + run.below(4))
                if run.chance() < 0.95 or run.is_healed:
                    delay_ms = run.below(50 if run.chance() < 0.9 else 2 * run.settings.lock_duration_ms)
                    run.later(delay_ms, self, partial(self._judge, incarnation, position, until, 3))
                position = until + 1

    def _judge(self, incarnation: int, first: int, last: int, renewals: int) -> None:
        run = self.run
        if incarnation != self.incarnation:
            return
        if run.chance() < 0.2 and renewals:
            types = [AcknowledgeType.RENEW]
            delay_ms = run.below(run.settings.lock_duration_ms)
            run.later(delay_ms, self, partial(self._judge, incarnation, first, last, renewals - 1))
        elif run.chance() < 0.5:
            types = [run.verdict()]
        else:
            types = [run.verdict() for _ in range(first, last + 1)]
        delay_ms = run.below(600) if run.settings.delay_enable and run.chance() < 0.3 else 0
        verdicts = [Acknowledgement(first, last, types, delay_ms)]
        run.carry(self.node_id, LEADER, None, lambda: run.leader.acknowledge(self.name, verdicts))


class Scenario(Run):
    faults: ClassVar[tuple[str, ...]] = (
        "leader_change",
        "leader_change",
        "member_crash",
        "member_crash",
        "coordinator_away",
        "coordinator_failover",
        "refused_writes",
        "bad_network",
        "slow_disk",
        "pause",
        "retention",
        "impatience",
        "clock_jump",
    )
    trouble_ms = TROUBLE_MS

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.settings = ShareSettings(
            lock_duration_ms=self.random.choice((100, 300, 900)),
            delivery_count_limit=self.random.choice((2, 3, 5, 10)),
            in_flight_max=self.random.choice((3, 10, 40)),
            delay_enable=self.random.choice((False, True)),
            delay_max_records=self.random.choice((3, 1_000)),
            key_order_enable=self.random.choice((False, False, True)),
            priority_enable=self.random.choice((False, False, True)),
            look_ahead_records=self.random.choice((5, 40)),
            has_dead_letters=seed % 2 == 1,
        )
        self.facts: dict[int, Fact] = {}
        """What records say about their delivery, as far as the group asks."""
        self.wall_offset_ms = 10_000
        self.checkers = Checkers(
            self.settings.delivery_count_limit,
            self.settings.in_flight_max,
            has_letters=self.settings.has_dead_letters,
        )
        self.coordinator = Coordinator(
            ShareCoordinatorSettings(self.random.choice((1, 5, 500)), cold_interval_ms=500)
        )
        self.batches: list[tuple[int, int]] = []
        self.log_start = self.log_end = 0
        self.refusals = 0.0
        self.releases = self.random.choice((0.05, 0.3, 0.6))
        self.is_healed = False
        self.leader = Leader(self, 1)
        self.members = [Member(self, number) for number in range(1, self.random.choice((2, 3, 5)))]

    def verdict(self) -> AcknowledgeType:
        if self.chance() < (0.05 if self.is_healed else self.releases):
            return AcknowledgeType.RELEASE
        return AcknowledgeType.ACCEPT if self.chance() < 0.8 else self.random.choice(FINISHING)

    def produce(self) -> None:
        """Append a batch, sometimes behind offsets that nobody sees."""
        base = self.log_end + (self.below(4) if self.chance() < 0.2 else 0)
        last = base + self.below(1 + self.below(8))
        self.batches.append((base, last))
        for offset in range(base, last + 1):
            self.checkers.records.add(offset)
            self._write_fact(offset)
        self.log_end = last + 1
        if self.now_ms < TROUBLE_MS:
            self.later(self.below(120), None, self.produce)

    def _write_fact(self, offset: int) -> None:
        settings = self.settings
        fact = Fact(offset)
        if settings.delay_enable and self.chance() < 0.2:
            fact = fact._replace(due_ms=self.wall_ms + self.below(1_000))
            self.checkers.due[offset] = fact.due_ms
        if settings.key_order_enable and self.chance() < 0.8:
            fact = fact._replace(key=self.below(5))
            self.checkers.keys[offset] = fact.key or 0
        if settings.priority_enable and self.chance() < 0.6:
            fact = fact._replace(priority=self.below(10))
        if fact != Fact(offset):
            self.facts[offset] = fact

    @property
    def wall_ms(self) -> int:
        wall_ms = self.wall_offset_ms + self.now_ms
        self.checkers.wall_ms = max(self.checkers.wall_ms, wall_ms)
        return wall_ms

    def batches_in(self, first: int, last: int) -> list[tuple[int, int]]:
        return [each for each in self.batches if each[1] >= first and each[0] <= last]

    def live(self) -> None:
        self.plan_faults()
        self.produce()
        self.run_until(TROUBLE_MS)
        self.calm()
        self.refusals, self.coordinator.is_away, self.is_healed = 0.0, False, True
        self.run_until_well(HEALING_MS, self.find_problem)

    def find_problem(self) -> str | None:
        window = self.leader.window
        if window is None:
            return "no leader has loaded"
        if window.start_offset < self.log_end:
            return f"the window begins at {window.start_offset}, the log ends at {self.log_end}"
        return None

    # Faults.

    def _fault_leader_change(self) -> None:
        if self.chance() < 0.5:
            # Its last writes are on their way for long, and another leader may overtake them.
            self.leader.hang(self.below(600))
            self.later(self.below(100), None, self._change_leader)
        else:
            self._change_leader()

    def _change_leader(self) -> None:
        self.outcome.elections += 1
        self.leader = Leader(self, self.leader.epoch + 1)

    def _fault_member_crash(self) -> None:
        self.random.choice(self.members).crash()

    def _fault_coordinator_away(self) -> None:
        self.coordinator.is_away = True
        self.later(self.random.choice((50, 500)), None, self._come_back)

    def _come_back(self) -> None:
        self.coordinator.is_away = False

    def _fault_coordinator_failover(self) -> None:
        self.coordinator.now_ms = self.now_ms
        self.coordinator.fail_over()

    def _fault_refused_writes(self) -> None:
        self.refusals = self.random.choice((0.0, 0.1, 0.5))

    def _fault_pause(self) -> None:
        self.random.choice(self.members).paused_until_ms = self.now_ms + self.random.choice((50, 500, 1500))

    def _fault_retention(self) -> None:
        """The log begins later, in the middle of anything."""
        self.log_start = min(self.log_start + self.below(12), self.log_end)
        self.checkers.forget_before(self.log_start)
        window = self.leader.window
        if window is not None:
            before = window.start_offset
            window.advance_start(self.log_start)
            self.leader.settle(before)

    def _fault_clock_jump(self) -> None:
        self.wall_offset_ms += self.random.choice((-400, -50, 50, 400))

    def _fault_impatience(self) -> None:
        """A member acknowledges what it need not hold."""
        first = self.below(self.log_end + 1)
        verdicts = [Acknowledgement(first, first + self.below(5), [self.verdict()])]
        self.leader.acknowledge(self.random.choice(self.members).name, verdicts)


def _by_offset(batches: Sequence[StateBatch]) -> Written:
    return {
        offset: (int(state), deliveries)
        for first, last, state, deliveries, *_ in batches
        for offset in range(first, last + 1)
    }


def _due_in(batches: Sequence[StateBatch]) -> dict[int, int]:
    """When records fall due that are released for later."""
    return {
        offset: each.available_at_ms
        for each in batches
        if each.available_at_ms >= 0
        for offset in range(each.first, each.last + 1)
    }


def run_seed(seed: int) -> Outcome:
    scenario = Scenario(seed)
    return scenario.play(scenario.live)
