from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode
from millpond.config.effective import NodeLayers
from millpond.config.node import node_settings
from millpond.metadata import configs
from millpond.metadata.configs import (
    ConfigChange,
    Operation,
    ResourceChanges,
    ResourceConfigs,
    decide_alter,
    decide_incremental_alter,
)
from millpond.metadata.image import ALL_BROKERS, Resource
from millpond.metadata.records import ConfigRecord, RegisterBrokerRecord, ResourceType, TopicRecord

TOPIC = Resource(ResourceType.TOPIC, "orders")
BROKER = Resource(ResourceType.BROKER, "1")
SET, DELETE, APPEND, SUBTRACT = Operation


@pytest.fixture
def image(image):
    """Topic orders keeps its records for a second; the cluster has a name."""
    image.replay(TopicRecord("orders", UUID(int=1)))
    image.replay(ConfigRecord(*TOPIC, "retention.ms", "1000"))
    image.replay(ConfigRecord(*ALL_BROKERS, "cluster.id", "pond"))
    return image


def changes(resource: Resource, *each: tuple[str, int, str | None]) -> ResourceChanges:
    return ResourceChanges(resource, tuple(ConfigChange(*change) for change in each))


def written(decision) -> list[tuple[Resource, str, str | None]]:
    return [(Resource(r.resource_type, r.resource_name), r.name, r.value) for r in decision.records]


# Single settings.


def test_a_setting_is_set_and_another_taken_away(image, layers, apply) -> None:
    request = changes(TOPIC, ("segment.ms", SET, "5"), ("retention.ms", DELETE, None))
    decision = decide_incremental_alter(image, layers, [request])
    assert [(each.resource, each.verdict.ok) for each in decision.reply] == [(TOPIC, True)]
    assert written(decision) == [(TOPIC, "segment.ms", "5"), (TOPIC, "retention.ms", None)]
    apply(image, decision)
    assert image.topic_config("orders") == {"segment.ms": "5"}


@pytest.mark.parametrize(
    "change",
    [("retention.ms", SET, "1000"), ("segment.ms", DELETE, None), ("name.of.another.version", DELETE, None)],
)
def test_what_changes_nothing_writes_nothing(image, layers, change) -> None:
    decision = decide_incremental_alter(image, layers, [changes(TOPIC, change)])
    assert decision.reply[0].verdict.ok
    assert decision.records == ()


def test_validating_writes_nothing(image, layers) -> None:
    requests = [changes(TOPIC, ("segment.ms", SET, "5")), changes(BROKER, ("node.id", SET, "5"))]
    decision = decide_incremental_alter(image, layers, requests, validate_only=True)
    assert [each.verdict.code for each in decision.reply] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert decision.records == ()


@pytest.mark.parametrize(
    ("own", "operation", "value", "result"),
    [
        (None, APPEND, "compact", "delete,compact"),
        ("compact", APPEND, "compact,delete", "compact,delete"),
        ("compact,delete", SUBTRACT, "delete", "compact"),
        (None, SUBTRACT, "delete", ""),
        ("compact", SUBTRACT, "delete", None),
    ],
)
def test_lists_grow_and_shrink_from_what_counts_now(image, layers, own, operation, value, result) -> None:
    """A result of None means that nothing changes."""
    if own is not None:
        image.replay(ConfigRecord(*TOPIC, "cleanup.policy", own))
    decision = decide_incremental_alter(image, layers, [changes(TOPIC, ("cleanup.policy", operation, value))])
    assert decision.reply[0].verdict.ok
    assert written(decision) == ([] if result is None else [(TOPIC, "cleanup.policy", result)])


def test_a_list_of_a_broker_grows_from_what_the_node_was_started_with(image) -> None:
    layers = NodeLayers(node_settings({"log.cleanup.policy": "compact"}))
    request = changes(BROKER, ("log.cleanup.policy", APPEND, "delete"))
    assert written(decide_incremental_alter(image, layers, [request])) == [
        (BROKER, "log.cleanup.policy", "compact,delete")
    ]


