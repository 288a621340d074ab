"""The active controller, and brokers that only talk to it: they register, send heartbeats, shut down and die."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.apis import k56_alter_partition
from millpond.metadata import elections
from millpond.metadata.features import SUPPORTED
from millpond.wire import messages as m

TOLD = tuple(
    m.BrokerRegistrationRequest.Feature(
        name=name, min_supported_version=levels.lowest, max_supported_version=levels.newest
    )
    for name, levels in SUPPORTED.items()
)

SESSION_MS = 1000
TEXTS = {"broker.session.timeout.ms": str(SESSION_MS)}
LEASE_MS = 600
"""How long a controller waits for a broker's lease to expire, with these settings."""


class AnsweringConnection:
    """The broker's end of a connection: it answers any request."""

    def __init__(self, link: Any) -> None:
        self.link = link

    def buffer(self) -> memoryview:
        return memoryview(bytearray(100))

    def received(self, _: int) -> None:
        self.link.send([b"yes"])

    def drained(self) -> None: ...

    def closed(self) -> None: ...


class OtherBroker:
    """A broker that only talks to the controller, and accepts connections."""

    def __init__(self, server: Any, node_id: int) -> None:
        self.server = server
        self.caller = server.connect()
        self.node_id = node_id
        self.lives = 0
        self.epoch = -1
        self.host = f"host-{node_id}"
        self.folder = UUID(int=node_id)
        self.is_crowded = False
        if (self.host, 9000 + node_id) not in server.sim.network.listeners:
            server.sim.network.listen(
                self.host, 9000 + node_id, lambda link: None if self.is_crowded else AnsweringConnection(link)
            )

    def registration(self, previous: int = -1, incarnation: int | None = None) -> m.BrokerRegistrationRequest:
        self.lives += 1
        return m.BrokerRegistrationRequest(
            broker_id=self.node_id,
            cluster_id=self.server.broker.image.cluster_id,
            incarnation_id=UUID(int=incarnation or 1000 * self.node_id + self.lives),
            listeners=[
                m.BrokerRegistrationRequest.Listener(
                    name="PLAINTEXT", host=self.host, port=9000 + self.node_id, security_protocol=0
                )
            ],
            features=[*TOLD],
            rack=None,
            log_dirs=[self.folder],
            previous_broker_epoch=previous,
        )

    def register(self, previous: int = -1, incarnation: int | None = None) -> ErrorCode:
        response = self.caller.ask(self.registration(previous, incarnation), 4)
        if response.error_code == ErrorCode.NONE:
            self.epoch = response.broker_epoch
        return ErrorCode(response.error_code)

    def beat(self, *, wants_shutdown: bool = False, epoch: int | None = None) -> Any:
        return self.caller.ask(
            m.BrokerHeartbeatRequest(
                broker_id=self.node_id,
                broker_epoch=self.epoch if epoch is None else epoch,
                current_metadata_offset=self.server.broker.controller.committed_offset - 1,
                want_fence=False,
                want_shut_down=wants_shutdown,
            ),
            1,
        )

    def alter(self, topic: Any, isr: dict[int, int]) -> Any:
        partition = topic.partitions[0]
        data = m.AlterPartitionRequest.PartitionData(
            partition_index=0,
            leader_epoch=partition.leader_epoch,
            new_isr_with_epochs=[
                m.AlterPartitionRequest.BrokerState(broker_id=node_id, broker_epoch=epoch)
                for node_id, epoch in isr.items()
            ],
            leader_recovery_state=0,
            partition_epoch=partition.partition_epoch,
        )
        return self.caller.ask(
            m.AlterPartitionRequest(
                broker_id=self.node_id,
                broker_epoch=self.epoch,
                topics=[m.AlterPartitionRequest.TopicData(topic_id=topic.id, partitions=[data])],
            ),
            3,
        )


class Cluster:
    def __init__(self, server: Any) -> None:
        self.server = server
        self.image = server.broker.image
        self.two, self.three = OtherBroker(server, 2), OtherBroker(server, 3)
        for other in (self.two, self.three):
            assert other.register() is ErrorCode.NONE
            assert not other.beat().is_fenced
        self.client = server.connect()

    def live(self, *others: OtherBroker, for_ms: int) -> None:
        """Advance time while these brokers send heartbeats."""
        for _ in range(for_ms // 100):
            self.server.run(100)
            for other in others:
                other.beat()

    def create(self, partitions: int = 1) -> Any:
        topic = m.CreateTopicsRequest.CreatableTopic(
            name="t",
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                m.CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=[2, 3, 1])
                for index in range(partitions)
            ],
            configs=[m.CreateTopicsRequest.CreatableTopicConfig(name="min.insync.replicas", value="2")],
        )
        (reply,) = self.client.ask(m.CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7).topics
        assert reply.error_code == ErrorCode.NONE, reply.error_message
        return self.image.topics["t"]

    def metadata(self) -> Any:
        return self.client.ask(m.MetadataRequest(topics=None), 12)


