"""Dynamic settings: IncrementalAlterConfigs and AlterConfigs.

A resource changes as a whole or not at all. Valid settings are those that the registries of `config` declare: any of
a topic, a group or a client metrics subscription, and the live ones of a broker. Unknown settings of a broker are
stored, too, without effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from itertools import islice
from typing import assert_never

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import topic_name_fault
from millpond.base.settings import AnySetting, Kind, Registry, SettingError, Settings
from millpond.base.values import dataclass
from millpond.base.words import quoted
from millpond.config.client_metrics import CLIENT_METRICS
from millpond.config.effective import NodeLayers
from millpond.config.group import CONSUMER_HEARTBEAT_INTERVAL_MS, CONSUMER_SESSION_TIMEOUT_MS, GROUP
from millpond.config.kafka_names import is_kafkas
from millpond.config.node import (
    GROUP_CONSUMER_MAX_HEARTBEAT_INTERVAL_MS,
    GROUP_CONSUMER_MAX_SESSION_TIMEOUT_MS,
    GROUP_CONSUMER_MIN_HEARTBEAT_INTERVAL_MS,
    GROUP_CONSUMER_MIN_SESSION_TIMEOUT_MS,
    NODE,
)
from millpond.config.topic import (
    CLEANUP_POLICY,
    MAX_COMPACTION_LAG_MS,
    MIN_COMPACTION_LAG_MS,
    MIN_INSYNC_REPLICAS,
    RETENTION_BYTES,
    RETENTION_MS,
    TOPIC,
)
from millpond.metadata.decision import OK, Decision, Verdict
from millpond.metadata.elections import SLICE, without_eligible_replicas
from millpond.metadata.image import (
    ALL_BROKERS,
    COORDINATOR_TOPICS,
    SHARE_STATE_TOPIC,
    Image,
    Resource,
    Topic,
)
from millpond.metadata.records import ConfigRecord, PartitionChangeRecord, Record, ResourceType

REGISTRIES: Mapping[int, Registry] = {
    ResourceType.TOPIC: TOPIC,
    ResourceType.BROKER: NODE,
    ResourceType.GROUP: GROUP,
    ResourceType.CLIENT_METRICS: CLIENT_METRICS,
}

GROUP_BOUNDS = {
    CONSUMER_HEARTBEAT_INTERVAL_MS: (
        GROUP_CONSUMER_MIN_HEARTBEAT_INTERVAL_MS,
        GROUP_CONSUMER_MAX_HEARTBEAT_INTERVAL_MS,
    ),
    CONSUMER_SESSION_TIMEOUT_MS: (GROUP_CONSUMER_MIN_SESSION_TIMEOUT_MS, GROUP_CONSUMER_MAX_SESSION_TIMEOUT_MS),
}
"""The bounds that an operator sets for groups."""

RESOURCES_MAX = 10_000
"""How many groups and subscriptions may have settings: they need not exist, so nothing else limits their number."""

UNKNOWN_SETTINGS_MAX = 100
TEXT_BYTES_MAX = 32_767
"""The longest value that the protocol's older versions can carry."""


class Operation(IntEnum):
    """The operation on a setting, with the numbers of the protocol."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One setting of an IncrementalAlterConfigs; `operation` is as the client sent it, not yet checked."""

    name: str
    operation: int
    value: str | None


@dataclass(frozen=True, slots=True)
class ResourceChanges:
    resource: Resource
    changes: tuple[ConfigChange, ...]


@dataclass(frozen=True, slots=True)
class ResourceConfigs:
    """All settings that a resource gets (AlterConfigs)."""

    resource: Resource
    configs: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class ResourceVerdict:
    resource: Resource
    verdict: Verdict


Verdicts = tuple[ResourceVerdict, ...]


def decide_incremental_alter(
    image: Image, layers: NodeLayers, requests: Sequence[ResourceChanges], *, validate_only: bool = False
) -> Decision[Verdicts]:
    """Change single settings of each resource."""
    wishes = [(request.resource, partial(_wish_of_changes, image, layers, request)) for request in requests]
    return _decide(image, layers, wishes, validate_only)


def decide_alter(
    image: Image, layers: NodeLayers, requests: Sequence[ResourceConfigs], *, validate_only: bool = False
) -> Decision[Verdicts]:
    """Replace all settings of each resource: omitted ones go back to their defaults."""
    wishes = [(request.resource, partial(_wish_of_replacement, image, request)) for request in requests]
    return _decide(image, layers, wishes, validate_only)


