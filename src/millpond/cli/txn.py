"""`millpond txn`: lists transactions, and aborts those that hang."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from millpond.base.spans import read_span
from millpond.cli.access import Access, cluster_options
from millpond.cli.completion.names import TopicName
from millpond.cli.options import AS_JSON
from millpond.cli.terminal import Cell, print_json, print_list, print_table
from millpond.cli.text import NOTHING
from millpond.cli.times import now_ms, show_span

if TYPE_CHECKING:
    from millpond.admin.transactions import OpenProducer, Transaction
    from millpond.base.ids import TopicPartition

STATES: Final = ("ongoing", "committing", "aborting", "committed", "aborted", "empty")


@click.group("txn")
def command() -> None:
    """Transactions: list open ones and what they hold back, and abort those that hang.

    Readers with isolation.level=read_committed wait for open transactions; a hanging one stops them.

    \b
    Examples:
      millpond txn list --state ongoing --older-than 5m
      millpond txn describe payments-1
      millpond txn hanging
      millpond txn abort --id payments-1
    """


@command.command("list")
@click.option("--state", "states", type=click.Choice(STATES), multiple=True, help="Only these; repeatable.")
@click.option("--older-than", metavar="SPAN", help="Only those open for longer than this, as 5m.")
@AS_JSON
@cluster_options
def list_command(states: tuple[str, ...], older_than: str | None, as_json: bool, access: Access) -> None:
    """List the transactional ids with the state of their last transaction.

    \b
    Examples:
      millpond txn list
      millpond txn list --state ongoing --older-than 5m
    """
    from millpond.admin.transactions import list_transactions

    least_ms = _span("--older-than", older_than) if older_than is not None else None
    with access.open() as cluster:
        listed = list_transactions(cluster)
    at_ms = now_ms()
    transactions = [
        each
        for each in listed
        if (not states or each.state in states)
        and (least_ms is None or (each.started_ms is not None and at_ms - each.started_ms > least_ms))
    ]
    print_list(
        [_as_json(each, at_ms) for each in transactions],
        ("Id", "State", "Open for", "Times out", "Partitions", "Producer"),
        [_row(each, at_ms) for each in transactions],
        as_json=as_json,
        words=2,
        otherwise="No transaction matches: list all with `millpond txn list`."
        if states or older_than
        else "No producer has used a transactional id yet.",
    )


@command.command("describe")
@click.argument("name", metavar="ID")
@AS_JSON
@cluster_options
def describe_command(name: str, as_json: bool, access: Access) -> None:
    """Show the transaction of the transactional ID: its partitions, and the records that wait for it.

    \b
    Example:
      millpond txn describe payments-1
    """
    from millpond.admin.transactions import describe_transaction, held_back, open_producers

    with access.open() as cluster:
        transaction = describe_transaction(cluster, name)
        there = cluster.topics({each.topic for each in transaction.partitions})
        partitions = [each for each in transaction.partitions if each.topic in there]
        opened = [each for each in open_producers(cluster, partitions) if each.producer_id == transaction.producer_id]
        held = held_back(cluster, opened)
    at_ms = now_ms()
    if as_json:
        print_json(_as_json(transaction, at_ms) | {"open": _open_json(opened, held)})
        return
    click.secho(f"{transaction.id}: {transaction.state}{_for_how_long(transaction, at_ms)}", bold=True)
    click.echo(
        f"producer {transaction.producer_id}, epoch {transaction.producer_epoch}, "
        f"timeout {show_span(transaction.timeout_ms)}"
    )
    if transaction.partitions:
        click.echo()
        _print_open(opened, held, at_ms)
        untouched = sorted(set(transaction.partitions) - {each.partition for each in opened})
        if untouched:
            from millpond.cli.group.description import show_partitions

            click.echo(f"Nothing is open in {show_partitions(untouched)}.")


@command.command("hanging")
@click.option(
    "-t", "--topic", "topics", metavar="TOPIC", type=TopicName(), multiple=True, help="Only here; repeatable."
)
@AS_JSON
@cluster_options
def hanging_command(topics: tuple[str, ...], as_json: bool, access: Access) -> None:
    """Find transactions that are open in a partition but unknown to their coordinator.

    \b
    Examples:
      millpond txn hanging
      millpond txn hanging --topic orders
    """
    from millpond.admin.transactions import hanging_producers, held_back

    with access.open() as cluster:
        hanging = hanging_producers(cluster, topics)
        held = held_back(cluster, hanging)
    if as_json:
        print_json(_open_json(hanging, held))
    elif hanging:
        _print_open(hanging, held, now_ms())
        (topic, index), producer = hanging[0].partition, hanging[0].producer_id
        click.echo(f"To end one: millpond txn abort --topic {topic} --partition {index} --producer-id {producer}")
    else:
        click.echo("No transaction hangs.")


@command.command("abort")
@click.option("--id", "name", metavar="ID", help="The transactional id whose transaction to abort.")
@click.option("-t", "--topic", metavar="TOPIC", type=TopicName(), help="The topic in which one hangs.")
@click.option("-p", "--partition", metavar="N", type=click.IntRange(0), help="Its partition.")
@click.option("--producer-id", metavar="N", type=click.IntRange(0), help="The producer that left it open.")
@click.option("--force", is_flag=True, help="Even if a coordinator would still end it: it may become half committed.")
@cluster_options
def abort_command(
    name: str | None,
    topic: str | None,
    partition: int | None,
    producer_id: int | None,
    force: bool,
    access: Access,
) -> None:
    """Abort an open transaction: by its transactional id, or in one partition where it hangs.

    By id, its producer is fenced: if it still runs, its next call fails. In a partition, for transactions that
    `millpond txn hanging` shows, the abort marker is written there, bypassing the coordinator.

    \b
    Examples:
      millpond txn abort --id payments-1
      millpond txn abort --topic orders --partition 0 --producer-id 4001
    """
    from millpond.admin.transactions import abort_hanging, abort_transaction
    from millpond.base.ids import TopicPartition

    in_partition = (topic, partition, producer_id)
    if None in in_partition if name is None else in_partition != (None, None, None):
        raise click.UsageError("Name a transaction by --id, or by all of --topic, --partition and --producer-id.")
    with access.open() as cluster:
        if name is not None:
            transaction = abort_transaction(cluster, name)
            since = "" if (began := transaction.started_ms) is None else f" after {show_span(now_ms() - began)}"
            click.echo(f"Aborted the transaction of {name}{since}; its producer {transaction.producer_id} is fenced.")
            return
        assert topic is not None
        assert partition is not None
        assert producer_id is not None
        opened = abort_hanging(cluster, TopicPartition(topic, partition), producer_id, force=force)
    click.echo(
        f"Aborted the transaction of producer {producer_id} in {topic}-{partition}, "
        f"open since offset {opened.first_offset}."
    )


# Showing.


def _row(each: Transaction, at_ms: int) -> list[Cell]:
    if each.started_ms is None:
        open_for, times_out = NOTHING, NOTHING
    else:
        open_for, times_out = show_span(at_ms - each.started_ms), _times_out(each, at_ms)
    return [each.id, each.state, open_for, times_out, len(each.partitions), str(each.producer_id)]


def _times_out(each: Transaction, at_ms: int) -> str:
    assert each.started_ms is not None
    left_ms = each.started_ms + each.timeout_ms - at_ms
    return f"in {show_span(left_ms)}" if left_ms > 0 else f"overdue {show_span(-left_ms)}"


def _for_how_long(transaction: Transaction, at_ms: int) -> str:
    if transaction.started_ms is None:
        return ""
    times_out = _times_out(transaction, at_ms)
    when = f"times out {times_out}" if times_out.startswith("in") else times_out
    return f" for {show_span(at_ms - transaction.started_ms)}, {when}"


def _print_open(opened: Iterable[OpenProducer], held: dict[TopicPartition, int], at_ms: int) -> None:
    rows: list[list[Cell]] = [
        [
            *each.partition,
            each.first_offset,
            held.get(each.partition, 0),
            NOTHING if each.last_write_ms is None else f"{show_span(max(0, at_ms - each.last_write_ms))} ago",
            str(each.producer_id),
        ]
        for each in opened
    ]
    if rows:
        print_table(("Topic", "Partition", "Since offset", "Held back", "Last write", "Producer"), rows)


def _as_json(each: Transaction, at_ms: int) -> dict[str, Any]:
    fields = asdict(each) | {"open_ms": None if each.started_ms is None else at_ms - each.started_ms}
    fields["partitions"] = [{"topic": topic, "partition": index} for topic, index in each.partitions]
    return fields


def _open_json(opened: Iterable[OpenProducer], held: dict[TopicPartition, int]) -> list[dict[str, Any]]:
    return [
        {
            "topic": each.partition[0],
            "partition": each.partition[1],
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "first_offset": each.first_offset,
            "last_write_ms": each.last_write_ms,
            "held_back": held.get(each.partition, 0),
        }
        for each in opened
    ]


def _span(option: str, text: str) -> int:
    span_ms = read_span(text)
    if span_ms is None:
        raise click.UsageError(f"{option} {text}: give a duration, as 30s, 5m or 1h30m.")
    return span_ms
