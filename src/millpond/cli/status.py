"""`millpond status`: the health of a node or a cluster, with an exit code for scripts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, assert_never

import click

from millpond.admin import concerns
from millpond.base.settings import SettingError
from millpond.base.spans import read_span
from millpond.base.units import read_bytes, show_bytes
from millpond.cli.access import Access, cluster_options
from millpond.cli.addresses import HERE, METRICS_DEFAULT, metrics_address, shown_address
from millpond.cli.console_process import OFF
from millpond.cli.errors import Failed, cause
from millpond.cli.options import AS_JSON, option
from millpond.cli.terminal import print_json, print_table
from millpond.cli.text import NOTHING, counted, safe
from millpond.cli.times import show_span
from millpond.config.node import host_and_port

if TYPE_CHECKING:
    from millpond.admin.concerns import Concern
    from millpond.admin.health import DiskFacts, Health

COLUMNS: Final = ("Node", "Address", "State", "Leads", "In sync", "Disk free", "Data")
NAMES_MAX: Final = 5
HEALTHZ_SECONDS: Final = 10.0


@click.command("status")
@option("--behind", default="5m", meta="SPAN", help="A group or queue is late when its oldest record is older.")
@option("--free", default="1GiB", meta="SIZE", help="A disk with less free space than this is nearly full.")
@click.option("--alive", is_flag=True, help="Only check that a node answers: for liveness probes.")
@click.option(
    "--healthz",
    is_flag=True,
    help="Only check /healthz of the node on this machine, which needs no login; see MILLPOND_METRICS.",
)
@AS_JSON
@cluster_options
def command(behind: str, free: str, alive: bool, healthz: bool, as_json: bool, access: Access) -> int:
    """Show the health of nodes, disks and coordinators, and groups and queues that fall behind.

    The exit code is 0 if all is well, and 1 if something is wrong or no node answers.

    \b
    Examples:
      millpond status
      millpond status --behind 30s --free 20GB || echo look at it
      millpond status --alive
      millpond status --healthz
    """
    if healthz:
        _ask_healthz(os.environ.get("MILLPOND_METRICS") or METRICS_DEFAULT)
        if as_json:
            print_json({"is_alive": True})
        else:
            click.echo("It answers.")
        return 0
    from millpond.admin.dead_letters.topics import waiting_letters
    from millpond.admin.health import read_health

    behind_ms, free_bytes = _span_ms(behind), _size(free)
    with access.open() as cluster:
        if alive:
            # Only the given address: the advertised one may not be reachable from here.
            node_count = len(cluster.addresses())
            if as_json:
                print_json({"is_alive": True, "nodes": node_count})
            else:
                click.echo(f"The cluster answers; {counted(node_count, 'node')}.")
            return 0
        health = read_health(cluster)
        letters = waiting_letters(cluster)
    problems = [problem(each) for each in concerns.find_concerns(health, behind_ms, free_bytes, letters)]
    if as_json:
        print_json(_as_object(health, problems) | {"dead_letters": letters})
        return bool(problems)
    print_table(COLUMNS, _rows(health), words=len(COLUMNS))
    lag = sum(each.lag for each in health.groups)
    click.echo(
        f"{counted(len(health.groups) + health.groups_left_out, 'group')}, {counted(lag, 'record')} unread; "
        f"cluster {health.nodes.cluster_id}"
    )
    if health.queues:
        waiting = sum(each.waiting for each in health.queues)
        click.echo(f"{counted(len(health.queues), 'queue')}, {counted(waiting, 'record')} waiting")
    if internal := sum(node.internal.leads for node in health.nodes.nodes):
        click.secho(f"The table leaves out {counted(internal, 'partition')} of internal topics.", dim=True)
    for sentence in problems:
        click.secho(f"! {sentence}", fg="red")
    if not problems:
        click.echo("All is well.")
    return bool(problems)


def _ask_healthz(listener: str) -> None:
    """Fails unless /healthz at this address answers."""
    from http.client import HTTPConnection, HTTPException

    if listener.lower() in OFF:
        raise Failed("MILLPOND_METRICS is off, so this node has no /healthz: give it an address, or use --alive.")
    try:
        host, port = host_and_port(metrics_address(listener))
    except SettingError as fault:
        raise click.UsageError(f"MILLPOND_METRICS={listener}: {fault}.") from None
    host = HERE.get(host, host)
    connection = HTTPConnection(host, port, timeout=HEALTHZ_SECONDS)
    try:
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        reason = cause(error) if isinstance(error, OSError) else str(error)
        raise Failed(f"http://{shown_address(host, port)}/healthz does not answer: {reason}.") from None
    finally:
        connection.close()
    if status != 200:
        raise Failed(f"http://{shown_address(host, port)}/healthz answers with status {status}.")


def _span_ms(text: str) -> int:
    span_ms = read_span(text)
    if span_ms is None:
        raise click.UsageError(f"--behind {text}: give a span as 30s, 5m or 2h.")
    return span_ms


def _size(text: str) -> int:
    try:
        return int(read_bytes(text))
    except ValueError as fault:
        raise click.UsageError(f"--free {text}: {fault}.") from None


def _rows(health: Health) -> list[tuple[str, ...]]:
    disks: dict[int, DiskFacts] = {each.node_id: each for each in health.disks}
    rows: list[tuple[str, ...]] = []
    for node in health.nodes.nodes:
        disk = disks.get(node.node_id)
        held = node.without_internal
        state = "away" if node.address is None else "controller" if node.is_controller else "ready"
        rows.append(
            (
                str(node.node_id),
                node.address or NOTHING,
                state,
                f"{held.leads:,}",
                f"{held.in_sync:,} of {held.replicas:,}",
                NOTHING if disk is None else _room(disk),
                NOTHING if disk is None else safe(disk.folder, in_line=True),
            )
        )
    return rows


def _room(disk: DiskFacts) -> str:
    if disk.is_failed:
        return "failed"
    if disk.free_bytes is None:
        return NOTHING
    share = f" ({disk.free_bytes / disk.total_bytes:.0%})" if disk.total_bytes else ""
    return f"{show_bytes(disk.free_bytes)}{share}"


def problem(concern: Concern) -> str:
    """The problem, in a sentence."""
    match concern:
        case concerns.NodeAway(node_id):
            return f"Node {node_id} is down."
        case concerns.NodeBehind(node_id, replicas):
            return f"Node {node_id} has {counted(replicas, 'replica')} out of sync."
        case concerns.Leaderless(partitions):
            names = [f"{safe(topic, in_line=True)}-{index}" for topic, index in partitions]
            return f"No leader for {_named(names)}: they can be neither written nor read."
        case concerns.DiskFailed(node_id, folder):
            return f"The disk of node {node_id} cannot be used ({folder})."
        case concerns.DiskNearlyFull(node_id, folder, free_bytes):
            return f"The disk of node {node_id} is nearly full: {show_bytes(free_bytes)} left for {folder}."
        case concerns.NoCoordinators(reason):
            return f"The group coordinators do not answer: {reason}"
        case concerns.GroupLate(group, behind_ms, lag, members):
            return (
                f"Group {safe(group, in_line=True)} is {show_span(behind_ms)} behind: "
                f"{counted(lag, 'record')} unread, {counted(members, 'member')}."
            )
        case concerns.GroupLost(group, lost):
            missed = counted(lost, "record")
            return f"Group {safe(group, in_line=True)} has missed {missed} that were deleted unread."
        case concerns.QueueUnread(topic, group, waiting):
            name = f"{safe(topic, in_line=True)} of group {safe(group, in_line=True)}"
            return f"Queue {name} has no members: {counted(waiting, 'record')} waiting."
        case concerns.QueueLate(topic, group, age_ms, unfinished, members):
            name = f"{safe(topic, in_line=True)} of group {safe(group, in_line=True)}"
            return (
                f"The oldest record of queue {name} is {show_span(age_ms)} old: {unfinished:,} unfinished, "
                f"{counted(members, 'member')}."
            )
        case concerns.LettersWaiting(topic, count):
            name = safe(topic, in_line=True)
            are = "waits" if count == 1 else "wait"
            return f"{counted(count, 'dead letter')} {are} in {name}: see `millpond dlq show {name}`."
        case _:
            assert_never(concern)


def _named(names: list[str]) -> str:
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more:,} more" if more > 0 else "")


def _as_object(health: Health, problems: list[str]) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "is_well": not problems,
        "problems": problems,
        "cluster_id": health.nodes.cluster_id,
        "nodes": [asdict(node) for node in health.nodes.nodes],
        "leaderless": [*health.leaderless],
        "disks": [asdict(disk) for disk in health.disks],
        "groups": [
            {
                "group": each.group.id,
                "state": each.group.state,
                "members": len(each.group.members),
                "lag": each.lag,
                "behind_ms": each.behind_ms,
                "lost": each.lost,
            }
            for each in health.groups
        ],
        "queues": [
            {
                "topic": each.name.topic,
                "group": each.name.group,
                "members": len(each.group.members),
                "waiting": each.waiting,
                "out": each.out,
                "oldest_age_ms": each.oldest_age_ms,
            }
            for each in health.queues
        ],
    }