def first_slice(decision: Decision[Verdicts]) -> Decision[Verdicts | None]:
    """The decision or, if it clears the ELRs of many partitions, the first of these. Then the reply is None, and the
    same must be decided again.

    The setting changes last: a partition whose ELR is cleared early is only less available, but one that kept its ELR
    under the new value could elect a replica that lacks committed records.
    """
    cleared = [each for each in decision.records if isinstance(each, PartitionChangeRecord)]
    return decision if len(cleared) <= SLICE else Decision(tuple(cleared[:SLICE]), None)


def topic_config_records(
    name: str, configs: Sequence[tuple[str, str | None]], layers: NodeLayers
) -> list[ConfigRecord]:
    """The settings that a topic is created with, checked. Raises Refused."""
    nulls = [setting for setting, value in configs if value is None]
    if nulls:
        raise Refused(ErrorCode.INVALID_CONFIG, f"a topic's setting cannot be null: {', '.join(nulls)}")
    texts = {setting: value for setting, value in configs if value is not None}
    if texts:
        _check_topic(name, texts, texts, layers)
    return [ConfigRecord(ResourceType.TOPIC, name, setting, value) for setting, value in texts.items()]


Wish = Mapping[str, str | None]
"""The new value of each named setting; None is its default."""


def _decide(
    image: Image, layers: NodeLayers, wishes: Sequence[tuple[Resource, Callable[[], Wish]]], validate_only: bool
) -> Decision[Verdicts]:
    times_named = Counter(resource for resource, _ in wishes)
    records: list[Record] = []
    verdicts: dict[Resource, Verdict] = {}
    for resource, wish in wishes:
        try:
            if times_named[resource] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "the request contains the resource more than once")
            _check_resource(image, resource)
            changes = _records(image, layers, resource, wish())
            records += changes
            if any(each.name == MIN_INSYNC_REPLICAS.name for each in changes):
                # One too many shows `first_slice` that there are more.
                records += islice(without_eligible_replicas(_topics_under(image, resource)), SLICE + 1)
            verdicts[resource] = OK
        except Refused as refused:
            verdicts[resource] = Verdict.of(refused)
    reply = tuple(ResourceVerdict(resource, verdict) for resource, verdict in verdicts.items())
    return Decision(() if validate_only else tuple(records), reply)


def _topics_under(image: Image, resource: Resource) -> Iterable[Topic]:
    """The topics that a setting of this resource may affect."""
    return [image.topics[resource.name]] if resource.type == ResourceType.TOPIC else image.topics.values()


def _check_resource(image: Image, resource: Resource) -> None:
    match resource.type:
        case ResourceType.TOPIC:
            if not resource.name:
                raise Refused(ErrorCode.INVALID_REQUEST, "topics have no common settings; name a topic")
            if fault := topic_name_fault(resource.name):
                raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
            if resource.name not in image.topics:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {resource.name} does not exist")
        case ResourceType.BROKER:
            if resource.name and resource.name not in map(str, image.brokers):
                raise Refused(ErrorCode.INVALID_REQUEST, f"unknown broker {quoted(resource.name)}")
        case ResourceType.GROUP | ResourceType.CLIENT_METRICS:
            if not resource.name:
                raise Refused(ErrorCode.INVALID_REQUEST, "groups and subscriptions have no common settings; name one")
            if resource not in image.configs and len(image.configs) >= RESOURCES_MAX + len(image.topics):
                raise Refused(
                    ErrorCode.POLICY_VIOLATION,
                    f"the cluster has reached its limit of {RESOURCES_MAX} groups and subscriptions with settings",
                )
        case ResourceType.BROKER_LOGGER:
            raise Refused(ErrorCode.INVALID_REQUEST, "logger levels can only be changed with IncrementalAlterConfigs")
        case _:
            raise Refused(ErrorCode.INVALID_REQUEST, f"resource type {resource.type} has no settings")


def _wish_of_changes(image: Image, layers: NodeLayers, request: ResourceChanges) -> Wish:
    _refuse_repeated(change.name for change in request.changes)
    needs_value = [change for change in request.changes if change.operation != Operation.DELETE]
    _refuse_nulls(change.name for change in needs_value if change.value is None)
    return {change.name: _changed(image, layers, request.resource, change) for change in request.changes}


