"""Which of several layers gives a setting its value, and what each of the others would have given.

From the strongest: the topic's or group's own value, this broker's value set while running, the value set while
running for all brokers, what the node was started with, the default. DescribeConfigs shows the chain as synonyms.
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
    """Where a value comes from, by the numbers of the protocol."""

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
    """One source of a value: under which name, as text and as value."""

    name: str
    text: str
    value: Value
    source: Source


@dataclass(frozen=True, slots=True)
class Effective:
    """The value that counts, and all that were given, the strongest first."""

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
    """All that a node was told: at its start, and while running for itself and for all brokers (as text).

    A value: it keeps copies, and whoever changes a setting makes new layers.
    """

    static: Settings
    for_this_broker: Mapping[str, str] = field(default_factory=dict)
    for_all_brokers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "for_this_broker", dict(self.for_this_broker))
        object.__setattr__(self, "for_all_brokers", dict(self.for_all_brokers))

    def effective(self, setting: AnySetting) -> Effective:
        """The chain for one of the node's settings."""
        return Effective(setting, tuple(self._layers(setting)))

    def effective_for_topic(self, setting: AnySetting, overrides: Mapping[str, str]) -> Effective:
        """The chain for one of a topic's settings, given the topic's own values as text."""
        return self._own_or_inherited(setting, overrides, Source.DYNAMIC_TOPIC)

    def effective_for_group(self, setting: AnySetting, overrides: Mapping[str, str]) -> Effective:
        return self._own_or_inherited(setting, overrides, Source.DYNAMIC_GROUP)

    def effective_for_client_metrics(self, setting: AnySetting, overrides: Mapping[str, str]) -> Effective:
        return self._own_or_inherited(setting, overrides, Source.DYNAMIC_CLIENT_METRICS)

    def _own_or_inherited(self, setting: AnySetting, overrides: Mapping[str, str], source: Source) -> Effective:
        given = NODE.get(setting.inherits) if setting.inherits is not None else setting
        return Effective(setting, (*_read(setting, overrides, source), *self._layers(given)))

    def settings(self) -> Settings:
        """The node's settings as they stand now."""
        return Settings(NODE, self._values)

    def topic_settings(self, overrides: Mapping[str, str]) -> Settings:
        """A topic's settings as they stand now: every one resolved."""
        return Settings(TOPIC, self._inherited | parsed(TOPIC, overrides))

    # Worked out once: a node may have many thousand topics, and most have few settings of their own.

    @cached_property
    def _values(self) -> dict[str, Value]:
        values = {setting.name: self.effective(setting).value for setting in NODE}
        # What was said for one listener alone has names that no registry can list.
        own = {name: value for name, value in self.static.overrides.items() if name.startswith(LISTENER_PREFIX)}
        return values | own

    @cached_property
    def _inherited(self) -> dict[str, Value]:
        return {setting.name: self.effective_for_topic(setting, {}).value for setting in TOPIC}

    def _layers(self, setting: AnySetting) -> Iterator[Layer]:
        if setting.live:
            # Leaders commit by this one and the controller elects by it: a value for one broker, set while it was
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
    """The values that `texts` gives to settings of the registry."""
    return {
        layer.name: layer.value
        for name in texts
        if name in registry
        for layer in _read(registry.get(name), texts, Source.DEFAULT)
    }


def _read(setting: AnySetting, texts: Mapping[str, str], source: Source) -> Iterator[Layer]:
    """The value that `texts` gives, if it gives one that can be used."""
    text = texts.get(setting.name)
    if text is None:
        return
    try:
        value: Value = setting.parse(text)
    except SettingError:
        # Values are checked when they are set. One that no longer fits comes from another version of the program;
        # it must not keep the node from starting, so the next layer counts.
        return
    yield Layer(setting.name, text, value, source)
