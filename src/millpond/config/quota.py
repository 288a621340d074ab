"""Quota settings: the windows over which quotas are measured. Kafka's names mean the same here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from millpond.base.settings import AnySetting, Setting, SettingError, Settings, Value, at_least

QUOTA_WINDOW_NUM = Setting(
    "quota.window.num",
    11,
    "Byte-rate and request-time quotas are averages over this many windows, including the current one. An idle "
    "client may use the quota of all past windows at once.",
    at_least(2),
    bits=32,
)
QUOTA_WINDOW_SECONDS = Setting(
    "quota.window.size.seconds",
    1,
    "The length of one window. A request-time quota delays a client by at most this long.",
    at_least(1),
    bits=32,
)
CONTROLLER_QUOTA_WINDOW_NUM = Setting(
    "controller.quota.window.num",
    11,
    "The number of windows for quotas on partition creation and deletion. An idle client may use the quota of all "
    "of them at once.",
    at_least(1),
    bits=32,
)
CONTROLLER_QUOTA_WINDOW_SECONDS = Setting(
    "controller.quota.window.size.seconds",
    1,
    "The length of one window for quotas on partition creation and deletion.",
    at_least(1),
    bits=32,
)


def plain_address(text: str) -> str:
    """An address in the form that connections report. Raises ValueError if it is not an address."""
    from ipaddress import IPv6Address, ip_address

    address = ip_address(text)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


@lru_cache(maxsize=4)
def counts_by_address(texts: tuple[str, ...]) -> Mapping[str, int]:
    """Parse entries like `192.0.2.7:100`."""
    counts = {}
    for text in texts:
        address, colon, count = text.rpartition(":")
        if not colon or not count.isascii() or not count.isdigit():
            raise SettingError(f"{text!r} must have the form address:count")
        try:
            counts[plain_address(address.removeprefix("[").removesuffix("]"))] = int(count)
        except ValueError:
            raise SettingError(f"{address!r} is not an IP address, such as 192.0.2.7 or 2001:db8::7") from None
    return counts


def _counts(value: Value) -> str | None:
    assert isinstance(value, tuple), value
    try:
        counts_by_address(value)
    except SettingError as fault:
        return str(fault)
    return None


MAX_CONNECTIONS = Setting(
    "max.connections",
    20_000,
    "The maximum number of connections; further ones are closed immediately. If a node connects on a listener "
    "that clients do not use, the client connection that has been idle longest is closed to make room. "
    "`listener.name.NAME.max.connections` limits a single listener.",
    at_least(1),
    live=True,
    bits=32,
)
MAX_CONNECTIONS_PER_IP_OVERRIDES = Setting[tuple[str, ...]](
    "max.connections.per.ip.overrides",
    (),
    "Different limits for single IP addresses, as `192.0.2.7:100,2001:db8::7:200`.",
    _counts,
    live=True,
)
MAX_CONNECTION_CREATION_RATE = Setting(
    "max.connection.creation.rate",
    (1 << 31) - 1,
    "The maximum rate of new connections per second, averaged over the quota windows; further ones are closed "
    "immediately. Nodes on a listener of their own do not count. "
    "`listener.name.NAME.max.connection.creation.rate` limits a single listener.",
    at_least(1),
    bits=32,
    live=True,
)
MAX_CONNECTION_CREATION_RATE_PER_IP = Setting(
    "max.connection.creation.rate.per.ip",
    1000,
    "The maximum rate of new connections per second from one IP address without a `connection_creation_rate` quota.",
    at_least(1),
    bits=32,
    live=True,
)

QUEUED_MAX_RESPONSE_BYTES = Setting(
    "queued.max.response.bytes",
    512 << 20,
    "The maximum memory for unsent responses, whose clients do not read them or still await earlier ones. Above "
    "it, the connections that hold the most are closed. Records do not count: they are sent from disk.",
    at_least(1 << 20),
    live=True,
)
MAX_FETCH_SESSION_PARTITIONS = Setting(
    "max.incremental.fetch.session.partitions",
    1_000_000,
    "The maximum number of partitions in all fetch sessions together. Consumers beyond it get no session and send "
    "all their partitions in every fetch.",
    at_least(1),
    bits=32,
    live=True,
)
MAX_GROUPS = Setting(
    "max.groups",
    100_000,
    "The maximum number of groups that this node coordinates; further ones are refused.",
    at_least(1),
    bits=32,
    live=True,
)
GROUPS_MAX_BYTES = Setting(
    "groups.max.bytes",
    256 << 20,
    "The maximum memory for the groups that this node coordinates: members and their metadata, assignments, and "
    "committed offsets. Requests that would exceed it are refused. Existing groups continue, and groups that move "
    "here from another node are accepted regardless.",
    at_least(1 << 10),
    live=True,
)
GROUP_MEMBER_MAX_BYTES = Setting(
    "group.member.max.bytes",
    1 << 20,
    "The maximum size of one member's metadata (protocols, or topic names), and of its assignment.",
    at_least(1024),
    bits=32,
)
GROUP_CLASSIC_MAX_BYTES = Setting(
    "group.classic.max.bytes",
    16 << 20,
    "The maximum size of the metadata and assignments of all members of one classic group, because every change "
    "writes all of it. Requests that would exceed it are refused; a group that is already larger continues but "
    "cannot grow.",
    at_least(1024),
    bits=32,
)
MAX_TRANSACTIONAL_IDS = Setting(
    "max.transactional.ids",
    100_000,
    "The maximum number of transactional ids that this node coordinates; further ones are refused.",
    at_least(1),
    bits=32,
    live=True,
)
MAX_PRODUCERS_PER_PARTITION = Setting(
    "max.producers.per.partition",
    100_000,
    "The maximum number of idempotent producers whose sequence numbers one partition stores. Further ones are "
    "refused until others expire (`producer.id.expiration.ms`).",
    at_least(1),
    bits=32,
    live=True,
)

SECTIONS: Final[Mapping[str, tuple[AnySetting, ...]]] = {
    "Quotas and limits": (
        QUOTA_WINDOW_NUM,
        QUOTA_WINDOW_SECONDS,
        CONTROLLER_QUOTA_WINDOW_NUM,
        CONTROLLER_QUOTA_WINDOW_SECONDS,
        MAX_CONNECTIONS_PER_IP_OVERRIDES,
        MAX_CONNECTION_CREATION_RATE,
        MAX_CONNECTION_CREATION_RATE_PER_IP,
        QUEUED_MAX_RESPONSE_BYTES,
        MAX_FETCH_SESSION_PARTITIONS,
        MAX_GROUPS,
        GROUPS_MAX_BYTES,
        GROUP_MEMBER_MAX_BYTES,
        GROUP_CLASSIC_MAX_BYTES,
        MAX_TRANSACTIONAL_IDS,
        MAX_PRODUCERS_PER_PARTITION,
    ),
}


def burst_seconds(settings: Settings) -> int:
    """How many seconds' worth of a quota an idle client may use at once."""
    return (settings[QUOTA_WINDOW_NUM] - 1) * settings[QUOTA_WINDOW_SECONDS]


def mutation_burst_seconds(settings: Settings) -> int:
    return settings[CONTROLLER_QUOTA_WINDOW_NUM] * settings[CONTROLLER_QUOTA_WINDOW_SECONDS]
