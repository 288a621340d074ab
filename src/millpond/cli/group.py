"""`millpond group`: consumer groups, their lag, their offsets and their history, on any Kafka cluster."""

from __future__ import annotations

import json
import sys
import time

import click

from millpond.cli.connect import Cluster, cluster_options
from millpond.cli.groups import STATES, TYPES, delete_groups, find_groups, list_groups, refuse_if_active
from millpond.cli.table import print_table


@click.group("group")
def command() -> None:
    """Consumer groups: who reads what, how far behind, and why they rebalanced.

    \b
    Examples:
      millpond group list
      millpond group describe billing --watch 2
      millpond group reset billing --topic orders --to-time "1h ago" --dry-run
      millpond group history billing
      millpond group delete billing
    """


@command.command("list")
@click.option("--state", "states", type=click.Choice(STATES), multiple=True, help="Only these; repeatable.")
@click.option("--type", "types", type=click.Choice(TYPES), multiple=True, help="Only groups of this protocol.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@cluster_options
def list_command(states: tuple[str, ...], types: tuple[str, ...], as_json: bool, cluster: Cluster) -> None:
    """List the consumer groups with their protocol and state.

    \b
    Examples:
      millpond group list
      millpond group list --state empty --json | jq -r '.[].group'
    """
    found = [
        each
        for each in list_groups(cluster.admin())
        if (not states or each.state in states) and (not types or each.type in types)
    ]
    if as_json:
        told = [{"group": each.group, "state": each.state, "type": each.type} for each in found]
        click.echo(json.dumps(told, indent=2))
    elif found:
        print_table(("Group", "Type", "State"), [(each.group, each.type, each.state) for each in found], words=3)
    elif states or types:
        click.echo("No group is like that: see all with `millpond group list`.", err=True)
    else:
        click.echo("There are no groups yet: one comes into being with its first consumer.", err=True)


@command.command("describe")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs; with --watch a line each time.")
@click.option("--watch", metavar="SECONDS", type=click.FloatRange(0.5, 3600), help="Again and again, until Ctrl-C.")
@click.option(
    "--sample",
    metavar="SECONDS",
    type=click.FloatRange(0, 3600),
    default=1.0,
    show_default=True,
    help="How long to look on for rates; 0: no rates.",
)
@cluster_options
def describe_command(
    names: tuple[str, ...], as_json: bool, watch: float | None, sample: float, cluster: Cluster
) -> None:
    """Show who reads what, how far behind in records and in time, and how soon it will have caught up.

    Rates are those of committed offsets: a consumer that commits every 5 s wants --sample 10. "Behind" is the age
    of the oldest record that the group has not read. A dash is what is not known or stands still.

    \b
    Examples:
      millpond group describe billing
      millpond group describe billing --watch 2
      millpond group describe billing shipping --json --sample 0 | jq '.[].lag'
    """
    from millpond.cli.group_describe import Describer

    describer = Describer(cluster, list(dict.fromkeys(names)), sample)
    try:
        if watch is None:
            describer.show(as_json=as_json)
        else:
            describer.watch(watch, as_json=as_json)
    finally:
        describer.close()


@command.command("reset")
@click.argument("name", metavar="GROUP")
@click.option(
    "-t", "--topic", "topics", metavar="T[:P,P]", multiple=True, required=True, help="What to reset; repeatable."
)
@click.option("--to-earliest", is_flag=True, help="The first record that is still there.")
@click.option("--to-latest", is_flag=True, help="Only what comes from now on.")
@click.option("--to-offset", metavar="N", type=click.IntRange(0), help="This offset.")
@click.option("--to-time", metavar="TIME", help='The first record since then: 2026-01-31T08:30 or "1h ago".')
@click.option("--shift", metavar="±N", type=int, help="So many records on (+) or back (-).")
@click.option("--dry-run", is_flag=True, help="Only show what it would do.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@cluster_options
def reset_command(
    name: str,
    topics: tuple[str, ...],
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_time: str | None,
    shift: int | None,
    dry_run: bool,
    yes: bool,
    cluster: Cluster,
) -> None:
    """Move what GROUP has committed to another place. It shows the change and asks first.

    The group must have no active members: they would commit over it. An offset outside the log is moved to its edge.

    \b
    Examples:
      millpond group reset billing --topic orders --to-earliest --dry-run
      millpond group reset billing --topic orders:0,3 --to-time "1h ago"
      millpond group reset billing --topic orders --topic refunds --shift -100 --yes
    """
    from millpond.cli import group_reset

    target = group_reset.read_target(to_earliest, to_latest, to_offset, to_time, shift, time.time_ns() // 1_000_000)
    plan = group_reset.plan(cluster.admin(), name, topics, target)
    group_reset.print_plan(plan)
    if dry_run:
        click.echo("Nothing was changed: this was a dry run.")
        return
    if not plan.changes:
        click.echo("Nothing to change: the group is there already.")
        return
    if not yes:
        _ask(f"Reset group {name}?", "reset")
    group_reset.apply(cluster.admin(), plan)
    count = len(plan.changes)
    click.echo(f"Reset {count} partition{'' if count == 1 else 's'} of group {name}.")


@command.command("delete")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@cluster_options
def delete_command(names: tuple[str, ...], yes: bool, cluster: Cluster) -> None:
    """Delete groups with all that they have committed. It asks first.

    \b
    Examples:
      millpond group delete billing
      millpond group delete billing shipping --yes
    """
    admin = cluster.admin()
    names = tuple(dict.fromkeys(names))
    for group in find_groups(admin, names):
        refuse_if_active(group, "to delete it")
    listed = ", ".join(names)
    if not yes:
        _ask(f"Delete {listed} and all offsets of {'it' if len(names) == 1 else 'them'}?", "delete")
    delete_groups(admin, names)
    click.echo(f"Deleted {listed}.")


@command.command("history")
@click.argument("name", metavar="GROUP")
@click.option("-n", "--limit", metavar="N", type=click.IntRange(1), default=10, show_default=True, help="The last N.")
@click.option("--since", metavar="TIME", help='Only since then: 2026-01-31T08:30 or "1h ago".')
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@click.option("--history-topic", default="__group_history", hidden=True)
@cluster_options
def history_command(
    name: str, limit: int, since: str | None, as_json: bool, history_topic: str, cluster: Cluster
) -> None:
    """Explain the rebalances of GROUP: who came or went and why, what moved, and how long nobody read.

    \b
    Examples:
      millpond group history billing
      millpond group history billing --since 1h --limit 50
      millpond group history billing --json | jq '.[].paused_ms'
    """
    from millpond.cli.group_history import print_history, read_history

    since_ms = read_moment("--since", since) if since is not None else None
    found = read_history(cluster, history_topic, name, limit, since_ms)
    if as_json:
        click.echo(json.dumps(found or [], indent=2))
    elif found:
        print_history(name, found)
    elif found is None:
        click.echo(
            "This cluster keeps no history of rebalances: no group has rebalanced yet, or it is no Millpond.",
            err=True,
        )
    else:
        span = "since then" if since is not None else "yet"
        click.echo(f"Group {name} has not rebalanced {span}; is its name right? See `millpond group list`.", err=True)


def read_moment(option: str, text: str) -> int:
    from millpond.cli.times import read_time

    try:
        return read_time(text, time.time_ns() // 1_000_000)
    except (ValueError, OverflowError):
        raise click.UsageError(f"{option} {text}: give a time as 2026-01-31T08:30 or a span as 5m.") from None


def _ask(question: str, verb: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(f"There is nobody to ask: add --yes to {verb} without a question.")
    click.confirm(question, abort=True)
