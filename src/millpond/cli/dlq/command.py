"""`millpond dlq`: lists, shows and redrives dead letters, on any Kafka cluster."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from millpond.cli.access import Access, cluster_options
from millpond.cli.completion.names import TopicName
from millpond.cli.dlq.leaderless import say_unread
from millpond.cli.dlq.options import filter_options, read_letter_ids, read_rate
from millpond.cli.options import AS_JSON, YES, option, read_moment
from millpond.cli.terminal import confirm, print_json, print_list
from millpond.cli.text import counted

if TYPE_CHECKING:
    from millpond.admin.dead_letters.letters import Filter


@click.group("dlq")
def command() -> None:
    """Dead letters: records that could not be processed, and what failed.

    \b
    Examples:
      millpond dlq list
      millpond dlq show orders.dlq --error ValueError --limit 3
      millpond dlq stats orders.dlq --since 1d
      millpond dlq redrive orders.dlq --error Timeout --dry-run
      millpond dlq purge orders.dlq --before 30d
    """


@command.command("list")
@AS_JSON
@cluster_options
def list_command(as_json: bool, access: Access) -> None:
    """List dead-letter topics: those named *.dlq, and those that hold records with the headers of dead letters.

    WAITING counts the letters that have not been redriven. A count with ~ is estimated from the offsets of a large
    topic.

    \b
    Examples:
      millpond dlq list
      millpond dlq list --json | jq '.[] | select(.waiting != 0).topic'
    """
    from millpond.admin.dead_letters.topics import list_letter_topics
    from millpond.cli.dlq.letters import show_age

    with access.open() as cluster:
        topics, left_out = list_letter_topics(cluster)
    if left_out:
        click.echo(f"{left_out:,} partitions of topics whose name does not end in .dlq were not examined.", err=True)
    for each in topics:
        if each.leaderless:
            unled = f"{counted(each.leaderless, 'partition')} without a leader"
            click.echo(f"{each.topic}: {unled}; their letters are not counted.", err=True)
    rows = [
        (
            each.topic,
            each.partitions,
            f"{'~' if each.is_estimate else ''}{each.records:,}",
            "not known" if each.waiting is None else f"{'~' if each.is_estimate else ''}{each.waiting:,}",
            show_age(each.oldest_ms),
            show_age(each.newest_ms),
        )
        for each in topics
    ]
    print_list(
        [dataclasses.asdict(each) for each in topics],
        ("Topic", "Partitions", "Letters", "Waiting", "Oldest", "Newest"),
        rows,
        as_json=as_json,
        otherwise="There are no dead letters: no topic is named *.dlq or holds any.",
    )


@command.command("show")
@click.argument("topic", type=TopicName())
@click.option("-p", "--partition", metavar="P", type=click.IntRange(0), help="With --offset: this one record.")
@click.option("-o", "--offset", metavar="O", type=click.IntRange(0), help="With --partition: this one record.")
@click.option("-n", "--limit", metavar="N", type=click.IntRange(1, 10_000), default=10, show_default=True)
@filter_options
@click.option("--full", is_flag=True, help="Show whole values and tracebacks.")
@click.option("-j", "--json-lines", is_flag=True, help="Each letter as a line of JSON, with all its fields.")
@cluster_options
def show_command(
    topic: str,
    partition: int | None,
    offset: int | None,
    limit: int,
    selection: Filter,
    full: bool,
    json_lines: bool,
    access: Access,
) -> None:
    """Show the last letters of TOPIC, or one of them: its origin, the error, and the record itself.

    TYPE is the error's name, with or without its module.

    \b
    Examples:
      millpond dlq show orders.dlq
      millpond dlq show orders.dlq --partition 0 --offset 17
      millpond dlq show orders.dlq --error ValueError --since 1h --full
      millpond dlq show orders.dlq --limit 1000 --json-lines | jq .error.message
    """
    from millpond.admin.dead_letters.letters import LetterId
    from millpond.admin.dead_letters.topics import last_letters
    from millpond.cli.dlq.letters import as_object, print_letter

    if (partition is None) != (offset is None):
        raise click.UsageError("--partition and --offset name one record: give both.")
    if partition is not None and offset is not None:
        selection, full = dataclasses.replace(selection, ids=frozenset({LetterId(partition, offset)})), True
    with access.open() as cluster:
        last = last_letters(cluster, topic, selection, limit, lambda letter, is_redriven: (letter, is_redriven))
    say_unread(topic, last.leaderless)
    if not last.letters:
        none = "No letter matches." if not selection.is_open else f"{topic} is empty."
        held = "No such letter can be read yet: an open transaction holds it back, see millpond txn list."
        click.echo(held if last.is_held_back else none, err=True)
    for number, (letter, is_redriven) in enumerate(last.letters):
        if json_lines:
            click.echo(json.dumps(as_object(letter, is_redriven), ensure_ascii=False))
            continue
        if number:
            click.echo()
        print_letter(letter, is_redriven, whole=full)


@command.command("stats")
@click.argument("topic", type=TopicName())
@filter_options
@AS_JSON
@cluster_options
def stats_command(topic: str, selection: Filter, as_json: bool, access: Access) -> None:
    """Count the letters of TOPIC by error, by original topic, by group and over time.

    \b
    Examples:
      millpond dlq stats orders.dlq
      millpond dlq stats orders.dlq --since 1d --error ValueError
      millpond dlq stats orders.dlq --json | jq .errors
    """
    from millpond.admin.dead_letters.topics import count_letters
    from millpond.cli.dlq.letters import print_counts

    with access.open() as cluster:
        counts = count_letters(cluster, topic, selection)
    say_unread(topic, counts.leaderless)
    if as_json:
        facts = {
            "topic": topic,
            "records": counts.records,
            "waiting": counts.waiting,
            "errors": counts.errors,
            "origins": counts.origins,
            "groups": counts.groups,
            "over_time": [{"from": moment, "records": count} for moment, count in counts.over_time().items()],
        }
        print_json(facts)
    elif counts.records:
        print_counts(topic, counts)
    else:
        click.echo("No letter matches." if not selection.is_open else f"{topic} is empty.", err=True)


@command.command("redrive")
@click.argument("topic", type=TopicName())
@click.option("-a", "--all", "everything", is_flag=True, help="All letters that have not been redriven.")
@click.option(
    "-o", "--offset", "offsets", metavar="P:O", multiple=True, help="This one, or P:FIRST-LAST; repeatable."
)
@filter_options
@click.option("--to", metavar="TOPIC", type=TopicName(), help="To this topic instead of the original one.")
@click.option(
    "--every-group", is_flag=True, help="For every group that reads the topic, not only the one that failed."
)
@click.option("--dry-run", is_flag=True, help="Only show what it would do.")
@click.option("--rate", metavar="N/s", help="At most N records a second.")
@option(
    "--max-redrives",
    type=click.IntRange(1),
    default=3,
    help="Skip a record that came back after N redrives.",
)
@option("--batch", type=click.IntRange(1, 10_000), default=500, help="Per transaction.")
@cluster_options
def redrive_command(
    topic: str,
    everything: bool,
    offsets: tuple[str, ...],
    selection: Filter,
    to: str | None,
    every_group: bool,
    dry_run: bool,
    rate: str | None,
    max_redrives: int,
    batch: int,
    access: Access,
) -> int:
    """Send letters of TOPIC back to their original topic and partition, each exactly once.

    Filters are combined with AND. Redriven letters stay in the log but are not sent again: after an interruption, run
    the same command to continue. The exit code is 130 if it was stopped before the end.

    A letter is for the group that failed: Millpond's workers of other groups skip it. Plain consumers always see it.
    Use --every-group, or another topic (--to), to reach all groups.

    Records are sent in transactions: readers of uncommitted records may see some twice after an interruption.

    \b
    Examples:
      millpond dlq redrive orders.dlq --all --dry-run
      millpond dlq redrive orders.dlq --all --rate 50/s
      millpond dlq redrive orders.dlq --error Timeout --since 2h
      millpond dlq redrive orders.dlq --offset 0:17 --offset 2:100-120
      millpond dlq redrive orders.dlq --key customer-42 --to orders.inspect
    """
    from millpond.admin.dead_letters.redrive import RedriveOrder
    from millpond.cli.dlq.redrive import run_redrive

    selection = dataclasses.replace(selection, ids=read_letter_ids(offsets))
    if everything != selection.is_open:
        raise click.UsageError(
            "--all cannot be combined with a filter."
            if everything
            else "Select letters with --all, --offset, --error, --key or a time."
        )
    order = RedriveOrder(topic, selection, to, every_group, max_redrives, read_rate(rate), batch)
    with access.open() as cluster:
        return run_redrive(cluster, order, dry_run=dry_run)


@command.command("purge")
@click.argument("topic", type=TopicName())
@click.option("--before", metavar="TIME", help="Letters written before this time: 2026-01-31T08:30 or 30d.")
@click.option("--redriven", "only_redriven", is_flag=True, help="Up to the first letter that has not been redriven.")
@click.option("-a", "--all", "everything", is_flag=True, help="All current letters.")
@YES
@cluster_options
def purge_command(
    topic: str, before: str | None, only_redriven: bool, everything: bool, yes: bool, access: Access
) -> None:
    """Delete letters of TOPIC for good, oldest first, after asking.

    Logs are deleted from the beginning: a partition loses all letters before the first one that is kept.

    \b
    Examples:
      millpond dlq purge orders.dlq --redriven
      millpond dlq purge orders.dlq --before 30d
      millpond dlq purge orders.dlq --all --yes
    """
    from millpond.admin.dead_letters.purge import apply_purge, plan_purge

    if sum((before is not None, only_redriven, everything)) != 1:
        raise click.UsageError("Give one of --before, --redriven and --all.")
    moment = None if before is None else read_moment("--before", before)
    with access.open() as cluster:
        plan = plan_purge(cluster, topic, before_ms=moment, only_redriven=only_redriven)
        say_unread(topic, plan.leaderless)
        if not plan.records:
            click.echo("Nothing to delete.")
            return
        letters = f"{counted(plan.records, 'letter')} of {topic}"
        lost = f", of which {plan.waiting:,} have not been redriven" if plan.waiting else ""
        confirm(f"Delete {letters}{lost}?", yes=yes, to_do=f"delete {letters}")
        apply_purge(cluster, plan)
    click.echo(f"Deleted {letters}.")
