"""Operations on a real cluster under load: `python tests/campaigns/operations.py --phases join drain --seed 7`.

Three nodes of the previous version, if git has it, serve idempotent producers, groups of both protocols and a
transactional copy. The nodes are upgraded one by one; a node joins and gets its share; another is drained and
removed; one dies with its disk and is replaced; all are restarted one by one; the replication factor changes;
partitions move while their leader dies. Each phase reports how long writes took, compared with an idle cluster. At
the end everything is read and checked.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import pytest

from support.cluster_clients import SETTINGS, Load, summary
from support.old_version import old_version
from support.operations import PHASES, Phase, run
from support.seeds import fresh_seed

INTERNAL_TOPIC_SETTINGS = ("offsets.topic.num.partitions", "transaction.state.log.num.partitions")
INTERNAL_PARTITIONS = 6
"""Few, so that each phase mostly deals with the clients' topics, not the internal ones."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Operations on a real cluster under load.")
    parser.add_argument("--phases", nargs="+", choices=list(PHASES), default=list(PHASES), help="in this order")
    parser.add_argument("--copies", type=int, default=3_000, help="records of the transactional copy")
    parser.add_argument("--seed", type=int, default=fresh_seed(), help="the same seed, the same choices")
    parser.add_argument(
        "--diaries", type=Path, help="a folder for what nodes told, and for the data of a run that failed"
    )
    wanted = parser.parse_args(arguments)
    print(f"operations: {', '.join(wanted.phases)}; seed {wanted.seed}", flush=True)
    phases = ["quiet", *(each for each in wanted.phases if each != "quiet")]
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"  {time.strftime('%H:%M:%S')} {time.monotonic() - began:6.1f} s  {line}", flush=True)

    options = [f"--set={name}={text}" for name, text in SETTINGS.items()]
    options += [f"--set={name}={INTERNAL_PARTITIONS}" for name in INTERNAL_TOPIC_SETTINGS]
    with tempfile.TemporaryDirectory(prefix="millpond-operations-", ignore_cleanup_errors=True) as text:
        folder = Path(text)
        source = old_source(folder, phases)
        if source is None and "upgrade" in phases:
            phases.remove("upgrade")
        fault: BaseException | None = None
        findings = None
        try:
            done, outcome = run(folder, phases, wanted.seed, Load(copies=wanted.copies), options, source, tell)
            findings = outcome.findings
            show(done)
            print()
            print(*summary([outcome]), sep="\n")
            print(outcome.findings)
        except Exception as error:
            fault = error
            traceback.print_exc()
            print(f"FAILED with seed {wanted.seed}", file=sys.stderr)
        if wanted.diaries is not None:
            keep(folder, wanted.diaries, with_data=fault is not None or bool(findings))
    return 1 if fault is not None or findings else 0


def keep(folder: Path, diaries: Path, *, with_data: bool) -> None:
    """Keep the nodes' logs; if something is wrong, keep all their files."""
    if with_data:
        shutil.copytree(folder, diaries, dirs_exist_ok=True)
        return
    diaries.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.txt"):
        shutil.copy(path, diaries)


def old_source(folder: Path, phases: Sequence[str]) -> Path | None:
    """The version to upgrade from, if an upgrade is requested and git has that version."""
    if "upgrade" not in phases:
        return None
    try:
        return old_version(folder / "before")
    except pytest.skip.Exception as reason:
        print(f"without the upgrade: {reason}", flush=True)
        return None


def show(phases: Sequence[Phase]) -> None:
    """How long writes took in each phase, and for how long a node stalled; a stall is the machine's fault if the node
    had no core for as long."""
    titles = "".join(f"{title:>9}" for title in ("p50 ms", "p99 ms", "max ms", "still ms", "no core"))
    print(f"\n{'phase':16}{'seconds':>9}{'writes':>10}{titles}")
    for each in phases:
        figures = "".join(f"{1000 * each.percentile(share):9.1f}" for share in (0.5, 0.99, 1.0))
        stand = f"{each.stand.longest_ms:9,}{each.stand.without_core_ms:9,}"
        print(f"{each.name:16}{each.seconds:9.1f}{len(each.latencies):10,}{figures}{stand}")


if __name__ == "__main__":
    sys.exit(main())
