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
LIVES_TO_FIND = 8


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    # After this time a producer's first batch is refused and the next one accepted. What the short path does not take
    # is tried twice.
    monkeypatch.setattr(partitions, "BEGINNINGS_MS", 1 << 40)


@pytest.mark.parametrize("seed", seeds(range(LIVES_TO_FIND)))
def test_short_ways_and_the_general_way_say_the_same(seed: int) -> None:
    tell(seed)


@with_time
@pytest.mark.parametrize("seed", seeds(range(LIVES_TO_FIND, 60)))
def test_they_say_the_same_in_longer_campaigns(seed: int) -> None:
    tell(seed)


def tell(seed: int) -> None:
    story = ShortPathRun(seed)
    story.go_on(STEPS)
    story.check_end()
    short, general = story.sides
    assert short.short_answers["Fetch"] > 0
    assert not general.short_answers


def test_a_reader_of_committed_records_who_is_told_too_little_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    read = short_path.read_committed

    def careless(*args: Any, **options: Any) -> PartitionRead:
        return read(*args, **options)._replace(aborted=[])

    monkeypatch.setattr(short_path, "read_committed", careless)
    assert is_found()


def test_a_sign_of_life_from_an_older_generation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    beat = GroupShard.beat

    def careless(self: GroupShard, group_id: str, member_id: str, generation: int, now_ms: int) -> bool:
        group = self.groups.get(group_id)
        return beat(self, group_id, member_id, getattr(group, "generation", generation), now_ms)

    monkeypatch.setattr(GroupShard, "beat", careless)
    assert is_found()


def test_a_batch_that_wakes_nobody_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
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
    for seed in range(LIVES_TO_FIND):
        try:
            ShortPathRun(seed).go_on(STEPS)
        except Differs:
            return True
    return False
