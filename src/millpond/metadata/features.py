"""Feature levels: the formats that all nodes of a cluster have agreed on, so that two versions can run together.

A program supports a range of levels of each feature. The *finalized* level is in the metadata and decides what is
written, even if a program supports more. Only an operator raises it (never a restart), and only if every registered
node supports the new level; a node that does not support the finalized level cannot register.

| Feature | Level | Meaning |
|---|---|---|
| `metadata.version` | 25 | the records of the first clusters; Kafka's tools call it 4.0-IV3 |
| | 26 | partitions with equal changes share one record (4.1-IV0) |
| | 27 | records for ACLs, credentials, tokens and quotas (4.1-IV1) |
| `group.version` | 0 | classic groups only |
| | 1 | groups whose members the broker assigns (KIP-848) |
| `share.version` | 0 | no share groups |
| | 1 | share groups (KIP-932) |
| `kraft.version` | 0 | static voters: every node is configured with the list |
| | 1 | dynamic voters, stored in the metadata log; its records are not in this package |
| `transaction.version` | 1 | producers add partitions themselves, one epoch for all transactions |
| | 2 | each transaction has its own producer epoch (KIP-890); clients use it when this level is finalized |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from itertools import groupby
from typing import Final, TypeAlias

from millpond.base.errors import ErrorCode, Refused
from millpond.base.values import dataclass
from millpond.metadata.decision import OK, Decision, Verdict
from millpond.metadata.image import Image
from millpond.metadata.records import BrokerFeature, FeatureLevelRecord, Record
from millpond.metadata.scram import forget_users_ever_existed

METADATA_VERSION: Final = "metadata.version"
GROUP_VERSION: Final = "group.version"
TRANSACTION_VERSION: Final = "transaction.version"
SHARE_VERSION: Final = "share.version"
KRAFT_VERSION: Final = "kraft.version"
"""The quorum stores this one itself, with the voters."""

NAME_SHOWN_MAX: Final = 60
"""Refused names are quoted, and there may be many of any length."""

ALIKE_FROM: Final = 26
"""From this metadata.version on, partitions with equal changes share one record."""

SECURITY_FROM: Final = 27
"""From this metadata.version on, the records of `SECURITY_RECORDS` exist: older versions cannot read them."""

SECURITY_RECORDS: Final = frozenset(
    {
        "AccessControlEntryRecord",
        "RemoveAccessControlEntryRecord",
        "UserScramCredentialRecord",
        "RemoveUserScramCredentialRecord",
        "ClientQuotaRecord",
        "DelegationTokenRecord",
        "RemoveDelegationTokenRecord",
    }
)


@dataclass(frozen=True, slots=True)
class Levels:
    """A range of levels, both ends included."""

    lowest: int
    newest: int

    def allow(self, level: int) -> bool:
        return self.lowest <= level <= self.newest

    def __str__(self) -> str:
        return f"{self.lowest}" if self.lowest == self.newest else f"{self.lowest} to {self.newest}"


Supported: TypeAlias = Mapping[str, Levels]
"""The levels that a program supports, by feature."""


@dataclass(frozen=True, slots=True)
class Feature:
    name: str
    levels: Levels
    """The levels that this program supports; a new cluster starts with the newest."""
    first: Levels
    """The levels of a node that reports none: versions from before nodes reported them."""
    brings: Mapping[int, str]
    """What each level adds to the one below."""
    gives_up: Mapping[int, str] = field(default_factory=dict)
    """What is lost when leaving a level, for levels where that is so."""
    is_for_good: bool = False
    """It cannot be lowered, and is raised automatically when needed."""


FEATURES: Final[Mapping[str, Feature]] = {
    feature.name: feature
    for feature in (
        Feature(
            METADATA_VERSION,
            Levels(25, 27),
            Levels(25, 25),
            {26: "one record for all partitions that change alike", 27: "ACLs, credentials, tokens and quotas"},
        ),
        Feature(
            GROUP_VERSION,
            Levels(0, 1),
            Levels(0, 1),
            {1: "consumer groups whose members the broker assigns (group.protocol=consumer)"},
            {1: "members with group.protocol=consumer are refused until it is upgraded again"},
        ),
        Feature(
            TRANSACTION_VERSION,
            Levels(1, 2),
            Levels(1, 2),
            {2: "a producer epoch per transaction, so that late requests cannot join the next one"},
        ),
        Feature(
            SHARE_VERSION,
            Levels(0, 1),
            Levels(0, 0),
            {1: "share groups, whose members take records instead of partitions"},
            {1: "members of share groups are refused until it is upgraded again"},
        ),
        Feature(
            KRAFT_VERSION,
            Levels(0, 1),
            Levels(0, 0),
            {1: "voters that can change"},
            is_for_good=True,
        ),
    )
}

SUPPORTED: Final[Supported] = {feature.name: feature.levels for feature in FEATURES.values()}
_FIRST: Final[Supported] = {feature.name: feature.first for feature in FEATURES.values()}


def features_to_record(supported: Supported) -> tuple[BrokerFeature, ...]:
    return tuple(BrokerFeature(name, each.lowest, each.newest) for name, each in sorted(supported.items()))


def supported_by(features: Iterable[BrokerFeature]) -> Supported:
    """The levels that a broker registered with; one without any is from before they were reported."""
    supported = {each.name: Levels(each.min_supported_version, each.max_supported_version) for each in features}
    return supported or _FIRST


def level_records(supported: Supported) -> list[Record]:
    """The levels of a new cluster, as its first controller supports them."""
    levels = {name: each.newest for name, each in supported.items() if name != KRAFT_VERSION}
    return [FeatureLevelRecord(name, level) for name, level in levels.items() if level]


def first_level_records() -> list[Record]:
    """The levels of a cluster that was founded before there were any."""
    return level_records(_FIRST)


def metadata_version(image: Image) -> int:
    """The level in which metadata records are written."""
    return image.features.get(METADATA_VERSION, FEATURES[METADATA_VERSION].first.newest)


def what_needs_security(image: Image) -> str | None:
    """What the image has that requires `SECURITY_FROM`, in words."""
    kept = {
        "ACLs": len(image.acls),
        "quotas": image.quotas.of,
        "users": image.scram.users(),
        "delegation tokens": list(image.tokens),
    }
    return ", ".join(name for name, some in kept.items() if some) or None


def check_level(records: Sequence[Record], level: int) -> None:
    """Refused if one of these cannot be written at this metadata.version."""
    if level < SECURITY_FROM and any(kind.__name__ in SECURITY_RECORDS for kind, _ in groupby(records, type)):
        raise Refused(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{METADATA_VERSION} is at {level}, but ACLs, credentials, tokens and quotas need {SECURITY_FROM}: "
            "upgrade it once all nodes support that (millpond cluster upgrade)",
        )


def unsupported(image_levels: Mapping[str, int], supported: Supported) -> str | None:
    """Finalized levels that a program does not support, in words."""
    for name, level in image_levels.items():
        levels = supported.get(name)
        if levels is None:
            return f"{name} {level}, and it does not know {name}"
        if not levels.allow(level):
            return f"{name} {level}, and it supports {levels}"
    return None


class UpgradeType(IntEnum):
    """The intent of a level change, with the numbers of the protocol."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    name: str
    level: int
    """0 removes the feature."""
    upgrade_type: int = UpgradeType.UPGRADE


