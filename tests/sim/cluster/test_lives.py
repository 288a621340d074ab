"""Whole nodes of a cluster live and die: how the others hear of it, and how soon somebody else leads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.broker.data_folder.identity import IDENTITY_FILE
from millpond.metadata.image import Image
from millpond.sim.clients.client import SimClient
from millpond.sim.node import PORT, SimNode
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch


class Lives:
    """Three nodes, and what a test does to them."""

    def __init__(self, seed: int = 1, count: int = 3, texts: Mapping[str, str] | None = None) -> None:
        self.sim = SimWorld(seed)
        numbers = range(1, count + 1)
        members = ",".join(f"{node_id}@node{node_id}:{PORT}" for node_id in numbers)
        self.nodes = {
            node_id: SimNode(
                self.sim, f"node{node_id}", {"node.id": str(node_id), "cluster.nodes": members, **(texts or {})}
            )
            for node_id in numbers
        }
        for node in self.nodes.values():
            assert node.start(), node.journal_lines
        self.wait(lambda: all(node.broker.lifecycle.ready.ended for node in self.nodes.values()))

    def wait(self, condition: Callable[[], bool], within_ms: int = 10_000) -> int:
        """Until it holds; how long that took."""
        began_ms = self.sim.clock.now_ms
        assert self.sim.run_until(condition, within_ms=within_ms), "\n".join(
            line for node in self.nodes.values() for line in node.journal_lines[-15:]
        )
        return self.sim.clock.now_ms - began_ms

    @property
    def controller_id(self) -> int:
        active = [
            (node.broker.controller.leader_epoch, node_id)
            for node_id, node in self.nodes.items()
            if node.is_up and node.broker.controller.is_active
        ]
        return max(active)[1] if active else 0

    @property
    def image(self) -> Image:
        return self.nodes[self.controller_id].broker.image

    def other(self, *but: int) -> int:
        return next(node_id for node_id in self.nodes if node_id not in but)

    def ask(self, node_id: int, request: m.Message, version: int) -> Any:
        replies: list[Any] = []
        client = SimClient(self.sim.network, f"node{node_id}", PORT, "client")
        client.send(request, version, replies.append)
        self.wait(lambda: bool(replies))
        return replies[0]

    def create(
        self, first: int, partitions: int = 1, replicas: tuple[int, ...] | None = None, min_isr: str = "2"
    ) -> Any:
        """A topic whose partitions this node leads; another one is asked for it."""
        others = [node_id for node_id in self.nodes if node_id != first]
        replicas = replicas or (first, *others)
        wanted = m.CreateTopicsRequest.CreatableTopic(
            name="pond",
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                m.CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
                for index in range(partitions)
            ],
            configs=[m.CreateTopicsRequest.CreatableTopicConfig(name="min.insync.replicas", value=min_isr)],
        )
        reply = self.ask(others[0], m.CreateTopicsRequest(topics=[wanted], timeout_ms=5000), 7)
        assert [each.error_code for each in reply.topics] == [0]
        # The answer comes when the asked node knows of it; those who are to lead and to follow may hear it later.
        self.wait(lambda: all(self._has_opened(first, node_id, partitions) for node_id in replicas))
        return self.image.topics["pond"]

    def _has_opened(self, leader: int, node_id: int, partitions: int) -> bool:
        found = [self.nodes[node_id].broker.partitions.get("pond", index) for index in range(partitions)]
        return all(each is not None and each.is_leader == (node_id == leader) for each in found)

    def partition(self) -> Any:
        return self.image.topics["pond"].partitions[0]

    def is_whole(self) -> bool:
        return (
            self.controller_id != 0
            and len(self.image.brokers) == 3
            and all(not broker.fenced for broker in self.image.brokers.values())
            and all(len(each.isr) == 3 for topic in self.image.topics.values() for each in topic.partitions)
        )


@pytest.fixture
def lives() -> Lives:
    return Lives()


def test_a_killed_leader_is_replaced_within_a_second_and_comes_back_as_itself(lives: Lives) -> None:
    victim = lives.other(lives.controller_id)
    lives.create(victim)
    epoch = lives.image.brokers[victim].epoch
    lives.nodes[victim].kill()
    assert lives.wait(lambda: lives.partition().leader not in (victim, -1)) < 700
    assert victim not in lives.partition().isr
    assert lives.nodes[victim].start()
    assert lives.wait(lives.is_whole) < 2000, "it lost nothing, and has little to catch up with"
    assert lives.image.brokers[victim].epoch > epoch


def test_a_leader_that_lost_power_is_replaced_when_its_session_ends_and_is_not_trusted(lives: Lives) -> None:
    victim = lives.other(lives.controller_id)
    lives.create(victim)
    lives.nodes[victim].crash()
    assert 1000 < lives.wait(lambda: lives.partition().leader not in (victim, -1)) < 2000
    assert lives.nodes[victim].start()
    lives.wait(lives.is_whole)


def test_a_leader_that_stands_still_is_replaced_and_hears_that_it_was(lives: Lives) -> None:
    victim = lives.other(lives.controller_id)
    lives.create(victim)
    lives.sim.pause(f"node{victim}")
    assert lives.wait(lambda: lives.partition().leader not in (victim, -1)) < 2000
    lives.sim.run_for(3000)
    lives.sim.resume(f"node{victim}")
    lives.wait(lives.is_whole)
    here = lives.nodes[victim].broker.partitions.get("pond", 0)
    assert here is not None
    lives.wait(lambda: not here.is_leader)


def test_a_controller_that_leads_and_stands_still_is_replaced_in_both(lives: Lives) -> None:
    victim = lives.controller_id
    lives.create(victim)
    lives.sim.pause(f"node{victim}")
    alive = lives.nodes[lives.other(victim)]
    took_ms = lives.wait(lambda: alive.broker.image.topics["pond"].partitions[0].leader not in (victim, -1))
    assert took_ms < 2500, "an election, and the time of a lease after it"
    lives.sim.resume(f"node{victim}")
    lives.wait(lives.is_whole)


def test_a_controller_that_is_cut_off_trusts_itself_no_longer_than_the_others_wait(lives: Lives) -> None:
    victim = lives.controller_id
    lives.create(victim)
    lives.sim.run_for(1000)
    life = lives.nodes[victim].broker.lifecycle
    others = [node_id for node_id in lives.nodes if node_id != victim]
    for node_id in others:
        lives.sim.network.partition(f"node{victim}", f"node{node_id}")
    lives.wait(lambda: not life.has_lease(), within_ms=1000)
    assert lives.controller_id == victim, "nobody else is made leader before that"
    image = lives.nodes[others[0]].broker.image
    lives.wait(lambda: image.topics["pond"].partitions[0].leader not in (victim, -1))
    assert not life.has_lease()
    lives.sim.network.heal()
    lives.wait(lives.is_whole)
    lives.wait(life.has_lease)


def produce(lives: Lives, node_id: int, acks: int, sequence: int | None = None) -> list[Any]:
    """One record, written to a node, by producer 7 if it has a number; where its answer will be."""
    kind = m.ProduceRequest
    numbers = {} if sequence is None else {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
    batch = encode_batch([Record(0, 1, b"k", b"v")], **numbers)
    data = kind.PartitionProduceData(index=0, records=memoryview(bytearray(batch)))
    topic = kind.TopicProduceData(name="pond", partition_data=[data])
    replies: list[Any] = []
    client = SimClient(lives.sim.network, f"node{node_id}", PORT, "client")
    client.send(kind(acks=acks, timeout_ms=20_000, topic_data=[topic]), 12, replies.append)
    return replies


def code_of(reply: Any) -> ErrorCode:
    return ErrorCode(reply.responses[0].partition_responses[0].error_code)


def leader_told_by(lives: Lives, node_id: int) -> int:
    wanted = m.MetadataRequest.MetadataRequestTopic(name="pond")
    told = lives.ask(node_id, m.MetadataRequest(topics=[wanted], allow_auto_topic_creation=False), 12)
    return int(told.topics[0].partitions[0].leader_id)


def cut_off(lives: Lives, victim: int) -> list[int]:
    others = [node_id for node_id in lives.nodes if node_id != victim]
    for node_id in others:
        lives.sim.network.partition(f"node{victim}", f"node{node_id}")
    return others


@pytest.mark.parametrize("is_controller", [False, True])
def test_a_leader_that_is_cut_off_sends_its_writers_away(lives: Lives, is_controller: bool) -> None:
    victim = lives.controller_id if is_controller else lives.other(lives.controller_id)
    lives.create(victim)
    lives.wait(lives.is_whole)
    lives.sim.run_for(1000)
    others = cut_off(lives, victim)
    waiting = produce(lives, victim, -1)
    assert lives.wait(lambda: bool(waiting)) < 2000
    assert code_of(waiting[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leader_told_by(lives, victim) == victim, "a guess that it took back would mislead librdkafka"
    assert lives.wait(lambda: leader_told_by(lives, victim) != victim) < 2000, "some know only this node to ask"
    assert leader_told_by(lives, victim) == others[0], "the one that is elected in its place"
    again = produce(lives, victim, -1)
    assert lives.wait(lambda: bool(again)) < 100, "it is not even written"
    assert code_of(again[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    lives.wait(lambda: leader_told_by(lives, others[0]) == others[0])
    lives.sim.network.heal()
    lives.wait(lives.is_whole)
    lives.wait(lambda: leader_told_by(lives, victim) == lives.partition().leader)


def test_a_leader_that_is_not_heard_for_a_moment_never_names_another(lives: Lives) -> None:
    """librdkafka, told of one leader, another and the first again at once, stays with the second."""
    victim = lives.other(lives.controller_id)
    lives.create(victim)
    lives.wait(lives.is_whole)
    # Its heartbeats arrive, and the answers do not: nobody else is elected.
    for node_id in lives.nodes:
        if node_id != victim:
            lives.sim.network.blackhole(f"node{node_id}", f"node{victim}")
    told = set()

    def is_silent() -> bool:
        told.add(leader_told_by(lives, victim))
        return lives.nodes[victim].broker.lifecycle.sessions_missed > 0

    lives.wait(is_silent)
    lives.sim.network.heal()
    lives.wait(lambda: not is_silent())
    assert lives.partition().leader == victim
    assert told == {victim}


@pytest.mark.parametrize("seed", range(6))
def test_one_that_sent_a_write_away_does_not_judge_what_follows_it_before_it_knows_who_leads(seed: int) -> None:
    """It is heard again, and let in, before it hears who took its place; librdkafka ends for ever at that word."""
    lives = Lives(seed)
    victim = lives.other(lives.controller_id)
    lives.create(victim)
    lives.wait(lives.is_whole)
    taken = produce(lives, victim, -1, 0)
    lives.wait(lambda: bool(taken))
    others = cut_off(lives, victim)
    lives.wait(lambda: leader_told_by(lives, others[0]) == others[0])
    broker = lives.nodes[victim].broker
    lives.wait(lambda: broker.lifecycle.sessions_missed > 0)
    sent_away = produce(lives, victim, -1, 1)
    lives.wait(lambda: bool(sent_away))
    assert code_of(sent_away[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    elsewhere = produce(lives, others[0], -1, 1)
    lives.wait(lambda: bool(elsewhere))
    assert code_of(elsewhere[0]) is ErrorCode.NONE
    # What it is told of the metadata comes late.
    broker.controller.host.log.append_fetched = lambda _: False  # type: ignore[method-assign]
    lives.sim.network.heal()
    lives.wait(lambda: broker.lifecycle.sessions_missed == 0)
    follows = produce(lives, victim, -1, 2)
    lives.wait(lambda: bool(follows))
    assert broker.partitions.get("pond", 0).is_leader, "it still thinks so"
    assert not broker.lifecycle.has_lease()
    assert code_of(follows[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    del broker.controller.host.log.append_fetched
    lives.wait(lives.is_whole)
    lives.wait(lambda: not broker.partitions.get("pond", 0).is_leader)
    lives.wait(broker.lifecycle.has_lease)


def test_while_a_controller_is_replaced_those_who_are_followed_go_on(lives: Lives) -> None:
    victim = lives.controller_id
    others = tuple(node_id for node_id in lives.nodes if node_id != victim)
    lives.create(others[0], replicas=others)
    lives.sim.run_for(1000)
    lives.sim.pause(f"node{victim}")
    while lives.controller_id in (0, victim):
        acknowledged = produce(lives, others[0], -1)
        lives.sim.run_for(50)
        assert [code_of(reply) for reply in acknowledged] == [ErrorCode.NONE]
        assert leader_told_by(lives, others[0]) == others[0]


def test_a_leader_whose_peers_are_all_dead_is_still_found_by_readers(lives: Lives) -> None:
    leader = lives.other(lives.controller_id)
    lives.create(leader)
    lives.wait(lives.is_whole)
    for node_id in lives.nodes:
        if node_id != leader:
            lives.nodes[node_id].kill()
    waiting = produce(lives, leader, -1)
    lives.wait(lambda: bool(waiting))
    assert code_of(waiting[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER, "a refused connection proves no death"
    lives.wait(lambda: leader_told_by(lives, leader) != leader)
    assert lives.wait(lambda: leader_told_by(lives, leader) == leader) <= 3200, "it names both in turn"
    written = produce(lives, leader, 1)
    lives.wait(lambda: bool(written))
    assert code_of(written[0]) is ErrorCode.NONE


def test_a_controller_that_gives_up_and_lives_is_not_fenced(lives: Lives) -> None:
    victim = lives.controller_id
    lives.create(victim)
    lives.nodes[victim].broker.controller.host.stop()
    lives.wait(lambda: lives.controller_id not in (0, victim))
    lives.sim.run_for(3000)
    assert lives.is_whole()
    assert lives.partition().leader == victim


def test_a_node_that_stops_in_order_has_handed_over_before_it_ends(lives: Lives) -> None:
    victim = lives.other(lives.controller_id)
    lives.create(victim, partitions=5)
    epoch = lives.image.brokers[victim].epoch
    led = [each.leader_epoch for each in lives.image.topics["pond"].partitions]
    lives.nodes[victim].stop()
    took_ms = lives.wait(lambda: all(each.leader != victim for each in lives.image.topics["pond"].partitions))
    assert took_ms < 100
    assert lives.nodes[victim].is_up, "it is still there when others lead already"
    lives.wait(lambda: not lives.nodes[victim].is_up, within_ms=3000)
    lives.sim.run_for(2000)
    assert lives.image.brokers[victim].fenced
    assert lives.nodes[victim].start()
    lives.wait(lives.is_whole)
    assert [each.leader_epoch for each in lives.image.topics["pond"].partitions] == [each + 1 for each in led]
    assert lives.image.brokers[victim].epoch > epoch


def test_a_controller_that_stops_in_order_is_the_controller_until_others_know_that_they_lead(lives: Lives) -> None:
    victim = lives.controller_id
    lives.create(victim)
    lives.wait(lives.is_whole)
    images = [lives.nodes[node_id].broker.image for node_id in lives.nodes if node_id != victim]
    lives.nodes[victim].stop()
    assert lives.wait(lambda: all(each.topics["pond"].partitions[0].leader != victim for each in images)) < 40
    assert lives.nodes[victim].broker.controller.is_active, "an election would have to come first otherwise"
    lives.wait(lambda: lives.controller_id not in (0, victim))


@pytest.mark.parametrize("how", ["kill", "crash", "stop"])
def test_brokers_outlive_their_controller(lives: Lives, how: str) -> None:
    victim = lives.controller_id
    lives.create(victim)
    epochs = {broker.id: broker.epoch for broker in lives.image.brokers.values()}
    {"kill": lives.nodes[victim].kill, "crash": lives.nodes[victim].crash, "stop": lives.nodes[victim].stop}[how]()
    lives.wait(lambda: lives.controller_id not in (0, victim))
    lives.wait(lambda: lives.partition().leader not in (victim, -1))
    lives.sim.run_for(3000)
    alive = {broker.id: broker.epoch for broker in lives.image.brokers.values() if not broker.fenced}
    assert alive == {node_id: epoch for node_id, epoch in epochs.items() if node_id != victim}, (
        "nobody else was fenced"
    )
    lives.wait(lambda: not lives.nodes[victim].is_up)
    assert lives.nodes[victim].start()
    lives.wait(lives.is_whole)


def test_all_nodes_stop_in_order_at_once_and_come_back(lives: Lives) -> None:
    lives.create(1, partitions=3)
    for node in lives.nodes.values():
        node.stop()
    took_ms = lives.wait(lambda: not any(node.is_up for node in lives.nodes.values()), within_ms=20_000)
    assert took_ms < 8_000
    for node in lives.nodes.values():
        assert node.start()
    lives.wait(lives.is_whole, within_ms=15_000)


def test_all_nodes_are_killed_at_once_and_lose_nothing(lives: Lives) -> None:
    lives.create(1, partitions=3)
    for node in lives.nodes.values():
        node.kill()
    for node in lives.nodes.values():
        assert node.start()
    brokers = [node.broker for node in lives.nodes.values()]
    took_ms = lives.wait(lambda: all(broker.ready.ended for broker in brokers))
    assert took_ms < 2000, "nobody waits for the sessions of lives that are over"
    lives.wait(lives.is_whole)
    assert all(not each.is_recovering for each in lives.image.topics["pond"].partitions), (
        "nobody had to be trusted less"
    )


def test_a_second_process_under_an_id_that_is_taken_waits_and_gives_up(lives: Lives) -> None:
    victim = lives.other(lives.controller_id)
    texts = {**lives.nodes[victim].texts, "listen": f"twin:{PORT}", "data.folder": "/var/twin"}
    twin = SimNode(lives.sim, "twin", texts)
    assert twin.start()
    failures: list[Exception] = []
    twin.broker.lifecycle.shut_out.then(failures.append)
    lives.wait(lambda: bool(failures), within_ms=30_000)
    assert f"another process runs as node {victim}" in str(failures[0])
    assert lives.is_whole()


def test_an_unregistered_node_is_forgotten_and_may_come_back(lives: Lives) -> None:
    victim = lives.other(lives.controller_id)
    lives.create(victim)
    lives.nodes[victim].kill()
    lives.wait(lambda: lives.image.brokers[victim].fenced)
    asked = lives.other(victim)
    assert lives.ask(asked, m.UnregisterBrokerRequest(broker_id=victim), 0).error_code == 0
    assert victim not in lives.image.brokers
    assert lives.nodes[victim].start()
    lives.wait(lives.is_whole)


def test_a_leader_that_may_lack_records_is_elected_only_on_demand_and_the_other_joins_it(lives: Lives) -> None:
    last, other = sorted({1, 2, 3} - {lives.controller_id})
    lives.create(last, replicas=(last, other), min_isr="1")
    lives.nodes[other].kill()
    lives.wait(lambda: lives.partition().isr == (last,))
    lives.nodes[last].kill()
    assert lives.nodes[other].start()
    lives.wait(lambda: lives.controller_id != 0 and lives.partition().leader == -1)
    lives.wait(lambda: lives.image.is_active(other))
    lives.sim.run_for(2000)
    assert (lives.partition().leader, lives.partition().elr) == (-1, (last,)), "the other one lacks records"
    change = m.IncrementalAlterConfigsRequest.AlterableConfig(
        name="unclean.leader.election.enable", config_operation=0, value="true"
    )
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2, resource_name="pond", configs=[change]
    )
    lives.ask(other, m.IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)
    lives.wait(lambda: lives.partition().leader == other)
    lives.wait(lambda: not lives.partition().is_recovering)
    told = [line for node in lives.nodes.values() for line in node.journal_lines if "unclean leader election" in line]
    assert len(told) == 1
    assert "pond-0" in told[0]
    assert lives.nodes[last].start()
    lives.wait(lambda: set(lives.partition().isr) == {last, other})


@pytest.mark.parametrize("is_longer", [False, True])
def test_a_node_with_another_list_of_nodes_is_told_so_and_counts_for_nobody(lives: Lives, is_longer: bool) -> None:
    victim = lives.other(lives.controller_id)
    node = lives.nodes[victim]
    node.stop()
    lives.wait(lambda: not node.is_up)
    lives.sim.run_for(100)
    down_ms = lives.sim.clock.now_ms
    members = {1, 2, 3, 4} if is_longer else {victim, lives.controller_id}
    right = node.texts["cluster.nodes"]
    node.texts["cluster.nodes"] = ",".join(f"{node_id}@node{node_id}:{PORT}" for node_id in members)
    assert node.start()
    failures: list[Exception] = []
    node.broker.lifecycle.shut_out.then(failures.append)
    lives.wait(lambda: bool(failures))
    assert "must list the same ids" in str(failures[0])
    states = lives.nodes[lives.controller_id].broker.controller.host.states()
    fetched = [each.fetched_ago_ms for each in states if each.replica.node_id == victim]
    assert len(fetched) == 1
    assert fetched[0] is not None
    assert fetched[0] >= lives.sim.clock.now_ms - down_ms
    node.kill()
    node.texts["cluster.nodes"] = right
    assert node.start()
    lives.wait(lives.is_whole)


def test_a_node_with_the_folder_of_another_cluster_is_told_so_and_changes_nothing(lives: Lives) -> None:
    victim = lives.other(lives.controller_id)
    node = lives.nodes[victim]
    node.stop()
    lives.wait(lambda: not node.is_up)
    path = f"{node.texts['data.folder']}/{IDENTITY_FILE}"
    lines = node.disk.read(path).decode().splitlines()
    foreign = ["cluster.id=another" if line.startswith("cluster.id=") else line for line in lines]
    assert foreign != lines
    node.disk.replace(path, "\n".join(foreign).encode())
    assert node.start()
    failures: list[Exception] = []
    node.broker.lifecycle.shut_out.then(failures.append)
    lives.wait(lambda: bool(failures))
    assert "belongs to another cluster" in str(failures[0])
    epoch = lives.nodes[lives.controller_id].broker.controller.leader_epoch
    lives.sim.run_for(3000)
    assert lives.nodes[lives.controller_id].broker.controller.leader_epoch == epoch


def test_offsets_of_a_deleted_topic_go_also_where_its_group_is_coordinated_elsewhere(lives: Lives) -> None:
    """Else a topic of the same name is read from where the old one was left."""
    found = m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    lives.wait(lambda: lives.ask(1, found, 4).coordinators[0].error_code == 0, within_ms=30_000)
    home = lives.ask(1, found, 4).coordinators[0].node_id
    lives.create(lives.other(home), replicas=(lives.other(home),), min_isr="1")
    part = m.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(name="pond", partitions=[part])
    lives.wait(
        lambda: (
            lives.ask(home, m.OffsetCommitRequest(group_id="g", topics=[topic]), 8).topics[0].partitions[0].error_code
            == ErrorCode.NONE
        )
    )

    def committed() -> list[int]:
        group = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
        told = lives.ask(home, m.OffsetFetchRequest(groups=[group]), 8).groups[0].topics
        return [each.committed_offset for topic in told for each in topic.partitions]

    assert committed() == [7]
    gone = m.DeleteTopicsRequest.DeleteTopicState(name="pond")
    lives.ask(home, m.DeleteTopicsRequest(topics=[gone], timeout_ms=5000), 6)
    lives.wait(lambda: not committed())


LOADING, FAULT, AWAY = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_COORDINATOR,
)


@pytest.mark.parametrize(
    ("software", "told"),
    [
        (("confluent-kafka-python", "2.16.1-rdkafka-2.16.0"), [LOADING, LOADING, FAULT, LOADING]),
        (("librdkafka", "2.6.1"), [LOADING, LOADING, FAULT, LOADING]),
        (("apache-kafka-java", "4.4.0"), [AWAY] * 4),
    ],
)
@pytest.mark.parametrize("version", [7, 9])
def test_librdkafka_hears_what_makes_it_ask_again_for_offsets(
    lives: Lives, software: tuple[str, str], told: list[ErrorCode], version: int
) -> None:
    """After the word that another is the coordinator it would hold its partitions for ever, and read nothing.

    After the first word it asks the same node again, after the second one it looks for the coordinator, too.
    """
    found = m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g", "h"])
    lives.wait(lambda: not any(each.error_code for each in lives.ask(1, found, 4).coordinators), within_ms=30_000)
    homes = {each.node_id for each in lives.ask(1, found, 4).coordinators}
    away = next(each for each in (1, 2, 3) if each not in homes)
    client = SimClient(lives.sim.network, f"node{away}", PORT, "client")
    replies: list[Any] = []
    hello = m.ApiVersionsRequest(client_software_name=software[0], client_software_version=software[1])
    client.send(hello, 3, replies.append)
    lives.wait(lambda: len(replies) == 1)
    for name, pause_ms in (("g", 0), ("h", 0), ("g", 2000), ("g", 0)):
        group = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None)
        wanted = m.OffsetFetchRequest(group_id=name, topics=None)
        client.send(m.OffsetFetchRequest(groups=[group]) if version >= 8 else wanted, version, replies.append)
        before = len(replies)
        lives.wait(lambda before=before: len(replies) > before)
        lives.sim.run_for(pause_ms)
    answers = [each if version < 8 else each.groups[0] for each in replies[-4:]]
    assert [ErrorCode(answer.error_code) for answer in answers] == told


def test_a_node_that_is_cut_off_tells_of_the_others_though_it_cannot_make_a_topic(
    lives: Lives,
) -> None:
    victim = lives.other(lives.controller_id)
    # A node is told that it may serve before it reads of it.
    known = lives.nodes[victim].broker.image
    lives.wait(lambda: [each.fenced for each in known.brokers.values()] == [False] * len(lives.nodes))
    cut_off(lives, victim)
    client = SimClient(lives.sim.network, f"node{victim}", PORT, "client")
    replies: list[Any] = []
    wanted = m.MetadataRequest.MetadataRequestTopic(name="unheard-of")
    client.send(m.MetadataRequest(topics=[wanted], allow_auto_topic_creation=True), 12, replies.append)
    assert lives.wait(lambda: bool(replies)) <= 3_100
    assert len(replies[0].brokers) == len(lives.nodes)
    assert replies[0].topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_node_that_is_behind_does_not_say_that_a_topic_does_not_exist() -> None:
    """The topic was created while the node was cut off: whether it is there, only the controller knows."""
    lives = Lives()
    behind = lives.other(lives.controller_id)
    cut_off(lives, behind)
    wanted = m.CreateTopicsRequest.CreatableTopic(name="pond", num_partitions=1, replication_factor=2)
    reply = lives.ask(lives.controller_id, m.CreateTopicsRequest(topics=[wanted], timeout_ms=5000), 7)
    assert [each.error_code for each in reply.topics] == [0]
    state = m.DeleteTopicsRequest.DeleteTopicState(name="pond")
    client, replies = SimClient(lives.sim.network, f"node{behind}", PORT, "client", timeout_ms=30_000), []
    client.send(m.DeleteTopicsRequest(topics=[state], timeout_ms=5000), 6, replies.append)
    lives.wait(lambda: bool(replies), within_ms=30_000)
    (refused,) = replies[0].responses
    assert refused.error_code in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
    assert "pond" in lives.image.topics
    lives.sim.network.heal()
    lives.wait(lambda: "pond" in lives.nodes[behind].broker.image.topics)
    (deleted,) = lives.ask(behind, m.DeleteTopicsRequest(topics=[state], timeout_ms=5000), 6).responses
    assert deleted.error_code == ErrorCode.NONE
