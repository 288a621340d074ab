from __future__ import annotations

from millpond.log.limits import LogLimits


def test_a_compacted_log_rolls_early_enough_for_its_longest_lag():
    assert LogLimits(segment_ms=100, max_compaction_lag_ms=50).age_max_ms == 100
    assert LogLimits(segment_ms=100, max_compaction_lag_ms=50, cleanup_compact=True).age_max_ms == 50
    assert LogLimits(segment_ms=100, max_compaction_lag_ms=500, cleanup_compact=True).age_max_ms == 100
