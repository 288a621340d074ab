"""Open a share group's consumer with the client's arguments, and check the group's settings first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from millpond.client.checks import check_settings, check_text
from millpond.client.connection import LOG
from millpond.client.errors import ClientError, ConfigError
from millpond.remote.bootstrap import bootstrap_servers
from millpond.remote.client_file import client_settings
from millpond.remote.cluster import SETTINGS, Cluster
from millpond.remote.errors import Answered
from millpond.remote.shares.group_settings import (
    OFFSET_RESET,
    ShareGroupSettings,
    read_group_settings,
    set_offset_reset,
)
from millpond.remote.shares.share_consumer import ShareConsumer

API_TIMEOUT_MS: Final = "3000"
"""For the questions before a member joins, which are repeated by those who wait for the cluster."""

UNKNOWN_SETTINGS: Final = ShareGroupSettings(
    delivery_limit=None, delays=True, dead_letters="", offset_reset="latest", is_offset_reset_set=True
)
"""Of a group whose settings this user may not read."""


def wire_settings(bootstrap: str | None, settings: Mapping[str, Any] | None) -> dict[str, str]:
    """The settings of our own connections, from those of librdkafka: addresses, timeouts and security."""
    if bootstrap is not None:
        check_text(bootstrap, "bootstrap")
    own = check_settings(settings)
    if callable(own.get("oauth_cb")):
        raise ConfigError(
            "a queue does not use oauth_cb: give sasl.oauthbearer.token.endpoint.url, or the other settings of "
            "docs/security.md"
        )
    from_file = client_settings()
    chosen = from_file | {name: str(value) for name, value in own.items()}
    return {
        "default.api.timeout.ms": API_TIMEOUT_MS,
        **{name: value for name, value in chosen.items() if name in SETTINGS},
        "bootstrap.servers": bootstrap_servers(bootstrap, from_file.get("bootstrap.servers")),
    }


def open_member(
    settings: Mapping[str, str], group: str, topics: Sequence[str], from_: str, *, renews: bool
) -> tuple[ShareConsumer, ShareGroupSettings]:
    """A member of the group, which begins at `from_` if it has no setting of its own for that."""
    with Cluster(settings) as cluster:
        try:
            about = read_group_settings(cluster, group)
        except Answered as fault:
            if fault.retriable:
                raise
            LOG.warning("the settings of the group %s are unknown: %s", group, fault)
            about = UNKNOWN_SETTINGS
        if not about.is_offset_reset_set and about.offset_reset != from_:
            try:
                set_offset_reset(cluster, group, from_)
            except ClientError as fault:
                if fault.retriable:
                    raise
                LOG.warning(
                    "the group %s begins to read a partition at %s=%s, which this user may not change (%s): set it "
                    "with `millpond config set group %s %s=%s`",
                    group,
                    OFFSET_RESET,
                    about.offset_reset,
                    fault,
                    group,
                    OFFSET_RESET,
                    from_,
                )
    return ShareConsumer(settings, group, topics, renews=renews), about


def is_passing(fault: ClientError) -> bool:
    """Whether `open_member` may succeed later: the cluster does not answer."""
    cause = fault.__cause__
    return fault.retriable or (isinstance(cause, ClientError) and cause.retriable)


def warn_of_delay(group: str) -> None:
    LOG.warning(
        "this cluster cannot delay a released record (the group %s has no share.delay.enable=true): a record that is "
        "released with a delay is delivered again at once",
        group,
    )
