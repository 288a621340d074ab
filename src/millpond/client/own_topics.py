"""The topics that a worker needs beside those it reads: made when they are missing, like the topic they belong to."""

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
"""What a worker adds to a record that it sends away: mostly the error and its traceback."""


def ensure_topics(
    bootstrap: str | None,
    wanted: Mapping[str, str],
    settings: Mapping[str, Any] | None = None,
    answer_s: float = ANSWER_SECONDS,
) -> bool:
    """Create each topic of `wanted` that is missing, with as many partitions as the topic it stands for.

    It takes the largest record of that topic with what is added to it; a warning names those that exist and do not.
    False if the cluster did not answer.
    """
    if not wanted:
        return True
    admin = make(AdminClient, common_settings(bootstrap) | dict(settings or {}))
    try:
        known = admin.list_topics(timeout=answer_s).topics
    except KafkaException as fault:
        LOG.warning("cannot look whether %s exist: %s", ", ".join(wanted), advice_on(fault.args[0]))
        return False
    alike = {name: like for name, like in wanted.items() if name not in known}
    limits = _limits(admin, {each for pair in wanted.items() for each in pair if each in known})
    _warn_of_small_topics(wanted, limits)
    if not alike:
        return True
    missing = [
        NewTopic(
            name,
            num_partitions=max(len(known[like].partitions), 1) if like in known else 1,
            config={RECORD_BYTES: str(limits[like] + ADDED_BYTES_MAX)} if like in limits else {},
        )
        for name, like in alike.items()
    ]
    for name, future in admin.create_topics(missing, request_timeout=ANSWER_SECONDS).items():
        try:
            future.result(ANSWER_SECONDS)
        except (KafkaException, TimeoutError) as fault:
            # Another worker may have been quicker; anything else shows when the first record is sent.
            LOG.info("topic %s was not created: %s", name, fault)
    return True


def _warn_of_small_topics(wanted: Mapping[str, str], limits: Mapping[str, int]) -> None:
    for name, like in wanted.items():
        needed = limits.get(like, 0) + ADDED_BYTES_MAX
        if like in limits and limits.get(name, needed) < needed:
            LOG.warning(
                "topic %s takes records of %d bytes, %s of %d: the largest ones will not fit with the error that is "
                "added to them; raise %s of %s to %d",
                name,
                limits[name],
                like,
                limits[like],
                RECORD_BYTES,
                name,
                needed,
            )


def _limits(admin: AdminClient, topics: Collection[str]) -> dict[str, int]:
    """How large a record may be in each topic, as far as the cluster says."""
    limits: dict[str, int] = {}
    asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]
    for resource, future in (admin.describe_configs(asked, request_timeout=ANSWER_SECONDS) if asked else {}).items():
        try:
            limits[resource.name] = int(future.result(ANSWER_SECONDS)[RECORD_BYTES].value)
        except (KafkaException, TimeoutError, KeyError, TypeError, ValueError) as fault:
            LOG.info("the largest record of topic %s is not known: %s", resource.name, fault)
    return limits
