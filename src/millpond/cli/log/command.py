"""`millpond log dump`: a look into any file of a data folder, of ours or of Kafka's, without touching it."""

from __future__ import annotations

import os
from typing import Final

import click

from millpond.cli.errors import Failed
from millpond.log import names

_KEPT_AS: Final = (names.CLEANED, names.SWAP, names.DELETED, names.CUT)
"""What a file's name may end in while it comes or goes; inside it is the same."""


@click.group("log")
def command() -> None:
    """Look into the files of a data folder.

    \b
    Example:
      millpond log dump millpond-data/orders-0/00000000000000000000.log
    """


@command.command("dump")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--records", is_flag=True, help="Show every record of every batch.")
@click.option("--deep", is_flag=True, help="Decompress and decode all records to check them, without showing them.")
def dump_command(file: str, records: bool, deep: bool) -> int:
    """Show what a file of a data folder holds, and whether it is whole.

    Reads segments (.log), .index, .timeindex, .txnindex, .snapshot, leader-epoch-checkpoint, the other checkpoints
    and partition.metadata. Every batch's CRC is checked. The exit code is 1 for a torn or damaged file. It is safe
    while a node runs, which may just be writing the last batch.

    \b
    Examples:
      millpond log dump millpond-data/orders-0/00000000000000000000.log
      millpond log dump millpond-data/orders-0/00000000000000000000.log --records
      millpond log dump millpond-data/orders-0/leader-epoch-checkpoint
    """
    name = os.path.basename(file)
    for suffix in _KEPT_AS:
        name = name.removesuffix(suffix)
    try:
        return _dump(file, name, records=records, deep=deep)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise Failed(f"{file} cannot be read: {(error.strerror or str(error)).lower()}.") from None


def _dump(file: str, name: str, *, records: bool, deep: bool) -> int:
    from millpond.cli.log import files as dump_files

    offset, suffix = names.read_offset_name(name) or (0, os.path.splitext(name)[1])
    match suffix:
        case names.LOG:
            from millpond.cli.log.batches import dump_batches

            return dump_batches(file, records=records, deep=deep)
        case names.OFFSET_INDEX:
            return dump_files.dump_offset_index(_read(file), offset)
        case names.TIME_INDEX:
            return dump_files.dump_time_index(_read(file), offset)
        case names.TXN_INDEX:
            return dump_files.dump_aborted_index(_read(file))
        case names.SNAPSHOT:
            return dump_files.dump_snapshot(_read(file))
    if name == names.METADATA_FILE:
        return dump_files.dump_partition_metadata(_read(file))
    if name.endswith("-checkpoint"):
        return dump_files.dump_checkpoint(_read(file))
    raise Failed(
        f"{name} is none of the files that can be shown: .log, .index, .timeindex, .txnindex, .snapshot, "
        "a checkpoint or partition.metadata."
    )


def _read(file: str) -> bytes:
    with open(file, "rb") as source:
        return source.read()
