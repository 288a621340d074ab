"""A seeded run with one group, and perhaps transactions: work under faults, heal, finish, check. Here on one node."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from millpond.sim.admin import SimAdmin
from millpond.sim.clients.client import Client, SimClient
from millpond.sim.clients.committed_reader import CommittedReader
from millpond.sim.clients.group_member import GroupTopic
from millpond.sim.clients.producer import SimProducer
from millpond.sim.clients.requests import fetch_offsets
from millpond.sim.clients.script import Script, ScriptRunner, Send, Sleep
from millpond.sim.coordination.checkers import check_copied, check_processed, check_sightings, check_transactions
from millpond.sim.coordination.plan import WORK_MS, CoordinationPlan, Sharing, Work, make_coordination_plan
from millpond.sim.coordination.worker_group import GROUP, WorkerGroup
from millpond.sim.fault_injector import FaultInjector
from millpond.sim.history.groups import CoordinationHistory
from millpond.sim.history.records import Content, History, Promise, TopicIdPartition, in_order_of_time
from millpond.sim.node import SimNode
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m

PREPARE_MS = 60_000
LINGER_MS = 7_000
"""After the work is done: long enough for every late request to arrive and for every transaction to time out."""
OBSERVE_MS = 250
START_TRIES = 3
OPEN_STATES = ["Ongoing", "PrepareCommit", "PrepareAbort"]


@dataclass(slots=True)
class CoordinationOutcome:
    """The result of one run."""

    seed: int
    violations: list[str] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    starts: int = 0
    events: int = 0
    virtual_ms: int = 0
    trace_hash: str = ""


class GroupScenario:
    """What runs on one node and on a cluster have in common: the topics, the workers, and how they are checked."""

    settle_ms = 60_000
    read_ms = 30_000

    def __init__(self, seed: int, work_plan: CoordinationPlan, random: Random) -> None:
        self.seed = seed
        self.work_plan = work_plan
        self.sim = SimWorld(seed)
        self.random = random
        self.history = CoordinationHistory(is_one_kind=work_plan.sharing is not Sharing.MIXED)
        self.records = History()
        self.readers: list[CommittedReader] = []
        self.ends: dict[int, int] = {}
        self.workers: WorkerGroup | None = None
        self._observer: ScriptRunner | None = None

    # Clients

    def _client(self, name: str) -> Client:
        raise NotImplementedError

    def _fill_input(self) -> bool:
        producer = SimProducer(self._client("filler"), self.sim.clock, self.records, Random(f"filler {self.seed}"))
        tags = 0
        for partition, count in self.work_plan.batches:
            contents = [Content(f"{tags + number}", None, b"", self.sim.clock.wall_ms()) for number in range(count)]
            tags += count
            producer.produce(TopicIdPartition("input", self.input.id, partition), contents, Promise.SURVIVES)
        is_filled = self.sim.run_until(producer.is_idle, within_ms=PREPARE_MS)
        producer.close()
        self.ends = {
            number: sum(count for partition, count in self.work_plan.batches if partition == number)
            for number in range(self.input.partitions)
        }
        return is_filled

    def _create_topics(self) -> None:
        self.input = self._create("input", self.work_plan.input_partitions)
        self.output = self._create("output", self.work_plan.output_partitions)

    def _create(
        self, name: str, partitions: int, configs: dict[str, str] | None = None, replication_factor: int = 1
    ) -> GroupTopic:
        done: list[None] = []
        admin = SimAdmin(self._client("admin"), self.sim.clock, self.records)
        admin.create(
            name, partitions, configs or {}, lambda: done.append(None), replication_factor=replication_factor
        )
        assert self.sim.run_until(lambda: bool(done), within_ms=PREPARE_MS), f"{name} cannot be created"
        (topic_id,) = self.records.topics[name].ids
        assert topic_id is not None
        return GroupTopic(name, topic_id, partitions)

    def _start_workers(self) -> None:
        self.workers = WorkerGroup(
            self.work_plan,
            self.sim.clock,
            self._client,
            self.history,
            self.input,
            self.output,
            self.random,
            self.seed,
        )
        self.workers.start()
        self._observer = ScriptRunner(self.sim.clock, self._observe())
        self._observer.start()

    def _start_reader(self, client: Client, *, version: int, max_bytes: int = 1 << 20) -> CommittedReader:
        reader = CommittedReader(
            self.sim.clock, client, self.history, self.output, version=version, max_bytes=max_bytes
        )
        reader.start()
        return reader

    def _observe(self) -> Script[None]:
        """Fetch the group's committed offsets again and again, as an outsider."""
        client = self._client("observer")
        history, clock = self.history, self.sim.clock

        def on_offset(sent_ms: int, partition: int, offset: int) -> None:
            if self.work_plan.work is Work.READ:
                history.check_offset(clock.now_ms, sent_ms, client.name, partition, offset)
            else:
                history.check_pending_offset(clock.now_ms, client.name, partition, offset)

        while True:
            yield from fetch_offsets(
                client, clock, GROUP, self.input.name, self.ends, on_offset, require_stable=False
            )
            yield Sleep(OBSERVE_MS)

    # The end

    def _finish_work(self) -> None:
        """The faults are over: let the workers finish."""
        assert self.workers is not None
        assert self._observer is not None
        if not self.sim.run_until(lambda: self._is_done() or self._has_failed(), within_ms=self.settle_ms):
            self._blame(f"the group reached {self.history.reached} of {self.ends} in {self.settle_ms} ms of peace")
        self.sim.run_for(OBSERVE_MS)
        self.workers.stop()
        self._observer.end()

    def _has_failed(self) -> bool:
        return bool(self.history.violations or self.records.violations)

    def _is_done(self) -> bool:
        return all(max(self.history.reached.get(partition, 0), 0) >= end for partition, end in self.ends.items())

    def _blame(self, finding: str) -> None:
        self.history.report(self.sim.clock.now_ms, finding)

    # Checks

    def _check(self) -> None:
        if self.work_plan.work is Work.READ:
            self._add(check_processed(self.history, self.ends))
            return
        final = self._start_reader(self._client("auditor"), version=16)
        if not self.sim.run_until(final.is_at_end, within_ms=self.read_ms):
            views = {number: (view.last_stable_offset, view.high_watermark) for number, view in final.views.items()}
            self._blame(f"a transaction hangs: the output is stable up to, and ends at, {views}")
        final.close()
        self._check_states()
        self._add(check_copied(self.ends, final.shown, min(2, self.output.partitions)))
        self._add(check_transactions(self.history, final.shown))
        for reader in self.readers:
            self._add(check_sightings(self.history, reader.shown, final.shown))

    def _add(self, findings: Iterable[str]) -> None:
        self.history.violations += findings

    def _check_states(self) -> None:
        """No transaction is open, and no offsets wait for one."""
        raise NotImplementedError

    def _outcome(self, faults: dict[str, int], starts: int, evidence: Iterable[str]) -> CoordinationOutcome:
        plan = self.work_plan
        counts = {f"{plan.work.value}, {plan.sharing.value}": 1, **self.history.counts}
        counts["records of the input"] = sum(self.ends.values())
        counts["records processed"] = sum(self.history.processed.values())
        lines = [*evidence, str(self.sim.clock.events_run), *self.history.violations]
        return CoordinationOutcome(
            seed=self.seed,
            violations=self.history.violations,
            faults=faults | ({} if self.workers is None else self.workers.counts),
            counts=counts,
            starts=starts,
            events=self.sim.clock.events_run,
            virtual_ms=self.sim.clock.now_ms,
            trace_hash=hashlib.sha256("\n".join(lines).encode()).hexdigest(),
        )


