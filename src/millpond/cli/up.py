"""`millpond up`: runs one node in the foreground."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Final, NoReturn

import click

from millpond import __version__
from millpond.base.secret_names import is_secret
from millpond.base.settings import SettingError, Settings
from millpond.cli.addresses import METRICS_DEFAULT, address_of, metrics_address, shown_address
from millpond.cli.console_process import OFF, ConsoleProcess, console_address
from millpond.cli.errors import Failed, cause, sentence
from millpond.cli.first_steps import first_steps
from millpond.cli.folders import (
    CLUSTER_FOLDER,
    identity_of,
    in_use,
    missing_folders,
    node_folder,
    remove_folders,
    unusable,
)
from millpond.cli.options import pair
from millpond.cli.terminal import Row, panel
from millpond.config.listeners import LISTEN_PROTOCOL, LISTENERS, SHORT_FORM
from millpond.config.node import (
    ADVERTISED_LISTENER,
    CLUSTER_CONTACTS,
    CLUSTER_NODES,
    COARSE,
    DATA_FOLDER,
    JOURNAL_FORMAT,
    LISTEN,
    METRICS_LISTENER,
    NODE,
    NODE_ID,
    cluster_nodes,
    host_and_port,
    is_loopback,
    node_settings,
)
from millpond.config.security import LISTENER_PREFIX, parsed_for_listeners
from millpond.log.names import CORES_FOLDER, SECURITY_FOLDER
from millpond.node.collector import Collector
from millpond.node.signals import stop_signals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from millpond.broker.broker import Broker
    from millpond.node.monitor import Monitor
    from millpond.node.secure_folder import SecureFolder

USERS_STEP_MS: Final = 5
USERS_MS_MAX: Final = 2_000


@click.command("up")
@click.option("--data", metavar="DIR", help=f"The data folder. [default: {DATA_FOLDER.default}]")
@click.option("--listen", metavar="HOST:PORT", help=f"Where clients connect.  [default: {LISTEN.default}]")
@click.option("--set", "sets", metavar="NAME=VALUE", multiple=True, help="A node setting; may be repeated.")
@click.option(
    "--config",
    "file",
    metavar="FILE",
    help="A file of NAME=VALUE lines, such as Kafka's server.properties; --set overrides it.",
)
@click.option("--cluster", metavar="FILE", help="The nodes of a cluster (nodes.toml); --node names this one.")
@click.option("--join", metavar="HOST:PORT", help="Join the running cluster of this node.")
@click.option(
    "--node",
    metavar="N",
    type=click.IntRange(0),
    help="The number of this node in --cluster, or to --join with. [default with --join: a free one]",
)
@click.option(
    "--cores",
    metavar="N",
    type=click.IntRange(1, 99),
    help="Run one process per core, on N cores. [default: as many as the data folder has]",
)
@click.option(
    "--console",
    "console_at",
    metavar="HOST:PORT",
    envvar="MILLPOND_CONSOLE",
    help="The console's address, for browsers on this machine. [default: 127.0.0.1:8080]",
)
@click.option("--no-console", is_flag=True, help="Run no console.")
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    envvar="MILLPOND_METRICS",
    help=f"The address of /metrics for Prometheus, or `off`. [default: {METRICS_DEFAULT}]",
)
@click.option(
    "--journal",
    type=click.Choice(["text", "json"]),
    help="The format of the log on standard error. [default: text]",
)
@click.option(
    "--console-password-file",
    metavar="FILE",
    envvar="MILLPOND_CONSOLE_PASSWORD_FILE",
    help="Its first line is the console's password; the console may then listen on any address.",
)
@click.option(
    "--secure",
    is_flag=True,
    help="TLS, logins and ACLs: creates what it needs in a new data folder, which stays secure.",
)
@click.option("--with-parent", is_flag=True, hidden=True, help="End when standard input does.")
def command(
    data: str | None,
    listen: str | None,
    sets: tuple[str, ...],
    file: str | None,
    cluster: str | None,
    join: str | None,
    node: int | None,
    cores: int | None,
    console_at: str | None,
    no_console: bool,
    metrics: str | None,
    journal: str | None,
    console_password_file: str | None,
    secure: bool,
    with_parent: bool,
) -> None:
    """Run a node in the foreground, until Ctrl-C, SIGTERM or SIGHUP.

    No configuration is needed: without options the node listens on 127.0.0.1:9092 and keeps its data in
    ./millpond-data. Port 0 takes a free port, which the first lines of output show. docs/config.md lists every
    setting.

    With --cores the partitions are spread over several processes, which use consecutive ports from --listen on. A
    later start may use more cores.

    The console (topics, records, groups and more in a browser) runs in a separate process, which starts when the node
    is ready and stops with it. /healthz and /readyz, for service managers, are served beside /metrics.

    With --secure clients use TLS and log in, and have the rights that `millpond acl` gives them. The first start
    creates a certificate authority, a certificate and a user `admin`, whose password it shows; see `millpond help
    security`.

    \b
    Examples:
      millpond up
      millpond up --secure
      millpond up --cores 4
      millpond up --data /var/lib/millpond --listen 0.0.0.0:9092
      millpond up --set num.partitions=6 --set log.retention.hours=48
      millpond up --node 2 --cluster nodes.toml
      millpond up --join 10.0.0.1:9092
    """
    if join is not None and cluster is not None:
        raise click.UsageError("--join gets the nodes from the running cluster: leave out --cluster.")
    by_cluster = _texts_in_cluster(cluster, None if join else node)
    texts = _with_options(by_cluster | (_read_config(file, data) if file else {}), data, listen, sets)
    if LISTENERS.name in texts:
        # If this node has several listeners, the cluster's file only has the one between nodes.
        texts = {name: text for name, text in texts.items() if name not in SHORT_FORM or by_cluster.get(name) != text}
    if secure and (cluster is not None or join is not None):
        raise click.UsageError(
            "--secure creates a certificate authority, but the nodes of a cluster share one: use "
            "`millpond cluster up --secure`, or `millpond help security` for several machines."
        )
    made = missing_folders(texts.get(DATA_FOLDER.name, DATA_FOLDER.default))
    security = _security(texts, secure)
    try:
        if security is not None:
            texts = _with_security(texts, security)
        texts = _with_monitoring(texts, metrics, journal, is_child=with_parent)
        if join is not None:
            from millpond.cli.join import texts_to_join

            if cores is not None and cores > 1:
                raise click.UsageError("--cores is for a single machine: a node that joins is one process.")
            texts |= texts_to_join(join, node, texts)
        elif cluster is None and NODE_ID.name not in texts:
            texts |= _texts_of_member(texts.get(DATA_FOLDER.name, DATA_FOLDER.default))
        settings = _settings(texts)
        if security is not None:
            from millpond.cli.secure import check_asks

            check_asks(settings)
        elif not with_parent:
            _warn_if_open(settings)
        console_at = console_address(console_at, is_off=no_console, is_child=with_parent)
        console = ConsoleProcess(console_at, console_password_file, security)
    except click.ClickException:
        if security is not None and security.is_new:
            # No node has run here yet, and the password was not shown.
            remove_folders(made)
        raise
    if (count := _cores(settings, cores)) > 1:
        from millpond.cli.cores import run_cores

        run_cores(texts, count, console, security)
        return
    _stop_early_on_signals()
    if with_parent:
        os.environ.pop("NOTIFY_SOCKET", None)  # the parent notifies the service manager
        threading.Thread(target=_end_with_parent, daemon=True).start()
    # Before the loop runs, a signal raises an exception; the logs are closed anyway.
    with contextlib.suppress(KeyboardInterrupt):
        _serve(settings, console, security, made)
    if sys.stdout.isatty():
        click.echo("\rStopped; everything is on disk.")


def _monitoring_row(settings: Settings, monitoring: Monitor) -> list[Row]:
    """The address of the metrics, or why there is none."""
    if monitoring.fault is not None:
        return [("metrics", f"none: {settings[METRICS_LISTENER]}: {cause(monitoring.fault)}; see --metrics")]
    if monitoring.address is None:
        return []
    return [("metrics", f"http://{shown_address(*monitoring.address)}/metrics")]


def _serve(settings: Settings, console: ConsoleProcess, security: SecureFolder | None, made: list[Path]) -> None:
    """`made` are the folders that did not exist before."""
    Collector.hold()
    from millpond.broker.data_folder.identity import CannotJoin, CannotStart, Misconfigured
    from millpond.log.store import FolderInUse
    from millpond.node.journal import SHAPES, LineJournal
    from millpond.node.monitor import Monitor
    from millpond.node.private_files import OpenToOthers
    from millpond.node.serve import serve
    from millpond.node.service import tell_manager

    folder = settings[DATA_FOLDER]
    monitoring = Monitor()
    is_ready = False

    def on_ready(broker: Broker, patience_ms: int = USERS_MS_MAX) -> None:
        nonlocal is_ready
        is_ready = True
        if security is not None and patience_ms > 0 and not broker.image.scram.users():
            # Clients may log in as soon as it reports ready: the first users must exist by then.
            broker.clock.call_later(USERS_STEP_MS, lambda: on_ready(broker, patience_ms - USERS_STEP_MS))
            return
        _announce(broker, console, _monitoring_row(settings, monitoring), security)
        tell_manager("READY=1")

    try:
        serve(settings, LineJournal(shape=SHAPES[settings[JOURNAL_FORMAT]]), on_ready, monitoring)
    except FolderInUse:
        raise in_use(folder) from None
    except CannotJoin as fault:
        raise Failed(f"This node cannot join its cluster: {fault}.") from None
    except OpenToOthers as fault:
        raise Failed(f"The data folder {folder} is not safe: {fault}.") from None
    except Misconfigured as fault:
        raise Failed(f"The node cannot start: {fault}.") from None
    except CannotStart as fault:
        raise Failed(f"{folder}: {fault}; choose another folder with --data DIR.") from None
    except OSError as error:
        if is_ready:
            raise
        if not cluster_nodes(settings) and not settings[CLUSTER_CONTACTS]:
            # A node of a cluster may have cast a vote already, which its folder must keep.
            remove_folders(made)
        _explain(error, settings)
    finally:
        Collector.let_go()
        console.close()


def _announce(
    broker: Broker, console: ConsoleProcess, monitoring: list[Row], security: SecureFolder | None = None
) -> None:
    from millpond.config.listeners import WILDCARDS

    host, port = broker.address
    reach, reach_port = broker.advertised()
    at = shown_address("127.0.0.1" if reach in WILDCARDS else reach, reach_port)
    option = "" if at == LISTEN.default else f" -b {at}"
    nodes = len(cluster_nodes(broker.settings)) or len(broker.image.brokers)
    of_all = f" of {nodes}" if nodes > 1 or cluster_nodes(broker.settings) else ""
    if security is None:
        steps = first_steps(at, option)
    else:
        from millpond.cli.secure import first_secure_steps

        steps = first_secure_steps(security, at)
    rows: list[Row] = [
        ("listens on", shown_address(host, port) if broker.listeners.is_one else broker.listeners.texts()[0]),
        ("data", os.path.abspath(broker.store.folder)),
        ("cluster", f"{broker.image.cluster_id}, node {broker.node_id}{of_all}"),
        *console.open(),
        *monitoring,
        ("", ""),
        *steps,
        ("", ""),
        ("stop", "Ctrl-C" if sys.stdout.isatty() else f"kill {os.getpid()}"),
    ]
    click.echo(panel(f"Millpond {__version__}", rows))
    sys.stdout.flush()
    console.start(at)


# Options and settings.


def _security(texts: Mapping[str, str], secure: bool) -> SecureFolder | None:
    """The security files of the node, created if requested; None if it is not secure."""
    folder = texts.get(DATA_FOLDER.name, DATA_FOLDER.default)
    if not secure and not os.path.isdir(os.path.join(folder, SECURITY_FOLDER)):
        return None
    from millpond.cli.secure import make_secure, secured

    if not secure:
        return secured(folder)
    addresses = [texts.get(setting.name) or setting.default for setting in (LISTEN, ADVERTISED_LISTENER)]
    hosts = [host_and_port(each)[0] for each in addresses if each]
    return make_secure(folder, [each for each in hosts if each not in ("0.0.0.0", "::")])


def _with_security(texts: dict[str, str], security: SecureFolder) -> dict[str, str]:
    from millpond.cli.secure import node_texts

    made = node_texts(security)
    if LISTENERS.name in texts:
        # Explicit listeners name their own protocols.
        made.pop(LISTEN_PROTOCOL.name, None)
    return made | texts


def _warn_if_open(settings: Settings) -> None:
    if settings[LISTENERS] or not is_loopback(host_and_port(settings[LISTEN])[0]):
        # Imported only if there may be a warning: most nodes start without it.
        from millpond.cli.secure import warn_if_open

        warn_if_open(settings)


def _texts_in_cluster(file: str | None, node_id: int | None) -> dict[str, str]:
    """The settings from the cluster's file; none for a single node."""
    if file is None:
        if node_id is not None:
            raise click.UsageError(
                "--node is for a node of a cluster: name its file with --cluster FILE, or a node to --join."
            )
        return {}
    from millpond.cli.cluster.nodes_file import read_nodes

    nodes = read_nodes(file)
    numbers = ", ".join(map(str, sorted(nodes.nodes)))
    if node_id is None:
        raise click.UsageError(f"--cluster {file}: name this node with --node N; it has {numbers}.")
    if node_id not in nodes.nodes:
        raise click.UsageError(f"--node {node_id} is not in {file}; it has {numbers}.")
    return nodes.texts(node_id) | {DATA_FOLDER.name: node_folder(CLUSTER_FOLDER, node_id)}


