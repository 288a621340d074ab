"""The limits of one log: when to roll, what to refuse, what to keep. The broker builds them from settings."""

from __future__ import annotations

from typing import Final

from millpond.base.values import dataclass

FOREVER: Final = (1 << 63) - 1
"""The largest number of milliseconds, messages or bytes: in practice "never"."""

DAY_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """The defaults are those of the topic settings. A log's limits may be replaced while it runs."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    index_interval_bytes: int = 4096
    index_bytes_max: int = 10 * 1024 * 1024
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    cleanup_delete: bool = True
    cleanup_compact: bool = False
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = FOREVER
    delete_retention_ms: int = DAY_MS
    file_delete_delay_ms: int = 60_000
    max_message_bytes: int = 1_048_588
    timestamp_type_append: bool = False
    timestamp_before_max_ms: int = FOREVER
    timestamp_after_max_ms: int = 3_600_000
    compression_type: str = "producer"
    producer_id_expiration_ms: int = DAY_MS
    producers_max: int = 100_000
    dedupe_buffer_bytes: int = 128 * 1024 * 1024
    flush_messages: int = FOREVER
    flush_ms: int = FOREVER

    @property
    def age_max_ms(self) -> int:
        """The age at which a segment is rolled; compaction can only reach sealed segments."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.cleanup_compact else self.segment_ms
