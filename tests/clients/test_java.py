"""What only the Java client shows of a response: which record of a batch was rejected, settings of newer types."""

from __future__ import annotations

import pytest

from support.java_programs import compiled, run_java


@pytest.mark.smoke
@pytest.mark.slow
def test_the_java_client_tells_bad_records_from_good_ones_and_alters_settings_of_all_kinds(
    node, raw, topic, tmp_path_factory
):
    classes = compiled(tmp_path_factory.mktemp("classes"))
    raw.create_topic(topic, cleanup_policy="compact")
    first, second, third, *settings = run_java(classes, "Refusals", node.bootstrap, topic)
    assert second == "InvalidRecordException: records of a compacted topic need a key"
    assert first == third
    assert "part of a batch which had one more more invalid records" in first
    assert settings == [
        "consumer.session.timeout.ms=50000 from DYNAMIC_GROUP_CONFIG",
        "interval.ms=60000 from DYNAMIC_CLIENT_METRICS_CONFIG",
        "root=WARN from DYNAMIC_BROKER_LOGGER_CONFIG",
    ]
    assert raw.read_all(topic) == []
    assert "fault" not in node.journal()