def _texts_of_member(folder: str) -> dict[str, str]:
    """The node number of a folder that has joined a cluster."""
    identity = identity_of(folder)
    return {NODE_ID.name: str(identity.node_id)} if identity is not None and identity.contacts else {}


def _cores(settings: Settings, cores: int | None) -> int:
    """The number of processes to run."""
    if settings[CLUSTER_NODES]:
        if cores is not None:
            raise click.UsageError("--cores is for a single machine: a node of a cluster is one process.")
        return 1
    folder = settings[DATA_FOLDER]
    if not os.path.isdir(os.path.join(folder, CORES_FOLDER)):
        return cores or 1
    from millpond.cli.cores import count_cores

    return count_cores(folder, cores)


def _with_options(
    texts: dict[str, str], data: str | None, listen: str | None, sets: tuple[str, ...]
) -> dict[str, str]:
    texts |= assignments(sets)
    if data is not None:
        texts[DATA_FOLDER.name] = data
    if listen is not None:
        texts[LISTEN.name] = address_of(listen)
    return texts


def _with_monitoring(
    texts: dict[str, str], metrics: str | None, journal: str | None, *, is_child: bool
) -> dict[str, str]:
    """A node that another command runs gets no default address, which several nodes would share."""
    if metrics is not None:
        texts[METRICS_LISTENER.name] = "" if metrics.lower() in OFF else _metrics_at(metrics)
    elif not is_child:
        texts.setdefault(METRICS_LISTENER.name, METRICS_DEFAULT)
    if journal is not None:
        texts[JOURNAL_FORMAT.name] = journal
    return texts


