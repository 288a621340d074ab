"""Most nodes of a cluster are lost for good, and it goes on from what is left; who comes back later is a stranger."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pytest
from tests.sim.cluster.node_cluster import NodeCluster

from millpond.base.errors import ErrorCode
from millpond.broker.data_folder.rescue_marker import ORDER_FILE
from millpond.broker.data_folder.restored import mark_restored
from millpond.broker.membership.lifecycle import OUTLIVED, STRANGER
from millpond.broker.rescue.order import begin, carry_out, decode_order, order_of
from millpond.broker.rescue.plan import Fate, Plan, Wish, choose_source, plan_rescue
from millpond.broker.rescue.survivor import CannotRescue, Survivor, read_survivor
from millpond.metadata.codec import ALIKE_TYPE, FRAME_VERSION
from millpond.sim.node import DATA_FOLDER, PORT, SimNode
from millpond.sim.world.clock import WALL_START_MS
from millpond.sim.world.disk import PowerCut, SimDisk
from millpond.wire import messages as m
from millpond.wire.batch import walk
from millpond.wire.records import Record, decode_batch, encode_batch


class Rescue(NodeCluster):
    """Some nodes with a topic, all of which are ended; what a person does then."""

    def __init__(self, count: int = 3, texts: Mapping[str, str] | None = None) -> None:
        super().__init__(count=count, texts=texts)
        self.count = count

    def create_topics(self, min_isr: int | None = None, /, **replicas: tuple[int, ...]) -> None:
        config = m.CreateTopicsRequest.CreatableTopicConfig(name="min.insync.replicas", value=str(min_isr))
        topics = [
            m.CreateTopicsRequest.CreatableTopic(
                name=name,
                num_partitions=-1,
                replication_factor=-1,
                assignments=[
                    m.CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=list(ids))
                ],
                configs=[] if min_isr is None else [config],
            )
            for name, ids in replicas.items()
        ]
        reply = self.ask(1, m.CreateTopicsRequest(topics=topics, timeout_ms=5000), 7)
        assert [each.error_code for each in reply.topics] == [0] * len(topics), reply
        for name, ids in replicas.items():
            self.wait(lambda name=name, ids=ids: self.leads(ids[0], name))  # type: ignore[misc]

    def leads(self, node_id: int, topic: str) -> bool:
        partition = self.nodes[node_id].broker.partitions.get(topic, 0)
        return partition is not None and partition.is_leader

    def write(self, node_id: int, topic: str, *values: bytes, acks: int = -1) -> int:
        """The offset of the first."""
        batch = encode_batch([Record(number, WALL_START_MS, None, value) for number, value in enumerate(values)])
        topic_id = self.nodes[node_id].broker.image.topics[topic].id
        data = m.ProduceRequest.PartitionProduceData(index=0, records=batch)
        asked = m.ProduceRequest.TopicProduceData(name=topic, topic_id=topic_id, partition_data=[data])
        request = m.ProduceRequest(transactional_id=None, acks=acks, timeout_ms=5_000, topic_data=[asked])
        answer = self.ask(node_id, request, 13).responses[0].partition_responses[0]
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        offset: int = answer.base_offset
        return offset

    def values(self, node_id: int, topic: str) -> list[bytes | None]:
        partition = self.nodes[node_id].broker.partitions.get(topic, 0)
        assert partition is not None
        values, offset = list[bytes | None](), partition.log.start_offset
        while data := partition.log.read_batches(offset, 1 << 20):
            for position, header in walk(data):
                values += [each.value for each in decode_batch(data, position)]
                offset = header.next_offset
        return values

    def end(self, *lost: int) -> None:
        """All of them die at once; the disks of the lost ones are gone."""
        for node in self.nodes.values():
            if node.is_up:
                node.kill()
        for node_id in lost:
            self.sim.wipe(f"node{node_id}")

    def survivor(self, node_id: int) -> Survivor:
        return read_survivor(self.nodes[node_id].disk, DATA_FOLDER)

    def plan(self, *node_ids: int, wish: Wish | None = None) -> Plan:
        survivors = [self.survivor(node_id) for node_id in node_ids]
        return plan_rescue(survivors, choose_source(survivors), "now", wish=wish)

    def rescue(self, *node_ids: int, wish: Wish | None = None) -> Plan:
        plan = self.plan(*node_ids, wish=wish)
        order = decode_order(order_of(plan, self.sim.clock.now_ms).encode())
        for node_id in node_ids:
            begin(self.nodes[node_id].disk, self.survivor(node_id), order)
            carry_out(self.nodes[node_id].disk, DATA_FOLDER, order)
        return plan

    def tell(self, *node_ids: int) -> None:
        """The nodes that these learn of from now on."""
        members = ",".join(f"{node_id}@node{node_id}:{PORT}" for node_id in node_ids)
        for node_id in node_ids:
            texts = self.nodes[node_id].texts
            texts.pop("cluster.nodes", None)
            if len(node_ids) > 1:
                texts["cluster.nodes"] = members

    def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            assert self.nodes[node_id].start(), self.nodes[node_id].journal_lines[-3:]
        self.wait(lambda: all(self.nodes[each].broker.lifecycle.ready.ended for each in node_ids))

    def end_when_shut_out(self, node_id: int) -> list[str]:
        """As the real process does; what it says then."""
        node, said = self.nodes[node_id], list[str]()

        def shut_out(why: Exception) -> None:
            said.append(str(why))
            self.sim.clock.call_soon(node.kill)

        node.broker.lifecycle.shut_out.then(shut_out)
        return said


@pytest.fixture
def three() -> Rescue:
    three = Rescue()
    three.create_topics(pond=(1, 2, 3), weir=(2, 1, 3))
    three.write(1, "pond", b"a", b"b")
    three.write(2, "weir", b"c")
    return three


def test_one_of_three_goes_on_alone_with_all_that_was_acknowledged(three: Rescue) -> None:
    before = three.nodes[1].broker.image.cluster_id
    three.end(2, 3)
    plan = three.rescue(1)
    assert (plan.survivors, plan.lost, plan.count(Fate.KEPT)) == ((1,), (2, 3), 2)
    three.tell(1)
    three.start(1)
    image = three.nodes[1].broker.image
    assert (image.cluster_id, image.rescues, list(image.brokers)) == (before, 1, [1])
    assert (three.values(1, "pond"), three.values(1, "weir")) == ([b"a", b"b"], [b"c"])
    assert image.topics["weir"].partitions[0].leader == 1
    assert image.topics["weir"].partitions[0].replicas == (2, 1, 3), "the nodes that replace them fill them"


def test_with_the_list_of_before_it_grows_again_by_nodes_with_empty_folders(three: Rescue) -> None:
    """No list of nodes has to change: the metadata name the voters."""
    three.end(2, 3)
    three.rescue(1)
    three.start(1)
    assert three.values(1, "pond") == [b"a", b"b"]
    pond = three.nodes[1].broker.partitions.get("pond", 0)
    assert pond is not None
    assert pond.committed_offset == 2, "what it has can be read before others are in sync"
    three.start(2, 3)
    three.wait(three.is_whole, within_ms=30_000)
    assert three.write(three.partition().leader, "pond", b"c") == 2
    three.wait(lambda: three.values(2, "pond") == three.values(3, "pond") == [b"a", b"b", b"c"])
    # They vote, too, by themselves: the survivor can be lost now.
    three.wait(lambda: len(three.nodes[1].broker.controller.host.voters) == 3)
    three.sim.run_for(1_000)
    three.nodes[1].kill()
    three.wait(lambda: three.controller_id in (2, 3) and three.partition().leader in (2, 3))
    leader = three.partition().leader
    three.wait(lambda: three.leads(leader, "pond"))
    assert three.write(leader, "pond", b"d") == 3


def test_others_join_what_was_rescued(three: Rescue) -> None:
    """They know its id from whom they asked, and not that it was rescued."""
    three.end(2, 3)
    three.rescue(1)
    three.tell(1)
    three.start(1)
    cluster_id = three.nodes[1].broker.image.cluster_id or ""
    texts = {"node.id": "4", "cluster.contacts": f"1@node1:{PORT}", "cluster.id": cluster_id}
    late = three.nodes[4] = SimNode(three.sim, "node4", texts)
    three.start(4)
    assert late.broker.image.brokers.keys() == {1, 4}
    assert late.broker.controller.cluster_name == f"{cluster_id}~1"
    late.kill()
    three.start(4)
    stranger = three.nodes[5] = SimNode(three.sim, "node5", texts | {"node.id": "5", "cluster.id": "another"})
    assert stranger.start()
    last_lines = three.end_when_shut_out(5)
    three.wait(lambda: not stranger.is_up)
    assert last_lines == [STRANGER]


def test_a_partition_forgets_lost_replicas_only_if_asked_to_and_is_written_at_once_then(three: Rescue) -> None:
    three.end(2, 3)
    three.rescue(1, wish=Wish(drops_lost=True))
    three.tell(1)
    three.start(1)
    assert three.nodes[1].broker.image.topics["pond"].partitions[0].replicas == (1,)
    assert three.write(1, "pond", b"c") == 2
    assert three.write(1, "weir", b"d") == 1


def test_lost_nodes_that_come_back_end_and_form_no_second_cluster(three: Rescue) -> None:
    three.end()
    three.rescue(1)
    three.tell(1)
    three.start(1)
    for node_id in (2, 3):
        assert three.nodes[node_id].start()
    last_lines = [three.end_when_shut_out(node_id) for node_id in (2, 3)]
    three.wait(lambda: not three.nodes[2].is_up and not three.nodes[3].is_up)
    assert last_lines == [[OUTLIVED], [OUTLIVED]]
    assert list(three.nodes[1].broker.image.brokers) == [1]


def test_a_lost_leader_that_had_only_been_away_ends_when_it_meets_the_new_quorum(three: Rescue) -> None:
    """The two were a majority all along, and an operator ran a rescue anyway: there must not be two clusters."""
    three.nodes[1].kill()
    three.wait(lambda: three.controller_id in (2, 3))
    last_lines = [three.end_when_shut_out(node_id) for node_id in (2, 3)]
    three.rescue(1)
    three.tell(1)
    three.start(1)
    three.wait(lambda: not three.nodes[2].is_up and not three.nodes[3].is_up)
    assert last_lines == [[OUTLIVED], [OUTLIVED]]


def test_two_of_five_become_the_quorum_and_keep_what_either_had_in_sync() -> None:
    five = Rescue(count=5)
    five.create_topics(pond=(1, 2, 3), weir=(5, 4, 3), mill=(3, 4, 2), gone=(3, 5, 2), alone=(5,))
    for topic, leader in {"pond": 1, "weir": 5, "mill": 3, "gone": 3, "alone": 5}.items():
        five.write(leader, topic, topic.encode())
    five.end(2, 3, 5)
    plan = five.plan(1, 4)
    fates = {each.topic: (each.fate, each.leader) for each in plan.partitions}
    assert fates == {
        "pond": (Fate.KEPT, 1),
        "weir": (Fate.KEPT, 4),
        "mill": (Fate.KEPT, 4),
        "gone": (Fate.LOST, -1),
        "alone": (Fate.LOST, -1),
    }
    five.rescue(1, 4, wish=Wish(empty=frozenset({"gone"})))
    five.tell(1, 4)
    five.start(1, 4)
    five.wait(lambda: five.leads(1, "pond") and five.leads(4, "weir") and five.leads(4, "mill"))
    assert (five.values(1, "pond"), five.values(4, "weir"), five.values(4, "mill")) == (
        [b"pond"],
        [b"weir"],
        [b"mill"],
    )
    leader = five.image.topics["gone"].partitions[0].leader
    five.wait(lambda: five.leads(leader, "gone"))
    assert five.values(leader, "gone") == []
    assert five.image.topics["alone"].partitions[0].leader == -1
    # A node with an empty disk in place of the one with all records leads none of its partitions.
    assert five.image.topics["alone"].partitions[0].isr == ()
    five.write(1, "gone" if leader == 1 else "pond", b"again", acks=1)


def test_the_survivor_that_knows_most_is_gone_on_with(three: Rescue) -> None:
    three.nodes[3].kill()
    three.create_topics(late=(1, 2))
    three.end()
    first, last = three.survivor(1), three.survivor(3)
    assert first.rank > last.rank
    assert choose_source([last, first]) is first
    assert choose_source([last, first], node_id=3) is last
    assert first.committed_offset <= first.end_offset
    assert first.voters == (1, 2, 3)


def test_an_order_is_refused_by_a_folder_that_it_is_not_for(three: Rescue) -> None:
    three.nodes[3].kill()
    three.create_topics(late=(1, 2))
    three.end()
    survivors = [three.survivor(3)]
    order = order_of(plan_rescue(survivors, survivors[0], "now"), 0)
    with pytest.raises(CannotRescue, match="does not count node 1"):
        begin(three.nodes[1].disk, three.survivor(1), order)
    with pytest.raises(CannotRescue, match="not the order of a rescue"):
        decode_order(b"nonsense")
    three.rescue(3)
    with pytest.raises(CannotRescue, match="been through this rescue already"):
        begin(three.nodes[3].disk, three.survivor(3), order)


def test_a_rescue_that_was_cut_short_anywhere_is_gone_on_with(three: Rescue) -> None:
    three.nodes[1].stop()
    three.wait(lambda: not three.nodes[1].is_up)
    three.end()
    order = order_of(three.plan(1), 0)
    disk = three.nodes[1].disk
    begin(disk, three.survivor(1), order)
    assert not three.nodes[1].start()
    assert "a rescue of this folder was begun" in three.nodes[1].journal_lines[-1]
    tries = 0
    while disk.exists(f"{DATA_FOLDER}/{ORDER_FILE}"):
        disk.crash_at_operation(disk.operations + 2 * tries + 1)
        tries += 1
        try:
            carry_out(disk, DATA_FOLDER, order)
        except PowerCut:
            three.sim.crash("node1")
    disk.crash_at_operation(1 << 60)
    assert tries > 3
    three.tell(1)
    three.start(1)
    assert three.values(1, "pond") == [b"a", b"b"]


def test_a_second_rescue_leaves_behind_who_was_of_the_first(three: Rescue) -> None:
    three.end()
    three.rescue(1)
    three.tell(1)
    three.start(1)
    three.nodes[1].kill()
    survivor = three.survivor(1)
    assert (survivor.identity.rescues, survivor.voters, survivor.election.epoch > 1000) == (1, (1,), True)
    with pytest.raises(CannotRescue, match="start them"):
        three.plan(1)


class Weathered(Rescue):
    """A cluster with several partitions per leader that has been through failovers, as most have."""

    PARTITIONS = 4

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        super().__init__(texts=texts)
        self.create(1, partitions=self.PARTITIONS)
        self.written = list[bytes | None]()

    def fail_over(self, times: int = 6) -> None:
        """Kill the leader, write to its successor, and wait until all replicas are in sync again."""
        for _ in range(times):
            victim = self.partition().leader
            self.nodes[victim].kill()
            self.wait(lambda victim=victim: self.controller_id and self.partition().leader not in (victim, -1))  # type: ignore[misc]
            self.write_next()
            assert self.nodes[victim].start()
            self.wait(self.is_whole, within_ms=30_000)

    def write_next(self) -> None:
        leader = self.partition().leader
        self.wait(lambda: self.leads(leader, "pond"))
        self.wait(lambda: len(self.nodes[leader].broker.image.topics["pond"].partitions[0].isr) > 1)
        value = b"%d" % len(self.written)
        self.write(leader, "pond", value)
        self.written.append(value)

    def has_alike_records(self, node_id: int) -> bool:
        """Whether one value of the metadata log represents several records."""
        log = self.nodes[node_id].broker.controller.log
        data = log.read_batches(log.start_offset, 1 << 20)
        values = [entry.value or b"" for at, _ in walk(data) for entry in decode_batch(data, at)]
        return any(value[:2] == bytes((FRAME_VERSION, ALIKE_TYPE)) for value in values)

    def snapshots(self, node_id: int) -> int:
        return sum(path.endswith(".checkpoint") for path in self.nodes[node_id].disk.contents())

    def move(self, *replicas: int) -> None:
        """Put the partitions on these nodes, and wait until they are there."""
        kind = m.AlterPartitionReassignmentsRequest
        partitions = [
            kind.ReassignablePartition(partition_index=index, replicas=list(replicas))
            for index in range(self.PARTITIONS)
        ]
        request = kind(topics=[kind.ReassignableTopic(name="pond", partitions=partitions)], timeout_ms=5000)
        assert self.ask(self.controller_id, request, 1).error_code == 0
        self.wait(
            lambda: {each.replicas for each in self.image.topics["pond"].partitions} == {replicas}, within_ms=30_000
        )

    def set_level(self, level: int) -> None:
        """Raise or lower metadata.version."""
        kind = m.UpdateFeaturesRequest
        is_lower = level < self.image.features["metadata.version"]
        update = kind.FeatureUpdateKey(
            feature="metadata.version", max_version_level=level, upgrade_type=2 if is_lower else 1
        )
        reply = self.ask(self.controller_id, kind(timeout_ms=5000, feature_updates=[update]), 1)
        assert (reply.error_code, [each.error_code for each in reply.results]) == (0, [0])

    def check_rescue(self) -> None:
        """Nodes 2 and 3 are lost; node 1 goes on with everything that was acknowledged, and others replace them."""
        self.end(2, 3)
        assert self.plan(1).count(Fate.KEPT) == self.PARTITIONS
        self.rescue(1)
        self.start(1)
        assert self.values(1, "pond") == self.written
        self.start(2, 3)
        self.wait(self.is_whole, within_ms=30_000)
        self.write_next()
        self.wait(lambda: self.values(2, "pond") == self.values(3, "pond") == self.written)


SNAPSHOT_OFTEN = {"metadata.log.max.record.bytes.between.snapshots": "2000"}


def test_a_cluster_that_has_failed_over_many_times_is_rescued() -> None:
    old = Weathered()
    old.fail_over()
    assert old.has_alike_records(1)
    old.check_rescue()


def test_a_cluster_is_rescued_after_its_metadata_was_compacted() -> None:
    old = Weathered(SNAPSHOT_OFTEN)
    old.fail_over(9)
    assert old.snapshots(1)
    assert old.nodes[1].broker.controller.log.start_offset > 0, "the log begins at a snapshot"
    old.check_rescue()


def test_a_cluster_is_rescued_after_its_partitions_moved_while_a_leader_died() -> None:
    old = Weathered()
    old.fail_over(2)
    old.move(2, 3)
    old.move(3, 1, 2)
    old.fail_over(3)
    old.move(1, 2, 3)
    old.fail_over(1)
    old.check_rescue()


def test_a_cluster_is_rescued_after_a_downgrade_and_an_upgrade() -> None:
    old = Weathered()
    for level in (25, 26, 27):
        old.set_level(level)
        old.fail_over(2)
    assert old.snapshots(1), "a lower level folds what older programs could not read"
    old.check_rescue()


@pytest.mark.parametrize("texts", [{}, SNAPSHOT_OFTEN], ids=["log", "snapshots"])
def test_backups_of_different_moments_go_on_together_after_failovers(texts: Mapping[str, str]) -> None:
    old = Weathered(texts)
    copies = {}
    for node_id in (2, 3, 1):
        old.fail_over(3)
        copies[node_id] = old.nodes[node_id].disk.contents()
    old.fail_over(1)
    old.end()
    for node_id, contents in copies.items():
        old.sim.roll_back(f"node{node_id}", contents)
    plan = old.rescue(1, 2, 3, wish=Wish(is_restored=True))
    assert plan.count(Fate.RESTORED) == old.PARTITIONS
    old.start(1, 2, 3)
    old.wait(old.is_whole, within_ms=30_000)
    assert old.values(1, "pond") == old.written[:9]
    old.written = old.written[:9]
    old.write_next()


def restored(texts: Mapping[str, str] | None = None) -> Weathered:
    """Three nodes, all restored from backups of different moments and not started yet."""
    old = Weathered(texts)
    copies = {}
    for node_id in (2, 3, 1):
        old.fail_over(2)
        copies[node_id] = old.nodes[node_id].disk.contents()
    old.end()
    for node_id, contents in copies.items():
        old.sim.roll_back(f"node{node_id}", contents)
        mark_restored(old.nodes[node_id].disk, DATA_FOLDER, UUID(int=99))
    return old


@pytest.mark.parametrize("has_marks", [True, False])
def test_restored_nodes_elect_no_leader_before_a_rescue(has_marks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first leader would be elected on old metadata, and its followers would cut what was committed."""
    if not has_marks:
        monkeypatch.setattr(SimDisk, "mark", lambda *_: None)
    old = restored()
    for node in old.nodes.values():
        assert node.start()
    old.sim.run_for(30_000)
    assert old.controller_id == 0
    assert any("cluster rescue --restored" in line for line in old.nodes[1].journal_lines)
    old.end()
    old.rescue(1, 2, 3, wish=Wish(is_restored=True))
    old.start(1, 2, 3)
    old.wait(old.is_whole, within_ms=30_000)
    assert old.values(1, "pond") == old.written
    old.write_next()


def test_one_restored_node_of_a_living_cluster_gets_its_vote_back() -> None:
    old = Weathered()
    old.fail_over(2)
    contents = old.nodes[3].disk.contents()
    old.fail_over(1)
    old.nodes[3].kill()
    old.sim.roll_back("node3", contents)
    mark_restored(old.nodes[3].disk, DATA_FOLDER, UUID(int=99))
    assert old.nodes[3].start()
    old.wait(old.is_whole, within_ms=30_000)
    old.wait(lambda: not old.nodes[3].broker.controller.host.is_new)
    old.fail_over(2)
    assert old.values(3, "pond") == old.written
