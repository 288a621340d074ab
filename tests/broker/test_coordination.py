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

    def set_time(self, now_ms: int, wall_ms: int) -> None: ...

    def step(self, request: Request, now_ms: int) -> Effects:
        raise AssertionError("not used here")

    def on_timer(self, now_ms: int) -> Effects:
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


class ShardNode:
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
        self.partition.apply_metadata(view(ME, 0, 0))
        self.shard_host = self.load(self.new_shard_host())

    def new_shard_host(self, partition: Partition | None = None) -> ShardHost[Notes]:
        return ShardHost(
            Notes, partition or self.partition, self.world.clock, self.orders.append, lambda: self.has_lease
        )

    def another_partition(self, index: int) -> Partition:
        name = TopicPartition("__notes", index)
        log = self.store.create(name, UUID(int=7))
        partition = Partition(name, UUID(int=7), log, self.context)
        partition.apply_metadata(view(ME, 0, 0))
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
def shards() -> ShardNode:
    return ShardNode()


def test_the_reply_waits_for_the_disk_and_the_state_does_not(shards: ShardNode) -> None:
    shards.shard_host.run(lambda shard, _: shard.put("a", "1", shards.listener("one"), order="ring the bell"))
    assert shards.shard_host.shard.notes == {b"a": b"1"}
    assert (shards.heard, shards.orders) == ([], [])
    shards.settle()
    assert (shards.heard, shards.orders) == (["one: wrote a"], ["ring the bell"])


def test_a_question_waits_for_what_its_answer_stands_on(shards: ShardNode) -> None:
    shards.shard_host.run(lambda shard, _: shard.put("a", "1", shards.listener("writer")))
    shards.shard_host.run(lambda shard, _: shard.ask("a", shards.listener("reader")))
    assert shards.heard == []
    shards.settle()
    assert shards.heard == ["writer: wrote a", "reader: 1"]
    shards.shard_host.run(lambda shard, _: shard.ask("b", shards.listener("late")))
    assert shards.heard[-1] == "late: nothing"


def test_a_new_home_finds_what_the_last_one_wrote(shards: ShardNode) -> None:
    for name, text in [("a", "1"), ("b", "2"), ("a", "3")]:
        shards.shard_host.run(lambda shard, _, name=name, text=text: shard.put(name, text, shards.listener(name)))  # type: ignore[misc]
    shard_host = shards.load(shards.new_shard_host())
    assert shard_host.shard.notes == {b"a": b"3", b"b": b"2"}
    assert shard_host.shard.loaded


def test_a_failed_sync_fails_everybody_and_closes_the_home(shards: ShardNode) -> None:
    shards.sim.hosts["host"].disk.fail_syncs()
    shards.shard_host.run(lambda shard, _: shard.put("a", "1", shards.listener("one"), order="never"))
    shards.shard_host.run(lambda shard, _: shard.put("b", "2", shards.listener("two")))
    shards.settle()
    assert shards.heard == ["one: COORDINATOR_NOT_AVAILABLE", "two: COORDINATOR_NOT_AVAILABLE"]
    assert shards.orders == []
    assert not shards.shard_host.is_active


def test_a_write_that_is_refused_fails_its_own_reply_too(shards: ShardNode) -> None:
    shards.partition.log.fail(OSError("gone"))
    shards.shard_host.shard.pending.append(shards.listener("pending"))
    shards.shard_host.run(lambda shard, _: shard.put("a", "1", shards.listener("one")))
    assert shards.heard == ["one: COORDINATOR_NOT_AVAILABLE", "pending: sent away with COORDINATOR_NOT_AVAILABLE"]
    assert shards.shard_host.shard.notes == {}
    assert not shards.shard_host.is_active


def test_a_producer_without_a_transaction_is_turned_away_and_the_home_stays_open(shards: ShardNode) -> None:
    writing = Writing(Producer(5, 0), None)
    shards.shard_host.run(lambda shard, _: shard.put("a", "1", shards.listener("late")), writing)
    assert shards.heard == ["late: INVALID_TXN_STATE"]
    assert shards.shard_host.is_active
    shards.shard_host.run(lambda shard, _: shard.put("b", "2", shards.listener("timely")))
    shards.settle()
    assert shards.heard[1:] == ["timely: wrote b"]


