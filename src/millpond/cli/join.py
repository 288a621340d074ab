"""`millpond up --join`: gets the settings for a new node from a node of the running cluster."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from typing import Final

import click

from millpond.cli.access import PROBE_SECONDS, Access
from millpond.cli.addresses import shown_address
from millpond.cli.cluster.nodes_file import resolved
from millpond.cli.cluster.ports import free_ports
from millpond.cli.errors import Failed
from millpond.cli.folders import identity_of, locked, unusable
from millpond.config.node import (
    ADVERTISED_LISTENER,
    BROKER_RACK,
    CLUSTER_CONTACTS,
    CLUSTER_ID,
    DATA_FOLDER,
    LISTEN,
    NODE_ID,
    host_and_port,
    is_loopback,
)

EVERYWHERE: Final = ("0.0.0.0", "::")
TRIES_MAX: Final = 100
"""How many node numbers to try while others take them."""


def texts_to_join(join: str, node_id: int | None, texts: Mapping[str, str]) -> dict[str, str]:
    """The settings of a joining node, in addition to the given ones."""
    folder = texts.get(DATA_FOLDER.name, DATA_FOLDER.default)
    identity = identity_of(folder)
    if identity is not None and node_id not in (None, identity.node_id):
        raise Failed(
            f"The data folder {folder} belongs to node {identity.node_id}: leave out --node, or give an empty folder "
            "with --data DIR."
        )
    if identity is not None and identity.contacts:
        # It is a member already: it registers its current address by itself.
        _check_cluster(join, folder, identity.cluster_id, _cluster_id_at(join, folder))
        return {NODE_ID.name: str(identity.node_id)}
    cluster_id, contacts, taken = _ask(join, folder)
    if identity is not None:
        _check_cluster(join, folder, identity.cluster_id or "without a name", cluster_id)
        return {NODE_ID.name: str(identity.node_id)}
    if node_id in contacts:
        raise Failed(f"Node {node_id} is running at {contacts[node_id]}: leave out --node to get a free number.")
    own_texts = {
        CLUSTER_ID.name: cluster_id,
        CLUSTER_CONTACTS.name: ",".join(f"{each}@{resolved(at)}" for each, at in contacts.items()),
        **_own_address(join, texts),
    }
    if node_id is not None:
        return {NODE_ID.name: str(node_id), **own_texts}
    own_texts = _with_port(texts, own_texts)
    return {
        NODE_ID.name: str(_take_number(join, folder, max(taken, default=0) + 1, {**texts, **own_texts})),
        **own_texts,
    }


def _access(join: str, folder: str) -> Access:
    """The login, if needed, comes from MILLPOND_CLIENT_CONFIG or from files in the folder."""
    from millpond.remote.client_file import client_settings
    from millpond.remote.errors import ConfigError

    try:
        settings = client_settings() or _settings_in(folder)
    except ConfigError as fault:
        raise Failed(f"{fault}.") from None
    settings.pop("bootstrap.servers", None)
    return Access(join, settings, option="--join")


def _settings_in(folder: str) -> dict[str, str]:
    """The admin's settings, if the files of a secure cluster were copied here for the new node."""
    from millpond.node.secure_folder import secure_folder

    security = secure_folder(folder)
    if security is None or not security.client_file.exists():
        return {}
    return {**security.client_settings(), "ssl.truststore.location": str(security.authority_file)}


def _check_cluster(join: str, folder: str, own: str | None, theirs: str | None) -> None:
    if own and theirs and own != theirs:
        raise Failed(
            f"The data folder {folder} belongs to another cluster ({own}); {join} is in {theirs}: give an empty "
            "folder with --data DIR."
        )


def _cluster_id_at(join: str, folder: str) -> str | None:
    """For a folder that belongs to a cluster; None if no node answers, which must not prevent the start."""
    from millpond.admin.members import cluster_id_of

    try:
        with _access(join, folder).open() as cluster:
            return cluster_id_of(cluster)
    except Failed:
        return None


def _with_port(texts: Mapping[str, str], own_texts: dict[str, str]) -> dict[str, str]:
    """Replaces port 0 by a free port, because the others learn it before the node listens."""
    host, port = host_and_port(own_texts.get(LISTEN.name) or texts.get(LISTEN.name, LISTEN.default))
    if port:
        return own_texts
    (port,) = free_ports(host, 0, 1, "a node")
    chosen = {LISTEN.name: shown_address(host, port)}
    if ADVERTISED_LISTENER.name in own_texts:
        chosen[ADVERTISED_LISTENER.name] = shown_address(host_and_port(own_texts[ADVERTISED_LISTENER.name])[0], port)
    return {**own_texts, **chosen}


