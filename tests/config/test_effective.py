from hypothesis import given
from hypothesis import strategies as st

from millpond.config.effective import NodeLayers, Source
from millpond.config.node import MAX_CONNECTIONS, NODE, NUM_PARTITIONS, node_settings
from millpond.config.topic import RETENTION_MS, SEGMENT_BYTES, TOPIC

ALL_LAYERS = NodeLayers(
    node_settings({"log.retention.ms": "40"}),
    for_this_broker={"log.retention.ms": "20"},
    for_all_brokers={"log.retention.ms": "30"},
)


def chain(effective) -> list[tuple[Source, str, str]]:
    return [(layer.source, layer.name, layer.text) for layer in effective.layers]


def test_the_whole_chain_of_a_topics_setting() -> None:
    effective = ALL_LAYERS.effective_for_topic(RETENTION_MS, {"retention.ms": "10"})
    assert chain(effective) == [
        (Source.DYNAMIC_TOPIC, "retention.ms", "10"),
        (Source.DYNAMIC_BROKER, "log.retention.ms", "20"),
        (Source.DYNAMIC_DEFAULT_BROKER, "log.retention.ms", "30"),
        (Source.STATIC_BROKER, "log.retention.ms", "40"),
        (Source.DEFAULT, "log.retention.ms", "604800000"),
    ]
    assert (effective.value, effective.text, effective.source) == (10, "10", Source.DYNAMIC_TOPIC)
    assert effective.setting is RETENTION_MS


def test_without_anything_set_the_default_counts() -> None:
    effective = NodeLayers(node_settings({})).effective_for_topic(SEGMENT_BYTES, {})
    assert chain(effective) == [(Source.DEFAULT, "log.segment.bytes", "1073741824")]
    assert effective.value == 1 << 30


def test_a_nodes_setting() -> None:
    layers = NodeLayers(node_settings({"max.connections": "3"}), for_this_broker={"max.connections": "4"})
    assert [layer.value for layer in layers.effective(MAX_CONNECTIONS).layers] == [4, 3, MAX_CONNECTIONS.default]


def test_a_setting_that_is_not_live_listens_to_nobody_while_running() -> None:
    layers = NodeLayers(node_settings({"num.partitions": "2"}), for_all_brokers={"num.partitions": "9"})
    assert layers.effective(NUM_PARTITIONS).value == 2


def test_a_stored_value_that_cannot_be_read_gives_way_to_the_next_layer() -> None:
    effective = ALL_LAYERS.effective_for_topic(RETENTION_MS, {"retention.ms": "a while"})
    assert (effective.value, effective.source) == (20, Source.DYNAMIC_BROKER)


def test_settings_as_a_whole_are_the_effective_ones() -> None:
    topic = ALL_LAYERS.topic_settings({"segment.bytes": "65536"})
    assert topic.registry is TOPIC
    assert (topic[RETENTION_MS], topic[SEGMENT_BYTES]) == (20, 65536)
    assert topic.overrides.keys() == {setting.name for setting in TOPIC}
    node = ALL_LAYERS.settings()
    assert node.registry is NODE
    assert node.overrides["log.retention.ms"] == 20


def test_a_topic_setting_of_another_version_is_passed_over() -> None:
    topic = ALL_LAYERS.topic_settings({"zzz": "1", "segment.bytes": "tiny"})
    assert topic[SEGMENT_BYTES] == 1 << 30
    assert "zzz" not in topic.overrides


def test_the_layers_stay_as_they_were_made() -> None:
    told = {"log.retention.ms": "20"}
    layers = NodeLayers(node_settings({}), for_all_brokers=told)
    told["log.retention.ms"] = "30"
    assert layers.topic_settings({})[RETENTION_MS] == 20


@given(
    st.dictionaries(st.sampled_from([setting.name for setting in TOPIC]), st.sampled_from(["1", "-1", "0.1", "x"]))
)
def test_all_at_once_is_the_same_as_one_by_one(overrides: dict[str, str]) -> None:
    at_once = ALL_LAYERS.topic_settings(overrides)
    for setting in TOPIC:
        assert at_once.overrides[setting.name] == ALL_LAYERS.effective_for_topic(setting, overrides).value
