"""The share partitions that this node leads, by group, while members of the group have sessions here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from uuid import UUID

from millpond.base.named_tuple import NamedTuple
from millpond.broker.loop.steps import Steps
from millpond.broker.shares.counts import Totals
from millpond.broker.shares.group_reads import GroupReads
from millpond.broker.shares.read_settings import ShareReadSettings, share_read_settings
from millpond.broker.shares.sessions import ShareSession, ShareSessions
from millpond.broker.shares.share_leader import RELEASED_AT_ONCE, LeaderServices, ShareLeader
from millpond.config.node import GROUP_SHARE_MAX_SHARE_SESSIONS
from millpond.config.quota import MAX_FETCH_SESSION_PARTITIONS
from millpond.metadata.image import Resource
from millpond.metadata.records import ResourceType

if TYPE_CHECKING:
    from millpond.base.settings import Settings
    from millpond.broker.loop.turns import Turns
    from millpond.broker.replication.partitions import Partitions
    from millpond.config.effective import NodeLayers
    from millpond.metadata.image import Image

RELEASE_COST: Final = 15
"""To release the records of a partition costs as much as this many of their ranges."""


ENDED_MAX: Final = 1_000
"""Queues whose totals are kept after their windows have ended, the most recent ones."""


class QueueKey(NamedTuple):
    """A topic as a share group reads it."""

    group_id: str
    topic_id: UUID


class ShareManager:
    def __init__(
        self,
        *,
        partitions: Partitions,
        image: Image,
        layers: Callable[[], NodeLayers],
        settings: Callable[[], Settings],
        services: LeaderServices,
        turns: Turns,
        on_limit: Callable[[str, int], None],
    ) -> None:
        self.partitions = partitions
        self.image = image
        self.layers = layers
        self.services = services
        self._turns = turns
        self._groups: dict[str, GroupReads] = {}
        self.ended_totals: Final[dict[QueueKey, Totals]] = {}
        """What happened in windows that are gone: counters do not go back when the last member leaves."""
        self.sessions: Final = ShareSessions(
            lambda: settings()[GROUP_SHARE_MAX_SHARE_SESSIONS],
            lambda: settings()[MAX_FETCH_SESSION_PARTITIONS],
            on_limit,
            self._on_session_ended,
            (GROUP_SHARE_MAX_SHARE_SESSIONS.name, MAX_FETCH_SESSION_PARTITIONS.name),
        )

    def __len__(self) -> int:
        """The number of share partitions in memory."""
        return sum(len(group.leaders) for group in self._groups.values())

    def letters_waiting(self) -> int:
        """The number of records that are to be archived once their dead letters are written."""
        windows = (leader.window for group in self._groups.values() for leader in group.leaders.values())
        return sum(window.archiving_count for window in windows if window is not None)

    def group(self, group_id: str) -> GroupReads:
        """The group, for a request. It stays only if a session follows."""
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = GroupReads(group_id, self)
        return group

    def group_settings(self, group_id: str) -> ShareReadSettings:
        group = self._groups.get(group_id)
        if group is not None:
            return group.follow_settings()
        return share_read_settings(self.layers(), self.image.config_of(Resource(ResourceType.GROUP, group_id)))

    def known(self, group_id: str) -> GroupReads | None:
        """The group if members have sessions here, or had until a moment ago."""
        return self._groups.get(group_id)

    def forget(self, group: GroupReads) -> None:
        if self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]

    def groups(self) -> list[GroupReads]:
        return list(self._groups.values())

    def note_ended(self, leader: ShareLeader) -> None:
        if leader.window is None:
            return
        key = QueueKey(leader.key.group_id, leader.key.topic_id)
        # The most recent one last.
        totals = self.ended_totals.pop(key, None) or Totals()
        totals.include(leader.window.totals)
        self.ended_totals[key] = totals
        if len(self.ended_totals) > ENDED_MAX:
            del self.ended_totals[next(iter(self.ended_totals))]

    def _on_session_ended(self, session: ShareSession, were_delivered: bool) -> None:
        group = session.group

        def release(key: tuple[UUID, int]) -> int:
            leader = group.leaders.get(key)
            return 0 if leader is None else leader.release(session.holder, were_delivered=were_delivered)

        held, session.held = list(session.held), {}

        def end() -> Steps[None]:
            cost = 0
            for key in held:
                cost += RELEASE_COST + release(key)
                if cost >= RELEASED_AT_ONCE:
                    cost = 0
                    yield None
            yield None
            # Until then the group keeps its leaders.
            yield from group.remove_session()

        # Not now: the session may be replaced by another, which keeps the leaders.
        self._turns.run(end(), _ignore).then(_ignore)


def _ignore(_: object) -> None: ...
