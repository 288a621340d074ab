"""Settings of topics, nodes and groups: their values, sources and meanings; and changing them.

Everything is read from the cluster, so it holds for Kafka as well as for Millpond. Where a cluster does not document
a setting, our own declaration does.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from millpond.admin.errors import Refused, unknown, unknown_topic
from millpond.base.settings import Kind, Registry
from millpond.config.group import GROUP
from millpond.config.node import COARSE, NODE
from millpond.config.topic import TOPIC
from millpond.remote.cluster import Cluster
from millpond.remote.connection import BrokerConnection
from millpond.remote.errors import Unsupported, check
from millpond.wire import messages as m

What = Literal["topic", "node", "group"]

REGISTRIES: Final[Mapping[What, Registry]] = {"topic": TOPIC, "node": NODE, "group": GROUP}
"""The settings this version declares; a cluster of another version may have more or fewer."""

SOURCES: Final = {
    1: "topic",
    2: "broker, changed while running",
    3: "all brokers, changed while running",
    4: "broker, set at start",
    5: "default",
    8: "group",
}
"""Sources of a setting's value, by their numbers in the protocol."""

DEFAULT_SOURCE: Final = 5
EVERY_NODE: Final = "all"
"""Used as a node's name for the cluster-wide default of all nodes."""

_TYPES: Final[Mapping[What, int]] = {"topic": 2, "node": 4, "group": 32}
_OWN_SOURCES: Final[Mapping[What, int]] = {"topic": 1, "node": 2, "group": 8}
_EVERY_SOURCE: Final = 3
_OF_LISTENER: Final = "listener.name."
_SET: Final = 0
_DELETE: Final = 1
_TAG: Final = re.compile(r"</?[a-z][^<>]{0,200}>", re.IGNORECASE)
"""Kafka documents its settings in HTML."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A resource with settings: a topic, a node or a group."""

    what: What
    name: str
    """For a node, its id or EVERY_NODE."""

    def __str__(self) -> str:
        return "all nodes" if self.is_every_node else f"{self.what} {self.name}"

    @property
    def is_every_node(self) -> bool:
        return self.what == "node" and self.name == EVERY_NODE

    @property
    def wire_name(self) -> str:
        return "" if self.is_every_node else self.name

    @property
    def own_source(self) -> int:
        """The protocol's number for values set on this resource itself."""
        return _EVERY_SOURCE if self.is_every_node else _OWN_SOURCES[self.what]


@dataclass(frozen=True, slots=True)
class SettingFacts:
    """The current state of one setting."""

    name: str
    value: str | None
    """None: no value, or a secret."""
    source: str
    is_own: bool
    """Whether it is set on this topic, node or group, and can be unset."""
    otherwise: str | None
    """The value after unsetting it; None if the cluster does not report it."""
    is_fixed: bool
    """Whether it is read-only while the node runs."""
    kind: str
    meaning: str
    is_secret: bool = False
    """The cluster does not return its value, and it must not be printed."""

    @property
    def is_default(self) -> bool:
        return self.source == SOURCES[DEFAULT_SOURCE]


@dataclass(frozen=True, slots=True)
class Change:
    name: str
    before: str | None
    after: str | None
    """None: unknown, or a secret."""
    is_secret: bool = False


def read_settings(cluster: Cluster, subject: Subject) -> list[SettingFacts]:
    """All settings of the resource by name; for EVERY_NODE only those set cluster-wide."""
    check_exists(cluster, subject)

    def attempt() -> list[SettingFacts]:
        (result,) = describe_configs(_connection(cluster, subject), [subject], is_detailed=True)
        check(result.error_code, f"The settings of {subject} are not known", result.error_message)
        return [_facts(subject, entry) for entry in sorted(result.configs, key=lambda entry: entry.name)]

    try:
        return cluster.retrying(f"ask for the settings of {subject}", attempt)
    except Unsupported as fault:
        raise Refused(f"The cluster is too old to say what {subject} is set to: {fault}") from None


