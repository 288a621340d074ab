"""One seeded run of a whole node with a group, and perhaps transactions: work in trouble, heal, finish, judge."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from millpond.sim.admin import SimAdmin
from millpond.sim.clients.client import SimClient
from millpond.sim.clients.committed_reader import CommittedReader
from millpond.sim.clients.group_member import GroupTopic
from millpond.sim.clients.group_reader import fetch_offsets
from millpond.sim.clients.producer import SimProducer
from millpond.sim.clients.script import Ask, Player, Rest, Script
from millpond.sim.coordination.checkers import check_copied, check_processed, check_sightings, check_transactions
from millpond.sim.coordination.crew import GROUP, Crew
from millpond.sim.coordination.plan import WORK_MS, CoordinationPlan, Sharing, Work, make_coordination_plan
from millpond.sim.faults import Trouble
from millpond.sim.history.groups import CoordinationHistory
from millpond.sim.history.records import Content, History, Promise, TopicIdPartition, in_order_of_time
from millpond.sim.node import SimNode
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m

PREPARE_MS = 60_000
SETTLE_MS = 60_000
READ_MS = 30_000
LINGER_MS = 7_000
"""After the work is done: long enough for every late request to come and for every transaction to time out."""
OBSERVE_MS = 250
START_TRIES = 3
OPEN_STATES = ["Ongoing", "PrepareCommit", "PrepareAbort"]


@dataclass(slots=True)
class CoordinationOutcome:
    """What one run came to."""

    seed: int
    violations: list[str] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    lives: int = 0
    events: int = 0
    virtual_ms: int = 0
    trace_hash: str = ""


class CoordinationScenario:
    """A world from a seed. `run` plays it to its end."""

    def __init__(self, seed: int, plan: CoordinationPlan | None = None) -> None:
        self.seed = seed
        self.plan = plan or make_coordination_plan(seed)
        self.sim = SimWorld(seed)
        self.node = SimNode(self.sim, texts=self.plan.node)
        self.node.workers_delay_ms_usual = self.plan.disk_delay_ms
        self.random = Random(f"coordination {seed}")
        self.history = CoordinationHistory(is_one_kind=self.plan.sharing is not Sharing.MIXED)
        self.records = History()
        self.trouble = Trouble(self.sim, self.node, self.records, Random(f"trouble {seed}"))
        self.readers: list[CommittedReader] = []
        self.ends: dict[int, int] = {}
        self._observer: Player | None = None

    def run(self) -> CoordinationOutcome:
        self._prepare()
        self.trouble.watch()
        self.trouble.schedule(self.plan.faults)
        self._start_clients()
        self.sim.run_until(self._has_failed, within_ms=WORK_MS)
        self._settle()
        if self.node.is_up and not self._has_failed():
            self._judge()
        return self._outcome()

    # Before anything goes wrong

    def _client(self, name: str) -> SimClient:
        return SimClient(self.sim.network, "node", 9092, name)

    def _prepare(self) -> None:
        """Fill the input and let it be safe: readers may be shown what a power cut takes back."""
        assert self.node.start()
        self.input = self._create("input", self.plan.input_partitions)
        self.output = self._create("output", self.plan.output_partitions)
        producer = SimProducer(self._client("filler"), self.sim.clock, self.records, Random(f"filler {self.seed}"))
        tags = 0
        for partition, count in self.plan.batches:
            contents = [Content(f"{tags + number}", None, b"", self.sim.clock.wall_ms()) for number in range(count)]
            tags += count
            producer.produce(TopicIdPartition("input", self.input.id, partition), contents, Promise.SURVIVES)
        assert self.sim.run_until(producer.is_idle, within_ms=PREPARE_MS)
        producer.close()
        self.ends = {
            number: sum(count for partition, count in self.plan.batches if partition == number)
            for number in range(self.input.partitions)
        }

    def _create(self, name: str, partitions: int) -> GroupTopic:
        done: list[None] = []
        admin = SimAdmin(self._client("admin"), self.sim.clock, self.records)
        admin.create(name, partitions, {}, lambda: done.append(None))
        assert self.sim.run_until(lambda: bool(done), within_ms=PREPARE_MS)
        (topic_id,) = self.records.topics[name].ids
        assert topic_id is not None
        return GroupTopic(name, topic_id, partitions)

    def _start_clients(self) -> None:
        self.crew = Crew(
            self.plan, self.sim.clock, self._client, self.history, self.input, self.output, self.random, self.seed
        )
        self.crew.start()
        self._observer = Player(self.sim.clock, self._observe())
        self._observer.start()
        if self.plan.work is Work.COPY:
            self.readers = [self._reader("reader", version=11), self._reader("reader by id", version=16, max_bytes=1)]

    def _reader(self, name: str, *, version: int, max_bytes: int = 1 << 20) -> CommittedReader:
        reader = CommittedReader(
            self.sim.clock, self._client(name), self.history, self.output, version=version, max_bytes=max_bytes
        )
        reader.start()
        return reader

    def _observe(self) -> Script[None]:
        """Look from outside, again and again, how far the group says it is."""
        client = self._client("observer")
        history, clock = self.history, self.sim.clock

        def told(asked_ms: int, partition: int, offset: int) -> None:
            if self.plan.work is Work.READ:
                history.told_offset(clock.now_ms, asked_ms, client.name, partition, offset)
            else:
                history.told_pending_offset(clock.now_ms, client.name, partition, offset)

        while True:
            yield from fetch_offsets(client, clock, GROUP, self.input, self.ends, told, require_stable=False)
            yield Rest(OBSERVE_MS)

    # The end

    def _settle(self) -> None:
        """Heal the world, bring the node up, and let everybody finish."""
        self.trouble.end()
        self.crew.calm_down()
        if self.node.is_stopping:
            self.sim.run_until(lambda: not self.node.is_up)
        if self.node.is_up and self._is_hurt():
            self.node.kill()
        self._bring_up()
        if not self.sim.run_until(lambda: self._is_done() or self._has_failed(), within_ms=SETTLE_MS):
            self._blame(f"the group reached {self.history.reached} of {self.ends} in {SETTLE_MS} ms of peace")
        self.sim.run_for(OBSERVE_MS)
        self.crew.stop()
        assert self._observer is not None
        self._observer.end()
        if self.plan.ends_with_power_cut:
            self.trouble.cut_power()
            self._bring_up()
        self.sim.run_for(LINGER_MS)
        for reader in self.readers:
            reader.close()

    def _has_failed(self) -> bool:
        return bool(self.history.violations)

    def _is_hurt(self) -> bool:
        """A log that could not be opened or synced waits for a new start; everything else comes back by itself."""
        store = self.node.broker.store
        return bool(store.failed) or any(log.failed for log in store.logs.values())

    def _is_done(self) -> bool:
        return all(max(self.history.reached.get(partition, 0), 0) >= end for partition, end in self.ends.items())

    def _bring_up(self) -> None:
        for _ in range(START_TRIES):
            if self.node.is_up or self.node.start():
                return
        self._blame(f"the node does not start on a healthy machine: {self.node.journal_lines[-1]}")

    def _blame(self, finding: str) -> None:
        self.history.blame(self.sim.clock.now_ms, finding)

    # Judging

    def _judge(self) -> None:
        if self.plan.work is Work.READ:
            self._note(check_processed(self.history, self.ends))
            return
        final = self._reader("auditor", version=16)
        if not self.sim.run_until(final.is_at_end, within_ms=READ_MS):
            views = {number: (view.last_stable_offset, view.high_watermark) for number, view in final.views.items()}
            self._blame(f"a transaction hangs: the output is stable up to, and ends at, {views}")
        final.close()
        self._judge_states()
        self._note(check_copied(self.ends, final.shown, min(2, self.output.partitions)))
        self._note(check_transactions(self.history, final.shown))
        for reader in self.readers:
            self._note(check_sightings(self.history, reader.shown, final.shown))

    def _note(self, findings: Iterable[str]) -> None:
        self.history.violations += findings

    def _judge_states(self) -> None:
        """No transaction is open, and none has offsets that wait."""
        heard: list[m.ListTransactionsResponse | None] = []

        def ask() -> Script[None]:
            request = m.ListTransactionsRequest(state_filters=list(OPEN_STATES), producer_id_filters=[])
            heard.append((yield Ask(self._client("auditor"), request, 1)))

        Player(self.sim.clock, ask()).start()
        if not self.sim.run_until(lambda: bool(heard), within_ms=READ_MS) or heard[0] is None:
            self._blame("the node does not list its transactions")
            return
        for state in heard[0].transaction_states:
            self._blame(f"{state.transactional_id} is still in state {state.transaction_state}")
        for home in self.node.broker.groups.shard_hosts():
            if home.shard.offsets.pending:
                self._blame(f"offsets wait for a transaction: {home.shard.offsets.pending}")

    def story(self) -> list[str]:
        """What happened, in order: faults, lives, what the crew did and heard, what the node said."""
        return in_order_of_time([*self.history.lines, *self.records.lines, *self.node.journal_lines])

    def _outcome(self) -> CoordinationOutcome:
        disk = self.node.disk
        evidence = [*self.history.lines, *disk.trace, str(self.sim.clock.events_run), *self.history.violations]
        counts = {f"{self.plan.work.value}, {self.plan.sharing.value}": 1, **self.history.counts}
        counts["records of the input"] = sum(self.ends.values())
        counts["records processed"] = sum(self.history.processed.values())
        return CoordinationOutcome(
            seed=self.seed,
            violations=self.history.violations,
            faults={**self.trouble.counts, **self.crew.counts},
            counts=counts,
            lives=self.node.lives,
            events=self.sim.clock.events_run,
            virtual_ms=self.sim.clock.now_ms,
            trace_hash=hashlib.sha256("\n".join(evidence).encode()).hexdigest(),
        )
