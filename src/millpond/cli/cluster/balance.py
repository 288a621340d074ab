"""`millpond cluster balance`: spreads replicas and leaders evenly, after showing the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from millpond.base.units import show_bytes
from millpond.cli.moves import run_plan
from millpond.cli.terminal import print_table
from millpond.cli.text import can_show, counted

if TYPE_CHECKING:
    from millpond.admin.placement import Placement, PlannedMove
    from millpond.remote.cluster import Cluster


def run_balance(
    cluster: Cluster,
    *,
    only_leaders: bool,
    measure_ms: int,
    rate: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    from millpond.admin.balance import plan_balance, plan_leaders, unled
    from millpond.admin.moves import read_placement
    from millpond.admin.workload import measure_traffic

    traffic = measure_traffic(cluster, measure_ms / 1000) if measure_ms else {}
    placement = read_placement(cluster)
    moves = plan_leaders(placement, traffic) if only_leaders else plan_balance(placement, traffic)
    to_elect = unled(placement, moves)
    if not as_json:
        _warn(placement, moves)
        if moves or to_elect:
            _show_shares(placement, moves)
            click.echo()
    run_plan(
        cluster,
        moves,
        yes=yes,
        rate=rate,
        dry_run=dry_run,
        as_json=as_json,
        otherwise="The cluster is balanced: there is nothing to move.",
        to_elect=to_elect,
    )


def _warn(placement: Placement, moves: Sequence[PlannedMove]) -> None:
    """Notes on what cannot be balanced now."""
    from millpond.admin.balance import stuck_on_drained

    away = sorted({node for held in placement.partitions.values() for node in held.replicas} - {*placement.racks})
    if away:
        nodes = ", ".join(map(str, away))
        click.echo(f"Offline, so nothing moves from or to it: node {nodes}.", err=True)
    behind = [
        held
        for held in placement.partitions.values()
        if not held.is_moving and not set(held.replicas) <= {*held.in_sync, *placement.drained}
    ]
    if behind:
        click.echo(f"{counted(len(behind), 'partition')} with a replica out of sync will not move.", err=True)
    if stuck := stuck_on_drained(placement, moves):
        click.echo(f"Too few nodes to move {counted(len(stuck), 'partition')} away from drained ones.", err=True)


def _show_shares(placement: Placement, moves: Sequence[PlannedMove]) -> None:
    from millpond.admin.balance import shares

    now, then = shares(placement), shares(placement, moves)
    arrow = "→" if can_show("→") else "->"

    def change(before: str, after: str) -> str:
        return before if before == after else f"{before} {arrow} {after}"

    racks = ("Rack",) if any(placement.racks.values()) else ()
    print_table(
        ("Node", *racks, "Replicas", "Bytes", "Leads"),
        [
            (
                f"{node} (drained)" if node in placement.drained else str(node),
                *(placement.racks[node] for _ in racks),
                change(str(now[node].replicas), str(then[node].replicas)),
                change(show_bytes(now[node].size_bytes), show_bytes(then[node].size_bytes)),
                change(str(now[node].leads), str(then[node].leads)),
            )
            for node in now
        ],
        words=1 + len(racks),
    )
