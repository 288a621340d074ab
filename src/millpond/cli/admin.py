"""What the topic commands ask of a cluster, over confluent-kafka's AdminClient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millpond.cli.connect import ANSWER_SECONDS
from millpond.cli.errors import failed

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka.admin import AdminClient

SOURCES: Final = {
    1: "topic",
    2: "broker, changed while running",
    3: "all brokers, changed while running",
    4: "broker, set at start",
    5: "default",
}
"""Where a setting's value comes from, by the protocol's number."""

DEFAULT_SOURCE: Final = 5


class TopicSetting(NamedTuple):
    name: str
    value: str | None
    source: str


def create(admin: AdminClient, name: str, partitions: int, replicas: int, settings: Mapping[str, str]) -> None:
    """-1 partitions or replicas: as many as the cluster gives by default."""
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    topic = NewTopic(name, partitions, replicas, config=dict(settings))
    futures = admin.create_topics([topic], request_timeout=ANSWER_SECONDS, operation_timeout=ANSWER_SECONDS)
    settle(f"Topic {name} was not created", futures[name])


def grow(admin: AdminClient, name: str, partitions: int) -> None:
    from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

    futures = admin.create_partitions([NewPartitions(name, partitions)], request_timeout=ANSWER_SECONDS)
    settle(f"Topic {name} keeps its partitions", futures[name])


def delete(admin: AdminClient, names: Sequence[str]) -> None:
    futures = admin.delete_topics(list(names), request_timeout=ANSWER_SECONDS, operation_timeout=ANSWER_SECONDS)
    for name, future in futures.items():
        settle(f"Topic {name} was not deleted", future)


def alter(admin: AdminClient, name: str, settings: Mapping[str, str], unset: Sequence[str]) -> None:
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
    )

    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in settings.items()
    ]
    entries += [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in unset]
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
    futures = admin.incremental_alter_configs([resource], request_timeout=ANSWER_SECONDS)
    settle(f"Topic {name} keeps its settings", futures[resource])


def own_settings(admin: AdminClient, names: Sequence[str]) -> dict[str, list[TopicSetting]]:
    """The settings of each topic that are not simply the default."""
    from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

    resources = {ConfigResource(ConfigResource.Type.TOPIC, name): name for name in names}
    futures = admin.describe_configs(list(resources), request_timeout=ANSWER_SECONDS)
    found = {}
    for resource, future in futures.items():
        entries = settle(f"The settings of {resource.name} are not known", future)
        found[resource.name] = [
            TopicSetting(entry.name, None if entry.is_sensitive else entry.value, SOURCES.get(entry.source, "?"))
            for entry in sorted(entries.values(), key=lambda entry: (entry.source, entry.name))
            if entry.source != DEFAULT_SOURCE and not entry.is_default
        ]
    return found


def settle(what: str, future: Future[Any]) -> Any:
    """The result of a future; `what` is told if there is none."""
    from confluent_kafka import KafkaException

    try:
        return future.result()
    except KafkaException as refusal:
        raise failed(what, refusal.args[0]) from refusal
