"""Metrics of share groups: the numbers match what members did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.shares.test_share_fetch import ShareServer
from tests.broker.test_metrics import page_of, samples
from tests.support.share_members import ACCEPT, REJECT, RELEASE, initialize

from millpond.broker.metrics import shares
from millpond.broker.shares import manager


@pytest.fixture
def pond(make_server: Callable[..., Any], make_batch: Callable[..., memoryview]) -> ShareServer:
    return ShareServer(make_server, make_batch)


def metrics(pond: ShareServer) -> dict[str, float]:
    return samples(page_of(pond.server.sim, pond.server.broker))


def states(found: dict[str, float], named: str = 'group="g",topic="pond"') -> dict[str, float]:
    names = ("available", "acquired", "delayed", "archiving")
    family = "millpond_share_group_records"
    return {each: found[key] for each in names if (key := f'{family}{{{named},state="{each}"}}') in found}


def outcomes(found: dict[str, float], named: str = 'group="g",topic="pond"') -> list[float]:
    names = ("accepted", "released", "rejected", "expired")
    return [found[f'millpond_share_group_outcomes_total{{{named},outcome="{each}"}}'] for each in names]


QUEUE = '{group="g",topic="pond"}'


def test_records_are_counted_by_state_and_outcome(pond: ShareServer) -> None:
    pond.append(b"a", b"b", b"c", b"d")
    pond.append(b"e", b"f")
    member = pond.member("m")
    member.fetch(0, max_records=1)
    member.acknowledge((1, 1, ACCEPT), (2, 2, RELEASE), (3, 3, REJECT))
    pond.run(2_000)
    found = metrics(pond)
    # Two have never been delivered.
    assert states(found) == {"available": 3, "acquired": 1, "delayed": 0, "archiving": 0}
    assert outcomes(found) == [1, 1, 1, 0]
    assert found[f"millpond_share_group_deliveries_total{QUEUE}"] == 4
    assert found[f"millpond_share_group_lag_records{QUEUE}"] == 4
    assert found["millpond_share_partitions"] == 1
    assert found[f"millpond_share_group_oldest_seconds{QUEUE}"] >= 2


def test_what_the_last_member_leaves_is_lag_and_its_counts_stay(pond: ShareServer) -> None:
    pond.append(b"a", b"b", b"c")
    pond.append(b"x", index=1)
    member = pond.member("m")
    member.fetch(0)
    member.fetch(1)
    member.acknowledge((0, 0, ACCEPT))
    member.hang_up()
    pond.run(2_000)
    found = metrics(pond)
    assert states(found) == {}, "nobody reads, so no leader has a window"
    assert found["millpond_share_partitions"] == 0
    assert found[f"millpond_share_group_lag_records{QUEUE}"] == 3
    assert (found[f"millpond_share_group_deliveries_total{QUEUE}"], outcomes(found)) == (4, [1, 3, 0, 0])
    other = pond.member("n")
    other.fetch(0)
    other.acknowledge((1, 2, ACCEPT))
    found = metrics(pond)
    assert outcomes(found) == [3, 3, 0, 0], "counters go on where they were"
    assert found[f"millpond_share_group_deliveries_total{QUEUE}"] == 6


def test_all_finished_is_neither_lag_nor_old(pond: ShareServer) -> None:
    pond.append(b"a")
    member = pond.member("m")
    member.fetch(0)
    member.acknowledge((0, 0, ACCEPT))
    found = metrics(pond)
    assert set(states(found).values()) == {0}
    assert found[f"millpond_share_group_oldest_seconds{QUEUE}"] == 0
    assert found[f"millpond_share_group_lag_records{QUEUE}"] == 0


def test_queues_beyond_the_limit_are_one(pond: ShareServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "QUEUES_MAX", 1)
    for group in ("a", "b", "c"):
        initialize(pond.server, group=group, start_offset=0)
    pond.append(b"1", b"2")
    for group in ("a", "b", "c"):
        pond.member("m", group=group).fetch(0)
    found = metrics(pond)
    assert found['millpond_share_group_deliveries_total{group="a",topic="pond"}'] == 2
    assert found['millpond_share_group_deliveries_total{group="",topic=""}'] == 4
    assert states(found, 'group="",topic=""')["acquired"] == 4
    assert found['millpond_share_group_lag_records{group="",topic=""}'] >= 4
    assert 'millpond_share_group_deliveries_total{group="b",topic="pond"}' not in found


def test_the_totals_of_few_ended_queues_are_kept(pond: ShareServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "ENDED_MAX", 2)
    pond.append(b"1")
    for group in ("a", "b", "c"):
        initialize(pond.server, group=group, start_offset=0)
        member = pond.member("m", group=group)
        member.fetch(0)
        member.hang_up()
        pond.run(2_000)
    found = metrics(pond)
    kept = [
        each for each in "abc" if f'millpond_share_group_deliveries_total{{group="{each}",topic="pond"}}' in found
    ]
    assert kept == ["b", "c"]
