"""The options of the source and sink: read, checked and refused with words that help."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.remote.bootstrap import BOOTSTRAP_VARIABLE
from millpond.spark import options as o
from millpond.spark.options import OptionError, Where, read_options


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    options = read_options({"subscribe": "orders"}, "readStream")
    assert options[o.FAIL_ON_DATA_LOSS] is True
    assert options[o.INCLUDE_HEADERS] is False
    assert options[o.MAX_TRIGGER_DELAY_MS] == 900_000
    assert options.get(o.MAX_OFFSETS_PER_TRIGGER) is None
    assert options[o.STARTING_OFFSETS_BY_TIMESTAMP_STRATEGY] == "error"
    assert options[o.ENDING_OFFSETS] == "latest"
    assert options.isolation == "read_uncommitted"


def test_names_are_case_insensitive_and_values_typed() -> None:
    given = {
        "SUBSCRIBE": "a,b",
        "failondataloss": "FALSE",
        "MinPartitions": "8",
        "kafka.Isolation.Level": "read_committed",
    }
    options = read_options(given, "read")
    assert options[o.SUBSCRIBE] == "a,b"
    assert options[o.FAIL_ON_DATA_LOSS] is False
    assert options[o.MIN_PARTITIONS] == 8
    assert options.isolation == "read_committed"
    assert options.get(o.MIN_PARTITIONS) == 8
    assert options.get(o.ASSIGN) is None
    assert not options.is_streaming


def test_kafka_settings_lose_their_prefix() -> None:
    given = {"kafka.bootstrap.servers": "h:1,h:2", "kafka.sasl.username": "me"}
    options = read_options(given, "writeStream")
    assert options.kafka == {"bootstrap.servers": "h:1,h:2", "sasl.username": "me"}
    assert options.bootstrap == "h:1,h:2"


def test_the_cluster_has_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BOOTSTRAP_VARIABLE, raising=False)
    assert read_options({}, "read").bootstrap == "127.0.0.1:9092"
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "pond:19092")
    assert read_options({}, "read").bootstrap == "pond:19092"


@pytest.mark.parametrize(
    ("given", "where", "reason"),
    [
        ({"startingOfsets": "earliest"}, "read", "no option startingOfsets; did you mean startingOffsets"),
        ({"subscribePatern": "a.*"}, "readStream", "did you mean subscribePattern"),
        ({"bootstrap.servers": "h:1"}, "read", "written kafka.bootstrap.servers"),
        ({"zebra": "1"}, "read", "there are subscribe,"),
        ({"path": "orders"}, "read", "option subscribe, not by a path"),
        ({"path": "orders"}, "write", "option topic, not by a path"),
        ({"minPartitions": "0"}, "read", "option minPartitions=0: must be at least 1"),
        ({"maxTriggerDelay": "soon"}, "readStream", "option maxTriggerDelay=soon: must be a time such as 500ms"),
        ({"badRecords": "skip"}, "read", "fail, null, dead_letters"),
        ({"kafka.isolation.level": "committed"}, "read", "read_uncommitted, read_committed"),
        ({"endingOffsets": "latest"}, "readStream", "endingOffsets is for a batch read, not for a streaming read"),
        ({"endingTimestamp": "5"}, "readStream", "not for a streaming read"),
        ({"commitGroup": "g"}, "read", "commitGroup is for a streaming read"),
        ({"topic": "t"}, "read", "topic is for a batch write and a streaming write"),
        ({"subscribe": "t"}, "write", "not for a batch write"),
    ],
)  # fmt: skip
def test_an_error_says_what_to_do(given: dict[str, str], where: Where, reason: str) -> None:
    with pytest.raises(OptionError) as raised:
        read_options(given, where)
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("setting", "where", "instead"),
    [
        ("key.deserializer", "read", "bytes"),
        ("value.deserializer", "readStream", "bytes"),
        ("auto.offset.reset", "readStream", "startingOffsets"),
        ("enable.auto.commit", "readStream", "commitGroup"),
        ("interceptor.classes", "read", "Java"),
        ("value.serializer", "write", "bytes"),
        ("transactional.id", "writeStream", "delivery=exactly_once"),
    ],
)
def test_settings_that_contradict_the_source_are_refused(setting: str, where: Where, instead: str) -> None:
    with pytest.raises(OptionError, match=instead) as raised:
        read_options({f"kafka.{setting}": "x"}, where)
    assert f"kafka.{setting}" in str(raised.value)


def test_an_unused_kafka_setting_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            read_options({"subscribe": "t", "kafka.fetch.min.bytes": "1", "kafka.sasl.oauthbearer.new": "1"}, "read")
    assert [each.getMessage().partition(";")[0] for each in caplog.records] == [
        "kafka.fetch.min.bytes has no effect here",
        "kafka.sasl.oauthbearer.new has no effect here",
    ]


def test_an_unknown_kafka_setting_is_refused() -> None:
    with pytest.raises(OptionError, match=r"no setting kafka\.nope: no Kafka client has a setting of that name"):
        read_options({"subscribe": "t", "kafka.nope": "1"}, "read")
    with pytest.raises(OptionError, match=r"did you mean kafka\.fetch\.min\.bytes"):
        read_options({"kafka.fetch.min.byte": "1"}, "readStream")
    with pytest.raises(OptionError, match=r"did you mean kafka\.bootstrap\.servers"):
        read_options({"kafka.bootstrap.server": "h:1"}, "read")


def test_a_harmless_option_only_causes_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        options = read_options({"subscribe": "t", "maxOffsetsPerTrigger": "5"}, "read")
    assert options.get(o.MAX_OFFSETS_PER_TRIGGER) is None
    assert "maxOffsetsPerTrigger has no effect on a batch read" in caplog.text


def test_options_that_spark_adds_are_ignored() -> None:
    assert (
        read_options({"checkpointLocation": "x", "queryName": "q", "option.topic": "t"}, "writeStream").values == {}
    )


def test_options_can_be_pickled() -> None:
    options = read_options({"subscribe": "t", "includeHeaders": "true"}, "read")
    assert pickle.loads(pickle.dumps(options)) == options


def test_every_option_has_a_unique_name_and_a_description() -> None:
    names = [each.name.lower() for each in o.OPTIONS]
    assert len(names) == len(set(names))
    assert all(each.doc.endswith(".") and each.where for each in o.OPTIONS)


def test_the_page_of_options_is_up_to_date() -> None:
    tool = Path(__file__).parents[2] / "tools" / "spark_docs.py"
    assert subprocess.run([sys.executable, str(tool), "--check"], check=False).returncode == 0
