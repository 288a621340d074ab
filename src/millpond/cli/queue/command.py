"""`millpond queue`: work queues, each a topic as one share group reads it, on any cluster with share groups."""

from __future__ import annotations

import click

from millpond.cli.access import Access, cluster_options
from millpond.cli.completion.names import ShareGroupName, TopicName
from millpond.cli.dlq.options import read_rate
from millpond.cli.options import AS_JSON, YES, option
from millpond.cli.queue.options import GROUP
from millpond.cli.queue.peek import peek_command
from millpond.cli.queue.receive import receive_command
from millpond.cli.queue.send import send_command
from millpond.cli.terminal import confirm, print_json
from millpond.cli.text import counted


@click.group("queue")
def command() -> None:
    """Work queues: each record is a job for one member of a share group.

    A queue is a topic as one share group reads it. Commands take the TOPIC, and --group if several share groups read
    it. See `millpond help queues`.

    \b
    Examples:
      millpond queue list
      millpond queue describe emails --watch 2
      echo '{"to": "ada@example.org"}' | millpond queue send emails --delay 5m
      millpond queue receive emails --group mailers --count 3
      millpond queue peek emails
      millpond queue purge emails
      millpond queue redrive emails
    """


command.add_command(send_command)
command.add_command(receive_command)
command.add_command(peek_command)


@command.command("list")
@click.option("-g", "--group", "groups", metavar="GROUP", type=ShareGroupName(), multiple=True, help="Repeatable.")
@AS_JSON
@cluster_options
def list_command(groups: tuple[str, ...], as_json: bool, access: Access) -> None:
    """List the queues: what waits, is out with members, delayed or dead, and how old the oldest record is.

    A dash means unknown, or that nothing is unfinished and nobody reads. Apache Kafka does not say what is out or
    delayed: there, WAITING counts everything that is not finished.

    \b
    Examples:
      millpond queue list
      millpond queue list --group mailers
      millpond queue list --json | jq '.[] | select(.waiting > 1000).topic'
    """
    from millpond.admin.queues.find import check_share_group
    from millpond.admin.queues.watch import read_queues
    from millpond.cli.queue.description import print_queues

    with access.open() as cluster:
        for group in groups:
            check_share_group(cluster, group)
        found = read_queues(cluster, groups or None)
    if found.groups_left_out:
        click.echo(f"{counted(found.groups_left_out, 'group')} were not examined; name them with --group.", err=True)
    print_queues(found.queues, as_json=as_json)


@command.command("describe")
@click.argument("topic", type=TopicName())
@GROUP
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
    topic: str, group: str | None, as_json: bool, watch: float | None, sample: float, access: Access
) -> None:
    """Show the partitions of a queue, the members that hold records, and the settings of its group.

    \b
    Examples:
      millpond queue describe emails
      millpond queue describe emails --group mailers --watch 2
      millpond queue describe emails --json --sample 0 | jq .oldest_age_ms
    """
    from millpond.admin.queues.find import find_queue_name, read_queue
    from millpond.admin.queues.settings import queue_settings
    from millpond.admin.queues.watch import QueueWatch
    from millpond.cli.queue.description import show_queue, watch_queue

    with access.open() as cluster:
        name = find_queue_name(cluster, topic, group)
        looks = QueueWatch(cluster, [name.group], sample_seconds=sample)
        if watch is None:
            show_queue(read_queue(looks, name), queue_settings(cluster, name.group), as_json=as_json)
        else:
            watch_queue(lambda: read_queue(looks, name), watch, as_json=as_json)


@command.command("purge")
@click.argument("topic", type=TopicName())
@GROUP
@YES
@AS_JSON
@cluster_options
def purge_command(topic: str, group: str | None, yes: bool, as_json: bool, access: Access) -> None:
    """Empty a queue, after asking: its group continues at the end of TOPIC.

    The records stay in the topic, and other groups still receive them. The group must have no active members.

    \b
    Examples:
      millpond queue purge emails
      millpond queue purge emails --group mailers --yes
    """
    from millpond.admin.queues.find import find_queue_name
    from millpond.admin.queues.purge import apply_purge, plan_purge

    with access.open() as cluster:
        name = find_queue_name(cluster, topic, group)
        plan = plan_purge(cluster, name)
        question = f"Skip {counted(plan.records, 'unfinished record')} of {name}?"
        confirm(question, yes=yes, to_do="purge without asking")
        apply_purge(cluster, plan)
    if as_json:
        print_json({"topic": name.topic, "group": name.group, "records": plan.records})
    else:
        click.echo(f"Purged {name}: {counted(plan.records, 'record')} will not be delivered.")


@command.command("redrive")
@click.argument("topic", type=TopicName())
@GROUP
@click.option("--from", "letters", metavar="TOPIC", type=TopicName(), help="These dead letters, not the group's own.")
@click.option("--dry-run", is_flag=True, help="Only show what it would do.")
@click.option("--rate", metavar="N/s", help="At most N records a second.")
@option("--max-redrives", type=click.IntRange(1), default=3, help="Skip a record that came back after N redrives.")
@cluster_options
def redrive_command(
    topic: str,
    group: str | None,
    letters: str | None,
    dry_run: bool,
    rate: str | None,
    max_redrives: int,
    access: Access,
) -> int:
    """Send the dead letters of a queue back to it, each exactly once.

    They come from the topic that the group names in errors.deadletterqueue.topic.name. Every group that reads TOPIC
    receives them again, except Millpond's workers of other groups. `millpond dlq redrive` selects single letters.

    \b
    Examples:
      millpond queue redrive emails --dry-run
      millpond queue redrive emails --group mailers --rate 50/s
    """
    from millpond.admin.dead_letters.letters import Filter
    from millpond.admin.dead_letters.redrive import RedriveOrder
    from millpond.admin.queues.dead import find_dead_letter_topic
    from millpond.admin.queues.find import find_queue_name
    from millpond.cli.dlq.redrive import run_redrive

    with access.open() as cluster:
        name = find_queue_name(cluster, topic, group)
        source = letters or find_dead_letter_topic(cluster, name.group)
        selection = Filter(groups=frozenset({name.group}), origins=frozenset({name.topic}))
        order = RedriveOrder(source, selection, redrives_max=max_redrives, rate=read_rate(rate))
        return run_redrive(cluster, order, dry_run=dry_run)
