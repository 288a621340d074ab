"""Settings of topics, nodes and groups: what each is, where that comes from and what it means; changing them.

All of it is asked of the cluster, so it is as true for Kafka as for Millpond. Where a cluster does not say what a
setting means, our own declaration does.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Mapping
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
"""What this version declares of each; a cluster of another version may know more or fewer."""

SOURCES: Final = {
    1: "topic",
    2: "broker, changed while running",
    3: "all brokers, changed while running",
    4: "broker, set at start",
    5: "default",
    8: "group",
}
"""Where a setting's value comes from, by the protocol's number."""

DEFAULT_SOURCE: Final = 5
EVERY_NODE: Final = "all"
"""What stands for the name of a node where all nodes are meant that are told nothing else."""

_TYPES: Final[Mapping[What, int]] = {"topic": 2, "node": 4, "group": 32}
_OWN_SOURCES: Final[Mapping[What, int]] = {"topic": 1, "node": 2, "group": 8}
_EVERY_SOURCE: Final = 3
_OF_LISTENER: Final = "listener.name."
_SET: Final = 0
_DELETE: Final = 1
_TAG: Final = re.compile(r"</?[a-z][^<>]{0,200}>", re.IGNORECASE)
"""Kafka writes what its settings mean for a web page."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What has settings: a topic, a node or a group."""

    what: What
    name: str
    """Of a node its number, or EVERY_NODE."""

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
        """Where its own values come from, by the protocol's number."""
        return _EVERY_SOURCE if self.is_every_node else _OWN_SOURCES[self.what]


@dataclass(frozen=True, slots=True)
class SettingFacts:
    """One setting as it stands."""

    name: str
    value: str | None
    """None: it has none, or it is a secret."""
    source: str
    is_own: bool
    """Whether it was set for this topic, node or group, and can be unset."""
    otherwise: str | None
    """What it would be without that; None where the cluster does not say."""
    is_fixed: bool
    """Whether it can only be set when the node starts."""
    kind: str
    meaning: str
    is_secret: bool = False
    """The cluster does not tell its value, and nobody else should."""

    @property
    def is_default(self) -> bool:
        return self.source == SOURCES[DEFAULT_SOURCE]


@dataclass(frozen=True, slots=True)
class Change:
    name: str
    before: str | None
    after: str | None
    """None: not known, or a secret."""
    is_secret: bool = False


def read_settings(cluster: Cluster, subject: Subject) -> list[SettingFacts]:
    """Every setting that it has, by name; for all nodes those that were set for all."""
    check_exists(cluster, subject)
    kind = m.DescribeConfigsRequest
    resource = kind.DescribeConfigsResource(
        resource_type=_TYPES[subject.what], resource_name=subject.wire_name, configuration_keys=None
    )
    request = kind(resources=[resource], include_synonyms=True, include_documentation=True)

    def attempt() -> list[SettingFacts]:
        (result,) = _connection(cluster, subject).ask(request, m.DescribeConfigsResponse).results
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
    """Set and unset, all or nothing; `dry` asks the cluster whether it would.

    Names that it does not know are refused here: a broker takes any, in case a plugin wants it, and a slip of the
    finger would be remembered without effect.
    """
    now = {each.name: each for each in read_settings(cluster, subject)}
    known = _known(cluster, subject, now)
    secrets = set()
    for name in (*to_set, *to_unset):
        facts = known.get(name) or _of_listener(subject, name, known)
        if facts is None:
            raise _unknown_setting(subject, name, known)
        if facts.is_secret:
            secrets.add(name)
        # Kafka calls what a single listener has fixed, and takes it all the same.
        if facts.is_fixed and not name.startswith(_OF_LISTENER):
            raise Refused(
                f"{name} can only be set when a node starts: with `millpond up --set {name}=…`, or of Apache Kafka "
                "in its server.properties."
            )
    alter_settings(cluster, subject, to_set, to_unset, dry=dry)
    changes = [
        # A secret that is set is not repeated: what a command prints ends in somebody's log.
        Change(name, None, None, is_secret=True) if name in secrets else Change(name, _value(now.get(name)), value)
        for name, value in to_set.items()
    ]
    for name in to_unset:
        before = now.get(name)
        after = before.otherwise if before is not None and before.is_own else _value(before)
        changes.append(Change(name, _value(before), after, is_secret=name in secrets))
    return changes


