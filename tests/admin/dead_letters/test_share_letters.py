"""Dead letters that the broker wrote for a share group: seen and sent back like those of a worker."""

from __future__ import annotations

import time

from confluent_kafka import AcknowledgeType, Message, ShareConsumer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from millpond.admin.dead_letters.letters import Filter, LetterTopic
from millpond.admin.dead_letters.redrive import Redrive, RedriveOrder
from millpond.admin.dead_letters.topics import list_letter_topics
from millpond.remote.cluster import Cluster
from millpond.testing import Pond

PATIENCE_SECONDS = 60.0


def configure(pond: Pond, group: str, **settings: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=entries)
    for future in pond.admin.incremental_alter_configs([resource]).values():
        future.result(PATIENCE_SECONDS)


def poll(member: ShareConsumer) -> Message:
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        messages = list(member.poll(0.5))
        if messages:
            (message,) = messages
            assert message.error() is None
            return message
    raise AssertionError("no record")


def test_a_letter_of_the_broker_is_redriven(cluster: Cluster, pond: Pond) -> None:
    topic = pond.new_topic(1)
    dlq, group = f"{topic}.dlq", f"share-{topic}"
    configure(pond, group, share_auto_offset_reset="earliest", errors_deadletterqueue_topic_name=dlq)
    pond.producer.produce(topic, b"bad", b"k", headers=[("own", b"1")])
    pond.producer.flush(PATIENCE_SECONDS)
    member = ShareConsumer(
        {
            "bootstrap.servers": pond.bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
        }
    )
    try:
        member.subscribe([topic])
        member.acknowledge(poll(member), AcknowledgeType.REJECT)
        assert list(member.commit_sync().values()) == [None]
        until = time.monotonic() + PATIENCE_SECONDS
        while dlq not in {each.topic for each in list_letter_topics(cluster)[0] if each.records}:
            assert time.monotonic() < until
            time.sleep(0.1)
        letters = LetterTopic.find(cluster, dlq)
        (letter,) = letters.letters(letters.bounds)
        assert letter.facts is not None
        assert str(letter.facts.origin) == f"{topic}[0]@0"
        assert (letter.facts.group, letter.facts.attempts, letter.error_type) == (group, 1, "Rejected")
        Redrive(cluster, RedriveOrder(dlq, Filter())).run(lambda _: None)
        again = poll(member)
        assert (again.key(), again.value()) == (b"k", b"bad")
        assert dict(again.headers() or []) == {
            "own": b"1",
            "dlq.redriven": b"1",
            "dlq.redriven.for": group.encode(),
        }
        member.acknowledge(again, AcknowledgeType.ACCEPT)
        assert list(member.commit_sync().values()) == [None]
    finally:
        member.close()
