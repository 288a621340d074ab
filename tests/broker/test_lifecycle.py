"""A broker against a scripted controller: registration, heartbeats, shutdown, and what one run leaves for the
next.
"""

from __future__ import annotations

from itertools import cycle
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later
from millpond.broker.data_folder.incarnation import (
    LOST,
    LastIncarnation,
    read_last_incarnation,
    write_last_incarnation,
)
from millpond.broker.membership.lifecycle import DUPLICATE_MS_MIN, SILENT_MS_MAX, Appearance, Lifecycle
from millpond.broker.quorum.lease import LeaseClock
from millpond.config.node import node_settings
from millpond.metadata.brokers import after_power_cut
from millpond.metadata.features import SUPPORTED, features_to_record
from millpond.metadata.image import Image
from millpond.metadata.records import BrokerEndpoint, FeatureLevelRecord, RegisterBrokerRecord
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m

FOLDER = "/pond"
DISK_ID = UUID(int=77)


class LifecycleHost:
    """One host, and a controller whose responses the test gives."""

    def __init__(self) -> None:
        self.sim = SimWorld(0)
        self.asked: list[tuple[Any, Later[Any]]] = []
        self.journal: list[str] = []
        self.image = Image()
        self.controller: Any = None

    def start(self, *, was_clean: bool = False, has_lost: bool = False, **texts: str) -> Lifecycle:
        world = self.sim.start("node")
        world.disk.make_folder(FOLDER)
        settings = node_settings(
            {
                "node.id": "2",
                "data.folder": FOLDER,
                "broker.heartbeat.interval.ms": "300",
                "controlled.shutdown.timeout.ms": "5000",
                **texts,
            }
        )
        self.asked = []
        controller = self.controller = SimpleNamespace(
            node_id=2,
            image=self.image,
            applied_offset=42,
            cluster_name="pond",
            is_stranger=False,
            is_misled=False,
            is_active=False,
            led_ago_ms=None,
            lease_clock=LeaseClock(world.clock, settings),
            supported=SUPPORTED,
            leader_epoch=1,
        )
        controller_channel: Any = SimpleNamespace(ask=self._ask)
        life = Lifecycle(
            world,
            settings,
            lambda event, **_: self.journal.append(event),
            controller,
            controller_channel,
            lambda: None,
        )
        life.start(
            Appearance((BrokerEndpoint("PLAINTEXT", "127.0.0.1", 9092),), DISK_ID),
            was_clean=was_clean,
            has_lost=has_lost,
        )
        return life

    def _ask(self, request: Any, version: int, timeout_ms: int) -> Later[Any]:
        answer: Later[Any] = Later()
        # The request must encode in the version that is sent.
        request.encode(version)
        self.asked.append((request, answer))
        return answer

    def next(self, within_ms: int = 1000) -> tuple[Any, Later[Any]]:
        """The next request."""
        self.sim.run_until(lambda: bool(self.asked), within_ms=within_ms)
        (asked,) = self.asked
        self.asked = []
        return asked

    def register(self, epoch: int = 7) -> m.BrokerRegistrationRequest:
        request, answer = self.next()
        assert isinstance(request, m.BrokerRegistrationRequest)
        answer.finish(m.BrokerRegistrationResponse(broker_epoch=epoch))
        return request

    def beat(self, **fields: Any) -> m.BrokerHeartbeatRequest:
        request, answer = self.next()
        assert isinstance(request, m.BrokerHeartbeatRequest)
        answer.finish(m.BrokerHeartbeatResponse(**{"is_fenced": False, "is_caught_up": True, **fields}))
        return request

    def last(self) -> LastIncarnation:
        return read_last_incarnation(self.sim.hosts["node"].disk, FOLDER)


@pytest.fixture
def host() -> LifecycleHost:
    return LifecycleHost()


