"""A shard host writes what its shard decides, and answers only once that is committed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, pairwise
from typing import Any
from uuid import UUID

import pytest
from tests.support.partitions import ME, partition_context, view

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import TopicPartition
from millpond.base.later import Later
from millpond.base.principal import ANONYMOUS
from millpond.broker.coordination.coordination import (
    NEEDS_LATEST,
    READ_FIRST_MS,
    WAITS_FOR_MEMBERS,
    Coordination,
    Producer,
    ShardHost,
    Writing,
)
from millpond.broker.loop.turns import ROUND_US
from millpond.broker.replication.partitions import Partition
from millpond.broker.requests.call import Call
from millpond.broker.storage.flusher import Flusher
from millpond.config.effective import NodeLayers
from millpond.config.node import node_settings
from millpond.coordinators.shard import CoordinatorRecord, Effects, Request
from millpond.log.limits import LogLimits
from millpond.log.store import LogStore
from millpond.sim.world.clock import SimTimer
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m


def listener(name: str, heard: list[str]) -> Later[Any]:
    """A listener that records what it is called with."""
    later: Later[Any] = Later()
    later.then(
        lambda response: heard.append(f"{name}: {response}"),
        lambda refused: heard.append(f"{name}: {refused.code.name}"),  # type: ignore[attr-defined]
    )
    return later


class Notes:
    """A shard that stores notes by name and has one timer."""

    def __init__(self) -> None:
        self.notes: dict[bytes, bytes | None] = {}
        self.due_ms: int | None = None
        self.woken_ms: list[int] = []
        self.loaded = False
        self.pending: list[Any] = []

    def put(self, name: str, text: str, token: Any, order: object = None) -> Effects:
        effects = Effects(records=[CoordinatorRecord(name.encode(), text.encode())])
        effects.reply(token, f"wrote {name}")  # type: ignore[arg-type]
        if order is not None:
            effects.orders.append(order)
        return effects

    def ask(self, name: str, token: Any) -> Effects:
        effects = Effects()
        effects.reply(token, (self.notes.get(name.encode()) or b"nothing").decode())  # type: ignore[arg-type]
        return effects

    def at(self, now_ms: int, wall_ms: int) -> None: ...

    def step(self, request: Request, now_ms: int) -> Effects:
        raise AssertionError("not used here")

    def on_time(self, now_ms: int) -> Effects:
        self.woken_ms.append(now_ms)
        self.due_ms = None
        return Effects()

    def next_deadline_ms(self) -> int | None:
        return self.due_ms

    def replay(self, offset: int, key: bytes, value: bytes | None) -> None:
        self.notes[key] = value

    def on_loaded(self, now_ms: int) -> Effects:
        self.loaded = True
        return Effects()

    def unload(self, code: ErrorCode) -> Effects:
        effects = Effects()
        for token in self.pending:
            effects.reply(token, f"sent away with {code.name}")  # type: ignore[arg-type]
        return effects


class Play:
    def __init__(self) -> None:
        self.sim = SimWorld(seed=1)
        self.world = self.sim.start("host")
        self.store = LogStore(self.world.disk, "/data", LogLimits(), self.world.entropy)
        self.store.open(0)
        self.flusher = Flusher(self.world.workers, self.world.disk, "/data")
        self.heard: list[str] = []
        self.orders: list[Any] = []
        self.has_lease = True
        name = TopicPartition("__notes", 0)
        log = self.store.create(name, UUID(int=7))
        self.context = partition_context(self.world.disk, self.world.clock, flusher=self.flusher)
        self.partition = Partition(name, UUID(int=7), log, self.context)
        self.partition.follow(view(ME, 0, 0))
        self.shard_host = self.load(self.new_shard_host())

    def new_shard_host(self, partition: Partition | None = None) -> ShardHost[Notes]:
        return ShardHost(
            Notes, partition or self.partition, self.world.clock, self.orders.append, lambda: self.has_lease
        )

    def another_partition(self, index: int) -> Partition:
        name = TopicPartition("__notes", index)
        log = self.store.create(name, UUID(int=7))
        partition = Partition(name, UUID(int=7), log, self.context)
        partition.follow(view(ME, 0, 0))
        return partition

    def leads(self, topic: str, index: int) -> bool:
        """What the metadata says about the partition's leader."""
        return index != 0 or self.partition.is_leader

    def journal(self, event: str, **facts: object) -> None:
        self.heard.append(f"journal: {event}")

    def load(self, shard_host: ShardHost[Notes]) -> ShardHost[Notes]:
        while shard_host.load_some():
            pass
        return shard_host

    def listener(self, name: str) -> Later[Any]:
        return listener(name, self.heard)

    def settle(self) -> None:
        assert self.sim.run_until(self.flusher.is_idle)
        self.sim.run_for(1)