def test_the_clock_wakes_the_shard_and_a_leap_of_the_wall_clock_does_not(shards: ShardNode) -> None:
    shard = shards.shard_host.shard

    def wait_ten_seconds(notes: Notes, now_ms: int) -> Effects:
        notes.due_ms = now_ms + 10_000
        return Effects()

    shards.shard_host.run(wait_ten_seconds)
    shards.sim.jump_wall("host", 3_600_000)
    shards.sim.run_for(9_000)
    assert shard.woken_ms == []
    shards.sim.run_for(2_000)
    assert len(shard.woken_ms) == 1


def test_a_stopped_home_is_not_woken(shards: ShardNode) -> None:
    def wait_one_second(notes: Notes, now_ms: int) -> Effects:
        notes.due_ms = now_ms + 1_000
        return Effects()

    shards.shard_host.run(wait_one_second)
    shards.shard_host.stop()
    shards.sim.run_for(5_000)
    assert shards.shard_host.shard.woken_ms == []


class TestAStallOfTheLoop:
    """Due timers run before the loop reads requests that arrived during the stall."""

    @pytest.fixture
    def stalled(self, shards: ShardNode) -> ShardNode:
        shards.shard_host.run(wait(1_000))
        self.stall(shards)
        return shards

    def stall(self, shards: ShardNode) -> None:
        shards.sim.pause("host")
        shards.sim.run_for(5_000)
        shards.sim.resume("host")
        shards.sim.run_for(1)

    def test_a_sign_of_life_that_waited_to_be_read_is_in_time(self, stalled: ShardNode) -> None:
        assert stalled.shard_host.shard.woken_ms == []
        stalled.shard_host.run(wait(1_000))
        stalled.sim.run_for(900)
        assert stalled.shard_host.shard.woken_ms == []
        stalled.sim.run_for(200)
        assert len(stalled.shard_host.shard.woken_ms) == 1

    def test_without_one_it_is_only_a_little_later(self, stalled: ShardNode) -> None:
        stalled.sim.run_for(READ_FIRST_MS)
        assert len(stalled.shard_host.shard.woken_ms) == 1

    def test_it_is_put_off_once(self, stalled: ShardNode) -> None:
        self.stall(stalled)
        assert len(stalled.shard_host.shard.woken_ms) == 1

    def test_the_next_one_is_put_off_again(self, stalled: ShardNode) -> None:
        stalled.shard_host.run(wait(1_000))
        self.stall(stalled)
        assert stalled.shard_host.shard.woken_ms == []
        stalled.sim.run_for(READ_FIRST_MS)
        assert len(stalled.shard_host.shard.woken_ms) == 1

    def test_who_is_late_by_himself_is_not_put_off(self, shards: ShardNode) -> None:
        shards.shard_host.run(wait(-5_000))
        shards.sim.run_for(1)
        assert len(shards.shard_host.shard.woken_ms) == 1


def wait(duration_ms: int) -> Callable[[Notes, int], Effects]:
    """A decision that schedules a wakeup after this delay."""

    def decide(notes: Notes, now_ms: int) -> Effects:
        notes.due_ms = now_ms + duration_ms
        return Effects()

    return decide


