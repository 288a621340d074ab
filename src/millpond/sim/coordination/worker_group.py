"""The workers of one run: starts them, disturbs them as planned, and replaces those that are gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

from millpond.sim.clients.client import Client
from millpond.sim.clients.copy_worker import CopyWorker, WorkerStyle
from millpond.sim.clients.group_member import (
    ClassicMember,
    ConsumerMember,
    GroupMember,
    GroupTopic,
    MemberTimes,
    RebalanceListener,
)
from millpond.sim.clients.group_reader import ReadJob
from millpond.sim.clients.requests import Membership
from millpond.sim.clients.script import Script, ScriptRunner
from millpond.sim.coordination.plan import Churn, ChurnPlan, CoordinationPlan, Sharing, Work
from millpond.sim.history.groups import CoordinationHistory
from millpond.sim.world.clock import VirtualClock

GROUP = "crew"
WATCH_MS = 100
START_MS_MAX = 1_000


class Job(Protocol):
    """What a member does with its partitions."""

    def begin(self, membership: Membership) -> None:
        """Work on the partitions of the membership, and on no others."""
        ...

    def finish(self, membership: Membership) -> Script[None]:
        """Finish the work under way; the coordinator still knows the member."""
        ...

    def stop(self) -> None:
        """Stop at once."""
        ...


class JobMember(RebalanceListener):
    """A member that runs a job and records in the history which partitions it owns and until when."""

    def __init__(
        self,
        kind: type[GroupMember],
        clock: VirtualClock,
        client: Client,
        history: CoordinationHistory,
        topic: GroupTopic,
        job: Job,
        times: MemberTimes,
    ) -> None:
        self.name = client.name
        self._clock = clock
        self._history = history
        self._topic = topic
        self._job = job
        self._times = times
        self._is_working = False
        self._heartbeat_ms = 0
        self._member = kind(clock, client, GROUP, topic.name, topic.id, self, times)
        self._runner = ScriptRunner(clock, self._member.run())

    def start(self) -> None:
        self._runner.start()

    def leave(self) -> None:
        """Leave the group when the next heartbeat is due."""
        self._member.is_leaving = True

    def crash(self) -> None:
        """Disappear without leaving the group."""
        self._runner.end()
        self._stop()

    def freeze(self) -> None:
        self._runner.freeze()

    def thaw(self) -> None:
        self._runner.thaw()

    @property
    def is_over(self) -> bool:
        return self._runner.is_over

    # As the member's listener

    def partition_count(self) -> int:
        return self._topic.partitions

    def on_heartbeat(self, sent_ms: int) -> None:
        self._heartbeat_ms = sent_ms
        self._history.renew(self.name, sent_ms + self._times.lease_ms)

    def on_synced(self, assigned: frozenset[int]) -> None:
        membership = self._member.membership
        self._history.share(self._clock.now_ms, membership.generation, membership.member_id, assigned)

    def on_assigned(self, added: frozenset[int]) -> Script[None]:
        if self._is_working:
            yield from self.on_revoked(frozenset())
        membership = self._member.membership
        until_ms = self._heartbeat_ms + self._times.lease_ms
        self._history.hold(self._clock.now_ms, self.name, membership.partitions, until_ms)
        self._is_working = True
        self._job.begin(membership)

    def on_revoked(self, revoked: frozenset[int]) -> Script[None]:
        if self._is_working:
            self._is_working = False
            yield from self._job.finish(self._member.membership)
        self._history.let_go(self._clock.now_ms, self.name)

    def on_lost(self) -> None:
        self._stop()
        self._history.let_go(self._clock.now_ms, self.name)

    def _stop(self) -> None:
        if self._is_working:
            self._is_working = False
            self._job.stop()


@dataclass(slots=True, eq=False)
class Worker:
    """One incarnation of the worker in one slot."""

    name: str
    job: ReadJob | CopyWorker
    member: JobMember | None

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


class WorkerGroup:
    """Keeps a live worker in every slot, as a supervisor would."""

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
        self._workers: dict[int, Worker] = {}
        self._replaced: list[Worker] = []
        self._frozen: dict[Worker, None] = {}
        self._orphan: CopyWorker | None = None
        self._starts = 0
        self._start_at_ms: dict[int, int] = {}
        self._is_calm = False
        self._is_stopped = False

    def start(self) -> None:
        for slot in range(len(self._plan.workers)):
            self._start_at_ms[slot] = self._clock.now_ms + self._random.randint(0, START_MS_MAX)
        for churn in self._plan.churn:
            self._clock.call_later(churn.at_ms, lambda churn=churn: self._disturb(churn))  # type: ignore[misc]
        if self._plan.orphan_at_ms is not None:
            self._clock.call_later(self._plan.orphan_at_ms, self._put_orphan)
        self._watch()

    def calm_down(self) -> None:
        """Stop the churn and thaw frozen workers; replaced ones leave after a while."""
        self._is_calm = True
        for worker in list(self._frozen):
            self._thaw(worker)
        self._clock.call_later(START_MS_MAX, self._dismiss_replaced)

    def stop(self) -> None:
        self._is_stopped = True
        for worker in [*self._workers.values(), *self._replaced]:
            worker.crash()
        if self._orphan is not None:
            self._orphan.crash()

    def _dismiss_replaced(self) -> None:
        for worker in self._replaced:
            worker.leave()

    def _watch(self) -> None:
        if self._is_stopped:
            return
        for slot in range(len(self._plan.workers)):
            worker = self._workers.get(slot)
            if worker is not None and worker.is_over:
                worker.leave()
                self._vacate(slot)
                worker = None
            if worker is None and self._clock.now_ms >= self._start_at_ms[slot]:
                self._put(slot)
        self._clock.call_later(WATCH_MS, self._watch)

    def _vacate(self, slot: int) -> None:
        worker = self._workers.pop(slot, None)
        if worker is not None:
            self._replaced.append(worker)
            self._start_at_ms[slot] = self._clock.now_ms + self._random.randint(0, START_MS_MAX)

    # Disturbing

    def _disturb(self, churn: ChurnPlan) -> None:
        worker = self._workers.get(churn.slot)
        if self._is_calm or worker is None or worker in self._frozen:
            return
        self.counts[f"churn: {churn.kind.value}"] = self.counts.get(f"churn: {churn.kind.value}", 0) + 1
        self._history.note(self._clock.now_ms, f"{worker.name}: {churn.kind.value} for {churn.lasts_ms} ms")
        match churn.kind:
            case Churn.LEAVE:
                if worker.member is not None:
                    worker.leave()
                else:
                    worker.crash()
                    self._vacate(churn.slot)
            case Churn.CRASH:
                worker.crash()
                self._vacate(churn.slot)
            case Churn.FREEZE:
                self._freeze(worker, churn.lasts_ms)
            case Churn.REPLACE:
                self._freeze(worker, churn.lasts_ms)
                self._vacate(churn.slot)

    def _freeze(self, worker: Worker, lasts_ms: int) -> None:
        worker.freeze()
        self._frozen[worker] = None
        self._clock.call_later(lasts_ms, lambda: self._thaw(worker))

    def _thaw(self, worker: Worker) -> None:
        if worker in self._frozen:
            del self._frozen[worker]
            worker.thaw()

    # Starting

    def _put(self, slot: int) -> None:
        self._starts += 1
        name = f"hand{slot}.{self._starts}"
        random = Random(f"{name} {self._seed}")
        worker = self._workers[slot] = self._make(slot, name, random)
        self._history.note(self._clock.now_ms, f"{name} starts")
        if isinstance(worker.job, CopyWorker):
            worker.job.start()
            if worker.member is None:
                mine = frozenset(range(slot, self._source.partitions, len(self._plan.workers)))
                worker.job.begin(Membership(GROUP, partitions=mine))
        if worker.member is not None:
            worker.member.start()

    def _make(self, slot: int, name: str, random: Random) -> Worker:
        style = self._plan.workers[slot]
        job: ReadJob | CopyWorker
        if self._plan.work is Work.COPY:
            job = self._copier(f"copy{slot}", f"{name} work", random, style)
        else:
            client = self._worker_client(f"{name} work")
            job = ReadJob(self._clock, client, self._history, self._source, random, pace_ms=style.pace_ms)
        if self._plan.sharing is Sharing.FIXED:
            return Worker(name, job, None)
        is_classic = self._plan.sharing is Sharing.CLASSIC
        if self._plan.sharing is Sharing.MIXED:
            is_classic = random.random() < 0.5
        kind: type[GroupMember] = ClassicMember if is_classic else ConsumerMember
        member = JobMember(
            kind, self._clock, self._make_client(name), self._history, self._source, job, self._plan.times
        )
        return Worker(name, job, member)

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
        """It is not a member of the group; until its transaction times out, the others wait for its offsets."""
        style = replace(self._plan.workers[0], is_orphan=True)
        orphan = self._copier("orphan", "orphan", Random(f"orphan {self._seed}"), style)
        orphan.start()
        orphan.begin(Membership(GROUP, partitions=frozenset(range(self._source.partitions))))
        self.counts["churn: orphan"] = 1
        self._orphan = orphan
