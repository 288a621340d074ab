"""The delay grows with every failed login."""

from __future__ import annotations

from millpond.broker.security.recent_failures import HOSTS_MAX, WINDOW_MS, RecentFailures


def test_a_few_failures_are_forgiven_and_many_are_not() -> None:
    failures = RecentFailures()
    waits = [failures.wait_ms("a", 100, number) for number in range(80)]
    assert waits[:10] == [100] * 10
    assert waits[10:20] == [200] * 10
    assert waits[-1] == 5000
    assert sorted(waits) == waits
    assert failures.wait_ms("b", 100, 80) == 100, "others do not wait for him"
    assert failures.wait_ms("a", 100, WINDOW_MS + 1) == 100, "after a minute the count starts again"


def test_who_wants_no_wait_has_none() -> None:
    failures = RecentFailures()
    assert {failures.wait_ms("a", 0, 0) for _ in range(100)} == {0}


def test_only_so_many_addresses_are_known() -> None:
    failures = RecentFailures()
    for number in range(HOSTS_MAX + 50):
        failures.wait_ms(str(number), 100, 0)
    assert len(failures._by_host) == HOSTS_MAX