@pytest.fixture
def play() -> Play:
    return Play()


def test_the_reply_waits_for_the_disk_and_the_state_does_not(play: Play) -> None:
    play.shard_host.run(lambda shard, _: shard.put("a", "1", play.listener("one"), order="ring the bell"))
    assert play.shard_host.shard.notes == {b"a": b"1"}
    assert (play.heard, play.orders) == ([], [])
    play.settle()
    assert (play.heard, play.orders) == (["one: wrote a"], ["ring the bell"])


def test_a_question_waits_for_what_its_answer_stands_on(play: Play) -> None:
    play.shard_host.run(lambda shard, _: shard.put("a", "1", play.listener("writer")))
    play.shard_host.run(lambda shard, _: shard.ask("a", play.listener("reader")))
    assert play.heard == []
    play.settle()
    assert play.heard == ["writer: wrote a", "reader: 1"]
    play.shard_host.run(lambda shard, _: shard.ask("b", play.listener("late")))
    assert play.heard[-1] == "late: nothing"


def test_a_new_home_finds_what_the_last_one_wrote(play: Play) -> None:
    for name, text in [("a", "1"), ("b", "2"), ("a", "3")]:
        play.shard_host.run(lambda shard, _, name=name, text=text: shard.put(name, text, play.listener(name)))  # type: ignore[misc]
    shard_host = play.load(play.new_shard_host())
    assert shard_host.shard.notes == {b"a": b"3", b"b": b"2"}
    assert shard_host.shard.loaded


def test_a_failed_sync_fails_everybody_and_closes_the_home(play: Play) -> None:
    play.sim.hosts["host"].disk.fail_syncs()
    play.shard_host.run(lambda shard, _: shard.put("a", "1", play.listener("one"), order="never"))
    play.shard_host.run(lambda shard, _: shard.put("b", "2", play.listener("two")))
    play.settle()
    assert play.heard == ["one: COORDINATOR_NOT_AVAILABLE", "two: COORDINATOR_NOT_AVAILABLE"]
    assert play.orders == []
    assert not play.shard_host.is_active


def test_a_write_that_is_refused_fails_its_own_reply_too(play: Play) -> None:
    play.partition.log.fail(OSError("gone"))
    play.shard_host.shard.pending.append(play.listener("pending"))
    play.shard_host.run(lambda shard, _: shard.put("a", "1", play.listener("one")))
    assert play.heard == ["one: COORDINATOR_NOT_AVAILABLE", "pending: sent away with COORDINATOR_NOT_AVAILABLE"]
    assert play.shard_host.shard.notes == {}
    assert not play.shard_host.is_active


def test_a_producer_without_a_transaction_is_turned_away_and_the_home_stays_open(play: Play) -> None:
    writing = Writing(Producer(5, 0), None)
    play.shard_host.run(lambda shard, _: shard.put("a", "1", play.listener("late")), writing)
    assert play.heard == ["late: INVALID_TXN_STATE"]
    assert play.shard_host.is_active
    play.shard_host.run(lambda shard, _: shard.put("b", "2", play.listener("timely")))
    play.settle()
    assert play.heard[1:] == ["timely: wrote b"]


