"""How a share group reads: its own settings, or those of the node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from millpond.base.settings import AnySetting
from millpond.base.values import dataclass
from millpond.broker.shares.window_settings import ShareSettings
from millpond.config.effective import NodeLayers
from millpond.config.group import (
    DEAD_LETTER_COPY_RECORD,
    DEAD_LETTER_TOPIC,
    SHARE_AUTO_OFFSET_RESET,
    SHARE_DELAY_ENABLE,
    SHARE_DELAY_MAX_RECORDS,
    SHARE_DELIVERY_COUNT_LIMIT,
    SHARE_ISOLATION_LEVEL,
    SHARE_KEY_ORDER_ENABLE,
    SHARE_LOOK_AHEAD_RECORDS,
    SHARE_PARTITION_MAX_RECORD_LOCKS,
    SHARE_PRIORITY_ENABLE,
    SHARE_RECORD_LOCK_DURATION_MS,
    SHARE_RENEW_ACKNOWLEDGE_ENABLE,
)


@dataclass(frozen=True, slots=True)
class ShareReadSettings:
    window: ShareSettings
    offset_reset: str
    reads_committed: bool
    may_renew: bool
    dead_letter_topic: str = ""
    copies_records: bool = True
    """Whether dead letters have the whole record."""

    def letters_of(self, topic: str) -> str:
        """Where the dead letters of a topic go; "" if it has none. Those of the dead-letter topic itself would
        multiply there: its records are dead letters already."""
        return "" if topic == self.dead_letter_topic else self.dead_letter_topic

    def window_of(self, topic: str) -> ShareSettings:
        """The settings of the windows of a topic's partitions."""
        return replace(self.window, has_dead_letters=bool(self.letters_of(topic)))


def share_read_settings(layers: NodeLayers, own: Mapping[str, str]) -> ShareReadSettings:
    """The settings of a group, given its own values as text."""

    def value(setting: AnySetting) -> Any:
        return layers.effective_for_group(setting, own).value

    return ShareReadSettings(
        ShareSettings(
            lock_duration_ms=value(SHARE_RECORD_LOCK_DURATION_MS),
            delivery_count_limit=value(SHARE_DELIVERY_COUNT_LIMIT),
            in_flight_max=value(SHARE_PARTITION_MAX_RECORD_LOCKS),
            delay_enable=value(SHARE_DELAY_ENABLE),
            delay_max_records=value(SHARE_DELAY_MAX_RECORDS),
            key_order_enable=value(SHARE_KEY_ORDER_ENABLE),
            priority_enable=value(SHARE_PRIORITY_ENABLE),
            look_ahead_records=value(SHARE_LOOK_AHEAD_RECORDS),
        ),
        offset_reset=value(SHARE_AUTO_OFFSET_RESET),
        reads_committed=value(SHARE_ISOLATION_LEVEL) == "read_committed",
        may_renew=value(SHARE_RENEW_ACKNOWLEDGE_ENABLE),
        dead_letter_topic=value(DEAD_LETTER_TOPIC),
        copies_records=value(DEAD_LETTER_COPY_RECORD),
    )
