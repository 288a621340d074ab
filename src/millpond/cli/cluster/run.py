"""`millpond cluster up`: runs the nodes of a cluster as processes on this machine."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from millpond import __version__
from millpond.base.settings import SettingError, Settings
from millpond.cli.addresses import address_of, metrics_address, shown_address
from millpond.cli.cluster.children import NODE, CannotRun, Child, Event, Supervisor, without_time
from millpond.cli.cluster.nodes_file import NodesFile, read_nodes, write_nodes
from millpond.cli.cluster.ports import free_ports
from millpond.cli.cluster.view import Lines, View, live_table, row, warnings
from millpond.cli.errors import Failed, sentence
from millpond.cli.first_steps import first_steps
from millpond.cli.folders import node_folder, unusable
from millpond.cli.secure import check_asks, first_secure_steps, make_secure, node_texts, secured, warn_if_open
from millpond.cli.stop import Stop, stop_on
from millpond.cli.terminal import Row, panel
from millpond.cli.up import assignments
from millpond.config.node import DATA_FOLDER, LISTEN, host_and_port, node_settings
from millpond.node.private_files import make_private_folder
from millpond.node.secure_folder import SecureFolder
from millpond.node.signals import stop_signals

if TYPE_CHECKING:
    from millpond.admin.nodes import ClusterFacts

NODES_FILE: Final = "nodes.toml"
LOOK_SECONDS: Final = 1.0
ANSWER_MS: Final = "2000"
WAIT_SECONDS: Final = 20.0
"""After this time, nodes that are not ready yet are listed."""


def run_cluster(
    count: int,
    data: str,
    listen: str,
    sets: tuple[str, ...],
    *,
    restart: bool,
    metrics: str | None,
    secure: bool = False,
) -> None:
    """Starts all nodes and supervises them."""
    try:
        monitored = [] if metrics is None else [metrics_address(metrics, at) for at in range(count)]
    except SettingError as fault:
        raise click.UsageError(f"--metrics {metrics}: {fault}.") from None
    settings = assignments(sets)
    folder = Path(data)
    nodes = dict(enumerate(_addresses(listen, count), 1))
    _check_count(folder, nodes)
    security = _security(data, nodes.values()) if secure else secured(data)
    if security is not None:
        settings = node_texts(security) | settings
    of_first = _settings({DATA_FOLDER.name: data, LISTEN.name: nodes[1], **settings})
    if security is not None:
        check_asks(of_first)
    else:
        warn_if_open(of_first)
    file = NodesFile(nodes, {}, settings)
    _keep(file, folder)
    with stop_on(*stop_signals()) as stop:
        _Run(file, folder, restart=restart, monitored=monitored, security=security).until(stop)
    click.echo("Stopped; everything is on disk.")


def _security(data: str, addresses: Iterable[str]) -> SecureFolder:
    return make_secure(data, [host_and_port(each)[0] for each in addresses])


def _settings(texts: dict[str, str]) -> Settings:
    try:
        return node_settings(texts)
    except SettingError as fault:
        raise click.UsageError(sentence(str(fault))) from None


def _addresses(listen: str, count: int) -> list[str]:
    """Consecutive free ports, or any free ones for port 0."""
    try:
        host, first = host_and_port(address_of(listen))
    except SettingError as fault:
        raise click.UsageError(f"--listen {listen}: {fault}.") from None
    if host in ("0.0.0.0", "::"):
        raise click.UsageError(
            f"--listen {listen}: the nodes must be able to reach each other; give an address of this machine."
        )
    return [shown_address(host, port) for port in free_ports(host, first, count, f"a cluster of {count}")]


def _check_count(folder: Path, nodes: Mapping[int, str]) -> None:
    """The nodes that the folder holds already; their number cannot change, because each has a vote."""
    path = folder / NODES_FILE
    if path.exists():
        before = sorted(read_nodes(str(path)).nodes)
        if before != sorted(nodes):
            raise Failed(
                f"{folder} holds a cluster of {len(before)} nodes: start it with --nodes {len(before)}, "
                "or choose another folder with --data DIR."
            )


def _keep(file: NodesFile, folder: Path) -> None:
    """Writes the nodes file."""
    try:
        make_private_folder(folder)
        write_nodes(folder / NODES_FILE, file)
    except OSError as error:
        raise unusable(folder, error) from None


class _Run:
    """The children, the state of the cluster, and their display."""

    def __init__(
        self,
        file: NodesFile,
        folder: Path,
        *,
        restart: bool,
        monitored: list[str],
        security: SecureFolder | None = None,
    ) -> None:
        """`monitored` has the metrics address of each node; empty for none."""
        self._monitored = monitored
        self._security = security
        self._file = file
        self._folder = folder
        self._view: View = Lines()
        self._screen = ExitStack()
        events: queue.Queue[Event] = queue.Queue()
        common = ("--cluster", str(folder / NODES_FILE), "--data")
        metrics_options = dict(zip(file.nodes, (("--metrics", each) for each in monitored), strict=False))
        self._children = {
            each: Child(
                each,
                [*NODE, *metrics_options.get(each, ()), "--node", str(each), *common, node_folder(str(folder), each)],
                events,
            )
            for each in file.nodes
        }
        self._supervisor = Supervisor("node", self._children, events, self._say, restart=restart)
        self._watch = _Watch(",".join(file.nodes.values()), tuple(file.nodes), security)
        self._is_announced = False

    def until(self, stop: Stop) -> None:
        began = time.monotonic()
        try:
            self._supervisor.start()
            while not stop.is_requested:
                self._turn()
                if not self._is_announced and time.monotonic() - began > WAIT_SECONDS:
                    began = time.monotonic()
                    waited = ", ".join(str(each.node_id) for each in self._children.values() if each.state != "ready")
                    self._view.say(f"not ready yet: node {waited}")
        except CannotRun as fault:
            raise Failed(str(fault)) from None
        finally:
            self._screen.close()
            self._view = Lines()
            self._watch.stop()
            self._end()

    def _turn(self) -> None:
        self._supervisor.turn()
        if not self._is_announced and self._supervisor.is_ready:
            self._is_announced = True
            # Facts from the start-up are out of date.
            self._watch.begin()
            self._announce()
        if self._is_announced:
            self._show()

    def _say(self, child: Child | None, text: str) -> None:
        self._view.say(text if child is None else f"node {child.node_id}  {without_time(text)}")

    def _announce(self) -> None:
        at = ",".join(self._file.nodes.values())
        rows: list[Row] = [
            ("bootstrap", at),
            ("data", os.path.abspath(self._folder)),
            *([("metrics", f"http://{self._monitored[0]}/metrics …")] if self._monitored else []),
            ("", ""),
            *(
                first_steps(self._file.nodes[1], f" -b {self._file.nodes[1]}")[:2]
                if self._security is None
                else first_secure_steps(self._security, at)
            ),
            ("", ""),
            ("stop", "Ctrl-C" if sys.stdout.isatty() else f"kill {os.getpid()}"),
        ]
        click.echo(panel(f"Millpond {__version__}, a cluster of {len(self._children)}", rows))
        sys.stdout.flush()
        if sys.stdout.isatty():
            self._view = self._screen.enter_context(live_table())

    def _show(self) -> None:
        facts = self._watch.facts
        if facts is None:
            return
        rows = [row(node, self._state(node.node_id), self._pid(node.node_id)) for node in facts.nodes]
        self._view.show(rows, [*warnings(facts), *self._watch.problems])
        sys.stdout.flush()

    def _state(self, node_id: int) -> str | None:
        child = self._children.get(node_id)
        return None if child is None or child.state == "ready" else child.state

    def _pid(self, node_id: int) -> int | None:
        child = self._children.get(node_id)
        return None if child is None else child.pid

    def _end(self) -> None:
        """Stops them one after the other, the controller last: each hands over its leadership while another node is
        up."""
        facts = self._watch.facts
        controller = next((node.node_id for node in facts.nodes if node.is_controller), -1) if facts else -1
        children = sorted(self._children.values(), key=lambda child: child.node_id == controller)
        self._supervisor.end([child] for child in children)


class _Watch:
    """Polls the cluster on its own thread: a node that does not answer must not hold up the others."""

    def __init__(self, bootstrap: str, node_ids: tuple[int, ...], security: SecureFolder | None = None) -> None:
        self._security = security
        self.facts: ClusterFacts | None = None
        self.problems: tuple[str, ...] = ()
        self._bootstrap = bootstrap
        self._node_ids = node_ids
        self._ended = threading.Event()

    def begin(self) -> None:
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        from millpond.admin.nodes import describe_nodes
        from millpond.base.errors import RemoteError
        from millpond.remote.cluster import Cluster
        from millpond.remote.errors import ClientError

        settings = {
            **({} if self._security is None else self._security.client_settings()),
            "bootstrap.servers": self._bootstrap,
            "client.id": "millpond-cluster-up",
            "request.timeout.ms": ANSWER_MS,
            "default.api.timeout.ms": ANSWER_MS,
        }
        while not self._ended.wait(LOOK_SECONDS):
            # A new client each time: no second wait for connections to a dead or hanging node.
            with Cluster(settings) as cluster:
                try:
                    self.facts = describe_nodes(cluster, self._node_ids)
                    self.problems = ()
                except (ClientError, RemoteError) as fault:
                    self.problems = (f"the cluster does not answer: {fault}",)
