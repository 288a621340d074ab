"""A copy in transactions with one thing that goes wrong at one message: at each message in turn, each thing in turn.

Random faults rarely meet the moment between two messages that matters. The worker speaks the first protocol, as
librdkafka does: all of its transactions have one epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from tests.support.patience import with_time

from millpond.base.errors import ErrorCode
from millpond.log import producers
from millpond.sim.clients.client import Client, OnReply
from millpond.sim.clients.copy_worker import WorkerStyle
from millpond.sim.clients.group_member import MemberTimes
from millpond.sim.cluster.group_scenario import ClusterGroupPlan, ClusterGroupScenario
from millpond.sim.coordination.plan import CoordinationPlan, Sharing, Work
from millpond.wire import messages as m
from millpond.wire.messages import Message

STEPS = (
    m.InitProducerIdRequest,
    m.AddPartitionsToTxnRequest,
    m.ProduceRequest,
    m.AddOffsetsToTxnRequest,
    m.TxnOffsetCommitRequest,
    m.EndTxnRequest,
)
AWAY_MS = 2_500
"""Longer than it takes to elect another leader."""
NEVER = -1
STEPS_TRIED = 14
"""The first two transactions, and a part of the third."""
PARTS = 24


class Fault(NamedTuple):
    step: int = NEVER
    """At which of the worker's requests."""
    when: str = "heard"
    """When it is "sent", when its answer is about to be "heard", or the latter "denied": it leaves that open."""
    what: str = "nothing"
    whose: str = "__transaction_state"
    """The leader of this topic is harmed."""


def plan(style: WorkerStyle) -> ClusterGroupPlan:
    work = CoordinationPlan(
        node={},
        work=Work.COPY,
        sharing=Sharing.FIXED,
        workers=[style],
        times=MemberTimes(),
        input_partitions=1,
        output_partitions=2,
        batches=[(0, 2), (0, 2), (0, 2)],
        faults=[],
        churn=[],
        ends_with_power_cut=False,
        disk_delay_ms=1,
        request_timeout_ms=1_000,
    )
    settings = {
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "group.min.session.timeout.ms": "100",
        "replica.lag.time.max.ms": "1000",
    }
    return ClusterGroupPlan(3, work, settings, ())


HASTY = WorkerStyle(is_v2=False, pace_ms=20, abort_share=0.4, is_hasty=True, sends_late=False)


class FaultyRun(ClusterGroupScenario):
    def __init__(self, fault: Fault, style: WorkerStyle = HASTY) -> None:
        super().__init__(7, plan(style))
        self.fault = fault
        self.steps = 0
        self.is_over = fault.step == NEVER

    def _client(self, name: str, rack: str = "") -> Any:
        client = super()._client(name, rack)
        return Tap(client, self) if name.endswith("work") else client

    def _work(self) -> None:
        self.sim.run_until(lambda: self._has_failed() or (self._is_done() and self.is_over), within_ms=30_000)

    def next_step(self, request: Message) -> int | None:
        if not isinstance(request, STEPS):
            return None
        self.steps += 1
        return self.steps - 1

    def strike(self) -> None:
        self.cluster.note(f"--- {self.fault}")
        image = self.cluster.image
        partition = None if image is None else image.partition(self.fault.whose, 0)
        if partition is not None and partition.leader in self.cluster.nodes:
            self._harm(partition.leader)
        self.sim.clock.call_later(AWAY_MS, self._mend)

    def _harm(self, node_id: int) -> None:
        match self.fault.what:
            case "kill":
                self.cluster.kill(node_id)
            case "power cut":
                self.injector._cut_power(node_id, 0)
            case "pause":
                self.cluster.pause(node_id)
            case "isolation":
                for way in self.injector._around(node_id, with_clients=False):
                    self.sim.network.blackhole(*way)
            case "resets":
                for link in self.sim.network.links(self.cluster.nodes[node_id].name):
                    self.sim.network.reset(link)

    def _mend(self) -> None:
        self.sim.network.heal()
        for node_id in self.cluster.nodes:
            self.cluster.resume(node_id)
        self.is_over = True


class Tap:
    """The worker's way to the cluster, where the fault waits for its request."""

    def __init__(self, client: Client, faulty_run: FaultyRun) -> None:
        self.client = client
        self.faulty_run = faulty_run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def send(self, request: Message, version: int, on_reply: OnReply) -> None:
        fault = self.faulty_run.fault
        if self.faulty_run.next_step(request) != fault.step:
            self.client.send(request, version, on_reply)
            return

        def heard(reply: Any) -> None:
            if fault.when != "sent":
                self.faulty_run.strike()
            if fault.when == "denied":
                deny(reply)
            on_reply(reply)

        self.client.send(request, version, heard)
        if fault.when == "sent":
            self.faulty_run.strike()


def deny(reply: Any) -> None:
    """It was done. What the answer says leaves that open."""
    match reply:
        case m.ProduceResponse():
            reply.responses[0].partition_responses[0].error_code = ErrorCode.REQUEST_TIMED_OUT
        case m.AddPartitionsToTxnResponse():
            for topic in reply.results_by_topic_v3_and_below:
                for part in topic.results_by_partition:
                    part.partition_error_code = ErrorCode.NOT_COORDINATOR
        case m.TxnOffsetCommitResponse():
            reply.topics[0].partitions[0].error_code = ErrorCode.NOT_COORDINATOR
        case None:
            return
        case _:
            reply.error_code = ErrorCode.NOT_COORDINATOR


def play(fault: Fault) -> list[str]:
    story = FaultyRun(fault)
    violations = story.run().violations
    if not violations and not story.is_over:
        return ["it never came to that"]
    return violations


WHATS = ("kill", "power cut", "pause", "isolation", "resets")
TOPICS = ("__transaction_state", "__consumer_offsets", "output")


def faults() -> Iterator[Fault]:
    for step in range(STEPS_TRIED):
        yield Fault(step, "denied")
        for when in ("sent", "heard", "denied"):
            for what in WHATS:
                for whose in TOPICS:
                    yield Fault(step, when, what, whose)


def test_it_is_a_story_of_several_transactions_some_of_them_aborted() -> None:
    story = FaultyRun(Fault())
    outcome = story.run()
    assert outcome.violations == []
    assert outcome.counts["transactions aborted"] >= 1
    assert story.steps >= 20


@pytest.mark.parametrize(
    "fault",
    [Fault(3, "denied"), Fault(3, "denied", "kill", "output"), Fault(2, "denied", "pause", "output")],
    ids=str,
)
def test_nothing_is_lost_or_doubled(fault: Fault) -> None:
    assert play(fault) == []


@with_time
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_lost_or_doubled_whatever_goes_wrong_at_whichever_message(part: int) -> None:
    result = {fault: violations for fault in [*faults()][part::PARTS] if (violations := play(fault))}
    assert result == {}


def test_a_leader_that_takes_new_records_for_old_ones_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "_check_unused", lambda *_: None)
    assert any("was never copied" in each for step in range(2, 6) for each in play(Fault(step, "denied")))
