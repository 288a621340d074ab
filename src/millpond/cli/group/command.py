"""`millpond group`: consumer groups, their lag, offsets and history, on any Kafka cluster."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import click

from millpond.cli.access import Access, cluster_options
from millpond.cli.completion.names import GroupName, TopicName
from millpond.cli.options import AS_JSON, YES, option, read_moment
from millpond.cli.terminal import confirm, print_json, print_list
from millpond.cli.text import counted
from millpond.cli.times import now_ms

STATES: Final = ("stable", "rebalancing", "empty", "dead")
TYPES: Final = ("classic", "consumer", "share")


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
@AS_JSON
@cluster_options
def list_command(states: tuple[str, ...], types: tuple[str, ...], as_json: bool, access: Access) -> None:
    """List the groups with their protocol and state.

    \b
    Examples:
      millpond group list
      millpond group list --state empty --json | jq -r '.[].group'
    """
    from millpond.admin.groups import list_groups

    with access.open() as cluster:
        listed = list_groups(cluster, with_share=True)
    groups = [each for each in listed if (not states or each.state in states) and (not types or each.type in types)]
    print_list(
        [asdict(each) for each in groups],
        ("Group", "Type", "State"),
        [(each.group, each.type, each.state) for each in groups],
        as_json=as_json,
        words=3,
        otherwise="No group matches: list all with `millpond group list`."
        if states or types
        else "There are no groups yet: one is created with its first consumer.",
    )


@command.command("describe")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, type=GroupName())
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs; with --watch one line per update.")
@click.option("--watch", metavar="SECONDS", type=click.FloatRange(0.5, 3600), help="Repeat until Ctrl-C.")
@option(
    "--sample",
    meta="SECONDS",
    type=click.FloatRange(0, 3600),
    default=1.0,
    help="How long to measure rates; 0 for no rates.",
)
@cluster_options
def describe_command(
    names: tuple[str, ...], as_json: bool, watch: float | None, sample: float, access: Access
) -> None:
    """Show members, lag in records and in time, and when the group will have caught up.

    Rates are those of committed offsets: a consumer that commits every 5 s needs --sample 10. "Behind" is the age of
    the oldest record that the group has not read. A dash means unknown, or no progress.

    \b
    Examples:
      millpond group describe billing
      millpond group describe billing --watch 2
      millpond group describe billing shipping --json --sample 0 | jq '.[].lag'
    """
    from millpond.admin.lag import LagWatch
    from millpond.cli.group.description import show_groups, watch_groups

    with access.open() as cluster:
        lags = LagWatch(cluster, names, sample_seconds=sample)
        if watch is None:
            show_groups(lags.look(), as_json=as_json)
        else:
            watch_groups(lags, watch, as_json=as_json)


@command.command("reset")
@click.argument("name", metavar="GROUP", type=GroupName())
@click.option(
    "-t",
    "--topic",
    "topics",
    metavar="T[:P,P]",
    type=TopicName(),
    multiple=True,
    required=True,
    help="The topic to reset; repeatable.",
)
@click.option("--to-earliest", is_flag=True, help="To the first available record.")
@click.option("--to-latest", is_flag=True, help="To the end: only new records.")
@click.option("--to-offset", metavar="N", type=click.IntRange(0), help="This offset.")
@click.option("--to-time", metavar="TIME", help='To the first record since this time: 2026-01-31T08:30 or "1h ago".')
@click.option("--shift", metavar="±N", type=int, help="Forward (+) or back (-) by N records.")
@click.option("--dry-run", is_flag=True, help="Only show what it would do.")
@YES
@AS_JSON
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
    as_json: bool,
    access: Access,
) -> None:
    """Reset the committed offsets of GROUP. Shows the change and asks first.

    The group must have no active members: they would overwrite it. An offset outside the log is moved to its start or
    end.

    \b
    Examples:
      millpond group reset billing --topic orders --to-earliest --dry-run
      millpond group reset billing --topic orders:0,3 --to-time "1h ago"
      millpond group reset billing --topic orders --topic refunds --shift -100 --yes
    """
    from millpond.admin.offset_reset import apply_reset, plan_agreed, plan_reset
    from millpond.cli.group.reset import plan_object, print_plan, read_target, read_topics

    target = read_target(to_earliest, to_latest, to_offset, to_time, shift, now_ms())
    with access.open() as cluster:
        plan = plan_reset(cluster, name, read_topics(topics), target)
        if not as_json:
            print_plan(plan)
        is_done = not dry_run and bool(plan.changes)
        if is_done:
            confirm(f"Reset group {name}?", yes=yes, to_do="reset without asking")
            if not yes:
                # The answer may have taken a while: read the offsets again.
                plan = plan_agreed(cluster, name, read_topics(topics), plan.offsets)
            apply_reset(cluster, plan)
    if as_json:
        print_json(plan_object(plan, is_done=is_done))
    elif dry_run:
        click.echo("Nothing was changed: this was a dry run.")
    elif not is_done:
        click.echo("Nothing to change: the group is at these offsets already.")
    else:
        click.echo(f"Reset {counted(len(plan.changes), 'partition')} of group {name}.")


@command.command("delete")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, type=GroupName())
@YES
@cluster_options
def delete_command(names: tuple[str, ...], yes: bool, access: Access) -> None:
    """Delete groups and their committed offsets, after asking.

    \b
    Examples:
      millpond group delete billing
      millpond group delete billing shipping --yes
    """
    from millpond.admin.groups import delete_groups, find_groups, refuse_if_active

    names = tuple(dict.fromkeys(names))
    listed = ", ".join(names)
    with access.open() as cluster:
        for group in find_groups(cluster, names):
            refuse_if_active(group, "to delete it")
        question = f"Delete {listed} and all offsets of {'it' if len(names) == 1 else 'them'}?"
        confirm(question, yes=yes, to_do="delete without asking")
        delete_groups(cluster, names)
    click.echo(f"Deleted {listed}.")


@command.command("history")
@click.argument("name", metavar="GROUP", type=GroupName())
@option("-n", "--limit", type=click.IntRange(1), default=10, help="The last N rebalances.")
@click.option("--since", metavar="TIME", help='Only since this time: 2026-01-31T08:30 or "1h ago".')
@AS_JSON
@click.option("--history-topic", default="__group_history", hidden=True)
@cluster_options
def history_command(
    name: str, limit: int, since: str | None, as_json: bool, history_topic: str, access: Access
) -> None:
    """Explain the rebalances of GROUP: who joined or left and why, what moved, and how long reading paused.

    \b
    Examples:
      millpond group history billing
      millpond group history billing --since 1h --limit 50
      millpond group history billing --json | jq '.[].paused_ms'
    """
    from millpond.admin.history import read_history
    from millpond.cli.group.history import print_history

    since_ms = read_moment("--since", since) if since is not None else None
    with access.open() as cluster:
        rebalances = read_history(cluster, name, limit=limit, since_ms=since_ms, topic=history_topic)
    if as_json:
        print_json([each.written for each in rebalances or ()])
    elif rebalances:
        print_history(name, rebalances)
    elif rebalances is None:
        click.echo(
            "This cluster has no history of rebalances: no group has rebalanced yet, or it is not Millpond.",
            err=True,
        )
    else:
        span = "since then" if since is not None else "yet"
        click.echo(f"Group {name} has not rebalanced {span}; is its name right? See `millpond group list`.", err=True)