def test_a_broker_registers_is_let_in_and_says_that_it_lives(host: LifecycleHost) -> None:
    life = host.start()
    request = host.register(7)
    assert (request.broker_id, request.previous_broker_epoch, request.log_dirs) == (2, LOST, [DISK_ID])
    assert not life.knows_itself
    beat = host.beat(is_fenced=True)
    assert (beat.broker_epoch, beat.current_metadata_offset, beat.want_shut_down) == (7, 41, False)
    assert not life.ready.ended
    host.image.replay(RegisterBrokerRecord(2, request.incarnation_id, 7, ()))
    assert life.knows_itself
    began_ms = host.sim.clock.now_ms
    host.beat()
    assert host.sim.clock.now_ms - began_ms < 100, "who waits to be let in asks often"
    assert life.ready.ended
    assert not life.is_fenced
    began_ms = host.sim.clock.now_ms
    host.beat()
    assert host.sim.clock.now_ms - began_ms == 300
    host.beat(is_fenced=True)
    assert life.is_fenced
    host.beat()
    assert not life.is_fenced
    assert host.journal == ["node registered, serving requests", "node fenced", "node registered, serving requests"]


def test_an_answer_that_took_long_does_not_put_off_the_next_heartbeat(host: LifecycleHost) -> None:
    life = host.start()
    host.register()
    host.beat()
    for took_ms, gap_ms in ((0, 300), (100, 300), (200, 300), (260, 335), (450, 525)):
        _, answer = host.next()
        asked_ms = host.sim.clock.now_ms
        host.sim.run_for(took_ms)
        answer.finish(m.BrokerHeartbeatResponse(is_fenced=False, is_caught_up=True))
        assert not life.is_fenced
        host.sim.run_until(lambda: bool(host.asked), within_ms=1000)
        assert host.sim.clock.now_ms - asked_ms == gap_ms


def test_what_it_supports_is_told_again_to_the_controller_after_an_older_one(host: LifecycleHost) -> None:
    host.start()
    request = host.register(7)
    told = features_to_record(SUPPORTED)
    assert [each.name for each in request.features] == [each.name for each in told]
    # The controller's version did not record it.
    host.image.replay(RegisterBrokerRecord(2, request.incarnation_id, 7, ()))
    host.beat()
    host.beat()
    host.controller.leader_epoch = 2
    host.beat()
    again = host.register(7)
    assert (again.incarnation_id, again.features) == (request.incarnation_id, request.features)
    host.beat()
    host.beat()
    host.controller.leader_epoch = 3
    host.image.replay(RegisterBrokerRecord(2, request.incarnation_id, 7, (), features=told))
    host.beat()
    host.beat()


def test_a_program_that_the_cluster_has_left_behind_ends_with_a_sentence(host: LifecycleHost) -> None:
    life = host.start()
    host.image.replay(FeatureLevelRecord("metadata.version", 99))
    _, answer = host.next()
    answer.finish(m.BrokerRegistrationResponse(error_code=ErrorCode.UNSUPPORTED_VERSION))
    assert life.shut_out.ended
    reasons: list[str] = []
    life.shut_out.then(lambda why: reasons.append(str(why)))
    assert "it is at metadata.version 99, and it supports 25 to 27. Start the version that" in reasons[0]


def test_a_lost_answer_is_asked_for_again(host: LifecycleHost) -> None:
    host.start()
    for _ in range(2):
        request, answer = host.next()
        answer.fail(Refused(ErrorCode.NOT_CONTROLLER))
    again = host.register()
    assert again.incarnation_id == request.incarnation_id
    _, answer = host.next()
    answer.fail(Refused(ErrorCode.NOT_CONTROLLER))
    host.beat()


def test_a_heartbeat_that_no_controller_took_is_said_again_soon(host: LifecycleHost) -> None:
    """The next controller does not wait a full heartbeat interval because the one before rejected the heartbeat."""
    host.start()
    host.register()
    host.beat()
    _, answer = host.next()
    answer.fail(Refused(ErrorCode.NOT_CONTROLLER))
    began_ms = host.sim.clock.now_ms
    host.beat()
    assert host.sim.clock.now_ms - began_ms <= 50


