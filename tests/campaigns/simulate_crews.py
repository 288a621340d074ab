"""Run many seeds of groups and transactions on whole simulated clusters and print what came of them.

python tests/campaigns/simulate_crews.py --seeds 200 --start 0 --jobs 2
python tests/campaigns/simulate_crews.py --replay 17
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from functools import partial
from multiprocessing import Pool

from millpond.sim.cluster.crew_scenario import CrewOutcome, CrewScenario, make_crew_plan
from millpond.sim.cluster.plan import FAULTS
from millpond.sim.simulator.tape import CampaignSeed
from millpond.sim.world.disk import PowerCut

FINDINGS_SHOWN = 3
PROGRESS_S = 10


def play_one(seed: int, kinds: tuple[str, ...], nodes: int | None) -> CrewOutcome:
    try:
        return CrewScenario(seed, make_crew_plan(seed, kinds, nodes=nodes)).run()
    except (Exception, PowerCut):
        return CrewOutcome(seed, violations=[traceback.format_exc()])


def outcomes(seeds: range, jobs: int, kinds: tuple[str, ...], nodes: int | None) -> Iterator[CrewOutcome]:
    one = partial(play_one, kinds=kinds, nodes=nodes)
    if jobs == 1:
        yield from map(one, seeds)
        return
    with Pool(jobs) as pool:
        yield from pool.imap_unordered(one, seeds, chunksize=2)


def replay(seed: int, kinds: tuple[str, ...], nodes: int | None) -> int:
    """Play one seed and tell its whole story."""
    scenario = CrewScenario(seed, make_crew_plan(seed, kinds, nodes=nodes))
    print(scenario.plan)
    failed = True
    try:
        failed = bool(scenario.run().violations)
    except (Exception, PowerCut):
        traceback.print_exc(file=sys.stdout)
    print("\n".join(scenario.story()))
    print("\n".join(scenario.history.violations) or "nothing was found")
    return int(failed)


def campaign(seeds: range, jobs: int, kinds: tuple[str, ...], nodes: int | None) -> int:
    began = told = time.monotonic()
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    failed: list[int] = []
    for done, outcome in enumerate(outcomes(seeds, jobs, kinds, nodes), 1):
        faults.update(outcome.faults)
        counts.update({**outcome.counts, "lives of nodes": outcome.lives, "events": outcome.events})
        if outcome.violations:
            failed.append(outcome.seed)
            print(f"\nseed {outcome.seed} failed:")
            for finding in outcome.violations[:FINDINGS_SHOWN]:
                print(f"  {finding}")
            print(f"  its story: python tests/campaigns/simulate_crews.py --replay {outcome.seed}", flush=True)
            if kinds == FAULTS and nodes is None:
                # Only what follows from the seed alone has a link.
                print(f"  in the simulator: {CampaignSeed('crews', outcome.seed).where_to_see()}", flush=True)
        if time.monotonic() - told > PROGRESS_S:
            told = time.monotonic()
            print(f"{done} of {len(seeds)} seeds, {len(failed)} failed", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    print(
        f"\n{len(seeds)} seeds in {seconds:.1f} s ({len(seeds) / seconds * 3600:,.0f} an hour), {len(failed)} failed"
    )
    for title, table in (("faults", faults), ("in all", counts)):
        print(f"\n{title}")
        for name, count in sorted(table.items()):
            print(f"  {name:<40} {count:>12,}")
    return int(bool(failed))


def main() -> int:
    parser = argparse.ArgumentParser(description="Run seeds of groups and transactions on simulated clusters.")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes to use")
    parser.add_argument("--nodes", type=int, help="so many nodes, whatever the seed says")
    parser.add_argument("--faults", default=",".join(FAULTS), help="kinds of faults, with commas between")
    parser.add_argument("--replay", type=int, metavar="SEED", help="play this one seed and tell everything")
    given = parser.parse_args()
    kinds = tuple(given.faults.split(","))
    if given.replay is not None:
        return replay(given.replay, kinds, given.nodes)
    return campaign(range(given.start, given.start + given.seeds), given.jobs, kinds, given.nodes)


if __name__ == "__main__":
    sys.exit(main())
