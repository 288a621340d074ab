"""Decides which process counts as a voter when several run with its node id: the one with the expected directory id.

Decision 32 has the rules. In short, the log or else the registration in the image names the directory of each voter.
A voter without either is pinned by the leader to the first directory that fetches in its epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from uuid import UUID

from millpond.metadata.image import NO_DIRECTORY
from millpond.wire.batch import walk

if TYPE_CHECKING:
    from millpond.broker.quorum.log import MetadataLog
    from millpond.metadata.image import Image

TAIL_BYTES_MAX: Final = 16 << 20
"""At most this much of the log beyond the image is searched for a registration."""


class VoterDirectories:
    """The directory ids of the voters, as this node knows them now."""

    def __init__(
        self,
        log: MetadataLog,
        image: Image,
        applied_offset: Callable[[], int],
        is_unregistered_copy: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_unregistered_copy`: whether this node runs from a copy of its registered data folder."""
        self._log = log
        self._image = image
        self._applied_offset = applied_offset
        self._is_unregistered_copy = is_unregistered_copy
        self._pinned_epoch = -1
        self._pinned: dict[int, tuple[UUID, UUID]] = {}
        """The directory that counts for each voter, and the one that was registered for it at that time."""
        self._counted: dict[int, UUID] = {}

    def is_voter(self, node_id: int, directory_id: UUID, *, is_new: bool) -> bool:
        """Whether the process with this directory counts as the voter with this node id.

        A process of an earlier version does not send its directory, and counts.
        """
        expected = self._expected(node_id)
        if NO_DIRECTORY in (directory_id, expected) or directory_id == expected:
            return True
        # The image lags behind the log after a restart. A voter with a new folder stays new until its registration is
        # committed, so one that is no longer new proves that the registration in the log was.
        return self._log.voters is None and not is_new and self._is_in_tail(directory_id)

    def is_fetching_voter(self, node_id: int, directory_id: UUID, epoch: int, *, is_new: bool) -> bool:
        """As `is_voter`, for a fetch from this node as the leader of the epoch."""
        if self._pinned_epoch != epoch:
            self._pinned_epoch, self._pinned = epoch, {}
        registered = self._registered(node_id)
        if node_id in self._pinned and self._log.voters is None and directory_id != NO_DIRECTORY:
            pinned, registered_then = self._pinned[node_id]
            return directory_id == (pinned if registered == registered_then else registered)
        if not self.is_voter(node_id, directory_id, is_new=is_new):
            return False
        if directory_id != NO_DIRECTORY and self._expected(node_id) == NO_DIRECTORY:
            self._pinned[node_id] = directory_id, registered
        return True

    def is_replaced(self, node_id: int, directory_id: UUID) -> bool:
        """Note whose fetch counts now; return whether another process counted before it."""
        if directory_id == NO_DIRECTORY:
            return False
        before = self._counted.get(node_id, directory_id)
        self._counted[node_id] = directory_id
        return before != directory_id

    def _expected(self, node_id: int) -> UUID:
        if self._log.voters is not None:
            named = (each.directory_id for each in self._log.voters if each.node_id == node_id)
            return next(named, NO_DIRECTORY)
        # After a copy of all folders, the voters have to elect a leader while each still knows the others' old
        # folders. An image that names this copy dates from after the copy.
        return NO_DIRECTORY if self._is_unregistered_copy() else self._registered(node_id)

    def _registered(self, node_id: int) -> UUID:
        broker = self._image.brokers.get(node_id)
        return NO_DIRECTORY if broker is None else broker.directory_id

    def _is_in_tail(self, directory_id: UUID) -> bool:
        """Whether records that the image lacks mention the directory."""
        if self._log.is_changing:
            return True
        offset, left = max(self._applied_offset(), self._log.start_offset), TAIL_BYTES_MAX
        while offset < self._log.end_offset:
            data = self._log.read(offset)
            left -= len(data)
            if not data or left < 0 or directory_id.bytes in data:
                # A tail too long or unreadable counts as a match, as before directories were compared.
                return True
            *_, (_, last) = walk(data)
            offset = last.base_offset + last.last_offset_delta + 1
        return False
