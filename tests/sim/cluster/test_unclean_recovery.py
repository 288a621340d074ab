"""An operator asks for an unclean election: the live replica with the most complete log leads (KIP-966)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.sim.cluster.node_cluster import NodeCluster, code_of, produce

from millpond.base.errors import ErrorCode
from millpond.broker.administration import unclean_recovery
from millpond.broker.apis import k35_describe_log_dirs, k43_elect_leaders
from millpond.metadata.elections import decide_elect_leaders
from millpond.wire import messages as m

FIRST, SECOND, LAST = 1, 2, 3


class Abandoned(NodeCluster):
    """Five nodes and a partition on the first three of them, whose last leader is gone."""

    def __init__(self, partitions: int = 1) -> None:
        super().__init__(count=5)
        self.create(FIRST, partitions, replicas=(FIRST, SECOND, LAST), min_isr="1")

    def write(self, count: int) -> None:
        for _ in range(count):
            leader = self.partition().leader
            self.wait(lambda leader=leader: self.has_role(leader))  # type: ignore[misc]
            replies = produce(self, leader, acks=-1)
            self.wait(lambda replies=replies: bool(replies))  # type: ignore[misc]
            assert code_of(replies[0]) is ErrorCode.NONE

    def has_role(self, node_id: int) -> bool:
        partition = self.nodes[node_id].broker.partitions.get("pond", 0)
        return partition is not None and partition.is_leader

    def lose(self, node_id: int) -> None:
        """The node goes, and leaves the ISR."""
        self.nodes[node_id].kill()
        self.wait(lambda: self.controller_id != 0 and self.image.brokers[node_id].fenced)

    def bring_back(self, *node_ids: int) -> None:
        for node_id in node_ids:
            assert self.nodes[node_id].start()
        self.wait(lambda: self.controller_id != 0 and all(map(self.image.is_active, node_ids)))
        self.wait(lambda: all(self.nodes[each].broker.partitions.get("pond", 0) is not None for each in node_ids))

    def abandon(self) -> None:
        """The last leader goes, and the replicas that left the ISR before it come back."""
        self.nodes[LAST].kill()
        self.bring_back(FIRST, SECOND)
        self.wait(lambda: self.image.brokers[LAST].fenced)
        assert (self.partition().leader, self.partition().elr) == (-1, (LAST,))

    def log_end(self, node_id: int) -> tuple[int, int]:
        log = self.nodes[node_id].broker.partitions.get("pond", 0).log
        return log.last_written_epoch, log.end_offset

    def elect(self, timeout_ms: int = 10_000, *, everything: bool = False) -> Any:
        wanted = None if everything else [m.ElectLeadersRequest.TopicPartitions(topic="pond", partitions=[0])]
        request = m.ElectLeadersRequest(election_type=1, topic_partitions=wanted, timeout_ms=timeout_ms)
        (result,) = self.ask(4, request, 2).replica_election_results
        (partition,) = result.partition_result
        return partition


@pytest.mark.parametrize("everything", [False, True])
def test_the_longest_log_leads_although_another_replica_comes_first(everything: bool) -> None:
    pond = Abandoned()
    pond.write(2)
    pond.lose(FIRST)
    pond.write(3)
    pond.lose(SECOND)
    pond.write(1)
    pond.abandon()
    assert pond.log_end(FIRST) < pond.log_end(SECOND)
    elected = pond.elect(everything=everything)
    assert elected.error_code == ErrorCode.NONE, elected.error_message
    assert (pond.partition().leader, pond.partition().is_recovering) == (SECOND, True)
    pond.wait(lambda: pond.partition().isr == (FIRST, SECOND))
    assert pond.log_end(FIRST) == pond.log_end(SECOND)
    pond.bring_back(LAST)
    pond.wait(lambda: pond.partition().isr == (FIRST, SECOND, LAST))
    assert pond.log_end(LAST) == pond.log_end(SECOND), "what only it had is cut off"


def test_a_longer_log_with_an_older_epoch_loses() -> None:
    """The first replica kept records that no other had; an election without them has written fewer."""
    pond = Abandoned()
    pond.write(1)
    for node_id in (2, 3, 4, 5):
        pond.sim.network.partition("node1", f"node{node_id}")
    for _ in range(5):
        produce(pond, FIRST, acks=1)
    pond.sim.run_for(500)
    pond.nodes[FIRST].kill()
    pond.sim.network.heal()
    pond.wait(lambda: pond.controller_id != 0 and pond.partition().leader == SECOND)
    pond.write(1)
    pond.lose(SECOND)
    pond.write(1)
    # The first one stays without a leader to fetch from, so that nothing cuts its log.
    pond.abandon()
    ends = pond.log_end(FIRST), pond.log_end(SECOND)
    assert ends[0][0] < ends[1][0], ends
    assert ends[0][1] > ends[1][1], ends
    assert pond.elect().error_code == ErrorCode.NONE
    assert pond.partition().leader == SECOND


def test_between_equal_logs_the_order_of_the_replicas_decides() -> None:
    pond = Abandoned()
    pond.write(2)
    pond.nodes[FIRST].kill()
    pond.lose(SECOND)
    pond.wait(lambda: pond.image.brokers[FIRST].fenced)
    pond.write(1)
    pond.abandon()
    assert pond.log_end(FIRST) == pond.log_end(SECOND)
    assert pond.elect().error_code == ErrorCode.NONE
    assert pond.partition().leader == FIRST


def abandoned_with_a_shorter_first() -> Abandoned:
    pond = Abandoned()
    pond.write(1)
    pond.lose(FIRST)
    pond.write(2)
    pond.lose(SECOND)
    pond.write(1)
    pond.abandon()
    return pond


def test_a_replica_that_does_not_answer_in_time_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pond = abandoned_with_a_shorter_first()
    if pond.controller_id == SECOND:
        pond.nodes[SECOND].broker.controller.resign()
        pond.wait(lambda: pond.controller_id not in (0, SECOND))
    stop_answering(pond, SECOND, monkeypatch)
    began_ms = pond.sim.clock.now_ms
    assert pond.elect().error_code == ErrorCode.NONE
    assert pond.sim.clock.now_ms - began_ms < 3_000
    assert pond.partition().leader == FIRST
    lines = pond.nodes[pond.controller_id].journal_lines
    assert any("did not report where their logs end" in line and f"brokers=[{SECOND}]" in line for line in lines)


def stop_answering(pond: NodeCluster, node_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node says that it cluster, and answers no question about its logs."""
    real = k35_describe_log_dirs.run_steps

    def never(clock: Any, steps: Any) -> Any:
        if steps.gi_frame.f_locals["node"].node_id == node_id:
            return real(clock, endless())
        return real(clock, steps)

    def endless() -> Any:
        while pond.sim.clock.now_ms < 10**9:
            yield None

    monkeypatch.setattr(k35_describe_log_dirs, "run_steps", never)