def test_the_clock_wakes_the_shard_and_a_leap_of_the_wall_clock_does_not(play: Play) -> None:
    shard = play.shard_host.shard

    def wait_ten_seconds(notes: Notes, now_ms: int) -> Effects:
        notes.due_ms = now_ms + 10_000
        return Effects()

    play.shard_host.run(wait_ten_seconds)
    play.sim.jump_wall("host", 3_600_000)
    play.sim.run_for(9_000)
    assert shard.woken_ms == []
    play.sim.run_for(2_000)
    assert len(shard.woken_ms) == 1


def test_a_stopped_home_is_not_woken(play: Play) -> None:
    def wait_one_second(notes: Notes, now_ms: int) -> Effects:
        notes.due_ms = now_ms + 1_000
        return Effects()

    play.shard_host.run(wait_one_second)
    play.shard_host.stop()
    play.sim.run_for(5_000)
    assert play.shard_host.shard.woken_ms == []


class TestAStallOfTheLoop:
    """Due timers run before the loop reads requests that arrived during the stall."""

    @pytest.fixture
    def stalled(self, play: Play) -> Play:
        play.shard_host.run(wait(1_000))
        self.stall(play)
        return play

    def stall(self, play: Play) -> None:
        play.sim.pause("host")
        play.sim.run_for(5_000)
        play.sim.resume("host")
        play.sim.run_for(1)

    def test_a_sign_of_life_that_waited_to_be_read_is_in_time(self, stalled: Play) -> None:
        assert stalled.shard_host.shard.woken_ms == []
        stalled.shard_host.run(wait(1_000))
        stalled.sim.run_for(900)
        assert stalled.shard_host.shard.woken_ms == []
        stalled.sim.run_for(200)
        assert len(stalled.shard_host.shard.woken_ms) == 1

    def test_without_one_it_is_only_a_little_later(self, stalled: Play) -> None:
        stalled.sim.run_for(READ_FIRST_MS)
        assert len(stalled.shard_host.shard.woken_ms) == 1

    def test_it_is_put_off_once(self, stalled: Play) -> None:
        self.stall(stalled)
        assert len(stalled.shard_host.shard.woken_ms) == 1

    def test_the_next_one_is_put_off_again(self, stalled: Play) -> None:
        stalled.shard_host.run(wait(1_000))
        self.stall(stalled)
        assert stalled.shard_host.shard.woken_ms == []
        stalled.sim.run_for(READ_FIRST_MS)
        assert len(stalled.shard_host.shard.woken_ms) == 1

    def test_who_is_late_by_himself_is_not_put_off(self, play: Play) -> None:
        play.shard_host.run(wait(-5_000))
        play.sim.run_for(1)
        assert len(play.shard_host.shard.woken_ms) == 1


def wait(duration_ms: int) -> Callable[[Notes, int], Effects]:
    """A decision that schedules a wakeup after this delay."""

    def decide(notes: Notes, now_ms: int) -> Effects:
        notes.due_ms = now_ms + duration_ms
        return Effects()

    return decide


