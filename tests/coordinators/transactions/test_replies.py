from millpond.base.errors import ErrorCode as E
from millpond.base.ids import TopicPartition
from millpond.coordinators.transactions.replies import for_produce, for_version, partition_error, topic_results
from millpond.wire import messages as m


def test_older_clients_hear_the_older_words() -> None:
    assert for_version(E.PRODUCER_FENCED, 1, fenced_since=2) is E.INVALID_PRODUCER_EPOCH
    assert for_version(E.PRODUCER_FENCED, 2, fenced_since=2) is E.PRODUCER_FENCED
    assert for_version(E.TRANSACTION_ABORTABLE, 4, abortable_since=5) is E.INVALID_TXN_STATE
    assert for_version(E.TRANSACTION_ABORTABLE, 5, abortable_since=5) is E.TRANSACTION_ABORTABLE
    assert for_version(E.NONE, 0, fenced_since=2, abortable_since=5) is E.NONE


def test_a_producer_gets_invalid_producer_epoch_instead_of_fenced() -> None:
    assert for_produce(E.PRODUCER_FENCED, 12) is E.INVALID_PRODUCER_EPOCH
    assert for_produce(E.TRANSACTION_ABORTABLE, 10) is E.INVALID_TXN_STATE
    assert for_produce(E.TRANSACTION_ABORTABLE, 11) is E.TRANSACTION_ABORTABLE


def test_results_are_grouped_by_topic() -> None:
    errors = {
        TopicPartition("a", 1): E.NONE,
        TopicPartition("b", 0): E.NONE,
        TopicPartition("a", 2): E.INVALID_TXN_STATE,
    }
    results = topic_results(errors)
    shown = [(r.name, [(p.partition_index, p.partition_error_code) for p in r.results_by_partition]) for r in results]
    assert shown == [("a", [(1, 0), (2, 48)]), ("b", [(0, 0)])]


def test_the_error_of_one_partition_is_read_back() -> None:
    response = m.AddPartitionsToTxnResponse(
        results_by_transaction=[
            m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                transactional_id="t", topic_results=topic_results({TopicPartition("a", 1): E.CONCURRENT_TRANSACTIONS})
            )
        ]
    )
    assert partition_error(response) is E.CONCURRENT_TRANSACTIONS
