from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from millpond.base.errors import Refused
from millpond.base.later import Later, done
from millpond.broker.controller.controller import Controller
from millpond.broker.data_folder.identity import CannotStart
from millpond.broker.quorum.committed_batches import MetadataBatch
from millpond.config.effective import NodeLayers
from millpond.config.node import node_settings
from millpond.log.limits import LogLimits
from millpond.log.store import LogStore
from millpond.metadata.decision import OK, Decision
from millpond.metadata.features import (
    FEATURES,
    SUPPORTED,
    FeatureUpdate,
    Supported,
    UpgradeType,
    decide_update_features,
    metadata_version,
)
from millpond.metadata.image import Image
from millpond.metadata.partition import METADATA_PARTITION
from millpond.metadata.producer_ids import ProducerIdBlock, decide_allocate_producer_ids
from millpond.metadata.records import BrokerEndpoint, NoOpRecord, Record, RegisterBrokerRecord
from millpond.metadata.topics import NewTopic, TopicRef, decide_create_topics, decide_delete_topics
from millpond.sim.world.world import SimWorld
from millpond.wire.records import Record as WireRecord
from millpond.wire.records import encode_batch

LAYERS = NodeLayers(node_settings({}))


class ControllerHost:
    """One host with a controller, and everything it reported, in order."""

    def __init__(self, seed: int = 0) -> None:
        self.sim = SimWorld(seed)
        self.supported: Supported = SUPPORTED
        self.heard: list[str] = []
        # The data folder already exists: creating it is not under test here.
        disk = self.sim.start("a").disk
        disk.make_folder("data")
        disk.sync_folder("")
        self.sim.kill("a")

    def start(self, texts: dict[str, str] | None = None, *, after_crash: bool = False) -> Controller:
        self.world = self.sim.start("a")
        self.store = LogStore(self.world.disk, "data", LogLimits(), self.world.entropy)
        self.store.open(self.world.clock.wall_ms())
        self.controller = Controller(self.world, self.store, node_settings(texts or {}), supported=self.supported)
        self.controller.load((BrokerEndpoint("PLAINTEXT", "localhost", 9092),), after_crash=after_crash)
        self.controller.observers.on_change(self._changed)
        return self.controller

    def restart(self, texts: dict[str, str] | None = None) -> Controller:
        """Shut down cleanly and start again."""
        self.store.close()
        self.sim.kill("a")
        return self.start(texts)

    def _changed(self, records: Sequence[Record]) -> Later[None]:
        self.heard.append(f"changed {len(records)}")
        return done(None)

    def create(self, name: str) -> None:
        self._submit(
            f"create {name}", lambda image: decide_create_topics(image, LAYERS, [NewTopic(name)], self.world.entropy)
        )

    def delete(self, name: str) -> None:
        self._submit(f"delete {name}", lambda image: decide_delete_topics(image, LAYERS, [TopicRef(name)]))

    def _submit(self, what: str, decide) -> None:
        self.controller.submit(decide).then(
            lambda reply: self.heard.append(f"{what}: {reply[0].verdict.code.name}"),
            lambda refused: self.heard.append(f"{what}: refused {refused.code.name}"),
        )

    def settle(self) -> list[str]:
        """Advance time, and return what was reported since the last call."""
        self.sim.run_for(1000)
        heard, self.heard = self.heard, []
        return heard

    def topics(self) -> list[str]:
        return list(self.controller.image.topics)

    def syncs(self) -> int:
        return sum("sync " in line and METADATA_PARTITION.folder in line for line in self.world.disk.trace)


@pytest.fixture
def host() -> ControllerHost:
    return ControllerHost()


# Starting.


def test_the_first_start_founds_the_cluster(host: ControllerHost) -> None:
    image = host.start().image
    assert image.cluster_id is not None
    assert len(image.cluster_id) == 22
    assert image.features["metadata.version"] > 0
    broker = image.brokers[1]
    assert not broker.fenced
    assert 0 < broker.epoch < host.controller.next_offset, "the offset of its record"
    assert [(each.host, each.port) for each in broker.end_points] == [("localhost", 9092)]


def test_the_cluster_keeps_its_name_and_each_start_has_new_epochs(host: ControllerHost) -> None:
    first = host.start({"cluster.id": "pond"})
    broker_epoch, leader_epoch = first.broker_epoch, first.leader_epoch
    again = host.restart({"broker.rack": "cellar"})
    assert again.image.cluster_id == "pond"
    assert again.broker_epoch > broker_epoch
    assert again.leader_epoch == leader_epoch + 1
    assert again.image.brokers[1].rack == "cellar"


