"""Settings of a single group, under Kafka's names.

A group's own value wins; otherwise the node setting named by `inherits` applies. They may change at any time, even
before the group exists.
"""

from __future__ import annotations

import re
from typing import Final

from millpond.base.ids import topic_name_fault
from millpond.base.settings import Check, Registry, Setting, V, Value, at_least, between, one_of

CONSUMER_SESSION_TIMEOUT_MS = Setting(
    "consumer.session.timeout.ms",
    45_000,
    "A member of the new protocol is removed after this time without a heartbeat.",
    check=at_least(1),
    inherits="group.consumer.session.timeout.ms",
    live=True,
    bits=32,
)
CONSUMER_HEARTBEAT_INTERVAL_MS = Setting(
    "consumer.heartbeat.interval.ms",
    5000,
    "How often members of the new protocol send heartbeats.",
    check=at_least(1),
    inherits="group.consumer.heartbeat.interval.ms",
    live=True,
    bits=32,
)


SHARE_SESSION_TIMEOUT_MS = Setting(
    "share.session.timeout.ms",
    45_000,
    "A member of a share group is removed after this time without a heartbeat.",
    check=at_least(1),
    inherits="group.share.session.timeout.ms",
    live=True,
    bits=32,
)
SHARE_HEARTBEAT_INTERVAL_MS = Setting(
    "share.heartbeat.interval.ms",
    5000,
    "How often members of a share group send heartbeats.",
    check=at_least(1),
    inherits="group.share.heartbeat.interval.ms",
    live=True,
    bits=32,
)
SHARE_RECORD_LOCK_DURATION_MS = Setting(
    "share.record.lock.duration.ms",
    30_000,
    "A member of a share group holds a record for this long; then it is delivered again.",
    between(1_000, 3_600_000),
    inherits="group.share.record.lock.duration.ms",
    live=True,
    bits=32,
)
SHARE_DELIVERY_COUNT_LIMIT = Setting(
    "share.delivery.count.limit",
    5,
    "A record that was delivered this often and not accepted is archived: no member receives it again.",
    between(2, 25),
    inherits="group.share.delivery.count.limit",
    live=True,
    bits=32,
)
SHARE_PARTITION_MAX_RECORD_LOCKS = Setting(
    "share.partition.max.record.locks",
    2_000,
    "No new record of a partition is delivered while this many have been delivered and are not finished.",
    between(100, 10_000),
    inherits="group.share.partition.max.record.locks",
    live=True,
    bits=32,
)
SHARE_ISOLATION_LEVEL = Setting(
    "share.isolation.level",
    "read_uncommitted",
    "With `read_committed`, records of open transactions are delivered only once these are committed, and records of "
    "aborted transactions never.",
    one_of("read_uncommitted", "read_committed"),
    live=True,
)
SHARE_RENEW_ACKNOWLEDGE_ENABLE = Setting(
    "share.renew.acknowledge.enable", True, "Whether members may hold a record for longer by renewing it.", live=True
)
SHARE_DELAY_ENABLE = Setting(
    "share.delay.enable",
    True,
    "Whether a record with the header `queue.deliver-at` (decimal milliseconds since 1970) is not delivered earlier.",
    live=True,
)
SHARE_DELAY_MAX_RECORDS = Setting(
    "share.delay.max.records",
    1_000_000,
    "While this many records of a partition are delayed, the group does not read on to new ones.",
    between(1, 10_000_000),
    live=True,
    bits=32,
)
SHARE_KEY_ORDER_ENABLE = Setting(
    "share.key.order.enable",
    False,
    "Whether records with the same key are delivered one after the other: the next one only when the one before is "
    "finished. Records without a key have no order.",
    live=True,
)
SHARE_PRIORITY_ENABLE = Setting(
    "share.priority.enable",
    False,
    "Whether records with a higher digit in the header `queue.priority` (4 without it) are delivered first, among "
    "those that the group has looked at.",
    live=True,
)
SHARE_LOOK_AHEAD_RECORDS = Setting(
    "share.look.ahead.records",
    10_000,
    "Up to how many undelivered records of a partition the group looks at in advance, for priority and order by key.",
    between(100, 100_000),
    live=True,
    bits=32,
)