def test_a_killed_process_has_lost_nothing_and_a_power_cut_may_have(host: LifecycleHost) -> None:
    host.start()
    first = host.register(7)
    host.next()
    host.sim.kill("node")
    host.start()
    second = host.register(9)
    assert second.previous_broker_epoch == 7
    assert second.incarnation_id != first.incarnation_id
    host.next()
    host.sim.crash("node")
    host.start()
    assert host.register().previous_broker_epoch == after_power_cut(9)
    host.sim.kill("node")
    host.start()
    assert host.register(11).previous_broker_epoch == after_power_cut(9), "killed before it had heard its epoch"


def test_a_clean_end_outlives_a_power_cut_and_recovery_that_misses_something_does_not(host: LifecycleHost) -> None:
    host.start()
    host.register(7)
    host.next()
    host.sim.crash("node")
    host.start(was_clean=True)
    assert host.register(9).previous_broker_epoch == 7
    host.next()
    host.sim.kill("node")
    host.start(has_lost=True)
    assert host.register(11).previous_broker_epoch == LOST


def test_a_clean_end_counts_once(host: LifecycleHost) -> None:
    """The next run writes, and the clean shutdown does not cover its unsynced records."""
    host.start()
    host.register(7)
    host.next()
    host.sim.crash("node")
    host.start(was_clean=True)
    host.next()
    host.sim.crash("node")
    host.start()
    assert host.register(9).previous_broker_epoch == after_power_cut(7)


def test_a_life_that_died_before_it_had_registered_passes_on_what_it_found(host: LifecycleHost) -> None:
    host.start()
    host.register(7)
    host.next()
    host.sim.kill("node")
    host.start()
    host.sim.kill("node")
    host.start()
    assert host.register(9).previous_broker_epoch == 7


def test_a_life_that_did_not_hear_its_epoch_is_asked_for_under_the_same_name(host: LifecycleHost) -> None:
    host.start()
    unheard, _ = host.next()
    host.sim.kill("node")
    host.start()
    again, _ = host.next()
    assert again.incarnation_id == unheard.incarnation_id
    host.sim.crash("node")
    host.start()
    other, _ = host.next()
    assert other.incarnation_id != unheard.incarnation_id, "it may have lost what the first one had"


def test_one_that_is_not_known_any_more_registers_under_a_new_name(host: LifecycleHost) -> None:
    life = host.start()
    first = host.register(7)
    host.beat()
    host.beat(error_code=ErrorCode.STALE_BROKER_EPOCH)
    assert life.is_fenced
    assert life.broker_epoch == -1
    second = host.register(12)
    assert second.incarnation_id != first.incarnation_id
    assert second.previous_broker_epoch == 7, "it is the same process"
    assert host.beat().broker_epoch == 12


def test_another_process_under_the_same_id_ends_the_wait_with_a_sentence(host: LifecycleHost) -> None:
    life = host.start()
    failures: list[Exception] = []
    life.shut_out.then(failures.append)
    began_ms = host.sim.clock.now_ms
    while not failures:
        _, answer = host.next()
        answer.finish(m.BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION))
        assert host.sim.clock.now_ms - began_ms < 2 * DUPLICATE_MS_MIN
    assert "another process runs as node 2" in str(failures[0])
    host.sim.run_for(1000)
    assert not host.asked


def refuse_as_duplicate(host: LifecycleHost, for_ms: int) -> None:
    began_ms = host.sim.clock.now_ms
    while host.sim.clock.now_ms - began_ms < for_ms:
        _, answer = host.next()
        answer.finish(m.BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION))


