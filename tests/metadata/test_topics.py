from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode
from millpond.config.effective import NodeLayers
from millpond.config.node import node_settings
from millpond.metadata.decision import OK
from millpond.metadata.records import (
    ConfigRecord,
    PartitionRecord,
    RemoveTopicRecord,
    ResourceType,
    TopicRecord,
)
from millpond.metadata.topics import (
    CreatedTopic,
    DeletedTopic,
    GrownTopic,
    MorePartitions,
    NewTopic,
    TopicRef,
    decide_create_partitions,
    decide_create_topics,
    decide_delete_topics,
)

A, B = UUID(int=1), UUID(int=2)
SMALL = NodeLayers(node_settings({"max.partitions.per.topic": "4", "max.partitions": "6", "num.partitions": "3"}))


@pytest.fixture
def cluster(image, broker):
    """Brokers 1, 2 and 3, of which 3 is fenced."""
    image.replay(broker(2))
    image.replay(broker(3, fenced=True))
    return image


def codes(reply) -> dict[str, ErrorCode]:
    return {each.name: each.verdict.code for each in reply}


# Creating.


def test_a_topic_with_settings_is_created(image, layers, entropy, apply) -> None:
    wanted = NewTopic("orders", 2, 1, configs=(("retention.ms", "1000"),))
    decision = decide_create_topics(image, layers, [wanted], entropy)
    assert decision.reply == (CreatedTopic("orders", OK, A, 2, 1),)
    assert apply(image, decision) == (
        TopicRecord("orders", A),
        ConfigRecord(ResourceType.TOPIC, "orders", "retention.ms", "1000"),
        PartitionRecord(0, A, (1,), (1,), leader=1),
        PartitionRecord(1, A, (1,), (1,), leader=1),
    )
    assert image.topic_config("orders") == {"retention.ms": "1000"}


def test_what_the_client_leaves_open_the_broker_fills(image, entropy) -> None:
    decision = decide_create_topics(image, SMALL, [NewTopic("orders")], entropy)
    assert decision.reply == (CreatedTopic("orders", OK, A, 3, 1),)


def test_validating_draws_no_id_and_writes_nothing(image, layers, entropy) -> None:
    decision = decide_create_topics(image, layers, [NewTopic("orders"), NewTopic("")], entropy, validate_only=True)
    assert decision.records == ()
    assert codes(decision.reply) == {"orders": ErrorCode.NONE, "": ErrorCode.INVALID_TOPIC_EXCEPTION}
    assert entropy.drawn == 0


def test_one_refusal_does_not_spoil_the_others(image, layers, entropy, apply) -> None:
    wanted = [NewTopic("a"), NewTopic("a b"), NewTopic("c")]
    decision = decide_create_topics(image, layers, wanted, entropy)
    assert [each.name for each in decision.reply] == ["a", "a b", "c"]
    assert list(codes(decision.reply).values()) == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.NONE]
    apply(image, decision)
    assert list(image.topics) == ["a", "c"]


def test_a_name_given_twice_is_answered_once_and_refused(image, layers, entropy) -> None:
    decision = decide_create_topics(image, layers, [NewTopic("a"), NewTopic("b"), NewTopic("a", 3)], entropy)
    assert codes(decision.reply) == {"a": ErrorCode.INVALID_REQUEST, "b": ErrorCode.NONE}
    assert len(decision.reply) == 2


def test_a_manual_assignment(cluster, layers, entropy) -> None:
    wanted = NewTopic("a", assignments=((1, (3, 2)), (0, (1, 2))))
    decision = decide_create_topics(cluster, layers, [wanted], entropy)
    assert decision.reply == (CreatedTopic("a", OK, A, 2, 2),)
    # Broker 3 is fenced: it is neither in sync nor leader.
    assert decision.records[1:] == (
        PartitionRecord(0, A, (1, 2), (1, 2), leader=1),
        PartitionRecord(1, A, (3, 2), (2,), leader=2),
    )


@pytest.mark.parametrize(
    ("min_isr", "elr"),
    [("1", None), ("2", (3, 4)), ("3", (3, 4))],
)
def test_replicas_outside_a_new_isr_that_cannot_commit_are_eligible(
    cluster, layers, entropy, broker, min_isr: str, elr: tuple[int, ...] | None
) -> None:
    cluster.replay(broker(4, fenced=True))
    assignments = ((0, (3, 1, 4)), (1, (1, 2, 4)))
    wanted = NewTopic("a", assignments=assignments, configs=(("min.insync.replicas", min_isr),))
    decision = decide_create_topics(cluster, layers, [wanted], entropy)
    alone, pair = decision.records[2:]
    assert alone == PartitionRecord(0, A, (3, 1, 4), (1,), leader=1, eligible_leader_replicas=elr)
    pair_elr = (4,) if min_isr == "3" else None
    assert pair == PartitionRecord(1, A, (1, 2, 4), (1, 2), leader=1, eligible_leader_replicas=pair_elr)


