"""Faults on a real cluster under load: `python tests/campaigns/cluster.py --faults 200`.

Three nodes as processes behind proxies; idempotent producers of three client libraries, groups of both protocols and
a transactional copy. Nodes are killed and stopped, one or all; restarted one after the other; cut off, in one
direction and in both. Each fault is over and writes go on before the next one comes. In the end everything is read
and checked.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import random

import pytest

from millpond.testing import ponds
from support.cluster_campaign import SETTINGS, Outcome, run
from support.cluster_check import CLASSES
from support.cluster_faults import FAULTS, plan
from support.java_programs import compiled
from support.seeds import fresh_seed

ROUND_FAULTS = 40
"""Every so often with fresh folders and a look at all that was written."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Faults on a real cluster under load.")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--copies", type=int, default=20_000, help="records of the transactional copy, each round")
    parser.add_argument("--only", action="append", choices=list(FAULTS), help="only these faults")
    parser.add_argument("--flush-ack", default="", help="the setting flush.ack of the nodes")
    parser.add_argument("--seed", type=int, default=fresh_seed(), help="the same seed, the same faults")
    parser.add_argument("--diaries", type=Path, help="a folder for what the libraries of the groups' members tell")
    wanted = parser.parse_args(arguments)
    print(f"cluster: {wanted.faults} faults on {wanted.nodes} nodes, seed {wanted.seed}", flush=True)
    dice = random.Random(wanted.seed)
    faults = (
        plan(wanted.faults, dice) if not wanted.only else [dice.choice(wanted.only) for _ in range(wanted.faults)]
    )
    settings = SETTINGS | ({"flush.ack": wanted.flush_ack} if wanted.flush_ack else {})
    programs = [[sys.executable, str(Path(__file__).parent.parent / "support" / "number_writer.py")], *java_writer()]
    outcomes = []
    for first in range(0, len(faults), ROUND_FAULTS):
        with tempfile.TemporaryDirectory(prefix="millpond-cluster-") as folder:
            cluster = ponds(wanted.nodes, settings=settings, folder=folder)
            try:
                with cluster:
                    some = faults[first : first + ROUND_FAULTS]
                    outcomes.append(
                        run(cluster, some, wanted.seed + first, wanted.copies, programs, progress, wanted.diaries)
                    )
            except (AssertionError, TimeoutError) as fault:
                traceback.print_exc()
                print(f"FAILED with seed {wanted.seed}: {fault}", file=sys.stderr)
                for node in cluster:
                    print(f"--- node {node.node_id}", *node.journal[-40:], sep="\n", file=sys.stderr)
                return 1
        if outcomes[-1].findings:
            print(outcomes[-1].findings, flush=True)
    show(outcomes)
    return 1 if any(outcome.findings for outcome in outcomes) else 0


def java_writer() -> list[list[str]]:
    """The command of our producer in Java, where there is Java."""
    try:
        classes = compiled(Path(tempfile.mkdtemp(prefix="millpond-java-")))
    except pytest.skip.Exception as reason:
        print(f"without the Java client: {reason}", flush=True)
        return []
    return [["java", "-XX:TieredStopAtLevel=1", "-Xmx64m", "-cp", classes, "NumberWriter"]]


def progress(number: int, name: str, seconds: float, outcome: Outcome) -> None:
    clock = time.strftime("%H:%M:%S")
    print(f"  {clock} {number:4}  {name:24} {seconds:6.2f} s  {outcome.acked:9,} acknowledged", flush=True)


def show(outcomes: list[Outcome]) -> None:
    print(f"\n{'fault':26}{'times':>7}{'p50 s':>9}{'worst s':>9}   until writes went on, the fault itself counted")
    for name in FAULTS:
        seconds = [each for outcome in outcomes for each in outcome.silences.get(name, ())]
        if seconds:
            print(f"{name:26}{len(seconds):7}{statistics.median(seconds):9.2f}{max(seconds):9.2f}")
    print(f"\n{'acknowledged writes':34}{sum(each.acked for each in outcomes):12,}")
    print(f"{'of these without an offset':34}{sum(each.untold for each in outcomes):12,}")
    print(f"{'of unknown outcome':34}{sum(each.unknown for each in outcomes):12,}")
    print(f"{'records read by groups':34}{sum(each.read for each in outcomes):12,}")
    print(f"{'copied in transactions':34}{sum(each.copied for each in outcomes):12,}")
    print(f"{'consumers begun anew':34}{sum(each.readers_anew for each in outcomes):12,}")
    for kind in CLASSES:
        print(f"{kind:34}{sum(each.findings.counts[kind] for each in outcomes):12,}")
    print(f"{'seconds':34}{sum(each.seconds for each in outcomes):12,.0f}")
    for outcome in outcomes:
        for reason, count in outcome.unknown_reasons.items():
            print(f"unknown outcome, {count} times: {reason}")


if __name__ == "__main__":
    sys.exit(main())
