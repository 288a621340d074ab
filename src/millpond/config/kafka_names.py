"""Kafka broker settings that Millpond names differently or does not have: shown to tools, never read.

A dynamic setting that neither Kafka nor Millpond knows is not refused, as a plugin may use it; it is stored without
effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millpond.base.settings import AnySetting, Registry, Setting, Value
from millpond.config.effective import Effective, Layer, NodeLayers, Source
from millpond.config.listeners import ADVERTISED_LISTENER, ADVERTISED_LISTENERS, LISTEN, LISTENERS
from millpond.config.node import (
    COARSE,
    DATA_FOLDER,
    NODE,
    NODE_ID,
    internal_in_sync_min,
    internal_replicas,
)

OTHERWISE: Final[dict[str, AnySetting]] = {
    "broker.id": NODE_ID,
    "log.dir": DATA_FOLDER,
    "log.dirs": DATA_FOLDER,
    "metadata.log.dir": DATA_FOLDER,
}
"""Kafka's names for settings that we name differently."""

SHOWN_AS_THEY_ARE: Final = {LISTENERS.name: LISTEN, ADVERTISED_LISTENERS.name: ADVERTISED_LISTENER}
"""Whichever form was set, the long form is shown with the effective value."""

_ONE_LOOP = "Without effect: a node is one process that serves all clients from one event loop."
_CLUSTER_NODES = "Without effect: `cluster.nodes` and `cluster.contacts` name the other nodes."
_OWN_TOPICS = "Without effect: internal topics have up to three replicas, two of which must be in sync."
_WORKERS = "Without effect: a few worker threads do blocking disk work."
_SYSTEM = "Without effect: the operating system chooses."

WITHOUT_EFFECT: Final = Registry(
    "Kafka",
    (
        Setting(
            "process.roles",
            ("broker", "controller"),
            "Without effect: every node is a broker, and a controller if it is one of `cluster.voters`.",
        ),
        Setting("controller.quorum.bootstrap.servers", "", _CLUSTER_NODES),
        Setting("num.io.threads", 1, _ONE_LOOP, bits=32),
        Setting("num.network.threads", 1, _ONE_LOOP, bits=32),
        Setting("num.recovery.threads.per.data.dir", 1, _WORKERS, bits=32),
        Setting("background.threads", 1, _WORKERS, bits=32),
        Setting("log.cleaner.threads", 1, _WORKERS, bits=32),
        Setting("num.replica.fetchers", 1, "Without effect: a node runs one fetcher per leader node.", bits=32),
        Setting("offsets.topic.replication.factor", 1, _OWN_TOPICS, bits=32),
        Setting("transaction.state.log.replication.factor", 1, _OWN_TOPICS, bits=32),
        Setting("transaction.state.log.min.isr", 1, _OWN_TOPICS, bits=32),
        Setting(
            "controlled.shutdown.enable", True, "Without effect: a stopping node always hands over its partitions."
        ),
        Setting("socket.receive.buffer.bytes", -1, _SYSTEM, bits=32),
        Setting("socket.send.buffer.bytes", -1, _SYSTEM, bits=32),
        Setting("group.coordinator.rebalance.protocols", ("classic", "consumer"), "Without effect: both are served."),
        Setting("remote.log.storage.system.enable", False, "Without effect: there is no tiered storage."),
    ),
)

UNKNOWN_TO_ALL = "Unknown to this broker and to Kafka: stored without effect."


def is_kafkas(name: str) -> bool:
    """Whether this is a Kafka setting that only takes effect when a broker restarts."""
    return name in OTHERWISE or name in SHOWN_AS_THEY_ARE or name in COARSE or name in WITHOUT_EFFECT


def kafka_settings(layers: NodeLayers, listeners: tuple[str, str]) -> Iterator[Effective]:
    """Kafka's names with their effective values here; `listeners` holds the current and the advertised listeners."""
    for name, own in OTHERWISE.items():
        yield _shown(layers, name, own, own.show(layers.effective(own).value))
    for (name, short), text in zip(SHOWN_AS_THEY_ARE.items(), listeners, strict=True):
        own = NODE.get(name)
        source = max(layers.effective(own).source, layers.effective(short).source, key=lambda each: -each)
        yield Effective(own, (Layer(name, text, text, source),))
    for name, (target, unit_ms) in COARSE.items():
        own = NODE.get(target)
        count = layers.effective(own).value
        assert isinstance(count, int), target
        yield _shown(layers, name, own, str(count // unit_ms if count > 0 else count))
    values = _by_nodes(layers)
    for setting in WITHOUT_EFFECT:
        value = values.get(setting.name, setting.default)
        yield Effective(setting, (Layer(setting.name, setting.show(value), value, Source.DEFAULT),))


def _by_nodes(layers: NodeLayers) -> dict[str, Value]:
    """The settings that depend on the number of nodes."""
    replicas = internal_replicas(layers.static)
    return {
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": internal_in_sync_min(layers.static),
    }


def unknown_settings(layers: NodeLayers) -> Iterator[Effective]:
    """Unknown settings that were set for this broker or for all brokers."""
    dynamic = (
        (layers.for_this_broker, Source.DYNAMIC_BROKER),
        (layers.for_all_brokers, Source.DYNAMIC_DEFAULT_BROKER),
    )
    names = [name for texts, _ in dynamic for name in texts if name not in NODE and not is_kafkas(name)]
    for name in dict.fromkeys(names):
        set_in = [Layer(name, texts[name], texts[name], source) for texts, source in dynamic if name in texts]
        yield Effective(Setting(name, "", UNKNOWN_TO_ALL), tuple(set_in))


def _shown(layers: NodeLayers, name: str, own: AnySetting, text: str) -> Effective:
    setting = Setting(name, text, f"Kafka's name for `{own.name}`.")
    return Effective(setting, (Layer(name, text, text, layers.effective(own).source),))
