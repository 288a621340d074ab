"""A share group on one node: the share partitions that the node leads and members of the group fetch from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.base.later import Later, done
from millpond.broker.loop.steps import Steps, in_slices
from millpond.broker.shares.read_settings import ShareReadSettings, share_read_settings
from millpond.broker.shares.share_leader import LeaderServices, ShareLeader
from millpond.coordinators.shares.keys import SharePartition
from millpond.metadata.image import Resource
from millpond.metadata.records import ResourceType

if TYPE_CHECKING:
    from millpond.broker.replication.partitions import Partition
    from millpond.broker.shares.verdicts import Acknowledgement
    from millpond.config.effective import NodeLayers
    from millpond.metadata.image import Image

ENDED_AT_ONCE: Final = 20
"""Partitions whose leaders end in one turn of the loop."""


class GroupServices(Protocol):
    """What a group needs of the manager of all groups."""

    image: Image
    services: LeaderServices
    layers: Callable[[], NodeLayers]

    def forget(self, group: GroupReads) -> None: ...

    def note_ended(self, leader: ShareLeader) -> None: ...


class GroupReads:
    """One share group on this node."""

    def __init__(self, group_id: str, manager: GroupServices) -> None:
        self.group_id = group_id
        self.leaders: dict[tuple[UUID, int], ShareLeader] = {}
        self._manager = manager
        self._resource = Resource(ResourceType.GROUP, group_id)
        self._sessions = 0
        self._settings: ShareReadSettings | None = None
        self._made_from: tuple[NodeLayers, Mapping[str, str]] | None = None

    def follow_settings(self) -> ShareReadSettings:
        """The settings as they are now; the leaders follow them, too."""
        layers, own = self._manager.layers(), self._manager.image.config_of(self._resource)
        before = self._made_from
        if self._settings is None or before is None or before[0] is not layers or before[1] != own:
            # The image changes the mapping in place.
            self._made_from = (layers, dict(own))
            self._settings = share_read_settings(layers, own)
            for leader in self.leaders.values():
                leader.configure(self._settings)
        return self._settings

    def add_session(self) -> None:
        self._sessions += 1
        if self._sessions == 1:
            for leader in self.leaders.values():
                leader.keep()

    def remove_session(self) -> Steps[None]:
        """After the last session, end all leaders."""
        self._sessions -= 1
        for some in in_slices(list(self.leaders.values()), ENDED_AT_ONCE):
            if self._sessions:
                return
            for leader in some:
                leader.leave()
            yield None
        self.forget_if_unused()

    def forget_if_unused(self) -> None:
        if not self._sessions and not self.leaders:
            self._manager.forget(self)

    def leader_of(self, partition: Partition) -> ShareLeader:
        """The leader of this partition, which begins to load if it is new."""
        key = (partition.topic_id, partition.name.partition)
        leader = self.leaders.get(key)
        if leader is not None and leader.partition is not partition:
            leader.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            leader = None
        if leader is None:
            leader = self.leaders[key] = ShareLeader(
                SharePartition(self.group_id, *key),
                partition,
                self.follow_settings(),
                self._manager.services,
                self._on_leader_ended,
                self.follow_settings,
            )
            leader.load()
        return leader

    def acknowledge(
        self, holder: str, partition: Partition, acknowledgements: Sequence[Acknowledgement]
    ) -> Later[ErrorCode]:
        leader = self.leaders.get((partition.topic_id, partition.name.partition))
        if leader is None or leader.partition is not partition:
            # Whoever delivered the records, it was an earlier leader.
            return done(ErrorCode.INVALID_RECORD_STATE)
        self.follow_settings()
        return leader.acknowledge(holder, acknowledgements)

    def _on_leader_ended(self, leader: ShareLeader) -> None:
        self._manager.note_ended(leader)
        key = leader.key[1:]
        if self.leaders.get(key) is leader:
            del self.leaders[key]
            self.forget_if_unused()