def _metrics_at(text: str) -> str:
    try:
        return metrics_address(text)
    except SettingError as fault:
        raise click.UsageError(f"--metrics {text}: {sentence(str(fault))}") from None


def _settings(texts: dict[str, str]) -> Settings:
    try:
        return node_settings(texts)
    except SettingError as fault:
        raise click.UsageError(sentence(str(fault))) from None


KAFKA_FOLDER_MARK: Final = "bootstrap.checkpoint"
"""A file that `kafka-storage.sh format` writes to each of Kafka's data folders, and Millpond does not."""


def _read_config(path: str, data: str | None) -> dict[str, str]:
    """The settings in a file, which may be Kafka's `server.properties`; warns of those without effect."""
    from millpond.config.server_properties import BadLine, properties, translated

    try:
        with open(path, encoding="utf-8") as file:
            lines = {each.name: each for each in properties(file.read())}
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--config {path} cannot be read: {cause(error)}.") from None
    except BadLine as fault:
        raise click.UsageError(f"{path}, line {fault.line}: give it as name=value.") from None
    try:
        texts, without_effect = translated({name: each.value for name, each in lines.items()})
    except SettingError as fault:
        raise click.UsageError(f"{path}: {sentence(str(fault))}") from None
    folder = texts.get(DATA_FOLDER.name) if data is None and DATA_FOLDER.name not in lines else None
    if folder is not None and os.path.exists(os.path.join(folder, KAFKA_FOLDER_MARK)):
        raise click.UsageError(f"{path}: log.dirs={folder} has data of Kafka: choose another folder with --data DIR.")
    for name, text in texts.items():
        where = f"{path}, line {lines[name].line}" if name in lines else path
        assignment(f"{name}={text}", where)
    for name, why in without_effect.items():
        click.echo(f"{path}, line {lines[name].line}: {name}: {why}", err=True)
    if any(map(is_secret, texts)) and os.stat(path).st_mode & 0o077:
        click.echo(f"Others may read the secrets in {path}: chmod 600 {path}", err=True)
    return texts


