"""Bugs of coordinators that move, put in on purpose: runs of crews on clusters must find each within a few seeds, by
the violation that it stands for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from tests.support.patience import with_time

from millpond.broker.coordination.append_order import AppendOrder
from millpond.broker.coordination.coordination import ShardHost
from millpond.broker.coordination.markers import _Delivery
from millpond.coordinators.groups.offsets import Offsets
from millpond.coordinators.shard import Effects
from millpond.sim.cluster.group_scenario import ClusterGroupScenario, make_cluster_group_plan
from millpond.sim.coordination.plan import Work

SEEDS_MAX = 12

Patch = pytest.MonkeyPatch


def answer_before_the_commit(patch: Patch) -> None:
    """The next leader does not have what was acknowledged."""

    def answer_later(self: ShardHost[Any], effects: Effects) -> None:
        self._uncommitted.append((self.partition.log.end_offset, effects))
        self._answer(self.partition.log.end_offset)

    patch.setattr(ShardHost, "_answer_later", answer_later)


def take_elsewhere_for_deleted(patch: Patch) -> None:
    """A partition that another node leads gets no marker."""

    def ask(self: _Delivery, node_id: int, targets: list[Any]) -> None:
        for target in targets:
            self._left.pop(target)

    patch.setattr(_Delivery, "_ask", ask)


def append_as_permitted(patch: Patch) -> None:
    """A transactional batch overtakes one that came before it on the same connection."""
    patch.setattr(AppendOrder, "append", lambda _order, _key, permission, append: permission.chain(append))
    patch.setattr(AppendOrder, "is_waiting", lambda _order, _key: False)


def take_offsets_by_topic_name(patch: Patch) -> None:
    """Offsets of a deleted topic apply to its successor of the same name."""
    patch.setattr(Offsets, "is_outdated", lambda _offsets, _topic, _committed: False)


class Mutation(NamedTuple):
    violation: str
    kinds: tuple[str, ...]
    work: Work
    first: int = 0


FELL_BACK = r"heard -?\d+ for partition \d+, after \d+ was (acknowledged|committed)"
STUCK = "the group reached .* ms of peace|a transaction hangs"
CALM = ("slow disk",)

MUTANTS: dict[Callable[[Patch], None], Mutation] = {
    answer_before_the_commit: Mutation(FELL_BACK, ("isolation of a leader",), Work.READ, first=1),
    take_elsewhere_for_deleted: Mutation(
        "the group reached .* ms of peace|a transaction hangs", CALM, Work.COPY, first=1
    ),
    append_as_permitted: Mutation("overtook the one before it on the same connection", CALM, Work.COPY, first=5),
    take_offsets_by_topic_name: Mutation("an offset of an earlier topic of that name applies to it", CALM, Work.READ),
}


def find(hunt: Mutation) -> int | None:
    """The first seed with the violation that the mutant stands for."""
    for seed in range(hunt.first, hunt.first + SEEDS_MAX):
        plan = make_cluster_group_plan(seed, hunt.kinds, nodes=3, work=hunt.work)
        violations = ClusterGroupScenario(seed, plan).run().violations
        if any(re.search(hunt.violation, each) for each in violations):
            return seed
    return None


@with_time
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_runs_of_crews_find(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    assert find(MUTANTS[mutant]) is not None, f"{SEEDS_MAX} seeds did not notice"


@with_time
@pytest.mark.parametrize("hunt", MUTANTS.values(), ids=[mutant.__name__ for mutant in MUTANTS])
def test_without_mutants_the_same_seeds_find_nothing(hunt: Mutation) -> None:
    plan = make_cluster_group_plan(hunt.first, hunt.kinds, nodes=3, work=hunt.work)
    assert ClusterGroupScenario(hunt.first, plan).run().violations == []
