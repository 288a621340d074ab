"""The settings of share groups as far as the group coordinator needs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from millpond.config.effective import parsed
from millpond.config.group import GROUP, SHARE_HEARTBEAT_INTERVAL_MS, SHARE_SESSION_TIMEOUT_MS


@dataclass(frozen=True, slots=True)
class ShareGroupSettings:
    """The names are those of `group.share.*` with underscores for dots."""

    heartbeat_interval_ms: int = 5_000
    session_timeout_ms: int = 45_000
    max_size: int = 1_000
    member_max_bytes: int = 1 << 20
    """`group.member.max.bytes`"""

    def changed_by(self, texts: Mapping[str, str]) -> ShareGroupSettings:
        """With the overrides of one group."""
        own: Mapping[str, Any] = parsed(GROUP, texts)
        return replace(
            self,
            heartbeat_interval_ms=own.get(SHARE_HEARTBEAT_INTERVAL_MS.name, self.heartbeat_interval_ms),
            session_timeout_ms=own.get(SHARE_SESSION_TIMEOUT_MS.name, self.session_timeout_ms),
        )
