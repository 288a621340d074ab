"""From the client's arguments to librdkafka's settings: where the cluster is, and silence where it chatters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from millpond.client.errors import ConfigError
from millpond.remote.bootstrap import bootstrap_servers
from millpond.remote.client_file import client_settings, for_librdkafka

LOG = logging.getLogger("millpond.client")

T = TypeVar("T")


class _Quiet:
    """Where librdkafka's log lines go. It calls every refused connection an error, ten times a second; what matters
    to a program comes to it as an exception anyway."""

    def log(self, level: int, line: str, *parts: object) -> None:
        LOG.debug(line, *parts)


def common_settings(bootstrap: str | None) -> dict[str, Any]:
    """What producers, consumers and administration have in common; MILLPOND_CLIENT_CONFIG goes before it."""
    given = client_settings()
    return {
        "client.id": "millpond",
        # A node that restarts is back in well under a second; a client should not sleep ten.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "topic.metadata.refresh.fast.interval.ms": 50,
        "log.connection.close": False,
        **for_librdkafka(given),
        "bootstrap.servers": bootstrap_servers(bootstrap, given.get("bootstrap.servers")),
    }


def make(kind: Callable[..., T], settings: Mapping[str, Any]) -> T:
    """A client of librdkafka whose log lines go to ours; a setting it does not know is a ConfigError."""
    try:
        return kind(for_librdkafka(settings), logger=_Quiet())
    except KafkaException as refusal:
        error = refusal.args[0]
        raise ConfigError(f"the client cannot be set up: {error.str()}", code=error.code()) from refusal
    except (TypeError, ValueError) as refusal:
        raise ConfigError(f"the client cannot be set up: {refusal}") from refusal
