"""Create a worker's retry and dead-letter topics, modelled on the topic they belong to, if they are missing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]

from millpond.client.connection import LOG, common_settings, make
from millpond.client.errors import advice_on

ANSWER_SECONDS = 10.0
RECORD_BYTES = "max.message.bytes"
ADDED_BYTES_MAX = 64_000
"""What a worker adds to a failed record: mostly the error and its traceback."""


def ensure_topics(
    bootstrap: str | None,
    models: Mapping[str, str],
    settings: Mapping[str, Any] | None = None,
    answer_s: float = ANSWER_SECONDS,
) -> bool:
    """Create each missing topic of `models`, with as many partitions as its model topic. False without an answer.

    A new topic accepts the model's largest record plus the added headers; existing topics that do not are logged.
    """
    if not models:
        return True
    admin = make(AdminClient, common_settings(bootstrap) | dict(settings or {}))
    try:
        existing = admin.list_topics(timeout=answer_s).topics
    except KafkaException as fault:
        LOG.warning("cannot check whether %s exist: %s", ", ".join(models), advice_on(fault.args[0]))
        return False
    limits = _limits(admin, {each for pair in models.items() for each in pair if each in existing})
    _warn_of_small_topics(models, limits)
    missing = [
        NewTopic(
            name,
            num_partitions=max(len(existing[model].partitions), 1) if model in existing else 1,
            config={RECORD_BYTES: str(limits[model] + ADDED_BYTES_MAX)} if model in limits else {},
        )
        for name, model in models.items()
        if name not in existing
    ]
    if not missing:
        return True
    for name, future in admin.create_topics(missing, request_timeout=ANSWER_SECONDS).items():
        try:
            future.result(ANSWER_SECONDS)
        except (KafkaException, TimeoutError) as fault:
            # Another worker may have created it; any other fault shows when the first record is sent.
            LOG.info("topic %s was not created: %s", name, fault)
    return True


def _warn_of_small_topics(models: Mapping[str, str], limits: Mapping[str, int]) -> None:
    for name, model in models.items():
        needed = limits.get(model, 0) + ADDED_BYTES_MAX
        if model in limits and limits.get(name, needed) < needed:
            LOG.warning(
                "topic %s takes records of %d bytes, %s of %d: the largest ones will not fit with the error that is "
                "added to them; raise %s of %s to %d",
                name,
                limits[name],
                model,
                limits[model],
                RECORD_BYTES,
                name,
                needed,
            )


def _limits(admin: AdminClient, topics: Collection[str]) -> dict[str, int]:
    """The largest record of each topic, where the cluster reports it."""
    limits: dict[str, int] = {}
    if not topics:
        return limits
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]
    for resource, future in admin.describe_configs(resources, request_timeout=ANSWER_SECONDS).items():
        try:
            limits[resource.name] = int(future.result(ANSWER_SECONDS)[RECORD_BYTES].value)
        except (KafkaException, TimeoutError, KeyError, TypeError, ValueError) as fault:
            LOG.info("max.message.bytes of topic %s is unknown: %s", resource.name, fault)
    return limits
