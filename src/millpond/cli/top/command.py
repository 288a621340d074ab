"""`millpond top`: live rates and lag of any cluster."""

from __future__ import annotations

import signal
import sys
import time
from typing import TYPE_CHECKING

import click

from millpond.cli.access import Access, cluster_options
from millpond.cli.options import option

if TYPE_CHECKING:
    from millpond.remote.cluster import Cluster


@click.command("top")
@option(
    "--every", meta="SECONDS", type=click.FloatRange(0.5, 3600), default=2.0, help="The interval between updates."
)
@click.option("--once", is_flag=True, help="Show one update, and stop.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs: one line per update.")
@cluster_options
def command(every: float, once: bool, as_json: bool, access: Access) -> None:
    """Show a cluster live: records per second by topic, the lag of groups, nodes and problems.

    On a terminal `q` quits. In a pipe each update is printed as plain lines, until Ctrl-C. Rates cover the last ten
    seconds; those of groups are of committed offsets. Works with any Kafka cluster.

    \b
    Examples:
      millpond top
      millpond top --once
      millpond top --every 10 --json | jq .lag
    """
    with access.open() as cluster:
        if sys.stdout.isatty() and sys.stdin.isatty() and not once and not as_json:
            from millpond.cli.top.screen import run_screen

            run_screen(cluster, every)
        else:
            _print_samples(cluster, every, once=once, as_json=as_json)


def _print_samples(cluster: Cluster, every: float, *, once: bool, as_json: bool) -> None:
    from millpond.admin.cluster_rates import RateWindow, sample_cluster
    from millpond.cli.stop import stop_on
    from millpond.cli.terminal import print_json
    from millpond.cli.top.view import WINDOW_SECONDS, as_object, lines

    window = RateWindow(WINDOW_SECONDS)
    with stop_on(signal.SIGINT, signal.SIGTERM) as stop:
        window.add(sample_cluster(cluster))
        while True:
            # Rates need two samples, so the first one is not shown.
            stop.wait(every)
            if stop.is_requested:
                return
            window.add(sample_cluster(cluster))
            if as_json:
                print_json(as_object(window), indent=None)
            else:
                click.echo(f"{time.strftime('%H:%M:%S')}  " + "\n".join(lines(window)))
                if not once:
                    click.echo()
            sys.stdout.flush()
            if once:
                return
