"""Shows a plan of moves, asks, and runs it with a progress bar."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from millpond.base.units import read_byte_rate, show_byte_rate, show_bytes
from millpond.cli.stop import stop_on
from millpond.cli.terminal import confirm, print_json, print_table
from millpond.cli.text import counted
from millpond.cli.times import show_span

if TYPE_CHECKING:
    from millpond.admin.placement import PlannedMove
    from millpond.admin.waves import Outcome, Progress
    from millpond.base.ids import TopicPartition
    from millpond.remote.cluster import Cluster

SHOWN_MAX: Final = 50
NAMED_MAX: Final = 10
LINE_SECONDS: Final = 10.0
"""How often progress is printed without a terminal."""

F = TypeVar("F", bound=Callable[..., Any])


def _rate(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        rate = round(read_byte_rate(text))
    except ValueError as fault:
        raise click.BadParameter(f"{fault}.") from None
    if rate < 1:
        raise click.BadParameter("it must be at least a byte per second.")
    return rate


def move_options(function: F) -> F:
    """The options of every command that moves partitions: --rate, --dry-run, --yes, --json."""
    for add in (
        click.option("--json", "as_json", is_flag=True, help="The plan and its outcome as one JSON object."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Only show the plan."),
        click.option(
            "--rate",
            metavar="BYTES/S",
            callback=_rate,
            help="Limit of each node, in and out, like 50MB/s. [default: no limit]",
        ),
    ):
        function = add(function)
    return function


def run_plan(
    cluster: Cluster,
    moves: Sequence[PlannedMove],
    *,
    yes: bool,
    rate: int | None = None,
    dry_run: bool = False,
    as_json: bool = False,
    otherwise: str = "Everything is in place already.",
    to_elect: Sequence[TopicPartition] = (),
    on_yes: Callable[[], None] | None = None,
) -> None:
    """Shows the plan, asks, and runs it. Ctrl-C cancels moves that are under way. The exit code is 0 only if all
    moved.

    For the partitions `to_elect`, the first replica is elected leader, too. `on_yes` is called before anything moves.
    """
    from millpond.admin.moves import elect_first
    from millpond.admin.waves import Outcome, run_moves

    if not as_json:
        if moves:
            show_plan(moves, rate)
        if to_elect:
            click.echo(f"{counted(len(to_elect), 'partition')} to be led by the first replica again.")
        if not moves and not to_elect:
            click.echo(otherwise)
    if dry_run or not (moves or to_elect):
        if not dry_run:
            _clear_limits(cluster)
        if as_json:
            print_json(_as_json(moves, rate, None if dry_run else Outcome()))
        return
    confirm("Move them?" if moves else "Go on?", yes=yes, to_do="go on without asking")
    if on_yes is not None:
        on_yes()
    elect_first(cluster, to_elect)
    with stop_on(signal.SIGINT, signal.SIGTERM) as stop, _progress() as tell:
        outcome = run_moves(cluster, moves, stop=stop, tell=tell, rate=rate)
    if as_json:
        print_json(_as_json(moves, rate, outcome))
    else:
        _show_outcome(outcome, was_stopped=stop.is_requested)
    if not outcome.is_done:
        raise SystemExit(130 if stop.is_requested else 1)


def _clear_limits(cluster: Cluster) -> None:
    """Nothing to move, but an earlier run may have left a rate limit."""
    from millpond.admin.throttle import clear_throttle

    clear_throttle(cluster)


def show_plan(moves: Sequence[PlannedMove], rate: int | None = None) -> None:
    """What moves where, how much is copied, and how long that takes."""
    from millpond.admin.placement import seconds_at

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
    line = f"{counted(len(moves), 'partition')} to move, {show_bytes(total)} to copy"
    if rate is not None and total:
        line += f": {show_span(1000 * seconds_at(moves, rate))} or more at {show_byte_rate(rate)} a node"
    click.echo(f"{line}.")


def _show_outcome(outcome: Outcome, *, was_stopped: bool) -> None:
    moved = f"Moved {counted(len(outcome.moved), 'partition')}."
    if outcome.is_done:
        click.echo(moved)
    else:
        click.echo(f"Stopped. {moved}" if was_stopped else moved, err=True)
    for moves, what in (
        (outcome.called_off, "cancelled, unchanged"),
        (outcome.going_on, "not cancelled, because too few old replicas are in sync: still moving"),
        (outcome.overtaken, "moved, cancelled or deleted by another command"),
        (outcome.waiting, "not begun"),
    ):
        if moves:
            click.echo(f"{counted(len(moves), 'partition')} {what}: {_named(moves)}", err=True)
    for _, reason in outcome.refused[:NAMED_MAX]:
        click.echo(reason, err=True)
    if len(outcome.refused) > NAMED_MAX:
        click.echo(f"and {counted(len(outcome.refused) - NAMED_MAX, 'more refusal')}", err=True)
    if was_stopped and not outcome.is_done:
        click.echo("Run the same command to continue.", err=True)
    if outcome.is_limited:
        click.echo(
            "The rate limit stays, because partitions are still moving or out of sync: the next "
            "command that moves partitions removes it.",
            err=True,
        )


def _named(moves: Sequence[PlannedMove]) -> str:
    names = ", ".join(move.partition.folder for move in moves[:NAMED_MAX])
    return names + (" …" if len(moves) > NAMED_MAX else "")


def _as_json(moves: Sequence[PlannedMove], rate: int | None, outcome: Outcome | None) -> dict[str, object]:
    from millpond.admin.placement import seconds_at

    fields: dict[str, object] = {
        "moves": [
            {
                "topic": move.partition.topic,
                "partition": move.partition.partition,
                "from": move.before,
                "to": move.target,
                "bytes_to_copy": move.bytes_to_copy,
            }
            for move in moves
        ],
        "bytes_to_copy": sum(move.bytes_to_copy for move in moves),
        "rate": rate,
        "seconds": None if rate is None else round(seconds_at(moves, rate), 1),
    }
    if outcome is not None:
        for name in ("moved", "called_off", "going_on", "overtaken", "waiting"):
            fields[name] = [move.partition.folder for move in getattr(outcome, name)]
        fields["refused"] = {move.partition.folder: reason for move, reason in outcome.refused}
    return fields


@contextmanager
def _progress() -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal, otherwise occasional lines; both on standard error."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(None), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(progress: Progress) -> None:
            bar.update(
                task,
                description=f"{progress.moved}/{progress.moves}",
                total=max(progress.bytes_to_copy, 1),
                completed=progress.copied_bytes,
            )

        yield tell


def _lines() -> Callable[[Progress], None]:
    shown_at = time.monotonic()

    def tell(progress: Progress) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at < LINE_SECONDS or progress.moved == progress.moves:
            return
        shown_at = time.monotonic()
        copied, total = show_bytes(progress.copied_bytes), show_bytes(progress.bytes_to_copy)
        click.echo(f"{progress.moved} of {counted(progress.moves, 'partition')} moved, {copied} of {total}", err=True)

    return tell
