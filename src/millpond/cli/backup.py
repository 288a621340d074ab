"""`millpond backup`: a checked copy of a node's data folder, taken while the node runs."""

from __future__ import annotations

from pathlib import Path

import click

from millpond.base.units import show_bytes
from millpond.cli.errors import Failed, cause, sentence
from millpond.cli.options import AS_JSON, option
from millpond.cli.terminal import print_json
from millpond.cli.text import counted
from millpond.cli.times import now_ms
from millpond.config.node import DATA_FOLDER


@click.command("backup")
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
@option("--data", meta="DIR", default=DATA_FOLDER.default, help="The data folder of the node.")
@click.option("--skip-check", is_flag=True, help="Do not check what DIR has already: quicker, but damage stays.")
@AS_JSON
def command(target: Path, data: str, skip_check: bool, as_json: bool) -> None:
    """Copy a node's data to DIR, even while the node runs.

    The checksum of every batch is verified. A second backup to the same DIR copies only what is new, and what has
    been damaged there since. The previous backup stays valid until the new one is complete; run an interrupted backup
    again to continue it. In a cluster, back up every node; see "Backup and restore" in docs/operations.md.

    \b
    Examples:
      millpond backup /mnt/backup
      millpond backup /mnt/backup/node-1 --data /var/lib/millpond
    """
    from millpond.admin.backup import BackupFault, back_up

    if not Path(data).is_dir():
        raise Failed(f"There is no data folder {data}: name it with --data DIR.")
    try:
        result = back_up(Path(data), target, now_ms, checks_stored=not skip_check)
    except BackupFault as fault:
        raise Failed(sentence(str(fault))) from None
    except OSError as error:
        raise Failed(
            f"The backup stopped ({cause(error)}{f', {error.filename}' if error.filename else ''}). Fix that and "
            "run it again to continue; the previous backup is unchanged."
        ) from None
    manifest = result.manifest
    if as_json:
        print_json(
            {
                "cluster": manifest.cluster_id,
                "node": manifest.node_id,
                "partitions": manifest.partitions,
                "files": len(manifest.files),
                "bytes": manifest.size,
                "copied_files": result.copied_files,
                "copied_bytes": result.copied_bytes,
                "one_moment": result.is_one_moment,
                "deleted_meanwhile": list(result.deleted),
                "damaged": {each.path: each.damage for each in manifest.damaged},
            }
        )
    else:
        click.echo(
            f"Node {manifest.node_id} of cluster {manifest.cluster_id}: {counted(manifest.partitions, 'partition')}, "
            f"{show_bytes(manifest.size)}; {show_bytes(result.copied_bytes)} of it copied now."
        )
        for folder in result.deleted:
            click.echo(f"{folder} was deleted during the backup: a restored node has it without records.", err=True)
        if not result.is_one_moment:
            click.echo(
                "The backup is not a consistent snapshot, because transactions kept ending or logs were compacted: "
                "a restored node may have parts of open transactions. Take another backup to be sure.",
                err=True,
            )
    if manifest.damaged:
        for each in manifest.damaged:
            click.echo(f"{each.path}: {each.damage}", err=True)
        raise Failed(
            f"{len(manifest.damaged)} files are damaged in the data folder and were copied as they are: a "
            "restored node truncates those logs there. In a cluster, other replicas have the records."
        )