def _wish_of_replacement(image: Image, request: ResourceConfigs) -> Wish:
    _refuse_repeated(name for name, _ in request.configs)
    _refuse_nulls(name for name, value in request.configs if value is None)
    own = image.config_of(request.resource)
    # Settings that a broker cannot change at runtime, such as the cluster id, cannot be reset by a client either. Nor
    # can those that must be the same on all nodes.
    forgotten = [
        name
        for name in own
        if request.resource.type != ResourceType.BROKER
        or (_may_change(name) and (request.resource != ALL_BROKERS or name != MIN_INSYNC_REPLICAS.name))
    ]
    return dict.fromkeys(forgotten) | dict(request.configs)


def _changed(image: Image, layers: NodeLayers, resource: Resource, change: ConfigChange) -> str | None:
    """The text that the setting has after the change."""
    try:
        operation = Operation(change.operation)
    except ValueError:
        raise Refused(ErrorCode.INVALID_REQUEST, f"unknown operation {change.operation}") from None
    value = change.value or ""
    match operation:
        case Operation.SET:
            return value
        case Operation.DELETE:
            return None
        case Operation.APPEND:
            parts = _parts(image, layers, resource, change.name)
            return ",".join(dict.fromkeys([*parts, *_split(value)]))
        case Operation.SUBTRACT:
            parts = _parts(image, layers, resource, change.name)
            gone = set(_split(value))
            return ",".join(part for part in parts if part not in gone)
        case _:
            assert_never(operation)


def _parts(image: Image, layers: NodeLayers, resource: Resource, name: str) -> list[str]:
    """The current value of a list, set or default."""
    setting = _setting(REGISTRIES[resource.type], name)
    if setting.kind is not Kind.LIST:
        raise Refused(ErrorCode.INVALID_CONFIG, f"{name} is not a list: values cannot be appended or subtracted")
    own = image.config_of(resource).get(name)
    if own is not None:
        return _split(own)
    is_topic = resource.type == ResourceType.TOPIC
    inherited = layers.effective_for_topic(setting, {}) if is_topic else layers.effective(setting)
    return _split(inherited.text)


def _records(image: Image, layers: NodeLayers, resource: Resource, wish: Wish) -> list[ConfigRecord]:
    """Check the request; a record for each setting that really changes."""
    own = image.config_of(resource)
    texts = {name: value for name, value in wish.items() if value is not None}
    for name, value in texts.items():
        if max(len(name), len(value)) > TEXT_BYTES_MAX // 4 and max(map(_size, (name, value))) > TEXT_BYTES_MAX:
            raise Refused(ErrorCode.INVALID_CONFIG, f"{name[:100]}: a value may have at most {TEXT_BYTES_MAX} bytes")
    kept = {name: value for name, value in own.items() if name not in wish}
    match resource.type:
        case ResourceType.TOPIC:
            _check_topic(resource.name, texts, kept | texts, layers)
        case ResourceType.GROUP:
            _check_group(texts, kept | texts, layers)
        case ResourceType.CLIENT_METRICS:
            _check_each(CLIENT_METRICS, texts)
        case _:
            _check_broker(wish, texts, own)
            _check_in_sync_min(image, resource, wish)
    changed = {name: value for name, value in wish.items() if own.get(name) != value}
    return [ConfigRecord(resource.type, resource.name, name, value) for name, value in changed.items()]


def _check_topic(topic: str, texts: Mapping[str, str], all_texts: Mapping[str, str], layers: NodeLayers) -> None:
    """Check each value, then their combination."""
    _check_each(TOPIC, texts)
    settings = layers.topic_settings(all_texts)
    if settings[MIN_COMPACTION_LAG_MS] > settings[MAX_COMPACTION_LAG_MS]:
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"{MIN_COMPACTION_LAG_MS.name}={settings[MIN_COMPACTION_LAG_MS]} cannot be more than "
            f"{MAX_COMPACTION_LAG_MS.name}={settings[MAX_COMPACTION_LAG_MS]}",
        )
    if topic == SHARE_STATE_TOPIC:
        _check_share_state_topic(settings)
    elif topic in COORDINATOR_TOPICS and settings[CLEANUP_POLICY] != ("compact",):
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"{CLEANUP_POLICY.name} of {topic} must stay 'compact': with any other policy, committed offsets "
            "and transactions would be deleted too early or kept forever",
        )