class CoordinationScenario(GroupScenario):
    """One node and its workers from a seed. `run` runs it to its end."""

    def __init__(self, seed: int, plan: CoordinationPlan | None = None) -> None:
        self.plan = plan or make_coordination_plan(seed)
        super().__init__(seed, self.plan, Random(f"coordination {seed}"))
        self.node = SimNode(self.sim, texts=self.plan.node)
        self.node.workers_delay_ms_usual = self.plan.disk_delay_ms
        self.injector = FaultInjector(self.sim, self.node, self.records, Random(f"injector {seed}"))

    def run(self) -> CoordinationOutcome:
        assert self.node.start()
        self._create_topics()
        # Before any fault: readers may see records that a power cut removes.
        assert self._fill_input()
        self.injector.watch()
        self.injector.schedule(self.plan.faults)
        self._start_workers()
        if self.plan.work is Work.COPY:
            self.readers = [
                self._start_reader(self._client("reader"), version=11),
                self._start_reader(self._client("reader by id"), version=16, max_bytes=1),
            ]
        self.sim.run_until(self._has_failed, within_ms=WORK_MS)
        self._settle()
        if self.node.is_up and not self._has_failed():
            self._check()
        disk = self.node.disk
        return self._outcome(dict(self.injector.counts), self.node.incarnation, [*self.history.lines, *disk.trace])

    def _client(self, name: str) -> SimClient:
        return SimClient(self.sim.network, "node", 9092, name)

    def _settle(self) -> None:
        """Heal the world, bring the node up, and let the workers finish."""
        assert self.workers is not None
        self.injector.end()
        self.workers.calm_down()
        if self.node.is_stopping:
            self.sim.run_until(lambda: not self.node.is_up)
        if self.node.is_up and self._is_hurt():
            self.node.kill()
        self._bring_up()
        self._finish_work()
        if self.plan.ends_with_power_cut:
            self.injector.cut_power()
            self._bring_up()
        self.sim.run_for(LINGER_MS)
        for reader in self.readers:
            reader.close()

    def _has_failed(self) -> bool:
        return bool(self.history.violations)

    def _is_hurt(self) -> bool:
        """A log that could not be opened or synced needs a restart; everything else recovers by itself."""
        store = self.node.broker.store
        return bool(store.failed) or any(log.failed for log in store.logs.values())

    def _bring_up(self) -> None:
        for _ in range(START_TRIES):
            if self.node.is_up or self.node.start():
                return
        self._blame(f"the node does not start on a healthy machine: {self.node.journal_lines[-1]}")

    def _check_states(self) -> None:
        replies: list[m.ListTransactionsResponse | None] = []

        def list_transactions() -> Script[None]:
            request = m.ListTransactionsRequest(state_filters=list(OPEN_STATES), producer_id_filters=[])
            replies.append((yield Send(self._client("auditor"), request, 1)))

        ScriptRunner(self.sim.clock, list_transactions()).start()
        if not self.sim.run_until(lambda: bool(replies), within_ms=self.read_ms) or replies[0] is None:
            self._blame("the node does not list its transactions")
            return
        for state in replies[0].transaction_states:
            self._blame(f"{state.transactional_id} is still in state {state.transaction_state}")
        for shard_host in self.node.broker.groups.shard_hosts():
            if shard_host.shard.offsets.pending:
                self._blame(f"offsets wait for a transaction: {shard_host.shard.offsets.pending}")

    def story(self) -> list[str]:
        """All faults, client actions and log lines in order of time."""
        return in_order_of_time([*self.history.lines, *self.records.lines, *self.node.journal_lines])
