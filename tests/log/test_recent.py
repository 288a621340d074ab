from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.log.recent import BATCHES_MAX, RecentBatches


@settings(deadline=None)
@given(st.integers(1, 3 * BATCHES_MAX), st.integers(1, 4))
def test_it_knows_the_newest_batches_and_says_so_of_others(count, records):
    recent = RecentBatches()
    for number in range(count):
        recent.add(number * records, number * 100)
    oldest = recent.offsets[0]
    assert min(count, BATCHES_MAX // 2) <= len(recent.offsets) <= BATCHES_MAX
    for offset in {oldest, count * records - 1, (oldest + count * records) // 2}:
        batch = offset // records
        assert recent.holding(offset, count * 100) == (batch * 100, 100, batch * records)
        assert recent.position_from(offset, count * 100) == -(-offset // records) * 100
    assert recent.position_from(count * records, count * 100) == count * 100
    assert recent.holding(oldest - 1, count * 100) is None
    assert recent.position_from(oldest - 1, count * 100) is None
    recent.clear()
    assert recent.holding(oldest, 0) is None
