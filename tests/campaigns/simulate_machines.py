"""Run many seeds of the pure machines of quorum and replication, and print what came of them.

    python tests/campaigns/simulate_machines.py --seeds 10000 --jobs 2
    python tests/campaigns/simulate_machines.py --machine quorum --replay 17
    python tests/campaigns/simulate_machines.py --machine voters --seeds 2000

A seed that fails is printed with the promise that it broke and the command that tells its story.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from functools import partial
from multiprocessing import Pool

from millpond.sim.machines.run import Outcome
from millpond.sim.simulator.campaigns import MACHINES
from millpond.sim.simulator.tape import CampaignSeed

PROGRESS_S = 10


def play(machine: str, seed: int) -> Outcome:
    return MACHINES[machine](seed)


def collect_rarely() -> None:
    """A run leaves circles behind; to look for them while it goes on costs a fifth of the time."""
    gc.freeze()
    gc.set_threshold(200_000, 2, 2)


def campaign(machine: str, seeds: range, jobs: int) -> int:
    began = said = time.monotonic()
    broken = done = 0
    totals: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    with Pool(jobs, collect_rarely) as pool:
        for outcome in pool.imap_unordered(partial(play, machine), seeds, chunksize=8):
            done += 1
            faults.update(outcome.faults)
            totals.update(events=outcome.events, committed=outcome.committed, acknowledged=outcome.acknowledged)
            if outcome.violation is not None:
                broken += 1
                print(f"{machine} seed {outcome.seed}: {outcome.violation}", flush=True)
                print(f"  python tests/campaigns/simulate_machines.py --machine {machine} --replay {outcome.seed}")
                print(f"  in the simulator: {CampaignSeed(machine, outcome.seed).where_to_see()}", flush=True)
            if time.monotonic() - said > PROGRESS_S:
                said = time.monotonic()
                print(f"{machine}: {done} of {len(seeds)} seeds, {broken} failed", flush=True)
    seconds = time.monotonic() - began
    print(f"{machine}: {done} seeds, {broken} failed, {done / seconds:.1f} seeds/s, {sum(faults.values())} faults")
    print("  " + ", ".join(f"{count:,} {name}" for name, count in totals.items()))
    return broken


def replay(machine: str, seed: int) -> int:
    outcome = play(machine, seed)
    print("\n".join(outcome.story))
    print(outcome.violation or "nothing was found")
    return int(outcome.violation is not None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", choices=sorted(MACHINES))
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--replay", type=int, metavar="SEED")
    given = parser.parse_args()
    machines = [given.machine] if given.machine else sorted(MACHINES)
    if given.replay is not None:
        return max(replay(machine, given.replay) for machine in machines)
    seeds = range(given.start, given.start + given.seeds)
    return int(sum(campaign(machine, seeds, given.jobs) for machine in machines) > 0)


if __name__ == "__main__":
    sys.exit(main())