def test_topics_are_there_after_a_restart(host: ControllerHost) -> None:
    host.start()
    host.create("a")
    host.create("b")
    host.delete("a")
    host.settle()
    before = host.controller.image.topics
    host.restart()
    assert host.controller.image.topics == before
    assert host.topics() == ["b"]


def test_after_a_crash_every_leader_begins_a_new_epoch(host: ControllerHost) -> None:
    host.start()
    host.create("a")
    host.settle()
    host.sim.crash("a")
    before = host.controller.log.end_offset
    host.start(after_crash=True)
    assert [partition.leader_epoch for partition in host.controller.image.topics["a"].partitions] == [1]
    assert host.controller.log.end_offset - before == 3, "leader, broker, and one record for all that it leads"


@pytest.mark.parametrize(
    ("texts", "said"),
    [({"cluster.id": "lake"}, "belongs to cluster pond"), ({"node.id": "2"}, "belongs to node 1")],
)
def test_a_folder_of_another_node_is_left_alone(host: ControllerHost, texts: dict[str, str], said: str) -> None:
    host.start({"cluster.id": "pond"})
    with pytest.raises(CannotStart, match=said):
        host.restart(texts)


def test_one_of_several_nodes_does_not_decide_alone(host: ControllerHost) -> None:
    """It would elect itself, and its epoch would override what the others have committed meanwhile."""
    other = RegisterBrokerRecord(2, UUID(int=2), 5, ())
    host.start().submit(lambda _: Decision((other,), None)).then(lambda _: None)
    host.settle()
    epoch, end = host.controller.leader_epoch, host.controller.log.end_offset
    with pytest.raises(CannotStart, match="node 1 of a cluster"):
        host.restart()
    assert (host.controller.leader_epoch, host.controller.log.end_offset) == (epoch, end), "nothing was written"


def test_a_record_of_a_later_version_keeps_the_node_from_starting(host: ControllerHost) -> None:
    log = host.start().log
    batch = bytearray(encode_batch([WireRecord(0, 0, None, b"\x01\x63\x00")]))
    log.append(memoryview(batch), leader_epoch=0, now_ms=0, from_client=False)
    with pytest.raises(CannotStart, match="type 99"):
        host.restart()


def test_a_folder_of_a_later_version_is_left_alone_and_says_so(host: ControllerHost) -> None:
    host.start()
    disk = host.world.disk
    data = disk.read("data/meta.properties")
    disk.replace("data/meta.properties", data + b"something.new=1\n")
    host.restart()
    host.world.disk.replace("data/meta.properties", data.replace(b"version=1", b"version=2"))
    with pytest.raises(CannotStart, match="has version 2, and this program knows version 1: start the newer program"):
        host.restart()


def test_an_older_program_starts_only_while_the_levels_are_its_own(host: ControllerHost) -> None:
    older = {name: feature.first for name, feature in FEATURES.items()}
    host.supported = older
    host.start()
    host.supported = SUPPORTED
    host.restart()
    assert metadata_version(host.controller.image) == 25, "a start raises nothing"
    host.supported = older
    host.restart()
    host.supported = SUPPORTED
    host.restart()
    change_level(host, 26, UpgradeType.UPGRADE)
    host.create("a")
    host.settle()
    host.supported = older
    with pytest.raises(CannotStart, match=r"they are at metadata.version 26, and it supports 25"):
        host.restart()
    host.supported = SUPPORTED
    host.sim.kill("a")
    host.start()
    snapshots = len(host.controller.host.log.snapshots.ids)
    change_level(host, 25, UpgradeType.SAFE_DOWNGRADE)
    host.sim.run_for(1000)
    # Earlier records belong to the higher level: a node that starts now begins after the snapshot.
    assert len(host.controller.host.log.snapshots.ids) == snapshots + 1
    host.supported = older
    host.restart()
    assert host.topics() == ["a"]


def change_level(host: ControllerHost, level: int, kind: UpgradeType) -> None:
    update = FeatureUpdate("metadata.version", level, kind)
    replies: list[object] = []
    host.controller.submit(lambda image: decide_update_features(image, [update], SUPPORTED)).then(replies.append)
    host.sim.run_for(100)
    assert replies == [(OK,)]


