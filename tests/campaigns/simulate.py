"""Run many seeds of a simulated scenario and print the results.

    python tests/campaigns/simulate.py records --seeds 1000 --start 0 --jobs 2
    python tests/campaigns/simulate.py cluster --seeds 200
    python tests/campaigns/simulate.py moves --replay 17
    python tests/campaigns/simulate.py faults --shrink 17

One node: `records`, and `coordination` with groups and transactions. The pure state machines (`machines`): `quorum`,
`replication`, `share_window`, `voters`. Whole clusters (`cluster`): `faults` alone; nodes that join, are drained and
vote (`members`); partitions that move (`moves`); nodes that are upgraded and downgraded (`upgrade`); consumers that
fetch from their own rack (`racks`); nodes that are down longer than compacted topics keep tombstones (`compacted`).
`crews`: groups and transactions on whole clusters. `all`: every scenario.

A failing seed is printed with its findings and with the commands that print its event log, whole or shrunk.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import Pool
from typing import Any

from millpond.sim.cluster.campaigns import CAMPAIGNS
from millpond.sim.cluster.group_scenario import ClusterGroupScenario, make_cluster_group_plan
from millpond.sim.cluster.plan import FAULTS
from millpond.sim.cluster.shrinker import kind_of, play, shrink
from millpond.sim.simulator.campaigns import MACHINES, SCENARIOS
from millpond.sim.simulator.recording import CampaignSeed
from millpond.sim.world.disk import PowerCut

FINDINGS_SHOWN = 3
PROGRESS_S = 10
SETS = {"all": [*SCENARIOS, *MACHINES], "cluster": list(CAMPAIGNS), "machines": list(MACHINES)}
NOT_COUNTED = ("seed", "healed_ms", "trace")


@dataclass
class Result:
    """The result of one run, in the same form for all scenarios."""

    seed: int
    violations: list[str]
    faults: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Runs:
    """A scenario, with the faults and nodes of its clusters."""

    scenario: str
    faults: tuple[str, ...] = FAULTS
    nodes: int | None = None

    @property
    def options(self) -> str:
        """The command-line options that distinguish these runs from the default."""
        faults = f" --faults {','.join(self.faults)}" if self.faults != FAULTS else ""
        return faults + (f" --nodes {self.nodes}" if self.nodes is not None else "")

    def prepared(self, seed: int) -> Any:
        """The scenario of a seed, ready to run."""
        if self.scenario in CAMPAIGNS:
            return CAMPAIGNS[self.scenario].kind(seed, self.plan(seed))
        if self.scenario == "crews":
            return ClusterGroupScenario(seed, make_cluster_group_plan(seed, self.faults, nodes=self.nodes))
        return SCENARIOS[self.scenario](seed)

    def plan(self, seed: int) -> Any:
        return CAMPAIGNS[self.scenario].plan(seed, self.faults, self.nodes)

    def shrunk(self, seed: int) -> Any:
        """The scenario of a failing seed, reduced to what it needs to fail."""
        kind, plan = CAMPAIGNS[self.scenario].kind, self.plan(seed)
        failure = kind_of(play(seed, plan, kind)[1])
        return kind(seed, shrink(seed, plan, lambda tried: kind_of(play(seed, tried, kind)[1]) == failure))

    def run(self, seed: int) -> Result:
        """Run one seed; an error of a node is a finding like any other."""
        outcome: Any
        if self.scenario in MACHINES:
            outcome = MACHINES[self.scenario](seed)
            violations = [] if outcome.violation is None else [outcome.violation]
        else:
            try:
                outcome = self.prepared(seed).run()
            except (Exception, PowerCut) as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                return Result(seed, [f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"])
            violations = outcome.violations
        facts = asdict(outcome)
        counts = {name: count for name, count in facts.items() if isinstance(count, int) and name not in NOT_COUNTED}
        return Result(seed, violations, facts["faults"], counts | facts.get("records", {}) | facts.get("counts", {}))


def results(seeds: range, jobs: int, runs: Runs) -> Iterator[Result]:
    if jobs == 1:
        yield from map(runs.run, seeds)
        return
    with Pool(jobs, collect_rarely) as pool:
        yield from pool.imap_unordered(partial(Runs.run, runs), seeds, chunksize=2)


def collect_rarely() -> None:
    """A run leaves reference cycles behind; collecting them during the run costs a fifth of the time."""
    gc.freeze()
    gc.set_threshold(200_000, 2, 2)


def replay(runs: Runs, seed: int, *, shrinks: bool = False) -> int:
    """Run one seed and print its whole event log."""
    if runs.scenario in MACHINES:
        outcome = MACHINES[runs.scenario](seed)
        print("\n".join(outcome.story))
        print(outcome.violation or "nothing was found")
        return int(outcome.violation is not None)
    scenario = runs.shrunk(seed) if shrinks else runs.prepared(seed)
    print(scenario.plan)
    failed = True
    try:
        failed = bool(scenario.run().violations)
    except (Exception, PowerCut):
        traceback.print_exc(file=sys.stdout)
    print("\n".join(scenario.story()))
    print("\n".join(scenario.history.violations) or ("it ended early: see above" if failed else "nothing was found"))
    return int(failed)


def campaign(runs: Runs, seeds: range, jobs: int) -> int:
    began = reported = time.monotonic()
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    failed = 0
    for done, result in enumerate(results(seeds, jobs, runs), 1):
        faults.update(result.faults)
        counts.update(result.counts)
        if result.violations:
            failed += 1
            print_failure(runs, result)
        if time.monotonic() - reported > PROGRESS_S:
            reported = time.monotonic()
            print(f"{runs.scenario}: {done} of {len(seeds)} seeds, {failed} failed", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    pace = f"{seconds:.1f} s ({len(seeds) / seconds * 3600:,.0f} an hour)"
    print(f"\n{runs.scenario}: {len(seeds)} seeds in {pace}, {failed} failed")
    for title, table in (("faults", faults), ("in all", counts)):
        print(f"\n{title}")
        for name, count in sorted(table.items()):
            print(f"  {name.replace('_', ' '):<40} {count:>14,}")
    return int(failed > 0)


def print_failure(runs: Runs, result: Result) -> None:
    print(f"\n{runs.scenario} seed {result.seed} failed:")
    for finding in result.violations[:FINDINGS_SHOWN]:
        print(f"  {finding}")
    how = "shrink" if runs.scenario in CAMPAIGNS else "replay"
    print(f"  its story: python tests/campaigns/simulate.py {runs.scenario}{runs.options} --{how} {result.seed}")
    if not runs.options:
        # Only a run that is determined by its seed alone has a link.
        print(f"  in the simulator: {CampaignSeed(runs.scenario, result.seed).where_to_see()}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=[*SCENARIOS, *MACHINES, *SETS], metavar="SCENARIO")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes to use")
    parser.add_argument("--nodes", type=int, help="how many nodes a cluster has, whatever the seed says")
    parser.add_argument(
        "--faults", default=",".join(FAULTS), help="kinds of faults of a cluster, with commas between"
    )
    parser.add_argument("--replay", type=int, metavar="SEED", help="run this one seed and print its story")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="leave out what it fails without, then print")
    options = parser.parse_args()
    faults = tuple(options.faults.split(","))
    names = SETS.get(options.scenario, [options.scenario])
    takes_nodes = {"crews", *(name for name, each in CAMPAIGNS.items() if not each.has_own_nodes)}
    for given, option, takers in (
        (options.nodes is not None, "--nodes", takes_nodes),
        (faults != FAULTS, "--faults", {"crews", *CAMPAIGNS}),
        (options.shrink is not None, "--shrink", set(CAMPAIGNS)),
    ):
        if given and not set(names) <= takers:
            parser.error(f"{option} is only for these: {', '.join(sorted(takers))}")
    failed = 0
    for name in names:
        runs = Runs(name, faults, options.nodes)
        if options.replay is not None:
            failed |= replay(runs, options.replay)
            if not runs.options:
                print(f"in the simulator: {CampaignSeed(name, options.replay).where_to_see()}")
        elif options.shrink is not None:
            failed |= replay(runs, options.shrink, shrinks=True)
        else:
            failed |= campaign(runs, range(options.start, options.start + options.seeds), options.jobs)
    return failed


if __name__ == "__main__":
    sys.exit(main())
