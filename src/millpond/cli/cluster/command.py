"""`millpond cluster`: runs a cluster on this machine; inspects and changes any cluster."""

from __future__ import annotations

from dataclasses import asdict

import click

from millpond.cli.access import Access, cluster_options
from millpond.cli.completion.names import NodeNumber
from millpond.cli.folders import CLUSTER_FOLDER
from millpond.cli.moves import move_options
from millpond.cli.options import AS_JSON, YES, option, span
from millpond.cli.terminal import print_json, print_table
from millpond.cli.text import counted


@click.group("cluster")
def command() -> None:
    """Run a cluster on this machine, or inspect and change any cluster.

    \b
    Examples:
      millpond cluster up --nodes 3
      millpond cluster status
      millpond cluster rescue --data /var/lib/millpond
      millpond cluster balance --rate 50MB/s
    """


@command.command("up")
@option("--nodes", type=click.IntRange(1, 99), default=3, help="How many.")
@option("--data", meta="DIR", default=CLUSTER_FOLDER, help="The folder for all data.")
@option(
    "--listen",
    meta="HOST:PORT",
    default="127.0.0.1:9092",
    help="Where the first node listens; the others take the next ports.",
)
@click.option("--set", "sets", metavar="NAME=VALUE", multiple=True, help="A setting for every node; may be repeated.")
@click.option("--no-restart", is_flag=True, help="Do not restart a node that dies.")
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Where the first node serves /metrics; the others take the next ports.",
)
@click.option("--secure", is_flag=True, help="TLS, logins and ACLs, as with `millpond up --secure`.")
def up_command(
    nodes: int, data: str, listen: str, sets: tuple[str, ...], no_restart: bool, metrics: str | None, secure: bool
) -> None:
    """Run a cluster on this machine, one process per node, until Ctrl-C or SIGTERM.

    Three nodes keep every acknowledged record when any one of them dies. A node that dies is restarted. To run the
    nodes on separate machines, start each with `millpond up --node N --cluster nodes.toml`; the data folder of this
    command has such a file.

    \b
    Examples:
      millpond cluster up
      millpond cluster up --secure
      millpond cluster up --nodes 5 --data /var/lib/millpond --listen 10.0.0.1:9092
      millpond cluster up --set num.partitions=6 --no-restart
    """
    from millpond.cli.cluster.run import run_cluster

    run_cluster(nodes, data, listen, sets, restart=not no_restart, metrics=metrics, secure=secure)


