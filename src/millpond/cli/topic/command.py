"""`millpond topic`: creates, lists, describes, alters, moves and deletes topics of any Kafka cluster."""

from __future__ import annotations

from dataclasses import asdict

import click

from millpond.cli.access import Access, cluster_options
from millpond.cli.completion.names import SettingName, TopicName
from millpond.cli.moves import move_options, run_plan
from millpond.cli.options import AS_JSON, YES, setting_pairs
from millpond.cli.terminal import confirm, print_json, print_list
from millpond.cli.text import counted

INTERNAL = "__"
"""The prefix of internal topics."""


@click.group("topic")
def command() -> None:
    """Create, list, describe, alter, move and delete topics.

    \b
    Examples:
      millpond topic create orders --partitions 3 --set retention.ms=86400000
      millpond topic list
      millpond topic describe orders
      millpond topic alter orders --partitions 6
      millpond topic replicas orders --factor 3
      millpond topic move orders --partition 2 --to 1,4,5
      millpond topic delete orders
    """


@command.command("create")
@click.argument("name")
@click.option("-p", "--partitions", metavar="N", type=click.IntRange(1), help="[default: the cluster's]")
@click.option("-r", "--replicas", metavar="N", type=click.IntRange(1), help="[default: the cluster's]")
@click.option(
    "--set",
    "sets",
    metavar="NAME=VALUE",
    type=SettingName("topic", "="),
    multiple=True,
    help="A setting of the topic; may be repeated.",
)
@click.option("--if-not-exists", is_flag=True, help="Do not fail if the topic exists.")
@cluster_options
def create_command(
    name: str,
    partitions: int | None,
    replicas: int | None,
    sets: tuple[str, ...],
    if_not_exists: bool,
    access: Access,
) -> None:
    """Create the topic NAME.

    \b
    Examples:
      millpond topic create orders
      millpond topic create orders --partitions 3 --set cleanup.policy=compact
    """
    from millpond.base.errors import ErrorCode
    from millpond.remote.errors import Answered
    from millpond.remote.topics import BY_DEFAULT, TopicExists, create_topic

    with access.open() as cluster:
        try:
            create_topic(
                cluster, name, partitions or BY_DEFAULT, replicas or BY_DEFAULT, setting_pairs(sets, "--set")
            )
        except TopicExists:
            if not if_not_exists:
                raise
            click.echo(f"Topic {name} exists already.")
            return
        try:
            there = cluster.topics([name]).get(name)
        except Answered as refusal:
            if refusal.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise
            # The right to create a topic does not include the right to describe it.
            there = None
    count = len(there.partitions) if there is not None else partitions
    click.echo(
        f"Created topic {name}." if count is None else f"Created topic {name} with {counted(count, 'partition')}."
    )


@command.command("list")
@click.option("--internal", is_flag=True, help="Include internal topics.")
@AS_JSON
@cluster_options
def list_command(internal: bool, as_json: bool, access: Access) -> None:
    """List the topics with their partitions and replicas.

    \b
    Example:
      millpond topic list --json | jq '.[].name'
    """
    with access.open() as cluster:
        infos = cluster.topics()
    topics = [
        (name, len(topic.partitions), max((len(each.replicas) for each in topic.partitions.values()), default=0))
        for name, topic in sorted(infos.items())
        if internal or not name.startswith(INTERNAL)
    ]
    print_list(
        [{"name": name, "partitions": count, "replicas": replicas} for name, count, replicas in topics],
        ("Topic", "Partitions", "Replicas"),
        topics,
        as_json=as_json,
        otherwise="There are no topics yet: create one with `millpond topic create NAME`.",
    )


@command.command("describe")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=TopicName())
@AS_JSON
@cluster_options
def describe_command(names: tuple[str, ...], as_json: bool, access: Access) -> None:
    """Show the partitions and offsets of topics, and the settings that are not the default.

    \b
    Examples:
      millpond topic describe orders
      millpond topic describe orders payments --json
    """
    from millpond.admin.topics import describe_topics
    from millpond.cli.topic.description import print_description

    with access.open() as cluster:
        topics = describe_topics(cluster, names)
    if as_json:
        print_json([asdict(topic) for topic in topics])
        return
    for at, topic in enumerate(topics):
        if at:
            click.echo()
        print_description(topic)


