"""`millpond cluster`: run a cluster on this machine, and look at any."""

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
    """Several nodes that act as one: run them on this machine, or look at those of any cluster.

    \b
    Examples:
      millpond cluster up --nodes 3
      millpond cluster status
      millpond cluster rescue --data /var/lib/millpond
      millpond cluster balance --rate 50MB/s
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
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Where Prometheus asks the first node for /metrics; the others take the next ports.",
)
@click.option("--secure", is_flag=True, help="TLS, a login and rights, as of `millpond up --secure`.")
def up_command(
    nodes: int, data: str, listen: str, sets: tuple[str, ...], no_restart: bool, metrics: str | None, secure: bool
) -> None:
    """Run a cluster on this machine, one process a node, until Ctrl-C or SIGTERM.

    Three nodes keep every acknowledged record when any one of them dies. A node that dies is started again. On
    machines of their own the nodes are started one by one, with `millpond up --node N --cluster nodes.toml`; the
    data folder of this command has such a file.

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
    if internal := sum(node.internal.leads for node in facts.nodes):
        click.secho(f"The table leaves out {counted(internal, 'partition')} of internal topics.", dim=True)
    for warning in warnings(facts):
        click.echo(warning)


@command.command("rescue")
@click.option("--data", "folders", metavar="DIR", multiple=True, help="A survivor's data folder; may be repeated.")
@click.option(
    "--survivor", "elsewhere", metavar="N", type=int, multiple=True, help="A node whose folder is elsewhere."
)
@click.option(
    "--from", "source", metavar="N", type=int, help="Whose metadata to go on with.  [default: who has most]"
)
@click.option("--unclean", metavar="TOPIC", multiple=True, help="Lead it although its replicas lack records.")
@click.option("--start-empty", metavar="TOPIC", multiple=True, help="Recreate partitions of which nothing is left.")
@click.option("--drop-lost-replicas", is_flag=True, help="Do not wait for others in the place of the lost nodes.")
@click.option("--restored", is_flag=True, help="The folders come from backups: who has most leads.")
@click.option("--order", metavar="FILE", help="Carry out what was decided on another survivor's machine.")
@click.option("--order-out", metavar="FILE", help="Where to write the order for the survivors elsewhere.")
@click.option("--act", is_flag=True, help="Do it; asks for the id of the cluster first.")
@click.option("--yes-lose-data", is_flag=True, help="Do it without a question.")
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
    """Most voters are lost for good: make a new quorum from the nodes that have survived.

    Works on the folders of stopped nodes. Without --act it shows what is known, what would be done and what may be
    lost, and changes nothing. Nodes that are left out are strangers from then on: they are refused when they come
    back, and start with an empty folder. docs/operations.md, "Loss of a majority", goes through it.

    \b
    Examples:
      millpond cluster rescue --data /var/lib/millpond
      millpond cluster rescue --data /var/lib/millpond --unclean orders --act
      millpond cluster rescue --data DIR --survivor 4 --act --order-out rescue.order
      millpond cluster rescue --data DIR --order rescue.order --act   # on node 4
    """
    from millpond.broker.rescue.plan import Wish
    from millpond.cli.cluster.rescue import Asked, rescue

    if not folders:
        raise click.UsageError("Name the data folder of a survivor with --data DIR.")
    wish = Wish(frozenset(unclean), frozenset(start_empty), drop_lost_replicas, restored)
    asked = Asked(folders, frozenset(elsewhere), source, wish, order, order_out, as_json=as_json)
    rescue(asked, act=act or yes_lose_data, yes=yes_lose_data)


@command.command("balance")
@click.option("--leaders", is_flag=True, help="Only who leads: nothing is copied.")
@option(
    "--measure",
    meta="SPAN",
    default="5s",
    read=span,
    help="How long to watch what is written, so that busy partitions are led by different nodes; 0s goes by number.",
)
@move_options
@cluster_options
def balance_command(
    leaders: bool, measure: int, rate: int | None, dry_run: bool, yes: bool, as_json: bool, access: Access
) -> None:
    """Give every node its share of replicas, bytes and leaders. Nobody who writes or reads has to stop.

    The plan is shown first: what moves, how much is copied, and how long that takes at the rate. Few partitions move
    at a time. Ctrl-C leaves each where it was or where it should be, and the same command goes on later. Replicas of
    one partition stay in different racks; a node that is drained gets nothing, and what is on it goes elsewhere.

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
    """What the nodes have agreed to write (final), what each supports, and what raising it would bring.

    \b
    Examples:
      millpond cluster features
      millpond cluster features --json
    """
    from millpond.cli.cluster.features import show_features

    show_features(access, as_json=as_json)


@command.command("upgrade")
@click.argument("levels", nargs=-1, metavar="[FEATURE=LEVEL]...")
@click.option("--dry-run", is_flag=True, help="Show what would be raised, and change nothing.")
@YES
@AS_JSON
@cluster_options
def upgrade_command(levels: tuple[str, ...], dry_run: bool, yes: bool, as_json: bool, access: Access) -> None:
    """Raise the levels of features: after every node runs the new version.

    Without arguments every feature goes to the newest level that all nodes support. From then on older versions
    cannot join; until then any node can go back to the version before.

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
@click.option("--unsafe", is_flag=True, help="Also where something is given up by it.")
@click.option("--dry-run", is_flag=True, help="Show what would be lowered, and change nothing.")
@YES
@AS_JSON
@cluster_options
def downgrade_command(
    levels: tuple[str, ...], unsafe: bool, dry_run: bool, yes: bool, as_json: bool, access: Access
) -> None:
    """Lower the levels of features: before nodes go back to an older version.

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
    help="How a node is restarted on a machine of its own; {node}, {host} and {port} stand for the node's.",
)
@click.option("--node", "only", type=NodeNumber(), multiple=True, metavar="N", help="Only this one; may be repeated.")
@option("--timeout", type=click.IntRange(1), default=300, help="Seconds that one node may take.")
@click.option("--dry-run", is_flag=True, help="Show the order, and do nothing.")
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
    """Restart all nodes, one after the other, while clients go on; the controller last.

    A node is taken only while every other node is there and every replica is in sync, and the next one once it is
    back and in sync. The nodes of `millpond cluster up` are told to end and are started again by it; others are
    restarted by the command that --run names.

    \b
    Examples:
      millpond cluster restart
      millpond cluster restart --run 'ssh {host} sudo systemctl restart millpond'
    """
    from millpond.cli.cluster.restart import restart_cluster

    restart_cluster(access, data, run, only, seconds=timeout, dry_run=dry_run, yes=yes, as_json=as_json)
