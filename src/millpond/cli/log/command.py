"""`millpond log dump`: shows any file of a data folder, of Millpond or Kafka, read-only."""

from __future__ import annotations

import os
from typing import Final

import click

from millpond.cli.errors import Failed, cause
from millpond.log import names

_KEPT_AS: Final = (names.CLEANED, names.SWAP, names.DELETED, names.CUT)
"""Suffixes of files that are being replaced or deleted; their content is the same."""


@click.group("log")
def command() -> None:
    """Inspect the files of a data folder.

    \b
    Example:
      millpond log dump millpond-data/orders-0/00000000000000000000.log
    """


@command.command("dump")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--records", is_flag=True, help="Show every record of every batch.")
@click.option("--deep", is_flag=True, help="Decompress and decode all records to check them, without showing them.")
@click.option("-j", "--json-lines", is_flag=True, help="Each batch or entry as a line of JSON.")
def dump_command(file: str, records: bool, deep: bool, json_lines: bool) -> int:
    """Show the content of a file in a data folder, and check it.

    Reads segments (.log), .index, .timeindex, .txnindex, .snapshot, leader-epoch-checkpoint, the other checkpoints
    and partition.metadata. The CRC of every batch is checked. The exit code is 1 for a torn or damaged file. It is
    safe while a node runs, but the last batch may be incomplete then.

    \b
    Examples:
      millpond log dump millpond-data/orders-0/00000000000000000000.log
      millpond log dump millpond-data/orders-0/00000000000000000000.log --records
      millpond log dump millpond-data/orders-0/leader-epoch-checkpoint
      millpond log dump millpond-data/orders-0/00000000000000000000.log -j | jq .size
    """
    name = os.path.basename(file)
    for suffix in _KEPT_AS:
        name = name.removesuffix(suffix)
    try:
        return _dump(file, name, records=records, deep=deep, as_json=json_lines)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise Failed(f"{file} cannot be read: {cause(error)}.") from None


def _dump(file: str, name: str, *, records: bool, deep: bool, as_json: bool) -> int:
    from millpond.cli.log.batches import dump_batches
    from millpond.cli.log.files import DUMPS

    offset, suffix = names.read_offset_name(name) or (0, os.path.splitext(name)[1])
    if suffix == names.LOG:
        return dump_batches(file, records=records, deep=deep, for_programs=as_json)
    dump = DUMPS.get(suffix) or DUMPS.get(name) or (DUMPS["-checkpoint"] if name.endswith("-checkpoint") else None)
    if dump is None:
        raise Failed(
            f"{name} cannot be shown: give a .log, .index, .timeindex, .txnindex or .snapshot file, "
            "a checkpoint or partition.metadata."
        )
    with open(file, "rb") as source:
        return dump(source.read(), offset, as_json)