def _take_number(join: str, folder: str, first: int, texts: Mapping[str, str]) -> int:
    """Reserves a node number for this folder, from `first` on.

    The cluster assigns it before anything is written here, so an interrupted command may leave a node that never
    comes (`millpond node remove`), but never two nodes with one number.
    """
    from uuid import uuid4

    from millpond.admin.errors import Refused
    from millpond.admin.members import Newcomer, take_number
    from millpond.broker.data_folder.identity import Identity, write_identity
    from millpond.broker.data_folder.incarnation import LOST, LastIncarnation, write_last_incarnation
    from millpond.node.disk import RealDisk
    from millpond.node.entropy import boot_id

    host, port = host_and_port(texts.get(ADVERTISED_LISTENER.name) or texts.get(LISTEN.name) or LISTEN.default)
    newcomer = Newcomer(uuid4(), uuid4(), host, port, texts.get(BROKER_RACK.name))
    disk = RealDisk()
    with locked(folder):
        meanwhile = identity_of(folder)
        if meanwhile is not None:
            raise Failed(f"Another command has just made {folder} the folder of node {meanwhile.node_id}: try again.")
        try:
            # First: a full disk must not use up a number at every attempt.
            write_last_incarnation(disk, folder, LastIncarnation(LOST, boot_id(), newcomer.incarnation_id))
            with _access(join, folder).open() as cluster:
                numbers = range(first, first + TRIES_MAX)
                number = next((each for each in numbers if take_number(cluster, each, newcomer)), None)
            if number is None:
                raise Failed("Many nodes are joining right now: try again in a few seconds.")
            contacts = tuple(texts[CLUSTER_CONTACTS.name].split(","))
            write_identity(disk, folder, Identity(number, newcomer.directory_id, contacts=contacts))
        except Refused as fault:
            raise Failed(str(fault)) from None
        except OSError as error:
            raise unusable(folder, error) from None
    return number


def _ask(join: str, folder: str) -> tuple[str, dict[int, str], set[int]]:
    """The cluster's id, its live nodes with their addresses, and all numbers that were ever assigned."""
    from millpond.admin.members import describe_members

    with _access(join, folder).open() as cluster:
        members = describe_members(cluster)
    contacts = {each.node_id: each.facts.address for each in members.nodes if each.is_active and each.facts.address}
    if not members.cluster_id or not contacts:
        # A node without contacts would start a new cluster.
        raise Failed(f"No node of the cluster at {join} is ready: wait until one is (`millpond cluster status`).")
    return members.cluster_id, contacts, {each.node_id for each in members.nodes}


def _local_address(join: str) -> str:
    """This machine's address towards the first of these nodes that can be reached."""
    for address in filter(None, map(str.strip, join.split(","))):
        at = host_and_port(address if ":" in address else f"{address}:{host_and_port(LISTEN.default)[1]}")
        with contextlib.suppress(OSError), socket.create_connection(at, PROBE_SECONDS) as probe:
            local: str = probe.getsockname()[0]
            return local
    raise Failed(f"{join} does not answer any more: try again, or name another node with --join.")


def _own_address(join: str, texts: Mapping[str, str]) -> dict[str, str]:
    """The address where the others reach this node: by default the one that it connects from."""
    local = _local_address(join)
    shown = f"[{local}]" if ":" in local else local
    listen = texts.get(LISTEN.name)
    if listen is None:
        return {} if is_loopback(local) else {LISTEN.name: f"{shown}:{host_and_port(LISTEN.default)[1]}"}
    own_host, own_port = host_and_port(listen)
    if own_host in EVERYWHERE and ADVERTISED_LISTENER.name not in texts:
        return {ADVERTISED_LISTENER.name: f"{shown}:{own_port}"}
    if is_loopback(own_host) and not is_loopback(local) and ADVERTISED_LISTENER.name not in texts:
        raise click.UsageError(
            f"--listen {listen}: nodes on other machines cannot reach this one there; listen on {shown}:{own_port}."
        )
    return {}
