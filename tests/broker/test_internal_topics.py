"""Only the broker changes the coordinators' topics, whichever request a client tries."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m

OFFSETS, TRANSACTIONS, HISTORY = "__consumer_offsets", "__transaction_state", "__group_history"
COORDINATORS = (OFFSETS, TRANSACTIONS)
OWN = (*COORDINATORS, HISTORY)


@pytest.fixture
def caller(make_server: Any) -> Any:
    server = make_server({"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "3"})
    server.create(HISTORY)
    caller = server.connect()
    caller.server = server
    for key_type in (0, 1):
        request = m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=["g"])
        (coordinator,) = caller.ask(request, 4).coordinators
        assert coordinator.error_code == ErrorCode.NONE
    return caller


@pytest.mark.parametrize("topic", OWN)
def test_no_partitions_are_added(caller: Any, topic: str) -> None:
    """The partition count determines a group's coordinator: with another count, groups would be looked up
    elsewhere.
    """
    wanted = m.CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=4)
    (result,) = caller.ask(m.CreatePartitionsRequest(topics=[wanted], timeout_ms=1000), 3).results
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "would be looked up" in result.error_message


def alter(caller: Any, topic: str, name: str, value: str | None, operation: int = 0) -> Any:
    config = m.IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=operation, value=value)
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2, resource_name=topic, configs=[config]
    )
    (result,) = caller.ask(m.IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
    return result


@pytest.mark.parametrize("topic", COORDINATORS)
def test_what_they_hold_stays_compacted_and_never_expires(caller: Any, topic: str) -> None:
    for value, operation in (("delete", 0), ("compact,delete", 0), (None, 1), ("delete", 2), ("compact", 3)):
        refused = alter(caller, topic, "cleanup.policy", value, operation)
        assert refused.error_code == ErrorCode.INVALID_CONFIG, (value, operation)
        assert "compact" in refused.error_message
    assert alter(caller, topic, "segment.bytes", str(1 << 20)).error_code == ErrorCode.NONE


def test_replacing_all_settings_does_not_bring_the_default_policy_back(caller: Any) -> None:
    config = m.AlterConfigsRequest.AlterableConfig(name="segment.bytes", value=str(1 << 20))
    resource = m.AlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name=OFFSETS, configs=[config])
    (result,) = caller.ask(m.AlterConfigsRequest(resources=[resource]), 2).responses
    assert result.error_code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize("topic", OWN)
def test_no_records_are_deleted_or_written(caller: Any, topic: str, make_batch: Any) -> None:
    partition = m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=-1)
    named = m.DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[partition])
    (result,) = caller.ask(m.DeleteRecordsRequest(topics=[named], timeout_ms=1000), 2).topics
    assert result.partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    data = m.ProduceRequest.PartitionProduceData(index=0, records=make_batch(b"v"))
    request = m.ProduceRequest(
        acks=1, timeout_ms=1000, topic_data=[m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
    )
    (response,) = caller.ask(request, 9).responses
    assert response.partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("topic", OWN)
def test_they_are_not_deleted(caller: Any, topic: str) -> None:
    named = m.DeleteTopicsRequest.DeleteTopicState(name=topic)
    (result,) = caller.ask(m.DeleteTopicsRequest(topics=[named], timeout_ms=1000), 6).responses
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def begun(caller: Any) -> Any:
    """A transaction that has begun."""
    request = m.InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    for _ in range(50):
        reply = caller.ask(request, 4, within_ms=5_000)
        if not reply.error_code:
            return reply
        caller.server.run(100)
    raise AssertionError(reply)


def in_transaction(caller: Any) -> list[str]:
    """The topics in the transaction."""
    (state,) = caller.ask(m.DescribeTransactionsRequest(transactional_ids=["tx"]), 0).transaction_states
    return [each.topic for each in state.topics]


@pytest.mark.parametrize("topic", OWN)
def test_they_have_no_part_in_a_clients_transaction(caller: Any, topic: str, make_batch: Any) -> None:
    """The end of a transaction writes a marker into every one of its partitions."""
    caller.server.create("pond")
    producer = begun(caller)
    kind = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    wanted = m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="tx",
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[kind(name=each, partitions=[0]) for each in ("pond", topic, "none")],
    )
    results = caller.ask(wanted, 3).results_by_topic_v3_and_below
    codes = {each.name: each.results_by_partition[0].partition_error_code for each in results}
    assert codes == {
        "pond": ErrorCode.OPERATION_NOT_ATTEMPTED,
        topic: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    batch = make_batch(
        b"v",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    data = m.ProduceRequest.PartitionProduceData(index=0, records=batch)
    request = m.ProduceRequest(
        transactional_id="tx",
        acks=-1,
        timeout_ms=1000,
        topic_data=[m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )
    (response,) = caller.ask(request, 12, within_ms=5_000).responses
    assert response.partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert in_transaction(caller) == []


@pytest.mark.parametrize("topic", [*COORDINATORS, "__consumer.offsets", "__transaction.state", "__share_group_state"])
def test_a_client_does_not_make_them_or_what_would_stand_in_their_way(make_server: Any, topic: str) -> None:
    """Created like other topics, they would lose offsets to retention; a colliding name would block their
    creation.
    """
    caller = make_server().connect()
    wanted = m.CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
    (result,) = caller.ask(m.CreateTopicsRequest(topics=[wanted], timeout_ms=1000), 7).topics
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert result.error_message
    named = m.MetadataRequest.MetadataRequestTopic(name=topic)
    (seen,) = caller.ask(m.MetadataRequest(topics=[named], allow_auto_topic_creation=True), 9).topics
    assert seen.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (coordinator,) = caller.ask(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4).coordinators
    assert coordinator.error_code == ErrorCode.NONE
