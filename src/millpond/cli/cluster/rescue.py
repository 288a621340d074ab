"""`millpond cluster rescue`: shows what may be lost, asks, and builds a new quorum from the survivors."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from millpond.broker.data_folder.rescue_marker import ORDER_FILE
from millpond.broker.rescue.order import Order, begin, carry_out, check_order, decode_order, order_of
from millpond.broker.rescue.plan import Fate, PartitionFate, Plan, Wish, choose_source, plan_rescue
from millpond.broker.rescue.survivor import CannotRescue, Survivor, read_survivor
from millpond.cli.errors import Failed, cause, sentence
from millpond.cli.terminal import print_json, print_table
from millpond.cli.times import now_ms, show_time
from millpond.log.names import LOCK_FILE
from millpond.node.disk import RealDisk

PROBE_SECONDS: Final = 1.0
SHOWN_MAX: Final = 40
"""At most this many partitions are listed; --json has all."""


@dataclass(frozen=True, slots=True)
class RescueOptions:
    """The options of the command."""

    folders: tuple[str, ...]
    elsewhere: frozenset[int]
    source: int | None
    wish: Wish
    order: str | None
    order_out: str | None
    as_json: bool


def rescue(options: RescueOptions, *, act: bool, yes: bool) -> None:
    disk = RealDisk()
    folders = [folder.rstrip("/") or "/" for folder in options.folders]
    try:
        with _taken(disk, folders):
            begun = [each for each in folders if disk.exists(f"{each}/{ORDER_FILE}")]
            if begun:
                _go_on(disk, begun, act=act)
            elif options.order is not None:
                _follow(disk, folders, options.order, act=act, yes=yes)
            else:
                _decide(disk, folders, options, act=act, yes=yes)
    except CannotRescue as fault:
        raise Failed(f"{sentence(str(fault))} Nothing was changed.") from None
    except OSError as error:
        raise Failed(
            f"The rescue stopped ({cause(error)}{f', {error.filename}' if error.filename else ''}). When that is "
            "fixed, run the same command again to continue."
        ) from None


@contextmanager
def _taken(disk: RealDisk, folders: Sequence[str]) -> Iterator[None]:
    """Locks the folders: no node starts in them meanwhile."""
    with ExitStack() as stack:
        for folder in folders:
            if not Path(folder).is_dir():
                raise CannotRescue(f"there is no folder {folder}")
            try:
                lock = disk.lock(f"{folder}/{LOCK_FILE}")
            except BlockingIOError:
                raise CannotRescue(f"the node of {folder} is running: stop it first") from None
            stack.callback(lock.release)
        yield


def _go_on(disk: RealDisk, folders: Sequence[str], *, act: bool) -> None:
    """Finishes a rescue that was begun: the folder is useless before that."""
    for folder in folders:
        if not act:
            raise Failed(f"A rescue of {folder} was interrupted: add --act to continue it.")
        order = decode_order(disk.read(f"{folder}/{ORDER_FILE}"))
        carry_out(disk, folder, order)
        click.echo(f"{folder}: the interrupted rescue is complete.")


def _follow(disk: RealDisk, folders: Sequence[str], path: str, *, act: bool, yes: bool) -> None:
    try:
        order = decode_order(Path(path).read_bytes())
    except OSError as error:
        raise CannotRescue(f"--order {path} cannot be read: {cause(error)}") from None
    survivors = [read_survivor(disk, folder) for folder in folders]
    for survivor in survivors:
        check_order(order, survivor)
        click.echo(
            f"{survivor.folder}: node {survivor.node_id} takes over the metadata of node {order.source[0]} (epoch "
            f"{order.source[1]}, offset {order.source[2]:,}); its own end at epoch {survivor.last_epoch}, offset "
            f"{survivor.end_offset:,}."
        )
    if not act:
        click.echo("Nothing was changed. Add --act to do it.")
        return
    _confirm(order.cluster_id, yes=yes)
    _carry_out(disk, survivors, order)
    click.echo(f"Done. Start {_nodes(each.node_id for each in survivors)}.")


def _decide(disk: RealDisk, folders: Sequence[str], options: RescueOptions, *, act: bool, yes: bool) -> None:
    survivors = [read_survivor(disk, folder) for folder in folders]
    source = choose_source(survivors, options.source)
    wish = replace(
        options.wish, unclean=_matching(source, options.wish.unclean), empty=_matching(source, options.wish.empty)
    )
    now = show_time(now_ms())
    plan = plan_rescue(survivors, source, now, elsewhere=options.elsewhere, wish=wish)
    away = sorted(set(plan.survivors) - {each.node_id for each in survivors})
    if away and act and options.order_out is None:
        raise click.UsageError("--survivor needs --order-out FILE, an order for the other survivors.")
    answering = _answering(plan)
    if options.as_json:
        print_json(_as_json(plan, survivors, answering))
    else:
        _show(plan, survivors, answering)
    if not act:
        if not options.as_json:
            click.echo("\nNothing was changed. Add --act to do it.")
        return
    if answering:
        node_id, address = answering[0]
        raise CannotRescue(
            f"node {node_id} is not lost: {address} answers. If most nodes are alive, nothing needs rescue; "
            "otherwise stop it first, or name it with --survivor"
        )
    _confirm(str(source.identity.cluster_id), yes=yes)
    order = order_of(plan, now_ms())
    if options.order_out is not None:
        # Before anything is changed: without the order the other survivors could not follow.
        disk.replace(str(Path(options.order_out).absolute()), order.encode())
    _carry_out(disk, [each for each in survivors if each.node_id in plan.survivors], order)
    _say_what_next(plan, away, options.order_out)


def _matching(source: Survivor, names: frozenset[str]) -> frozenset[str]:
    """`all` means every topic."""
    return frozenset(source.image.topics) if "all" in names else names


def _carry_out(disk: RealDisk, survivors: Sequence[Survivor], order: Order) -> None:
    for survivor in survivors:
        check_order(order, survivor)
    for survivor in survivors:
        begin(disk, survivor, order)
    for survivor in survivors:
        carry_out(disk, survivor.folder, order)


def _confirm(cluster_id: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("There is no terminal to ask on: add --yes-lose-data to skip the question.")
    typed = click.prompt(
        "\nLost data cannot be recovered. Type the cluster's id to continue", default="", show_default=False
    )
    if typed.strip() != cluster_id:
        raise CannotRescue("that is not the cluster's id")


def _answering(plan: Plan) -> list[tuple[int, str]]:
    """Lost nodes whose address still accepts connections."""
    answering = []
    for node_id in plan.lost:
        broker = plan.source.image.brokers.get(node_id)
        for end_point in broker.end_points if broker is not None else ():
            try:
                with socket.create_connection((end_point.host, end_point.port), PROBE_SECONDS):
                    answering.append((node_id, f"{end_point.host}:{end_point.port}"))
            except OSError:
                continue
    return answering


# What is shown.


def _show(plan: Plan, survivors: Sequence[Survivor], answering: Sequence[tuple[int, str]]) -> None:
    source = plan.source
    click.echo(f"Cluster {source.identity.cluster_id}, as {_nodes(each.node_id for each in survivors)} left it")
    for each in sorted(survivors, key=lambda one: one.node_id):
        mark = " (used)" if each is source and len(survivors) > 1 else ""
        click.echo(
            f"  node {each.node_id}: metadata of epoch {each.last_epoch} up to offset {each.end_offset:,}, known to "
            f"be committed up to {each.committed_offset:,}{mark}"
        )
        for note in each.notes:
            click.echo(f"    {note}")
    here = [each for each in source.voters if each in plan.survivors]
    click.echo(f"  voters: {_list(source.voters)}; {_list(here) or 'none'} of them survived")
    for node_id, address in answering:
        click.echo(f"  node {node_id} does not look lost: {address} answers")
    click.echo("\nThe rescue")
    becomes = "become" if len(plan.voters) > 1 else "becomes"
    click.echo(f"  {_nodes(plan.voters)} {becomes} the quorum, in epoch {plan.epoch}")
    are = "are removed" if len(plan.lost) > 1 else "is removed"
    click.echo(f" {_nodes(plan.lost)} {are} from the cluster: their old folders are refused")
    click.echo("\nPossible losses")
    click.echo(f" metadata: all changes after offset {source.end_offset:,} (topics, settings, members)")
    if plan.uncertain:
        click.echo(f" the last {plan.uncertain:,} offsets before that are kept, though perhaps never acknowledged")
    kept = plan.count(Fate.KEPT)
    click.echo(f"  records: {kept:,} of {len(plan.partitions):,} partitions have a replica that was in sync")
    if kept:
        click.echo(" (records of replicas that joined the ISR, or led alone, after that metadata are lost)")
    _show_partitions([each for each in plan.partitions if each.fate is not Fate.KEPT])
    if plan.count(Fate.BEHIND):
        click.echo("\n --unclean TOPIC (or all) brings offline partitions back with the records that are left")
    if plan.count(Fate.LOST):
        click.echo("\n --start-empty TOPIC (or all) recreates lost partitions, empty")


def _show_partitions(fates: Sequence[PartitionFate]) -> None:
    if not fates:
        return
    click.echo()
    columns = ("PARTITION", "BECOMES", "LAST ISR", "HAS UP TO", "LACKS", "LAST WRITTEN")
    rows = [
        (
            f"{each.topic}-{each.index}",
            f"{each.fate.value}" + (f", led by {each.leader}" if each.leader >= 0 else ""),
            _list(each.was_in_sync) or "-",
            each.has.end_offset if each.has is not None else "?" if each.fate is Fate.BEHIND else "-",
            f"{each.missing_min:,} or more" if each.has is not None else "-",
            f"{show_time(each.has.last_ms)[:-5]}Z" if each.has is not None and each.has.last_ms >= 0 else "-",
        )
        for each in fates[:SHOWN_MAX]
    ]
    print_table(columns, rows, words=3)
    if len(fates) > SHOWN_MAX:
        click.echo(f"… and {len(fates) - SHOWN_MAX:,} more; --json lists all")


def _say_what_next(plan: Plan, away: Sequence[int], order_out: str | None) -> None:
    click.echo(f"\nDone: this is rescue {plan.rescues} of the cluster. The old metadata is kept in the folder.")
    if away:
        click.echo(
            f"On {_nodes(away)}: millpond cluster rescue --data DIR --order {order_out} --act (copy the file there)"
        )
    click.echo(f"Now start {_nodes(plan.survivors)} as usual; their lists of nodes may stay as they are.")
    if plan.lost:
        click.echo(f"Replacements for {_nodes(plan.lost)} may join, with empty folders and any number.")


def _as_json(plan: Plan, survivors: Sequence[Survivor], answering: Sequence[tuple[int, str]]) -> dict[str, object]:
    return {
        "cluster": plan.source.identity.cluster_id,
        "folders": [
            {
                "node": each.node_id,
                "folder": each.folder,
                "epoch": each.last_epoch,
                "end_offset": each.end_offset,
                "committed_offset": each.committed_offset,
                "notes": list(each.notes),
            }
            for each in survivors
        ],
        "from": plan.source.node_id,
        "voters_before": list(plan.source.voters),
        "voters": list(plan.voters),
        "survivors": list(plan.survivors),
        "lost": list(plan.lost),
        "answering": [node_id for node_id, _ in answering],
        "epoch": plan.epoch,
        "rescues": plan.rescues,
        "partitions": [
            {
                "topic": each.topic,
                "partition": each.index,
                "fate": each.fate.value,
                "leader": each.leader,
                "in_sync_were": list(each.was_in_sync),
                "end_offset": each.has.end_offset if each.has is not None else None,
                "lacks_at_least": each.missing_min,
                "last_written_ms": each.has.last_ms if each.has is not None else None,
            }
            for each in plan.partitions
        ],
    }


def _list(node_ids: Iterable[int]) -> str:
    return ", ".join(map(str, node_ids))


def _nodes(node_ids: Iterable[int]) -> str:
    ids = sorted(node_ids)
    return f"node{'s' if len(ids) > 1 else ''} {_list(ids)}" if ids else "no node"
