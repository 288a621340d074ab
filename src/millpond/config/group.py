"""Settings of a single group, under Kafka's names.

A group's own value wins; otherwise the node setting named by `inherits` applies. They may change at any time, even
before the group exists.
"""

from __future__ import annotations

from millpond.base.settings import Check, Registry, Setting, V, at_least, one_of

CONSUMER_SESSION_TIMEOUT_MS = Setting(
    "consumer.session.timeout.ms",
    45_000,
    "After how long a silence a member of the new protocol is thought gone.",
    check=at_least(1),
    inherits="group.consumer.session.timeout.ms",
    live=True,
    bits=32,
)
CONSUMER_HEARTBEAT_INTERVAL_MS = Setting(
    "consumer.heartbeat.interval.ms",
    5000,
    "How often members of the new protocol shall say that they are alive.",
    check=at_least(1),
    inherits="group.consumer.heartbeat.interval.ms",
    live=True,
    bits=32,
)


def _unused(name: str, default: V, doc: str, check: Check | None = None) -> Setting[V]:
    groups = "share groups" if name.startswith("share.") else "groups of Kafka Streams"
    return Setting(name, default, f"{doc} Without effect, as {groups} are not served.", check, bits=32)


GROUP = Registry(
    "group",
    (
        CONSUMER_SESSION_TIMEOUT_MS,
        CONSUMER_HEARTBEAT_INTERVAL_MS,
        _unused("share.session.timeout.ms", 45_000, "When a silent member is thought gone.", at_least(1)),
        _unused("share.heartbeat.interval.ms", 5000, "How often members report.", at_least(1)),
        _unused("share.record.lock.duration.ms", 30_000, "How long a record is one member's.", at_least(1)),
        _unused("share.auto.offset.reset", "latest", "Where a new group begins."),
        _unused(
            "share.isolation.level",
            "read_uncommitted",
            "Whether open and aborted transactions are read.",
            one_of("read_uncommitted", "read_committed"),
        ),
        _unused(
            "share.delivery.count.limit", 5, "How often a record is handed out before it is given up.", at_least(1)
        ),
        _unused("share.partition.max.record.locks", 2000, "How many records may be handed out at once.", at_least(1)),
        _unused("share.renew.acknowledge.enable", True, "Whether members may keep a record for longer."),
        _unused("streams.session.timeout.ms", 45_000, "When a silent member is thought gone.", at_least(1)),
        _unused("streams.heartbeat.interval.ms", 5000, "How often members report.", at_least(1)),
        _unused("streams.num.standby.replicas", 0, "How many standby tasks there are.", at_least(0)),
        _unused("streams.initial.rebalance.delay.ms", 3000, "How long a new group waits for members.", at_least(0)),
    ),
)
