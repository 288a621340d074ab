"""Small requests are answered on shorter paths: clients must not see a difference."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.broker.fetch import short_path
from millpond.broker.fetch.partition_reads import PartitionRead
from millpond.broker.replication import partitions
from millpond.broker.replication.partitions import Partition
from millpond.coordinators.groups.shard import GroupShard
from millpond.wire.kernel import COMPILED
from support.patience import with_time
from support.seeds import seeds
from support.short_path_run import Differs, ShortPathRun

pytestmark = pytest.mark.skipif(not COMPILED, reason="the short paths exist only compiled")

STEPS = 200
SEEDS_TO_FIND = 8


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    # After this time a producer's first batch is refused and the next one accepted. What the short path does not take
    # is tried twice.
    monkeypatch.setattr(partitions, "FIRST_BATCH_GRACE_MS", 1 << 40)


@pytest.mark.parametrize("seed", seeds(range(SEEDS_TO_FIND)))
def test_the_short_paths_answer_like_the_general_path(seed: int) -> None:
    compare(seed)


@with_time
@pytest.mark.parametrize("seed", seeds(range(SEEDS_TO_FIND, 60)))
def test_they_answer_alike_in_longer_campaigns(seed: int) -> None:
    compare(seed)


def compare(seed: int) -> None:
    run = ShortPathRun(seed)
    run.go_on(STEPS)
    run.check_end()
    short, general = run.sides
    assert short.short_answers["Fetch"] > 0
    assert not general.short_answers


def test_missing_aborted_transactions_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    read = short_path.read_committed

    def careless(*args: Any, **options: Any) -> PartitionRead:
        return read(*args, **options)._replace(aborted=[])

    monkeypatch.setattr(short_path, "read_committed", careless)
    assert is_found()


def test_an_accepted_heartbeat_of_an_older_generation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    beat = GroupShard.beat

    def careless(self: GroupShard, group_id: str, member_id: str, generation: int, now_ms: int) -> bool:
        group = self.groups.get(group_id)
        return beat(self, group_id, member_id, getattr(group, "generation", generation), now_ms)

    monkeypatch.setattr(GroupShard, "beat", careless)
    assert is_found()


def test_a_batch_that_wakes_no_fetch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    append_short = Partition.append_short

    def silent(self: Partition, short: partitions.ShortProduce) -> int | None:
        watchers, self.watchers = self.watchers, {}
        try:
            return append_short(self, short)
        finally:
            self.watchers = watchers

    monkeypatch.setattr(Partition, "append_short", silent)
    assert is_found()


def is_found() -> bool:
    """Whether random runs find a bug that was planted in a short path."""
    for seed in range(SEEDS_TO_FIND):
        try:
            ShortPathRun(seed).go_on(STEPS)
        except Differs:
            return True
    return False
