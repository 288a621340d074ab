"""Chooses the quorum's voters if they are in the log: on the active controller, one change at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from millpond.base.errors import Refused
from millpond.base.later import Later, done
from millpond.broker.quorum.voters import voter_of
from millpond.config.node import CLUSTER_VOTERS, QUORUM_VOTERS_MAX
from millpond.metadata.placement import drained_nodes
from millpond.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    Record,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from millpond.quorum.voters import next_voters, wanted_count

if TYPE_CHECKING:
    from millpond.base.ports import Clock, Timer
    from millpond.base.settings import Settings
    from millpond.broker.controller.controller import Controller
    from millpond.broker.loop.journal import Journal
    from millpond.metadata.decision import Verdict

LOOK_MS: Final = 500
"""How often to check again for a change that cannot be made yet, because a node has to catch up first."""

CAUSES: Final = (RegisterBrokerRecord, BrokerRegistrationChangeRecord, UnregisterBrokerRecord, ConfigRecord)


class VoterKeeper:
    def __init__(
        self, clock: Clock, controller: Controller, settings: Callable[[], Settings], journal: Journal
    ) -> None:
        self._clock = clock
        self._controller = controller
        self._settings = settings
        self._journal = journal
        self._timer: Timer | None = None
        self._is_changing = False
        self._is_over = False

    def on_role(self, is_active: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_changing = False
        if is_active:
            self._look_later(LOOK_MS)

    def on_records(self, records: Sequence[Record]) -> Later[None]:
        if self._controller.is_active and any(isinstance(each, CAUSES) for each in records):
            self._look_later(0)
        return done(None)

    def stop(self) -> None:
        self._is_over = True
        self.on_role(False)

    def _look_later(self, delay_ms: int) -> None:
        if self._timer is None and not self._is_over and self._controller.kraft_version:
            self._timer = self._clock.call_later(delay_ms, self._look)

    def _look(self) -> None:
        self._timer = None
        controller = self._controller
        if self._is_changing or self._is_over or not controller.is_active:
            return
        image, voters = controller.image, controller.host.log.voters
        assert voters is not None, "looked at without a record of voters"
        drained = drained_nodes(image)
        able = {
            int(node_id): voter
            for node_id, broker in image.brokers.items()
            if broker.is_active and (voter := voter_of(image, node_id)) is not None
        }
        settings = self._settings()
        # An explicit list of voters also sets their number.
        count_max = len(settings[CLUSTER_VOTERS]) or settings[QUORUM_VOTERS_MAX]
        count = wanted_count(len(image.brokers.keys() - drained), count_max)
        wanted = next_voters(voters, able, drained, count)
        if wanted is None:
            return
        if controller.host.objection(wanted) is not None:
            self._look_later(LOOK_MS)
            return
        self._is_changing = True
        self._journal("the voters of the metadata change", voters=",".join(str(each.node_id) for each in wanted))
        controller.change_voters(wanted).then(self._changed, self._not_changed)

    def _changed(self, verdict: Verdict) -> None:
        self._is_changing = False
        self._look_later(0 if verdict.ok else LOOK_MS)

    def _not_changed(self, failure: Exception) -> None:
        if not isinstance(failure, Refused):
            raise failure
        # The next active controller continues.
        self._is_changing = False
