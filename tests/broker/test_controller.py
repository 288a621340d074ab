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


class Play:
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
def play() -> Play:
    return Play()


# Starting.


def test_the_first_start_founds_the_cluster(play: Play) -> None:
    image = play.start().image
    assert image.cluster_id is not None
    assert len(image.cluster_id) == 22
    assert image.features["metadata.version"] > 0
    broker = image.brokers[1]
    assert not broker.fenced
    assert 0 < broker.epoch < play.controller.next_offset, "the offset of its record"
    assert [(each.host, each.port) for each in broker.end_points] == [("localhost", 9092)]


def test_the_cluster_keeps_its_name_and_each_start_has_new_epochs(play: Play) -> None:
    first = play.start({"cluster.id": "pond"})
    broker_epoch, leader_epoch = first.broker_epoch, first.leader_epoch
    again = play.restart({"broker.rack": "cellar"})
    assert again.image.cluster_id == "pond"
    assert again.broker_epoch > broker_epoch
    assert again.leader_epoch == leader_epoch + 1
    assert again.image.brokers[1].rack == "cellar"


def test_topics_are_there_after_a_restart(play: Play) -> None:
    play.start()
    play.create("a")
    play.create("b")
    play.delete("a")
    play.settle()
    before = play.controller.image.topics
    play.restart()
    assert play.controller.image.topics == before
    assert play.topics() == ["b"]


def test_after_a_crash_every_leader_begins_a_new_epoch(play: Play) -> None:
    play.start()
    play.create("a")
    play.settle()
    play.sim.crash("a")
    before = play.controller.log.end_offset
    play.start(after_crash=True)
    assert [partition.leader_epoch for partition in play.controller.image.topics["a"].partitions] == [1]
    assert play.controller.log.end_offset - before == 3, "leader, broker, and one record for all that it leads"


@pytest.mark.parametrize(
    ("texts", "said"),
    [({"cluster.id": "lake"}, "belongs to cluster pond"), ({"node.id": "2"}, "belongs to node 1")],
)
def test_a_folder_of_another_node_is_left_alone(play: Play, texts: dict[str, str], said: str) -> None:
    play.start({"cluster.id": "pond"})
    with pytest.raises(CannotStart, match=said):
        play.restart(texts)


def test_one_of_several_nodes_does_not_decide_alone(play: Play) -> None:
    """It would elect itself, and its epoch would override what the others have committed meanwhile."""
    other = RegisterBrokerRecord(2, UUID(int=2), 5, ())
    play.start().submit(lambda _: Decision((other,), None)).then(lambda _: None)
    play.settle()
    epoch, end = play.controller.leader_epoch, play.controller.log.end_offset
    with pytest.raises(CannotStart, match="node 1 of a cluster"):
        play.restart()
    assert (play.controller.leader_epoch, play.controller.log.end_offset) == (epoch, end), "nothing was written"


def test_a_record_of_a_later_version_keeps_the_node_from_starting(play: Play) -> None:
    log = play.start().log
    batch = bytearray(encode_batch([WireRecord(0, 0, None, b"\x01\x63\x00")]))
    log.append(memoryview(batch), leader_epoch=0, now_ms=0, from_client=False)
    with pytest.raises(CannotStart, match="type 99"):
        play.restart()


def test_a_folder_of_a_later_version_is_left_alone_and_says_so(play: Play) -> None:
    play.start()
    disk = play.world.disk
    known = disk.read("data/meta.properties")
    disk.replace("data/meta.properties", known + b"something.new=1\n")
    play.restart()
    play.world.disk.replace("data/meta.properties", known.replace(b"version=1", b"version=2"))
    with pytest.raises(CannotStart, match="has version 2, and this program knows version 1: start the newer program"):
        play.restart()


def test_an_older_program_starts_only_while_the_levels_are_its_own(play: Play) -> None:
    older = {name: feature.first for name, feature in FEATURES.items()}
    play.supported = older
    play.start()
    play.supported = SUPPORTED
    play.restart()
    assert metadata_version(play.controller.image) == 25, "a start raises nothing"
    play.supported = older
    play.restart()
    play.supported = SUPPORTED
    play.restart()
    change_level(play, 26, UpgradeType.UPGRADE)
    play.create("a")
    play.settle()
    play.supported = older
    with pytest.raises(CannotStart, match=r"they are at metadata.version 26, and it supports 25"):
        play.restart()
    play.supported = SUPPORTED
    play.sim.kill("a")
    play.start()
    snapshots = len(play.controller.host.log.snapshots.ids)
    change_level(play, 25, UpgradeType.SAFE_DOWNGRADE)
    play.sim.run_for(1000)
    # Earlier records belong to the higher level: a node that starts now begins after the snapshot.
    assert len(play.controller.host.log.snapshots.ids) == snapshots + 1
    play.supported = older
    play.restart()
    assert play.topics() == ["a"]


