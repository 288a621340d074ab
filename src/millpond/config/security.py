"""Authentication and authorization settings of a node. Names that Kafka also has mean the same here.

Settings that begin with `ssl.` or `sasl.` can be set per listener: for the listener INTERNAL,
`listener.name.internal.ssl.…` overrides `ssl.…`. Two limits can be set per listener in addition to the limit for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar, cast

from millpond.base.principal import Principal
from millpond.base.settings import AnySetting, Setting, SettingError, Settings, Value, at_least, between, one_of
from millpond.config import login, quota, tls

V = TypeVar("V", bool, int, float, str, tuple[str, ...])

LISTENER_PREFIX: Final = "listener.name."
_OF_LISTENERS: Final = ("ssl.", "sasl.")
_LIMITS: Final = (quota.MAX_CONNECTIONS, quota.MAX_CONNECTION_CREATION_RATE)


def _principals(value: Value) -> str | None:
    try:
        principals_in(str(value))
    except SettingError as fault:
        return str(fault)
    return None


def principals_in(text: str) -> frozenset[Principal]:
    """Separated by semicolons as in Kafka, because certificate names contain commas."""
    try:
        return frozenset(Principal.parse(part.strip()) for part in text.split(";") if part.strip())
    except ValueError as fault:
        raise SettingError(str(fault)) from None


SUPER_USERS = Setting(
    "super.users",
    "",
    "Users that may do everything, as `User:admin;User:CN=node,O=mill`. Must include the cluster's nodes if their "
    "listeners authenticate.",
    _principals,
)

AUDIT_LOG = Setting(
    "audit.log",
    "auto",
    "Whether to keep an audit log: `auto` if any listener authenticates, `on`, or `off`.",
    one_of("auto", "on", "off"),
)
AUDIT_LOG_FOLDER = Setting(
    "audit.log.folder", "", "The folder of the audit log. Empty for `audit` in the data folder."
)
AUDIT_LOG_MAX_BYTES = Setting(
    "audit.log.max.bytes",
    16 << 20,
    "Start a new audit log file at this size; applies to each of the three chapters of the audit log.",
    at_least(1 << 10),
    bits=64,
)
AUDIT_LOG_FILES = Setting(
    "audit.log.files",
    10,
    "How many files to keep of each chapter of the audit log.",
    between(1, 10_000),
    bits=32,
)
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

AUTHORIZER_CLASS_NAME = Setting(
    "authorizer.class.name",
    "",
    f"`{STANDARD_AUTHORIZER}` enforces ACLs even if no listener authenticates. If any listener does, ACLs are "
    "always enforced.",
    one_of("", STANDARD_AUTHORIZER),
)
ALLOW_EVERYONE_IF_NO_ACL_FOUND = Setting(
    "allow.everyone.if.no.acl.found",
    False,
    "Whether everyone may access resources that have no ACLs.",
)

METRICS_NAMES = Setting(
    "metrics.names",
    "auto",
    "Whether metrics include the names of topics and groups: `on`, `off`, or `auto`, which includes them unless "
    "ACLs are enforced. Anyone who can reach the metrics listener can read them.",
    one_of("auto", "on", "off"),
)

SECTIONS: Final[Mapping[str, tuple[AnySetting, ...]]] = {
    "TLS": tls.SETTINGS,
    "Super users": (SUPER_USERS,),
    "Audit log": (AUDIT_LOG, AUDIT_LOG_FOLDER, AUDIT_LOG_MAX_BYTES, AUDIT_LOG_FILES),
    "Authentication": login.SECTION,
    "Authorization": (AUTHORIZER_CLASS_NAME, ALLOW_EVERYONE_IF_NO_ACL_FOUND, METRICS_NAMES),
}


def super_users(settings: Settings) -> frozenset[Principal]:
    return principals_in(settings[SUPER_USERS])


# Per-listener settings.


def name_for(listener: str, name: str) -> str:
    return f"{LISTENER_PREFIX}{listener.lower()}.{name}"


def of_listener(settings: Settings, listener: str, setting: Setting[V]) -> V:
    """The value for this listener: its own, or else the common one."""
    own = settings.overrides.get(name_for(listener, setting.name))
    return settings[setting] if own is None else cast(V, own)


def own_of_listener(settings: Settings, listener: str, setting: Setting[int]) -> int | None:
    """The listener's own value, if any."""
    own = settings.overrides.get(name_for(listener, setting.name))
    return None if own is None else cast(int, own)


def parsed_for_listeners(texts: Mapping[str, str]) -> dict[str, Value]:
    """The parsed values of all settings that begin with `listener.name.`, by name."""
    settings: dict[str, AnySetting] = {
        each.name: each for section in SECTIONS.values() for each in section if each.name.startswith(_OF_LISTENERS)
    }
    settings |= {each.name: each for each in _LIMITS}
    values: dict[str, Value] = {}
    for name, text in texts.items():
        listener, dot, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
        if not listener or not dot or rest not in settings:
            raise SettingError(
                f"unknown node setting {name}: `{LISTENER_PREFIX}NAME.` is followed by a setting that begins with "
                f"{' or '.join(_OF_LISTENERS)}, or by {' or '.join(each.name for each in _LIMITS)}"
            )
        values[name_for(listener, rest)] = settings[rest].parse(text)
    return values
