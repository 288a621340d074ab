"""The settings of Kafka's Java consumers and producers, which options may name after the prefix `kafka.`.

A migrated job keeps its settings. Those without an effect here only cause a warning; a name that no Kafka client
knows is a typo, and is refused.
"""

from __future__ import annotations

from typing import Final


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BOTH: Final = _names(
    """bootstrap.resolve.timeout.ms bootstrap.servers client.dns.lookup client.id client.rack config.providers
    connections.max.idle.ms enable.metrics.push interceptor.classes metadata.cluster.check.enable metadata.max.age.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples
    metrics.recording.level metrics.sample.window.ms receive.buffer.bytes reconnect.backoff.max.ms
    reconnect.backoff.ms request.timeout.ms retry.backoff.max.ms retry.backoff.ms security.protocol
    security.providers send.buffer.bytes socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms"""
)
_SECURITY: Final = _names(
    """sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
    sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
    sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism
    ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.engine.factory.class
    ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location
    ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation
    ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location ssl.truststore.password
    ssl.truststore.type"""
)
_CONSUMER: Final = _names(
    """allow.auto.create.topics auto.commit.interval.ms auto.offset.reset check.crcs default.api.timeout.ms
    enable.auto.commit exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id
    group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms isolation.level key.deserializer
    max.partition.fetch.bytes max.poll.interval.ms max.poll.records partition.assignment.strategy session.timeout.ms
    share.acknowledgement.mode share.acquire.mode value.deserializer"""
)
_PRODUCER: Final = _names(
    """acks batch.size buffer.memory buffer.memory.allocation.strategy compression.gzip.level compression.lz4.level
    compression.type compression.zstd.level delivery.timeout.ms enable.idempotence key.serializer linger.ms
    max.block.ms max.in.flight.requests.per.connection max.request.size metadata.max.idle.ms
    partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
    partitioner.ignore.keys partitioner.rack.aware retries transaction.timeout.ms
    transaction.two.phase.commit.enable transactional.id value.serializer"""
)

NAMES: Final = _BOTH | _SECURITY | _CONSUMER | _PRODUCER
_FAMILIES: Final = ("sasl.oauthbearer.", "config.providers.", "internal.")
"""Prefixes whose settings differ from release to release."""


def is_known(setting: str) -> bool:
    return setting in NAMES or setting.startswith(_FAMILIES)