@pytest.fixture
def cluster(make_server) -> Cluster:
    return Cluster(make_server(TEXTS))


def test_brokers_register_are_let_in_and_are_told_of(cluster: Cluster) -> None:
    assert {node_id: cluster.image.is_active(node_id) for node_id in (1, 2, 3)} == {1: True, 2: True, 3: True}
    assert len({broker.epoch for broker in cluster.image.brokers.values()}) == 3
    metadata = cluster.metadata()
    assert [(each.node_id, each.port) for each in metadata.brokers] == [(1, 9092), (2, 9002), (3, 9003)]
    described = cluster.client.ask(m.DescribeClusterRequest(), 1)
    assert [each.broker_id for each in described.brokers] == [1, 2, 3]
    assert described.controller_id == metadata.controller_id == 1


def test_a_silent_broker_is_fenced_and_others_lead_its_partitions(cluster: Cluster) -> None:
    topic = cluster.create()
    assert (topic.partitions[0].leader, topic.partitions[0].isr) == (2, (2, 3, 1))
    cluster.live(cluster.three, for_ms=SESSION_MS - 200)
    assert cluster.image.is_active(2)
    cluster.live(cluster.three, for_ms=500)
    assert not cluster.image.is_active(2)
    assert (topic.partitions[0].leader, topic.partitions[0].isr) == (3, (3, 1))
    (shown,) = cluster.metadata().topics
    assert (shown.partitions[0].leader_id, shown.partitions[0].offline_replicas) == (3, [2])
    assert [each.node_id for each in cluster.metadata().brokers] == [1, 3]
    all_of_them = cluster.client.ask(m.DescribeClusterRequest(include_fenced_brokers=True), 2).brokers
    assert [(each.broker_id, each.is_fenced) for each in all_of_them] == [(1, False), (2, True), (3, False)]
    assert not cluster.two.beat().is_fenced, "it is heard again"
    assert topic.partitions[0].isr == (3, 1), "but has yet to catch up"
    lines = [line for line in cluster.server.node.journal_lines if "fenced" in line]
    assert any("no heartbeat for 1000 ms" in line for line in lines), lines


def test_a_broker_whose_process_ends_is_fenced_at_once(cluster: Cluster) -> None:
    topic = cluster.create()
    cluster.live(cluster.two, cluster.three, for_ms=600)
    cluster.server.sim.network.stop_host("host-2", silently=False)
    cluster.live(cluster.three, for_ms=600)
    assert not cluster.image.is_active(2)
    assert topic.partitions[0].leader == 3
    lines = [line for line in cluster.server.node.journal_lines if "fenced" in line]
    assert ["connections refused" in line for line in lines if "broker fenced" in line] == [True], lines
    twin = OtherBroker(cluster.server, 2)
    twin.lives = 50
    assert twin.register() is ErrorCode.NONE, "its next life need not wait"


def test_a_broker_that_takes_no_connections_and_is_heard_lives(cluster: Cluster) -> None:
    cluster.live(cluster.two, cluster.three, for_ms=600)
    cluster.two.is_crowded = True
    for link in cluster.server.sim.network.links("host-2"):
        cluster.server.sim.network.reset(link)
    cluster.live(cluster.two, cluster.three, for_ms=3 * SESSION_MS)
    assert cluster.image.is_active(2)


def test_a_stalled_loop_fences_no_broker_for_its_own_stall(cluster: Cluster) -> None:
    cluster.live(cluster.two, cluster.three, for_ms=200)
    cluster.server.sim.pause("node")
    cluster.server.run(5 * SESSION_MS)
    cluster.server.sim.resume("node")
    cluster.server.run(200)
    assert cluster.image.is_active(2)
    cluster.live(cluster.two, for_ms=2 * SESSION_MS)
    assert (cluster.image.is_active(2), cluster.image.is_active(3)) == (True, False)