def test_a_new_controller_counts_the_previous_incarnation_as_alive_for_another_session(host: LifecycleHost) -> None:
    """A node whose disk was wiped ended 0.3 s before its previous incarnation was fenced (faults, seed 3101459)."""
    life = host.start()
    refuse_as_duplicate(host, DUPLICATE_MS_MIN - 1_000)
    host.controller.leader_epoch = 2
    refuse_as_duplicate(host, DUPLICATE_MS_MIN - 1_000)
    assert not life.shut_out.ended
    host.register()


def test_a_long_session_of_the_previous_incarnation_is_waited_out(host: LifecycleHost) -> None:
    life = host.start(**{"broker.session.timeout.ms": "20000"})
    refuse_as_duplicate(host, 20_000)
    assert not life.shut_out.ended
    host.register()


def test_refusals_with_other_errors_between_them_show_no_other_process(host: LifecycleHost) -> None:
    """The broker's previous incarnation may count as alive for another session after each change of the
    controller.
    """
    life = host.start()
    codes = cycle([ErrorCode.DUPLICATE_BROKER_REGISTRATION, ErrorCode.KAFKA_STORAGE_ERROR])
    began_ms = host.sim.clock.now_ms
    while host.sim.clock.now_ms - began_ms < 2 * DUPLICATE_MS_MIN:
        _, answer = host.next()
        answer.finish(m.BrokerRegistrationResponse(error_code=next(codes)))
    assert not life.shut_out.ended
    host.register()


def test_who_was_let_in_and_is_not_any_more_is_not_left_half_alive(host: LifecycleHost) -> None:
    """Another process has taken the node id: without an error this one would keep running, cut off from the
    cluster.
    """
    life = host.start()
    failures: list[Exception] = []
    life.shut_out.then(failures.append)
    host.register()
    host.beat()
    assert life.ready.ended
    _, answer = host.next()
    answer.finish(m.BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    began_ms = host.sim.clock.now_ms
    while not failures:
        _, answer = host.next()
        answer.finish(m.BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION))
        assert host.sim.clock.now_ms - began_ms < 2 * DUPLICATE_MS_MIN
    assert "another process runs as node 2" in str(failures[0])


def test_a_node_of_another_cluster_is_told_so_and_ends(host: LifecycleHost) -> None:
    failures: list[Exception] = []
    life = host.start()
    life.shut_out.then(failures.append)
    _, answer = host.next()
    answer.finish(m.BrokerRegistrationResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID))
    assert "another cluster" in str(failures[0])
    left: list[bool] = []
    for _ in range(2):
        life.leave(lambda: left.append(True))
    assert left == [True]


def test_one_that_leaves_asks_until_it_may(host: LifecycleHost) -> None:
    life = host.start()
    host.register()
    host.beat()
    left: list[int] = []
    life.leave(lambda: left.append(host.sim.clock.now_ms))
    began_ms = host.sim.clock.now_ms
    assert host.beat(should_shut_down=False).want_shut_down
    assert not left
    assert host.beat(should_shut_down=True).want_shut_down
    assert len(left) == 1
    assert left[0] - began_ms < 100
    host.sim.run_for(2000)
    assert not host.asked


def test_one_that_leaves_while_a_heartbeat_is_under_way_says_so_with_the_next(host: LifecycleHost) -> None:
    life = host.start()
    host.register()
    host.beat()
    _, answer = host.next()
    left: list[bool] = []
    life.leave(lambda: left.append(True))
    answer.finish(m.BrokerHeartbeatResponse(is_fenced=False))
    assert host.beat(should_shut_down=True).want_shut_down
    assert left


def test_a_controlled_shutdown_is_bounded(host: LifecycleHost) -> None:
    life = host.start()
    host.register()
    host.beat()
    left: list[int] = []
    life.leave(lambda: left.append(host.sim.clock.now_ms))
    began_ms = host.sim.clock.now_ms
    host.next()
    host.sim.run_until(lambda: bool(left), within_ms=10_000)
    assert SILENT_MS_MAX <= left[0] - began_ms < SILENT_MS_MAX + 100, "no controller answers"


