"""Copy a topic with Spark, exactly once, while every step of the copy is made to fail:
`python tests/campaigns/spark_exactly_once.py`.

Each job has its own node and its own Spark driver. Faults are drawn by a seed: tasks and drivers that raise, Python
workers, drivers and nodes that are killed, each right after a step of the protocol. The output is counted under
read_committed. The last job stays down after each kill until its transactions have timed out.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from millpond.spark.sink.steps import Step
from support.seeds import fresh_seed
from support.spark_faults import KILL_DRIVER, KILL_NODE, KILL_PYTHON, RAISE
from support.spark_sink import Copy

STEPS = [Step.OPENED, Step.FLUSHED, Step.CHECKED, Step.DECIDED, Step.ENDED_SOME, Step.ENDED_ALL]
WAYS = [RAISE, KILL_PYTHON, KILL_NODE, KILL_DRIVER]
SECONDS_PER_FAULT = 90.0
LATE_TIMEOUT_SECONDS = 12


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000, help="in each job")
    parser.add_argument("--faults", type=int, default=len(STEPS) * len(WAYS), help="24: every way after every step")
    parser.add_argument("--late", type=int, default=6, help="kills of the driver that outlast the transactions")
    parser.add_argument("--seed", type=int, default=fresh_seed(), help="the same seed, the same faults")
    wanted = parser.parse_args(arguments)
    chance = random.Random(wanted.seed)
    print(f"Spark, exactly once: {wanted.records:,} records in each job, seed {wanted.seed}", flush=True)
    every: list[tuple[str, str]] = []
    while len(every) < wanted.faults:
        pairs = [(step.value, way) for step in STEPS for way in WAYS]
        chance.shuffle(pairs)
        every += pairs
    del every[wanted.faults :]
    half = len(every) // 2
    late = [(chance.choice(STEPS[1:]).value, KILL_DRIVER) for _ in range(wanted.late)]
    jobs = [
        ("first half", every[:half], (), 0.0),
        ("second half", every[half:], ("kafka.compression.type=lz4",), 0.0),
        (
            "late restarts",
            late,
            (f"transactionTimeout={LATE_TIMEOUT_SECONDS}s", "kafka.batch.size=2000"),
            LATE_TIMEOUT_SECONDS + 1.0,
        ),
    ]
    done: list[tuple[str, Copy]] = []
    for name, faults, options, pause_seconds in jobs:
        print(f"  {name}: {len(faults)} faults", flush=True)
        with tempfile.TemporaryDirectory(prefix="millpond-spark-") as folder:
            # One batch for each fault, and a few undisturbed ones.
            batch_rows = max(wanted.records // (len(faults) + 3), 1)
            copy = Copy(Path(folder), wanted.records, batch_rows, faults, options, pause_seconds)
            try:
                code = copy.run(120.0 + SECONDS_PER_FAULT * len(faults))
            except AssertionError as fault:
                print(f"FAILED with seed {wanted.seed}: {fault}", file=sys.stderr)
                return 1
            if code or copy.left():
                print(
                    f"FAILED with seed {wanted.seed}: exit code {code}, faults left: {copy.left()}", file=sys.stderr
                )
                print(copy.story(), file=sys.stderr)
                return 1
        done.append((name, copy))
    show(done)
    return 0


def show(done: list[tuple[str, Copy]]) -> None:
    ways = [Counter(way for _, way in copy.faults) for _, copy in done]
    rows: list[tuple[str, list[str]]] = [
        ("records in", [f"{copy.records:,}" for _, copy in done]),
        ("distinct records out", [f"{copy.records:,}" for _, copy in done]),
        ("lost, doubled", ["0" for _ in done]),
        ("steps that raised", [str(each[RAISE]) for each in ways]),
        ("Python workers killed", [str(each[KILL_PYTHON]) for each in ways]),
        ("drivers killed", [str(each[KILL_DRIVER]) for each in ways]),
        ("node killed", [str(each[KILL_NODE]) for each in ways]),
        ("driver started", [str(copy.driver_starts) for _, copy in done]),
        ("node started", [str(copy.node_starts) for _, copy in done]),
        ("seconds", [f"{copy.seconds:.0f}" for _, copy in done]),
    ]
    print(f"{'':30}" + "".join(f"{name:>16}" for name, _ in done))
    for name, values in rows:
        print(f"{name:30}" + "".join(f"{value:>16}" for value in values))


if __name__ == "__main__":
    sys.exit(main())