def test_homes_that_are_due_in_the_same_moment_are_woken_in_several_turns_of_the_loop(
    shards: ShardNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = [shards.partition, *(shards.another_partition(index) for index in range(1, 5))]
    notes = Coordination("__notes", shards.new_shard_host, shards.world.clock, shards.journal, shards.leads)
    notes.follow(partitions, 5)
    shard_hosts = list(notes.shard_hosts())
    timers: list[Callable[[], None]] = []
    ticks = count(0, 2 * ROUND_US)
    monkeypatch.setattr(shards.world.clock, "call_later", lambda _, fire: timers.append(fire) or SimTimer(0, fire))
    monkeypatch.setattr(shards.world.clock, "monotonic_us", lambda: next(ticks))
    for shard_host in shard_hosts:
        shard_host.run(wait(0))
    woken = [0]
    for fire in timers:
        # All in one turn, as the loop runs them.
        fire()
    for shard_host in shard_hosts:
        shard_host.run(lambda shard, _: shard.ask("a", shards.listener("a")))
    woken.append(sum(len(shard_host.shard.woken_ms) for shard_host in shard_hosts))
    while shards.sim.clock.step():
        woken.append(sum(len(shard_host.shard.woken_ms) for shard_host in shard_hosts))
    assert woken[-1] == len(shard_hosts) == len(timers)
    assert max(after - before for before, after in pairwise(woken)) == 1


def coordination(shards: ShardNode) -> Coordination[Notes]:
    return Coordination(
        "__notes",
        lambda _partition: shards.shard_host,
        shards.world.clock,
        shards.journal,
        shards.leads,
    )


def test_names_find_their_home_once_the_topic_is_there(shards: ShardNode) -> None:
    notes = coordination(shards)
    with pytest.raises(Refused) as refused:
        notes.shard_host_of("a")
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    notes.follow([shards.partition], 1)
    assert notes.is_open
    assert notes.shard_host_of("a") is shards.shard_host
    assert list(notes.shard_hosts()) == [shards.shard_host]


def test_a_closed_home_is_not_at_home(shards: ShardNode) -> None:
    notes = coordination(shards)
    notes.follow([shards.partition], 1)
    notes.stop()
    with pytest.raises(Refused):
        notes.shard_host_of("a")
    assert list(notes.shard_hosts()) == []


def test_an_offline_partition_does_not_change_where_others_belong(shards: ShardNode) -> None:
    notes = coordination(shards)
    notes.follow([shards.partition], 50)
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


def test_a_question_reaches_the_shard_with_who_asks(shards: ShardNode) -> None:
    seen: list[Request] = []

    def step(request: Request, now_ms: int) -> Effects:
        seen.append(request)
        return shards.shard_host.shard.ask("a", request.reply_to)

    shards.shard_host.shard.step = step  # type: ignore[method-assign]
    shards.shard_host.ask(call(), m.HeartbeatRequest(group_id="g")).then(shards.heard.append)
    (request,) = seen
    assert (request.version, request.client_id, request.client_host) == (3, "client", "10.0.0.7")
    assert shards.heard == ["nothing"]


def test_without_a_home_a_question_is_refused(shards: ShardNode) -> None:
    nowhere: Coordination[Notes] = Coordination(
        "__notes", lambda _: shards.shard_host, shards.world.clock, shards.journal, shards.leads
    )
    refusals: list[Exception] = []
    nowhere.ask(call(), "g", m.HeartbeatRequest(group_id="g")).then(pytest.fail, refusals.append)
    assert [refused.code for refused in refusals] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]  # type: ignore[attr-defined]


# Resigning, and loading again.


def write(shards: ShardNode, notes: Coordination[Notes], name: str) -> None:
    notes.shard_host_of("g").run(lambda shard, _: shard.put(name, "x" * 1000, shards.listener(name)))


def test_a_moment_of_a_full_disk_is_over_when_there_is_room_again(shards: ShardNode) -> None:
    notes = Coordination(
        "__notes", lambda _: shards.new_shard_host(), shards.world.clock, shards.journal, shards.leads
    )
    notes.follow([shards.partition], 1)
    write(shards, notes, "before")
    shards.settle()
    shards.sim.hosts["host"].disk.fill()
    write(shards, notes, "lost")
    assert shards.heard[-2:] == ["lost: COORDINATOR_NOT_AVAILABLE", "journal: coordinator reloading from its log"]
    with pytest.raises(Refused) as refused:
        notes.shard_host_of("g")
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    shards.sim.run_for(5_000)
    shards.sim.hosts["host"].disk.make_room()
    shards.sim.run_for(10_000)
    assert notes.shard_host_of("g").shard.notes.keys() == {b"before"}, "what was not written is forgotten"
    write(shards, notes, "after")
    shards.settle()
    assert shards.heard[-1] == "after: wrote after"


