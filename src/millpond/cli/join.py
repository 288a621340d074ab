"""`millpond up --join`: what a node must know to become one of a running cluster, asked of a node that is."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

from millpond.cli.access import PROBE_SECONDS, Access
from millpond.cli.cluster.nodes_file import resolved
from millpond.cli.errors import Failed
from millpond.config.node import (
    ADVERTISED_LISTENER,
    CLUSTER_CONTACTS,
    CLUSTER_ID,
    DATA_FOLDER,
    LISTEN,
    NODE_ID,
    host_and_port,
    is_loopback,
)

if TYPE_CHECKING:
    from millpond.broker.lives.identity import Identity

EVERYWHERE: Final = ("0.0.0.0", "::")


def identity_of(folder: str) -> Identity | None:
    """Whose folder it is; None for a new one."""
    from millpond.broker.lives.identity import CannotStart, read_identity
    from millpond.node.disk import RealDisk

    try:
        return read_identity(RealDisk(), folder)
    except CannotStart as fault:
        raise Failed(f"{fault}.") from None
    except OSError:
        # Whoever starts the node says why it cannot be read.
        return None


def texts_of_member(folder: str) -> dict[str, str]:
    """A node that has joined a cluster once is that node ever after: its folder says which one."""
    known = identity_of(folder)
    return {NODE_ID.name: str(known.node_id)} if known is not None and known.contacts else {}


def texts_to_join(join: str, node_id: int | None, texts: Mapping[str, str]) -> dict[str, str]:
    """The settings of a node that joins, beside those that somebody gave."""
    folder = texts.get(DATA_FOLDER.name, DATA_FOLDER.default)
    known = identity_of(folder)
    if known is not None and node_id not in (None, known.node_id):
        raise Failed(
            f"The data folder {folder} is that of node {known.node_id}: leave --node away, or give an empty folder "
            "with --data DIR."
        )
    if known is not None and known.contacts:
        # It is one of them already; the others know it, and where it is now they hear from itself.
        return {NODE_ID.name: str(known.node_id)}
    cluster_id, contacts, taken = _ask(join)
    if known is not None:
        if known.cluster_id == cluster_id:
            return {NODE_ID.name: str(known.node_id)}
        raise Failed(
            f"The data folder {folder} is that of another cluster ({known.cluster_id or 'without a name'}); "
            f"{join} is of {cluster_id}: give an empty folder with --data DIR."
        )
    number = max(taken, default=0) + 1 if node_id is None else node_id
    if number in contacts:
        raise Failed(f"Node {number} runs already, at {contacts[number]}: leave --node away to get a free number.")
    return {
        NODE_ID.name: str(number),
        CLUSTER_ID.name: cluster_id,
        CLUSTER_CONTACTS.name: ",".join(f"{each}@{resolved(at)}" for each, at in contacts.items()),
        **_own_address(join, texts),
    }


def _ask(join: str) -> tuple[str, dict[int, str], set[int]]:
    """The cluster's id, the nodes that are there with their addresses, and all numbers that were ever given."""
    from millpond.admin.members import describe_members

    with Access(join, option="--join").open() as cluster:
        members = describe_members(cluster)
    contacts = {each.node_id: each.facts.address for each in members.nodes if each.is_there and each.facts.address}
    return members.cluster_id, contacts, {each.node_id for each in members.nodes}


def _own_address(join: str, texts: Mapping[str, str]) -> dict[str, str]:
    """Where the others shall find this node: unless somebody said so, at the address that it speaks to them from."""
    host, port = host_and_port(join if ":" in join else f"{join}:{host_and_port(LISTEN.default)[1]}")
    with socket.create_connection((host, port), PROBE_SECONDS) as probe:
        local: str = probe.getsockname()[0]
    shown = f"[{local}]" if ":" in local else local
    listen = texts.get(LISTEN.name)
    if listen is None:
        return {} if is_loopback(local) else {LISTEN.name: f"{shown}:{host_and_port(LISTEN.default)[1]}"}
    own_host, own_port = host_and_port(listen)
    if own_host in EVERYWHERE and ADVERTISED_LISTENER.name not in texts:
        return {ADVERTISED_LISTENER.name: f"{shown}:{own_port}"}
    if is_loopback(own_host) and not is_loopback(local) and ADVERTISED_LISTENER.name not in texts:
        raise click.UsageError(
            f"--listen {listen}: there the other nodes, which are on other machines, cannot reach this one; "
            f"listen on {shown}:{own_port}."
        )
    return {}
