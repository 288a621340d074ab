"""`millpond cluster`: run a cluster on this machine, and look at any."""

from __future__ import annotations

from dataclasses import asdict

import click

from millpond.cli.access import Access, cluster_options
from millpond.cli.options import option
from millpond.cli.terminal import print_json, print_table
from millpond.cli.up import CLUSTER_FOLDER


@click.group("cluster")
def command() -> None:
    """Several nodes that act as one: run them on this machine, or look at those of any cluster.

    \b
    Examples:
      millpond cluster up --nodes 3
      millpond cluster status
    """


@command.command("up")
@option("--nodes", type=click.IntRange(1, 99), default=3, help="How many.")
@option("--data", meta="DIR", default=CLUSTER_FOLDER, help="Where everything is kept.")
@option(
    "--listen",
    meta="HOST:PORT",
    default="127.0.0.1:9092",
    help="Where the first node listens; the others take the next ports.",
)
@click.option("--set", "sets", metavar="NAME=VALUE", multiple=True, help="A setting of every node; may be repeated.")
@click.option("--no-restart", is_flag=True, help="A node that dies stays dead.")
def up_command(nodes: int, data: str, listen: str, sets: tuple[str, ...], no_restart: bool) -> None:
    """Run a cluster on this machine, one process a node, until Ctrl-C or SIGTERM.

    Three nodes keep every acknowledged record when any one of them dies. A node that dies is started again. On
    machines of their own the nodes are started one by one, with `millpond up --node N --cluster nodes.toml`; the
    data folder of this command has such a file.

    \b
    Examples:
      millpond cluster up
      millpond cluster up --nodes 5 --data /var/lib/millpond --listen 10.0.0.1:9092
      millpond cluster up --set num.partitions=6 --no-restart
    """
    from millpond.cli.cluster.run import run_cluster

    run_cluster(nodes, data, listen, sets, restart=not no_restart)


@command.command("status")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@cluster_options
def status_command(as_json: bool, access: Access) -> None:
    """Who is there, who leads what, who is in sync and who is behind.

    \b
    Examples:
      millpond cluster status
      millpond cluster status -b 127.0.0.1:9093 --json
    """
    from millpond.admin.nodes import describe_nodes
    from millpond.cli.cluster.view import COLUMNS, row, warnings

    with access.open() as cluster:
        facts = describe_nodes(cluster)
    if as_json:
        print_json(asdict(facts), indent=None)
        return
    print_table(COLUMNS, [row(node) for node in facts.nodes], words=len(COLUMNS))
    for warning in warnings(facts):
        click.echo(warning)
