import pytest

from millpond.base.settings import SettingError
from millpond.config.node import (
    COARSE,
    DEFAULT_REPLICATION_FACTOR,
    LISTEN,
    NODE,
    NUM_PARTITIONS,
    ClusterNode,
    cluster_nodes,
    host_and_port,
    is_loopback,
    node_settings,
)
from millpond.config.topic import TOPIC


def test_every_topic_setting_inherits_from_a_node_setting_with_the_same_default_and_bounds() -> None:
    for setting in TOPIC:
        if setting.name.endswith("replication.throttled.replicas"):
            # A list of replicas is one topic's alone.
            assert setting.inherits is None
            continue
        assert setting.inherits is not None
        given_by = NODE.get(setting.inherits)
        assert (given_by.default, given_by.check, given_by.kind) == (setting.default, setting.check, setting.kind)
        assert given_by.inherits is None
        assert given_by.live
        assert setting.name in given_by.doc


def test_every_setting_says_in_a_sentence_what_it_does() -> None:
    for setting in NODE:
        assert setting.doc.endswith("."), setting.name


@pytest.mark.parametrize(
    ("address", "split"),
    [
        ("127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("host:0", ("host", 0)),
        ("[::1]:9092", ("::1", 9092)),
    ],
)
def test_addresses(address: str, split: tuple[str, int]) -> None:
    assert host_and_port(address) == split


@pytest.mark.parametrize(
    "address", ["", "host", ":9092", "host:", "host:x", "host:65536", "host:-1", "host:²", "a..b:1"]
)
def test_addresses_that_cannot_be(address: str) -> None:
    with pytest.raises(SettingError, match="is not an address"):
        host_and_port(address)
    with pytest.raises(SettingError, match="listen="):
        LISTEN.parse(address)


@pytest.mark.parametrize(
    ("host", "is_one"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("0:0:0:0:0:0:0:1", True),
        ("::ffff:127.0.0.2", True),
        ("127.example.com", False),
        ("127.0.0.1.example.com", False),
        ("128.0.0.1", False),
        ("::2", False),
        ("0.0.0.0", False),
        ("", False),
    ],
)
def test_the_loopback_is_known_by_its_numbers(host: str, is_one: bool) -> None:
    assert is_loopback(host) == is_one


def test_an_empty_advertised_listener_is_fine_and_a_wrong_one_is_not() -> None:
    assert node_settings({"advertised.listener": ""}).overrides == {"advertised.listener": ""}
    with pytest.raises(SettingError):
        node_settings({"advertised.listener": "nowhere"})


def test_a_node_is_alone_unless_it_is_told_of_others() -> None:
    assert cluster_nodes(node_settings({})) == ()


def test_the_nodes_of_a_cluster_come_in_the_order_of_their_ids() -> None:
    settings = node_settings({"node.id": "2", "cluster.nodes": "3@[fd00::3]:9094, 1@10.0.0.1:9092,2@10.0.0.2:9092"})
    assert cluster_nodes(settings) == (
        ClusterNode(1, "10.0.0.1", 9092),
        ClusterNode(2, "10.0.0.2", 9092),
        ClusterNode(3, "fd00::3", 9094),
    )


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("1@a:9092,1@b:9092", "two nodes have id 1"),
        ("1@a:9092,2@a:9092", "nodes 1 and 2 have the same address"),
        ("a:9092", "must have the form id@host:port"),
        ("x@a:9092", "must have the form id@host:port"),
        ("-1@a:9092", "must have the form id@host:port"),
        ("9999999999@a:9092", "must have the form id@host:port"),
        ("1@a", "host:port"),
        ("1@a:0", "needs a port"),
        ("1@127.0.0.1:9092,2@10.0.0.2:9092", "which nodes on other machines cannot reach"),
        ("1@0.0.0.0:9092", "cannot connect to a wildcard address"),
        ("2@a:9092,3@b:9092", "node.id=1 is not in cluster.nodes"),
    ],
)
def test_clusters_that_cannot_be(nodes: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        node_settings({"cluster.nodes": nodes})


@pytest.mark.parametrize(("count", "replicas", "in_sync"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 3, 2)])
def test_in_a_cluster_records_survive_a_node_unless_somebody_says_otherwise(
    count: int, replicas: int, in_sync: int
) -> None:
    nodes = ",".join(f"{number}@10.0.0.{number}:9092" for number in range(1, count + 1))
    settings = node_settings({"cluster.nodes": nodes})
    assert settings.overrides["default.replication.factor"] == replicas
    assert settings.overrides["min.insync.replicas"] == in_sync
    explicit = node_settings({"cluster.nodes": nodes, "default.replication.factor": "1", "min.insync.replicas": "1"})
    assert explicit[DEFAULT_REPLICATION_FACTOR] == 1
    assert explicit.overrides["min.insync.replicas"] == 1


def test_settings_from_texts() -> None:
    settings = node_settings({"num.partitions": "3"})
    assert settings[NUM_PARTITIONS] == 3
    assert settings.overrides == {"num.partitions": 3}


@pytest.mark.parametrize(
    ("texts", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.minutes": "3"}, 180_000),
        ({"log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "0"}, 0),
    ],
)
def test_retention_counts_in_the_finest_unit_given(texts: dict[str, str], retention_ms: int) -> None:
    assert node_settings(texts).overrides == {"log.retention.ms": retention_ms}


def test_coarse_names_stand_for_settings_that_exist_and_are_not_ones_themselves() -> None:
    for name, (meant, _) in COARSE.items():
        assert meant in NODE
        assert name not in NODE


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"log.retention.hours": "soon"}, "log.retention.hours=soon"),
        ({"log.roll.hours": "0"}, "log.roll.ms=0"),
        ({"num.partition": "1"}, "did you mean num.partitions"),
    ],
)
def test_wrong_texts_are_named(texts: dict[str, str], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        node_settings(texts)
