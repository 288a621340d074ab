"""Topics that a worker makes for itself."""

from __future__ import annotations

import logging

from confluent_kafka.admin import AdminClient

from millpond.client.worker_topics import ensure_topics


def partitions(bootstrap: str) -> dict[str, int]:
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
    return {name: len(topic.partitions) for name, topic in found.items()}


def test_missing_topics_get_as_many_partitions_as_the_one_they_serve(broker) -> None:
    topic = broker.topic(3)
    models = {f"{topic}.dlq": topic, f"{topic}.other": "nowhere"}
    ensure_topics(broker.bootstrap, models)
    ensure_topics(broker.bootstrap, models)
    found = partitions(broker.bootstrap)
    assert (found[f"{topic}.dlq"], found[f"{topic}.other"]) == (3, 1)


def test_existing_topics_are_left_alone_and_none_wanted_asks_nobody(broker) -> None:
    topic = broker.topic(3)
    other = broker.topic(2)
    ensure_topics(broker.bootstrap, {other: topic})
    assert partitions(broker.bootstrap)[other] == 2
    ensure_topics("127.0.0.1:1", {})


def test_an_existing_topic_that_takes_smaller_records_is_named(broker, caplog) -> None:
    topic, letters = broker.topic(1), broker.topic(1)
    with caplog.at_level(logging.WARNING, "millpond.client"):
        ensure_topics(broker.bootstrap, {letters: topic})
    (warning,) = caplog.messages
    assert f"raise max.message.bytes of {letters}" in warning
    caplog.clear()
    with caplog.at_level(logging.WARNING, "millpond.client"):
        for _ in range(2):
            ensure_topics(broker.bootstrap, {f"{topic}.dlq": topic})
    assert not caplog.messages
