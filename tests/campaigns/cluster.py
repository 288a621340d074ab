"""Faults on a real cluster under load: `python tests/campaigns/cluster.py --faults 200 --nodes 3 5`.

The nodes are processes behind proxies. The load is idempotent producers of three client libraries, groups of both
protocols, and a transactional copy. Nodes are killed or stopped, one or all, for up to a minute; restarted in turn;
partitioned in one or both directions, by dropped traffic or refused connections. Their disks fill up, slow down,
fail, or lose everything or a single bit; their descriptors run out. Each fault ends and writes resume before the next
one. At the end of a round everything is read and checked, and the next round begins with empty folders.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import pytest

from millpond.testing import ponds
from millpond.testing.cluster import Ponds
from millpond.testing.process_node import NodeEnded
from support.cluster_campaign import run
from support.cluster_clients import SETTINGS, Load, Outcome, summary
from support.cluster_disks import Disks
from support.cluster_faults import FAULTS, plan, possible
from support.jars import class_path
from support.java_programs import compiled
from support.seeds import fresh_seed

ROUND_FAULTS = 40
COPY_PROTOCOLS = ("cooperative-sticky", "consumer")
JAVA_JOURNAL = """\
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss.SSS}} %p %c{{1}} %m%n
logger.producer.name = org.apache.kafka.clients.producer
logger.producer.level = info
rootLogger.level = error
rootLogger.appenderRef.file.ref = file
"""
"""The producers' log includes every batch that they resend, and why."""
WRITER = Path(__file__).parent.parent / "support" / "number_writer.py"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Faults on a real cluster under load.")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 5], help="of one round after the other")
    parser.add_argument("--round", type=int, default=ROUND_FAULTS, help="faults of each round")
    parser.add_argument("--copies", type=int, default=20_000, help="records of the transactional copy, each round")
    parser.add_argument("--only", action="append", choices=list(FAULTS), help="only these faults")
    parser.add_argument("--flush-ack", default="", help="the setting flush.ack of the nodes")
    parser.add_argument("--seed", type=int, default=fresh_seed(), help="the same seed, the same faults")
    parser.add_argument(
        "--diaries",
        type=Path,
        help="a folder for what nodes, members of groups and Java tell; data of a failed round are always kept",
    )
    options = parser.parse_args(arguments)
    if options.diaries is not None:
        options.diaries.mkdir(parents=True, exist_ok=True)
    print(f"cluster: {options.faults} faults on {options.nodes} nodes, seed {options.seed}", flush=True)
    java = java_classes(options.diaries)
    outcomes = []
    done = 0
    for number, nodes in enumerate(itertools.cycle(options.nodes)):
        load = Load(
            options.copies,
            COPY_PROTOCOLS[number % len(COPY_PROTOCOLS)],
            [[sys.executable, str(WRITER)], *([[*java, "NumberWriter"]] if java else [])],
            [*java, "NumberReader"] if java else [],
            options.diaries,
        )
        outcome = run_round(options, nodes, options.seed + done, min(options.round, options.faults - done), load)
        if outcome is None:
            show(outcomes)
            return 1
        outcomes.append(outcome)
        done += outcome.faults.total()
        print(f"  {nodes} nodes, {done} of {options.faults} faults: {outcome.findings}", flush=True)
        if done >= options.faults:
            break
    show(outcomes)
    return 1 if any(outcome.findings for outcome in outcomes) else 0


def run_round(options: argparse.Namespace, nodes: int, seed: int, count: int, load: Load) -> Outcome | None:
    """One round; None if a cluster did not recover."""
    settings = SETTINGS | ({"flush.ack": options.flush_ack} if options.flush_ack else {})
    with (
        tempfile.TemporaryDirectory(prefix="millpond-cluster-", ignore_cleanup_errors=True) as folder,
        Disks(Path(folder), nodes).in_use() as disks,
    ):
        for what, why in disks.reasons.items():
            print(f"without {what}: {why}", flush=True)
        faults = plan(count, options.only or possible(disks), random.Random(seed))
        cluster = ponds(nodes, settings=settings, folder=folder)
        outcome: Outcome | None = None
        try:
            with cluster:
                outcome = run(cluster, faults, seed, load, disks, progress)
        except (AssertionError, TimeoutError, NodeEnded) as fault:
            traceback.print_exc()
            print(f"FAILED with seed {seed}, {nodes} nodes: {fault}", file=sys.stderr)
            for node in cluster:
                print(f"--- node {node.node_id}", *node.journal[-40:], sep="\n", file=sys.stderr)
        finally:
            if outcome is None or outcome.findings:
                kept = (options.diaries or Path(tempfile.gettempdir())) / f"millpond-data-{seed}"
                shutil.copytree(folder, kept, dirs_exist_ok=True)
                write_journals(cluster, kept)
                print(f"the data of the nodes are kept in {kept}", flush=True)
            if options.diaries is not None:
                write_journals(cluster, options.diaries)
        return outcome


def write_journals(cluster: Ponds, folder: Path) -> None:
    for node in cluster:
        (folder / f"node-{node.node_id}.txt").write_text("\n".join(node.journal))


def java_classes(diaries: Path | None) -> list[str]:
    """The command that runs our Java programs, if Java is installed; their client logs to a file on request."""
    command = ["java", "-XX:TieredStopAtLevel=1", "-Xmx96m"]
    try:
        classes = compiled(Path(tempfile.mkdtemp(prefix="millpond-java-")))
    except pytest.skip.Exception as reason:
        print(f"without the Java client: {reason}", flush=True)
        return []
    if diaries is None:
        return [*command, "-cp", classes]
    try:
        journal = class_path("client-journal")
    except pytest.skip.Exception as reason:
        print(f"without the journal of the Java client: {reason}", flush=True)
        return [*command, "-cp", classes]
    rules = diaries / "log4j.properties"
    rules.write_text(JAVA_JOURNAL.format(file=diaries.absolute() / "java.txt"))
    return [*command, f"-Dlog4j2.configurationFile={rules.absolute()}", "-cp", os.pathsep.join((classes, journal))]


def progress(number: int, name: str, seconds: float, outcome: Outcome) -> None:
    clock = time.strftime("%H:%M:%S")
    print(f"  {clock} {number:4}  {name:24} {seconds:6.2f} s  {outcome.acked:9,} acknowledged", flush=True)


def show(outcomes: list[Outcome]) -> None:
    print(f"\n{'fault':26}{'times':>7}{'p50 s':>9}{'worst s':>9}   until writes went on, the fault itself counted")
    for name in FAULTS:
        seconds = [each for outcome in outcomes for each in outcome.silences.get(name, ())]
        if seconds:
            print(f"{name:26}{len(seconds):7}{statistics.median(seconds):9.2f}{max(seconds):9.2f}")
    print()
    for line in summary(outcomes):
        print(line)


if __name__ == "__main__":
    sys.exit(main())
