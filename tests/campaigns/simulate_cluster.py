"""Run many seeds of whole simulated clusters and print what came of them.

    python tests/campaigns/simulate_cluster.py --seeds 1000 --start 0 --jobs 2
    python tests/campaigns/simulate_cluster.py --replay 17
    python tests/campaigns/simulate_cluster.py --shrink 17

A seed that fails is printed with its findings and with the commands that tell its story, whole or shrunk.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from functools import partial
from multiprocessing import Pool

from millpond.sim.cluster.plan import FAULTS, Plan, make_plan
from millpond.sim.cluster.scenario import Outcome, Scenario
from millpond.sim.cluster.shrinker import play, shrink
from millpond.sim.world.disk import PowerCut

FINDINGS_SHOWN = 3
PROGRESS_S = 10


def plan_of(seed: int, kinds: tuple[str, ...], nodes: int | None) -> Plan:
    return make_plan(seed, kinds, nodes)


def play_one(seed: int, kinds: tuple[str, ...], nodes: int | None) -> Outcome:
    return play(seed, plan_of(seed, kinds, nodes))[1]


def collect_rarely() -> None:
    """A run leaves circles behind; to look for them while it goes on costs a fifth of the time."""
    gc.freeze()
    gc.set_threshold(200_000, 2, 2)


def outcomes(seeds: range, jobs: int, kinds: tuple[str, ...], nodes: int | None) -> Iterator[Outcome]:
    one = partial(play_one, kinds=kinds, nodes=nodes)
    if jobs == 1:
        yield from map(one, seeds)
        return
    with Pool(jobs, collect_rarely) as pool:
        yield from pool.imap_unordered(one, seeds, chunksize=2)


def replay(seed: int, plan: Plan) -> int:
    """Play one seed and tell its whole story."""
    scenario = Scenario(seed, plan)
    print(plan)
    failed = True
    try:
        failed = bool(scenario.run().violations)
    except (Exception, PowerCut):
        traceback.print_exc(file=sys.stdout)
    print("\n".join(scenario.story()))
    print("\n".join(scenario.history.violations) or ("it ended early: see above" if failed else "nothing was found"))
    return int(failed)


def campaign(seeds: range, jobs: int, kinds: tuple[str, ...], nodes: int | None) -> int:
    began = told = time.monotonic()
    faults: Counter[str] = Counter()
    records: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    failed: list[int] = []
    for done, outcome in enumerate(outcomes(seeds, jobs, kinds, nodes), 1):
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
            print(f"\nseed {outcome.seed} failed:")
            for finding in outcome.violations[:FINDINGS_SHOWN]:
                print(f"  {finding}")
            print(f"  its story: python tests/campaigns/simulate_cluster.py --shrink {outcome.seed}", flush=True)
        if time.monotonic() - told > PROGRESS_S:
            told = time.monotonic()
            print(f"{done} of {len(seeds)} seeds, {len(failed)} failed", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    print(
        f"\n{len(seeds)} seeds in {seconds:.1f} s ({len(seeds) / seconds * 3600:,.0f} an hour), {len(failed)} failed"
    )
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
    parser.add_argument("--nodes", type=int, help="so many nodes, whatever the seed says")
    parser.add_argument("--faults", default=",".join(FAULTS), help="kinds of faults, with commas between")
    parser.add_argument("--replay", type=int, metavar="SEED", help="play this one seed and tell everything")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="leave out what it fails without, then tell")
    given = parser.parse_args()
    kinds = tuple(given.faults.split(","))
    if given.replay is not None:
        return replay(given.replay, plan_of(given.replay, kinds, given.nodes))
    if given.shrink is not None:
        return replay(given.shrink, shrink(given.shrink, plan_of(given.shrink, kinds, given.nodes)))
    return campaign(range(given.start, given.start + given.seeds), given.jobs, kinds, given.nodes)


if __name__ == "__main__":
    sys.exit(main())
