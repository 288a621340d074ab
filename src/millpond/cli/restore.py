"""`millpond restore`: restores a data folder from a backup, or verifies the backup."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from millpond.base.units import show_bytes
from millpond.cli.errors import Failed, cause, sentence
from millpond.cli.options import option
from millpond.cli.terminal import progress_bar
from millpond.cli.text import counted
from millpond.cli.times import show_time
from millpond.config.node import DATA_FOLDER


@click.command("restore")
@click.argument("backup", metavar="DIR", type=click.Path(path_type=Path))
@option("--data", meta="DIR", default=DATA_FOLDER.default, help="The data folder to create; new or empty.")
@click.option("--verify", "only_verify", is_flag=True, help="Only verify the backup.")
def command(backup: Path, data: str, only_verify: bool) -> None:
    """Restore a data folder from the backup in DIR.

    Run an interrupted restore again to continue it; no node starts in the folder before it is complete. A restored
    node of a running cluster rejoins and catches up. If the whole cluster is lost, restore all nodes and run
    `millpond cluster rescue --restored`. See "Backup and restore" in docs/operations.md.

    \b
    Examples:
      millpond restore /mnt/backup --verify
      millpond restore /mnt/backup --data /var/lib/millpond
    """
    from millpond.admin.backup import BackupFault, read_manifest
    from millpond.admin.restore import other_nodes, restore, verify

    try:
        total = read_manifest(backup).size
    except (BackupFault, OSError):
        total = 0
    try:
        with progress_bar(total) as tell:
            if only_verify:
                manifest, faults = verify(backup, tell)
            else:
                manifest, faults = restore(backup, Path(data), tell), []
    except BackupFault as fault:
        raise Failed(sentence(str(fault))) from None
    except OSError as error:
        raise Failed(
            f"The restore stopped ({cause(error)}{f', {error.filename}' if error.filename else ''}). Fix that and "
            "run it again to continue."
        ) from None
    what = (
        f"node {manifest.node_id} of cluster {manifest.cluster_id} at {show_time(manifest.ended_ms)}: "
        f"{counted(manifest.partitions, 'partition')}, {show_bytes(manifest.size)}"
    )
    if faults:
        for fault_text in faults:
            click.echo(fault_text, err=True)
        raise Failed(f"The backup of {what}, is damaged: {len(faults)} of its files are not intact.")
    if only_verify:
        click.echo(f"Whole: {what}.")
    else:
        click.echo(f"Restored {what}.")
        click.echo(_how_to_start(manifest.node_id, data, other_nodes(Path(data))))


def _how_to_start(node_id: int, data: str, others: Sequence[int]) -> str:
    if not others:
        return f"Start it with: millpond up --data {data}"
    names = ", ".join(map(str, others))
    return (
        f"It is one node of a cluster, with {'nodes' if len(others) > 1 else 'node'} {names}. If most of the cluster "
        f"runs, start it as before (millpond up --node {node_id} --cluster nodes.toml --data {data}, or with --join "
        f"HOST:PORT): it catches up first. If you restore all nodes, run "
        f"`millpond cluster rescue --restored --data {data} --data …` over all their folders before any starts."
    )