@command.command("alter")
@click.argument("name", type=TopicName())
@click.option("-p", "--partitions", metavar="N", type=click.IntRange(1), help="Grow to this many partitions.")
@click.option(
    "--set",
    "sets",
    metavar="NAME=VALUE",
    type=SettingName("topic", "="),
    multiple=True,
    help="Change a setting; may be repeated.",
)
@click.option(
    "--unset",
    "unsets",
    metavar="NAME",
    type=SettingName("topic"),
    multiple=True,
    help="Reset a setting to the default; may be repeated.",
)
@cluster_options
def alter_command(
    name: str, partitions: int | None, sets: tuple[str, ...], unsets: tuple[str, ...], access: Access
) -> None:
    """Change settings of the topic NAME, or add partitions (which cannot be undone).

    \b
    Examples:
      millpond topic alter orders --set retention.ms=3600000 --unset cleanup.policy
      millpond topic alter orders --partitions 6
    """
    from millpond.admin.topics import alter_topic, find_topic, grow_topic

    settings = setting_pairs(sets, "--set")
    if partitions is None and not settings and not unsets:
        raise click.UsageError("Give --partitions, --set or --unset.")
    with access.open() as cluster:
        find_topic(cluster, name)
        if settings or unsets:
            alter_topic(cluster, name, settings, unsets)
        if partitions is not None:
            grow_topic(cluster, name, partitions)
    click.echo(f"Changed topic {name}.")


def _nodes(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    nodes = [each.strip() for each in text.split(",")]
    if not all(each.isdecimal() for each in nodes):
        raise click.BadParameter("write node numbers separated by commas, like 1,2,3")
    return tuple(map(int, nodes))


@command.command("move")
@click.argument("name", type=TopicName())
@click.option(
    "-p", "--partition", "indexes", metavar="N", type=click.IntRange(0), multiple=True, help="[default: all]"
)
@click.option(
    "--to", "nodes", metavar="NODES", callback=_nodes, required=True, help="Nodes like 1,2,3; the first one leads."
)
@move_options
@cluster_options
def move_command(
    name: str,
    indexes: tuple[int, ...],
    nodes: tuple[int, ...],
    rate: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    access: Access,
) -> None:
    """Move partitions of the topic NAME to other nodes, while clients keep reading and writing.

    Shows the plan first. The old replicas are removed once all new ones are in sync. Ctrl-C cancels moves that are
    under way.

    \b
    Examples:
      millpond topic move orders --partition 2 --to 1,4,5 --rate 50MB/s
      millpond topic move __consumer_offsets --to 1,2,3 --yes
    """
    from millpond.admin.moves import read_placement
    from millpond.admin.placement import plan_move
    from millpond.admin.topics import find_topic

    with access.open() as cluster:
        find_topic(cluster, name)
        moves = plan_move(read_placement(cluster), name, indexes, nodes)
        run_plan(cluster, moves, yes=yes, rate=rate, dry_run=dry_run, as_json=as_json)


@command.command("replicas")
@click.argument("name", required=False, type=TopicName())
@click.option("--all", "of_all", is_flag=True, help="Every topic, including internal ones (offsets, transactions).")
@click.option("--factor", metavar="N", type=click.IntRange(1), required=True, help="Replicas per partition.")
@move_options
@cluster_options
def replicas_command(
    name: str | None,
    of_all: bool,
    factor: int,
    rate: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    access: Access,
) -> None:
    """Set the number of replicas of the topic NAME, or of all topics.

    New replicas go to the nodes with the fewest, in different racks if there are any. Ctrl-C cancels moves that are
    under way.

    With --all and three replicas or more, min.insync.replicas=2 becomes the default: a write with acks=all is
    acknowledged only when two replicas have it.

    \b
    Examples:
      millpond topic replicas orders --factor 3
      millpond topic replicas --all --factor 3
      millpond topic replicas orders --factor 3 --rate 50MB/s --yes
    """
    from millpond.admin.members import require_in_sync
    from millpond.admin.moves import read_placement
    from millpond.admin.placement import plan_factor, waited_for
    from millpond.admin.topics import find_topic

    if of_all == (name is not None):
        raise click.UsageError("Name a topic, or give --all for every topic.")
    with access.open() as cluster:
        if name is not None:
            find_topic(cluster, name)
        placement = read_placement(cluster)
        topics = sorted({each.topic for each in placement.partitions}) if name is None else [name]
        moves = plan_factor(placement, topics, factor)
        for node in waited_for(placement, moves):
            click.echo(
                f"Node {node} is down, and its partitions get all their replicas only when it is back. Is it "
                f"gone for good? Run `millpond node drain {node}` first.",
                err=True,
            )
        run_plan(cluster, moves, yes=yes, rate=rate, dry_run=dry_run, as_json=as_json)
        if of_all and not dry_run:
            require_in_sync(cluster, 2 if factor > 2 else 1)


@command.command("delete")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=TopicName())
@YES
@cluster_options
def delete_command(names: tuple[str, ...], yes: bool, access: Access) -> None:
    """Delete topics and their records, after asking.

    \b
    Examples:
      millpond topic delete orders
      millpond topic delete orders payments --yes
    """
    from millpond.admin.topics import delete_topics, find_topics

    with access.open() as cluster:
        find_topics(cluster, names, to_create=False)
        listed = ", ".join(names)
        question = f"Delete {listed} and every record in {'it' if len(names) == 1 else 'them'}?"
        confirm(question, yes=yes, to_do="delete without asking")
        delete_topics(cluster, names)
    click.echo(f"Deleted {listed}.")
