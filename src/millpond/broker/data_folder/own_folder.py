"""This node's data folder: its identity, the name of its cluster, and the known contacts there.

Call `take` first. Changes are written as they are learned; if the disk is full they are lost, and the next start
learns them again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from millpond.broker.data_folder.copied import mark_folder
from millpond.broker.data_folder.identity import CannotStart, Identity, cluster_name, read_identity, write_identity
from millpond.broker.data_folder.rescue_marker import is_begun
from millpond.broker.data_folder.restored import RESTORE_FILE
from millpond.config.node import CLUSTER_CONTACTS, CLUSTER_ID, NODE_ID, cluster_nodes

if TYPE_CHECKING:
    from millpond.base.ports import Workers, World
    from millpond.base.settings import Settings
    from millpond.metadata.image import Image


class OwnFolder:
    def __init__(self, world: World, folder: str, settings: Settings, workers: Workers) -> None:
        """`workers` write later changes."""
        self.is_copy = False
        """Whether this is a copy, possibly an old one, of the folder this node last ran in."""
        self._disk = world.disk
        self._entropy = world.entropy
        self._boot_id = world.boot_id
        self._folder = folder
        self._settings = settings
        self._node_id = settings[NODE_ID]
        self._workers = workers
        self._identity: Identity | None = None

    # Facts.

    @property
    def directory_id(self) -> UUID:
        """The ID of this folder; a wiped or replaced disk has a different one."""
        assert self._identity is not None, "not loaded"
        return self._identity.directory_id

    @property
    def copied_from(self) -> tuple[UUID, ...]:
        """The directory IDs of the folders this one is a copy of; none once it has registered with its own."""
        return self._identity.copied_from if self._identity else ()

    @property
    def known_name(self) -> str | None:
        """The cluster name in this folder; None if the folder has never been in a cluster."""
        return self._identity.cluster_name if self._identity else None

    def name_of_cluster(self, image: Image) -> str:
        """The cluster name that this node sends to other nodes; empty while unknown.

        Not the configured cluster ID, which does not reflect rescues.
        """
        known = self._identity if self._identity is not None and self._identity.cluster_id else image
        return cluster_name(known.cluster_id, known.rescues) or ""

    @property
    def contacts(self) -> tuple[str, ...]:
        """Nodes of the cluster, from the settings or from this folder."""
        told = self._settings[CLUSTER_CONTACTS]
        return told if told or self._identity is None else self._identity.contacts

    @property
    def is_sole(self) -> bool:
        """Whether this node knows of no others."""
        return len(cluster_nodes(self._settings)) < 2 and not self.contacts

    # Starting. All of it blocks on disk I/O.

    def take(self) -> None:
        """Read the identity. CannotStart if the folder is another node's, or a restore or rescue is unfinished."""
        if self._disk.exists(f"{self._folder}/{RESTORE_FILE}"):
            raise CannotStart(
                "a backup was being restored into it and that has not ended (run the same `millpond restore` again)"
            )
        if is_begun(self._disk, self._folder):
            raise CannotStart(
                "a rescue of this folder was begun and has not ended (run `millpond cluster rescue --data DIR --act` "
                "again)"
            )
        self._identity = read_identity(self._disk, self._folder)
        if self._identity is not None:
            self._check(self._identity)

    def _check(self, identity: Identity) -> None:
        identity.check(self._node_id, self._settings[CLUSTER_ID])

    def mark(self, metadata_folder: str, *, is_alone: Callable[[], bool], was_clean: bool) -> None:
        """Detect whether the folder is a copy. Call this before the election state is read."""
        if self._identity is not None:
            self._identity, self.is_copy = mark_folder(
                self._disk,
                self._folder,
                metadata_folder,
                self._identity,
                self._boot_id,
                is_alone=is_alone,
                was_clean=was_clean,
                new_directory_id=self._entropy.uuid,
            )

    def identify(self, image: Image, metadata_folder: str, *, is_alone: bool) -> None:
        """Write the identity, unless there is one already. A folder of another node or cluster is refused."""
        if self._identity is not None:
            return
        if image.brokers and self._node_id not in image.brokers:
            owner = next(iter(image.brokers))
            raise CannotStart(f"the data folder belongs to node {owner}, not to node {self._node_id}")
        self._identity = Identity(
            self._node_id,
            self._entropy.uuid(),
            image.cluster_id,
            image.rescues,
            self._disk.mark(metadata_folder),
            self.contacts,
        )
        self._check(self._identity)
        if not is_alone or self._identity.cluster_id:
            # Otherwise it is written in a moment, with the ID of the cluster that this node founds.
            write_identity(self._disk, self._folder, self._identity)

    # Later changes.

    def learn_name(self, image: Image) -> None:
        """Write the cluster ID once the image has one."""
        if self._identity is not None and self._identity.cluster_id is None and image.cluster_id is not None:
            self._change(replace(self._identity, cluster_id=image.cluster_id, rescues=image.rescues))

    def learn_registration(self, image: Image) -> None:
        """Once a copy has registered, it is the node's folder: drop the earlier directory IDs."""
        identity = self._identity
        if identity is None or not identity.copied_from:
            return
        broker = image.brokers.get(self._node_id)
        if broker is not None and broker.directory_id == identity.directory_id:
            self._change(replace(identity, copied_from=()))

    def learn_contacts(self, contacts: tuple[str, ...]) -> None:
        """Record that this folder belongs to one of several nodes, which has these contacts."""
        assert self._identity is not None, "not loaded"
        self._change(replace(self._identity, contacts=contacts))

    def _change(self, identity: Identity) -> None:
        self._identity = identity
        written = self._workers.run(partial(write_identity, self._disk, self._folder, identity))
        written.recover(OSError, lambda _: None).then(lambda _: None)