def test_without_a_single_report_no_leader_is_elected_and_the_error_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a cluster whose other nodes run the previous version, which does not report where a log ends."""
    pond = abandoned_with_a_shorter_first()
    if pond.controller_id in (FIRST, SECOND):
        pond.nodes[pond.controller_id].broker.controller.resign()
        pond.wait(lambda: pond.controller_id not in (0, FIRST, SECOND))
    monkeypatch.setattr(k35_describe_log_dirs, "log_end_of", lambda _: None)
    refused = pond.elect()
    assert refused.error_code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert "none of the live replicas [1, 2] reported its log end offset" in refused.error_message
    assert pond.partition().leader == -1


def test_an_epoch_that_began_without_a_record_does_not_count() -> None:
    """The second replica led last, and wrote nothing. Both logs are of one epoch, and the longer one has more."""
    pond = abandoned_with_a_shorter_first()
    log = pond.nodes[FIRST].broker.partitions.get("pond", 0).log
    log.epochs.assign(pond.partition().leader_epoch, log.end_offset)
    assert log.last_epoch > pond.nodes[SECOND].broker.partitions.get("pond", 0).log.last_epoch
    assert pond.elect().error_code == ErrorCode.NONE
    assert pond.partition().leader == SECOND


@pytest.mark.parametrize("seed", range(6))
def test_an_unclean_election_loses_no_more_than_the_longest_log_lacks(seed: int) -> None:
    """Replicas come and go at random while records are acknowledged, until the last that had all of them is gone."""
    random = Random(f"unclean {seed}")
    pond = Abandoned()
    names = (FIRST, SECOND, LAST)
    for _ in range(random.randint(3, 8)):
        pond.write(random.randint(0, 3))
        up = [each for each in names if pond.nodes[each].is_up]
        down = [each for each in names if each not in up]
        if down and random.random() < 0.4:
            pond.bring_back(random.choice(down))
            if random.random() < 0.5:
                pond.wait(lambda: len(pond.partition().isr) == sum(pond.nodes[each].is_up for each in names))
        elif len(up) > 1:
            # One replica with all records stays until the end.
            pond.lose(random.choice([each for each in up if set(pond.partition().isr) - {each}]))
            pond.wait(lambda: pond.partition().leader != -1)
    pond.write(1)
    (*others, last) = sorted(names, key=lambda each: (each == pond.partition().leader, each))
    for node_id in (each for each in others if pond.nodes[each].is_up):
        pond.lose(node_id)
    pond.write(1)
    acknowledged = pond.log_end(last)
    pond.nodes[last].kill()
    pond.bring_back(*random.sample(others, random.randint(1, 2)))
    pond.wait(lambda: pond.image.brokers[last].fenced)
    assert pond.partition().leader == -1
    live = [each for each in others if pond.nodes[each].is_up]
    ends = {each: pond.log_end(each) for each in live}
    assert all(end < acknowledged for end in ends.values()), "any leader loses something"
    assert pond.elect().error_code == ErrorCode.NONE
    leader = pond.partition().leader
    assert ends[leader] == max(ends.values())
    pond.write(1)
    for node_id in names:
        if not pond.nodes[node_id].is_up:
            pond.bring_back(node_id)
    pond.wait(lambda: len(pond.partition().isr) == 3, within_ms=30_000)
    assert {pond.log_end(each)[1] for each in names} == {ends[leader][1] + 1}


@pytest.mark.parametrize("everything", [False, True])
def test_many_partitions_are_decided_on_in_slices(monkeypatch: pytest.MonkeyPatch, everything: bool) -> None:
    """One decision about ten thousand partitions without a leader held the loop for 0.2 s."""
    pond = Abandoned(partitions=40)
    pond.lose(FIRST)
    pond.lose(SECOND)
    pond.abandon()
    looked_at: list[int] = []

    def decide(image: Any, layers: Any, kind: Any, wanted: Any, *given: Any, **named: Any) -> Any:
        looked_at.append(len(wanted))
        return decide_elect_leaders(image, layers, kind, wanted, *given, **named)

    monkeypatch.setattr(k43_elect_leaders, "decide_elect_leaders", decide)
    monkeypatch.setattr(k43_elect_leaders, "SLICE", 16)
    monkeypatch.setattr(unclean_recovery, "PARTITIONS_PER_REQUEST", 16)
    wanted = None if everything else [m.ElectLeadersRequest.TopicPartitions(topic="pond", partitions=[*range(40)])]
    request = m.ElectLeadersRequest(election_type=1, topic_partitions=wanted, timeout_ms=10_000)
    (result,) = pond.ask(4, request, 2).replica_election_results
    assert [(each.partition_id, each.error_code) for each in result.partition_result] == [(n, 0) for n in range(40)]
    assert all(each.leader in (FIRST, SECOND) for each in pond.image.topics["pond"].partitions)
    assert max(looked_at) == 16
