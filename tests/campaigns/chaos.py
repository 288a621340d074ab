"""Run all campaigns in sequence: real kills under transactions, faults and operations on a cluster, group churn, slow
and hostile clients, then many simulated runs. The tests marked `with_time` come last: comparisons with Apache Kafka,
the demo, the README on a clean copy, and long runs.

python tests/campaigns/chaos.py --records 100000 --faults 200 --minutes 6 --seeds 1000
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
LONG_TESTS = [sys.executable, "-m", "pytest", "-m", "with_time", str(FOLDER.parent)]
"""Tests that take too long to run on every change, in any folder; MILLPOND_ALL=1 enables them."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill real nodes under load, churn groups, then simulate.")
    parser.add_argument("--records", default="100000", help="how many are copied exactly once")
    parser.add_argument("--faults", default="200", help="how many are done to a real cluster")
    parser.add_argument("--minutes", default="6", help="how long groups are churned")
    parser.add_argument("--frames", default="10000000", help="how many hostile requests are sent")
    parser.add_argument("--seeds", default="1000", help="how many runs are simulated")
    arguments = parser.parse_args()
    failed = 0
    for words in (
        ["exactly_once.py", "--records", arguments.records],
        ["spark_exactly_once.py"],
        ["spark_kills.py"],
        ["cluster.py", "--faults", arguments.faults],
        ["operations.py"],
        ["churn.py", "--minutes", arguments.minutes, "--node-kills"],
        ["slow_clients.py"],
        ["fuzz.py", "--frames", "200000", "--node"],
        ["fuzz.py", "--frames", arguments.frames],
        ["simulate.py", "all", "--seeds", arguments.seeds],
    ):
        print(f"\n{' '.join(words)}", flush=True)
        failed += subprocess.run([sys.executable, str(FOLDER / words[0]), *words[1:]], check=False).returncode != 0
    failed += subprocess.run(LONG_TESTS, env={**os.environ, "MILLPOND_ALL": "1"}, check=False).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