def change_settings(
    cluster: Cluster,
    subject: Subject,
    to_set: Mapping[str, str],
    to_unset: Collection[str] = (),
    *,
    dry: bool = False,
) -> list[Change]:
    """Set and unset, all or nothing; `dry` only validates.

    Unknown names are refused here: a broker accepts any name, in case a plugin uses it, so a typo would be stored
    without effect.
    """
    now = {each.name: each for each in read_settings(cluster, subject)}
    by_name = _all_settings(cluster, subject, now)
    secrets = set()
    for name in (*to_set, *to_unset):
        facts = by_name.get(name) or _of_listener(subject, name, by_name)
        if facts is None:
            raise _unknown_setting(subject, name, by_name)
        if facts.is_secret:
            secrets.add(name)
        # Kafka reports listener-prefixed settings as read-only, but accepts changes to them.
        if facts.is_fixed and not name.startswith(_OF_LISTENER):
            raise Refused(
                f"{name} can only be set when a node starts: with `millpond up --set {name}=…`, or of Apache Kafka "
                "in its server.properties."
            )
    alter_settings(cluster, subject, to_set, to_unset, dry=dry)
    changes = [
        # Secrets are not echoed: command output ends up in logs.
        Change(name, None, None, is_secret=True) if name in secrets else Change(name, _value(now.get(name)), value)
        for name, value in to_set.items()
    ]
    for name in to_unset:
        before = now.get(name)
        after = before.otherwise if before is not None and before.is_own else _value(before)
        changes.append(Change(name, _value(before), after, is_secret=name in secrets))
    return changes


def find_settings(cluster: Cluster, subject: Subject, names: Collection[str]) -> list[SettingFacts]:
    """The settings with these names, in order; an unknown name is refused with the nearest match."""
    now = {each.name: each for each in read_settings(cluster, subject)}
    for name in names:
        if name not in now:
            by_name = _all_settings(cluster, subject, now)
            if name in by_name:
                raise Refused(f"{name} was not set for all nodes; `millpond config get node N {name}` asks one.")
            raise _unknown_setting(subject, name, by_name)
    return [now[name] for name in dict.fromkeys(names)]


def alter_settings(
    cluster: Cluster,
    subject: Subject,
    to_set: Mapping[str, str],
    to_unset: Collection[str] = (),
    *,
    dry: bool = False,
    at_node: bool = True,
) -> None:
    """Set and unset without checking the names first. Without `at_node` another node takes it."""
    request = alter_request(subject, {**to_set, **dict.fromkeys(to_unset)}, dry=dry)
    keeps = "No node changes" if subject.is_every_node else f"{subject.what.capitalize()} {subject.name} keeps"

    def attempt() -> None:
        connection = _connection(cluster, subject) if at_node else cluster.any()
        (result,) = connection.ask(request, m.IncrementalAlterConfigsResponse).responses
        check(result.error_code, f"{keeps} its settings", result.error_message)

    cluster.retrying(f"change the settings of {subject}", attempt)


def describe_configs(
    connection: BrokerConnection, subjects: Iterable[Subject], names: Sequence[str] = (), *, is_detailed: bool = False
) -> list[m.DescribeConfigsResponse.DescribeConfigsResult]:
    """The settings of these resources, or only those with these names, as one broker reports them."""
    kind = m.DescribeConfigsRequest
    resources = [
        kind.DescribeConfigsResource(
            resource_type=_TYPES[each.what], resource_name=each.wire_name, configuration_keys=list(names) or None
        )
        for each in subjects
    ]
    request = kind(resources=resources, include_synonyms=is_detailed, include_documentation=is_detailed)
    return list(connection.ask(request, m.DescribeConfigsResponse).results)


def alter_request(
    subject: Subject, values: Mapping[str, str | None], *, dry: bool = False
) -> m.IncrementalAlterConfigsRequest:
    """Sets these values; None removes the value."""
    kind = m.IncrementalAlterConfigsRequest
    changes = [
        kind.AlterableConfig(name=name, config_operation=_DELETE if value is None else _SET, value=value)
        for name, value in values.items()
    ]
    resource = kind.AlterConfigsResource(
        resource_type=_TYPES[subject.what], resource_name=subject.wire_name, configs=changes
    )
    return kind(resources=[resource], validate_only=dry)


