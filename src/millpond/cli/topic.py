"""`millpond topic`: create, list, describe, alter and delete topics, over the wire of any Kafka cluster."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from millpond.cli.connect import Cluster, cluster_options, pairs, topic_of, topics_of
from millpond.cli.errors import Failed, unknown_topic
from millpond.cli.table import print_table

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import TopicMetadata

INTERNAL = "__"
"""How the names of the cluster's own topics begin."""

BY_DEFAULT = -1
"""As many as the cluster gives a topic whose creator names no number."""


@click.group("topic")
def command() -> None:
    """Create, list, describe, alter and delete topics.

    \b
    Examples:
      millpond topic create orders --partitions 3 --set retention.ms=86400000
      millpond topic list
      millpond topic describe orders
      millpond topic alter orders --partitions 6
      millpond topic delete orders
    """


@command.command("create")
@click.argument("name")
@click.option("-p", "--partitions", metavar="N", type=click.IntRange(1), help="[default: the cluster's]")
@click.option("-r", "--replicas", metavar="N", type=click.IntRange(1), help="[default: the cluster's]")
@click.option("--set", "sets", metavar="NAME=VALUE", multiple=True, help="A setting of the topic; may be repeated.")
@click.option("--if-not-exists", is_flag=True, help="A topic that is there already is fine.")
@cluster_options
def create_command(
    name: str,
    partitions: int | None,
    replicas: int | None,
    sets: tuple[str, ...],
    if_not_exists: bool,
    cluster: Cluster,
) -> None:
    """Create the topic NAME.

    \b
    Examples:
      millpond topic create orders
      millpond topic create orders --partitions 3 --set cleanup.policy=compact
    """
    from confluent_kafka import KafkaException

    from millpond.cli import admin

    client = cluster.admin()
    try:
        admin.create(client, name, partitions or BY_DEFAULT, replicas or BY_DEFAULT, pairs(sets, "--set"))
    except Failed as failure:
        cause = failure.__cause__
        assert isinstance(cause, KafkaException)
        if cause.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise
        if not if_not_exists:
            raise Failed(
                f"Topic {name} exists already: see it with `millpond topic describe {name}`, "
                "or add --if-not-exists if that is fine."
            ) from None
        click.echo(f"Topic {name} exists already.")
        return
    there = topics_of(client).get(name)
    count = len(there.partitions) if there is not None else partitions or 0
    click.echo(f"Created topic {name} with {_counted(count, 'partition')}.")


@command.command("list")
@click.option("--internal", is_flag=True, help="Also the cluster's own topics.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@cluster_options
def list_command(internal: bool, as_json: bool, cluster: Cluster) -> None:
    """List the topics with their numbers of partitions and replicas.

    \b
    Example:
      millpond topic list --json | jq '.[].name'
    """
    topics = [
        (name, len(topic.partitions), _replicas(topic))
        for name, topic in sorted(topics_of(cluster.admin()).items())
        if internal or not name.startswith(INTERNAL)
    ]
    if as_json:
        click.echo(json.dumps([{"name": n, "partitions": p, "replicas": r} for n, p, r in topics], indent=2))
    elif topics:
        print_table(("Topic", "Partitions", "Replicas"), topics)
    else:
        click.echo("There are no topics yet: create one with `millpond topic create NAME`.", err=True)


@command.command("describe")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@cluster_options
def describe_command(names: tuple[str, ...], as_json: bool, cluster: Cluster) -> None:
    """Show the partitions of topics, what is in them, and the settings that are not the default.

    \b
    Examples:
      millpond topic describe orders
      millpond topic describe orders payments --json
    """
    from millpond.cli.describe import describe, print_description

    told = describe(cluster, list(dict.fromkeys(names)))
    if as_json:
        click.echo(json.dumps([topic.as_json() for topic in told], indent=2))
        return
    for at, topic in enumerate(told):
        if at:
            click.echo()
        print_description(topic)


@command.command("alter")
@click.argument("name")
@click.option("-p", "--partitions", metavar="N", type=click.IntRange(1), help="Grow to this many partitions.")
@click.option("--set", "sets", metavar="NAME=VALUE", multiple=True, help="Change a setting; may be repeated.")
@click.option("--unset", "unsets", metavar="NAME", multiple=True, help="Back to the default; may be repeated.")
@cluster_options
def alter_command(
    name: str, partitions: int | None, sets: tuple[str, ...], unsets: tuple[str, ...], cluster: Cluster
) -> None:
    """Change settings of the topic NAME, or give it more partitions (there is no way back to fewer).

    \b
    Examples:
      millpond topic alter orders --set retention.ms=3600000 --unset cleanup.policy
      millpond topic alter orders --partitions 6
    """
    from millpond.cli import admin

    settings = pairs(sets, "--set")
    if partitions is None and not settings and not unsets:
        raise click.UsageError("Say what to change: --partitions, --set or --unset.")
    client = cluster.admin()
    count = len(topic_of(client, name).partitions)
    if settings or unsets:
        admin.alter(client, name, settings, unsets)
    if partitions is not None and partitions != count:
        if partitions < count:
            raise Failed(f"Topic {name} has {count} partitions, and a topic cannot be given fewer than it has.")
        admin.grow(client, name, partitions)
    click.echo(f"Changed topic {name}.")


@command.command("delete")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@cluster_options
def delete_command(names: tuple[str, ...], yes: bool, cluster: Cluster) -> None:
    """Delete topics with all that is in them. It asks first.

    \b
    Examples:
      millpond topic delete orders
      millpond topic delete orders payments --yes
    """
    from millpond.cli import admin

    client = cluster.admin()
    there = topics_of(client)
    for name in names:
        if name not in there:
            raise unknown_topic(name, there, to_create=False)
    listed = ", ".join(names)
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("There is nobody to ask: add --yes to delete without a question.")
        click.confirm(f"Delete {listed} and every record in {'it' if len(names) == 1 else 'them'}?", abort=True)
    admin.delete(client, list(dict.fromkeys(names)))
    click.echo(f"Deleted {listed}.")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _replicas(topic: TopicMetadata) -> int:
    return max((len(partition.replicas) for partition in topic.partitions.values()), default=0)