def decide_update_features(
    image: Image,
    updates: Sequence[FeatureUpdate],
    supported: Supported,
    *,
    kraft_version: int = 0,
    is_dry: bool = False,
) -> Decision[tuple[Verdict, ...]]:
    """Change levels, all or none. The reply has a verdict for each, in the order of `updates`.

    The quorum's own level, `kraft_version`, is only checked here.
    """
    named = [each.name for each in updates]
    if not updates or len(set(named)) < len(named):
        fault = "a feature is listed twice" if updates else "no feature is listed"
        return Decision((), (Verdict(ErrorCode.INVALID_REQUEST, fault),) * max(len(updates), 1))
    levels = {**image.features, KRAFT_VERSION: kraft_version}
    verdicts = tuple(_judge(image, levels, each, supported) for each in updates)
    if not all(verdict.ok for verdict in verdicts):
        at_fault = next(each.name for each, verdict in zip(updates, verdicts, strict=True) if not verdict.ok)
        spoilt = Verdict(
            ErrorCode.FEATURE_UPDATE_FAILED, f"nothing was changed, because {at_fault[:NAME_SHOWN_MAX]} was refused"
        )
        return Decision((), tuple(spoilt if verdict.ok else verdict for verdict in verdicts))
    records: list[Record] = [
        FeatureLevelRecord(each.name, each.level)
        for each in updates
        if levels.get(each.name, 0) != each.level and each.name != KRAFT_VERSION
    ]
    if any(each.name == METADATA_VERSION and each.level < SECURITY_FROM for each in updates):
        # An older program cannot read the one credential that outlives all users.
        records[:0] = forget_users_ever_existed(image.scram)
    return Decision(() if is_dry else tuple(records), verdicts)


