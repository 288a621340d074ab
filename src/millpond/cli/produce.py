"""`millpond produce`: writes lines as records."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import click

from millpond.cli.access import Access, cluster_options, find_partitions
from millpond.cli.completion.names import TopicName
from millpond.cli.json_lines import Headers, Outgoing
from millpond.cli.options import pairs
from millpond.cli.sender import (
    Sender,
    ending_on_signals,
    json_records,
    open_source,
    plain_records,
    producer_settings,
    read_separator,
)

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


@click.command("produce")
@click.argument("topic", type=TopicName())
@click.option("-f", "--file", metavar="FILE", help="Read this file instead of standard input.")
@click.option("-k", "--key-separator", metavar="SEP", help=r"The text before SEP is the key; \t is a tab.")
@click.option("-H", "--headers", metavar="NAME=VALUE", multiple=True, help="A header for every record; repeatable.")
@click.option("-j", "--json-lines", is_flag=True, help="Each line is a record as JSON, with any of the fields below.")
@click.option("--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True)
@click.option("--compression", type=click.Choice(CODECS), default="none", show_default=True)
@click.option(
    "-p",
    "--partition",
    metavar="N",
    type=click.IntRange(0),
    help="All to this partition; otherwise by key, or spread.",
)
@click.option("--rate", metavar="N", type=click.FloatRange(0, min_open=True), help="At most N records per second.")
@click.option("--create", is_flag=True, help="Create the topic if it does not exist.")
@cluster_options
def command(
    topic: str,
    file: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    json_lines: bool,
    acks: str,
    compression: str,
    partition: int | None,
    rate: float | None,
    create: bool,
    access: Access,
) -> int:
    """Write the lines of a file or of standard input to TOPIC, one record each.

    With --json-lines a line has the fields value, key, headers, partition and timestamp (milliseconds), all optional;
    bytes that are not text are {"$base64": "…"}. It is the format of `millpond consume --json-lines`.

    The exit code is 0 only if every record was acknowledged.

    \b
    Examples:
      echo hello | millpond produce orders --create
      millpond produce orders --file orders.txt --key-separator : --compression zstd
      echo '{"key": "tea", "value": {"cups": 2}}' | millpond produce orders --json-lines
      millpond consume orders --until-end --json-lines | millpond produce copy --json-lines
    """
    if json_lines and key_separator is not None:
        raise click.UsageError("--key-separator is for plain lines: with --json-lines the key is a field.")
    extra_headers: Headers = [(name, value.encode()) for name, value in pairs(headers, "--headers").items()]
    if create:
        _ensure(access, topic)
    producer = access.producer({**producer_settings(acks), "compression.type": compression})
    partitions = find_partitions(producer, topic, " To create it, add --create.")
    sender = Sender(producer, topic, len(partitions), rate)
    sender.check_partition(partition)
    with open_source(file) as source:
        records = json_records(source) if json_lines else plain_records(source, read_separator(key_separator))
        with ending_on_signals():
            return sender.run(_completed(record, extra_headers, partition) for record in records)


def _ensure(access: Access, topic: str) -> None:
    from millpond.remote.topics import BY_DEFAULT, TopicExists, create_topic

    with access.open() as cluster:
        if topic not in cluster.topics([topic]):
            with suppress(TopicExists):  # Another client has just created it.
                create_topic(cluster, topic, BY_DEFAULT, BY_DEFAULT, {})
                click.echo(f"Created topic {topic}.", err=True)


def _completed(record: Outgoing, headers: Headers, partition: int | None) -> Outgoing:
    """Completes a record with the options for all records; its own fields take precedence."""
    if not headers and partition is None:
        return record
    return record._replace(
        headers=[*(record.headers or ()), *headers],
        partition=partition if record.partition is None else record.partition,
    )
