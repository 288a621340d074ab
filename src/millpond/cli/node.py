"""`millpond node`: lists the nodes of a cluster, drains and removes them."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from millpond.base.units import show_bytes
from millpond.cli.access import Access, cluster_options
from millpond.cli.cluster.view import named
from millpond.cli.completion.names import NodeNumber
from millpond.cli.errors import Failed
from millpond.cli.moves import move_options, run_plan
from millpond.cli.options import AS_JSON, YES
from millpond.cli.terminal import confirm, panel, print_json, print_list, print_table
from millpond.cli.text import NOTHING, counted

if TYPE_CHECKING:
    from millpond.admin.members import Member

NODE = click.argument("node_id", metavar="NODE", type=NodeNumber())


@click.group("node")
def command() -> None:
    """The nodes of a cluster: list, describe, drain and remove them.

    To add a node, run `millpond up --join HOST:PORT` on its machine.

    \b
    Examples:
      millpond node list
      millpond node describe 3
      millpond node drain 3
      millpond node remove 3
    """


@command.command("list")
@AS_JSON
@cluster_options
def list_command(as_json: bool, access: Access) -> None:
    """List all nodes: their state, their vote on the metadata, and what they lead and hold.

    \b
    Example:
      millpond node list
    """
    from millpond.admin.members import describe_members
    from millpond.admin.moves import drained_nodes

    with access.open() as cluster:
        members, drained = describe_members(cluster), drained_nodes(cluster)
    print_list(
        [_as_json(each, each.node_id in drained) for each in members.nodes],
        ("Node", "Address", "State", "Vote", "Leads", "In sync", "Metadata"),
        [
            (
                str(each.node_id),
                each.facts.address or NOTHING,
                _state(each, each.node_id in drained),
                "yes" if each.is_voter else "no",
                f"{each.facts.without_internal.leads:,}",
                f"{each.facts.without_internal.in_sync:,} of {each.facts.without_internal.replicas:,}",
                _lag(each),
            )
            for each in members.nodes
        ],
        as_json=as_json,
        otherwise="There are no nodes.",
        words=4,
    )
    if not as_json and (internal := sum(each.facts.internal.leads for each in members.nodes)):
        click.secho(f"The table leaves out {counted(internal, 'partition')} of internal topics.", dim=True)


def _state(member: Member, is_drained: bool) -> str:
    words = [
        "ready" if member.is_active else "away" if member.is_registered else "unknown",
        "controller" if member.facts.is_controller and member.is_active else "",
        "drained" if is_drained else "",
    ]
    return ", ".join(filter(None, words))


def _lag(member: Member) -> str:
    if member.metadata_lag is None:
        return NOTHING
    return "up to date" if not member.metadata_lag else f"{member.metadata_lag:,} behind"


def _as_json(member: Member, is_drained: bool) -> dict[str, object]:
    facts = member.facts
    return {
        "node": member.node_id,
        "address": facts.address,
        "rack": facts.rack,
        "registered": member.is_registered,
        "there": member.is_active,
        "drained": is_drained,
        "controller": facts.is_controller,
        "voter": member.is_voter,
        "directory_id": str(member.directory_id),
        "metadata_lag": member.metadata_lag,
        "leads": facts.leads,
        "replicas": facts.replicas,
        "internal": asdict(facts.internal),
        "behind": [each.folder for each in facts.behind],
    }


@command.command("describe")
@NODE
@AS_JSON
@cluster_options
def describe_command(node_id: int, as_json: bool, access: Access) -> None:
    """Show one node: its state, its vote, and what it holds by topic.

    \b
    Example:
      millpond node describe 3
    """
    from millpond.admin.drain import find_member
    from millpond.admin.members import describe_members
    from millpond.admin.moves import read_placement

    with access.open() as cluster:
        member = find_member(describe_members(cluster), node_id)
        placement = read_placement(cluster)
    held = {each: held for each, held in placement.partitions.items() if node_id in held.replicas}
    replicas, leads, sizes = Counter[str](), Counter[str](), Counter[str]()
    for partition, each in held.items():
        replicas[partition.topic] += 1
        leads[partition.topic] += each.leader == node_id
        sizes[partition.topic] += each.size_bytes
    if as_json:
        topics = [
            {"topic": name, "replicas": replicas[name], "leads": leads[name], "bytes": sizes[name]}
            for name in sorted(replicas)
        ]
        print_json({**_as_json(member, node_id in placement.drained), "topics": topics})
        return
    facts = member.facts
    click.echo(
        panel(
            f"Node {node_id}",
            [
                ("address", facts.address or NOTHING),
                *([("rack", facts.rack)] if facts.rack else []),
                ("state", _state(member, node_id in placement.drained)),
                ("vote", "yes" if member.is_voter else "no"),
                ("metadata", _lag(member)),
                ("leads", f"{facts.leads:,}"),
                ("in sync", f"{facts.in_sync:,} of {facts.replicas:,}"),
                ("behind", named(facts.behind)),
            ],
        )
    )
    if replicas:
        click.echo()
        print_table(
            ("Topic", "Replicas", "Leads", "Bytes"),
            [(name, f"{replicas[name]:,}", f"{leads[name]:,}", show_bytes(sizes[name])) for name in sorted(replicas)],
        )


@command.command("drain")
@click.argument("node_ids", metavar="NODE...", type=click.IntRange(0), nargs=-1, required=True)
@click.option("--undo", is_flag=True, help="Use the node again; partitions that have moved stay where they are.")
@move_options
@cluster_options
def drain_command(
    node_ids: tuple[int, ...],
    undo: bool,
    rate: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    access: Access,
) -> None:
    """Move everything away from a node, so that it can be removed. Also works for a dead node.

    Shows the plan first. A drained node gets no new partitions, and other nodes vote in its place. Ctrl-C cancels
    moves that are under way; run the same command to continue. Drain several dead nodes together, so that none waits
    for another.

    \b
    Examples:
      millpond node drain 3
      millpond node drain 3 --rate 50MB/s --yes
      millpond node drain 2 3
      millpond node drain 3 --undo
    """
    from millpond.admin.drain import find_member, mark_drained, plan_drain_of, still_held
    from millpond.admin.members import describe_members

    if undo and dry_run:
        raise click.UsageError("--undo moves nothing: leave out --dry-run.")
    node_ids = tuple(dict.fromkeys(node_ids))
    with access.open() as cluster:
        members = describe_members(cluster)
        chosen = [find_member(members, node_id) for node_id in node_ids]

        def mark() -> None:
            mark_drained(cluster, node_ids, not undo)

        if undo:
            mark()
            for node_id in node_ids:
                click.echo(f"Node {node_id} is in use again.")
            return
        moves = plan_drain_of(cluster, node_ids)
        run_plan(
            cluster,
            moves,
            yes=yes,
            rate=rate,
            dry_run=dry_run,
            as_json=as_json,
            otherwise=f"Node {', '.join(map(str, node_ids))} holds nothing.",
            on_yes=mark,
        )
        if dry_run:
            return
        if not moves:
            mark()
        # A topic that was created while the plan was shown, or moves by another command.
        held = still_held(cluster, node_ids)
        for member in chosen:
            if left := sorted(each for each, placement in held.items() if member.node_id in placement.target):
                raise Failed(
                    f"Node {member.node_id} holds {counted(len(left), 'partition')} that were added meanwhile "
                    f"({named(left)}): run the same command again."
                )
            if not as_json:
                first = "stop it, and then" if member.is_active else "now"
                click.echo(
                    f"Node {member.node_id} is drained: {first} remove it from the cluster with "
                    f"`millpond node remove {member.node_id}`."
                )


@command.command("remove")
@NODE
@YES
@cluster_options
def remove_command(node_id: int, yes: bool, access: Access) -> None:
    """Remove a node that has been drained and stopped, or that is dead and holds nothing.

    If it is started again from its old data folder, it joins again as an empty node.

    \b
    Examples:
      millpond node remove 3
      millpond node remove 3 --yes
    """
    from millpond.admin.drain import find_member
    from millpond.admin.members import describe_members, forget_node, remove_voter, set_drained

    with access.open() as cluster:
        member = find_member(describe_members(cluster), node_id)
        if member.facts.replicas:
            raise Failed(
                f"Node {node_id} holds {counted(member.facts.replicas, 'replica')}: move everything away first, with "
                f"`millpond node drain {node_id}`."
            )
        if member.is_active:
            raise Failed(f"Node {node_id} is running at {member.facts.address}: stop it first.")
        confirm(f"Remove node {node_id} for good?", yes=yes, to_do="remove it without asking")
        if member.is_voter:
            remove_voter(cluster, member)
        if member.is_registered:
            # A later node with this number must not inherit the settings.
            set_drained(cluster, node_id, False)
            forget_node(cluster, node_id)
    click.echo(f"Removed node {node_id}.")
