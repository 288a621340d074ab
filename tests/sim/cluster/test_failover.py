"""Nodes of a cluster fail: how soon another one leads, and what clients are answered meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.cluster.node_cluster import NodeCluster, code_of, cut_off, leader_told_by, produce

from millpond.base.errors import ErrorCode
from millpond.broker.data_folder.identity import IDENTITY_FILE
from millpond.sim.clients.client import SimClient
from millpond.sim.node import PORT, SimNode
from millpond.wire import messages as m


def test_a_killed_leader_is_replaced_within_a_second_and_rejoins(cluster: NodeCluster) -> None:
    victim = cluster.other(cluster.controller_id)
    cluster.create(victim)
    epoch = cluster.image.brokers[victim].epoch
    cluster.nodes[victim].kill()
    assert cluster.wait(lambda: cluster.partition().leader not in (victim, -1)) < 700
    assert victim not in cluster.partition().isr
    assert cluster.nodes[victim].start()
    assert cluster.wait(cluster.is_whole) < 2000, "it lost nothing, and has little to catch up with"
    assert cluster.image.brokers[victim].epoch > epoch


def test_a_leader_that_lost_power_is_replaced_when_its_session_ends(cluster: NodeCluster) -> None:
    victim = cluster.other(cluster.controller_id)
    cluster.create(victim)
    cluster.nodes[victim].crash()
    assert 1000 < cluster.wait(lambda: cluster.partition().leader not in (victim, -1)) < 2000
    assert cluster.nodes[victim].start()
    cluster.wait(cluster.is_whole)


def test_a_paused_leader_is_replaced_and_learns_of_it(cluster: NodeCluster) -> None:
    victim = cluster.other(cluster.controller_id)
    cluster.create(victim)
    cluster.sim.pause(f"node{victim}")
    assert cluster.wait(lambda: cluster.partition().leader not in (victim, -1)) < 2000
    cluster.sim.run_for(3000)
    cluster.sim.resume(f"node{victim}")
    cluster.wait(cluster.is_whole)
    here = cluster.nodes[victim].broker.partitions.get("pond", 0)
    assert here is not None
    cluster.wait(lambda: not here.is_leader)


def test_a_paused_controller_is_replaced_also_as_partition_leader(cluster: NodeCluster) -> None:
    victim = cluster.controller_id
    cluster.create(victim)
    cluster.sim.pause(f"node{victim}")
    alive = cluster.nodes[cluster.other(victim)]
    took_ms = cluster.wait(lambda: alive.broker.image.topics["pond"].partitions[0].leader not in (victim, -1))
    assert took_ms < 2500, "an election, and the time of a lease after it"
    cluster.sim.resume(f"node{victim}")
    cluster.wait(cluster.is_whole)


def test_an_isolated_controller_loses_its_lease_before_another_leads(cluster: NodeCluster) -> None:
    victim = cluster.controller_id
    cluster.create(victim)
    cluster.sim.run_for(1000)
    life = cluster.nodes[victim].broker.lifecycle
    others = [node_id for node_id in cluster.nodes if node_id != victim]
    for node_id in others:
        cluster.sim.network.partition(f"node{victim}", f"node{node_id}")
    cluster.wait(lambda: not life.has_lease(), within_ms=1000)
    assert cluster.controller_id == victim, "no other leader is elected before that"
    image = cluster.nodes[others[0]].broker.image
    cluster.wait(lambda: image.topics["pond"].partitions[0].leader not in (victim, -1))
    assert not life.has_lease()
    cluster.sim.network.heal()
    cluster.wait(cluster.is_whole)
    cluster.wait(life.has_lease)


@pytest.mark.parametrize("is_controller", [False, True])
def test_an_isolated_leader_refuses_writes(cluster: NodeCluster, is_controller: bool) -> None:
    victim = cluster.controller_id if is_controller else cluster.other(cluster.controller_id)
    cluster.create(victim)
    cluster.wait(cluster.is_whole)
    cluster.sim.run_for(1000)
    others = cut_off(cluster, victim)
    waiting = produce(cluster, victim, -1)
    assert cluster.wait(lambda: bool(waiting)) < 2000
    assert code_of(waiting[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leader_told_by(cluster, victim) == victim, "a guess that it took back would mislead librdkafka"
    assert cluster.wait(lambda: leader_told_by(cluster, victim) != victim) < 2000, "some know only this node to ask"
    assert leader_told_by(cluster, victim) == others[0], "the one that is elected in its place"
    again = produce(cluster, victim, -1)
    assert cluster.wait(lambda: bool(again)) < 100, "it is not even written"
    assert code_of(again[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    cluster.wait(lambda: leader_told_by(cluster, others[0]) == others[0])
    cluster.sim.network.heal()
    cluster.wait(cluster.is_whole)
    cluster.wait(lambda: leader_told_by(cluster, victim) == cluster.partition().leader)


def test_a_leader_out_of_contact_for_a_moment_never_names_another_leader(cluster: NodeCluster) -> None:
    """librdkafka, told of one leader, another and the first again at once, stays with the second."""
    victim = cluster.other(cluster.controller_id)
    cluster.create(victim)
    cluster.wait(cluster.is_whole)
    # Its heartbeats arrive and their responses do not: no other leader is elected.
    for node_id in cluster.nodes:
        if node_id != victim:
            cluster.sim.network.blackhole(f"node{node_id}", f"node{victim}")
    reports = set()

    def is_silent() -> bool:
        reports.add(leader_told_by(cluster, victim))
        return cluster.nodes[victim].broker.lifecycle.sessions_missed > 0

    cluster.wait(is_silent)
    cluster.sim.network.heal()
    cluster.wait(lambda: not is_silent())
    assert cluster.partition().leader == victim
    assert reports == {victim}


@pytest.mark.parametrize("seed", range(6))
def test_a_leader_that_refused_a_write_checks_no_sequences_until_it_knows_who_leads(seed: int) -> None:
    """It is heard again, and let in, before it hears who took its place; librdkafka ends for ever at that word."""
    cluster = NodeCluster(seed)
    victim = cluster.other(cluster.controller_id)
    cluster.create(victim)
    cluster.wait(cluster.is_whole)
    taken = produce(cluster, victim, -1, 0)
    cluster.wait(lambda: bool(taken))
    others = cut_off(cluster, victim)
    cluster.wait(lambda: leader_told_by(cluster, others[0]) == others[0])
    broker = cluster.nodes[victim].broker
    cluster.wait(lambda: broker.lifecycle.sessions_missed > 0)
    sent_away = produce(cluster, victim, -1, 1)
    cluster.wait(lambda: bool(sent_away))
    assert code_of(sent_away[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    elsewhere = produce(cluster, others[0], -1, 1)
    cluster.wait(lambda: bool(elsewhere))
    assert code_of(elsewhere[0]) is ErrorCode.NONE
    # It receives the metadata late.
    broker.controller.host.log.append_fetched = lambda _: False  # type: ignore[method-assign]
    cluster.sim.network.heal()
    cluster.wait(lambda: broker.lifecycle.sessions_missed == 0)
    follows = produce(cluster, victim, -1, 2)
    cluster.wait(lambda: bool(follows))
    assert broker.partitions.get("pond", 0).is_leader, "it still thinks so"
    assert not broker.lifecycle.has_lease()
    assert code_of(follows[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    del broker.controller.host.log.append_fetched
    cluster.wait(cluster.is_whole)
    cluster.wait(lambda: not broker.partitions.get("pond", 0).is_leader)
    cluster.wait(broker.lifecycle.has_lease)


def test_partition_leaders_keep_serving_while_the_controller_is_replaced(cluster: NodeCluster) -> None:
    victim = cluster.controller_id
    others = tuple(node_id for node_id in cluster.nodes if node_id != victim)
    cluster.create(others[0], replicas=others)
    cluster.sim.run_for(1000)
    cluster.sim.pause(f"node{victim}")
    while cluster.controller_id in (0, victim):
        acknowledged = produce(cluster, others[0], -1)
        cluster.sim.run_for(50)
        assert [code_of(reply) for reply in acknowledged] == [ErrorCode.NONE]
        assert leader_told_by(cluster, others[0]) == others[0]


def test_readers_still_find_a_leader_whose_peers_are_all_dead(cluster: NodeCluster) -> None:
    leader = cluster.other(cluster.controller_id)
    cluster.create(leader)
    cluster.wait(cluster.is_whole)
    for node_id in cluster.nodes:
        if node_id != leader:
            cluster.nodes[node_id].kill()
    waiting = produce(cluster, leader, -1)
    cluster.wait(lambda: bool(waiting))
    assert code_of(waiting[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER, "a refused connection proves no death"
    cluster.wait(lambda: leader_told_by(cluster, leader) != leader)
    assert cluster.wait(lambda: leader_told_by(cluster, leader) == leader) <= 3200, "it names both in turn"
    written = produce(cluster, leader, 1)
    cluster.wait(lambda: bool(written))
    assert code_of(written[0]) is ErrorCode.NONE


def test_a_controller_that_resigns_is_not_fenced(cluster: NodeCluster) -> None:
    victim = cluster.controller_id
    cluster.create(victim)
    cluster.nodes[victim].broker.controller.host.stop()
    cluster.wait(lambda: cluster.controller_id not in (0, victim))
    cluster.sim.run_for(3000)
    assert cluster.is_whole()
    assert cluster.partition().leader == victim


def test_a_clean_stop_hands_over_leadership_first(cluster: NodeCluster) -> None:
    victim = cluster.other(cluster.controller_id)
    cluster.create(victim, partitions=5)
    epoch = cluster.image.brokers[victim].epoch
    led = [each.leader_epoch for each in cluster.image.topics["pond"].partitions]
    cluster.nodes[victim].stop()
    took_ms = cluster.wait(lambda: all(each.leader != victim for each in cluster.image.topics["pond"].partitions))
    assert took_ms < 100
    assert cluster.nodes[victim].is_up, "it is still there when others lead already"
    cluster.wait(lambda: not cluster.nodes[victim].is_up, within_ms=3000)
    cluster.sim.run_for(2000)
    assert cluster.image.brokers[victim].fenced
    assert cluster.nodes[victim].start()
    cluster.wait(cluster.is_whole)
    assert [each.leader_epoch for each in cluster.image.topics["pond"].partitions] == [each + 1 for each in led]
    assert cluster.image.brokers[victim].epoch > epoch


def test_a_stopping_controller_stays_until_the_new_leaders_know(
    cluster: NodeCluster,
) -> None:
    victim = cluster.controller_id
    cluster.create(victim)
    cluster.wait(cluster.is_whole)
    images = [cluster.nodes[node_id].broker.image for node_id in cluster.nodes if node_id != victim]
    cluster.nodes[victim].stop()
    assert cluster.wait(lambda: all(each.topics["pond"].partitions[0].leader != victim for each in images)) < 40
    assert cluster.nodes[victim].broker.controller.is_active, "an election would have to come first otherwise"
    cluster.wait(lambda: cluster.controller_id not in (0, victim))


@pytest.mark.parametrize("how", ["kill", "crash", "stop"])
def test_brokers_survive_their_controller(cluster: NodeCluster, how: str) -> None:
    victim = cluster.controller_id
    cluster.create(victim)
    epochs = {broker.id: broker.epoch for broker in cluster.image.brokers.values()}
    {"kill": cluster.nodes[victim].kill, "crash": cluster.nodes[victim].crash, "stop": cluster.nodes[victim].stop}[
        how
    ]()
    cluster.wait(lambda: cluster.controller_id not in (0, victim))
    cluster.wait(lambda: cluster.partition().leader not in (victim, -1))
    cluster.sim.run_for(3000)
    alive = {broker.id: broker.epoch for broker in cluster.image.brokers.values() if not broker.fenced}
    assert alive == {node_id: epoch for node_id, epoch in epochs.items() if node_id != victim}, (
        "no other broker was fenced"
    )
    cluster.wait(lambda: not cluster.nodes[victim].is_up)
    assert cluster.nodes[victim].start()
    cluster.wait(cluster.is_whole)


def test_all_nodes_stop_cleanly_at_once_and_come_back(cluster: NodeCluster) -> None:
    cluster.create(1, partitions=3)
    for node in cluster.nodes.values():
        node.stop()
    took_ms = cluster.wait(lambda: not any(node.is_up for node in cluster.nodes.values()), within_ms=20_000)
    assert took_ms < 8_000
    for node in cluster.nodes.values():
        assert node.start()
    cluster.wait(cluster.is_whole, within_ms=15_000)


def test_all_nodes_are_killed_at_once_and_lose_nothing(cluster: NodeCluster) -> None:
    cluster.create(1, partitions=3)
    for node in cluster.nodes.values():
        node.kill()
    for node in cluster.nodes.values():
        assert node.start()
    brokers = [node.broker for node in cluster.nodes.values()]
    took_ms = cluster.wait(lambda: all(broker.ready.ended for broker in brokers))
    assert took_ms < 2000, "nobody waits for the sessions of cluster that are over"
    cluster.wait(cluster.is_whole)
    assert all(not each.is_recovering for each in cluster.image.topics["pond"].partitions), "no broker lost its lease"


def test_a_second_process_with_the_same_node_id_waits_and_gives_up(cluster: NodeCluster) -> None:
    victim = cluster.other(cluster.controller_id)
    texts = {**cluster.nodes[victim].texts, "listen": f"twin:{PORT}", "data.folder": "/var/twin"}
    twin = SimNode(cluster.sim, "twin", texts)
    assert twin.start()
    failures: list[Exception] = []
    twin.broker.lifecycle.shut_out.then(failures.append)
    cluster.wait(lambda: bool(failures), within_ms=30_000)
    assert f"another process runs as node {victim}" in str(failures[0])
    assert cluster.is_whole()


def test_an_unregistered_node_may_register_again(cluster: NodeCluster) -> None:
    victim = cluster.other(cluster.controller_id)
    cluster.create(victim)
    cluster.nodes[victim].kill()
    cluster.wait(lambda: cluster.image.brokers[victim].fenced)
    asked = cluster.other(victim)
    assert cluster.ask(asked, m.UnregisterBrokerRequest(broker_id=victim), 0).error_code == 0
    assert victim not in cluster.image.brokers
    assert cluster.nodes[victim].start()
    cluster.wait(cluster.is_whole)


def test_an_unclean_leader_is_elected_only_on_request(
    cluster: NodeCluster,
) -> None:
    last, other = sorted({1, 2, 3} - {cluster.controller_id})
    cluster.create(last, replicas=(last, other), min_isr="1")
    cluster.nodes[other].kill()
    cluster.wait(lambda: cluster.partition().isr == (last,))
    cluster.nodes[last].kill()
    assert cluster.nodes[other].start()
    cluster.wait(lambda: cluster.controller_id != 0 and cluster.partition().leader == -1)
    cluster.wait(lambda: cluster.image.is_active(other))
    cluster.sim.run_for(2000)
    assert (cluster.partition().leader, cluster.partition().elr) == (-1, (last,)), "the other one lacks records"
    change = m.IncrementalAlterConfigsRequest.AlterableConfig(
        name="unclean.leader.election.enable", config_operation=0, value="true"
    )
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2, resource_name="pond", configs=[change]
    )
    cluster.ask(other, m.IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)
    cluster.wait(lambda: cluster.partition().leader == other)
    cluster.wait(lambda: not cluster.partition().is_recovering)
    lines = [
        line for node in cluster.nodes.values() for line in node.journal_lines if "unclean leader election" in line
    ]
    assert len(lines) == 1
    assert "pond-0" in lines[0]
    assert cluster.nodes[last].start()
    cluster.wait(lambda: set(cluster.partition().isr) == {last, other})


@pytest.mark.parametrize("is_longer", [False, True])
def test_a_node_with_another_list_of_nodes_is_rejected(cluster: NodeCluster, is_longer: bool) -> None:
    victim = cluster.other(cluster.controller_id)
    node = cluster.nodes[victim]
    node.stop()
    cluster.wait(lambda: not node.is_up)
    cluster.sim.run_for(100)
    down_ms = cluster.sim.clock.now_ms
    members = {1, 2, 3, 4} if is_longer else {victim, cluster.controller_id}
    right = node.texts["cluster.nodes"]
    node.texts["cluster.nodes"] = ",".join(f"{node_id}@node{node_id}:{PORT}" for node_id in members)
    assert node.start()
    failures: list[Exception] = []
    node.broker.lifecycle.shut_out.then(failures.append)
    cluster.wait(lambda: bool(failures))
    assert "must list the same ids" in str(failures[0])
    states = cluster.nodes[cluster.controller_id].broker.controller.host.states()
    fetched = [each.fetched_ago_ms for each in states if each.replica.node_id == victim]
    assert len(fetched) == 1
    assert fetched[0] is not None
    assert fetched[0] >= cluster.sim.clock.now_ms - down_ms
    node.kill()
    node.texts["cluster.nodes"] = right
    assert node.start()
    cluster.wait(cluster.is_whole)


def test_a_node_with_the_folder_of_another_cluster_is_rejected(cluster: NodeCluster) -> None:
    victim = cluster.other(cluster.controller_id)
    node = cluster.nodes[victim]
    node.stop()
    cluster.wait(lambda: not node.is_up)
    path = f"{node.texts['data.folder']}/{IDENTITY_FILE}"
    lines = node.disk.read(path).decode().splitlines()
    foreign = ["cluster.id=another" if line.startswith("cluster.id=") else line for line in lines]
    assert foreign != lines
    node.disk.replace(path, "\n".join(foreign).encode())
    assert node.start()
    failures: list[Exception] = []
    node.broker.lifecycle.shut_out.then(failures.append)
    cluster.wait(lambda: bool(failures))
    assert "belongs to another cluster" in str(failures[0])
    epoch = cluster.nodes[cluster.controller_id].broker.controller.leader_epoch
    cluster.sim.run_for(3000)
    assert cluster.nodes[cluster.controller_id].broker.controller.leader_epoch == epoch


def test_offsets_of_a_deleted_topic_are_deleted_at_a_remote_coordinator(cluster: NodeCluster) -> None:
    """Else a topic of the same name is read from where the old one was left."""
    request = m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    cluster.wait(lambda: cluster.ask(1, request, 4).coordinators[0].error_code == 0, within_ms=30_000)
    home = cluster.ask(1, request, 4).coordinators[0].node_id
    cluster.create(cluster.other(home), replicas=(cluster.other(home),), min_isr="1")
    part = m.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(name="pond", partitions=[part])
    cluster.wait(
        lambda: (
            cluster.ask(home, m.OffsetCommitRequest(group_id="g", topics=[topic]), 8)
            .topics[0]
            .partitions[0]
            .error_code
            == ErrorCode.NONE
        )
    )

    def committed() -> list[int]:
        group = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
        topics = cluster.ask(home, m.OffsetFetchRequest(groups=[group]), 8).groups[0].topics
        return [each.committed_offset for topic in topics for each in topic.partitions]

    assert committed() == [7]
    gone = m.DeleteTopicsRequest.DeleteTopicState(name="pond")
    cluster.ask(home, m.DeleteTopicsRequest(topics=[gone], timeout_ms=5000), 6)
    cluster.wait(lambda: not committed())


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
def test_librdkafka_gets_an_error_that_makes_it_retry_offset_fetches(
    cluster: NodeCluster, software: tuple[str, str], told: list[ErrorCode], version: int
) -> None:
    """After the word that another is the coordinator it would hold its partitions for ever, and read nothing.

    After the first word it asks the same node again, after the second one it looks for the coordinator, too.
    """
    request = m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g", "h"])
    cluster.wait(
        lambda: not any(each.error_code for each in cluster.ask(1, request, 4).coordinators), within_ms=30_000
    )
    homes = {each.node_id for each in cluster.ask(1, request, 4).coordinators}
    away = next(each for each in (1, 2, 3) if each not in homes)
    client = SimClient(cluster.sim.network, f"node{away}", PORT, "client")
    replies: list[Any] = []
    hello = m.ApiVersionsRequest(client_software_name=software[0], client_software_version=software[1])
    client.send(hello, 3, replies.append)
    cluster.wait(lambda: len(replies) == 1)
    for name, pause_ms in (("g", 0), ("h", 0), ("g", 2000), ("g", 0)):
        group = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None)
        wanted = m.OffsetFetchRequest(group_id=name, topics=None)
        client.send(m.OffsetFetchRequest(groups=[group]) if version >= 8 else wanted, version, replies.append)
        before = len(replies)
        cluster.wait(lambda before=before: len(replies) > before)
        cluster.sim.run_for(pause_ms)
    answers = [each if version < 8 else each.groups[0] for each in replies[-4:]]
    assert [ErrorCode(answer.error_code) for answer in answers] == told


def test_an_isolated_node_returns_metadata_though_it_cannot_create_topics(
    cluster: NodeCluster,
) -> None:
    victim = cluster.other(cluster.controller_id)
    # A node may serve before it reads of it.
    image = cluster.nodes[victim].broker.image
    cluster.wait(lambda: [each.fenced for each in image.brokers.values()] == [False] * len(cluster.nodes))
    cut_off(cluster, victim)
    client = SimClient(cluster.sim.network, f"node{victim}", PORT, "client")
    replies: list[Any] = []
    topic = m.MetadataRequest.MetadataRequestTopic(name="unheard-of")
    client.send(m.MetadataRequest(topics=[topic], allow_auto_topic_creation=True), 12, replies.append)
    assert cluster.wait(lambda: bool(replies)) <= 3_100
    assert len(replies[0].brokers) == len(cluster.nodes)
    assert replies[0].topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_lagging_node_does_not_report_a_topic_as_unknown() -> None:
    """The topic was created while the node was cut off: whether it is there, only the controller knows."""
    cluster = NodeCluster()
    behind = cluster.other(cluster.controller_id)
    cut_off(cluster, behind)
    topic = m.CreateTopicsRequest.CreatableTopic(name="pond", num_partitions=1, replication_factor=2)
    reply = cluster.ask(cluster.controller_id, m.CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7)
    assert [each.error_code for each in reply.topics] == [0]
    state = m.DeleteTopicsRequest.DeleteTopicState(name="pond")
    client, replies = SimClient(cluster.sim.network, f"node{behind}", PORT, "client", timeout_ms=30_000), []
    client.send(m.DeleteTopicsRequest(topics=[state], timeout_ms=5000), 6, replies.append)
    cluster.wait(lambda: bool(replies), within_ms=30_000)
    (refused,) = replies[0].responses
    assert refused.error_code in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
    assert "pond" in cluster.image.topics
    cluster.sim.network.heal()
    cluster.wait(lambda: "pond" in cluster.nodes[behind].broker.image.topics)
    (deleted,) = cluster.ask(behind, m.DeleteTopicsRequest(topics=[state], timeout_ms=5000), 6).responses
    assert deleted.error_code == ErrorCode.NONE