def test_one_wrong_setting_keeps_the_whole_resource_as_it_is_and_no_other(image, layers) -> None:
    requests = [
        changes(TOPIC, ("segment.ms", SET, "5"), ("retention.ms", SET, "soon")),
        changes(ALL_BROKERS, ("log.retention.ms", SET, "7")),
    ]
    decision = decide_incremental_alter(image, layers, requests)
    assert [each.verdict.code for each in decision.reply] == [ErrorCode.INVALID_CONFIG, ErrorCode.NONE]
    assert written(decision) == [(ALL_BROKERS, "log.retention.ms", "7")]


@pytest.mark.parametrize(
    ("request_", "code", "said"),
    [
        (changes(TOPIC, ("segment.bytes", SET, "1")), ErrorCode.INVALID_CONFIG, "at least 16384"),
        (changes(TOPIC, ("segment.byte", SET, "1")), ErrorCode.INVALID_CONFIG, "did you mean segment.bytes"),
        (changes(TOPIC, ("segment.ms", SET, None)), ErrorCode.INVALID_REQUEST, "null"),
        (changes(TOPIC, ("segment.ms", APPEND, "1")), ErrorCode.INVALID_CONFIG, "not a list"),
        (changes(TOPIC, ("cleanup.policy", APPEND, "x")), ErrorCode.INVALID_CONFIG, "compact, delete"),
        (changes(TOPIC, ("segment.ms", 4, "1")), ErrorCode.INVALID_REQUEST, "operation 4"),
        (changes(TOPIC, ("segment.ms", SET, "1"), ("segment.ms", SET, "2")), ErrorCode.INVALID_REQUEST, "duplicate"),
        (changes(TOPIC, ("max.compaction.lag.ms", SET, "1"), ("min.compaction.lag.ms", SET, "2")),
         ErrorCode.INVALID_CONFIG, "cannot be more"),
        (changes(Resource(2, "zzz"), ("segment.ms", SET, "1")), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "not exist"),
        (changes(Resource(2, "z z"), ("segment.ms", SET, "1")), ErrorCode.INVALID_TOPIC_EXCEPTION, "ASCII"),
        (changes(Resource(2, ""), ("segment.ms", SET, "1")), ErrorCode.INVALID_REQUEST, "common settings"),
        (changes(Resource(4, "9"), ("max.connections", SET, "1")), ErrorCode.INVALID_REQUEST, "unknown broker"),
        (changes(Resource(4, "01"), ("max.connections", SET, "1")), ErrorCode.INVALID_REQUEST, "unknown broker"),
        (changes(Resource(8, "1"), ("x", SET, "1")), ErrorCode.INVALID_REQUEST, "IncrementalAlterConfigs"),
        (changes(Resource(32, ""), ("consumer.session.timeout.ms", SET, "9")), ErrorCode.INVALID_REQUEST, "name one"),
        (changes(Resource(32, "g"), ("session.timeout.ms", SET, "9")), ErrorCode.INVALID_CONFIG, "unknown group"),
        (changes(Resource(32, "g"), ("consumer.heartbeat.interval.ms", SET, "1")),
         ErrorCode.INVALID_CONFIG, "consumer.heartbeat.interval.ms=1 must be from 5000 to 15000"),
        (changes(Resource(32, "g"), ("consumer.heartbeat.interval.ms", SET, "15001")),
         ErrorCode.INVALID_CONFIG, "consumer.heartbeat.interval.ms=15001 must be from 5000 to 15000"),
        (changes(Resource(32, "g"), ("consumer.session.timeout.ms", SET, "44999")),
         ErrorCode.INVALID_CONFIG, "consumer.session.timeout.ms=44999 must be from 45000 to 60000"),
        (changes(Resource(32, "g"), ("consumer.session.timeout.ms", SET, "60001")),
         ErrorCode.INVALID_CONFIG, "consumer.session.timeout.ms=60001 must be from 45000 to 60000"),
        (changes(Resource(16, ""), ("interval.ms", SET, "1000")), ErrorCode.INVALID_REQUEST, "name one"),
        (changes(Resource(16, "s"), ("interval.ms", SET, "1")), ErrorCode.INVALID_CONFIG, "from 100"),
        (changes(BROKER, ("my.own", SET, "x" * 32_768)), ErrorCode.INVALID_CONFIG, "at most 32767 bytes"),
        (changes(BROKER, *((f"my.{n}", SET, "x") for n in range(101))), ErrorCode.INVALID_CONFIG, "at most 100"),
        (changes(Resource(77, "1"), ("x", SET, "1")), ErrorCode.INVALID_REQUEST, "type 77"),
        (changes(BROKER, ("node.id", SET, "2")), ErrorCode.INVALID_REQUEST, "when the node starts"),
        (changes(BROKER, ("listeners", SET, "x")), ErrorCode.INVALID_REQUEST, "when the node starts"),
        (changes(BROKER, ("max.connections", SET, "0")), ErrorCode.INVALID_CONFIG, "at least 1"),
        (changes(ALL_BROKERS, ("cluster.id", SET, "x")), ErrorCode.INVALID_REQUEST, "when the node starts"),
        (changes(ALL_BROKERS, ("cluster.id", DELETE, None)), ErrorCode.INVALID_REQUEST, "when the node starts"),
    ],
)  # fmt: skip
def test_changes_that_are_refused(image, layers, request_: ResourceChanges, code: ErrorCode, said: str) -> None:
    decision = decide_incremental_alter(image, layers, [request_])
    assert decision.records == ()
    (reply,) = decision.reply
    assert (reply.resource, reply.verdict.code) == (request_.resource, code)
    assert said in str(reply.verdict.message)


