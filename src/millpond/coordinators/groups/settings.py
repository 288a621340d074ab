"""The settings of a group coordinator as plain numbers; the broker fills them in from the node's settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from millpond.coordinators.groups.consumer.settings import ConsumerGroupSettings
from millpond.coordinators.groups.share.settings import ShareGroupSettings

MINUTE_MS = 60 * 1000

CHOSEN_BY_GROUP = -1
"""The delay before a first rebalance depends on what is known of the group."""
GATHERING_MS = 3000
"""That delay for a group that had several members before, and how soon after the first member's assignment a
second one must join for the group to wait for more."""
ALONE_MS = 300
"""That delay for a first member while it is alone: too short to notice, but long enough for members started together
by one program."""
COMPANY_MS = 1000
"""Once several members have joined, the group waits until no member has joined for this long."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Kafka's defaults. Each field has its setting beside it."""

    initial_rebalance_delay_ms: int = 3000
    """group.initial.rebalance.delay.ms"""
    session_timeout_min_ms: int = 6000
    """group.min.session.timeout.ms"""
    session_timeout_max_ms: int = 30 * MINUTE_MS
    """group.max.session.timeout.ms"""
    group_size_max: int = (1 << 31) - 1
    """group.max.size"""
    member_bytes_max: int = 1 << 20
    """group.member.max.bytes"""
    group_bytes_max: int = 16 << 20
    """group.classic.max.bytes"""
    new_member_join_timeout_ms: int = 5 * MINUTE_MS
    """How long a member that has never been in a generation may wait for one before it is considered gone."""
    pending_members_max: int = 10_000
    """How many members of one group may have an id without having joined with it."""
    history_length: int = 100
    """How many rebalances of a group are remembered."""

    offset_metadata_bytes_max: int = 4096
    """offset.metadata.max.bytes"""
    offsets_retention_ms: int = 7 * 24 * 60 * MINUTE_MS
    """offsets.retention.minutes"""
    offsets_retention_check_interval_ms: int = 10 * MINUTE_MS
    """offsets.retention.check.interval.ms"""

    consumer: ConsumerGroupSettings = field(default_factory=ConsumerGroupSettings)
    """group.consumer.*"""
    share: ShareGroupSettings = field(default_factory=ShareGroupSettings)
    """group.share.*"""