def test_control_batches_are_passed_over(host: ControllerHost) -> None:
    log = host.start().log
    batch = bytearray(encode_batch([WireRecord(0, 0, b"\0\0\0\2", b"")], control=True))
    log.append(memoryview(batch), leader_epoch=0, now_ms=0, from_client=False)
    before = host.controller.broker_epoch
    assert host.restart().broker_epoch > before


def test_a_log_that_cannot_be_opened_is_not_taken_for_a_new_one(host: ControllerHost) -> None:
    host.start()
    host.restart()
    host.store.close()
    host.sim.kill("a")
    host.sim.hosts["a"].disk.fail_reads(METADATA_PARTITION.folder, times=None)
    with pytest.raises((CannotStart, Refused, OSError)):
        host.start()


def test_a_start_that_cannot_be_made_durable_fails(host: ControllerHost) -> None:
    world = host.sim.start("a")
    store = LogStore(world.disk, "data", LogLimits(), world.entropy)
    store.open(0)
    world.disk.fail_syncs(METADATA_PARTITION.folder)
    with pytest.raises(OSError):
        Controller(world, store, node_settings({})).load((BrokerEndpoint("PLAINTEXT", "localhost", 9092),))


# Deciding and committing.


def test_nothing_is_visible_before_it_is_durable(host: ControllerHost) -> None:
    host.start()
    host.create("a")
    assert (host.topics(), host.heard) == ([], [])
    assert host.settle() == ["changed 2", "create a: NONE"]
    assert host.topics() == ["a"]
    assert host.controller.is_idle()


def test_observers_hear_of_records_that_are_replayed_already(host: ControllerHost) -> None:
    seen = []

    def look(_: object) -> Later[None]:
        seen.append(host.topics())
        return done(None)

    host.start().observers.on_change(look)
    host.create("a")
    host.create("b")
    host.settle()
    assert seen == [["a"], ["a", "b"]]


def test_a_decision_knows_of_those_before_it_and_replies_come_in_order(host: ControllerHost) -> None:
    host.start()
    host.create("a")
    host.create("a")
    host.delete("a")
    host.create("a.b")
    host.create("a_b")
    assert host.heard == []
    assert host.settle() == [
        "changed 2",
        "create a: NONE",
        "create a: TOPIC_ALREADY_EXISTS",
        "changed 1",
        "delete a: NONE",
        "changed 2",
        "create a.b: NONE",
        "create a_b: INVALID_TOPIC_EXCEPTION",
    ]
    assert host.topics() == ["a.b"]


def test_a_reply_waits_for_observers_and_delays_no_other(host: ControllerHost) -> None:
    followed: list[Later[None]] = []

    def follow(_: object) -> Later[None]:
        followed.append(Later())
        return followed[-1]

    host.start().observers.on_change(follow)
    host.create("a")
    host.create("b")
    assert host.settle() == ["changed 2", "changed 2"]
    assert host.topics() == ["a", "b"], "the image does not wait"
    followed[1].finish(None)
    followed[0].finish(None)
    assert host.heard == ["create b: NONE", "create a: NONE"]


def test_a_reply_without_records_comes_at_once_when_nothing_is_under_way(host: ControllerHost) -> None:
    host.start()
    host.delete("a")
    assert host.heard == ["delete a: UNKNOWN_TOPIC_OR_PARTITION"]


def test_one_sync_commits_all_that_wait(host: ControllerHost) -> None:
    host.start()
    before = host.syncs()
    for number in range(50):
        host.create(f"topic-{number}")
    host.settle()
    assert len(host.topics()) == 50
    # The first is written alone; all that arrive during its sync are written together.
    assert host.syncs() - before == 2


def test_a_reply_may_submit_again(host: ControllerHost) -> None:
    controller = host.start()
    decide = lambda _: Decision((NoOpRecord(),), "done")  # noqa: E731

    def again(left: int, reply: str) -> None:
        host.heard.append(f"{reply} {left}")
        if left:
            controller.submit(decide).then(partial(again, left - 1))

    controller.submit(decide).then(partial(again, 2))
    controller.submit(lambda _: Decision((), "nothing")).then(partial(again, 0))
    assert host.settle() == [
        "changed 1",
        "done 2",
        "nothing 0",
        "changed 1",
        "done 1",
        "changed 1",
        "done 0",
    ]