def change_level(play: Play, level: int, kind: UpgradeType) -> None:
    update = FeatureUpdate("metadata.version", level, kind)
    replies: list[object] = []
    play.controller.submit(lambda image: decide_update_features(image, [update], SUPPORTED)).then(replies.append)
    play.sim.run_for(100)
    assert replies == [(OK,)]


def test_control_batches_are_passed_over(play: Play) -> None:
    log = play.start().log
    batch = bytearray(encode_batch([WireRecord(0, 0, b"\0\0\0\2", b"")], control=True))
    log.append(memoryview(batch), leader_epoch=0, now_ms=0, from_client=False)
    before = play.controller.broker_epoch
    assert play.restart().broker_epoch > before


def test_a_log_that_cannot_be_opened_is_not_taken_for_a_new_one(play: Play) -> None:
    play.start()
    play.restart()
    play.store.close()
    play.sim.kill("a")
    play.sim.hosts["a"].disk.fail_reads(METADATA_PARTITION.folder, times=None)
    with pytest.raises((CannotStart, Refused, OSError)):
        play.start()


def test_a_start_that_cannot_be_made_durable_fails(play: Play) -> None:
    world = play.sim.start("a")
    store = LogStore(world.disk, "data", LogLimits(), world.entropy)
    store.open(0)
    world.disk.fail_syncs(METADATA_PARTITION.folder)
    with pytest.raises(OSError):
        Controller(world, store, node_settings({})).load((BrokerEndpoint("PLAINTEXT", "localhost", 9092),))


# Deciding and committing.


def test_nothing_is_visible_before_it_is_durable(play: Play) -> None:
    play.start()
    play.create("a")
    assert (play.topics(), play.heard) == ([], [])
    assert play.settle() == ["changed 2", "create a: NONE"]
    assert play.topics() == ["a"]
    assert play.controller.is_idle()


def test_observers_hear_of_records_that_are_replayed_already(play: Play) -> None:
    seen = []

    def look(_: object) -> Later[None]:
        seen.append(play.topics())
        return done(None)

    play.start().observers.on_change(look)
    play.create("a")
    play.create("b")
    play.settle()
    assert seen == [["a"], ["a", "b"]]


def test_a_decision_knows_of_those_before_it_and_replies_come_in_order(play: Play) -> None:
    play.start()
    play.create("a")
    play.create("a")
    play.delete("a")
    play.create("a.b")
    play.create("a_b")
    assert play.heard == []
    assert play.settle() == [
        "changed 2",
        "create a: NONE",
        "create a: TOPIC_ALREADY_EXISTS",
        "changed 1",
        "delete a: NONE",
        "changed 2",
        "create a.b: NONE",
        "create a_b: INVALID_TOPIC_EXCEPTION",
    ]
    assert play.topics() == ["a.b"]


def test_a_reply_waits_for_whoever_follows_and_keeps_nobody_else_waiting(play: Play) -> None:
    followed: list[Later[None]] = []

    def follow(_: object) -> Later[None]:
        followed.append(Later())
        return followed[-1]

    play.start().observers.on_change(follow)
    play.create("a")
    play.create("b")
    assert play.settle() == ["changed 2", "changed 2"]
    assert play.topics() == ["a", "b"], "the image does not wait"
    followed[1].finish(None)
    followed[0].finish(None)
    assert play.heard == ["create b: NONE", "create a: NONE"]


def test_a_reply_without_records_comes_at_once_when_nothing_is_under_way(play: Play) -> None:
    play.start()
    play.delete("a")
    assert play.heard == ["delete a: UNKNOWN_TOPIC_OR_PARTITION"]


def test_one_sync_commits_all_that_wait(play: Play) -> None:
    play.start()
    before = play.syncs()
    for number in range(50):
        play.create(f"topic-{number}")
    play.settle()
    assert len(play.topics()) == 50
    # The first is written alone; all that arrive during its sync are written together.
    assert play.syncs() - before == 2


def test_a_reply_may_submit_again(play: Play) -> None:
    controller = play.start()
    decide = lambda _: Decision((NoOpRecord(),), "done")  # noqa: E731

    def again(left: int, reply: str) -> None:
        play.heard.append(f"{reply} {left}")
        if left:
            controller.submit(decide).then(partial(again, left - 1))

    controller.submit(decide).then(partial(again, 2))
    controller.submit(lambda _: Decision((), "nothing")).then(partial(again, 0))
    assert play.settle() == [
        "changed 1",
        "done 2",
        "nothing 0",
        "changed 1",
        "done 1",
        "changed 1",
        "done 0",
    ]


