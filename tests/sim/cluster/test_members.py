"""Nodes join a single node and leave again: who votes, which nodes are admitted, and that none has to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from tests.sim.cluster.node_cluster import NodeCluster

from millpond.base.errors import ErrorCode
from millpond.metadata.features import SUPPORTED
from millpond.metadata.image import NO_DIRECTORY
from millpond.sim.clients.client import SimClient
from millpond.sim.cluster.members_scenario import MembersScenario
from millpond.sim.node import PORT, SimNode
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch


class Grown:
    """Node 1, which was alone, and those that have joined it."""

    def __init__(self, count: int = 1, seed: int = 1, **texts: str) -> None:
        self.sim = SimWorld(seed)
        self.texts = {name.replace("_", "."): text for name, text in texts.items()}
        self.nodes = {1: SimNode(self.sim, "node1", {"node.id": "1", **self.texts})}
        assert self.nodes[1].start()
        for _ in range(count - 1):
            self.join()

    def join(self, node_id: int = 0, to: str = "1@node1") -> SimNode:
        node_id = node_id or len(self.nodes) + 1
        texts = {"node.id": str(node_id), "cluster.contacts": f"{to}:{PORT}", **self.texts}
        node = self.nodes[node_id] = SimNode(self.sim, f"node{node_id}", texts)
        assert node.start(), node.journal_lines
        self.wait(lambda: node.broker.lifecycle.ready.ended)
        return node

    def wait(self, condition: Callable[[], bool], within_ms: int = 20_000) -> None:
        assert self.sim.run_until(condition, within_ms=within_ms), "\n".join(
            f"{node.name} {line}" for node in self.nodes.values() for line in node.journal_lines[-15:]
        )

    def ask(self, node_id: int, request: m.Message, version: int) -> Any:
        replies: list[Any] = []
        SimClient(self.sim.network, f"node{node_id}", PORT, "client").send(request, version, replies.append)
        self.wait(lambda: bool(replies))
        return replies[0]

    def voters(self, node_id: int) -> list[int]:
        return [voter.node_id for voter in self.nodes[node_id].broker.controller.host.voters]

    def vote(self, *node_ids: int) -> Callable[[], bool]:
        """Whether these, and no others, vote, as everybody who runs knows, and one of them leads."""

        def holds() -> bool:
            running = [node_id for node_id, node in self.nodes.items() if node.is_up]
            return any(self.nodes[each].broker.controller.is_active for each in running if each in node_ids) and all(
                self.voters(each) == list(node_ids) and self.nodes[each].broker.controller.kraft_version == 1
                for each in running
            )

        return holds

    def create(self, replicas: int = 1) -> None:
        topic = m.CreateTopicsRequest.CreatableTopic(
            name="pond", num_partitions=1, replication_factor=replicas, assignments=[], configs=[]
        )
        reply = self.ask(1, m.CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7)
        assert [each.error_code for each in reply.topics] == [0]

    def produce(self, node_id: int, value: bytes) -> int:
        kind = m.ProduceRequest
        batch = encode_batch([Record(0, 1, None, value)])
        data = kind.TopicProduceData(name="pond", partition_data=[kind.PartitionProduceData(index=0, records=batch)])
        reply = self.ask(node_id, kind(acks=-1, timeout_ms=5000, topic_data=[data]), 9)
        return int(reply.responses[0].partition_responses[0].error_code)

    def set_broker(self, node_id: int, name: str, value: str) -> None:
        kind = m.IncrementalAlterConfigsRequest
        resource = kind.AlterConfigsResource(
            resource_type=4,
            resource_name=str(node_id),
            configs=[kind.AlterableConfig(name=name, config_operation=0, value=value)],
        )
        reply = self.ask(1, kind(resources=[resource]), 1)
        assert [each.error_code for each in reply.responses] == [0], reply


def test_a_node_that_was_alone_gets_company_without_a_stop() -> None:
    grown = Grown()
    grown.create()
    assert grown.produce(1, b"before") == 0
    epoch = grown.nodes[1].broker.lifecycle.broker_epoch
    grown.join()
    grown.wait(grown.vote(1))
    assert grown.nodes[1].broker.lifecycle.broker_epoch == epoch, "the same life goes on"
    assert not grown.nodes[1].broker.controller.is_alone
    assert grown.produce(1, b"meanwhile") == 0
    grown.join()
    grown.wait(grown.vote(1, 2, 3))
    assert grown.nodes[3].broker.image.brokers.keys() == {1, 2, 3}
    assert len({node.broker.image.cluster_id for node in grown.nodes.values()}) == 1


def test_the_first_one_dies_and_the_others_go_on_and_it_comes_back_by_its_folder_alone() -> None:
    grown = Grown(3)
    grown.wait(grown.vote(1, 2, 3))
    grown.nodes[1].kill()
    grown.wait(lambda: any(grown.nodes[each].broker.controller.is_active for each in (2, 3)))
    grown.wait(lambda: grown.nodes[2].broker.image.brokers[1].fenced)
    assert grown.nodes[1].start()
    grown.wait(lambda: grown.nodes[1].broker.lifecycle.ready.ended)
    assert not grown.nodes[1].broker.controller.is_alone
    grown.wait(grown.vote(1, 2, 3))


def test_all_lose_their_power_and_those_who_joined_need_no_contacts_again() -> None:
    grown = Grown(3)
    grown.wait(grown.vote(1, 2, 3))
    for node in grown.nodes.values():
        node.crash()
        node.texts = {name: text for name, text in node.texts.items() if name != "cluster.contacts"}
    for node in grown.nodes.values():
        assert node.start(), node.journal_lines
    grown.wait(lambda: all(node.broker.lifecycle.ready.ended for node in grown.nodes.values()))
    grown.wait(grown.vote(1, 2, 3))


def test_one_that_joined_and_died_before_it_had_heard_anything_founds_nothing() -> None:
    grown = Grown(2)
    grown.wait(grown.vote(1))
    grown.nodes[1].kill()
    texts = {"node.id": "3", "cluster.contacts": f"1@node1:{PORT}", "cluster.id": "x"}
    late = grown.nodes[3] = SimNode(grown.sim, "node3", texts)
    assert late.start()
    grown.sim.run_until(lambda: False, within_ms=3_000)
    late.crash()
    late.texts = {name: text for name, text in late.texts.items() if not name.startswith("cluster.")}
    assert late.start()
    grown.sim.run_until(lambda: False, within_ms=5_000)
    assert not late.broker.controller.is_active
    assert not late.broker.controller.is_alone


def test_a_wiped_voter_joins_again_and_counts_once_it_has_caught_up() -> None:
    grown = Grown(3)
    grown.wait(grown.vote(1, 2, 3))
    before = grown.nodes[1].broker.controller.host.log.voters
    grown.nodes[3].kill()
    grown.sim.wipe("node3")
    assert grown.nodes[3].start()
    grown.wait(lambda: not grown.nodes[3].broker.controller.host.is_new)
    grown.wait(lambda: grown.nodes[1].broker.controller.host.log.voters != before)
    assert grown.voters(1) == [1, 2, 3], "its new disk is written down, and that is all"
    grown.nodes[2].kill()
    grown.create()


def test_a_second_process_with_the_id_of_a_named_voter_does_not_count() -> None:
    grown = Grown(3)
    grown.wait(grown.vote(1, 2, 3))
    leader = next(node_id for node_id, node in grown.nodes.items() if node.broker.controller.is_active)
    victim, other = (node_id for node_id in grown.nodes if node_id != leader)
    contact = f"{leader}@node{leader}:{PORT}"
    texts = {"node.id": str(victim), "cluster.contacts": contact, "data.folder": "/var/twin"}
    twin = SimNode(grown.sim, "twin", texts)
    assert twin.start()
    grown.sim.run_for(5_000)
    assert twin.broker.controller.host.is_new
    controller = grown.nodes[leader].broker.controller
    assert twin.broker.controller.applied_offset == controller.applied_offset, "it follows all the same"
    for node_id in (victim, other):
        grown.sim.network.partition(f"node{leader}", f"node{node_id}")
    grown.wait(lambda: not controller.host.is_leader, within_ms=5_000)


def test_a_lone_voter_is_restarted_among_others() -> None:
    grown = Grown(2)
    grown.wait(grown.vote(1))
    grown.nodes[1].stop()
    grown.wait(lambda: not grown.nodes[1].is_up)
    assert grown.nodes[1].start()
    grown.wait(lambda: grown.nodes[1].broker.lifecycle.ready.ended)
    grown.wait(grown.vote(1))
    grown.create(replicas=2)


def test_five_of_five_vote_by_default() -> None:
    grown = Grown(5)
    grown.wait(grown.vote(1, 2, 3, 4, 5))
    few = Grown(4, controller_quorum_voters_max="3")
    few.wait(few.vote(1, 2, 3))


def test_who_is_drained_gets_no_replicas_and_loses_its_vote_to_another() -> None:
    grown = Grown(4)
    grown.wait(grown.vote(1, 2, 3))
    grown.set_broker(3, "broker.drained", "true")
    grown.wait(grown.vote(1, 2, 4))
    grown.create(replicas=3)
    assert sorted(grown.nodes[1].broker.image.topics["pond"].partitions[0].replicas) == [1, 2, 4]


def test_the_leader_is_drained_and_another_one_leads() -> None:
    grown = Grown(3)
    grown.wait(grown.vote(1, 2, 3))
    grown.set_broker(1, "broker.drained", "true")
    grown.wait(grown.vote(2, 3))
    assert not grown.nodes[1].broker.controller.is_active


@pytest.mark.parametrize("asked", [1, 2])
def test_votes_are_given_and_taken_by_hand(asked: int) -> None:
    grown = Grown(3, controller_quorum_voters_max="1")
    grown.wait(grown.vote(1))

    def add(node_id: int, directory_id: Any = NO_DIRECTORY) -> int:
        request = m.AddRaftVoterRequest(voter_id=node_id, voter_directory_id=directory_id, timeout_ms=5000)
        return int(grown.ask(asked, request, 0).error_code)

    def remove(node_id: int) -> int:
        return int(grown.ask(asked, m.RemoveRaftVoterRequest(voter_id=node_id), 0).error_code)

    grown.sim.run_until(lambda: False, within_ms=2_000)
    assert add(2, UUID(int=99)) == ErrorCode.INVALID_VOTER_KEY
    assert add(2, grown.nodes[2].broker.controller.directory_id) == 0
    assert add(2) == ErrorCode.DUPLICATE_VOTER
    assert add(9) == ErrorCode.INVALID_REQUEST
    grown.wait(grown.vote(1, 2))
    assert add(3) == 0
    assert remove(1) == 0
    grown.wait(grown.vote(2, 3))
    assert remove(1) == ErrorCode.VOTER_NOT_FOUND


def test_a_voter_tells_its_address_by_hand() -> None:
    grown = Grown(3)
    grown.wait(grown.vote(1, 2, 3))
    controller = grown.nodes[1].broker.controller
    assert controller.is_active
    kind = m.UpdateRaftVoterRequest
    directory_id = grown.nodes[3].broker.controller.directory_id

    def update(**other: Any) -> int:
        asked: dict[str, Any] = {
            "current_leader_epoch": controller.leader_epoch,
            "voter_id": 3,
            "voter_directory_id": directory_id,
            "listeners": [kind.Listener(name="PLAINTEXT", host="node3", port=PORT)],
            "k_raft_version_feature": kind.KRaftVersionFeature(min_supported_version=0, max_supported_version=1),
        }
        reply = grown.ask(1, kind(**asked | other), 0)
        assert reply.current_leader.leader_id == 1
        return int(reply.error_code)

    before = controller.host.log.end_offset
    assert update(cluster_id="another") == ErrorCode.INCONSISTENT_CLUSTER_ID
    assert update(current_leader_epoch=controller.leader_epoch - 1) == ErrorCode.FENCED_LEADER_EPOCH
    assert update(current_leader_epoch=controller.leader_epoch + 1) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert update(voter_id=9) == ErrorCode.VOTER_NOT_FOUND
    assert update(voter_directory_id=UUID(int=9)) == ErrorCode.VOTER_NOT_FOUND
    assert update(listeners=[]) == ErrorCode.INVALID_REQUEST
    old = kind.KRaftVersionFeature(min_supported_version=0, max_supported_version=0)
    assert update(k_raft_version_feature=old) == ErrorCode.INVALID_REQUEST
    stranger = kind.Listener(name="PLAINTEXT", host="somewhere", port=PORT)
    assert update(listeners=[stranger]) == ErrorCode.INVALID_REQUEST, "a stranger cannot change a voter's address"
    assert controller.host.log.end_offset == before
    assert update() == 0
    assert controller.host.log.voters is not None
    assert [each.end_points[0].host for each in controller.host.log.voters] == ["node1", "node2", "node3"]
    # A forgotten voter can be found at another address.
    grown.nodes[3].kill()
    grown.wait(lambda: grown.nodes[1].broker.image.brokers[3].fenced)
    assert grown.ask(1, m.UnregisterBrokerRequest(broker_id=3), 0).error_code == 0
    assert update(listeners=[stranger]) == 0
    assert [each.end_points[0].host for each in controller.host.log.voters] == ["node1", "node2", "somewhere"]


def test_a_node_of_the_version_before_is_refused_by_one_that_is_alone_and_changes_nothing_there() -> None:
    grown = Grown()
    old = {name: levels for name, levels in SUPPORTED.items() if name != "kraft.version"}
    texts = {"node.id": "2", "cluster.contacts": f"1@node1:{PORT}"}
    two = grown.nodes[2] = SimNode(grown.sim, "node2", texts)
    two.supported = old
    assert two.start()
    grown.wait(lambda: two.broker.lifecycle.shut_out.ended)
    controller = grown.nodes[1].broker.controller
    assert controller.is_alone
    assert controller.kraft_version == 0, "and it could still go back to the version before"


@pytest.mark.parametrize("victim", [1, 2])
def test_power_goes_at_any_step_while_the_first_gets_company(victim: int) -> None:
    for step in range(1, 40, 3):
        _crash_at(step, victim)


def _crash_at(step: int, victim: int) -> None:
    """Of what the disk of one of the two does."""
    grown = Grown()
    grown.create()
    assert grown.produce(1, b"before") == 0
    texts = {"node.id": "2", "cluster.contacts": f"1@node1:{PORT}"}
    one, two = grown.nodes[1], SimNode(grown.sim, "node2", texts)
    grown.nodes[2] = two
    if victim == 2:
        # So that it has a disk.
        grown.sim.start("node2")
        grown.sim.kill("node2")
    disk = grown.nodes[victim].disk
    disk.crash_at_operation(disk.operations + step)
    two.start()
    grown.sim.run_until(lambda: not one.is_up or not two.is_up, within_ms=3_000)
    disk.crash_at_operation(1 << 60)
    for node in (one, two):
        assert node.is_up or node.start(), node.journal_lines[-3:]
    grown.wait(lambda: two.broker.lifecycle.ready.ended)
    grown.wait(grown.vote(1))
    assert not two.broker.controller.is_alone
    grown.wait(lambda: grown.produce(1, b"after") == 0)


def test_what_is_refused_does_not_have_the_log_name_the_voters() -> None:
    """That is for good."""
    cluster = NodeCluster()
    controller = cluster.nodes[cluster.controller_id].broker.controller
    request = m.RemoveRaftVoterRequest(voter_id=9)
    assert cluster.ask(1, request, 0).error_code == ErrorCode.VOTER_NOT_FOUND
    assert (
        cluster.ask(1, m.AddRaftVoterRequest(voter_id=9, timeout_ms=5000), 0).error_code == ErrorCode.INVALID_REQUEST
    )
    assert controller.kraft_version == 0
    assert cluster.ask(1, m.RemoveRaftVoterRequest(voter_id=cluster.other(cluster.controller_id)), 0).error_code == 0
    assert controller.kraft_version == 1


def test_snapshots_tell_who_votes() -> None:
    grown = Grown(3, metadata_log_max_record_bytes_between_snapshots="1000")
    grown.wait(grown.vote(1, 2, 3))
    for _ in range(30):
        grown.set_broker(1, "log.retention.ms", "1000000")
        grown.set_broker(1, "log.retention.ms", "2000000")
    log = grown.nodes[1].broker.controller.host.log
    grown.wait(lambda: log.start_offset > 0)
    late = grown.join()
    assert [voter.node_id for voter in late.broker.controller.host.voters] == [1, 2, 3]
    grown.nodes[1].kill()
    assert grown.nodes[1].start()
    grown.wait(lambda: grown.nodes[1].broker.lifecycle.ready.ended)
    grown.wait(grown.vote(1, 2, 3))


@pytest.mark.parametrize("seed", [6, 26, 29])
def test_voters_come_and_go_under_load_and_trouble(seed: int) -> None:
    scenario = MembersScenario(seed)
    assert scenario.run().violations == []
    assert len(scenario.inspector.voter_sets) > 2, "hardly anybody came or went"


def test_two_fetches_in_a_socket_do_not_prove_that_a_controller_leads() -> None:
    """It had been suspended, and gave itself a lease because of what a voter had sent in between."""
    assert MembersScenario(3000046).run().violations == []
