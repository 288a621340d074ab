"""Run many seeds of whole simulated clusters and print what came of them.

    python tests/campaigns/simulate_cluster.py --seeds 1000 --start 0 --jobs 2
    python tests/campaigns/simulate_cluster.py --scenario members --seeds 200
    python tests/campaigns/simulate_cluster.py --scenario moves --replay 17
    python tests/campaigns/simulate_cluster.py --shrink 17

In all scenarios faults come. In that of their name nodes join, are drained and vote by turns (members), partitions
move (moves), nodes go to a newer version and back (upgrade), readers read in their own rack (racks), nodes stay away
longer than compacted topics keep tombstones (compacted). A seed that fails is printed with its findings and with the
commands that tell its story, whole or shrunk.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pool

from millpond.sim.cluster.campaigns import CAMPAIGNS
from millpond.sim.cluster.plan import FAULTS, Plan
from millpond.sim.cluster.scenario import Outcome, Scenario
from millpond.sim.cluster.shrinker import kind_of, play, shrink
from millpond.sim.simulator.tape import CampaignSeed
from millpond.sim.world.disk import PowerCut

FINDINGS_SHOWN = 3
PROGRESS_S = 10


@dataclass(frozen=True)
class Wanted:
    """What is run for each seed."""

    scenario: str
    faults: tuple[str, ...]
    nodes: int | None = None

    @property
    def kind(self) -> type[Scenario]:
        return CAMPAIGNS[self.scenario].kind

    def plan(self, seed: int) -> Plan:
        return CAMPAIGNS[self.scenario].plan(seed, self.faults, self.nodes)

    def where_to_see(self, seed: int) -> str | None:
        """What opens the seed in the simulator: only what follows from the seed alone has a link."""
        is_usual = self.faults == FAULTS and self.nodes is None
        return CampaignSeed(self.scenario, seed).where_to_see() if is_usual else None


def play_one(seed: int, wanted: Wanted) -> Outcome:
    return play(seed, wanted.plan(seed), wanted.kind)[1]


def collect_rarely() -> None:
    """A run leaves circles behind; to look for them while it goes on costs a fifth of the time."""
    gc.freeze()
    gc.set_threshold(200_000, 2, 2)


def outcomes(seeds: range, jobs: int, wanted: Wanted) -> Iterator[Outcome]:
    one = partial(play_one, wanted=wanted)
    if jobs == 1:
        yield from map(one, seeds)
        return
    with Pool(jobs, collect_rarely) as pool:
        yield from pool.imap_unordered(one, seeds, chunksize=2)


def shrunk(seed: int, wanted: Wanted) -> Plan:
    """What is left of its plan when everything has gone that it fails without."""
    plan = wanted.plan(seed)
    failure = kind_of(play(seed, plan, wanted.kind)[1])
    return shrink(seed, plan, lambda tried: kind_of(play(seed, tried, wanted.kind)[1]) == failure)


def replay(seed: int, plan: Plan, kind: type[Scenario]) -> int:
    """Play one seed and tell its whole story."""
    scenario = kind(seed, plan)
    print(plan)
    failed = True
    try:
        failed = bool(scenario.run().violations)
    except (Exception, PowerCut):
        traceback.print_exc(file=sys.stdout)
    print("\n".join(scenario.story()))
    print("\n".join(scenario.history.violations) or ("it ended early: see above" if failed else "nothing was found"))
    return int(failed)


def campaign(seeds: range, jobs: int, wanted: Wanted) -> int:
    began = told = time.monotonic()
    faults: Counter[str] = Counter()
    records: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    failed: list[int] = []
    for done, outcome in enumerate(outcomes(seeds, jobs, wanted), 1):
        faults.update(outcome.faults)
        records.update(outcome.records)
        totals.update(
            {
                "records read back and judged": outcome.records_checked,
                "lives of nodes": outcome.lives,
                "looks into nodes": outcome.looks,
                "events": outcome.events,
                "virtual seconds": outcome.virtual_ms // 1000,
                "out-of-order refusals": outcome.spurious_refusals,
            }
        )
        if outcome.violations:
            failed.append(outcome.seed)
            print(f"\n{wanted.scenario} seed {outcome.seed} failed:")
            for finding in outcome.violations[:FINDINGS_SHOWN]:
                print(f"  {finding}")
            words = f"--scenario {wanted.scenario} --shrink {outcome.seed}"
            print(f"  its story: python tests/campaigns/simulate_cluster.py {words}", flush=True)
            if where := wanted.where_to_see(outcome.seed):
                print(f"  in the simulator: {where}", flush=True)
        if time.monotonic() - told > PROGRESS_S:
            told = time.monotonic()
            print(f"{done} of {len(seeds)} seeds, {len(failed)} failed", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    pace = f"{seconds:.1f} s ({len(seeds) / seconds * 3600:,.0f} an hour)"
    print(f"\n{wanted.scenario}: {len(seeds)} seeds in {pace}, {len(failed)} failed")
    for title, counts in (("faults", faults), ("records sent", records), ("in all", totals)):
        print(f"\n{title}")
        for name, count in sorted(counts.items()):
            print(f"  {name:<40} {count:>12,}")
    return int(bool(failed))


def main() -> int:
    parser = argparse.ArgumentParser(description="Run seeds of simulated clusters.")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes to use")
    parser.add_argument(
        "--scenario", choices=[*CAMPAIGNS, "all"], default="faults", help="what happens beside faults"
    )
    parser.add_argument("--nodes", type=int, help="so many nodes, whatever the seed says")
    parser.add_argument("--faults", default=",".join(FAULTS), help="kinds of faults, with commas between")
    parser.add_argument("--replay", type=int, metavar="SEED", help="play this one seed and tell everything")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="leave out what it fails without, then tell")
    given = parser.parse_args()
    names = list(CAMPAIGNS) if given.scenario == "all" else [given.scenario]
    own_nodes = [name for name, campaign in CAMPAIGNS.items() if campaign.has_own_nodes]
    if given.nodes is not None and set(names) & set(own_nodes):
        parser.error(f"--nodes is not for these: {', '.join(own_nodes)}")
    failed = 0
    for name in names:
        wanted = Wanted(name, tuple(given.faults.split(",")), given.nodes)
        if given.replay is not None:
            failed |= replay(given.replay, wanted.plan(given.replay), wanted.kind)
            if where := wanted.where_to_see(given.replay):
                print(f"in the simulator: {where}")
        elif given.shrink is not None:
            failed |= replay(given.shrink, shrunk(given.shrink, wanted), wanted.kind)
        else:
            failed |= campaign(range(given.start, given.start + given.seeds), given.jobs, wanted)
    return failed


if __name__ == "__main__":
    sys.exit(main())
