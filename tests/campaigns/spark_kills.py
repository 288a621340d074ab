"""Kill the Spark driver, its workers and the node under a pipeline: `python tests/campaigns/spark_kills.py`.

One topic goes into the lake, another topic and an aggregate; in the end every row of all three is counted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.node import Node
from support.seeds import fresh_seed
from support.spark_kills import Plan, Tally, run


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--driver-kills", type=int, default=6)
    parser.add_argument("--worker-kills", type=int, default=8)
    parser.add_argument("--node-kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=fresh_seed(), help="the same seed, the same kills")
    options = parser.parse_args(arguments)
    print(f"spark kills: {options.records:,} records, seed {options.seed}", flush=True)
    plan = Plan(options.records, options.driver_kills, options.worker_kills, options.node_kills, options.seed)
    with tempfile.TemporaryDirectory(prefix="millpond-spark-kills-") as name:
        folder = Path(name)
        node = Node(folder / "node").start()
        try:
            tally = run(node, folder, plan, lambda line: print(f"  {line}", flush=True))
        except AssertionError as fault:
            print(f"FAILED with seed {options.seed}: {fault}", file=sys.stderr)
            return 1
        finally:
            node.kill9()
    show(tally)
    return 0


def show(tally: Tally) -> None:
    for name, value in (
        ("rows in the lake, each once", f"{tally.rows:,}"),
        ("records in the topic, each once", f"{tally.rows:,}"),
        ("windows of the aggregate, each right", f"{tally.windows:,}"),
        ("driver killed", str(tally.kills["driver"])),
        ("Python worker killed", str(tally.kills["worker"])),
        ("node killed", str(tally.kills["node"])),
        ("pipeline started", str(tally.starts)),
        ("seconds", f"{tally.seconds:.0f}"),
    ):
        print(f"{name:40}{value:>12}")


if __name__ == "__main__":
    sys.exit(main())
