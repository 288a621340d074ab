"""The effective value of a setting, and the values of the layers it overrides.

From highest precedence: the topic's or group's own value, this broker's dynamic value, the cluster-wide dynamic
value, the static value from the node's start, the default. DescribeConfigs shows the chain as synonyms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import IntEnum
from functools import cached_property

from millpond.base.settings import AnySetting, Registry, SettingError, Settings, Value
from millpond.base.values import dataclass
from millpond.config.node import NODE
from millpond.config.security import LISTENER_PREFIX
from millpond.config.topic import MIN_INSYNC_REPLICAS, TOPIC


class Source(IntEnum):
    """The source of a value, with the numbers of the protocol."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    DYNAMIC_CLIENT_METRICS = 7
    DYNAMIC_GROUP = 8


@dataclass(frozen=True, slots=True)
class Layer:
    """One source of a value: its name there, as text and parsed."""

    name: str
    text: str
    value: Value
    source: Source


@dataclass(frozen=True, slots=True)
class Effective:
    """The effective value and all values given, highest precedence first."""

    setting: AnySetting
    layers: tuple[Layer, ...]

    @property
    def value(self) -> Value:
        return self.layers[0].value

    @property
    def text(self) -> str:
        return self.layers[0].text

    @property
    def source(self) -> Source:
        return self.layers[0].source


@dataclass(frozen=True)
class NodeLayers:
    """A node's settings: static, and dynamic for this broker and for all brokers (as text).

    Immutable: it keeps copies, and a change makes new layers.
    """

    static: Settings
    for_this_broker: Mapping[str, str] = field(default_factory=dict)
    for_all_brokers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "for_this_broker", dict(self.for_this_broker))
        object.__setattr__(self, "for_all_brokers", dict(self.for_all_brokers))

    def effective(self, setting: AnySetting) -> Effective:
        """The chain of values of a node setting."""
        return Effective(setting, tuple(self._layers(setting)))

    def effective_for_topic(self, setting: AnySetting, overrides: Mapping[str, str]) -> Effective:
        """The chain of values of a topic setting, given the topic's own values as text."""
        return self._own_or_inherited(setting, overrides, Source.DYNAMIC_TOPIC)

    def effective_for_group(self, setting: AnySetting, overrides: Mapping[str, str]) -> Effective:
        return self._own_or_inherited(setting, overrides, Source.DYNAMIC_GROUP)

    def effective_for_client_metrics(self, setting: AnySetting, overrides: Mapping[str, str]) -> Effective:
        return self._own_or_inherited(setting, overrides, Source.DYNAMIC_CLIENT_METRICS)

    def _own_or_inherited(self, setting: AnySetting, overrides: Mapping[str, str], source: Source) -> Effective:
        inherited = NODE.get(setting.inherits) if setting.inherits is not None else setting
        return Effective(setting, (*_read(setting, overrides, source), *self._layers(inherited)))

    def settings(self) -> Settings:
        """The node's current settings."""
        return Settings(NODE, self._values)

    def topic_settings(self, overrides: Mapping[str, str]) -> Settings:
        """A topic's current settings, all resolved."""
        return Settings(TOPIC, self._inherited | parsed(TOPIC, overrides))

    # Cached: a node may have thousands of topics, and most override few settings.

    @cached_property
    def _values(self) -> dict[str, Value]:
        values = {setting.name: self.effective(setting).value for setting in NODE}
        # Per-listener settings have names that no registry can list.
        own = {name: value for name, value in self.static.overrides.items() if name.startswith(LISTENER_PREFIX)}
        return values | own

    @cached_property
    def _inherited(self) -> dict[str, Value]:
        return {setting.name: self.effective_for_topic(setting, {}).value for setting in TOPIC}

    def _layers(self, setting: AnySetting) -> Iterator[Layer]:
        if setting.live:
            # Leaders use this setting to commit and the controller to elect: a value for one broker, set while it was
            # alone or by an earlier version, must not differ from the cluster's.
            is_cluster_wide = setting.name == MIN_INSYNC_REPLICAS.inherits and setting.name in self.for_all_brokers
            if not is_cluster_wide:
                yield from _read(setting, self.for_this_broker, Source.DYNAMIC_BROKER)
            yield from _read(setting, self.for_all_brokers, Source.DYNAMIC_DEFAULT_BROKER)
        if setting.name in self.static.overrides:
            value = self.static.overrides[setting.name]
            yield Layer(setting.name, setting.show(value), value, Source.STATIC_BROKER)
        yield Layer(setting.name, setting.show(setting.default), setting.default, Source.DEFAULT)


def parsed(registry: Registry, texts: Mapping[str, str]) -> dict[str, Value]:
    """The parsed values of the registry's settings in `texts`."""
    return {
        layer.name: layer.value
        for name in texts
        if name in registry
        for layer in _read(registry.get(name), texts, Source.DEFAULT)
    }


def _read(setting: AnySetting, texts: Mapping[str, str], source: Source) -> Iterator[Layer]:
    """The value in `texts`, if present and usable."""
    text = texts.get(setting.name)
    if text is None:
        return
    try:
        value: Value = setting.parse(text)
    except SettingError:
        # Values are validated when set. One that is invalid now comes from another version of the program; it must
        # not prevent the node from starting, so the next layer applies.
        return
    yield Layer(setting.name, text, value, source)
