"""The file `meta.properties`, which identifies a data folder. A folder of another node or cluster is refused."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from dataclasses import replace
from typing import Final
from uuid import UUID

from millpond.base.ports import Disk
from millpond.base.values import dataclass

IDENTITY_FILE = "meta.properties"
FOLDER_VERSION = "1"
"""The version of the folder layout. Unknown lines of the file are ignored. The contents of the metadata log depend on
the feature levels instead."""

COPIED_FROM_MAX: Final = 8
"""How many earlier directory IDs are kept, the latest ones."""


class CannotStart(Exception):
    """This node cannot use its data folder. Starting without it would lose topics."""


class Misconfigured(CannotStart):
    """The folder is fine, but the settings contradict each other or name unreadable files."""


class CannotJoin(CannotStart):
    """The cluster refuses this node; the message says what can be done."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a data folder. It has no cluster ID until this node has learned one."""

    node_id: int
    directory_id: UUID
    cluster_id: str | None = None
    rescues: int = 0
    """How often the cluster had been rescued when this folder joined it."""
    mark: str | None = None
    """Identifies the metadata folder on its disk, unlike a copy of it; None if the disk has no such mark."""
    contacts: tuple[str, ...] = ()
    """If this node joined a running cluster: other nodes known then, as `id@host:port`."""
    copied_from: tuple[UUID, ...] = ()
    """The directory IDs this folder had before it was copied, oldest first, until it registers with its own."""

    @property
    def cluster_name(self) -> str | None:
        return cluster_name(self.cluster_id, self.rescues)

    def as_copy(self, directory_id: UUID) -> Identity:
        """The identity of a copy of this folder: the original keeps its directory ID and may still be running."""
        copied_from = (*self.copied_from, self.directory_id)[-COPIED_FROM_MAX:]
        return replace(self, directory_id=directory_id, copied_from=copied_from)

    def check(self, node_id: int, cluster_id: str | None) -> None:
        """CannotStart if this folder belongs to another node or cluster."""
        if self.node_id != node_id:
            raise CannotStart(f"the data folder belongs to node {self.node_id}, not to node {node_id}")
        if cluster_id and self.cluster_id and cluster_id != self.cluster_id:
            raise CannotStart(f"the data folder belongs to cluster {self.cluster_id}, not to {cluster_id}")


def cluster_name(cluster_id: str | None, rescues: int) -> str | None:
    """The cluster name that nodes use among themselves. A rescue changes it, which shuts out nodes left behind."""
    return f"{cluster_id}~{rescues}" if cluster_id and rescues else cluster_id


def is_outlived(name: str, by: str) -> bool:
    """Whether the cluster `name` has since been rescued and is now called `by`."""
    cluster_id, _, rescues = by.rpartition("~")
    if not rescues.isdecimal() or len(rescues) > 9:
        return False
    before = name.removeprefix(f"{cluster_id}~")
    return name == cluster_id or (before.isdecimal() and name != before and int(before) < int(rescues))


def read_identity(disk: Disk, folder: str) -> Identity | None:
    """None in a new folder, or in one older than this file."""
    path = f"{folder}/{IDENTITY_FILE}"
    try:
        lines = disk.read(path).decode().splitlines()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as fault:
        raise CannotStart(f"{path} cannot be read: {fault}") from fault
    fields = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    if fields.get("version", FOLDER_VERSION) != FOLDER_VERSION:
        raise CannotStart(
            f"{path} says that the folder has version {fields['version']}, and this program knows version "
            f"{FOLDER_VERSION}: start the newer program that wrote it"
        )
    try:
        directory_id = _decode_id(fields["directory.id"])
        copied_from = tuple(map(_decode_id, filter(None, fields.get("copied.from", "").split(","))))
        rescues = int(fields.get("cluster.rescues", 0))
        contacts = tuple(filter(None, fields.get("contacts", "").split(",")))
        mark = fields.get("folder.mark")
        return Identity(
            int(fields["node.id"]), directory_id, fields.get("cluster.id"), rescues, mark, contacts, copied_from
        )
    except (KeyError, ValueError, Base64Error) as fault:
        raise CannotStart(f"{path} cannot be read: {fault}") from fault


def write_identity(disk: Disk, folder: str, identity: Identity) -> None:
    """Write the identity durably. Blocks on disk I/O."""
    directory_id = _encode_id(identity.directory_id)
    lines = [f"version={FOLDER_VERSION}", f"node.id={identity.node_id}", f"directory.id={directory_id}"]
    if identity.cluster_id:
        lines.append(f"cluster.id={identity.cluster_id}")
    if identity.rescues:
        lines.append(f"cluster.rescues={identity.rescues}")
    if identity.mark:
        lines.append(f"folder.mark={identity.mark}")
    if identity.contacts:
        lines.append(f"contacts={','.join(identity.contacts)}")
    if identity.copied_from:
        lines.append(f"copied.from={','.join(map(_encode_id, identity.copied_from))}")
    disk.replace(f"{folder}/{IDENTITY_FILE}", ("\n".join(lines) + "\n").encode())


def _encode_id(directory_id: UUID) -> str:
    return urlsafe_b64encode(directory_id.bytes).decode().rstrip("=")


def _decode_id(text: str) -> UUID:
    return UUID(bytes=urlsafe_b64decode(text + "=="))
