"""A plan of moves: shown first, then run with its progress until it has ended or somebody stops it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from millpond.cli.stop import Stop, noted
from millpond.cli.terminal import confirm, print_table, progress_bar
from millpond.cli.text import counted
from millpond.cli.units import show_bytes

if TYPE_CHECKING:
    from millpond.admin.placement import Planned
    from millpond.remote.cluster import Cluster

LOOK_SECONDS: Final = 0.5
SHOWN_MAX: Final = 50


def show_plan(moves: Sequence[Planned]) -> None:
    """Who goes where, and what has to be copied."""
    print_table(
        ("Partition", "From", "To", "To copy"),
        [
            (
                move.partition.folder,
                ",".join(map(str, move.before)),
                ",".join(map(str, move.target)),
                show_bytes(move.bytes_to_copy),
            )
            for move in moves[:SHOWN_MAX]
        ],
        words=3,
    )
    if len(moves) > SHOWN_MAX:
        click.echo(f"and {counted(len(moves) - SHOWN_MAX, 'partition')} more")
    total = sum(move.bytes_to_copy for move in moves)
    click.echo(f"{counted(len(moves), 'partition')} to move, {show_bytes(total)} to copy.")


def run_plan(cluster: Cluster, moves: Sequence[Planned], *, yes: bool) -> None:
    """Show it, ask, run it. On Ctrl-C what is under way is called off."""
    from millpond.admin.moves import begin_moves

    if not moves:
        click.echo("Everything is there already.")
        return
    show_plan(moves)
    confirm("Move them?", yes=yes, to_do="move them without a question")
    with noted(signal.SIGINT, signal.SIGTERM) as stop:
        begin_moves(cluster, {move.partition: move.target for move in moves})
        ended = _wait(cluster, moves, stop)
    if ended:
        click.echo(f"Moved {counted(len(moves), 'partition')}.")
        return
    _call_off(cluster, moves)
    raise SystemExit(130)


def _wait(cluster: Cluster, moves: Sequence[Planned], stop: Stop) -> bool:
    """Until all have ended; False if somebody wants to stop."""
    from millpond.admin.moves import copied_bytes, moves_under_way

    total = sum(move.bytes_to_copy for move in moves)
    with progress_bar(total) as tell:
        while not stop.is_asked:
            under_way = moves_under_way(cluster)
            left = [move for move in moves if move.partition in under_way]
            if not left:
                tell(total)
                return True
            copied = copied_bytes(cluster, left)
            tell(sum(move.bytes_to_copy for move in moves) - sum(move.bytes_to_copy for move in left) + copied)
            stop.wait(LOOK_SECONDS)
    return False


def _call_off(cluster: Cluster, moves: Sequence[Planned]) -> None:
    from millpond.admin.moves import call_off, moves_under_way

    under_way = moves_under_way(cluster)
    mine = [move.partition for move in moves if move.partition in under_way]
    call_off(cluster, mine)
    left = [each for each in mine if each in moves_under_way(cluster)]
    click.echo(
        f"Stopped: {counted(len(moves) - len(mine), 'partition')} moved, {counted(len(mine) - len(left), 'move')} "
        "called off: those partitions are where they were.",
        err=True,
    )
    if left:
        names = ", ".join(each.folder for each in left)
        click.echo(f"Not called off, because too few of the old replicas are in sync; it goes on: {names}", err=True)