def check_exists(cluster: Cluster, subject: Subject) -> None:
    """Refused if the topic or node does not exist. A group may have settings before it exists."""
    if subject.what == "topic":
        by_name = cluster.topics()
        if subject.name not in by_name:
            raise unknown_topic(subject.name, by_name)
    elif subject.what == "node" and not subject.is_every_node:
        nodes = [str(each) for each in sorted(cluster.addresses())]
        if subject.name not in nodes:
            raise Refused(f"There is no node {subject.name} now: there are {', '.join(nodes)}, or all.")


def _all_settings(cluster: Cluster, subject: Subject, now: Mapping[str, SettingFacts]) -> Mapping[str, SettingFacts]:
    """All known settings. For EVERY_NODE the cluster returns only the ones set, so one node supplies the rest."""
    if not subject.is_every_node:
        return now
    node = next(iter(sorted(cluster.addresses())))
    return {each.name: each for each in read_settings(cluster, Subject("node", str(node)))} | dict(now)


def _of_listener(subject: Subject, name: str, by_name: Mapping[str, SettingFacts]) -> SettingFacts | None:
    """The base setting of a listener-prefixed name such as `listener.name.inside.max.connections`.

    Apache Kafka accepts these per-listener overrides, but does not list those that are unset.
    """
    if subject.what != "node" or not name.startswith(_OF_LISTENER):
        return None
    fits = [each for each in by_name if name.endswith(f".{each}")]
    return by_name[max(fits, key=len)] if fits else None


def _unknown_setting(subject: Subject, name: str, by_name: Collection[str]) -> Refused:
    return unknown(f"setting of {subject.what}s", name, by_name, f"`millpond config list {subject.what}` has all")


def _connection(cluster: Cluster, subject: Subject) -> BrokerConnection:
    """Only the node itself knows its settings; any node knows all others."""
    if subject.what == "node" and not subject.is_every_node:
        return cluster.broker(int(subject.name))
    return cluster.any()


def _facts(subject: Subject, entry: m.DescribeConfigsResponse.DescribeConfigsResourceResult) -> SettingFacts:
    # A synonym without a value is skipped: in Apache Kafka `log.retention.ms` falls back to `log.retention.hours`.
    others = [each for each in entry.synonyms if each.source != subject.own_source and each.value is not None]
    declared = REGISTRIES[subject.what]
    meaning = entry.documentation or (declared.get(entry.name).doc if entry.name in declared else "")
    return SettingFacts(
        entry.name,
        None if entry.is_sensitive else entry.value,
        SOURCES.get(entry.config_source, "?"),
        entry.config_source == subject.own_source,
        _in_unit(entry.name, others[0]) if others and not entry.is_sensitive else None,
        entry.read_only,
        kind_name(entry.config_type),
        html.unescape(_TAG.sub("", meaning)).strip(),
        entry.is_sensitive,
    )


def _in_unit(name: str, other: m.DescribeConfigsResponse.DescribeConfigsSynonym) -> str | None:
    """The fallback value, converted if its unit differs: `retention.ms` may fall back to `log.retention.hours`."""
    if other.value is None or other.name == name:
        return other.value
    if name in COARSE:
        return None
    if other.name not in COARSE:
        return other.value
    value, (_, unit_ms) = int(other.value), COARSE[other.name]
    return str(value * unit_ms if value > 0 else value)


def kind_name(number: int) -> str:
    """The name of a setting type, given its number in the protocol."""
    words = {
        Kind.BOOLEAN.value: "true or false",
        Kind.STRING.value: "text",
        Kind.INT.value: "whole number",
        4: "whole number",
        Kind.LONG.value: "whole number",
        Kind.DOUBLE.value: "number",
        Kind.LIST.value: "list, with commas between",
        9: "secret text",
    }
    return words.get(number, "text")


def _value(facts: SettingFacts | None) -> str | None:
    return None if facts is None else facts.value
