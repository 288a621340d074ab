"""Quota settings: the windows over which quotas are measured. Kafka's names mean the same here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from millpond.base.settings import AnySetting, Setting, SettingError, Settings, Value, at_least

QUOTA_WINDOW_NUM = Setting(
    "quota.window.num",
    11,
    "Quotas of bytes and of request time are averages over so many windows, the one that is under way among them. "
    "Whoever has taken nothing for as long may take all of it at once.",
    at_least(2),
    bits=32,
)
QUOTA_WINDOW_SECONDS = Setting(
    "quota.window.size.seconds",
    1,
    "The length of such a window. So long is a client held up at the most by a quota of request time.",
    at_least(1),
    bits=32,
)
CONTROLLER_QUOTA_WINDOW_NUM = Setting(
    "controller.quota.window.num",
    11,
    "The same for quotas of partitions that are made or deleted: so many windows' worth may be made at once.",
    at_least(1),
    bits=32,
)
CONTROLLER_QUOTA_WINDOW_SECONDS = Setting(
    "controller.quota.window.size.seconds", 1, "The length of a window for these.", at_least(1), bits=32
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
            raise SettingError(f"{text!r} is not of the form address:count")
        try:
            counts[plain_address(address.removeprefix("[").removesuffix("]"))] = int(count)
        except ValueError:
            raise SettingError(f"{address!r} is not an address such as 192.0.2.7 or 2001:db8::7") from None
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
    "The largest number of connections at one time; a further one is closed at once. For a node that comes by a "
    "listener other than that of clients, one of theirs is closed that has been silent for longest. A single "
    "listener's share of it is `listener.name.NAME.max.connections`.",
    at_least(1),
    live=True,
    bits=32,
)
MAX_CONNECTIONS_PER_IP_OVERRIDES = Setting[tuple[str, ...]](
    "max.connections.per.ip.overrides",
    (),
    "Other numbers for single addresses, as `192.0.2.7:100,2001:db8::7:200`.",
    _counts,
    live=True,
)
MAX_CONNECTION_CREATION_RATE = Setting(
    "max.connection.creation.rate",
    (1 << 31) - 1,
    "So many connections a second are taken at the most, on average over the windows of quotas; further ones are "
    "closed at once. Nodes that come by a listener of their own are not counted. For a single listener it is "
    "`listener.name.NAME.max.connection.creation.rate`.",
    at_least(1),
    bits=32,
    live=True,
)
MAX_CONNECTION_CREATION_RATE_PER_IP = Setting(
    "max.connection.creation.rate.per.ip",
    1000,
    "The same from one address that has no quota of its own (connection_creation_rate).",
    at_least(1),
    bits=32,
    live=True,
)

QUEUED_MAX_RESPONSE_BYTES = Setting(
    "queued.max.response.bytes",
    512 << 20,
    "The memory for answers that have not left, because their clients do not read them or because earlier ones are "
    "awaited; over it, the connections that hold most of it are closed. Records need none: they leave from the disk.",
    at_least(1 << 20),
    live=True,
)
MAX_FETCH_SESSION_PARTITIONS = Setting(
    "max.incremental.fetch.session.partitions",
    1_000_000,
    "How many partitions all fetch sessions may have together; consumers that find no room send their whole list "
    "each time.",
    at_least(1),
    bits=32,
    live=True,
)
MAX_GROUPS = Setting(
    "max.groups",
    100_000,
    "The largest number of groups that this node coordinates; a new one beyond it is refused.",
    at_least(1),
    bits=32,
    live=True,
)
GROUPS_MAX_BYTES = Setting(
    "groups.max.bytes",
    256 << 20,
    "The memory for what all groups that this node coordinates keep together: members and what they say of "
    "themselves, assignments, committed offsets with their metadata. What would make it more is refused; what is "
    "there goes on, and groups that come from another node are taken in all the same.",
    at_least(1 << 10),
    live=True,
)
GROUP_MEMBER_MAX_BYTES = Setting(
    "group.member.max.bytes",
    1 << 20,
    "The most that one member of a group may say of itself (protocols with metadata, or names of topics), and the "
    "most that the leader of its group may assign to it.",
    at_least(1024),
    bits=32,
)
GROUP_CLASSIC_MAX_BYTES = Setting(
    "group.classic.max.bytes",
    16 << 20,
    "The most that all members of one classic group may say of themselves and be assigned, together: all of it is "
    "written down at each change. What would make it more is refused; a group that is larger already goes on, "
    "and grows no more.",
    at_least(1024),
    bits=32,
)
MAX_TRANSACTIONAL_IDS = Setting(
    "max.transactional.ids",
    100_000,
    "The largest number of transactional ids that this node coordinates; a new one beyond it is refused.",
    at_least(1),
    bits=32,
    live=True,
)
MAX_PRODUCERS_PER_PARTITION = Setting(
    "max.producers.per.partition",
    100_000,
    "The largest number of idempotent producers of which one partition remembers the sequence numbers; a new one "
    "beyond it is refused until others are forgotten (producer.id.expiration.ms).",
    at_least(1),
    bits=32,
    live=True,
)

SECTIONS: Final[Mapping[str, tuple[AnySetting, ...]]] = {
    "How much": (
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
