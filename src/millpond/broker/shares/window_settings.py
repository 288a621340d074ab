"""The settings of a share group that its windows follow."""

from __future__ import annotations

from millpond.base.values import dataclass


@dataclass(slots=True)
class ShareSettings:
    lock_duration_ms: int = 30_000
    """`share.record.lock.duration.ms`"""
    delivery_count_limit: int = 5
    """`share.delivery.count.limit`: a record is archived when it is released after this many deliveries."""
    in_flight_max: int = 2_000
    """`share.partition.max.record.locks`: no record is acquired for the first time while so many are unfinished."""
    has_dead_letters: bool = False
    """Whether records that are given up get a dead letter before they are archived."""
    delay_enable: bool = False
    """`share.delay.enable`"""
    delay_max_records: int = 1_000_000
    """`share.delay.max.records`: no further records are looked at while so many are delayed."""
    key_order_enable: bool = False
    """`share.key.order.enable`"""
    priority_enable: bool = False
    """`share.priority.enable`"""
    look_ahead_records: int = 10_000
    """`share.look.ahead.records`: no further records are looked at while so many are known and never acquired."""

    @property
    def is_ordered(self) -> bool:
        """Records have to be looked at before it is known which one comes next."""
        return self.key_order_enable or self.priority_enable

    @property
    def throttle_from(self) -> int:
        """Records with this many deliveries are acquired in ever smaller groups, the last time alone, so that one bad
        record does not use up the deliveries of its neighbours."""
        return max(2, (self.delivery_count_limit + 1) // 2)