def test_a_coordinator_does_not_live_by_what_has_rotted(shards: ShardNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged records used to be replayed unnoticed, or ended the node when they could not be read."""
    shards.shard_host.run(lambda shard, _: shard.put("a", "1", shards.listener("one")))
    shards.settle()
    log, sound = shards.partition.log, shards.partition.log.read_batches
    monkeypatch.setattr(log, "read_batches", lambda *given: sound(*given)[:-1] + b"?" if sound(*given) else b"")
    notes = Coordination(
        "__notes", lambda _: shards.new_shard_host(), shards.world.clock, shards.journal, shards.leads
    )
    notes.follow([shards.partition], 1)
    assert shards.heard[-1] == "journal: coordinator reloading from its log"
    with pytest.raises(Refused) as refused:
        notes.shard_host_of("g")
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    monkeypatch.undo()
    shards.sim.run_for(10_000)
    assert notes.shard_host_of("g").shard.notes == {b"a": b"1"}


def test_a_large_log_is_loaded_in_slices_and_serves_no_request_meanwhile(shards: ShardNode) -> None:
    for number in range(1000):
        shards.shard_host.run(lambda shard, _, number=number: shard.put(f"{number}", "x" * 1000, Later()))  # type: ignore[misc]
    shards.settle()
    notes = Coordination(
        "__notes", lambda _: shards.new_shard_host(), shards.world.clock, shards.journal, shards.leads
    )
    notes.follow([shards.partition], 1)
    seen = []
    while notes.is_loading:
        shard_host = notes.shard_host_at(0)
        assert shard_host is not None
        seen.append(len(shard_host.shard.notes))
        with pytest.raises(Refused) as refused:
            notes.shard_host_of("g")
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        shards.sim.clock.step()
    assert len(seen) > 5
    assert max(after - before for before, after in pairwise(seen)) < 100
    assert len(notes.shard_host_of("g").shard.notes) == 1000


def test_what_is_to_be_told_everywhere_is_told_once_a_home_is_loaded(shards: ShardNode) -> None:
    notes = Coordination(
        "__notes", lambda _: shards.new_shard_host(), shards.world.clock, shards.journal, shards.leads
    )
    notes.follow([shards.partition], 1)
    shard_host = notes.shard_host_of("g")
    shard_host.resign(Refused(ErrorCode.KAFKA_STORAGE_ERROR, "no room"))
    notes.run_everywhere(lambda shard, _: shard.put("news", "1", shards.listener("news")))
    assert "news: wrote news" not in shards.heard
    shards.sim.run_for(1_000)
    assert shards.heard[-1] == "news: wrote news"


def test_a_request_without_an_answer_is_told_to_people(shards: ShardNode) -> None:
    notes = Coordination(
        "__notes", lambda _: shards.new_shard_host(), shards.world.clock, shards.journal, shards.leads
    )
    notes.follow([shards.partition], 1)
    shard_host = notes.shard_host_of("g")
    shard_host.shard.step = lambda *_: Effects()  # type: ignore[method-assign]
    first = shard_host.ask(call(), m.HeartbeatRequest(group_id="g"))
    shards.sim.run_for(5_000)
    shard_host.ask(call(), m.HeartbeatRequest(group_id="g"))
    shard_host.ask(call(), m.JoinGroupRequest(group_id="g"))
    first.finish("late")
    shards.sim.run_for(9_000)
    assert shards.heard == []
    shards.sim.run_for(2_000)
    assert shards.heard == ["journal: coordinator request overdue"]


# Following the leadership of the partition.

OTHER = 2


@pytest.fixture
def led(shards: ShardNode) -> ShardNode:
    """The partition has a second replica, whose fetches commit what this node writes."""
    shards.partition.apply_metadata(view(ME, 1, 1, "12", "12"))
    return shards


def notes_of(shards: ShardNode) -> Coordination[Notes]:
    notes = Coordination(
        "__notes", lambda _: shards.new_shard_host(), shards.world.clock, shards.journal, shards.leads
    )
    notes.follow([shards.partition], 1)
    return notes


def fetch_all(shards: ShardNode) -> None:
    """The other replica catches up completely."""
    assert shards.partition.leader_role is not None
    shards.partition.leader_role.on_fetch(OTHER, 1, shards.partition.log.end_offset, 0)


def test_replies_and_orders_leave_once_every_replica_in_sync_has_what_they_stand_on(led: ShardNode) -> None:
    shard_host = notes_of(led).shard_host_of("g")
    shard_host.run(lambda shard, _: shard.put("a", "1", led.listener("one"), order="ring the bell"))
    shard_host.run(lambda shard, _: shard.ask("a", led.listener("reader")))
    led.settle()
    assert (led.heard, led.orders) == ([], [])
    fetch_all(led)
    assert (led.heard, led.orders) == (["one: wrote a", "reader: 1"], ["ring the bell"])


def test_what_a_new_leader_read_above_the_committed_offset_is_told_once_it_is_committed(led: ShardNode) -> None:
    notes_of(led).shard_host_of("g").run(lambda shard, _: shard.put("a", "1", Later()))
    led.partition.apply_metadata(view(ME, 2, 2, "12", "12"))
    shard_host = notes_of(led).shard_host_of("g")
    assert shard_host.shard.notes == {b"a": b"1"}, "it decides on all that is in its log"
    shard_host.run(lambda shard, _: shard.ask("a", led.listener("reader")))
    led.settle()
    assert led.heard == []
    fetch_all(led)
    assert led.heard == ["reader: 1"]


def test_requests_pending_when_leadership_moves_get_not_coordinator(led: ShardNode) -> None:
    notes = notes_of(led)
    shard_host = notes.shard_host_of("g")
    shard_host.run(lambda shard, _: shard.put("a", "1", led.listener("writer"), order="never"))
    shard_host.shard.pending.append(led.listener("member"))
    led.partition.apply_metadata(view(OTHER, 2, 2, "12", "12"))
    assert led.heard == ["writer: NOT_COORDINATOR", "member: sent away with NOT_COORDINATOR"]
    with pytest.raises(Refused) as refused:
        notes.shard_host_of("g")
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    notes.follow([led.partition], 1)
    assert (notes.shard_host_at(0), led.orders) == (None, [])
    led.sim.run_for(30_000)
    assert notes.shard_host_at(0) is None, "nothing brings back what another node serves"


def test_a_home_that_was_not_told_yet_writes_nothing_under_the_next_epoch(led: ShardNode) -> None:
    notes = notes_of(led)
    shard_host = notes.shard_host_of("g")
    led.partition.apply_metadata(view(OTHER, 2, 2, "12", "12"))
    led.partition.apply_metadata(view(ME, 3, 3, "12", "12"))
    assert not shard_host.is_active
    assert list(notes.shard_hosts()) == []
    with pytest.raises(Refused) as refused:
        notes.shard_host_of("g")
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    notes.follow([led.partition], 1)
    fresh = notes.shard_host_of("g")
    assert fresh is not shard_host
    assert (shard_host.leader_epoch, fresh.leader_epoch) == (1, 3)


def answering(shards: ShardNode, shard_host: ShardHost[Notes], request: m.Message) -> list[Any]:
    """Send a request that the shard answers without writing; return the responses so far."""
    replies: list[Any] = []
    shard_host.shard.step = lambda request, _: shard_host.shard.ask("a", request.reply_to)  # type: ignore[method-assign]
    shard_host.ask(call(), request).then(replies.append, replies.append)
    shards.settle()
    return replies


def test_offset_fetches_are_answered_only_by_a_confirmed_leader(led: ShardNode) -> None:
    """Cut off from the others, this node cannot know whether the group has moved on under another coordinator."""
    shard_host = notes_of(led).shard_host_of("g")
    assert answering(led, shard_host, m.HeartbeatRequest(group_id="g")) == ["nothing"]
    replies = answering(led, shard_host, m.OffsetFetchRequest())
    assert replies == []
    led.partition.apply_metadata(view(OTHER, 2, 2, "12", "12"))
    assert [each.code for each in replies] == [ErrorCode.NOT_COORDINATOR]


def test_those_who_have_what_this_node_says_show_that_it_still_leads(led: ShardNode) -> None:
    notes = notes_of(led)
    replies = answering(led, notes.shard_host_of("g"), m.OffsetFetchRequest())
    fetch_all(led)
    assert replies == ["nothing"]
    led.partition.apply_metadata(view(ME, 3, 3, "12", "12"))
    notes.follow([led.partition], 1)
    assert notes.shard_host_of("g").is_active, "what was written for it means nothing to who loads it"


def test_without_a_word_from_the_controller_nothing_is_told_on_trust(led: ShardNode) -> None:
    led.has_lease = False
    shard_host = notes_of(led).shard_host_of("g")
    replies = answering(led, shard_host, m.HeartbeatRequest(group_id="g"))
    assert replies == []
    fetch_all(led)
    assert replies == ["nothing"]


def test_a_single_replica_needs_no_confirmation(shards: ShardNode) -> None:
    shards.has_lease = False
    end_offset = shards.partition.log.end_offset
    assert answering(shards, shards.shard_host, m.OffsetFetchRequest()) == ["nothing"]
    assert shards.partition.log.end_offset == end_offset


def test_an_older_or_repeated_word_of_the_leadership_changes_nothing(led: ShardNode) -> None:
    notes = notes_of(led)
    shard_host = notes.shard_host_of("g")
    led.partition.apply_metadata(view(OTHER, 0, 0, "12", "12"))
    led.partition.apply_metadata(view(ME, 1, 2, "12", "1"))
    for _ in range(2):
        notes.follow([led.partition], 1)
    assert notes.shard_host_of("g") is shard_host, "a change of the ISR is none of the leadership"


def test_a_home_that_fails_to_unload_serves_no_more_all_the_same(led: ShardNode) -> None:
    """KAFKA-20115: the old shard stayed, and answered for a partition that another node led."""
    notes = notes_of(led)
    shard_host = notes.shard_host_of("g")
    shard_host.run(lambda shard, _: shard.put("a", "1", led.listener("writer")))

    def unload(code: ErrorCode) -> Effects:
        raise RuntimeError("a bug")

    shard_host.shard.unload = unload  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="a bug"):
        led.partition.apply_metadata(view(OTHER, 2, 2, "12", "12"))
    notes.follow([led.partition], 1)
    assert led.heard == ["writer: NOT_COORDINATOR"]
    assert (notes.shard_host_at(0), shard_host.is_active) == (None, False)


def test_a_partition_that_is_gone_takes_its_home_with_it(led: ShardNode) -> None:
    """KAFKA-20115 as well: unloading a shard host needs nothing from the partition, which may no longer exist."""
    notes = notes_of(led)
    shard_host = notes.shard_host_of("g")
    shard_host.shard.pending.append(led.listener("member"))
    led.partition.log.close()
    notes.follow([], 1)
    assert led.heard == ["member: sent away with NOT_COORDINATOR"]
    assert notes.shard_host_at(0) is None


def test_too_few_replicas_send_clients_away_and_the_home_comes_back_soon(led: ShardNode) -> None:
    layers = NodeLayers(node_settings({}))
    led.partition.configure(layers.topic_settings({"min.insync.replicas": "2"}))
    notes = notes_of(led)
    led.partition.apply_metadata(view(ME, 1, 2, "12", "1"))
    for _ in range(6):
        notes.shard_host_of("g").run(lambda shard, _: shard.put("a", "1", led.listener("writer")))
        led.sim.run_for(1_100)
    assert led.heard[0] == "writer: COORDINATOR_NOT_AVAILABLE"
    led.partition.apply_metadata(view(ME, 1, 3, "12", "12"))
    notes.shard_host_of("g").run(lambda shard, _: shard.put("b", "2", led.listener("later")))
    fetch_all(led)
    assert led.heard[-1] == "later: wrote b"
    assert notes.shard_host_of("g").shard.notes == {b"b": b"2"}


def test_keys_are_those_of_the_messages() -> None:
    assert {m.JoinGroupRequest.API_KEY, m.SyncGroupRequest.API_KEY} == WAITS_FOR_MEMBERS
    assert {m.OffsetFetchRequest.API_KEY} == NEEDS_LATEST


def test_a_stopped_coordinator_opens_no_shards(shards: ShardNode) -> None:
    """Its topic may be created just before the node drains, and found after it."""
    notes = coordination(shards)
    notes.stop()
    notes.follow([shards.partition], 1)
    assert notes.shard_host_at(0) is None
    assert not notes.is_loading
