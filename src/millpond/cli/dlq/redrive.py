"""Runs a redrive: prints its plan, sends, and says how far it came."""

from __future__ import annotations

import signal

import click

from millpond.admin.dead_letters.redrive import (
    NAMED_MAX,
    LetterFate,
    Redrive,
    RedriveOrder,
    RedrivePlan,
    plan_redrive,
)
from millpond.cli.dlq.leaderless import say_unread
from millpond.cli.stop import stop_on
from millpond.cli.terminal import progress_bar
from millpond.cli.text import counted, safe
from millpond.remote.cluster import Cluster


def run_redrive(cluster: Cluster, order: RedriveOrder, *, dry_run: bool) -> int:
    """The exit code: 130 if it was stopped before the end."""
    if dry_run:
        _print_plan(order, plan_redrive(cluster, order))
        click.echo("Nothing was changed: this was a dry run.")
        return 0
    redrive = Redrive(cluster, order)
    _print_plan(order, redrive.plan)
    with stop_on(signal.SIGINT, signal.SIGTERM) as stop, progress_bar(redrive.plan.records) as report:
        redrive.run(report, lambda: stop.is_requested)
    if stop.is_requested and redrive.sent < redrive.plan.records:
        click.echo(
            f"Stopped after {redrive.sent:,} of {redrive.plan.records:,} records: run the same command to continue."
        )
        return 130
    click.echo(f"Redrove {counted(redrive.sent, 'record')}.")
    return 0


def _print_plan(order: RedriveOrder, plan: RedrivePlan) -> None:
    say_unread(order.topic, plan.topic.leaderless)
    for target, count in sorted(plan.targets.items()):
        click.echo(f"{order.topic} → {target}: {counted(count, 'record')}")
    for group, count in sorted(plan.groups.items()):
        audience = f"the group {safe(group)}, which failed" if group else "every group that reads there"
        click.echo(f"{counted(count, 'record')} for {audience}.")
    done, held, no_target = (plan.fates[each] for each in (LetterFate.DONE, LetterFate.HELD, LetterFate.NO_TARGET))
    if done:
        click.echo(f"{done:,} were redriven before and will not be sent again.")
    if held:
        named = ", ".join(map(str, plan.held))
        more = f" and {held - NAMED_MAX:,} more" if held > NAMED_MAX else ""
        click.echo(
            f"{held:,} are skipped, because they came back after {counted(order.redrives_max, 'redrive')}: "
            f"{named}{more}; send them anyway with a higher --max-redrives."
        )
    if no_target:
        click.echo(
            f"{no_target:,} are skipped, because their original topic is unknown or does not exist: give --to TOPIC."
        )
    for letter in plan.missing[:NAMED_MAX]:
        click.echo(f"There is no letter {letter}.")
    if not (plan.records or done or held or no_target or plan.missing):
        click.echo("No letter matches.")
