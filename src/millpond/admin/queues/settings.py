"""The settings of share groups that decide how their queues behave."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from millpond.admin.errors import Refused
from millpond.admin.settings import SettingFacts, Subject, describe_configs, read_settings
from millpond.remote.cluster import Cluster
from millpond.remote.errors import Unsupported

DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
AUTO_OFFSET_RESET: Final = "share.auto.offset.reset"
ISOLATION_LEVEL: Final = "share.isolation.level"
GROUPS_AT_ONCE: Final = 100

_PREFIXES: Final = ("share.", "errors.deadletterqueue.")
_OF_MEMBERS: Final = frozenset({"share.heartbeat.interval.ms", "share.session.timeout.ms", "share.assignor.name"})


def queue_settings(cluster: Cluster, group: str) -> list[SettingFacts]:
    """Those of the group that matter to its queues; none from a cluster that does not report them."""
    try:
        facts = read_settings(cluster, Subject("group", group))
    except Refused:
        return []
    return [each for each in facts if each.name.startswith(_PREFIXES) and each.name not in _OF_MEMBERS]


def values_of(cluster: Cluster, groups: Sequence[str], names: Collection[str]) -> dict[str, dict[str, str]]:
    """The values of some settings by group, as far as the cluster reports them. Empty values are left out."""
    values: dict[str, dict[str, str]] = {}
    for at in range(0, len(groups), GROUPS_AT_ONCE):
        subjects = [Subject("group", each) for each in groups[at : at + GROUPS_AT_ONCE]]

        def attempt(subjects: list[Subject] = subjects) -> dict[str, dict[str, str]]:
            return {
                result.resource_name: {each.name: each.value for each in result.configs if each.value}
                for result in describe_configs(cluster.any(), subjects, list(names))
                if not result.error_code
            }

        try:
            values |= cluster.retrying("ask for the settings of groups", attempt)
        except Unsupported:
            return {}
    return values
