"""Run many seeds of a simulated node with groups and transactions, and print what came of them.

    python tests/campaigns/simulate_coordination.py --seeds 500 --start 0 --jobs 1

A seed that fails is printed with its findings and with the command that plays it again.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from multiprocessing import Pool

from millpond.sim.coordination.scenario import CoordinationOutcome, CoordinationScenario, run_coordination_seed
from millpond.sim.simulator.tape import CampaignSeed
from millpond.sim.world.disk import PowerCut

FINDINGS_SHOWN = 3
TELL_EVERY_S = 30


def play(seed: int) -> CoordinationOutcome:
    """One seed; an error of the broker is a finding like any other."""
    try:
        return run_coordination_seed(seed)
    except (Exception, PowerCut) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return CoordinationOutcome(seed, [f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"])


def outcomes(seeds: range, jobs: int) -> Iterator[CoordinationOutcome]:
    if jobs == 1:
        yield from map(play, seeds)
        return
    with Pool(jobs) as pool:
        yield from pool.imap_unordered(play, seeds, chunksize=2)


def replay(seed: int) -> int:
    """Play one seed and tell its whole story, in the order in which it happened."""
    scenario = CoordinationScenario(seed)
    print(scenario.plan)
    failed = True
    try:
        failed = bool(scenario.run().violations)
    except (Exception, PowerCut):
        traceback.print_exc()
    print("\n".join(scenario.story()))
    print("\n".join(scenario.history.violations) or "nothing was found")
    return int(failed)


def campaign(seeds: range, jobs: int) -> int:
    began = told = time.monotonic()
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    failed: list[int] = []
    for done, outcome in enumerate(outcomes(seeds, jobs), 1):
        faults.update(outcome.faults)
        counts.update(outcome.counts)
        totals.update(
            {
                "lives of the node": outcome.lives,
                "events": outcome.events,
                "virtual seconds": outcome.virtual_ms // 1000,
            }
        )
        if outcome.violations:
            failed.append(outcome.seed)
            print(f"\nseed {outcome.seed} failed:")
            for finding in outcome.violations[:FINDINGS_SHOWN]:
                print(f"  {finding}")
            print(f"  play it again: python tests/campaigns/simulate_coordination.py --replay {outcome.seed}")
            print(f"  in the simulator: {CampaignSeed('coordination', outcome.seed).where_to_see()}", flush=True)
        if time.monotonic() - told > TELL_EVERY_S:
            told = time.monotonic()
            print(f"{done} of {len(seeds)} seeds, {len(failed)} failed", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    print(f"\n{len(seeds)} seeds in {seconds:.1f} s ({len(seeds) / seconds:.1f} a second), {len(failed)} failed")
    for title, table in (("faults", faults), ("what the crew did", counts), ("in all", totals)):
        print(f"\n{title}")
        for name, count in sorted(table.items()):
            print(f"  {name:<40} {count:>12,}")
    return int(bool(failed))


def main() -> int:
    parser = argparse.ArgumentParser(description="Run seeds of a simulated node with groups and transactions.")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes to use")
    parser.add_argument("--replay", type=int, help="play this one seed and tell everything")
    given = parser.parse_args()
    if given.replay is not None:
        return replay(given.replay)
    return campaign(range(given.start, given.start + given.seeds), given.jobs)


if __name__ == "__main__":
    sys.exit(main())
