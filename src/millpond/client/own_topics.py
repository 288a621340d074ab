"""The topics that a worker needs beside those it reads: made when they are missing, like the topic they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from millpond.client.connection import LOG, common_settings, make

ANSWER_SECONDS = 10.0


def ensure_topics(
    bootstrap: str | None, wanted: Mapping[str, str], settings: Mapping[str, Any] | None = None
) -> None:
    """Create each topic of `wanted` that is missing, with as many partitions as the topic it stands for.

    A cluster that lets nobody create topics may still create them by itself at the first record.
    """
    if not wanted:
        return
    admin = make(AdminClient, common_settings(bootstrap) | dict(settings or {}))
    try:
        known = admin.list_topics(timeout=ANSWER_SECONDS).topics
    except KafkaException as fault:
        LOG.warning("cannot look whether %s exist: %s", ", ".join(wanted), fault)
        return
    missing = [
        NewTopic(name, num_partitions=max(len(known[like].partitions), 1) if like in known else 1)
        for name, like in wanted.items()
        if name not in known
    ]
    if not missing:
        return
    for name, future in admin.create_topics(missing, request_timeout=ANSWER_SECONDS).items():
        try:
            future.result(ANSWER_SECONDS)
        except (KafkaException, TimeoutError) as fault:
            # Another worker may have been quicker; anything else shows when the first record is sent.
            LOG.info("topic %s was not created: %s", name, fault)