def test_a_session_outlasts_a_heartbeat(image) -> None:
    layers = NodeLayers(node_settings({"group.consumer.min.session.timeout.ms": "1"}))
    wanted = changes(Resource(32, "g"), ("consumer.session.timeout.ms", SET, "5000"))
    (reply,) = decide_incremental_alter(image, layers, [wanted]).reply
    assert reply.verdict.code == ErrorCode.INVALID_CONFIG
    assert "must be more than consumer.heartbeat.interval.ms=5000" in str(reply.verdict.message)


def test_a_group_may_always_set_the_default_value(image) -> None:
    layers = NodeLayers(node_settings({"group.consumer.heartbeat.interval.ms": "300"}))
    wanted = changes(Resource(32, "g"), ("consumer.heartbeat.interval.ms", SET, "300"))
    (reply,) = decide_incremental_alter(image, layers, [wanted]).reply
    assert reply.verdict.code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("resource", "name", "value"),
    [
        (Resource(32, "g"), "consumer.session.timeout.ms", "60000"),
        (Resource(32, "g"), "share.isolation.level", "read_committed"),
        (Resource(16, "s"), "metrics", "org.apache,kafka"),
        (BROKER, "my.plugin.secret", "x"),
    ],
)
def test_settings_of_groups_subscriptions_and_unknown_ones_can_be_set_and_removed(
    image, layers, apply, resource: Resource, name: str, value: str
) -> None:
    apply(image, decide_incremental_alter(image, layers, [changes(resource, (name, SET, value))]))
    assert image.config_of(resource) == {name: value}
    apply(image, decide_incremental_alter(image, layers, [changes(resource, (name, DELETE, None))]))
    assert resource not in image.configs


def test_there_is_an_end_to_the_groups_that_have_settings(image, layers, apply, monkeypatch) -> None:
    monkeypatch.setattr(configs, "RESOURCES_MAX", 5)
    request = [changes(Resource(32, f"g{n}"), ("share.isolation.level", SET, "read_committed")) for n in range(20)]
    codes = []
    for each in request:
        decision = decide_incremental_alter(image, layers, [each])
        codes += [verdict.verdict.code for verdict in decision.reply]
        apply(image, decision)
    assert codes[0] == ErrorCode.NONE
    assert codes[-1] == ErrorCode.POLICY_VIOLATION
    assert len([each for each in image.configs if each.type == 32]) <= 5 + len(image.topics)


def test_lags_are_compared_with_what_is_already_set(image, layers) -> None:
    image.replay(ConfigRecord(*TOPIC, "max.compaction.lag.ms", "10"))
    decision = decide_incremental_alter(image, layers, [changes(TOPIC, ("min.compaction.lag.ms", SET, "11"))])
    assert decision.reply[0].verdict.code is ErrorCode.INVALID_CONFIG


