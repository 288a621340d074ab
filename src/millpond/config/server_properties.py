"""Translate Kafka's `server.properties`: the settings supported here, and advice on the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from millpond.base.settings import SettingError
from millpond.config.kafka_names import OTHERWISE, WITHOUT_EFFECT
from millpond.config.node import COARSE, DATA_FOLDER, NODE, NODE_ID
from millpond.config.security import LISTENER_PREFIX

COMMENTS: Final = ("#", "!")

METADATA_FOLDER: Final = "metadata.log.dir"
GENERATED_ID: Final = "-1"

_JAVA_CLASS = "Without effect: a node does not load Java classes."
_ZOOKEEPER = "Without effect: there is no ZooKeeper; the nodes keep the metadata themselves."
_SHARE = "Without effect: it tunes a part of Kafka's share groups that Millpond does not have."
_STREAMS = "Without effect: Kafka Streams groups are not supported."
_TIERED = "Without effect: there is no tiered storage."
_INTERNAL = "Without effect: it tunes a part of Kafka that Millpond does not have."

_FAMILIES: Final[Mapping[str, str]] = {
    "zookeeper.": _ZOOKEEPER,
    "password.encoder.": _ZOOKEEPER,
    "group.share.": _SHARE,
    "share.": _SHARE,
    "group.streams.": _STREAMS,
    "remote.log.": _TIERED,
    "rsm.config.": _TIERED,
    "rlmm.config.": _TIERED,
    "kafka.metrics.": "Without effect: Prometheus reads metrics at `metrics.listener`.",
    "alter.log.dirs.replication.": "Without effect: a node has one data folder.",
    "replication.quota.": _INTERNAL,
    "unstable.": _INTERNAL,
}
"""Prefixes of Kafka's settings that have no effect here."""

_SINGLE: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "alter.config.policy.class.name",
            "client.quota.callback.class",
            "config.providers",
            "create.topic.policy.class.name",
            "metric.reporters",
            "principal.builder.class",
            "sasl.server.callback.handler.class",
            "security.providers",
            "ssl.engine.factory.class",
        ),
        _JAVA_CLASS,
    ),
    **dict.fromkeys(
        (
            "auto.include.jmx.reporter",
            "broker.id.generation.enable",
            "compression.gzip.level",
            "compression.lz4.level",
            "compression.zstd.level",
            "control.plane.listener.name",
            "controlled.shutdown.max.retries",
            "controlled.shutdown.retry.backoff.ms",
            "controller.quorum.append.linger.ms",
            "controller.quorum.auto.join.enable",
            "controller.quorum.election.backoff.max.ms",
            "controller.quorum.fetch.snapshot.max.bytes",
            "controller.socket.timeout.ms",
            "delete.records.purgatory.purge.interval.requests",
            "early.start.listeners",
            "eligible.leader.replicas.enable",
            "fetch.purgatory.purge.interval.requests",
            "group.coordinator.append.linger.ms",
            "group.coordinator.new.enable",
            "group.coordinator.threads",
            "initial.broker.registration.timeout.ms",
            "inter.broker.protocol.version",
            "leader.imbalance.per.broker.percentage",
            "log.dir.failure.timeout.ms",
            "log.message.downconversion.enable",
            "log.message.format.version",
            "log.message.timestamp.difference.max.ms",
            "metadata.log.segment.bytes",
            "metadata.log.segment.min.bytes",
            "metadata.log.segment.ms",
            "metadata.max.idle.interval.ms",
            "metadata.max.retention.bytes",
            "metadata.max.retention.ms",
            "metrics.num.samples",
            "metrics.recording.level",
            "metrics.sample.window.ms",
            "num.replica.alter.log.dirs.threads",
            "offsets.commit.required.acks",
            "offsets.commit.timeout.ms",
            "offsets.load.buffer.size",
            "offsets.topic.compression.codec",
            "offsets.topic.segment.bytes",
            "producer.id.expiration.check.interval.ms",
            "producer.purgatory.purge.interval.requests",
            "queued.max.requests",
            "replica.fetch.backoff.ms",
            "replica.fetch.max.bytes",
            "replica.fetch.min.bytes",
            "replica.fetch.response.max.bytes",
            "replica.fetch.wait.max.ms",
            "replica.high.watermark.checkpoint.interval.ms",
            "replica.socket.receive.buffer.bytes",
            "replica.socket.timeout.ms",
            "reserved.broker.max.id",
            "sasl.kerberos.kinit.cmd",
            "sasl.kerberos.min.time.before.relogin",
            "sasl.kerberos.principal.to.local.rules",
            "sasl.kerberos.service.name",
            "sasl.kerberos.ticket.renew.jitter",
            "sasl.kerberos.ticket.renew.window.factor",
            "sasl.login.callback.handler.class",
            "sasl.login.class",
            "server.max.startup.time.ms",
            "socket.listen.backlog.size",
            "ssl.allow.dn.changes",
            "ssl.allow.san.changes",
            "ssl.keymanager.algorithm",
            "ssl.protocol",
            "ssl.provider",
            "ssl.secure.random.implementation",
            "ssl.trustmanager.algorithm",
            "telemetry.max.bytes",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms",
            "transaction.partition.verification.enable",
            "transaction.remove.expired.transaction.cleanup.interval.ms",
            "transaction.state.log.load.buffer.size",
            "transaction.state.log.segment.bytes",
            "unclean.leader.election.interval.ms",
        ),
        _INTERNAL,
    ),
}


