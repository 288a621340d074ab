"""`nodes.toml`: the nodes of a cluster and their common settings; the same file on every machine.

```toml
[nodes]                       # each node's number and the address at which clients and the other nodes reach it
1 = "10.0.0.1:9092"
2 = "10.0.0.2:9092"
3 = "10.0.0.3:9092"

[racks]                       # optional 1 = "north"

[settings]                    # of every node; optional num.partitions = 6 ```
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Final

import click

from millpond.base.settings import SettingError
from millpond.base.values import dataclass
from millpond.cli.errors import Failed, cause, sentence
from millpond.config.node import (
    ADVERTISED_LISTENER,
    BROKER_RACK,
    CLUSTER_NODES,
    DATA_FOLDER,
    LISTEN,
    NODE_ID,
    host_and_port,
)

OWN: Final = (NODE_ID, CLUSTER_NODES, BROKER_RACK, LISTEN, ADVERTISED_LISTENER, DATA_FOLDER)
"""Settings that differ from node to node."""


@dataclass(frozen=True)
class NodesFile:
    """The nodes by number, with their addresses as written."""

    nodes: Mapping[int, str]
    racks: Mapping[int, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    def texts(self, node_id: int) -> dict[str, str]:
        """The settings of one node. Host names are resolved here, once: a node only knows addresses."""
        return {
            **self.settings,
            NODE_ID.name: str(node_id),
            CLUSTER_NODES.name: ",".join(f"{each}@{resolved(text)}" for each, text in self.nodes.items()),
            BROKER_RACK.name: self.racks.get(node_id, ""),
            LISTEN.name: resolved(self.nodes[node_id]),
            ADVERTISED_LISTENER.name: self.nodes[node_id],
        }


def read_nodes(path: str) -> NodesFile:
    import tomllib

    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise click.UsageError(f"--cluster {path} cannot be read: {cause(error)}.") from None
    except ValueError as fault:
        raise click.UsageError(f"--cluster {path} is not valid TOML: {sentence(str(fault))}") from None
    for name in content:
        if name not in ("nodes", "racks", "settings"):
            raise _wrong(path, f"unknown section {name!r}; it can have [nodes], [racks] and [settings]")
    nodes, racks = _by_number(path, content, "nodes"), _by_number(path, content, "racks")
    if not nodes:
        raise _wrong(path, 'it names no nodes; give each under [nodes] as 1 = "host:port"')
    for node_id, address in nodes.items():
        try:
            host_and_port(address)
        except SettingError as fault:
            raise _wrong(path, f"node {node_id}: {fault}") from None
    if strangers := racks.keys() - nodes.keys():
        raise _wrong(path, f"[racks] names the node {min(strangers)}, which [nodes] does not have")
    settings = dict(_flat(content.get("settings", {})))
    for setting in OWN:
        if setting.name in settings:
            raise _wrong(path, f"{setting.name} differs from node to node and cannot be in [settings]")
    return NodesFile(nodes, racks, settings)


def write_nodes(path: Path, file: NodesFile) -> None:
    """Writes the file with which `millpond up --node N --cluster FILE` can start a single node."""
    from millpond.node.private_files import write_private

    lines = ["[nodes]", *(f'{node_id} = "{address}"' for node_id, address in file.nodes.items())]
    if file.settings:
        lines += ["", "[settings]", *(f"{name} = {_quoted(text)}" for name, text in file.settings.items())]
    write_private(path, ("\n".join(lines) + "\n").encode())


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _by_number(path: str, content: Mapping[str, object], section: str) -> dict[int, str]:
    values = content.get(section, {})
    if not isinstance(values, dict):
        raise _wrong(path, f"[{section}] must be a section")
    numbered = {}
    for number, text in values.items():
        if not (number.isascii() and number.isdigit()) or not isinstance(text, str):
            raise _wrong(path, f'[{section}] has {number} = {text!r}; each line must have the form 1 = "…"')
        numbered[int(number)] = text
    return numbered


def _flat(values: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Joins nested tables: TOML reads dots in a name as tables within tables."""
    if isinstance(values, dict):
        for each, value in values.items():
            yield from _flat(value, f"{name}.{each}" if name else each)
    elif isinstance(values, list):
        yield name, ",".join(map(str, values))
    else:
        yield name, str(values).lower() if isinstance(values, bool) else str(values)


def resolved(address: str) -> str:
    host, port = host_and_port(address)
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    except (socket.gaierror, UnicodeError):
        raise Failed(f"The host name {host} is unknown: correct it, or give the node's address instead.") from None
    return f"[{resolved}]:{port}" if ":" in str(resolved) else f"{resolved}:{port}"


def _wrong(path: str, fault: str) -> click.UsageError:
    return click.UsageError(f"--cluster {path}: {fault}.")
