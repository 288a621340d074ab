"""`millpond up`: one node, in the foreground, until it is told to stop."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import NoReturn

import click

from millpond import __version__
from millpond.base.settings import SettingError, Settings
from millpond.cli.errors import Failed
from millpond.cli.panel import Row, panel
from millpond.config.node import (
    COARSE,
    DATA_FOLDER,
    LISTEN,
    NODE,
    host_and_port,
    node_settings,
)


@click.command("up")
@click.option("--data", metavar="DIR", help=f"Where everything is kept.  [default: {DATA_FOLDER.default}]")
@click.option("--listen", metavar="HOST:PORT", help=f"Where clients connect.  [default: {LISTEN.default}]")
@click.option("--set", "sets", metavar="NAME=VALUE", multiple=True, help="A node setting; may be repeated.")
@click.option("--config", "file", metavar="FILE", help="A file of NAME=VALUE lines; --set goes before it.")
def command(data: str | None, listen: str | None, sets: tuple[str, ...], file: str | None) -> None:
    """Run a node in the foreground, until Ctrl-C or SIGTERM.

    No configuration is needed: without options the node listens on 127.0.0.1:9092 and keeps its data in
    ./millpond-data. Port 0 takes a free port, which the first lines of the output name. docs/config.md lists
    every setting.

    \b
    Examples:
      millpond up
      millpond up --data /var/lib/millpond --listen 0.0.0.0:9092
      millpond up --set num.partitions=6 --set log.retention.hours=48
    """
    settings = _settings(data, listen, sets, file)
    _stop_early_on_signals()
    # Before the loop runs a signal comes as an exception; the logs are closed all the same.
    with contextlib.suppress(KeyboardInterrupt):
        _serve(settings)
    if sys.stdout.isatty():
        click.echo("\rStopped; everything is on disk.")


def _serve(settings: Settings) -> None:
    from millpond.broker.controller import CannotStart
    from millpond.log.store import FolderInUse
    from millpond.node.journal import LineJournal
    from millpond.node.serve import serve

    folder = settings[DATA_FOLDER]
    is_ready = False

    def on_ready(broker: object) -> None:
        nonlocal is_ready
        is_ready = True
        _announce(broker)

    try:
        serve(settings, LineJournal(), on_ready)
    except FolderInUse:
        raise Failed(
            f"Another process uses the data folder {folder}: stop it, or choose another folder with --data DIR."
        ) from None
    except CannotStart as fault:
        raise Failed(f"{folder}: {fault}; choose another folder with --data DIR.") from None
    except OSError as error:
        if is_ready:
            raise
        _explain(error, settings)


def _announce(broker: object) -> None:
    from millpond.broker.broker import WILDCARDS, Broker

    assert isinstance(broker, Broker)
    host, port = broker.address
    reach, reach_port = broker.advertised()
    at = _shown("127.0.0.1" if reach in WILDCARDS else reach, reach_port)
    option = "" if at == LISTEN.default else f" -b {at}"
    rows: list[Row] = [
        ("listens on", _shown(host, port)),
        ("data", os.path.abspath(broker.store.folder)),
        ("cluster", f"{broker.image.cluster_id}, node {broker.node_id}"),
        ("", ""),
        ("topic", f"millpond topic create orders{option}"),
        ("kcat", f"kcat -b {at} -L"),
        ("python", f'Producer({{"bootstrap.servers": "{at}"}})'),
        ("", ""),
        ("stop", "Ctrl-C" if sys.stdout.isatty() else f"kill {os.getpid()}"),
    ]
    click.echo(panel(f"Millpond {__version__}", rows))
    sys.stdout.flush()


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# What was given.


def _settings(data: str | None, listen: str | None, sets: tuple[str, ...], file: str | None) -> Settings:
    texts = _read_config(file) if file else {}
    for text in sets:
        name, value = _assignment(text, f"--set {text}")
        texts[name] = value
    if data is not None:
        texts[DATA_FOLDER.name] = data
    if listen is not None:
        texts[LISTEN.name] = _address(listen)
    try:
        return node_settings(texts)
    except SettingError as fault:
        raise click.UsageError(f"{_sentence(str(fault))}") from None


def _address(text: str) -> str:
    """A port alone, or a host alone, is completed from the default address."""
    host, port = host_and_port(LISTEN.default)
    if text.isdigit():
        return f"{host}:{text}"
    return text if ":" in text else f"{text}:{port}"


def _read_config(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--config {path} cannot be read: {_cause(error)}.") from None
    texts = {}
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if line and not line.startswith("#"):
            name, value = _assignment(line, f"{path}, line {number}")
            texts[name] = value
    return texts


def _assignment(text: str, where: str) -> tuple[str, str]:
    """The name and value of one setting; it says where it stands when the name is unknown or the value cannot be."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name:
        raise click.UsageError(f"{where}: give it as name=value.")
    try:
        if name not in COARSE:
            NODE.get(name).parse(value)
    except SettingError as fault:
        raise click.UsageError(f"{where}: {_sentence(str(fault))}") from None
    return name, value


def _sentence(text: str) -> str:
    return text if text.endswith("?") else f"{text}."


# What went wrong.


def _explain(error: OSError, settings: Settings) -> NoReturn:
    """Turn the system's error at the start into what to do about it."""
    folder, listen = settings[DATA_FOLDER], settings[LISTEN]
    host, port = host_and_port(listen)
    if isinstance(error, socket.gaierror):
        raise Failed(f"The host name {host} is unknown: give --listen an address of this machine.")
    if error.filename is not None:
        raise Failed(f"The data folder {folder} cannot be used ({_cause(error)}): choose another with --data DIR.")
    match error.errno:
        case errno.EADDRINUSE:
            other = _shown(host, _free_port(host, port))
            raise Failed(
                f"Port {port} of {host} is taken, perhaps by a node that runs already: "
                f"stop it, or take another port with `millpond up --listen {other}`."
            )
        case errno.EADDRNOTAVAIL:
            raise Failed(f"{host} is no address of this machine: give --listen one that is, or 0.0.0.0 for all.")
        case errno.EACCES | errno.EPERM:
            raise Failed(f"Port {port} may not be used (ports below 1024 are reserved): take another with --listen.")
        case errno.ENOSPC:
            raise Failed(f"The disk of {folder} is full: free some room, or choose another folder with --data DIR.")
        case _:
            raise Failed(f"The node cannot start: {_cause(error)}.")


def _free_port(host: str, port: int) -> int:
    """The next port that is free at this moment."""
    for candidate in range(port + 1, min(port + 100, 65536)):
        with socket.socket() as probe:
            try:
                probe.bind((host, candidate))
            except OSError:
                continue
            return candidate
    return 0


def _cause(error: Exception) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)


def _stop_early_on_signals() -> None:
    """Until the loop takes the signals over, a stop during recovery still ends with the logs closed."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    handler: Callable[..., None] = stop
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)
