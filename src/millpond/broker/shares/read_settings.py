"""How a share group reads: its own settings, or those of the node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millpond.base.settings import AnySetting
from millpond.base.values import dataclass
from millpond.broker.shares.window_settings import ShareSettings
from millpond.config.effective import NodeLayers
from millpond.config.group import (
    SHARE_AUTO_OFFSET_RESET,
    SHARE_DELIVERY_COUNT_LIMIT,
    SHARE_ISOLATION_LEVEL,
    SHARE_PARTITION_MAX_RECORD_LOCKS,
    SHARE_RECORD_LOCK_DURATION_MS,
    SHARE_RENEW_ACKNOWLEDGE_ENABLE,
)


@dataclass(frozen=True, slots=True)
class ShareReadSettings:
    window: ShareSettings
    offset_reset: str
    reads_committed: bool
    may_renew: bool


def share_read_settings(layers: NodeLayers, own: Mapping[str, str]) -> ShareReadSettings:
    """The settings of a group, given its own values as text."""

    def value(setting: AnySetting) -> Any:
        return layers.effective_for_group(setting, own).value

    return ShareReadSettings(
        ShareSettings(
            lock_duration_ms=value(SHARE_RECORD_LOCK_DURATION_MS),
            delivery_count_limit=value(SHARE_DELIVERY_COUNT_LIMIT),
            in_flight_max=value(SHARE_PARTITION_MAX_RECORD_LOCKS),
        ),
        offset_reset=value(SHARE_AUTO_OFFSET_RESET),
        reads_committed=value(SHARE_ISOLATION_LEVEL) == "read_committed",
        may_renew=value(SHARE_RENEW_ACKNOWLEDGE_ENABLE),
    )
