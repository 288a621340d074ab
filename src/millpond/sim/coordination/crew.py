"""The members or workers of one run: who is there, who is frozen, who takes whose place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from millpond.sim.clients.client import Client
from millpond.sim.clients.copy_worker import CopyWorker
from millpond.sim.clients.group_member import ClassicMember, ConsumerMember, GroupTopic, Member, Membership
from millpond.sim.clients.group_reader import ReadJob
from millpond.sim.clients.worker_style import WorkerStyle
from millpond.sim.coordination.plan import Churn, ChurnPlan, CoordinationPlan, Sharing, Work
from millpond.sim.history.groups import CoordinationHistory
from millpond.sim.world.clock import VirtualClock

GROUP = "crew"
WATCH_MS = 100
START_MS_MAX = 1_000


@dataclass(slots=True, eq=False)
class Hand:
    """One life of one place in the crew."""

    name: str
    job: ReadJob | CopyWorker
    member: Member | None

    @property
    def is_fenced(self) -> bool:
        return isinstance(self.job, CopyWorker) and self.job.is_fenced

    @property
    def is_over(self) -> bool:
        return self.is_fenced or (self.member is not None and self.member.is_over)

    def freeze(self) -> None:
        self.job.freeze()
        if self.member is not None:
            self.member.freeze()

    def thaw(self) -> None:
        self.job.thaw()
        if self.member is not None:
            self.member.thaw()

    def leave(self) -> None:
        if self.member is not None:
            self.member.leave()

    def crash(self) -> None:
        if self.member is not None:
            self.member.crash()
        if isinstance(self.job, CopyWorker):
            self.job.crash()


class Crew:
    """Keeps one live hand in every place, as a supervisor would."""

    def __init__(
        self,
        plan: CoordinationPlan,
        clock: VirtualClock,
        make_client: Callable[[str], Client],
        history: CoordinationHistory,
        source: GroupTopic,
        target: GroupTopic,
        random: Random,
        seed: int,
    ) -> None:
        self.counts: dict[str, int] = {}
        self._plan = plan
        self._clock = clock
        self._make_client = make_client
        self._history = history
        self._source = source
        self._target = target
        self._random = random
        self._seed = seed
        self._hands: dict[int, Hand] = {}
        self._old: list[Hand] = []
        self._frozen: dict[Hand, None] = {}
        self._orphan: CopyWorker | None = None
        self._lives = 0
        self._start_at_ms: dict[int, int] = {}
        self._is_calm = False
        self._stopped = False

    def start(self) -> None:
        for slot in range(len(self._plan.crew)):
            self._start_at_ms[slot] = self._clock.now_ms + self._random.randint(0, START_MS_MAX)
        for churn in self._plan.churn:
            self._clock.call_later(churn.at_ms, lambda churn=churn: self._disturb(churn))  # type: ignore[misc]
        if self._plan.orphan_at_ms is not None:
            self._clock.call_later(self._plan.orphan_at_ms, self._put_orphan)
        self._watch()

    def calm_down(self) -> None:
        """No more churn; who is frozen wakes up. Those whose place is taken go home after a while."""
        self._is_calm = True
        for hand in list(self._frozen):
            self._thaw(hand)
        self._clock.call_later(START_MS_MAX, self._send_home)

    def stop(self) -> None:
        self._stopped = True
        for hand in [*self._hands.values(), *self._old]:
            hand.crash()
        if self._orphan is not None:
            self._orphan.crash()

    def _send_home(self) -> None:
        for hand in self._old:
            hand.leave()

    def _watch(self) -> None:
        if self._stopped:
            return
        for slot in range(len(self._plan.crew)):
            hand = self._hands.get(slot)
            if hand is not None and hand.is_over:
                hand.leave()
                self._vacate(slot)
                hand = None
            if hand is None and self._clock.now_ms >= self._start_at_ms[slot]:
                self._put(slot)
        self._clock.call_later(WATCH_MS, self._watch)

    def _vacate(self, slot: int) -> None:
        hand = self._hands.pop(slot, None)
        if hand is not None:
            self._old.append(hand)
            self._start_at_ms[slot] = self._clock.now_ms + self._random.randint(0, START_MS_MAX)

    # Disturbing

    def _disturb(self, churn: ChurnPlan) -> None:
        hand = self._hands.get(churn.slot)
        if self._is_calm or hand is None or hand in self._frozen:
            return
        self.counts[f"crew: {churn.kind.value}"] = self.counts.get(f"crew: {churn.kind.value}", 0) + 1
        self._history.note(self._clock.now_ms, f"{hand.name}: {churn.kind.value} for {churn.lasts_ms} ms")
        match churn.kind:
            case Churn.LEAVE:
                if hand.member is not None:
                    hand.leave()
                else:
                    hand.crash()
                    self._vacate(churn.slot)
            case Churn.CRASH:
                hand.crash()
                self._vacate(churn.slot)
            case Churn.FREEZE:
                self._freeze(hand, churn.lasts_ms)
            case Churn.REPLACE:
                self._freeze(hand, churn.lasts_ms)
                self._vacate(churn.slot)

    def _freeze(self, hand: Hand, lasts_ms: int) -> None:
        hand.freeze()
        self._frozen[hand] = None
        self._clock.call_later(lasts_ms, lambda: self._thaw(hand))

    def _thaw(self, hand: Hand) -> None:
        if hand in self._frozen:
            del self._frozen[hand]
            hand.thaw()

    # Making

    def _put(self, slot: int) -> None:
        self._lives += 1
        name = f"hand{slot}.{self._lives}"
        random = Random(f"{name} {self._seed}")
        hand = self._hands[slot] = self._make(slot, name, random)
        self._history.note(self._clock.now_ms, f"{name} begins")
        if isinstance(hand.job, CopyWorker):
            hand.job.start()
            if hand.member is None:
                mine = frozenset(range(slot, self._source.partitions, len(self._plan.crew)))
                hand.job.begin(Membership(GROUP, partitions=mine))
        if hand.member is not None:
            hand.member.start()

    def _make(self, slot: int, name: str, random: Random) -> Hand:
        style = self._plan.crew[slot]
        job: ReadJob | CopyWorker
        if self._plan.work is Work.COPY:
            job = self._copier(f"copy{slot}", f"{name} work", random, style)
        else:
            client = self._worker_client(f"{name} work")
            job = ReadJob(self._clock, client, self._history, self._source, random, pace_ms=style.pace_ms)
        if self._plan.sharing is Sharing.FIXED:
            return Hand(name, job, None)
        is_classic = self._plan.sharing is Sharing.CLASSIC
        if self._plan.sharing is Sharing.MIXED:
            is_classic = random.random() < 0.5
        kind = ClassicMember if is_classic else ConsumerMember
        member = kind(self._clock, self._make_client(name), self._history, GROUP, self._source, job, self._plan.times)
        return Hand(name, job, member)

    def _worker_client(self, name: str) -> Client:
        client = self._make_client(name)
        client.timeout_ms = self._plan.request_timeout_ms
        return client

    def _copier(self, transactional_id: str, name: str, random: Random, style: WorkerStyle) -> CopyWorker:
        return CopyWorker(
            self._clock,
            self._worker_client,
            self._history,
            transactional_id,
            name,
            self._source,
            self._target,
            random,
            style,
        )

    def _put_orphan(self) -> None:
        """It is nobody's member; until its transaction times out, everybody has to wait for its offsets."""
        style = replace(self._plan.crew[0], is_orphan=True)
        orphan = self._copier("orphan", "orphan", Random(f"orphan {self._seed}"), style)
        orphan.start()
        orphan.begin(Membership(GROUP, partitions=frozenset(range(self._source.partitions))))
        self.counts["crew: orphan"] = 1
        self._orphan = orphan