@dataclass(frozen=True, slots=True)
class Property:
    """A logical line of a properties file."""

    line: int
    """The number of its first line, from 1."""
    name: str
    value: str


class BadLine(ValueError):
    """A line that is not `name=value`."""

    def __init__(self, line: int) -> None:
        super().__init__(f"line {line}")
        self.line = line


def properties(text: str) -> Iterator[Property]:
    """The lines of a properties file as Java reads it: comments, `name=value` or `name: value`, continued lines."""
    begun, first = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        stripped = raw.strip()
        if not begun and (not stripped or stripped.startswith(COMMENTS)):
            continue
        first = first or number
        begun += stripped
        if (len(begun) - len(begun.rstrip("\\"))) % 2:
            begun = begun[:-1]
            continue
        yield _property(first, begun)
        begun, first = "", 0
    if begun:
        yield _property(first, begun)


def _property(line: int, text: str) -> Property:
    ends = [at for at in (text.find("="), text.find(":")) if at > 0]
    if not ends or text[0] in "=:":
        raise BadLine(line)
    return Property(line, text[: min(ends)].strip(), text[min(ends) + 1 :].strip())


def meaningless(name: str) -> str | None:
    """Why a Kafka broker setting has no effect here; None if it has one, or is not a Kafka setting."""
    if name in NODE or name in COARSE or name.startswith(LISTENER_PREFIX):
        return None
    if name in WITHOUT_EFFECT:
        return WITHOUT_EFFECT.get(name).doc
    if name in _SINGLE:
        return _SINGLE[name]
    return next((why for prefix, why in _FAMILIES.items() if name.startswith(prefix)), None)


def translated(texts: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Settings under our own names, and why others have no effect. Raises SettingError."""
    ours = {name: text for name, text in texts.items() if name not in OTHERWISE}
    without_effect = {name: why for name in ours if (why := meaningless(name)) is not None}
    for name in without_effect:
        del ours[name]
    if (broker_id := texts.get("broker.id")) is not None:
        if broker_id == GENERATED_ID:
            without_effect["broker.id"] = "Without effect: `node.id` is 1 unless it is set."
        else:
            ours.setdefault(NODE_ID.name, broker_id)
    folder = texts.get("log.dirs") or texts.get("log.dir")
    if folder:
        if "," in folder:
            raise SettingError(f"log.dirs={folder}: a node has one data folder; name only one")
        ours.setdefault(DATA_FOLDER.name, folder)
    if METADATA_FOLDER in texts and texts[METADATA_FOLDER] != ours.get(DATA_FOLDER.name):
        without_effect[METADATA_FOLDER] = "Without effect: the metadata is kept in the data folder."
    return ours, without_effect