def test_a_controller_never_fences_its_own_node(cluster: Cluster) -> None:
    cluster.server.run(3 * SESSION_MS)
    assert [broker.id for broker in cluster.image.brokers.values() if not broker.fenced] == [1]


def test_clients_hear_of_all_brokers_while_most_are_away(cluster: Cluster) -> None:
    cluster.server.run(3 * SESSION_MS)
    assert [each.node_id for each in cluster.metadata().brokers] == [1, 2, 3]


def test_another_process_under_the_same_id_waits_until_the_first_is_silent(cluster: Cluster) -> None:
    epoch = cluster.two.epoch
    twin = OtherBroker(cluster.server, 2)
    twin.lives = 50
    assert twin.register() is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.live(cluster.three, for_ms=SESSION_MS + 300)
    assert twin.register() is ErrorCode.NONE
    assert twin.epoch > epoch
    assert cluster.two.beat().error_code == ErrorCode.STALE_BROKER_EPOCH


def test_a_registration_that_cannot_be_written_does_not_count_as_another_process(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.live(cluster.three, for_ms=SESSION_MS + 300)
    next_life = OtherBroker(cluster.server, 2)
    next_life.lives = 50

    def no_room(_: bytes) -> None:
        raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(cluster.server.broker.controller.host, "write", no_room)
        assert next_life.register() is ErrorCode.KAFKA_STORAGE_ERROR
        assert next_life.register() is ErrorCode.KAFKA_STORAGE_ERROR
    assert next_life.register() is ErrorCode.NONE


def test_one_that_is_started_again_at_once_waits_for_the_lease_of_its_last_life_alone(cluster: Cluster) -> None:
    cluster.live(cluster.two, cluster.three, for_ms=600)
    cluster.server.sim.network.stop_host("host-2", silently=False)
    next_life, stranger = OtherBroker(cluster.server, 2), OtherBroker(cluster.server, 2)
    next_life.lives, stranger.lives = 50, 60
    stranger.folder = UUID(int=99)
    assert next_life.register() is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.live(cluster.three, for_ms=LEASE_MS)
    assert cluster.image.is_active(2), "its connections are accepted again in time"
    assert stranger.register() is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert next_life.register() is ErrorCode.NONE


def test_a_broken_line_lets_no_copy_in_beside_a_broker_that_is_heard(cluster: Cluster) -> None:
    cluster.live(cluster.two, cluster.three, for_ms=600)
    for link in cluster.server.sim.network.links("host-2"):
        cluster.server.sim.network.reset(link)
    cluster.live(cluster.two, cluster.three, for_ms=LEASE_MS)
    copy = OtherBroker(cluster.server, 2)
    copy.lives = 50
    cluster.live(cluster.three, for_ms=LEASE_MS)
    assert copy.register() is ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_a_new_controller_lets_the_next_life_of_a_folder_in_unless_it_has_heard_the_last(cluster: Cluster) -> None:
    sessions = cluster.server.broker.heartbeats
    sessions.on_role(False)
    sessions.on_role(True)
    cluster.two.beat()
    twin, next_life = OtherBroker(cluster.server, 2), OtherBroker(cluster.server, 3)
    twin.lives = next_life.lives = 50
    assert twin.register() is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert next_life.register() is ErrorCode.DUPLICATE_BROKER_REGISTRATION, "its last life may have a lease"
    cluster.live(cluster.two, for_ms=LEASE_MS)
    assert twin.register() is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert next_life.register() is ErrorCode.NONE


def test_an_answer_that_was_lost_is_given_again(cluster: Cluster) -> None:
    four = OtherBroker(cluster.server, 4)
    assert four.register(incarnation=44) is ErrorCode.NONE
    epoch = four.epoch
    assert four.register(incarnation=44) is ErrorCode.NONE
    assert four.epoch == epoch


def test_of_two_that_come_as_one_at_the_same_time_one_is_let_in(cluster: Cluster) -> None:
    one, other = OtherBroker(cluster.server, 4), OtherBroker(cluster.server, 4)
    for each, incarnation in ((one, 41), (other, 42)):
        each.caller.send(each.registration(incarnation=incarnation), 4)
    cluster.server.run()
    codes = [answer.error_code for each in (one, other) for answer in each.caller.replies()]
    assert codes == [ErrorCode.NONE, ErrorCode.DUPLICATE_BROKER_REGISTRATION]


def test_one_that_was_not_answered_comes_back_at_another_address(cluster: Cluster) -> None:
    four = OtherBroker(cluster.server, 4)
    assert four.register(incarnation=44) is ErrorCode.NONE
    epoch, moved = four.epoch, OtherBroker(cluster.server, 4)
    moved.host = "elsewhere"
    assert moved.register(incarnation=44) is ErrorCode.NONE
    assert moved.epoch == epoch
    assert cluster.image.brokers[4].end_points[0].host == "elsewhere"
    assert cluster.image.brokers[4].fenced


def test_a_broker_of_another_cluster_is_turned_away(cluster: Cluster) -> None:
    request = m.BrokerRegistrationRequest(
        broker_id=5,
        cluster_id="another",
        incarnation_id=UUID(int=5),
        listeners=[],
        features=[*TOLD],
        rack=None,
        log_dirs=[],
    )
    assert cluster.client.ask(request, 4).error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
    assert 5 not in cluster.image.brokers


def test_a_broker_that_leaves_has_handed_over_when_it_may_go(cluster: Cluster) -> None:
    topic = cluster.create()
    reply = cluster.two.beat(wants_shutdown=True)
    assert reply.should_shut_down
    assert (topic.partitions[0].leader, topic.partitions[0].isr) == (3, (3, 1))
    asked = cluster.three.alter(topic, {1: -1, 2: cluster.two.epoch, 3: cluster.three.epoch})
    assert asked.topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA
    assert OtherBroker(cluster.server, 2).register(cluster.two.epoch, incarnation=99) is ErrorCode.NONE


def test_leaders_change_their_isr(cluster: Cluster) -> None:
    topic = cluster.create()
    shrunk = cluster.two.alter(topic, {2: cluster.two.epoch, 3: cluster.three.epoch}).topics[0].partitions[0]
    assert (shrunk.error_code, shrunk.isr, shrunk.partition_epoch) == (ErrorCode.NONE, [2, 3], 1)
    assert topic.partitions[0].isr == (2, 3)
    stale = cluster.two.alter(topic, {2: cluster.two.epoch, 3: cluster.three.epoch - 1}).topics[0].partitions[0]
    assert stale.error_code == ErrorCode.INELIGIBLE_REPLICA
    cluster.two.epoch -= 1
    assert cluster.two.alter(topic, {2: cluster.two.epoch}).error_code == ErrorCode.STALE_BROKER_EPOCH


def test_a_leader_of_many_partitions_asks_for_all_at_once(cluster: Cluster, monkeypatch) -> None:
    monkeypatch.setattr(k56_alter_partition, "SLICE", 4)
    topic = cluster.create(partitions=11)
    data = [
        m.AlterPartitionRequest.PartitionData(
            partition_index=index,
            leader_epoch=0,
            new_isr_with_epochs=[
                m.AlterPartitionRequest.BrokerState(broker_id=node_id, broker_epoch=-1) for node_id in (2, 3)
            ],
            leader_recovery_state=0,
            partition_epoch=index // 10,
        )
        for index in range(11)
    ]
    request = m.AlterPartitionRequest(
        broker_id=2,
        broker_epoch=cluster.two.epoch,
        topics=[m.AlterPartitionRequest.TopicData(topic_id=topic.id, partitions=data)],
    )
    (replied,) = cluster.two.caller.ask(request, 3).topics
    assert [each.partition_index for each in replied.partitions] == list(range(11))
    assert [each.error_code for each in replied.partitions] == [ErrorCode.NONE] * 10 + [ErrorCode.NOT_CONTROLLER]
    assert [partition.isr for partition in topic.partitions] == [(2, 3)] * 10 + [(2, 3, 1)]


def test_a_dead_brokers_many_partitions_move_slice_by_slice(cluster: Cluster, monkeypatch) -> None:
    monkeypatch.setattr(elections, "SLICE", 4)
    topic = cluster.create(partitions=11)
    cluster.live(cluster.three, for_ms=SESSION_MS + 300)
    assert {(partition.leader, partition.isr) for partition in topic.partitions} == {(3, (3, 1))}
    cluster.live(cluster.two, cluster.three, for_ms=200)
    assert cluster.image.is_active(2)


def test_a_new_controller_goes_on_where_the_one_before_stopped_and_gives_everybody_time(
    cluster: Cluster, monkeypatch
) -> None:
    monkeypatch.setattr(elections, "SLICE", 4)
    topic = cluster.create(partitions=11)
    sessions = cluster.server.broker.heartbeats
    submit = cluster.server.broker.controller.submit
    # It stops halfway: only the first slice is written.
    cluster.live(cluster.three, for_ms=SESSION_MS - 300)
    monkeypatch.setattr(sessions, "_settle", lambda _: None)
    cluster.live(cluster.three, for_ms=600)
    assert sum(partition.leader == 2 for partition in topic.partitions) == 7
    monkeypatch.undo()
    assert cluster.server.broker.controller.submit == submit
    sessions.on_role(False)
    sessions.on_role(True)
    cluster.server.run(SESSION_MS // 2)
    assert {(partition.leader, partition.isr) for partition in topic.partitions} == {(3, (3, 1))}
    assert cluster.image.is_active(3)


def test_the_first_replica_leads_again_by_itself_and_on_demand(make_server) -> None:
    cluster = Cluster(make_server(TEXTS | {"leader.imbalance.check.interval.seconds": "2"}))
    topic = cluster.create()
    cluster.live(cluster.three, for_ms=SESSION_MS + 300)
    assert topic.partitions[0].leader == 3

    def catch_up() -> None:
        cluster.two.beat()
        epochs = {broker.id: broker.epoch for broker in cluster.image.brokers.values()}
        assert cluster.three.alter(topic, epochs).error_code == ErrorCode.NONE
        assert topic.partitions[0].isr == (2, 3, 1)

    catch_up()
    assert topic.partitions[0].leader == 3
    cluster.live(cluster.two, cluster.three, for_ms=1900)
    assert topic.partitions[0].leader == 3, "it has yet to show that it stays"
    cluster.live(cluster.two, cluster.three, for_ms=1500)
    assert topic.partitions[0].leader == 2, "by itself"
    cluster.live(cluster.three, for_ms=SESSION_MS + 300)
    catch_up()
    partition = m.ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0, 1])
    request = m.ElectLeadersRequest(election_type=0, topic_partitions=[partition])
    (result,) = cluster.client.ask(request, 2).replica_election_results
    assert [each.error_code for each in result.partition_result] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert topic.partitions[0].leader == 2
    of_all = cluster.client.ask(m.ElectLeadersRequest(election_type=0, topic_partitions=None), 2)
    assert (of_all.error_code, of_all.replica_election_results) == (ErrorCode.NONE, [])
    assert cluster.client.ask(m.ElectLeadersRequest(election_type=7, topic_partitions=None), 2).error_code


