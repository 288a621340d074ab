"""`millpond cluster restart`: one node after the other, while clients keep working."""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from millpond.cli.access import Access
from millpond.cli.errors import Failed, cause
from millpond.cli.folders import node_folder
from millpond.cli.terminal import confirm, print_json, print_table
from millpond.cli.text import NOTHING
from millpond.log.names import LOCK_FILE

if TYPE_CHECKING:
    from millpond.admin.nodes import NodeFacts

WORDS: Final = ("node", "host", "port")


def restart_cluster(
    access: Access,
    data: str,
    run: str | None,
    only: Sequence[int],
    *,
    seconds: int,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """With `as_json` the progress goes to standard error, and the result to standard output."""
    from millpond.admin.errors import Refused
    from millpond.admin.nodes import describe_nodes
    from millpond.admin.restart import restart_nodes, restart_order, unhealthy_reason

    with access.open() as cluster:
        facts = describe_nodes(cluster)
        node_ids = [node.node_id for node in facts.nodes]
        if strangers := sorted(set(only) - set(node_ids)):
            raise Failed(f"There is no node {strangers[0]}: the cluster has {', '.join(map(str, node_ids))}.")
        if len(node_ids) < 2:
            raise Failed("The cluster has one node, so a restart interrupts service. Stop it and start it.")
        order = restart_order(facts, only)
        how = [_by_command(run, node, seconds, err=as_json) if run else _by_signal(data, node) for node in order]
        if not as_json:
            print_table(
                ("Node", "Address", "", "By"),
                [
                    (node.node_id, node.address or NOTHING, "controller" if node.is_controller else "", text)
                    for node, (text, _) in zip(order, how, strict=True)
                ],
                words=4,
            )
        why = unhealthy_reason(facts, node_ids)
        outcome = {
            "is_done": not dry_run,
            "waits_for": why or None,
            "nodes": [
                {"node": node.node_id, "address": node.address, "controller": node.is_controller, "by": text}
                for node, (text, _) in zip(order, how, strict=True)
            ],
        }
        if dry_run:
            if as_json:
                print_json(outcome)
            else:
                click.echo(f"It would wait: {why}." if why else "Nothing was done.")
            return
        say = partial(click.echo, err=as_json)
        confirm("Restart them one after the other?", yes=yes, to_do="restart them without asking")
        restarts = {node.node_id: restart for node, (_, restart) in zip(order, how, strict=True)}

        def restart(node: NodeFacts) -> None:
            say(f"node {node.node_id} restarting")
            restarts[node.node_id]()

        try:
            restart_nodes(cluster, order, node_ids, restart, say, float(seconds))
        except Refused as fault:
            raise Failed(str(fault)) from None
    if as_json:
        print_json(outcome)
    else:
        click.echo("Every node was restarted." if not only else "Done.")


def _by_command(run: str, node: NodeFacts, seconds: float, *, err: bool = False) -> tuple[str, Callable[[], None]]:
    """`err` sends the command's output to standard error."""
    host, _, port = (node.address or "").rpartition(":")
    words = [
        word.replace("{node}", str(node.node_id)).replace("{host}", host).replace("{port}", port)
        for word in shlex.split(run)
    ]
    text = shlex.join(words)

    def restart() -> None:
        try:
            subprocess.run(words, check=True, timeout=seconds, stdout=sys.stderr if err else None)
        except subprocess.TimeoutExpired:
            raise Failed(
                f"{text} did not finish within {seconds:.0f} s: check node {node.node_id}, then try again."
            ) from None
        except OSError as error:
            raise Failed(f"{text} cannot be run: {cause(error)}.") from None
        except subprocess.CalledProcessError as error:
            raise Failed(
                f"{text} ended with code {error.returncode}: node {node.node_id} was not restarted."
            ) from None

    return text, restart


def _by_signal(data: str, node: NodeFacts) -> tuple[str, Callable[[], None]]:
    """Stops a node on this machine, which its supervisor restarts, as `millpond cluster up` does."""
    path = Path(node_folder(data, node.node_id)) / LOCK_FILE
    pid = _holder(path, node.node_id)

    def restart() -> None:
        # It may have died and been restarted meanwhile.
        os.kill(_holder(path, node.node_id), signal.SIGTERM)

    return f"SIGTERM to {pid}", restart


def _holder(path: Path, node_id: int) -> int:
    """The process that holds the data folder. Only the lock proves that it runs; the pid in the file may be stale."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError as error:
        raise Failed(
            f"{path} cannot be read ({cause(error)}): name the folder of `millpond cluster up` with --data DIR, or "
            "give the command that restarts a node with --run COMMAND."
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        if text.isdecimal():
            return int(text)
        raise Failed(f"Node {node_id} runs a version that does not write its pid; restart it with --run.") from None
    else:
        raise Failed(f"No process uses {path.parent}: node {node_id} does not run there.")
    finally:
        os.close(descriptor)
