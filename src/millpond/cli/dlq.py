"""`millpond dlq`: dead letters, who wrote them and why, and the way back, on any Kafka cluster."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import click

from millpond.cli.connect import Cluster, cluster_options
from millpond.cli.dlq_options import filter_options, read_places, read_rate
from millpond.cli.dlq_read import Filter
from millpond.cli.dlq_redrive import NAMED_MAX, Fate, Order, Plan, Redrive, counts, make_plan, open_producer
from millpond.cli.group import read_moment
from millpond.cli.table import print_table


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
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@cluster_options
def list_command(as_json: bool, cluster: Cluster) -> None:
    """List dead-letter topics: those named *.dlq, and those that hold records with the headers of dead letters.

    Waiting are the letters that have not been redriven. A count with ~ is taken from the offsets of a large topic.

    \b
    Examples:
      millpond dlq list
      millpond dlq list --json | jq '.[] | select(.waiting > 0).topic'
    """
    from millpond.cli.dlq_list import find_boxes, show_age

    found, left_out = find_boxes(cluster)
    if left_out:
        click.echo(
            f"{left_out:,} partitions of topics whose name does not end in .dlq were not looked into.", err=True
        )
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in found], indent=2))
    elif found:
        rows = [
            (
                each.topic,
                each.partitions,
                f"{'~' if each.is_estimate else ''}{each.records:,}",
                f"{'~' if each.is_estimate else ''}{each.waiting:,}",
                show_age(each.oldest_ms),
                show_age(each.newest_ms),
            )
            for each in found
        ]
        print_table(("Topic", "Partitions", "Letters", "Waiting", "Oldest", "Newest"), rows)
    else:
        click.echo("There are no dead letters: no topic is named *.dlq or holds any.", err=True)


@command.command("show")
@click.argument("topic")
@click.option("-p", "--partition", metavar="P", type=click.IntRange(0), help="With --offset: this one record.")
@click.option("-o", "--offset", metavar="O", type=click.IntRange(0), help="With --partition: this one record.")
@click.option("-n", "--limit", metavar="N", type=click.IntRange(1, 10_000), default=10, show_default=True)
@filter_options
@click.option("--full", is_flag=True, help="Whole values, and tracebacks.")
@click.option("-j", "--json-lines", is_flag=True, help="Each letter as a line of JSON, with everything it has.")
@cluster_options
def show_command(
    topic: str,
    partition: int | None,
    offset: int | None,
    limit: int,
    wanted: Filter,
    full: bool,
    json_lines: bool,
    cluster: Cluster,
) -> None:
    """Show the last letters of TOPIC, or one: where it came from, what failed, and the record itself.

    TYPE is the error's name, with its module or without.

    \b
    Examples:
      millpond dlq show orders.dlq
      millpond dlq show orders.dlq --partition 0 --offset 17
      millpond dlq show orders.dlq --error ValueError --since 1h --full
      millpond dlq show orders.dlq --limit 1000 --json-lines | jq .error.message
    """
    from millpond.cli.dlq_show import as_object, last_letters, print_letter

    if (partition is None) != (offset is None):
        raise click.UsageError("--partition and --offset name one record together: give both.")
    if partition is not None and offset is not None:
        wanted, full = dataclasses.replace(wanted, places=frozenset({(partition, offset)})), True
    found, redriven = last_letters(cluster, topic, wanted, limit)
    if not found:
        click.echo("No letter is like that." if not wanted.is_open else f"{topic} is empty.", err=True)
    for number, letter in enumerate(found):
        if json_lines:
            click.echo(json.dumps(as_object(letter, letter.place in redriven), ensure_ascii=False))
            continue
        if number:
            click.echo()
        print_letter(letter, letter.place in redriven, whole=full)


@command.command("stats")
@click.argument("topic")
@filter_options
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@cluster_options
def stats_command(topic: str, wanted: Filter, as_json: bool, cluster: Cluster) -> None:
    """Count the letters of TOPIC by error, by original topic, by group and over time.

    \b
    Examples:
      millpond dlq stats orders.dlq
      millpond dlq stats orders.dlq --since 1d --error ValueError
      millpond dlq stats orders.dlq --json | jq .errors
    """
    from millpond.cli.dlq_show import gather, print_stats

    stats = gather(cluster, topic, wanted)
    if as_json:
        told = {
            "topic": topic,
            "records": stats.records,
            "waiting": stats.waiting,
            "errors": stats.errors,
            "origins": stats.origins,
            "groups": stats.groups,
            "over_time": [{"from": moment, "records": count} for moment, count in stats.over_time().items()],
        }
        click.echo(json.dumps(told, indent=2))
    elif stats.records:
        print_stats(topic, stats)
    else:
        click.echo("No letter is like that." if not wanted.is_open else f"{topic} is empty.", err=True)


@command.command("redrive")
@click.argument("topic")
@click.option("-a", "--all", "everything", is_flag=True, help="All letters that have not been redriven.")
@click.option(
    "-o", "--offset", "offsets", metavar="P:O", multiple=True, help="This one, or P:FIRST-LAST; repeatable."
)
@filter_options
@click.option("--to", metavar="TOPIC", help="Into this topic instead of the one they came from.")
@click.option("--dry-run", is_flag=True, help="Only say what it would do.")
@click.option("--rate", metavar="N/s", help="At most N records a second.")
@click.option(
    "--max-redrives",
    metavar="N",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="A record that was redriven N times and came back stays.",
)
@click.option(
    "--batch", metavar="N", type=click.IntRange(1, 10_000), default=500, show_default=True, help="Per transaction."
)
@cluster_options
def redrive_command(
    topic: str,
    everything: bool,
    offsets: tuple[str, ...],
    wanted: Filter,
    to: str | None,
    dry_run: bool,
    rate: str | None,
    max_redrives: int,
    batch: int,
    cluster: Cluster,
) -> int:
    """Send letters of TOPIC back to the topic and partition that they came from, each of them once.

    Several filters must all hold. What was redriven stays in the log but is not sent again: interrupted in any way,
    the same command goes on where it was. The exit code is 130 when it was stopped before it was done.

    Records arrive in transactions: who reads uncommitted records may see some twice after an interruption.

    \b
    Examples:
      millpond dlq redrive orders.dlq --all --dry-run
      millpond dlq redrive orders.dlq --all --rate 50/s
      millpond dlq redrive orders.dlq --error Timeout --since 2h
      millpond dlq redrive orders.dlq --offset 0:17 --offset 2:100-120
      millpond dlq redrive orders.dlq --key customer-42 --to orders.inspect
    """
    wanted = dataclasses.replace(wanted, places=read_places(offsets))
    if everything != wanted.is_open:
        raise click.UsageError(
            "--all does not go with a filter."
            if everything
            else "Say which: --all, --offset, --error, --key or a time."
        )
    order = Order(topic, wanted, to, max_redrives, read_rate(rate), batch)
    if dry_run:
        _tell_plan(order, make_plan(cluster, order)[0])
        click.echo("Nothing was changed: this was a dry run.")
        return 0
    # First the producer: what an earlier run left open is decided before anybody reads how far it came.
    producer = open_producer(cluster, topic)
    plan, redriven = make_plan(cluster, order)
    _tell_plan(order, plan)
    redrive = Redrive(cluster, producer, order, plan, redriven)
    total = plan.fates[Fate.SENT]
    with _progress(total) as report:
        redrive.run(report)
    if redrive.stopped and redrive.sent < total:
        click.echo(f"Stopped after {redrive.sent:,} of {total:,} records: the same command goes on where it was.")
        return 130
    click.echo(f"Redrove {redrive.sent:,} record{'' if redrive.sent == 1 else 's'}.")
    return 0


def _tell_plan(order: Order, plan: Plan) -> None:
    for target, count in sorted(plan.targets.items()):
        click.echo(f"{order.topic} → {target}: {count:,} record{'' if count == 1 else 's'}")
    told = counts(plan)
    if told["already_redriven"]:
        click.echo(f"{told['already_redriven']:,} were redriven before and are not sent again.")
    if told["held_back"]:
        named = ", ".join(f"{partition}:{offset}" for partition, offset in plan.held)
        more = f" and {told['held_back'] - NAMED_MAX:,} more" if told["held_back"] > NAMED_MAX else ""
        redrives = "redrive" if order.redrives_max == 1 else "redrives"
        click.echo(
            f"{told['held_back']:,} stay, because they came back after {order.redrives_max} {redrives}: "
            f"{named}{more}; send them nevertheless with a higher --max-redrives."
        )
    if told["without_origin"]:
        click.echo(f"{told['without_origin']:,} stay, because they do not say where they came from: give --to TOPIC.")
    for partition, offset in plan.missing[:NAMED_MAX]:
        click.echo(f"There is no letter {partition}:{offset}.")
    if not any(told.values()):
        click.echo("No letter is like that.")


def _progress(total: int) -> AbstractContextManager[Callable[[int], None]]:
    """A bar on a terminal, with what is left; nothing elsewhere."""
    if not sys.stderr.isatty() or not total:
        return nullcontext(lambda _: None)
    from millpond.cli.progress import progress_bar

    return progress_bar(total)


@command.command("purge")
@click.argument("topic")
@click.option("--before", metavar="TIME", help="Letters written before then: 2026-01-31T08:30 or 30d.")
@click.option("--redriven", "only_redriven", is_flag=True, help="Up to the first letter that has not been redriven.")
@click.option("-a", "--all", "everything", is_flag=True, help="All that are there now.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@cluster_options
def purge_command(
    topic: str, before: str | None, only_redriven: bool, everything: bool, yes: bool, cluster: Cluster
) -> None:
    """Delete letters of TOPIC for good, oldest first. It says how many and asks.

    A log is cut from its beginning: a partition loses all letters before the first one that is to stay.

    \b
    Examples:
      millpond dlq purge orders.dlq --redriven
      millpond dlq purge orders.dlq --before 30d
      millpond dlq purge orders.dlq --all --yes
    """
    from millpond.cli import dlq_purge

    if sum((before is not None, only_redriven, everything)) != 1:
        raise click.UsageError("Say what goes with one of --before, --redriven and --all.")
    moment = None if before is None else read_moment("--before", before)
    cut = dlq_purge.plan(cluster, topic, moment, only_redriven)
    if not cut.records:
        click.echo("Nothing to delete.")
        return
    told = f"{cut.records:,} letter{'' if cut.records == 1 else 's'} of {topic}"
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(f"There is nobody to ask: add --yes to delete {told}.")
        lost = f", of which {cut.waiting:,} have not been redriven" if cut.waiting else ""
        click.confirm(f"Delete {told}{lost}?", abort=True)
    dlq_purge.apply(cluster, cut)
    click.echo(f"Deleted {told}.")