def test_a_resource_named_twice_is_refused_and_answered_once(image, layers) -> None:
    requests = [changes(TOPIC, ("segment.ms", SET, "5")), changes(TOPIC, ("retention.ms", SET, "5"))]
    decision = decide_incremental_alter(image, layers, requests)
    assert decision.records == ()
    assert [each.verdict.code for each in decision.reply] == [ErrorCode.INVALID_REQUEST]


# All settings at once.


def test_what_is_not_named_goes_back_to_its_default(image, layers, apply) -> None:
    decision = decide_alter(image, layers, [ResourceConfigs(TOPIC, (("segment.ms", "5"),))])
    assert decision.reply[0].verdict.ok
    assert written(decision) == [(TOPIC, "retention.ms", None), (TOPIC, "segment.ms", "5")]
    apply(image, decision)
    assert image.topic_config("orders") == {"segment.ms": "5"}


def test_the_clusters_name_survives_a_replacement(image, layers) -> None:
    image.replay(ConfigRecord(*ALL_BROKERS, "log.retention.ms", "7"))
    decision = decide_alter(image, layers, [ResourceConfigs(ALL_BROKERS, ())])
    assert written(decision) == [(ALL_BROKERS, "log.retention.ms", None)]


def of_several(image) -> None:
    for broker in (1, 2):
        image.replay(RegisterBrokerRecord(broker, UUID(int=broker), 100 + broker, ()))
    image.replay(ConfigRecord(*ALL_BROKERS, "min.insync.replicas", "2"))


def test_min_insync_replicas_of_a_cluster_changes_for_all_nodes_alike(image, layers) -> None:
    of_several(image)
    decision = decide_incremental_alter(image, layers, [changes(ALL_BROKERS, ("min.insync.replicas", SET, "1"))])
    assert written(decision) == [(ALL_BROKERS, "min.insync.replicas", "1")]
    decision = decide_alter(image, layers, [ResourceConfigs(ALL_BROKERS, (("log.retention.ms", "7"),))])
    assert written(decision) == [(ALL_BROKERS, "log.retention.ms", "7")], "a replacement does not forget it"


@pytest.mark.parametrize(
    ("resource", "operation", "value", "said"),
    [
        (BROKER, SET, "1", "must be the same on all nodes"),
        (ALL_BROKERS, DELETE, None, "cannot be removed, only changed"),
    ],
)
def test_min_insync_replicas_cannot_differ_between_nodes(
    image, layers, resource: Resource, operation: int, value: str | None, said: str
) -> None:
    of_several(image)
    request = changes(resource, ("min.insync.replicas", operation, value))
    decision = decide_incremental_alter(image, layers, [request])
    assert decision.reply[0].verdict.code == ErrorCode.INVALID_CONFIG
    assert said in decision.reply[0].verdict.message
    assert decision.records == ()


def test_a_value_that_an_earlier_version_kept_for_one_node_can_be_removed(image, layers) -> None:
    of_several(image)
    image.replay(ConfigRecord(*BROKER, "min.insync.replicas", "1"))
    decision = decide_incremental_alter(image, layers, [changes(BROKER, ("min.insync.replicas", DELETE, None))])
    assert written(decision) == [(BROKER, "min.insync.replicas", None)]


def test_a_replacement_is_checked_against_itself_not_against_what_it_replaces(image, layers) -> None:
    image.replay(ConfigRecord(*TOPIC, "max.compaction.lag.ms", "10"))
    decision = decide_alter(image, layers, [ResourceConfigs(TOPIC, (("min.compaction.lag.ms", "11"),))])
    assert decision.reply[0].verdict.ok


@pytest.mark.parametrize(
    ("configs", "code"),
    [
        ((("segment.ms", None),), ErrorCode.INVALID_REQUEST),
        ((("segment.ms", "1"), ("segment.ms", "1")), ErrorCode.INVALID_REQUEST),
        ((("segment.ms", "x"),), ErrorCode.INVALID_CONFIG),
    ],
)
def test_replacements_that_are_refused(image, layers, configs, code: ErrorCode) -> None:
    decision = decide_alter(image, layers, [ResourceConfigs(TOPIC, configs)])
    assert decision.records == ()
    assert decision.reply[0].verdict.code is code