@command.command("status")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@cluster_options
def status_command(as_json: bool, access: Access) -> None:
    """Show the nodes: which are up, what they lead, and which replicas are in sync.

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
    if internal := sum(node.internal.leads for node in facts.nodes):
        click.secho(f"The table leaves out {counted(internal, 'partition')} of internal topics.", dim=True)
    for warning in warnings(facts):
        click.echo(warning)


@command.command("rescue")
@click.option("--data", "folders", metavar="DIR", multiple=True, help="A survivor's data folder; may be repeated.")
@click.option(
    "--survivor",
    "elsewhere",
    metavar="N",
    type=int,
    multiple=True,
    help="A survivor whose folder is on another machine.",
)
@click.option(
    "--from", "source", metavar="N", type=int, help="The node whose metadata to use. [default: the longest log]"
)
@click.option("--unclean", metavar="TOPIC", multiple=True, help="Elect leaders although their replicas lack records.")
@click.option("--start-empty", metavar="TOPIC", multiple=True, help="Recreate partitions that are completely lost.")
@click.option("--drop-lost-replicas", is_flag=True, help="Do not wait for replacements of the lost nodes.")
@click.option("--restored", is_flag=True, help="The folders come from backups: the longest log leads.")
@click.option("--order", metavar="FILE", help="Carry out an order written on another survivor's machine.")
@click.option("--order-out", metavar="FILE", help="Where to write the order for survivors on other machines.")
@click.option("--act", is_flag=True, help="Do it, after asking for the cluster's id.")
@click.option("--yes-lose-data", is_flag=True, help="Do not ask.")
@AS_JSON
def rescue_command(
    folders: tuple[str, ...],
    elsewhere: tuple[int, ...],
    source: int | None,
    unclean: tuple[str, ...],
    start_empty: tuple[str, ...],
    drop_lost_replicas: bool,
    restored: bool,
    order: str | None,
    order_out: str | None,
    act: bool,
    yes_lose_data: bool,
    as_json: bool,
) -> None:
    """Build a new quorum from the surviving nodes when most voters are lost for good.

    Works on the folders of stopped nodes. Without --act it only shows what it would do and what may be lost. Nodes
    that are left out are refused when they come back, and must start with an empty folder. See "Loss of a majority"
    in docs/operations.md.

    \b
    Examples:
      millpond cluster rescue --data /var/lib/millpond
      millpond cluster rescue --data /var/lib/millpond --unclean orders --act
      millpond cluster rescue --data DIR --survivor 4 --act --order-out rescue.order
      millpond cluster rescue --data DIR --order rescue.order --act   # on node 4
    """
    from millpond.broker.rescue.plan import Wish
    from millpond.cli.cluster.rescue import RescueOptions, rescue

    if not folders:
        raise click.UsageError("Name the data folder of a survivor with --data DIR.")
    wish = Wish(frozenset(unclean), frozenset(start_empty), drop_lost_replicas, restored)
    options = RescueOptions(folders, frozenset(elsewhere), source, wish, order, order_out, as_json=as_json)
    rescue(options, act=act or yes_lose_data, yes=yes_lose_data)


@command.command("balance")
@click.option("--leaders", is_flag=True, help="Move leaders only; copy nothing.")
@option(
    "--measure",
    meta="SPAN",
    default="5s",
    read=span,
    help="How long to measure writes, to spread busy partitions over the nodes; 0s spreads leaders by count.",
)
@move_options
@cluster_options
def balance_command(
    leaders: bool, measure: int, rate: int | None, dry_run: bool, yes: bool, as_json: bool, access: Access
) -> None:
    """Spread replicas, bytes and leaders evenly over the nodes, while clients keep reading and writing.

    Shows the plan first: what moves, how much is copied, and how long that takes at the rate. A few partitions move
    at a time. Ctrl-C leaves each partition where it was or where it should be; run the command again to continue.
    Replicas of one partition stay in different racks; drained nodes are emptied.

    \b
    Examples:
      millpond cluster balance --dry-run
      millpond cluster balance --rate 50MB/s
      millpond cluster balance --leaders --measure 30s --yes
    """
    from millpond.cli.cluster.balance import run_balance

    with access.open() as cluster:
        run_balance(
            cluster,
            only_leaders=leaders,
            measure_ms=measure,
            rate=rate,
            dry_run=dry_run,
            yes=yes,
            as_json=as_json,
        )


@command.command("features")
@AS_JSON
@cluster_options
def features_command(as_json: bool, access: Access) -> None:
    """Show the finalized level of each feature, what each node supports, and what an upgrade would bring.

    \b
    Examples:
      millpond cluster features
      millpond cluster features --json
    """
    from millpond.cli.cluster.features import show_features

    show_features(access, as_json=as_json)


@command.command("upgrade")
@click.argument("levels", nargs=-1, metavar="[FEATURE=LEVEL]...")
@click.option("--dry-run", is_flag=True, help="Only show what would be raised.")
@YES
@AS_JSON
@cluster_options
def upgrade_command(levels: tuple[str, ...], dry_run: bool, yes: bool, as_json: bool, access: Access) -> None:
    """Raise the levels of features, once every node runs the new version.

    Without arguments every feature is raised to the newest level that all nodes support. After that, older versions
    cannot join; before that, any node can be downgraded to the previous version.

    \b
    Examples:
      millpond cluster upgrade --dry-run
      millpond cluster upgrade
      millpond cluster upgrade metadata.version=27
    """
    from millpond.cli.cluster.features import raise_levels

    raise_levels(access, levels, dry_run=dry_run, yes=yes, as_json=as_json)


@command.command("downgrade")
@click.argument("levels", nargs=-1, required=True, metavar="FEATURE=LEVEL...")
@click.option("--unsafe", is_flag=True, help="Even if it loses something.")
@click.option("--dry-run", is_flag=True, help="Only show what would be lowered.")
@YES
@AS_JSON
@cluster_options
def downgrade_command(
    levels: tuple[str, ...], unsafe: bool, dry_run: bool, yes: bool, as_json: bool, access: Access
) -> None:
    """Lower the levels of features, before nodes are downgraded to an older version.

    \b
    Examples:
      millpond cluster downgrade metadata.version=25
    """
    from millpond.cli.cluster.features import lower_levels

    lower_levels(access, levels, unsafe=unsafe, dry_run=dry_run, yes=yes, as_json=as_json)


@command.command("restart")
@option("--data", meta="DIR", default=CLUSTER_FOLDER, help="The folder of `millpond cluster up` on this machine.")
@click.option(
    "--run",
    metavar="COMMAND",
    help="The command that restarts a node on another machine; {node}, {host} and {port} are filled in.",
)
@click.option(
    "--node", "only", type=NodeNumber(), multiple=True, metavar="N", help="Only this node; may be repeated."
)
@option("--timeout", type=click.IntRange(1), default=300, help="Timeout for one node, in seconds.")
@click.option("--dry-run", is_flag=True, help="Only show the order.")
@YES
@AS_JSON
@cluster_options
def restart_command(
    data: str,
    run: str | None,
    only: tuple[int, ...],
    timeout: int,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    access: Access,
) -> None:
    """Restart all nodes one after the other, the controller last, while clients keep working.

    A node is restarted only while every other node is up and every replica is in sync; the next one follows once it
    is back in sync. Nodes of `millpond cluster up` are stopped, and that command restarts them; others are restarted
    by the command given with --run.

    \b
    Examples:
      millpond cluster restart
      millpond cluster restart --run 'ssh {host} sudo systemctl restart millpond'
    """
    from millpond.cli.cluster.restart import restart_cluster

    restart_cluster(access, data, run, only, seconds=timeout, dry_run=dry_run, yes=yes, as_json=as_json)
