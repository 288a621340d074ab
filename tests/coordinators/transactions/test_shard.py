from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from millpond.base.errors import ErrorCode as E
from millpond.base.ids import TopicPartition
from millpond.coordinators.shard import Effects, Request
from millpond.coordinators.transactions.records import read_value
from millpond.coordinators.transactions.replies import partition_error
from millpond.coordinators.transactions.shard import EXPIRED_AT_ONCE_MAX, FENCED_PARTITIONS_MAX
from millpond.coordinators.transactions.states import ALLOWED, State
from millpond.wire import messages as m
from support.seeds import seeds

# Requests


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_in_every_client_version(coordinator: Any, version: int) -> None:
    coordinator.init()
    assert coordinator.add(1000, 0, 1, 2, version=version) == E.NONE
    assert coordinator.partitions() == [TopicPartition("a", 1), TopicPartition("a", 2)]


def test_errors_of_adding(coordinator: Any) -> None:
    assert coordinator.add(1000, 0, 1) == E.INVALID_PRODUCER_ID_MAPPING
    assert coordinator.add(1000, 0, 1, name="") == E.INVALID_REQUEST
    coordinator.init()
    assert coordinator.add(1000, 1, 1, version=1) == E.INVALID_PRODUCER_EPOCH
    assert coordinator.add(1000, 1, 1, version=2) == E.PRODUCER_FENCED


def test_brokers_verify_and_add_several_transactions_at_once(coordinator: Any) -> None:
    coordinator.init(name="x")
    coordinator.init(name="y")
    coordinator.add(1001, 0, 5, name="y")
    topics = [m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="a", partitions=[5, 6])]
    one = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
    body = m.AddPartitionsToTxnRequest(
        transactions=[
            one(transactional_id="x", producer_id=1000, producer_epoch=0, verify_only=False, topics=topics),
            one(transactional_id="y", producer_id=1001, producer_epoch=0, verify_only=True, topics=topics),
            one(transactional_id="z", producer_id=1, producer_epoch=0, verify_only=True, topics=topics),
            one(transactional_id="x", producer_id=1000, producer_epoch=0, verify_only=False, topics=topics),
        ]
    )
    shown = [
        (each.transactional_id, [part.partition_error_code for part in each.topic_results[0].results_by_partition])
        for each in coordinator.ask(body, 5).results_by_transaction
    ]
    assert shown == [
        ("x", [E.NONE, E.NONE]),
        ("y", [E.NONE, E.TRANSACTION_ABORTABLE]),
        ("z", [E.INVALID_PRODUCER_ID_MAPPING] * 2),
        ("x", [E.CONCURRENT_TRANSACTIONS] * 2),
    ]
    assert (coordinator.state("x"), coordinator.partitions("y")) == ("Ongoing", [TopicPartition("a", 5)])


def test_verifying_changes_nothing(coordinator: Any) -> None:
    coordinator.init()
    before = list(coordinator.log)
    assert coordinator.add_as_broker(1000, 0, 1, verify=True) == E.TRANSACTION_ABORTABLE
    assert coordinator.add_as_broker(1000, 0, 1, verify=True, version=4) == E.INVALID_TXN_STATE
    assert coordinator.log == before


def test_offsets_join_as_the_partition_of_their_group(coordinator: Any) -> None:
    coordinator.init()
    body = m.AddOffsetsToTxnRequest(transactional_id="t", producer_id=1000, producer_epoch=0, group_id="g")
    for version in range(5):
        assert coordinator.ask(body, version).error_code == E.NONE
    assert coordinator.partitions() == [TopicPartition("__consumer_offsets", 7)]
    body.producer_epoch = 3
    assert coordinator.ask(body, 1).error_code == E.INVALID_PRODUCER_EPOCH
    assert coordinator.ask(body, 2).error_code == E.PRODUCER_FENCED


