"""The data folder of this node as its own: whose it is, by which name its cluster goes, and whom it knows there.

`take` first. What is learned later is written down as it comes; a full disk forgets it, and the next start learns it
again.
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
        """`workers` write what is learned later."""
        self.is_copy = False
        """Whether it is a copy of the one that this node ran in last: it may be old."""
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
        """A wiped or other disk has another one."""
        assert self._identity is not None, "not loaded"
        return self._identity.directory_id

    @property
    def copied_from(self) -> tuple[UUID, ...]:
        """The directory ids of the folders this one is a copy of; none once it has registered with its own."""
        return self._identity.copied_from if self._identity else ()

    @property
    def known_name(self) -> str | None:
        """How this node names its cluster, as written down here; None of a folder that has been in none."""
        return self._identity.cluster_name if self._identity else None

    def name_of_cluster(self, image: Image) -> str:
        """How this node names the cluster to other nodes; empty while it knows none.

        The id that it was told is no such name: whoever told it knows nothing of rescues.
        """
        known = self._identity if self._identity is not None and self._identity.cluster_id else image
        return cluster_name(known.cluster_id, known.rescues) or ""

    @property
    def contacts(self) -> tuple[str, ...]:
        """Nodes of its cluster, as it was told or has written down."""
        told = self._settings[CLUSTER_CONTACTS]
        return told if told or self._identity is None else self._identity.contacts

    @property
    def is_sole(self) -> bool:
        """Whether this node has never heard of others."""
        return len(cluster_nodes(self._settings)) < 2 and not self.contacts

    # Starting. All of it waits for the disk.

    def take(self) -> None:
        """Read whose it is. CannotStart where it is another's, or somebody is in the middle of changing it."""
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
        """Find whether it is a copy: before it is read what this node has promised."""
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
        """Write down whose it is, unless that is known already. One of another cluster is refused."""
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
            # Else it is written in a moment, with the name of the cluster that this node founds.
            write_identity(self._disk, self._folder, self._identity)

    # What comes later.

    def learn_name(self, image: Image) -> None:
        """The cluster may have a name now."""
        if self._identity is not None and self._identity.cluster_id is None and image.cluster_id is not None:
            self._change(replace(self._identity, cluster_id=image.cluster_id, rescues=image.rescues))

    def learn_registration(self, image: Image) -> None:
        """A copy that has registered is the node's folder from now on."""
        identity = self._identity
        if identity is None or not identity.copied_from:
            return
        broker = image.brokers.get(self._node_id)
        if broker is not None and broker.directory_id == identity.directory_id:
            self._change(replace(identity, copied_from=()))

    def learn_contacts(self, contacts: tuple[str, ...]) -> None:
        """From now on it is that of one of several, who knows these."""
        assert self._identity is not None, "not loaded"
        self._change(replace(self._identity, contacts=contacts))

    def _change(self, identity: Identity) -> None:
        self._identity = identity
        written = self._workers.run(partial(write_identity, self._disk, self._folder, identity))
        written.recover(OSError, lambda _: None).then(lambda _: None)
