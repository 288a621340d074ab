"""One campaign on a real cluster: clients work, faults are injected, and in the end every guarantee is checked."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from millpond.testing import Ponds
from support.cluster_clients import ClusterClients, Load, Outcome
from support.cluster_disks import Disks
from support.cluster_faults import FAULTS, FaultTarget

Progress = Callable[[int, str, float, Outcome], None]


def run(
    cluster: Ponds,
    faults: Sequence[str],
    seed: int,
    load: Load,
    disks: Disks | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Inject faults in sequence into a running cluster; each ends, and writes resume, before the next one."""
    clients = ClusterClients(cluster, Path(cluster.folder), load)
    outcome = clients.outcome
    target = FaultTarget(cluster, random.Random(seed), tuple(clients.topics), disks)

    def wait_for_writes() -> None:
        clients.wait_for_writes(lambda: _story(cluster))

    began = time.monotonic()
    clients.start()
    try:
        wait_for_writes()
        for number, name in enumerate(faults, 1):
            at = time.monotonic()
            FAULTS[name](target)
            wait_for_writes()
            seconds = time.monotonic() - at
            outcome.faults[name] += 1
            outcome.silences.setdefault(name, []).append(seconds)
            outcome.acked = clients.acked
            if progress is not None:
                progress(number, name, seconds, outcome)
            target.wait((0.0, 1.0))
        cluster.heal()
        cluster.start()
        target.wait_until_whole()
        clients.judge()
    finally:
        clients.stop()
    outcome.seconds = time.monotonic() - began
    return outcome


def _story(cluster: Ponds) -> str:
    lines = [f"node {node.node_id}: {line}" for node in cluster for line in node.journal[-15:]]
    return "\n".join(lines)