def test_the_produce_path_asks_and_adds(coordinator: Any) -> None:
    coordinator.init()

    def asked(name: str, producer_id: int, epoch: int, topic: str, index: int, *, implicit: bool = False) -> E:
        partition = TopicPartition(topic, index)
        effects = coordinator.take(
            coordinator.shard.permit(
                name, producer_id, epoch, partition, coordinator.now_ms, "later", implicit=implicit
            )
        )
        assert bool(effects.records) is implicit
        ((request_id, response),) = effects.replies
        assert request_id == "later"
        return partition_error(response)

    assert asked("t", 1000, 0, "a", 1) is E.TRANSACTION_ABORTABLE
    assert asked("t", 1000, 0, "a", 1, implicit=True) is E.NONE
    assert asked("t", 1000, 0, "a", 1) is E.NONE
    assert asked("t", 1000, 0, "a", 2) is E.TRANSACTION_ABORTABLE
    assert asked("t", 1000, 1, "a", 1) is E.PRODUCER_FENCED
    assert asked("", 1000, 1, "a", 1) is E.INVALID_REQUEST
    coordinator.end(1000, 0)
    assert asked("t", 1000, 0, "a", 1) is E.CONCURRENT_TRANSACTIONS
    coordinator.markers()
    assert asked("t", 1000, 0, "a", 1) is E.TRANSACTION_ABORTABLE, "a late batch of the last transaction"


def test_transactions_are_described_and_listed(coordinator: Any) -> None:
    coordinator.init()
    coordinator.add(1000, 0, 1)
    described = coordinator.ask(m.DescribeTransactionsRequest(transactional_ids=["t", "u"]), 0).transaction_states
    assert [(each.error_code, each.transaction_state) for each in described] == [
        (E.NONE, "Ongoing"),
        (E.TRANSACTIONAL_ID_NOT_FOUND, ""),
    ]
    listed = coordinator.ask(m.ListTransactionsRequest(state_filters=["Ongoing"], producer_id_filters=[]), 1)
    assert [each.transactional_id for each in listed.transaction_states] == ["t"]


def test_a_message_for_someone_else_is_our_bug(coordinator: Any) -> None:
    with pytest.raises(AssertionError):
        coordinator.shard.step(Request(m.HeartbeatRequest(), 0, "me"), 0)


# Time


def test_a_transaction_that_lasts_too_long_is_aborted_with_a_raised_epoch(coordinator: Any) -> None:
    coordinator.init(timeout=100)
    coordinator.add(1000, 0, 1)
    assert coordinator.shard.next_deadline_ms() == 1_101
    assert coordinator.pass_time(100).records == []
    assert len(coordinator.pass_time(1).records) == 1
    (order,) = coordinator.orders
    assert (order.committed, order.producer_epoch, order.transaction_version) == (False, 1, 0)
    coordinator.markers()
    assert coordinator.state() == "CompleteAbort"
    assert coordinator.pass_time(1_000).records == []


def test_the_deadline_is_that_of_the_transaction_at_hand(coordinator: Any) -> None:
    coordinator.init(timeout=100)
    coordinator.add(1000, 0, 1)
    coordinator.pass_time(60)
    coordinator.end(1000, 0)
    coordinator.markers()
    coordinator.add(1000, 0, 1)
    coordinator.pass_time(60)
    assert coordinator.state() == "Ongoing"
    coordinator.pass_time(41)
    assert coordinator.state() == "PrepareAbort"


def test_a_timeout_is_kept_over_a_move_of_the_coordinator(coordinator: Any) -> None:
    coordinator.init(timeout=100)
    coordinator.add(1000, 0, 1)
    coordinator.reload()
    coordinator.pass_time(101)
    assert coordinator.state() == "PrepareAbort"


def test_a_timeout_without_a_producer_id_at_hand_comes_later(coordinator: Any) -> None:
    from dataclasses import replace

    from millpond.coordinators.transactions.records import record_of

    coordinator.init(timeout=100)
    coordinator.add(1000, 0, 1)
    old = replace(coordinator.shard.transactions["t"], producer_epoch=32766)
    coordinator.take(Effects(records=[record_of(old)]))
    coordinator.has_ids = False
    coordinator.pass_time(101)
    assert coordinator.state() == "Ongoing"
    coordinator.has_ids = True
    coordinator.pass_time(1_000)
    assert coordinator.state() == "PrepareAbort"


