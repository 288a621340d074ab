"""Run thousands of slow, silent, deaf and restless clients next to a working one, whose p99 must not double.

The crowd runs on this machine and takes CPU time from the node. So the same crowd also connects to a listener that
does nothing, and its effect on the working client there is not counted against the node ("of the node"); the ratio to
the client alone is printed next to it. On a machine with a core for each process the two are the same.

python tests/campaigns/slow_clients.py --count 2000 --rounds 4 --seconds 3 --kinds loris deaf
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.crowd import KINDS
from support.node import Node
from support.slow_clients import fill, measure

RATIO_MAX = 2.0


def files_of(node: Node) -> int:
    """How many open files of the node are not sockets."""
    folder = f"/proc/{node.pid}/fd"
    count = 0
    for name in os.listdir(folder):
        try:
            count += not os.readlink(f"{folder}/{name}").startswith("socket:")
        except OSError:
            continue
    return count


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Slow clients by the thousand beside a working one.")
    parser.add_argument("--count", type=int, default=2000, help="how many of each kind")
    parser.add_argument("--rounds", type=int, default=4, help="turns with the crowd and without it")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long a turn lasts")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    options = parser.parse_args(arguments)
    failed = 0
    for kind in options.kinds:
        with tempfile.TemporaryDirectory(prefix="millpond-slow-") as folder:
            node = Node(Path(folder) / "node").start()
            try:
                fill(node.port)
                trial = measure(
                    node, kind, options.count, options.rounds, options.seconds, files_of, is_compared=True
                )
            finally:
                node.kill9()
        is_wrong = trial.own_ratio() >= RATIO_MAX
        failed += is_wrong
        print(f"{trial}{'   FAILED' if is_wrong else ''}", flush=True)
    print(f"at {failed} of {len(options.kinds)} kinds the node doubled the p99 of a working client")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