def _judge(image: Image, levels: Mapping[str, int], update: FeatureUpdate, supported: Supported) -> Verdict:
    name, level, now = update.name, update.level, levels.get(update.name, 0)
    if name not in FEATURES:
        return _refused(f"unknown feature {name[:NAME_SHOWN_MAX]!r}; the features are {', '.join(FEATURES)}")
    if update.upgrade_type not in UpgradeType.__members__.values():
        return _refused(f"{name}: upgrade type {update.upgrade_type} must be 1, 2 or 3")
    if level == now:
        return OK
    if level < now and update.upgrade_type == UpgradeType.UPGRADE:
        return _refused(f"{name} is at {now}: to lower it to {level}, request a downgrade")
    if level > now and update.upgrade_type != UpgradeType.UPGRADE:
        return _refused(f"{name} is at {now}: to raise it to {level}, request an upgrade")
    if name == METADATA_VERSION and level < SECURITY_FROM and (kept := what_needs_security(image)) is not None:
        return _refused(f"there are {kept}, which {name} {level} does not support: remove them first")
    if level < now and FEATURES[name].is_for_good:
        return _refused(f"{name} is at {now} and cannot be lowered")
    own = supported.get(name)
    if own is None or not own.allow(level):
        return _refused(f"the active controller does not support {name} {level}" + (f", but {own}" if own else ""))
    if (why := not_supported_by_all(image, name, level)) is not None:
        return _refused(why)
    if update.upgrade_type == UpgradeType.SAFE_DOWNGRADE:
        given_up = [text for above, text in FEATURES[name].gives_up.items() if level < above <= now]
        if given_up:
            return _refused(f"{name} {level} is not safe: {given_up[0]}; request an unsafe downgrade to do it anyway")
    return OK


def not_supported_by_all(image: Image, name: str, level: int) -> str | None:
    """Which registered node does not support a level, in words."""
    behind = [
        (broker.id, theirs)
        for broker in sorted(image.brokers.values(), key=lambda broker: broker.id)
        if (theirs := supported_by(broker.features).get(name)) is None or not theirs.allow(level)
    ]
    if behind:
        node_id, theirs = behind[0]
        others = f" (and {len(behind) - 1} more)" if len(behind) > 1 else ""
        return (
            f"node {node_id}{others} supports {name} {'not at all' if theirs is None else theirs}: upgrade it first, "
            "or unregister it if it was removed"
        )
    return None


def _refused(text: str) -> Verdict:
    return Verdict(ErrorCode.INVALID_UPDATE_VERSION, text)
