import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import MalformedMessage
from millpond.base.ids import TopicPartition
from millpond.coordinators.transactions.records import by_topic, read_key, read_value, record_of
from millpond.coordinators.transactions.states import State
from millpond.coordinators.transactions.transaction import Transaction
from millpond.wire import messages as m

PARTITIONS = st.frozensets(
    st.builds(TopicPartition, st.text("abc", min_size=1, max_size=3), st.integers(0, 9)), max_size=8
)
TRANSACTIONS = st.builds(
    Transaction,
    transactional_id=st.text(max_size=20),
    producer_id=st.integers(0, 1 << 62),
    producer_epoch=st.integers(0, 32767),
    timeout_ms=st.integers(1, 1 << 30),
    updated_ms=st.integers(0, 1 << 50),
    state=st.sampled_from([state for state in State if state not in (State.DEAD, State.EMPTY)]),
    partitions=PARTITIONS,
    start_ms=st.integers(-1, 1 << 50),
    previous_producer_id=st.integers(-1, 1 << 62),
    next_producer_id=st.integers(-1, 1 << 62),
    client_version=st.integers(0, 3),
)


@given(TRANSACTIONS)
def test_a_transaction_is_read_back_as_it_was(transaction: Transaction) -> None:
    key, value = record_of(transaction)
    assert value is not None
    assert read_key(key) == transaction.transactional_id
    assert read_value(transaction.transactional_id, value) == transaction


def test_the_bytes_are_kafkas() -> None:
    transaction = Transaction("tx", 7, 2, 60_000, 1_000, State.EMPTY, previous_producer_id=7)
    key, value = record_of(transaction)
    assert key.hex() == "0000" + "0002" + b"tx".hex()
    assert value is not None
    # version 1, producer id, epoch, timeout, status, null partitions, updated, started, one tagged field
    assert value.hex() == (
        "0001" + "0000000000000007" + "0002" + "0000ea60" + "00" + "00" + "00000000000003e8" + "ff" * 8
        + "01" + "00" + "08" + "0000000000000007"
    )  # fmt: skip


def test_the_dead_are_a_tombstone() -> None:
    assert record_of(Transaction("tx", 7, 2, 60_000, 1_000, State.DEAD)).value is None


def test_version_0_of_an_older_cluster_is_read() -> None:
    body = m.TransactionLogValue(
        producer_id=7,
        producer_epoch=2,
        transaction_timeout_ms=5,
        transaction_status=1,
        transaction_partitions=[m.TransactionLogValue.PartitionsSchema(topic="a", partition_ids=[3, 1])],
        transaction_last_update_timestamp_ms=8,
        transaction_start_timestamp_ms=6,
    )
    got = read_value("tx", b"\0\0" + body.encode(0))
    assert got == Transaction(
        "tx", 7, 2, 5, 8, State.ONGOING, frozenset({TopicPartition("a", 1), TopicPartition("a", 3)}), 6
    )


def test_keys_of_a_later_kind_are_skipped_and_broken_ones_are_not() -> None:
    assert read_key(b"\0\x05whatever") is None
    with pytest.raises(MalformedMessage):
        read_key(b"\0")


@pytest.mark.parametrize("value", [b"", b"\0\x02", b"\0\x01short"])
def test_values_that_cannot_be_are_refused(value: bytes) -> None:
    with pytest.raises(MalformedMessage):
        read_value("tx", value)


def test_an_unknown_status_is_refused() -> None:
    body = m.TransactionLogValue(transaction_status=42, transaction_partitions=[])
    with pytest.raises(MalformedMessage, match="status 42"):
        read_value("tx", b"\0\1" + body.encode(1))


def test_partitions_are_grouped_in_order() -> None:
    places = frozenset(TopicPartition(*place) for place in [("b", 2), ("a", 9), ("b", 1)])
    assert by_topic(places) == {"a": [9], "b": [1, 2]}
    assert list(by_topic(places)) == ["a", "b"]