def _is_letters_topic(value: Value) -> str | None:
    if not value:
        return None
    if str(value).startswith("__"):
        return "must not be an internal topic: choose a name that does not begin with __"
    return topic_name_fault(str(value))


DEAD_LETTER_TOPIC = Setting(
    "errors.deadletterqueue.topic.name",
    "",
    "The topic for records that members of a share group reject, or that are not accepted within "
    "`share.delivery.count.limit` deliveries. If empty, such records are archived.",
    _is_letters_topic,
    live=True,
)
DEAD_LETTER_COPY_RECORD = Setting(
    "errors.deadletterqueue.copy.record.enable",
    True,
    "Whether dead letters of a share group have the key, value and headers of the record, or only its origin and the "
    "error. Kafka's default is false.",
    live=True,
)

BY_DURATION: Final = "by_duration:"
_DURATION: Final = re.compile(
    r"P(?!$)(?:(\d{1,6})D)?(?:T(?!$)(?:(\d{1,8})H)?(?:(\d{1,9})M)?(?:(\d{1,11})(?:\.(\d{1,9}))?S)?)?", re.ASCII
)


def reset_duration_ms(text: str) -> int | None:
    """The duration of `by_duration:PnDTnHnMn.nS`; None if the text is anything else."""
    match = _DURATION.fullmatch(text.removeprefix(BY_DURATION)) if text.startswith(BY_DURATION) else None
    if match is None:
        return None
    days, hours, minutes, seconds = (int(each or 0) for each in match.groups()[:4])
    milliseconds = int((match[5] or "").ljust(3, "0")[:3])
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + milliseconds


def _is_reset(value: Value) -> str | None:
    if value in ("latest", "earliest") or reset_duration_ms(str(value)) is not None:
        return None
    return "must be latest, earliest or by_duration: and a duration such as PT1H"


SHARE_AUTO_OFFSET_RESET = Setting(
    "share.auto.offset.reset",
    "latest",
    "Where a share group begins to read a partition: `latest`, `earliest`, or `by_duration:` and how far back, such "
    "as `by_duration:PT1H`.",
    _is_reset,
    live=True,
)


def _unused(name: str, default: V, doc: str, check: Check | None = None) -> Setting[V]:
    return Setting(
        name, default, f"{doc} Without effect, because Kafka Streams groups are not supported.", check, bits=32
    )


GROUP = Registry(
    "group",
    (
        CONSUMER_SESSION_TIMEOUT_MS,
        CONSUMER_HEARTBEAT_INTERVAL_MS,
        SHARE_SESSION_TIMEOUT_MS,
        SHARE_HEARTBEAT_INTERVAL_MS,
        SHARE_RECORD_LOCK_DURATION_MS,
        SHARE_AUTO_OFFSET_RESET,
        SHARE_ISOLATION_LEVEL,
        SHARE_DELIVERY_COUNT_LIMIT,
        SHARE_PARTITION_MAX_RECORD_LOCKS,
        SHARE_RENEW_ACKNOWLEDGE_ENABLE,
        DEAD_LETTER_TOPIC,
        DEAD_LETTER_COPY_RECORD,
        SHARE_DELAY_ENABLE,
        SHARE_DELAY_MAX_RECORDS,
        SHARE_KEY_ORDER_ENABLE,
        SHARE_PRIORITY_ENABLE,
        SHARE_LOOK_AHEAD_RECORDS,
        _unused("streams.session.timeout.ms", 45_000, "When a silent member is removed.", at_least(1)),
        _unused("streams.heartbeat.interval.ms", 5000, "How often members send heartbeats.", at_least(1)),
        _unused("streams.num.standby.replicas", 0, "The number of standby tasks.", at_least(0)),
        _unused("streams.initial.rebalance.delay.ms", 3000, "How long a new group waits for members.", at_least(0)),
    ),
)
