"""The number of simulated runs per core and hour: of the pure state machines, and of whole clusters.

Based on the CPU time of this process. The runs are those of `tests/campaigns` from a fixed seed on, so that two
versions run the same plans; a failing run ends the measurement.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator

from millpond.sim.cluster import scenario as cluster
from millpond.sim.machines.quorum import scenario as quorum
from millpond.sim.machines.replication import scenario as replication

SECONDS_AN_HOUR = 3600
FIRST_SEED = 100
RUNS_MIN = 4


def _fails(run: Callable[[int], object], seed: int) -> str | None:
    match run(seed):
        case cluster.Outcome(violations=[first, *_]):
            return first
        case quorum.Outcome(violation=violation):
            return violation
    return None


def _runs_an_hour(run: Callable[[int], object], seconds: float) -> float:
    began, done = time.process_time(), 0
    while done < RUNS_MIN or time.process_time() - began < seconds:
        failure = _fails(run, FIRST_SEED + done)
        if failure is not None:
            raise RuntimeError(f"seed {FIRST_SEED + done}: {failure}")
        done += 1
    return done / (time.process_time() - began) * SECONDS_AN_HOUR


def measure_seeds(seconds: float) -> Iterator[tuple[str, float]]:
    """Each kind of run, and its number per hour."""
    gc.collect()
    gc.freeze()
    try:
        yield "the quorum", _runs_an_hour(quorum.run_seed, seconds)
        yield "a replicated partition", _runs_an_hour(replication.run_seed, seconds)
        yield "whole clusters", _runs_an_hour(cluster.run_seed, seconds)
    finally:
        gc.unfreeze()