def test_homes_that_are_due_in_the_same_moment_are_woken_in_several_turns_of_the_loop(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = [play.partition, *(play.another_partition(index) for index in range(1, 5))]
    notes = Coordination("__notes", play.new_shard_host, play.world.clock, play.journal, play.leads)
    notes.follow(partitions, 5)
    shard_hosts = list(notes.shard_hosts())
    timers: list[Callable[[], None]] = []
    ticks = count(0, 2 * ROUND_US)
    monkeypatch.setattr(play.world.clock, "call_later", lambda _, fire: timers.append(fire) or SimTimer(0, fire))
    monkeypatch.setattr(play.world.clock, "monotonic_us", lambda: next(ticks))
    for shard_host in shard_hosts:
        shard_host.run(wait(0))
    woken = [0]
    for fire in timers:
        # All in one turn, as the loop runs them.
        fire()
    for shard_host in shard_hosts:
        shard_host.run(lambda shard, _: shard.ask("a", play.listener("a")))
    woken.append(sum(len(shard_host.shard.woken_ms) for shard_host in shard_hosts))
    while play.sim.clock.step():
        woken.append(sum(len(shard_host.shard.woken_ms) for shard_host in shard_hosts))
    assert woken[-1] == len(shard_hosts) == len(timers)
    assert max(after - before for before, after in pairwise(woken)) == 1


def coordination(play: Play) -> Coordination[Notes]:
    return Coordination("__notes", lambda _partition: play.shard_host, play.world.clock, play.journal, play.leads)


def test_names_find_their_home_once_the_topic_is_there(play: Play) -> None:
    notes = coordination(play)
    with pytest.raises(Refused) as refused:
        notes.shard_host_of("a")
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    notes.follow([play.partition], 1)
    assert notes.is_open
    assert notes.shard_host_of("a") is play.shard_host
    assert list(notes.shard_hosts()) == [play.shard_host]


def test_a_closed_home_is_not_at_home(play: Play) -> None:
    notes = coordination(play)
    notes.follow([play.partition], 1)
    notes.stop()
    with pytest.raises(Refused):
        notes.shard_host_of("a")
    assert list(notes.shard_hosts()) == []


def test_an_offline_partition_does_not_change_where_others_belong(play: Play) -> None:
    notes = coordination(play)
    notes.follow([play.partition], 50)
    assert {notes.partition_of(f"group {number}") for number in range(500)} > {7, 30, 49}
    strangers = [f"group {number}" for number in range(500) if notes.partition_of(f"group {number}")]
    with pytest.raises(Refused) as refused:
        notes.shard_host_of(strangers[0])
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


class FakeConnection:
    principal = ANONYMOUS
    may_be_node = True
    host = "10.0.0.7"


def call() -> Call:
    return Call(FakeConnection(), 3, "client")  # type: ignore[arg-type]


def test_a_question_reaches_the_shard_with_who_asks(play: Play) -> None:
    seen: list[Request] = []

    def step(request: Request, now_ms: int) -> Effects:
        seen.append(request)
        return play.shard_host.shard.ask("a", request.token)

    play.shard_host.shard.step = step  # type: ignore[method-assign]
    play.shard_host.ask(call(), m.HeartbeatRequest(group_id="g")).then(play.heard.append)
    (request,) = seen
    assert (request.version, request.client_id, request.client_host) == (3, "client", "10.0.0.7")
    assert play.heard == ["nothing"]


def test_without_a_home_a_question_is_refused(play: Play) -> None:
    nowhere: Coordination[Notes] = Coordination(
        "__notes", lambda _: play.shard_host, play.world.clock, play.journal, play.leads
    )
    refusals: list[Exception] = []
    nowhere.ask(call(), "g", m.HeartbeatRequest(group_id="g")).then(pytest.fail, refusals.append)
    assert [refused.code for refused in refusals] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]  # type: ignore[attr-defined]


# Resigning, and loading again.


def write(play: Play, notes: Coordination[Notes], name: str) -> None:
    notes.shard_host_of("g").run(lambda shard, _: shard.put(name, "x" * 1000, play.listener(name)))


def test_a_moment_of_a_full_disk_is_over_when_there_is_room_again(play: Play) -> None:
    notes = Coordination("__notes", lambda _: play.new_shard_host(), play.world.clock, play.journal, play.leads)
    notes.follow([play.partition], 1)
    write(play, notes, "before")
    play.settle()
    play.sim.hosts["host"].disk.fill()
    write(play, notes, "lost")
    assert play.heard[-2:] == ["lost: COORDINATOR_NOT_AVAILABLE", "journal: coordinator reloading from its log"]
    with pytest.raises(Refused) as refused:
        notes.shard_host_of("g")
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    play.sim.run_for(5_000)
    play.sim.hosts["host"].disk.make_room()
    play.sim.run_for(10_000)
    assert notes.shard_host_of("g").shard.notes.keys() == {b"before"}, "what was not written is forgotten"
    write(play, notes, "after")
    play.settle()
    assert play.heard[-1] == "after: wrote after"


