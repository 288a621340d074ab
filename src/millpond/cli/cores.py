"""`millpond up --cores N`: one node process per core, behind one command and one data folder.

The first core is the node that every folder has: it keeps its data in the folder itself, and the metadata of all (a
quorum of one). The others are brokers that follow it, each with a folder under `cores/`. See
docs/decisions/0013-cores.md.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from millpond import __version__
from millpond.base.secret_names import is_secret
from millpond.broker.data_folder.identity import IDENTITY_FILE
from millpond.cli.addresses import HERE, metrics_address, shown_address
from millpond.cli.cluster.children import NODE, CannotRun, Child, Event, Supervisor, without_time
from millpond.cli.cluster.nodes_file import resolved
from millpond.cli.cluster.ports import free_ports
from millpond.cli.cluster.spare import Spare
from millpond.cli.console_process import ConsoleProcess
from millpond.cli.errors import Failed
from millpond.cli.first_steps import first_steps
from millpond.cli.folders import identity_of, locked, missing_folders, remove_folders
from millpond.cli.secure import first_secure_steps
from millpond.cli.stop import Stop, stop_on
from millpond.cli.terminal import Row, panel
from millpond.config.node import (
    ADVERTISED_LISTENER,
    CLUSTER_NODES,
    CLUSTER_VOTERS,
    DATA_FOLDER,
    JOURNAL_FORMAT,
    LISTEN,
    METRICS_LISTENER,
    NODE_ID,
    host_and_port,
)
from millpond.log.names import CORES_FOLDER
from millpond.node.journal import LineJournal, as_json, as_text
from millpond.node.private_files import write_private
from millpond.node.service import tell_manager
from millpond.node.signals import stop_signals

if TYPE_CHECKING:
    from millpond.node.secure_folder import SecureFolder

WAIT_SECONDS: Final = 20.0
"""After this time, cores that are not ready yet are reported."""


def count_cores(folder: str, cores: int | None) -> int:
    """The number of cores: as many as have data in this folder, unless more are requested."""
    held = _cores_of(folder)
    if cores is not None and cores < held:
        raise Failed(
            f"The data folder {folder} has partitions on {held} cores: start it with --cores {held}, "
            "or without --cores, which runs as many as it has."
        )
    return cores or held


def _cores_of(folder: str) -> int:
    names = os.listdir(os.path.join(folder, CORES_FOLDER))
    numbers = [int(name) for name in names if name.isascii() and name.isdigit()]
    return max((each for each in numbers if os.path.exists(_folder(folder, each, IDENTITY_FILE))), default=1)


def run_cores(
    texts: Mapping[str, str], count: int, console: ConsoleProcess, security: SecureFolder | None = None
) -> None:
    """Runs all cores until the command is stopped. `texts` are the settings of the first."""
    folder = texts.get(DATA_FOLDER.name, DATA_FOLDER.default)
    identity = identity_of(folder)
    if identity is not None and identity.contacts:
        raise Failed(
            f"The data folder {folder} belongs to node {identity.node_id} of a cluster, and --cores is for a single "
            "machine: start it without --cores."
        )
    made = missing_folders(folder)
    with locked(folder, CORES_FOLDER):
        try:
            core_texts = _texts_of_cores(texts, folder, count)
        except click.ClickException:
            remove_folders(made)
            raise
        with stop_on(*stop_signals()) as stop:
            in_time = _Run(core_texts, folder, console, security).until(stop)
    if not in_time:
        raise Failed("Some cores did not stop in time and were killed: the next start checks their logs.")
    if sys.stdout.isatty():
        click.echo("\rStopped; everything is on disk.")


def _folder(folder: str, core: int, *more: str) -> str:
    """Where a core keeps its data."""
    return os.path.join(folder, *more) if core == 1 else os.path.join(folder, CORES_FOLDER, str(core), *more)


def _texts_of_cores(texts: Mapping[str, str], folder: str, count: int) -> dict[int, dict[str, str]]:
    """The settings of each core, by its number."""
    host, first = host_and_port(texts.get(LISTEN.name, LISTEN.default))
    ports = free_ports(host, first, count, f"a node on {count} cores")
    first_id = int(texts.get(NODE_ID.name, str(NODE_ID.default)))
    reach = HERE.get(host) or host_and_port(resolved(shown_address(host, first)))[0]
    nodes = ",".join(f"{first_id + at}@{shown_address(reach, port)}" for at, port in enumerate(ports))
    advertised = texts.get(ADVERTISED_LISTENER.name, "")
    metrics = texts.get(METRICS_LISTENER.name, "")
    cores = {}
    for at, port in enumerate(ports):
        own = {
            NODE_ID.name: str(first_id + at),
            CLUSTER_NODES.name: nodes,
            CLUSTER_VOTERS.name: str(first_id),
            DATA_FOLDER.name: _folder(folder, at + 1),
            LISTEN.name: shown_address(host, port),
        }
        if metrics:
            own[METRICS_LISTENER.name] = metrics_address(metrics, at)
        if advertised:
            advertised_host, advertised_port = host_and_port(advertised)
            own[ADVERTISED_LISTENER.name] = shown_address(advertised_host, advertised_port + at)
        cores[at + 1] = {**texts, **own}
    return cores


class _Run:
    """The cores as processes, and their output."""

    def __init__(
        self,
        texts: Mapping[int, Mapping[str, str]],
        folder: str,
        console: ConsoleProcess,
        security: SecureFolder | None = None,
    ) -> None:
        self._texts = texts
        self._security = security
        self._folder = folder
        self._console = console
        self._is_json = texts[1].get(JOURNAL_FORMAT.name) == "json"
        self._journal = LineJournal(shape=as_json if self._is_json else as_text)
        self._spare = Spare()
        events: queue.Queue[Event] = queue.Queue()
        children = {
            core: Child(
                core,
                [*NODE, *_words(own, self._folder)],
                events,
                # No other core has its data.
                pause_seconds=0,
                spare=self._spare,
            )
            for core, own in texts.items()
        }
        self._supervisor = Supervisor("core", children, events, self._say)

    def until(self, stop: Stop) -> bool:
        """Stops all; whether none had to be killed."""
        in_time = False
        try:
            self._serve(stop)
        except CannotRun as fault:
            raise Failed(str(fault)) from None
        finally:
            tell_manager("STOPPING=1")
            self._console.close()
            self._spare.close()
            first, *others = self._supervisor.children.values()
            # No core can take over the partitions of another. The first has the metadata of all and stops last.
            in_time = self._supervisor.end([others, [first]])
            self._journal.flush()
        return in_time

    def _serve(self, stop: Stop) -> None:
        began = time.monotonic()
        is_announced = False
        self._supervisor.start()
        while not stop.is_requested:
            self._supervisor.turn()
            if self._supervisor.is_ready:
                self._spare.prepare()
            if is_announced:
                continue
            if self._supervisor.is_ready:
                is_announced = True
                self._announce()
                tell_manager("READY=1")
            elif time.monotonic() - began > WAIT_SECONDS:
                began = time.monotonic()
                waited = [str(each.node_id) for each in self._supervisor.children.values() if each.state != "ready"]
                self._journal("not all cores are ready yet", waiting_for=", ".join(waited))

    def _say(self, child: Child | None, text: str) -> None:
        if self._is_json:
            self._journal.pass_on(_as_object(child, text))
            return
        who = "all cores" if child is None else f"core {child.node_id}"
        rest = without_time(text)
        at = time.strftime("%H:%M:%S") if rest is text else text[:8]
        self._journal.pass_on(f"{at}  {who}  {rest}")

    def _announce(self) -> None:
        host, first = host_and_port(self._texts[1][LISTEN.name])
        ports = [host_and_port(own[LISTEN.name])[1] for own in self._texts.values()]
        is_row = ports == list(range(first, first + len(ports)))
        others = f" to {ports[-1]}" if is_row else f" and {', '.join(map(str, ports[1:]))}"
        reach = self._texts[1].get(ADVERTISED_LISTENER.name) or shown_address(HERE.get(host, host), first)
        option = "" if reach == LISTEN.default else f" -b {reach}"
        rows: list[Row] = [
            ("listens on", shown_address(host, first) + others),
            ("data", os.path.abspath(self._folder)),
            *self._console.open(),
            *self._metrics(),
            ("", ""),
            *(
                first_steps(reach, option, f" --partitions {len(ports)}")
                if self._security is None
                else first_secure_steps(self._security, reach)
            ),
            ("", ""),
            ("stop", "Ctrl-C" if sys.stdout.isatty() else f"kill {os.getpid()}"),
        ]
        with contextlib.suppress(BrokenPipeError):
            click.echo(panel(f"Millpond {__version__}, {len(ports)} cores", rows))
            sys.stdout.flush()
        self._console.start(reach)

    def _metrics(self) -> list[Row]:
        """Each core has its own listener, and logs it if it could not open it."""
        listeners = [own.get(METRICS_LISTENER.name, "") for own in self._texts.values()]
        if not listeners[0] or host_and_port(listeners[0])[1] == 0:
            return []
        others = ", ".join(str(host_and_port(each)[1]) for each in listeners[1:])
        return [("metrics", f"http://{listeners[0]}/metrics, and at port {others}")]


def _words(texts: Mapping[str, str], folder: str) -> list[str]:
    """The settings on a core's command line; secrets, which others could see there, go into a file."""
    words = [each for name, text in texts.items() if not is_secret(name) for each in ("--set", f"{name}={text}")]
    secrets = {name: text for name, text in texts.items() if is_secret(name)}
    if not secrets:
        return words
    path = Path(folder) / CORES_FOLDER / "secrets.properties"
    write_private(path, "".join(f"{name}={text}\n" for name, text in secrets.items()).encode())
    return ["--config", str(path), *words]


def _as_object(child: Child | None, text: str) -> str:
    """A line of JSON: a core's own, with its number added, or one of this command."""
    import json

    core = {} if child is None else {"core": child.node_id}
    try:
        line = json.loads(text)
    except ValueError:
        line = None
    return json.dumps({**line, **core}) if isinstance(line, dict) else as_json(text, core)
