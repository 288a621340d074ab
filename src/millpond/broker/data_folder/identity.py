"""The file `meta.properties`: whose data folder this is. A folder of another node or cluster is refused."""

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
"""Of the files and folders themselves; lines of the file that are not known here are passed over. What the metadata
log may hold goes by the levels of features."""

COPIED_FROM_MAX: Final = 8
"""Only this many earlier directory ids are kept, the latest ones."""


class CannotStart(Exception):
    """The data folder is not one that this node can go on with. Starting without it would lose topics."""


class Misconfigured(CannotStart):
    """It is not the folder: what this node was told does not fit together, or names files that cannot be read."""


class CannotJoin(CannotStart):
    """The other nodes do not let this one in; the text says what can be done."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Of one data folder. It has no cluster until this node has heard of one."""

    node_id: int
    directory_id: UUID
    cluster_id: str | None = None
    rescues: int = 0
    """How often the cluster had been rescued when this folder became one of its own."""
    mark: str | None = None
    """Of the folder of the metadata, as the disk tells it from a copy; None where it cannot."""
    contacts: tuple[str, ...] = ()
    """Of a node that has joined a running cluster: nodes that knew it then, as `id@host:port`."""
    copied_from: tuple[UUID, ...] = ()
    """The directory ids this folder had before it was copied, oldest first, until it registers with its own."""

    @property
    def cluster_name(self) -> str | None:
        return cluster_name(self.cluster_id, self.rescues)

    def as_copy(self, directory_id: UUID) -> Identity:
        """The identity of a copy of this folder: the original keeps its directory id, and may still run."""
        copied_from = (*self.copied_from, self.directory_id)[-COPIED_FROM_MAX:]
        return replace(self, directory_id=directory_id, copied_from=copied_from)

    def check(self, node_id: int, cluster_id: str | None) -> None:
        """That this folder is the one's who asks."""
        if self.node_id != node_id:
            raise CannotStart(f"the data folder belongs to node {self.node_id}, not to node {node_id}")
        if cluster_id and self.cluster_id and cluster_id != self.cluster_id:
            raise CannotStart(f"the data folder belongs to cluster {self.cluster_id}, not to {cluster_id}")


def cluster_name(cluster_id: str | None, rescues: int) -> str | None:
    """How nodes name their cluster among themselves: after a rescue it is another one to whoever was left behind."""
    return f"{cluster_id}~{rescues}" if cluster_id and rescues else cluster_id


def is_outlived(name: str, by: str) -> bool:
    """Whether a cluster of this name was rescued since, and goes by the other name now."""
    cluster_id, _, rescues = by.rpartition("~")
    if not rescues.isdecimal() or len(rescues) > 9:
        return False
    before = name.removeprefix(f"{cluster_id}~")
    return name == cluster_id or (before.isdecimal() and name != before and int(before) < int(rescues))


def read_identity(disk: Disk, folder: str) -> Identity | None:
    """None in a folder that is new, or from before there was such a file."""
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
    """Durably. Waits for the disk."""
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