def test_a_new_partition_with_fewer_replicas_than_min_isr_needs_only_those(cluster, layers, entropy) -> None:
    wanted = NewTopic("a", assignments=((0, (1,)),), configs=(("min.insync.replicas", "2"),))
    decision = decide_create_topics(cluster, layers, [wanted], entropy)
    assert decision.records[2:] == (PartitionRecord(0, A, (1,), (1,), leader=1),)


@pytest.mark.parametrize(
    ("wanted", "code", "said"),
    [
        (NewTopic("taken"), ErrorCode.TOPIC_ALREADY_EXISTS, "already exists"),
        (NewTopic("has_dot"), ErrorCode.INVALID_TOPIC_EXCEPTION, "'has.dot'"),
        (NewTopic("__cluster_metadata"), ErrorCode.TOPIC_AUTHORIZATION_FAILED, "metadata log"),
        (NewTopic("a", 0), ErrorCode.INVALID_PARTITIONS, "at least 1"),
        (NewTopic("a", -2), ErrorCode.INVALID_PARTITIONS, "at least 1"),
        (NewTopic("a", 5), ErrorCode.POLICY_VIOLATION, "max.partitions.per.topic=4"),
        (NewTopic("a", (1 << 31) - 1), ErrorCode.POLICY_VIOLATION, "max.partitions.per.topic=4"),
        (NewTopic("a", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, "at least 1"),
        (NewTopic("a", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR, "registered brokers, 3"),
        (NewTopic("a", 1, -1, ((0, (1,)),)), ErrorCode.INVALID_REQUEST, "manual assignment"),
        (NewTopic("a", -1, 1, ((0, (1,)),)), ErrorCode.INVALID_REQUEST, "manual assignment"),
        (NewTopic("a", assignments=((0, (1,)), (0, (2,)))), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "more than once"),
        (NewTopic("a", assignments=((1, (1,)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "consecutively"),
        (NewTopic("a", assignments=((0, ()),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "at least one replica"),
        (NewTopic("a", assignments=((0, (1, 1)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "duplicate broker"),
        (NewTopic("a", assignments=((0, (9,)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "unknown broker 9"),
        (NewTopic("a", assignments=((0, (3,)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "is active"),
        (NewTopic("a", assignments=((0, (1,)), (1, (1, 2)))), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "same number"),
        (NewTopic("a", assignments=tuple((n, (1,)) for n in range(5))), ErrorCode.POLICY_VIOLATION, "per.topic=4"),
        (NewTopic("a", configs=(("retention.ms", None),)), ErrorCode.INVALID_CONFIG, "null"),
        (NewTopic("a", configs=(("retention.ms", "x"),)), ErrorCode.INVALID_CONFIG, "whole number"),
        (NewTopic("a", configs=(("retention", "1"),)), ErrorCode.INVALID_CONFIG, "unknown topic setting"),
    ],
)
def test_topics_that_are_refused(cluster, entropy, wanted: NewTopic, code: ErrorCode, said: str) -> None:
    cluster.replay(TopicRecord("taken", A))
    cluster.replay(TopicRecord("has.dot", B))
    decision = decide_create_topics(cluster, SMALL, [wanted], entropy)
    assert decision.records == ()
    (reply,) = decision.reply
    assert (reply.name, reply.verdict.code) == (wanted.name, code)
    assert said in str(reply.verdict.message)


def test_namesakes_within_one_request(image, layers, entropy) -> None:
    decision = decide_create_topics(image, layers, [NewTopic("a.b"), NewTopic("a_b")], entropy)
    assert codes(decision.reply) == {"a.b": ErrorCode.NONE, "a_b": ErrorCode.INVALID_TOPIC_EXCEPTION}


def test_the_clusters_limit_counts_the_topics_of_the_same_request(image, entropy, apply) -> None:
    decision = decide_create_topics(image, SMALL, [NewTopic("a", 4), NewTopic("b", 3), NewTopic("c", 2)], entropy)
    assert codes(decision.reply) == {
        "a": ErrorCode.NONE,
        "b": ErrorCode.POLICY_VIOLATION,
        "c": ErrorCode.NONE,
    }
    apply(image, decision)
    assert image.partitions_total == 6


# Deleting.


def test_topics_are_deleted_by_name_and_by_id(image, layers) -> None:
    image.replay(TopicRecord("a", A))
    image.replay(TopicRecord("b", B))
    decision = decide_delete_topics(image, layers, [TopicRef("a"), TopicRef(topic_id=B)])
    assert decision.records == (RemoveTopicRecord(A), RemoveTopicRecord(B))
    assert decision.reply == (DeletedTopic("a", A, OK), DeletedTopic("b", B, OK))


@pytest.mark.parametrize(
    ("ref", "code"),
    [
        (TopicRef("zzz"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicRef(topic_id=B), ErrorCode.UNKNOWN_TOPIC_ID),
        (TopicRef(), ErrorCode.INVALID_REQUEST),
        (TopicRef("a", A), ErrorCode.INVALID_REQUEST),
    ],
)
def test_deletions_that_are_refused(image, layers, ref: TopicRef, code: ErrorCode) -> None:
    image.replay(TopicRecord("a", A))
    decision = decide_delete_topics(image, layers, [ref])
    assert decision.records == ()
    (reply,) = decision.reply
    assert (reply.name, reply.topic_id, reply.verdict.code) == (ref.name, ref.topic_id, code)


def test_a_topic_named_twice_is_kept_and_answered_once(image, layers) -> None:
    image.replay(TopicRecord("a", A))
    for refs in ([TopicRef("a"), TopicRef("a")], [TopicRef("a"), TopicRef(topic_id=A)]):
        decision = decide_delete_topics(image, layers, refs)
        assert decision.records == ()
        assert [reply.verdict.code for reply in decision.reply] == [ErrorCode.INVALID_REQUEST]


def test_deletion_can_be_switched_off(image) -> None:
    image.replay(TopicRecord("a", A))
    layers = NodeLayers(node_settings({"delete.topic.enable": "false"}))
    decision = decide_delete_topics(image, layers, [TopicRef("a")])
    assert decision.records == ()
    assert codes(decision.reply) == {"a": ErrorCode.TOPIC_DELETION_DISABLED}


# Growing.


@pytest.fixture
def grown_cluster(cluster):
    """Topic a with two partitions of two replicas each."""
    cluster.replay(TopicRecord("a", A))
    cluster.replay(PartitionRecord(0, A, (1, 2), (1, 2), leader=1))
    cluster.replay(PartitionRecord(1, A, (2, 1), (1, 2), leader=2))
    return cluster


def test_partitions_are_added_after_those_that_are_there(grown_cluster, layers, entropy, apply) -> None:
    decision = decide_create_partitions(grown_cluster, layers, [MorePartitions("a", 4)], entropy)
    assert decision.reply == (GrownTopic("a", OK),)
    assert apply(grown_cluster, decision) == (
        PartitionRecord(2, A, (1, 2), (1, 2), leader=1),
        PartitionRecord(3, A, (2, 1), (2, 1), leader=2),
    )


def test_partitions_are_added_where_the_client_wants_them(grown_cluster, layers, entropy) -> None:
    wanted = MorePartitions("a", 3, ((3, 1),))
    decision = decide_create_partitions(grown_cluster, layers, [wanted], entropy)
    assert decision.records == (PartitionRecord(2, A, (3, 1), (1,), leader=1),)


def test_added_partitions_have_eligible_replicas_by_the_min_isr_of_their_topic(
    grown_cluster, layers, entropy
) -> None:
    grown_cluster.replay(ConfigRecord(ResourceType.TOPIC, "a", "min.insync.replicas", "2"))
    decision = decide_create_partitions(grown_cluster, layers, [MorePartitions("a", 3, ((3, 1),))], entropy)
    added = PartitionRecord(2, A, (3, 1), (1,), leader=1, eligible_leader_replicas=(3,))
    assert decision.records == (added,)


def test_validating_growth_writes_nothing(grown_cluster, layers, entropy) -> None:
    decision = decide_create_partitions(grown_cluster, layers, [MorePartitions("a", 4)], entropy, validate_only=True)
    assert decision.records == ()
    assert decision.reply == (GrownTopic("a", OK),)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (MorePartitions("zzz", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (MorePartitions("a", 2), ErrorCode.INVALID_PARTITIONS),
        (MorePartitions("a", 1), ErrorCode.INVALID_PARTITIONS),
        (MorePartitions("a", -1), ErrorCode.INVALID_PARTITIONS),
        (MorePartitions("a", 5), ErrorCode.POLICY_VIOLATION),
        (MorePartitions("a", 3, ()), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (MorePartitions("a", 3, ((1, 2), (1, 2))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (MorePartitions("a", 3, ((1,),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (MorePartitions("a", 3, ((1, 9),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_growth_that_is_refused(grown_cluster, entropy, wanted: MorePartitions, code: ErrorCode) -> None:
    decision = decide_create_partitions(grown_cluster, SMALL, [wanted], entropy)
    assert decision.records == ()
    assert codes(decision.reply) == {wanted.name: code}


def test_growth_named_twice_is_refused(grown_cluster, layers, entropy) -> None:
    wanted = [MorePartitions("a", 3), MorePartitions("a", 4)]
    decision = decide_create_partitions(grown_cluster, layers, wanted, entropy)
    assert decision.records == ()
    assert [reply.verdict.code for reply in decision.reply] == [ErrorCode.INVALID_REQUEST]