def test_blocks_of_producer_ids_never_come_twice(play: Play) -> None:
    firsts: list[int] = []
    play.start()

    def allocate(image: Image) -> Decision[ProducerIdBlock]:
        return decide_allocate_producer_ids(image, play.controller.node_id, play.controller.broker_epoch)

    for _ in range(2):
        for _ in range(2):
            play.controller.submit(allocate).then(lambda block: firsts.append(block.first))
        play.settle()
        play.restart()
    assert firsts == [0, 1000, 2000, 3000]


# Failures.


def test_a_failed_sync_refuses_all_that_wait_and_ends_the_controller(play: Play) -> None:
    play.start()
    play.create("a")
    play.settle()
    play.world.disk.fail_syncs(METADATA_PARTITION.folder)
    play.create("b")
    play.create("c")
    assert play.settle() == ["create b: refused KAFKA_STORAGE_ERROR", "create c: refused KAFKA_STORAGE_ERROR"]
    assert play.topics() == ["a"]
    play.create("d")
    assert play.heard == ["create d: refused KAFKA_STORAGE_ERROR"]


def test_a_full_disk_refuses_one_decision_and_not_the_next(play: Play) -> None:
    play.start()
    disk = play.world.disk
    room = disk.capacity_bytes
    disk.capacity_bytes = disk.used_bytes()
    play.create("a")
    assert play.heard == ["create a: refused KAFKA_STORAGE_ERROR"]
    disk.capacity_bytes = room
    play.create("a")
    assert play.settle() == ["create a: refused KAFKA_STORAGE_ERROR", "changed 2", "create a: NONE"]
    play.restart()
    assert play.topics() == ["a"]


def test_a_closed_controller_finishes_and_takes_no_more(play: Play) -> None:
    play.start()
    play.create("a")
    play.controller.close()
    play.create("b")
    assert play.settle() == ["create b: refused NOT_CONTROLLER", "changed 2", "create a: NONE"]


def test_the_log_may_be_closed_under_a_running_sync(play: Play) -> None:
    play.start()
    play.create("a")
    play.controller.close()
    play.store.close()
    play.settle()
    play.sim.kill("a")
    play.start()
    assert play.topics() == ["a"]


def test_whatever_moment_the_power_goes_what_was_answered_stays() -> None:
    """Cut the power at each disk operation in turn: all topics that were acknowledged are there, in order."""
    wanted = [f"topic-{number}" for number in range(4)]
    for cut in range(1, 1000):
        play = Play(seed=cut)
        play.start()
        disk = play.world.disk
        disk.crash_at_operation(disk.operations + cut)
        answered = play_until_power_cut(play, wanted)
        if not play.sim.power_cuts:
            assert (answered, cut > len(wanted)) == (len(wanted), True)
            return
        play.start(after_crash=True)
        assert play.topics() == wanted[: len(play.topics())], f"seed and cut {cut}"
        assert len(play.topics()) >= answered, f"seed and cut {cut}"
    pytest.fail("the power was never left on")


def play_until_power_cut(play: Play, names: list[str]) -> int:
    """Create topics a little apart, and count the responses."""
    for place, name in enumerate(names):
        play.sim.clock.call_later(3 * place, lambda name=name: play.sim.power_cuts or play.create(name))
    return play.settle().count("changed 2")


def test_the_image_is_one_object_for_life(play: Play) -> None:
    world = play.sim.start("a")
    store = LogStore(world.disk, "data", LogLimits(), world.entropy)
    store.open(0)
    controller = Controller(world, store, node_settings({}))
    image: Image = controller.image
    controller.load((BrokerEndpoint("PLAINTEXT", "localhost", 9092),))
    assert controller.image is image
    assert image.brokers


def test_a_wait_for_an_offset_ends_with_a_batch_that_has_no_records(desk: Any) -> None:
    """Such as a change of voters, or a new leader's first batch."""
    controller = desk.broker.controller
    next_offset = controller.applied_offset + 1
    shown: list[None] = []
    desk.broker.contexts.metadata.once_shown(lambda: controller.applied_offset >= next_offset, 5_000).then(
        shown.append
    )
    controller._applier._take(MetadataBatch(controller.applied_offset, next_offset, ()))
    desk.run(1)
    assert shown == [None]