def test_many_that_last_too_long_are_aborted_in_several_steps(coordinator: Any) -> None:
    names = [f"t{number:02}" for number in range(12)]
    for number, name in enumerate(names):
        coordinator.init(name=name, timeout=100)
        coordinator.add(1000 + number, 0, *range(FENCED_PARTITIONS_MAX // 4), name=name)
    coordinator.pass_time(101)
    assert len(coordinator.orders) == 4
    assert coordinator.shard.next_deadline_ms() <= coordinator.now_ms
    assert coordinator.end(1011, 0, name="t11") == E.NONE, "it is not too late before its turn comes"
    coordinator.pass_time(0)
    assert sorted({coordinator.state(name) for name in names}) == ["Ongoing", "PrepareAbort", "PrepareCommit"]
    coordinator.reload()
    assert len(coordinator.orders) == 9
    coordinator.pass_time(101)
    assert [coordinator.state(name) for name in names] == ["PrepareAbort"] * 11 + ["PrepareCommit"]
    coordinator.markers()
    assert [coordinator.state(name) for name in names] == ["CompleteAbort"] * 11 + ["CompleteCommit"]


def test_silent_ids_expire_and_open_transactions_do_not(coordinator: Any) -> None:
    coordinator.reload()
    coordinator.init(name="silent")
    coordinator.init(name="open", timeout=60_000)
    coordinator.add(1001, 0, 1, name="open")
    coordinator.now_ms += 1_000_000 - 5
    coordinator.init(name="young")
    coordinator.now_ms += 5
    coordinator.shard._timers = type(coordinator.shard._timers)()  # only expiry is looked at
    effects = coordinator.pass_time(0)
    assert [record.value for record in effects.records] == [None]
    assert sorted(coordinator.shard.transactions) == ["open", "young"]
    assert coordinator.add(1000, 0, 1, name="silent") == E.INVALID_PRODUCER_ID_MAPPING
    assert coordinator.init(name="silent") == (E.NONE, 1003, 0), "a new producer id: the old epochs are forgotten"


def test_many_expire_in_several_steps(make_coordinator: Callable[[], Any]) -> None:
    coordinator = make_coordinator()
    coordinator.reload()
    from millpond.coordinators.transactions.records import record_of
    from millpond.coordinators.transactions.transaction import Transaction

    count = EXPIRED_AT_ONCE_MAX + 5
    coordinator.take(Effects(records=[record_of(Transaction(f"t{n}", n, 0, 100, 0)) for n in range(count)]))
    assert len(coordinator.pass_time(2_000_000).records) == EXPIRED_AT_ONCE_MAX
    assert coordinator.shard.next_deadline_ms() == coordinator.now_ms
    assert len(coordinator.pass_time(0).records) == 5
    assert coordinator.shard.next_deadline_ms() == coordinator.now_ms + 10_000


# Markers, and moves of the coordinator


def test_a_new_coordinator_writes_the_markers_again_under_its_own_epoch(coordinator: Any) -> None:
    coordinator.init()
    coordinator.add(1000, 0, 1)
    coordinator.end(1000, 0)
    (before,) = coordinator.orders
    coordinator.reload()
    (after,) = coordinator.orders
    assert (before.coordinator_epoch, after.coordinator_epoch) == (0, 1)
    assert (after.committed, after.partitions) == (before.committed, before.partitions)
    coordinator.markers()
    assert coordinator.state() == "CompleteCommit"


def test_markers_of_another_transaction_complete_nothing(coordinator: Any) -> None:
    assert coordinator.shard.markers_written("who", 1, 0, 5) == Effects()
    coordinator.init()
    coordinator.add(1000, 0, 1)
    assert coordinator.shard.markers_written("t", 1000, 0, 5) == Effects()
    coordinator.end(1000, 0)
    assert coordinator.shard.markers_written("t", 1000, 1, 5) == Effects()
    assert coordinator.shard.markers_written("t", 999, 0, 5) == Effects()
    coordinator.markers()
    assert coordinator.shard.markers_written("t", 1000, 0, 5) == Effects(), "twice"


def test_a_load_between_the_two_records_of_an_empty_abort_completes_it(coordinator: Any) -> None:
    coordinator.init()
    coordinator.end(1000, 0, committed=False, version=5)
    del coordinator.log[-1]
    coordinator.reload()
    assert coordinator.state() == "CompleteAbort"


def test_a_key_of_a_later_kind_is_skipped(coordinator: Any) -> None:
    coordinator.shard.replay(0, b"\0\x09later", b"anything")
    assert coordinator.shard.transactions == {}


# A world of clients, zombies and lost messages


@dataclass
class Client:
    """One producer instance; it may be paused and come back as a zombie."""

    v2: bool
    pid: int = -1
    epoch: int = -1
    dead: bool = False
    """Has heard that it is fenced."""
    busy: bool = False
    opened: int | None = None
    """The number of its transaction."""
    wanted: bool | None = None


@dataclass
class Delivery:
    client: Client
    body: m.Message
    version: int
    transaction: int | None = None


@dataclass
class Simulation:
    """Messages are delayed, doubled, reordered; the coordinator crashes between append and reply."""

    coordinator: Any
    random: random.Random
    clients: list[Client] = field(default_factory=list)
    letters: list[Delivery] = field(default_factory=list)
    open_number: int | None = None
    ends: int = 0
    written: dict[tuple[int, TopicPartition], set[bool]] = field(default_factory=dict)
    numbers: int = 0
    last: tuple[int, int] = (-1, -1)
    answers: dict[int, int] = field(default_factory=dict)
    request_ids: int = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            happening = self.random.choices(
                [self.new_client, self.act, self.deliver, self.markers, self.crash, self.time], [1, 3, 4, 2, 1, 1]
            )[0]
            happening()
            self.check()
        for _ in range(50):
            self.markers()
        # Every transaction ends: those that were left open by their timeout.
        self.coordinator.now_ms += 10_000
        self.take(self.coordinator.shard.on_timer(self.coordinator.now_ms), None)
        self.markers(everything=True)
        self.check()
        assert self.coordinator.state() not in ("Ongoing", "PrepareCommit", "PrepareAbort")
        assert all(count == 1 for count in self.answers.values())

    def new_client(self) -> None:
        if self.random.random() < 0.15 or not self.clients:
            self.clients.append(Client(v2=self.random.random() < 0.7))

    def act(self) -> None:
        client = self.random.choice(self.clients) if self.clients else None
        if client is None or client.dead or client.busy:
            return
        client.busy = True
        if client.pid < 0:
            body: m.Message = m.InitProducerIdRequest(
                transactional_id="t", transaction_timeout_ms=5_000, producer_id=-1, producer_epoch=-1
            )
            self.letters.append(Delivery(client, body, 4))
        elif client.opened is None or self.random.random() < 0.4:
            if client.opened is None:
                client.opened = self.numbers
                self.numbers += 1
                client.wanted = None
            self.letters.append(self.adding(client, self.random.randrange(3)))
        else:
            if client.wanted is None:
                client.wanted = self.random.random() < 0.6
            body = m.EndTxnRequest(
                transactional_id="t", producer_id=client.pid, producer_epoch=client.epoch, committed=client.wanted
            )
            self.letters.append(Delivery(client, body, 5 if client.v2 else 3, client.opened))

    def adding(self, client: Client, partition: int) -> Delivery:
        topics = [m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="a", partitions=[partition])]
        if client.v2:
            one = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                transactional_id="t",
                producer_id=client.pid,
                producer_epoch=client.epoch,
                verify_only=False,
                topics=topics,
            )
            return Delivery(client, m.AddPartitionsToTxnRequest(transactions=[one]), 5, client.opened)
        body = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="t",
            v3_and_below_producer_id=client.pid,
            v3_and_below_producer_epoch=client.epoch,
            v3_and_below_topics=topics,
        )
        return Delivery(client, body, 3, client.opened)

    def deliver(self) -> None:
        if not self.letters:
            return
        letter = self.letters[self.random.randrange(len(self.letters))]
        # A letter of v1 that comes late cannot be told from a timely one: there the network keeps the order.
        if self.random.random() < 0.8 or not letter.client.v2:
            self.letters.remove(letter)
        else:
            letter = Delivery(letter.client, letter.body, letter.version, letter.transaction)
        request_id = self.request_ids = self.request_ids + 1
        self.answers[request_id] = 0
        before = self.state()
        effects = self.coordinator.shard.step(
            Request(letter.body, letter.version, request_id), self.coordinator.now_ms
        )
        if effects.records and letter.transaction is not None:
            if before is State.ONGOING:
                assert letter.transaction == self.open_number, "a late letter touches a later transaction"
            self.open_number = letter.transaction
            if isinstance(letter.body, m.EndTxnRequest):
                self.ends += 1
        crashed = self.random.random() < 0.05
        self.take(effects, None if crashed else letter)
        if crashed:
            self.answers[request_id] += 1  # the runtime answers with an error; the client asks again
            letter.client.busy = False
            self.reload()

    def state(self) -> State | None:
        current = self.coordinator.shard.transactions.get("t")
        return current.state if current is not None else None

    def take(self, effects: Effects, letter: Delivery | None) -> None:
        for record in effects.records:
            self.watch(record.value)
        self.coordinator.take(effects)
        for request_id, response in effects.replies:
            if letter is not None:
                self.answers[request_id] += 1
                self.hear(letter, response)

    def watch(self, value: bytes | None) -> None:
        """What the log of the coordinator says may only go forward."""
        assert value is not None
        after = read_value("t", value)
        before = self.coordinator.shard.transactions.get("t")
        now = after.producer_id, after.producer_epoch
        assert now >= self.last, "epochs never fall"
        self.last = now
        previous = self.coordinator.replayed().transactions.get("t") if before is None else before
        if previous is not None and not self.in_step(previous, after):
            raise AssertionError(f"{previous} to {after}")

    def in_step(self, before: Any, after: Any) -> bool:
        if after.state in ALLOWED[before.state] or after.state is State.COMPLETE_ABORT:
            return True
        return after.state is State.PREPARE_ABORT and before.state is State.ONGOING

    def hear(self, letter: Delivery, response: Any) -> None:
        client = letter.client
        client.busy = False
        if isinstance(response, m.AddPartitionsToTxnResponse):
            topics = response.results_by_topic_v3_and_below
            if response.results_by_transaction:
                topics = response.results_by_transaction[0].topic_results
            error = topics[0].results_by_partition[0].partition_error_code
        else:
            error = response.error_code
        if error in (E.PRODUCER_FENCED, E.INVALID_PRODUCER_ID_MAPPING, E.INVALID_TXN_STATE):
            client.dead = client.dead or letter.transaction == client.opened
        elif error == E.NONE and isinstance(response, m.InitProducerIdResponse) and client.pid < 0:
            client.pid, client.epoch = response.producer_id, response.producer_epoch
        elif error == E.NONE and isinstance(response, m.EndTxnResponse) and letter.transaction == client.opened:
            client.opened = None
            if client.v2:
                client.pid, client.epoch = response.producer_id, response.producer_epoch

    def markers(self, everything: bool = False) -> None:
        """Markers arrive in any order, some of them twice; all partitions must hear the same."""
        while self.coordinator.orders:
            order = self.random.choice(self.coordinator.orders)
            for place in order.partitions:
                heard = self.written.setdefault(((order.producer_id << 16) + order.producer_epoch, place), set())
                if order.transaction_version == 2:
                    heard.add(order.committed)
                    assert len(heard) == 1, "one outcome per epoch and partition"
            if self.random.random() < 0.3 and not everything:
                continue
            self.coordinator.orders.remove(order)
            self.take(
                self.coordinator.shard.markers_written(
                    order.transactional_id, order.producer_id, order.producer_epoch, self.coordinator.now_ms
                ),
                None,
            )
            if not everything:
                return

    def crash(self) -> None:
        if self.random.random() < 0.2:
            self.reload()

    def reload(self) -> None:
        self.coordinator.reload()

    def time(self) -> None:
        self.coordinator.now_ms += self.random.choice([1, 50, 2_000])
        self.take(self.coordinator.shard.on_timer(self.coordinator.now_ms), None)

    def check(self) -> None:
        current = self.coordinator.shard.transactions.get("t")
        if current is None:
            return
        # Two living clients never share an id and epoch.
        living = [(c.pid, c.epoch) for c in self.clients if c.pid >= 0 and not c.dead]
        assert len(living) == len(set(living)), living
        assert (current.state in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)) == bool(
            current.partitions
        )


def test_a_world_of_zombies_and_lost_messages(make_coordinator: Callable[[], Any]) -> None:
    ends = 0
    for seed in seeds(range(60)):
        simulation = Simulation(make_coordinator(), random.Random(seed))
        try:
            simulation.run(250)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        ends += simulation.ends
    assert ends > 200, "most worlds end several transactions"