def test_a_coordinator_does_not_live_by_what_has_rotted(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged records used to be replayed unnoticed, or ended the node when they could not be read."""
    play.shard_host.run(lambda shard, _: shard.put("a", "1", play.listener("one")))
    play.settle()
    log, sound = play.partition.log, play.partition.log.read_batches
    monkeypatch.setattr(log, "read_batches", lambda *given: sound(*given)[:-1] + b"?" if sound(*given) else b"")
    notes = Coordination("__notes", lambda _: play.new_shard_host(), play.world.clock, play.journal, play.leads)
    notes.follow([play.partition], 1)
    assert play.heard[-1] == "journal: coordinator reloading from its log"
    with pytest.raises(Refused) as refused:
        notes.shard_host_of("g")
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    monkeypatch.undo()
    play.sim.run_for(10_000)
    assert notes.shard_host_of("g").shard.notes == {b"a": b"1"}


def test_a_large_log_is_loaded_in_slices_and_nobody_is_served_meanwhile(play: Play) -> None:
    for number in range(1000):
        play.shard_host.run(lambda shard, _, number=number: shard.put(f"{number}", "x" * 1000, Later()))  # type: ignore[misc]
    play.settle()
    notes = Coordination("__notes", lambda _: play.new_shard_host(), play.world.clock, play.journal, play.leads)
    notes.follow([play.partition], 1)
    seen = []
    while notes.is_loading:
        shard_host = notes.shard_host_at(0)
        assert shard_host is not None
        seen.append(len(shard_host.shard.notes))
        with pytest.raises(Refused) as refused:
            notes.shard_host_of("g")
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        play.sim.clock.step()
    assert len(seen) > 5
    assert max(after - before for before, after in pairwise(seen)) < 100
    assert len(notes.shard_host_of("g").shard.notes) == 1000


def test_what_is_to_be_told_everywhere_is_told_once_a_home_is_loaded(play: Play) -> None:
    notes = Coordination("__notes", lambda _: play.new_shard_host(), play.world.clock, play.journal, play.leads)
    notes.follow([play.partition], 1)
    shard_host = notes.shard_host_of("g")
    shard_host.resign(Refused(ErrorCode.KAFKA_STORAGE_ERROR, "no room"))
    notes.run_everywhere(lambda shard, _: shard.put("news", "1", play.listener("news")))
    assert "news: wrote news" not in play.heard
    play.sim.run_for(1_000)
    assert play.heard[-1] == "news: wrote news"


def test_a_request_without_an_answer_is_told_to_people(play: Play) -> None:
    notes = Coordination("__notes", lambda _: play.new_shard_host(), play.world.clock, play.journal, play.leads)
    notes.follow([play.partition], 1)
    shard_host = notes.shard_host_of("g")
    shard_host.shard.step = lambda *_: Effects()  # type: ignore[method-assign]
    first = shard_host.ask(call(), m.HeartbeatRequest(group_id="g"))
    play.sim.run_for(5_000)
    shard_host.ask(call(), m.HeartbeatRequest(group_id="g"))
    shard_host.ask(call(), m.JoinGroupRequest(group_id="g"))
    first.finish("late")
    play.sim.run_for(9_000)
    assert play.heard == []
    play.sim.run_for(2_000)
    assert play.heard == ["journal: coordinator request overdue"]


# Following the leadership of the partition.

OTHER = 2


@pytest.fixture
def led(play: Play) -> Play:
    """The partition has a second replica, whose fetches commit what this node writes."""
    play.partition.follow(view(ME, 1, 1, "12", "12"))
    return play


def notes_of(play: Play) -> Coordination[Notes]:
    notes = Coordination("__notes", lambda _: play.new_shard_host(), play.world.clock, play.journal, play.leads)
    notes.follow([play.partition], 1)
    return notes


def fetch_all(play: Play) -> None:
    """The other replica catches up completely."""
    assert play.partition.leading is not None
    play.partition.leading.on_fetch(OTHER, 1, play.partition.log.end_offset, 0)


def test_replies_and_orders_leave_once_every_replica_in_sync_has_what_they_stand_on(led: Play) -> None:
    shard_host = notes_of(led).shard_host_of("g")
    shard_host.run(lambda shard, _: shard.put("a", "1", led.listener("one"), order="ring the bell"))
    shard_host.run(lambda shard, _: shard.ask("a", led.listener("reader")))
    led.settle()
    assert (led.heard, led.orders) == ([], [])
    fetch_all(led)
    assert (led.heard, led.orders) == (["one: wrote a", "reader: 1"], ["ring the bell"])


def test_what_a_new_leader_read_above_the_committed_offset_is_told_once_it_is_committed(led: Play) -> None:
    notes_of(led).shard_host_of("g").run(lambda shard, _: shard.put("a", "1", Later()))
    led.partition.follow(view(ME, 2, 2, "12", "12"))
    shard_host = notes_of(led).shard_host_of("g")
    assert shard_host.shard.notes == {b"a": b"1"}, "it decides on all that is in its log"
    shard_host.run(lambda shard, _: shard.ask("a", led.listener("reader")))
    led.settle()
    assert led.heard == []
    fetch_all(led)
    assert led.heard == ["reader: 1"]


def test_whoever_waits_when_the_leadership_moves_looks_for_the_new_coordinator(led: Play) -> None:
    notes = notes_of(led)
    shard_host = notes.shard_host_of("g")
    shard_host.run(lambda shard, _: shard.put("a", "1", led.listener("writer"), order="never"))
    shard_host.shard.pending.append(led.listener("member"))
    led.partition.follow(view(OTHER, 2, 2, "12", "12"))
    assert led.heard == ["writer: NOT_COORDINATOR", "member: sent away with NOT_COORDINATOR"]
    with pytest.raises(Refused) as refused:
        notes.shard_host_of("g")
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    notes.follow([led.partition], 1)
    assert (notes.shard_host_at(0), led.orders) == (None, [])
    led.sim.run_for(30_000)
    assert notes.shard_host_at(0) is None, "nothing brings back what another node serves"


def test_a_home_that_was_not_told_yet_writes_nothing_under_the_next_epoch(led: Play) -> None:
    notes = notes_of(led)
    shard_host = notes.shard_host_of("g")
    led.partition.follow(view(OTHER, 2, 2, "12", "12"))
    led.partition.follow(view(ME, 3, 3, "12", "12"))
    assert not shard_host.is_active
    assert list(notes.shard_hosts()) == []
    with pytest.raises(Refused) as refused:
        notes.shard_host_of("g")
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    notes.follow([led.partition], 1)
    fresh = notes.shard_host_of("g")
    assert fresh is not shard_host
    assert (shard_host.leader_epoch, fresh.leader_epoch) == (1, 3)


def answering(play: Play, shard_host: ShardHost[Notes], request: m.Message) -> list[Any]:
    """Send a request that the shard answers without writing; return the responses so far."""
    heard: list[Any] = []
    shard_host.shard.step = lambda request, _: shard_host.shard.ask("a", request.token)  # type: ignore[method-assign]
    shard_host.ask(call(), request).then(heard.append, heard.append)
    play.settle()
    return heard


def test_whoever_asks_where_to_begin_is_answered_by_one_who_leads_for_certain(led: Play) -> None:
    """Cut off from the others, this node cannot know whether the group has moved on under another coordinator."""
    shard_host = notes_of(led).shard_host_of("g")
    assert answering(led, shard_host, m.HeartbeatRequest(group_id="g")) == ["nothing"]
    heard = answering(led, shard_host, m.OffsetFetchRequest())
    assert heard == []
    led.partition.follow(view(OTHER, 2, 2, "12", "12"))
    assert [each.code for each in heard] == [ErrorCode.NOT_COORDINATOR]


def test_those_who_have_what_this_node_says_show_that_it_still_leads(led: Play) -> None:
    notes = notes_of(led)
    heard = answering(led, notes.shard_host_of("g"), m.OffsetFetchRequest())
    fetch_all(led)
    assert heard == ["nothing"]
    led.partition.follow(view(ME, 3, 3, "12", "12"))
    notes.follow([led.partition], 1)
    assert notes.shard_host_of("g").is_active, "what was written for it means nothing to who loads it"


def test_without_a_word_from_the_controller_nothing_is_told_on_trust(led: Play) -> None:
    led.has_lease = False
    shard_host = notes_of(led).shard_host_of("g")
    heard = answering(led, shard_host, m.HeartbeatRequest(group_id="g"))
    assert heard == []
    fetch_all(led)
    assert heard == ["nothing"]


def test_a_single_replica_has_nobody_to_ask(play: Play) -> None:
    play.has_lease = False
    end_offset = play.partition.log.end_offset
    assert answering(play, play.shard_host, m.OffsetFetchRequest()) == ["nothing"]
    assert play.partition.log.end_offset == end_offset


def test_an_older_or_repeated_word_of_the_leadership_changes_nothing(led: Play) -> None:
    notes = notes_of(led)
    shard_host = notes.shard_host_of("g")
    led.partition.follow(view(OTHER, 0, 0, "12", "12"))
    led.partition.follow(view(ME, 1, 2, "12", "1"))
    for _ in range(2):
        notes.follow([led.partition], 1)
    assert notes.shard_host_of("g") is shard_host, "a change of the ISR is none of the leadership"


def test_a_home_that_fails_to_unload_serves_no_more_all_the_same(led: Play) -> None:
    """KAFKA-20115: the old shard stayed, and answered for a partition that another node led."""
    notes = notes_of(led)
    shard_host = notes.shard_host_of("g")
    shard_host.run(lambda shard, _: shard.put("a", "1", led.listener("writer")))

    def unload(code: ErrorCode) -> Effects:
        raise RuntimeError("a bug")

    shard_host.shard.unload = unload  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="a bug"):
        led.partition.follow(view(OTHER, 2, 2, "12", "12"))
    notes.follow([led.partition], 1)
    assert led.heard == ["writer: NOT_COORDINATOR"]
    assert (notes.shard_host_at(0), shard_host.is_active) == (None, False)


def test_a_partition_that_is_gone_takes_its_home_with_it(led: Play) -> None:
    """KAFKA-20115 as well: unloading a shard host needs nothing from the partition, which may no longer exist."""
    notes = notes_of(led)
    shard_host = notes.shard_host_of("g")
    shard_host.shard.pending.append(led.listener("member"))
    led.partition.log.close()
    notes.follow([], 1)
    assert led.heard == ["member: sent away with NOT_COORDINATOR"]
    assert notes.shard_host_at(0) is None


def test_too_few_replicas_send_clients_away_and_the_home_comes_back_soon(led: Play) -> None:
    layers = NodeLayers(node_settings({}))
    led.partition.configure(layers.topic_settings({"min.insync.replicas": "2"}))
    notes = notes_of(led)
    led.partition.follow(view(ME, 1, 2, "12", "1"))
    for _ in range(6):
        notes.shard_host_of("g").run(lambda shard, _: shard.put("a", "1", led.listener("writer")))
        led.sim.run_for(1_100)
    assert led.heard[0] == "writer: COORDINATOR_NOT_AVAILABLE"
    led.partition.follow(view(ME, 1, 3, "12", "12"))
    notes.shard_host_of("g").run(lambda shard, _: shard.put("b", "2", led.listener("later")))
    fetch_all(led)
    assert led.heard[-1] == "later: wrote b"
    assert notes.shard_host_of("g").shard.notes == {b"b": b"2"}


def test_keys_are_those_of_the_messages() -> None:
    assert {m.JoinGroupRequest.API_KEY, m.SyncGroupRequest.API_KEY} == WAITS_FOR_MEMBERS
    assert {m.OffsetFetchRequest.API_KEY} == NEEDS_LATEST