def test_blocks_of_producer_ids_never_come_twice(host: ControllerHost) -> None:
    firsts: list[int] = []
    host.start()

    def allocate(image: Image) -> Decision[ProducerIdBlock]:
        return decide_allocate_producer_ids(image, host.controller.node_id, host.controller.broker_epoch)

    for _ in range(2):
        for _ in range(2):
            host.controller.submit(allocate).then(lambda block: firsts.append(block.first))
        host.settle()
        host.restart()
    assert firsts == [0, 1000, 2000, 3000]


# Failures.


def test_a_failed_sync_refuses_all_that_wait_and_ends_the_controller(host: ControllerHost) -> None:
    host.start()
    host.create("a")
    host.settle()
    host.world.disk.fail_syncs(METADATA_PARTITION.folder)
    host.create("b")
    host.create("c")
    assert host.settle() == ["create b: refused KAFKA_STORAGE_ERROR", "create c: refused KAFKA_STORAGE_ERROR"]
    assert host.topics() == ["a"]
    host.create("d")
    assert host.heard == ["create d: refused KAFKA_STORAGE_ERROR"]


def test_a_full_disk_refuses_one_decision_and_not_the_next(host: ControllerHost) -> None:
    host.start()
    disk = host.world.disk
    room = disk.capacity_bytes
    disk.capacity_bytes = disk.used_bytes()
    host.create("a")
    assert host.heard == ["create a: refused KAFKA_STORAGE_ERROR"]
    disk.capacity_bytes = room
    host.create("a")
    assert host.settle() == ["create a: refused KAFKA_STORAGE_ERROR", "changed 2", "create a: NONE"]
    host.restart()
    assert host.topics() == ["a"]


def test_a_closed_controller_finishes_and_takes_no_more(host: ControllerHost) -> None:
    host.start()
    host.create("a")
    host.controller.close()
    host.create("b")
    assert host.settle() == ["create b: refused NOT_CONTROLLER", "changed 2", "create a: NONE"]


def test_the_log_may_be_closed_under_a_running_sync(host: ControllerHost) -> None:
    host.start()
    host.create("a")
    host.controller.close()
    host.store.close()
    host.settle()
    host.sim.kill("a")
    host.start()
    assert host.topics() == ["a"]


def test_whatever_moment_the_power_goes_what_was_answered_stays() -> None:
    """Cut the power at each disk operation in turn: all topics that were acknowledged are there, in order."""
    wanted = [f"topic-{number}" for number in range(4)]
    for cut in range(1, 1000):
        host = ControllerHost(seed=cut)
        host.start()
        disk = host.world.disk
        disk.crash_at_operation(disk.operations + cut)
        answered = create_until_power_cut(host, wanted)
        if not host.sim.power_cuts:
            assert (answered, cut > len(wanted)) == (len(wanted), True)
            return
        host.start(after_crash=True)
        assert host.topics() == wanted[: len(host.topics())], f"seed and cut {cut}"
        assert len(host.topics()) >= answered, f"seed and cut {cut}"
    pytest.fail("the power was never left on")


def create_until_power_cut(host: ControllerHost, names: list[str]) -> int:
    """Create topics a little apart, and count the responses."""
    for place, name in enumerate(names):
        host.sim.clock.call_later(3 * place, lambda name=name: host.sim.power_cuts or host.create(name))
    return host.settle().count("changed 2")


def test_the_image_is_one_object_for_life(host: ControllerHost) -> None:
    world = host.sim.start("a")
    store = LogStore(world.disk, "data", LogLimits(), world.entropy)
    store.open(0)
    controller = Controller(world, store, node_settings({}))
    image: Image = controller.image
    controller.load((BrokerEndpoint("PLAINTEXT", "localhost", 9092),))
    assert controller.image is image
    assert image.brokers


def test_a_wait_for_an_offset_ends_with_a_batch_that_has_no_records(server: Any) -> None:
    """Such as a change of voters, or a new leader's first batch."""
    controller = server.broker.controller
    next_offset = controller.applied_offset + 1
    shown: list[None] = []
    server.broker.contexts.metadata.once_shown(lambda: controller.applied_offset >= next_offset, 5_000).then(
        shown.append
    )
    controller._applier._take(MetadataBatch(controller.applied_offset, next_offset, ()))
    server.run(1)
    assert shown == [None]