def _check_share_state_topic(settings: Settings) -> None:
    if settings[CLEANUP_POLICY] != ("delete",):
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"{CLEANUP_POLICY.name} of {SHARE_STATE_TOPIC} must stay 'delete': compaction would remove changes",
        )
    for setting in (RETENTION_MS, RETENTION_BYTES):
        if settings[setting] >= 0:
            raise Refused(
                ErrorCode.INVALID_CONFIG,
                f"{setting.name} of {SHARE_STATE_TOPIC} must stay -1: the share coordinator deletes what it "
                "no longer needs",
            )


def _check_group(texts: Mapping[str, str], all_texts: Mapping[str, str], layers: NodeLayers) -> None:
    _check_each(GROUP, texts)
    for setting, (least, most) in GROUP_BOUNDS.items():
        own_ms = layers.effective_for_group(setting, all_texts).value
        usual_ms = layers.effective_for_group(setting, {}).value
        # The value that all groups have is always allowed.
        if setting.name in texts and own_ms != usual_ms:
            _check_bound(setting.name, own_ms, layers.static[least], layers.static[most])  # type: ignore[arg-type]
    session_ms, heartbeat_ms = (
        layers.effective_for_group(setting, all_texts).value
        for setting in (CONSUMER_SESSION_TIMEOUT_MS, CONSUMER_HEARTBEAT_INTERVAL_MS)
    )
    if session_ms <= heartbeat_ms:  # type: ignore[operator]
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"{CONSUMER_SESSION_TIMEOUT_MS.name}={session_ms} must be more than "
            f"{CONSUMER_HEARTBEAT_INTERVAL_MS.name}={heartbeat_ms}",
        )


def _check_bound(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"{name}={value} must be from {least} to {most}, the limits in this node's settings",
        )


def _check_broker(wish: Wish, texts: Mapping[str, str], own: Mapping[str, str]) -> None:
    for name in wish:
        # Removing a setting that is not set is no change.
        if not _may_change(name) and (name in texts or name in own):
            raise Refused(ErrorCode.INVALID_REQUEST, f"{name} can only be set when the node starts")
    _check_each(NODE, {name: text for name, text in texts.items() if name in NODE})
    unknown = {name for name in (*own, *texts) if name not in NODE}
    if len(unknown) > UNKNOWN_SETTINGS_MAX:
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"a broker stores at most {UNKNOWN_SETTINGS_MAX} unknown settings",
        )


def _check_in_sync_min(image: Image, resource: Resource, wish: Wish) -> None:
    """Nodes must not differ in `min.insync.replicas`, as in Kafka with eligible leader replicas (KIP-966)."""
    name = MIN_INSYNC_REPLICAS.name
    if name not in wish or len(image.brokers) <= 1:
        return
    if resource != ALL_BROKERS and wish[name] is not None:
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"{name} must be the same on all nodes: set it for all of them, or for a topic",
        )
    if resource == ALL_BROKERS and wish[name] is None and name in image.config_of(resource):
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"{name} of the cluster cannot be removed, only changed: without it each node would use its own",
        )


def _may_change(name: str) -> bool:
    """Whether it can change on a running broker: its live settings, and unknown ones."""
    return NODE.get(name).live if name in NODE else not is_kafkas(name)


def _check_each(registry: Registry, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        _parse(_setting(registry, name), text)


def _setting(registry: Registry, name: str) -> AnySetting:
    try:
        return registry.get(name)
    except SettingError as fault:
        raise Refused(ErrorCode.INVALID_CONFIG, str(fault)) from None


def _parse(setting: AnySetting, text: str) -> None:
    try:
        setting.parse(text)
    except SettingError as fault:
        raise Refused(ErrorCode.INVALID_CONFIG, str(fault)) from None


def _size(text: str) -> int:
    return len(text.encode())


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _refuse_repeated(names: Iterable[str]) -> None:
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise Refused(ErrorCode.INVALID_REQUEST, f"duplicate settings: {', '.join(repeated)}")


def _refuse_nulls(names: Iterable[str]) -> None:
    nulls = list(names)
    if nulls:
        raise Refused(ErrorCode.INVALID_REQUEST, f"a value cannot be null: {', '.join(nulls)}")
