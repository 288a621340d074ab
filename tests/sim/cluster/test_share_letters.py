"""Dead letters of a share group on three nodes: written elsewhere, and by the next leader."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.cluster.test_share_groups import PATIENCE_MS, Nodes
from tests.support.share_letters import LETTERS, headers, letters_of, offsets
from tests.support.share_members import GROUP, REJECT, acquired, results

from millpond.wire import messages as m


class LetterNodes(Nodes):
    """The same, with a dead-letter topic for the group."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, {"auto.create.topics.enable": "false"})
        kind = m.IncrementalAlterConfigsRequest
        config = kind.AlterableConfig(name="errors.deadletterqueue.topic.name", config_operation=0, value=LETTERS)
        resource = kind.AlterConfigsResource(resource_type=32, resource_name=GROUP, configs=[config])
        (result,) = self.cluster.ask(self.cluster.controller_id, kind(resources=[resource]), 1).responses
        assert result.error_code == 0
        self.cluster.wait(
            lambda: all(
                len(node.broker.image.configs) == len(self.cluster.image.configs)
                for node in self.cluster.nodes.values()
            )
        )

    def create_letters(self, *replicas: int) -> None:
        kind = m.CreateTopicsRequest
        topic = kind.CreatableTopic(
            name=LETTERS,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[kind.CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))],
        )
        (created,) = self.cluster.ask(self.cluster.controller_id, kind(topics=[topic], timeout_ms=5_000), 7).topics
        assert created.error_code == 0, created

    def letters(self) -> list[Any]:
        leader = self.cluster.image.topics[LETTERS].partitions[0].leader
        return letters_of(self.cluster.nodes[leader].broker)


@pytest.mark.parametrize("seed", range(3))
def test_letters_are_written_where_their_topic_is_led(seed: int) -> None:
    nodes = LetterNodes(seed)
    others = [node_id for node_id in nodes.cluster.nodes if node_id != nodes.leader_id]
    nodes.create_letters(*others)
    nodes.append(b"a", b"b", b"c")
    member = nodes.member("m")
    member.fetch(0)
    assert results(member.acknowledge((0, 1, REJECT), error=("E", "why"))) == [0]
    nodes.cluster.wait(lambda: len(nodes.letters()) == 2, PATIENCE_MS)
    assert offsets(nodes.letters()) == [0, 1]
    assert {headers(each)["dlq.error.message"] for each in nodes.letters()} == {"why"}


@pytest.mark.parametrize("seed", range(3))
def test_the_next_leader_writes_what_waits(seed: int) -> None:
    nodes = LetterNodes(seed)
    nodes.append(b"a", b"b")
    member = nodes.member("m")
    member.fetch(0)
    assert results(member.acknowledge((0, 0, REJECT), error=("E", "why"))) == [0]
    nodes.sim.run_for(3_000)
    before = nodes.leader_id
    nodes.cluster.nodes[before].kill()
    nodes.lead_elsewhere(before)
    other = nodes.member("n")
    assert acquired(other.fetch(0, max_wait_ms=20_000)) == [(1, 1, 1)]
    survivors = [node_id for node_id in nodes.cluster.nodes if node_id != before]
    nodes.create_letters(*survivors)
    nodes.cluster.wait(lambda: len(nodes.letters()) > 0, PATIENCE_MS)
    (letter,) = nodes.letters()
    assert (letter.value, headers(letter)["dlq.error.message"]) == (b"a", "why")


@pytest.mark.parametrize("seed", range(4))
def test_a_leader_that_ends_at_any_moment_leaves_no_record_without_a_letter(seed: int) -> None:
    nodes = LetterNodes(seed)
    survivors = [node_id for node_id in nodes.cluster.nodes if node_id != nodes.leader_id]
    nodes.create_letters(*survivors)
    nodes.append(*[b"%d" % number for number in range(50)])
    member = nodes.member("m")
    member.fetch(0)
    assert results(member.acknowledge((0, 49, REJECT))) == [0]
    nodes.sim.run_for(3 * seed)
    before = nodes.leader_id
    nodes.cluster.nodes[before].kill()
    nodes.lead_elsewhere(before)
    other = nodes.member("n")
    assert acquired(other.fetch(0, max_wait_ms=2_000)) == []
    nodes.cluster.wait(lambda: set(offsets(nodes.letters())) == set(range(50)), PATIENCE_MS)