def test_one_that_is_never_let_go_goes_when_the_time_is_over(host: LifecycleHost) -> None:
    life = host.start()
    host.register()
    host.beat()
    left: list[int] = []
    life.leave(lambda: left.append(host.sim.clock.now_ms))
    began_ms = host.sim.clock.now_ms
    while not left:
        host.beat(should_shut_down=False)
        host.sim.run_until(lambda: bool(left or host.asked), within_ms=1000)
    assert 5000 <= left[0] - began_ms < 5200


def test_one_that_was_never_let_in_and_one_that_is_alone_leave_at_once(host: LifecycleHost) -> None:
    life = host.start()
    left: list[bool] = []
    life.leave(lambda: left.append(True))
    assert left == [True]
    world = host.sim.start("other")
    nobody: Any = SimpleNamespace(supported={}, lease_clock=None)
    alone = Lifecycle(world, node_settings({}), lambda *_, **__: None, nobody, nobody, lambda: None)
    alone.start_alone(5, UUID(int=5))
    assert alone.ready.ended
    alone.leave(lambda: left.append(True))
    assert left == [True, True]
    assert not world.disk.exists("millpond-data/broker.epoch")


def test_a_full_disk_delays_and_loses_nothing(host: LifecycleHost) -> None:
    host.sim.host("node").disk.make_folder(FOLDER)
    disk = host.sim.hosts["node"].disk
    real, failures = disk.replace, [OSError(28, "no space left")] * 2

    def replace(path: str, data: bytes) -> None:
        if failures:
            raise failures.pop()
        real(path, data)

    disk.replace = replace  # type: ignore[method-assign]
    host.start()
    host.sim.run_for(800)
    assert not host.asked
    host.register()
    assert host.journal.count("cannot write the broker epoch, retrying") == 2


@pytest.mark.parametrize("data", [b"", b"0\n1\nx y z\n", b"0\n0\n", b"\xff"])
def test_a_damaged_file_is_no_life_that_could_be_trusted(host: LifecycleHost, data: bytes) -> None:
    disk = host.sim.host("node").disk
    disk.make_folder(FOLDER)
    disk.replace(f"{FOLDER}/broker.epoch", data)
    assert host.last() == LastIncarnation(LOST, "-")
    life = LastIncarnation(5, "boot", UUID(int=3))
    write_last_incarnation(disk, FOLDER, life)
    assert host.last() == life


def test_one_that_is_not_heard_for_a_session_knows_it_by_its_own_clock(host: LifecycleHost) -> None:
    life = host.start()
    host.register()
    host.beat()
    cut_off: list[int] = []
    life.on_cut_off(lambda: cut_off.append(host.sim.clock.now_ms))
    _, answer = host.next()
    asked_ms = host.sim.clock.now_ms
    host.sim.run_for(400)
    answer.finish(m.BrokerHeartbeatResponse(is_fenced=False, is_caught_up=True))
    host.sim.run_until(lambda: bool(cut_off), within_ms=3000)
    assert cut_off == [asked_ms + 1500], "counted from the asking: the answer may have been long under way"
    host.sim.run_for(1500)
    assert life.sessions_missed == 2
    host.beat()
    assert life.sessions_missed > 0, "that was asked long ago"
    began_ms = host.sim.clock.now_ms
    host.beat()
    assert life.sessions_missed == 0
    assert host.sim.clock.now_ms - began_ms <= 50


def test_one_whose_peers_refuse_connections_may_have_been_replaced(host: LifecycleHost) -> None:
    life = host.start()
    host.controller.others_may_lead = False
    host.register()
    host.beat()
    host.sim.run_for(5000)
    assert life.sessions_missed == 3, "a firewall may refuse them, and the others elect another"
