"""Transactions in process: the outcome is the same in every partition, whatever happens on the way."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, failed
from millpond.broker.coordination.markers import TRY_AGAIN_MS
from millpond.broker.coordinator_calls import transaction_calls
from millpond.broker.replication.partitions import Partition
from millpond.coordinators.shard import Request
from millpond.wire import messages as m


class TransactionalProducer:
    """A broker with a topic, and one transactional producer that uses the older protocol."""

    def __init__(self, server: Any, make_batch: Any) -> None:
        self.server = server
        self.pond = server.create("pond", 2)
        self.make_batch = make_batch
        self.caller = server.connect()
        self.id, self.epoch = -1, -1

    def begin(self) -> None:
        reply = self.ask(m.InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=10_000), 4)
        assert reply.error_code == ErrorCode.NONE
        self.id, self.epoch = reply.producer_id, reply.producer_epoch

    def ask(self, request: m.Message, version: int) -> Any:
        return self.caller.ask(request, version, within_ms=5000)

    def add(self, *partitions: int) -> list[int]:
        topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="pond", partitions=list(partitions))
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[topic],
        )
        (result,) = self.ask(request, 3).results_by_topic_v3_and_below
        return [each.partition_error_code for each in result.results_by_partition]

    def produce(self, index: int, sequence: int, version: int = 9, **fields: Any) -> int:
        reply = self.ask(self.produce_request(index, sequence, **fields), version)
        return reply.responses[0].partition_responses[0].error_code

    def produce_request(
        self, index: int, sequence: int, transactional_id: str | None = "tx", epoch: int | None = None
    ) -> m.ProduceRequest:
        records = self.make_batch(
            b"v",
            producer_id=self.id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=sequence,
            transactional=True,
        )
        data = m.ProduceRequest.PartitionProduceData(index=index, records=records)
        topic = m.ProduceRequest.TopicProduceData(name="pond", partition_data=[data])
        return m.ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=5000, topic_data=[topic])

    def end(self, committed: bool) -> int:
        request = m.EndTxnRequest(
            transactional_id="tx", producer_id=self.id, producer_epoch=self.epoch, committed=committed
        )
        return self.ask(request, 3).error_code

    def stable(self) -> list[tuple[int, int]]:
        """Last stable offset and log end offset of each partition."""
        partitions = [self.server.broker.partitions.get("pond", index) for index in range(2)]
        return [(each.last_stable_offset, each.committed_offset) for each in partitions]


@pytest.fixture
def producer(server: Any, make_batch: Any) -> TransactionalProducer:
    return TransactionalProducer(server, make_batch)


def test_a_commit_reaches_every_partition(producer: TransactionalProducer) -> None:
    producer.begin()
    assert producer.add(0, 1) == [0, 0]
    assert [producer.produce(0, 0), producer.produce(1, 0)] == [0, 0]
    assert producer.stable() == [(0, 1), (0, 1)]
    assert producer.end(committed=True) == 0
    producer.server.run(1000)
    assert producer.stable() == [(2, 2), (2, 2)]
    assert [producer.pond.log.aborted_transactions(0, 2)] == [[]]


def test_an_abort_is_told_to_readers(producer: TransactionalProducer) -> None:
    producer.begin()
    producer.add(0)
    producer.produce(0, 0)
    assert producer.end(committed=False) == 0
    producer.server.run(1000)
    assert producer.pond.log.aborted_transactions(0, 2) == [(producer.id, 0)]


def test_a_partition_that_was_not_added_takes_nothing(producer: TransactionalProducer) -> None:
    producer.begin()
    producer.add(1)
    assert producer.produce(0, 0) == ErrorCode.INVALID_TXN_STATE
    assert producer.stable()[0] == (0, 0)


@pytest.mark.parametrize("version", [9, 12])
def test_who_is_refused_in_the_name_of_a_producer_does_it_no_harm(
    producer: TransactionalProducer, version: int
) -> None:
    """A permission with epoch 32767, which no coordinator granted, locked the producer out for a day."""
    own = producer.ask(m.InitProducerIdRequest(transactional_id="own", transaction_timeout_ms=10_000), 4)
    producer.begin()
    assert own.producer_id != producer.id
    producer.add(0)
    for transactional_id in ("own", "tx", "none"):
        for epoch in (producer.epoch, 32767):
            for sequence in (-1, 0):
                if (transactional_id, epoch, sequence) != ("tx", producer.epoch, 0):
                    assert producer.produce(0, sequence, version, transactional_id=transactional_id, epoch=epoch) != 0
    assert producer.stable()[0] == (0, 0)
    assert producer.produce(0, 0, version) == 0


@pytest.mark.parametrize("restarted", [False, True])
def test_an_open_transaction_is_open_to_its_transactional_id_alone(
    producer: TransactionalProducer, restarted: bool
) -> None:
    """A client with its own transactional id must not add to another's transaction, which would commit the
    records.
    """
    producer.ask(m.InitProducerIdRequest(transactional_id="own", transaction_timeout_ms=10_000), 4)
    producer.begin()
    producer.add(0)
    assert producer.produce(0, 0) == 0
    if restarted:
        producer.server.node.crash()
        assert producer.server.node.start()
        producer.caller = producer.server.connect()
    for version in (9, 12):
        assert producer.produce(0, 1, version, transactional_id="own") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert producer.produce(0, 1, version, transactional_id=None) == ErrorCode.INVALID_TXN_STATE
    assert producer.produce(0, 1) == 0
    assert producer.end(committed=True) == 0
    producer.server.run(1000)
    assert producer.stable()[0] == (3, 3)


def test_a_transactional_request_takes_only_transactional_batches(producer: TransactionalProducer) -> None:
    producer.begin()
    producer.add(0)
    request = producer.produce_request(0, 0)
    request.topic_data[0].partition_data[0].records = producer.make_batch(b"v")
    reply = producer.ask(request, 9)
    assert reply.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_RECORD
    assert producer.stable()[0] == (0, 0)


def test_unknown_partitions_keep_the_others_from_being_added(producer: TransactionalProducer) -> None:
    producer.begin()
    assert producer.add(0, 7) == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_newer_producers_need_not_add_partitions(producer: TransactionalProducer) -> None:
    producer.begin()
    assert producer.produce(0, 0, version=12) == 0
    reply = producer.ask(m.DescribeTransactionsRequest(transactional_ids=["tx"]), 0)
    (state,) = reply.transaction_states
    assert (state.transaction_state, state.topics[0].partitions) == ("Ongoing", [0])


def test_a_power_cut_after_the_decision_does_not_undo_it(producer: TransactionalProducer) -> None:
    producer.begin()
    producer.add(0, 1)
    producer.produce(0, 0)
    producer.produce(1, 0)
    assert producer.end(committed=True) == 0
    producer.server.node.crash()
    assert producer.server.node.start()
    producer.server.run(3000)
    # A marker that exists may be written again: it does no harm.
    assert all(stable == end >= 2 for stable, end in producer.stable())
    assert producer.server.broker.partitions.get("pond", 0).log.aborted_transactions(0, 9) == []


def test_a_silent_producer_is_aborted(producer: TransactionalProducer) -> None:
    producer.begin()
    producer.add(0)
    producer.produce(0, 0)
    producer.server.run(30_000)
    assert producer.stable()[0] == (2, 2)
    assert producer.pond.log.aborted_transactions(0, 2) == [(producer.id, 0)]


def test_a_coordinator_whose_log_fails_while_markers_are_written_orders_them_again_later(
    producer: TransactionalProducer,
) -> None:
    producer.begin()
    producer.add(0, 1)
    producer.produce(0, 0)
    assert producer.end(committed=True) == 0
    for home in producer.server.broker.transactions.shard_hosts():
        home.stop()
    producer.server.run(1000)
    producer.server.node.kill()
    assert producer.server.node.start()
    producer.server.run(1000)
    producer.caller = producer.server.connect()
    (state,) = producer.ask(m.DescribeTransactionsRequest(transactional_ids=["tx"]), 0).transaction_states
    assert state.transaction_state == "CompleteCommit"
    assert all(stable == end for stable, end in producer.stable())


def test_markers_are_tried_again_when_a_partition_cannot_take_them(producer: TransactionalProducer) -> None:
    producer.begin()
    producer.add(0)
    producer.produce(0, 0)
    capacity = producer.server.disk.capacity_bytes
    assert producer.end(committed=True) == 0
    producer.server.disk.capacity_bytes = 0
    producer.server.run(500)
    producer.server.disk.capacity_bytes = capacity
    producer.server.run(3000)
    assert producer.stable()[0] == (2, 2)


def test_a_marker_by_hand_ends_a_hanging_transaction(producer: TransactionalProducer) -> None:
    producer.begin()
    producer.add(0)
    producer.produce(0, 0)
    assert abort_by_hand(producer, producer.caller, 0, 9) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert producer.stable()[0] == (2, 2)


def abort_by_hand(producer: TransactionalProducer, caller: Any, *partitions: int) -> list[int]:
    topic = m.WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="pond", partition_indexes=list(partitions))
    marker = m.WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        transaction_result=False,
        topics=[topic],
        coordinator_epoch=0,
    )
    reply = caller.ask(m.WriteTxnMarkersRequest(markers=[marker]), 1)
    return [each.error_code for each in reply.markers[0].topics[0].partitions]


def test_a_marker_that_a_node_has_given_up_does_not_end_the_next_transaction(producer: TransactionalProducer) -> None:
    given_up, latest, other = (producer.server.connect() for _ in range(3))
    given_up.client_id = latest.client_id = "millpond-node-2"
    other.client_id = "millpond-node-3"
    producer.begin()
    producer.add(0)
    producer.produce(0, 0)
    assert abort_by_hand(producer, given_up, 0) == [0], "as long as it has no other"
    assert abort_by_hand(producer, latest, 0) == [0]
    assert producer.end(committed=False) == 0
    producer.add(0)
    assert producer.produce(0, 1) == 0
    assert abort_by_hand(producer, given_up, 0) == [ErrorCode.NOT_COORDINATOR]
    assert producer.end(committed=True) == 0
    producer.server.run(1000)
    log = producer.pond.log
    assert log.aborted_transactions(0, log.end_offset) == [(producer.id, 0)], "only the first"
    assert abort_by_hand(producer, other, 0) == [0]


def test_an_end_that_comes_again_while_the_markers_are_written_waits_for_nothing(
    producer: TransactionalProducer,
) -> None:
    """A later retry would end the next transaction."""
    producer.begin()
    producer.add(0, 1)
    assert [producer.produce(0, 0), producer.produce(1, 0)] == [0, 0]
    take_offline(producer, 1)
    assert producer.end(committed=True) == 0
    began_ms = producer.server.sim.clock.now_ms
    assert producer.end(committed=True) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert producer.server.sim.clock.now_ms - began_ms < 50


def take_offline(producer: TransactionalProducer, index: int) -> None:
    """As on a node that could not open the log: the partition exists, but has no log here."""
    partitions = producer.server.broker.partitions
    partitions.remove(partitions.get("pond", index))


def test_a_partition_that_is_offline_at_commit_gets_its_marker_when_it_is_back(
    producer: TransactionalProducer,
) -> None:
    producer.begin()
    producer.add(0, 1)
    assert [producer.produce(0, 0), producer.produce(1, 0)] == [0, 0]
    take_offline(producer, 1)
    assert producer.end(committed=True) == 0
    producer.server.run(5000)
    (state,) = producer.ask(m.DescribeTransactionsRequest(transactional_ids=["tx"]), 0).transaction_states
    assert state.transaction_state == "PrepareCommit", "not all of it is committed yet"
    assert producer.add(0) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert (producer.pond.last_stable_offset, producer.pond.committed_offset) == (2, 2), (
        "one marker, however often it is tried"
    )
    producer.server.broker.replica_manager._open(producer.server.broker.image.topics["pond"], 1)
    producer.server.run(20_000)
    assert producer.stable() == [(2, 2), (2, 2)]
    (state,) = producer.ask(m.DescribeTransactionsRequest(transactional_ids=["tx"]), 0).transaction_states
    assert state.transaction_state == "CompleteCommit"


def test_a_topic_that_is_deleted_while_its_partition_is_offline_needs_no_marker(
    producer: TransactionalProducer,
) -> None:
    producer.begin()
    producer.add(0, 1)
    assert [producer.produce(0, 0), producer.produce(1, 0)] == [0, 0]
    take_offline(producer, 1)
    assert producer.end(committed=True) == 0
    producer.server.delete("pond")
    producer.server.create("pond", 2)
    producer.server.run(20_000)
    (state,) = producer.ask(m.DescribeTransactionsRequest(transactional_ids=["tx"]), 0).transaction_states
    assert state.transaction_state == "CompleteCommit"
    assert producer.stable()[0] == (0, 0), "the new topic of that name is not meant"


def test_the_end_is_answered_once_its_markers_are_written(producer: TransactionalProducer) -> None:
    producer.begin()
    for number in range(5):
        assert producer.add(0) == [0]
        assert producer.produce(0, number) == 0
        assert producer.end(committed=number % 2 == 0) == 0
        assert producer.stable()[0] == (2 * number + 2, 2 * number + 2)


def test_a_marker_by_hand_for_an_offline_partition_says_so(producer: TransactionalProducer) -> None:
    producer.begin()
    take_offline(producer, 1)
    topic = m.WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="pond", partition_indexes=[1, 9])
    marker = m.WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        transaction_result=False,
        topics=[topic],
        coordinator_epoch=0,
    )
    reply = producer.ask(m.WriteTxnMarkersRequest(markers=[marker]), 1)
    codes = [each.error_code for each in reply.markers[0].topics[0].partitions]
    assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_producer_that_goes_straight_on_waits_for_the_last_end_inside_the_broker(
    producer: TransactionalProducer,
) -> None:
    """Transactions v2: the producer may write before its last transaction's markers are there, and is not
    rejected.
    """
    producer.begin()
    assert producer.produce(0, 0, version=12) == 0
    request = m.EndTxnRequest(
        transactional_id="tx", producer_id=producer.id, producer_epoch=producer.epoch, committed=True
    )
    other = producer.server.connect()
    other.send(request, 5)
    producer.server.sim.run_until(lambda: producer.server.broker.markers.under_way("tx"), within_ms=5_000)
    producer.epoch += 1
    assert producer.produce(0, 0, version=12) == 0, "not CONCURRENT_TRANSACTIONS"
    assert producer.stable()[0] == (2, 3)


def test_a_producer_that_goes_on_before_the_last_end_has_come_to_the_partition(
    producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last transaction's marker arrives while the coordinator verifies the next one, and ends only that
    verification: with an error, the producer would abort the transaction that it has just begun."""
    producer.begin()
    assert producer.produce(0, 0, version=12) == 0
    append, refusals = Partition.append_marker, [Refused(ErrorCode.NOT_ENOUGH_REPLICAS)]

    def append_marker(partition: Partition, *words: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return append(partition, *words)

    monkeypatch.setattr(Partition, "append_marker", append_marker)
    request = m.EndTxnRequest(
        transactional_id="tx", producer_id=producer.id, producer_epoch=producer.epoch, committed=True
    )
    producer.server.connect().send(request, 5)
    producer.server.sim.run_until(lambda: not refusals, within_ms=5_000)
    producer.server.run(TRY_AGAIN_MS // 2)
    assert producer.stable()[0] == (0, 1), "the marker is yet to come"
    producer.epoch += 1
    assert producer.produce(0, 0, version=12) == 0, "not INVALID_TXN_STATE"
    assert producer.stable()[0] == (2, 3)


def test_a_batch_of_an_older_transaction_is_not_asked_for_again(
    producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer has given the batch up, and the next transaction has the same epoch: it would become part of
    it.
    """
    producer.begin()
    producer.add(0)
    ask, held = transaction_calls._asked, [Later[ErrorCode]()]
    monkeypatch.setattr(
        transaction_calls, "_asked", lambda *words, **more: held[0] if len(held) == 1 else ask(*words, **more)
    )
    late = producer.server.connect()
    late.send(producer.produce_request(0, 0), 9)
    producer.server.run(100)
    held.append(held[0])
    assert producer.end(committed=False) == 0
    assert producer.add(0) == [0]
    held[0].finish(ErrorCode.NONE)
    producer.server.run(1000)
    assert producer.stable()[0] == (1, 1), "the marker alone"


def test_what_follows_a_batch_whose_coordinator_could_not_be_asked_hears_the_same(
    producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka would bump its epoch and abort."""
    producer.begin()
    producer.add(0)
    assert producer.produce(0, 0) == 0
    producer.server.broker.partitions.get("pond", 0).log.producers.void_verifications()
    ask, away = transaction_calls._asked, [failed(Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE))]
    monkeypatch.setattr(
        transaction_calls, "_asked", lambda *words, **more: away.pop() if away else ask(*words, **more)
    )
    assert producer.produce(0, 1) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert producer.produce(0, 2) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert [producer.produce(0, 1), producer.produce(0, 2)] == [0, 0]
    assert producer.produce(0, 4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def add_for_broker(producer: TransactionalProducer, *partitions: int) -> m.AddPartitionsToTxnRequest:
    kind = m.AddPartitionsToTxnRequest
    transaction = kind.AddPartitionsToTxnTransaction(
        transactional_id="tx",
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        verify_only=False,
        topics=[kind.AddPartitionsToTxnTopic(name="pond", partitions=list(partitions))],
    )
    return kind(transactions=[transaction])


def test_a_partition_of_which_the_coordinator_has_not_heard_yet_is_not_taken_in(
    producer: TransactionalProducer,
) -> None:
    """It would get no marker: its leader knows of a new topic sooner than the coordinator."""
    producer.begin()
    for partitions in ([9], [0, 9]):
        (result,) = producer.ask(add_for_broker(producer, *partitions), 5).results_by_transaction
        codes = {each.partition_error_code for each in result.topic_results[0].results_by_partition}
        assert codes == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}, "the producer tries again"
    assert producer.end(committed=True) == ErrorCode.INVALID_TXN_STATE, "nothing has begun"


def test_no_batch_is_permitted_by_an_uncommitted_coordinator_record(
    producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator would not know of the partition, and would leave the transaction open there forever."""
    producer.begin()
    home = producer.server.broker.transactions.shard_host_of("tx")
    commit, pending = Partition.after_commit, []

    def after_commit(partition: Partition, end_offset: int, value: Any) -> Later[Any]:
        if partition is not home.partition:
            return commit(partition, end_offset, value)
        pending.append((Later[Any](), value))
        return pending[-1][0]

    monkeypatch.setattr(Partition, "after_commit", after_commit)
    home.run(lambda shard, now_ms: shard.step(Request(add_for_broker(producer, 0), 5, Later()), now_ms))
    produced = producer.server.connect()
    produced.send(producer.produce_request(0, 0), 9)
    producer.server.run(100)
    assert producer.stable()[0] == (0, 0)
    for later, value in pending:
        later.finish(value)
    producer.server.run(100)
    assert producer.stable()[0] == (0, 1)


def test_a_partition_that_cannot_be_needs_no_marker(producer: TransactionalProducer) -> None:
    producer.begin()
    home = producer.server.broker.transactions.shard_host_of("tx")
    request = Request(add_for_broker(producer, -1, 0, 9), 4, Later())
    home.run(lambda shard, now_ms: shard.step(request, now_ms))
    assert producer.end(committed=True) == 0
    producer.server.run(1000)
    assert not producer.server.broker.markers.under_way("tx")


def test_those_who_wait_for_an_end_and_go_away_are_forgotten(producer: TransactionalProducer) -> None:
    producer.begin()
    producer.add(0, 1)
    assert [producer.produce(0, 0), producer.produce(1, 0)] == [0, 0]
    take_offline(producer, 1)
    assert producer.end(committed=True) == 0
    for _ in range(20):
        caller = producer.server.connect()
        caller.send(m.InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=10_000), 4)
        producer.server.run(20)
        caller.link.end()
    producer.server.run(1000)
    assert producer.server.broker.markers._waiting == {}
