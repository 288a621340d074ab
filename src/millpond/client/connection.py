"""From the client's arguments to librdkafka's settings: where the cluster is, and silence where it chatters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from threading import current_thread, main_thread
from typing import Any, Final, TypeAlias, TypeVar

from confluent_kafka import KafkaException

from millpond.client.checks import check_settings, check_text
from millpond.client.errors import ConfigError
from millpond.remote.bootstrap import bootstrap_servers
from millpond.remote.client_file import client_settings, for_librdkafka

LOG = logging.getLogger("millpond.client")

T = TypeVar("T")

OnRaised: TypeAlias = Callable[[str, BaseException], None]
"""Hears which callback raised, and what."""

CALLBACKS: Final = ("error_cb", "on_commit", "on_delivery", "stats_cb", "throttle_cb")
"""What librdkafka calls, but for the one that asks for a token, whose failure librdkafka must hear of."""


CREATE_TOPICS: Final = "allow.auto.create.topics"

UNKNOWN_TOPIC_MS: Final = 3_000
"""How long the node that is asked may not know a topic that was just created on another one."""


class _Quiet:
    """Where librdkafka's log lines go. It calls every refused connection an error, ten times a second; what matters
    to a program comes to it as an exception anyway."""

    def log(self, level: int, line: str, *parts: object) -> None:
        LOG.debug(line, *parts)


def common_settings(bootstrap: str | None) -> dict[str, Any]:
    """What producers, consumers and administration have in common; MILLPOND_CLIENT_CONFIG goes before it."""
    given = client_settings()
    if bootstrap is not None:
        check_text(bootstrap, "bootstrap")
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


def producer_settings(
    bootstrap: str | None, own: Mapping[str, Any], given: Mapping[str, Any], *, create_topics: bool = False
) -> dict[str, Any]:
    """A producer's settings: our own, and those given by the user, which take precedence.

    A record for a topic that does not exist fails after `UNKNOWN_TOPIC_MS`, unless missing topics are to be created.
    """
    chosen = {CREATE_TOPICS: create_topics} | common_settings(bootstrap) | dict(own) | dict(given)
    if str(chosen[CREATE_TOPICS]).lower() in ("true", "t", "1"):
        return chosen
    return {"topic.metadata.propagation.max.ms": UNKNOWN_TOPIC_MS} | chosen


def log_raised(name: str, error: BaseException) -> None:
    """For who has nobody to tell. Ctrl-C interrupts the main thread; another one must go on with its work."""
    if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():
        raise error
    LOG.error("%s raised %r: it is called again all the same", name, error, exc_info=error)


def make(kind: Callable[..., T], settings: Mapping[str, Any], on_raised: OnRaised = log_raised) -> T:
    """A client of librdkafka whose log lines go to ours; a setting it does not know is a ConfigError.

    What a callback raises goes to `on_raised`. Thrown through librdkafka it would take along what that had in hand:
    records that were read, reports of others, and the thread that asked.
    """
    chosen = for_librdkafka(check_settings(settings))
    chosen |= {name: _guarded(name, chosen[name], on_raised) for name in CALLBACKS if callable(chosen.get(name))}
    try:
        return kind(chosen, logger=_Quiet())
    except KafkaException as refusal:
        error = refusal.args[0]
        raise ConfigError(f"the client cannot be set up: {error.str()}", code=error.code()) from refusal
    except (TypeError, ValueError) as refusal:
        raise ConfigError(f"the client cannot be set up: {refusal}") from refusal


def _guarded(name: str, callback: Callable[..., object], on_raised: OnRaised) -> Callable[..., None]:
    def call(*given: object) -> None:
        try:
            callback(*given)
        except BaseException as error:
            on_raised(name, error)

    return call