def find_settings(cluster: Cluster, subject: Subject, names: Collection[str]) -> list[SettingFacts]:
    """The settings of these names, in their order; one that is not there is refused with the nearest name."""
    now = {each.name: each for each in read_settings(cluster, subject)}
    for name in names:
        if name not in now:
            known = _known(cluster, subject, now)
            if name in known:
                raise Refused(f"{name} was not set for all nodes; `millpond config get node N {name}` asks one.")
            raise _unknown_setting(subject, name, known)
    return [now[name] for name in dict.fromkeys(names)]


def alter_settings(
    cluster: Cluster,
    subject: Subject,
    to_set: Mapping[str, str],
    to_unset: Collection[str] = (),
    *,
    dry: bool = False,
) -> None:
    """Set and unset without a look at the names first."""
    kind = m.IncrementalAlterConfigsRequest
    changes = [kind.AlterableConfig(name=name, config_operation=_SET, value=value) for name, value in to_set.items()]
    changes += [kind.AlterableConfig(name=name, config_operation=_DELETE, value=None) for name in to_unset]
    resource = kind.AlterConfigsResource(
        resource_type=_TYPES[subject.what], resource_name=subject.wire_name, configs=changes
    )
    request = kind(resources=[resource], validate_only=dry)
    keeps = "No node changes" if subject.is_every_node else f"{subject.what.capitalize()} {subject.name} keeps"

    def attempt() -> None:
        (result,) = _connection(cluster, subject).ask(request, m.IncrementalAlterConfigsResponse).responses
        check(result.error_code, f"{keeps} its settings", result.error_message)

    cluster.retrying(f"change the settings of {subject}", attempt)


def check_exists(cluster: Cluster, subject: Subject) -> None:
    """Refused where there is no such topic or node. A group may be told something before it comes into being."""
    if subject.what == "topic":
        known = cluster.topics()
        if subject.name not in known:
            raise unknown_topic(subject.name, known)
    elif subject.what == "node" and not subject.is_every_node:
        nodes = [str(each) for each in sorted(cluster.addresses())]
        if subject.name not in nodes:
            raise Refused(f"There is no node {subject.name} now: there are {', '.join(nodes)}, or all.")


def _known(cluster: Cluster, subject: Subject, now: Mapping[str, SettingFacts]) -> Mapping[str, SettingFacts]:
    """All that can be asked for; of all nodes only that is told which was set, so one of them says what it has."""
    if not subject.is_every_node:
        return now
    node = next(iter(sorted(cluster.addresses())))
    return {each.name: each for each in read_settings(cluster, Subject("node", str(node)))} | dict(now)


def _of_listener(subject: Subject, name: str, known: Mapping[str, SettingFacts]) -> SettingFacts | None:
    """The setting that a name such as `listener.name.inside.max.connections` is about: a listener of Apache Kafka may
    have a value of its own, and nothing is said of those that have none."""
    if subject.what != "node" or not name.startswith(_OF_LISTENER):
        return None
    fits = [each for each in known if name.endswith(f".{each}")]
    return known[max(fits, key=len)] if fits else None


def _unknown_setting(subject: Subject, name: str, known: Collection[str]) -> Refused:
    return unknown(f"setting of {subject.what}s", name, known, f"`millpond config list {subject.what}` has all")


def _connection(cluster: Cluster, subject: Subject) -> BrokerConnection:
    """Each node answers for itself; all else any of them knows."""
    if subject.what == "node" and not subject.is_every_node:
        return cluster.broker(int(subject.name))
    return cluster.any()


def _facts(subject: Subject, entry: m.DescribeConfigsResponse.DescribeConfigsResourceResult) -> SettingFacts:
    # What has no value gives way to the next: of Apache Kafka `log.retention.ms` to `log.retention.hours`.
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
    """What would count instead, where what stands behind `retention.ms` may be `log.retention.hours`."""
    if other.value is None or other.name == name:
        return other.value
    if name in COARSE:
        return None
    if other.name not in COARSE:
        return other.value
    value, (_, unit_ms) = int(other.value), COARSE[other.name]
    return str(value * unit_ms if value > 0 else value)


def kind_name(number: int) -> str:
    """A type of settings by the protocol's number, in words."""
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
