"""The settings of consumer groups of the new protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from millpond.config.effective import parsed
from millpond.config.group import CONSUMER_HEARTBEAT_INTERVAL_MS, CONSUMER_SESSION_TIMEOUT_MS, GROUP

INT32_MAX: Final = (1 << 31) - 1

UPGRADING: Final = frozenset({"upgrade", "bidirectional"})
DOWNGRADING: Final = frozenset({"downgrade", "bidirectional"})


@dataclass(frozen=True, slots=True)
class ConsumerGroupSettings:
    """The names are those of `group.consumer.*` with underscores for dots."""

    heartbeat_interval_ms: int = 5_000
    session_timeout_ms: int = 45_000
    max_size: int = INT32_MAX
    member_max_bytes: int = 1 << 20
    """`group.member.max.bytes`"""
    assignors: tuple[str, ...] = ("uniform", "range")
    """The assignors that members may request; the first is the default."""
    migration_policy: str = "bidirectional"
    """Whether a live group may change its protocol: disabled, upgrade, downgrade or bidirectional."""
    classic_max_size: int = INT32_MAX
    """`group.max.size`: a larger group is not turned back into a classic one."""
    classic_max_bytes: int = 16 << 20
    """`group.classic.max.bytes`: the limit for the metadata of all classic members together."""
    hides_topics: bool = False
    """Whether some clients may not see all topics: then a pattern matches only those its sender may see."""

    def changed_by(self, texts: Mapping[str, str]) -> ConsumerGroupSettings:
        """With the overrides of one group."""
        own: Mapping[str, Any] = parsed(GROUP, texts)
        return replace(
            self,
            heartbeat_interval_ms=own.get(CONSUMER_HEARTBEAT_INTERVAL_MS.name, self.heartbeat_interval_ms),
            session_timeout_ms=own.get(CONSUMER_SESSION_TIMEOUT_MS.name, self.session_timeout_ms),
        )

    @property
    def upgrades(self) -> bool:
        return self.migration_policy in UPGRADING

    @property
    def downgrades(self) -> bool:
        return self.migration_policy in DOWNGRADING