def assignments(sets: Iterable[str]) -> dict[str, str]:
    """The settings of --set; refuses secrets."""
    for text in sets:
        if is_secret(name := text.partition("=")[0].strip()):
            raise click.UsageError(
                f"--set {name}=…: others on this machine can see a command line (`ps`). Put it into a file that "
                "only you can read, and give that with --config FILE."
            )
    return dict(assignment(text, f"--set {text}") for text in sets)


def assignment(text: str, where: str) -> tuple[str, str]:
    """The name and value of one setting; an error names `where` it was given."""
    name, value = pair(text, f"{where}: give it as name=value.")
    try:
        if name.startswith(LISTENER_PREFIX):
            parsed_for_listeners({name: value.strip()})
        elif name not in COARSE:
            NODE.get(name).parse(value.strip())
    except SettingError as fault:
        raise click.UsageError(f"{where}: {sentence(str(fault))}") from None
    return name, value.strip()


# Errors.


def _explain(error: OSError, settings: Settings) -> NoReturn:
    """Turns a system error at the start into advice."""
    from millpond.node.tls_contexts import UnusableFiles

    folder, listen = settings[DATA_FOLDER], settings[LISTEN]
    host, port = host_and_port(listen)
    if isinstance(error, socket.gaierror):
        raise Failed(f"The host name {host} is unknown: give --listen an address of this machine.")
    if isinstance(error, UnusableFiles):
        raise Failed(f"The node cannot start: {error.strerror}.")
    if error.filename is not None:
        raise unusable(folder, error)
    match error.errno:
        case errno.EADDRINUSE:
            other = shown_address(host, _free_port(host, port))
            raise Failed(
                f"Port {port} of {host} is taken, perhaps by a running node: "
                f"stop it, or use another port with `millpond up --listen {other}`."
            )
        case errno.EADDRNOTAVAIL:
            raise Failed(f"{host} is not an address of this machine: give --listen one that is, or 0.0.0.0 for all.")
        case errno.EACCES | errno.EPERM:
            raise Failed(
                f"Port {port} may not be used (ports below 1024 are reserved): choose another with --listen."
            )
        case errno.ENOSPC:
            raise Failed(f"The disk of {folder} is full: free some space, or choose another folder with --data DIR.")
        case _:
            raise Failed(f"The node cannot start: {cause(error)}.")


def _free_port(host: str, port: int) -> int:
    """The next free port."""
    for candidate in range(port + 1, min(port + 100, 65536)):
        with socket.socket() as probe:
            try:
                probe.bind((host, candidate))
            except OSError:
                continue
            return candidate
    return 0


def _end_with_parent() -> None:
    """The parent holds the other end of standard input and writes nothing: it ends with the parent."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _stop_early_on_signals() -> None:
    """Until the loop handles signals, a stop during recovery still closes the logs."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for number in stop_signals():
        signal.signal(number, stop)
