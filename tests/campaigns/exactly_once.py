"""Copy records exactly once while workers and the node are killed: `python tests/campaigns/exactly_once.py`.

Three copying jobs of 100,000 records in all: one worker, two workers that share a classic group, and two in a group
of the new protocol. The output is counted under read_committed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.exactly_once import NODE_SETTINGS, Plan, Tally, run
from support.node import Node
from support.seeds import fresh_seed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000, help="in all three jobs together")
    parser.add_argument("--worker-kills", type=int, default=60)
    parser.add_argument("--node-kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=fresh_seed(), help="the same seed, the same kills")
    options = parser.parse_args(arguments)
    print(f"exactly once: {options.records:,} records, seed {options.seed}", flush=True)
    shapes = [(2, 1, "range"), (1, 2, "cooperative-sticky"), (1, 2, "consumer")]
    done: list[tuple[Plan, Tally]] = []
    for share, workers, protocol in shapes:
        plan = Plan(
            options.records * share // 4,
            options.worker_kills * share // 4,
            options.node_kills * share // 4,
            workers,
            protocol,
            options.seed,
        )
        print(f"  {plan.records:,} records, {workers} worker(s), {protocol}", flush=True)
        with tempfile.TemporaryDirectory(prefix="millpond-exactly-once-") as folder:
            node = Node(Path(folder), NODE_SETTINGS).start()
            try:
                done.append((plan, run(node, plan, progress)))
            except AssertionError as fault:
                print(f"FAILED with seed {options.seed}: {fault}", file=sys.stderr)
                return 1
            finally:
                node.kill9()
    show(done)
    return 0


def progress(tally: Tally) -> None:
    kills = tally.worker_kills + tally.node_kills
    if kills % 5 == 0:
        print(f"    {kills:4} kills  {tally.copied:9,} copied", flush=True)


def show(done: list[tuple[Plan, Tally]]) -> None:
    rows: list[tuple[str, list[str]]] = [
        ("group protocol", [plan.protocol for plan, _ in done]),
        ("workers", [str(plan.workers) for plan, _ in done]),
        ("records in", [f"{plan.records:,}" for plan, _ in done]),
        ("distinct records out", [f"{tally.copied:,}" for _, tally in done]),
        ("lost, doubled, out of order", ["0" for _ in done]),
        ("aborted records hidden", [f"{tally.aborted:,}" for _, tally in done]),
        ("workers killed", [str(tally.worker_kills) for _, tally in done]),
        ("node killed", [str(tally.node_kills) for _, tally in done]),
        ("workers that gave up", [str(tally.worker_ends) for _, tally in done]),
        (
            "stall after a kill, median s",
            [f"{sorted(tally.stalls)[len(tally.stalls) // 2]:.2f}" for _, tally in done],
        ),
        ("stall after a kill, worst s", [f"{max(tally.stalls):.2f}" for _, tally in done]),
        ("copying, s", [f"{tally.seconds:.0f}" for _, tally in done]),
    ]
    for name, values in rows:
        print(f"{name:30}" + "".join(f"{value:>20}" for value in values))


if __name__ == "__main__":
    sys.exit(main())
