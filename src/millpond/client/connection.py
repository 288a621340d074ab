"""Create librdkafka clients from the client's arguments, with guarded callbacks and quiet logs."""

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
"""Called with the name of a callback and what it raised."""

CALLBACKS: Final = ("error_cb", "on_commit", "on_delivery", "stats_cb", "throttle_cb")
"""librdkafka's callbacks, except the token refresh, whose failure librdkafka must see."""


CREATE_TOPICS: Final = "allow.auto.create.topics"

UNKNOWN_TOPIC_MS: Final = 3_000
"""How long a node may lack the metadata of a topic that was just created through another one."""


class _DebugLogger:
    """librdkafka logs every refused connection as an error, ten times a second; what matters raises anyway."""

    def log(self, level: int, line: str, *parts: object) -> None:
        LOG.debug(line, *parts)


def common_settings(bootstrap: str | None) -> dict[str, Any]:
    """Settings shared by producers, consumers and admin clients; MILLPOND_CLIENT_CONFIG overrides them."""
    file_settings = client_settings()
    if bootstrap is not None:
        check_text(bootstrap, "bootstrap")
    return {
        "client.id": "millpond",
        # A node that restarts is back in well under a second; a client should not sleep ten.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "topic.metadata.refresh.fast.interval.ms": 50,
        "log.connection.close": False,
        **for_librdkafka(file_settings),
        "bootstrap.servers": bootstrap_servers(bootstrap, file_settings.get("bootstrap.servers")),
    }


def producer_settings(
    bootstrap: str | None, own: Mapping[str, Any], overrides: Mapping[str, Any], *, create_topics: bool = False
) -> dict[str, Any]:
    """A producer's settings; the user's take precedence.

    A record for a missing topic fails after `UNKNOWN_TOPIC_MS`, unless missing topics are created.
    """
    chosen = {CREATE_TOPICS: create_topics} | common_settings(bootstrap) | dict(own) | dict(overrides)
    if str(chosen[CREATE_TOPICS]).lower() in ("true", "t", "1"):
        return chosen
    return {"topic.metadata.propagation.max.ms": UNKNOWN_TOPIC_MS} | chosen


def log_raised(name: str, error: BaseException) -> None:
    """The default OnRaised. Ctrl-C must interrupt the main thread; other threads go on."""
    if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():
        raise error
    LOG.error("%s raised %r: it will still be called again", name, error, exc_info=error)


def make(kind: Callable[..., T], settings: Mapping[str, Any], on_raised: OnRaised = log_raised) -> T:
    """Create a librdkafka client that logs to our logger; an unknown setting is a ConfigError.

    What a callback raises goes to `on_raised`. Propagated through librdkafka it would lose the records and reports
    being delivered, and end the calling thread.
    """
    chosen = for_librdkafka(check_settings(settings))
    chosen |= {name: _guarded(name, chosen[name], on_raised) for name in CALLBACKS if callable(chosen.get(name))}
    try:
        return kind(chosen, logger=_DebugLogger())
    except KafkaException as refusal:
        error = refusal.args[0]
        raise ConfigError(f"the client cannot be set up: {error.str()}", code=error.code()) from refusal
    except (TypeError, ValueError) as refusal:
        raise ConfigError(f"the client cannot be set up: {refusal}") from refusal


def _guarded(name: str, callback: Callable[..., object], on_raised: OnRaised) -> Callable[..., None]:
    def call(*arguments: object) -> None:
        try:
            callback(*arguments)
        except BaseException as error:
            on_raised(name, error)

    return call