def test_a_controller_whose_term_ends_while_leaders_go_back_to_the_first_replica_leaves_it_at_that(
    make_server, monkeypatch
) -> None:
    """Cluster seed 1000091: its disk was full, the decision was not written, and the process ended."""
    cluster = Cluster(make_server(TEXTS | {"leader.imbalance.check.interval.seconds": "1"}))
    sessions, asked = cluster.server.broker.heartbeats, []

    def cannot_write(broker_id: int) -> bool:
        asked.append(broker_id)
        sessions.on_role(False)
        return True

    monkeypatch.setattr(sessions, "_lead_first", cannot_write)
    cluster.live(cluster.two, cluster.three, for_ms=3000)
    assert len(asked) == 1, "it is not the controller any more, and does not look again"


def test_only_a_broker_that_is_gone_can_be_unregistered(cluster: Cluster) -> None:
    refused = cluster.client.ask(m.UnregisterBrokerRequest(broker_id=2), 0)
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert "stop it" in refused.error_message
    cluster.live(cluster.three, for_ms=SESSION_MS + 300)
    assert cluster.client.ask(m.UnregisterBrokerRequest(broker_id=2), 0).error_code == ErrorCode.NONE
    assert 2 not in cluster.image.brokers
    assert cluster.two.beat().error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_partition_without_a_live_leader_says_so(cluster: Cluster) -> None:
    topic = cluster.create()
    cluster.server.run(2 * SESSION_MS)
    partition = (
        cluster.client.ask(
            m.DescribeTopicPartitionsRequest(
                topics=[m.DescribeTopicPartitionsRequest.TopicRequest(name="t")], response_partition_limit=10
            ),
            0,
        )
        .topics[0]
        .partitions[0]
    )
    assert topic.partitions[0].leader == 1
    assert (partition.leader_id, partition.isr_nodes, partition.offline_replicas) == (1, [1], [2, 3])
    assert partition.eligible_leader_replicas == [3]
