"""The page of /metrics: made when somebody asks, once for all who ask meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from millpond.base.later import Later, done, end_all
from millpond.broker.metrics.cluster import collect_metadata, collect_node, collect_requests
from millpond.broker.metrics.exposition import Exposition
from millpond.broker.metrics.groups import GroupMetrics
from millpond.broker.metrics.partitions import collect_partitions, collect_topics
from millpond.broker.metrics.steps import Steps, run_steps

if TYPE_CHECKING:
    from millpond.broker.services import Services

FRESH_MS: Final = 250
"""Who asks again within this time gets the same page: no number of askers keeps the node busy."""

Collector = Callable[[Exposition], Steps[None]]


class MetricsPage:
    def __init__(self, broker: Services, more: Sequence[Collector] = ()) -> None:
        """`more` collects what is known outside of the broker."""
        self._broker = broker
        self._more = more
        self._groups = GroupMetrics(broker)
        self._waiting: list[Later[list[bytes]]] = []
        self._last: list[bytes] | None = None

    def text(self) -> Later[list[bytes]]:
        """The page, in pieces."""
        if self._last is not None:
            return done(self._last)
        asked: Later[list[bytes]] = Later()
        self._waiting.append(asked)
        if len(self._waiting) == 1:
            run_steps(self._broker.clock, self._make()).then(self._answer, self._refuse)
        return asked

    def _make(self) -> Steps[list[bytes]]:
        page, broker = Exposition(), self._broker
        yield from collect_node(page, broker)
        yield from collect_metadata(page, broker)
        yield from collect_requests(page, broker)
        for collect in self._more:
            yield from collect(page)
        yield from self._groups.collect(page)
        yield from collect_topics(page, broker)
        yield from collect_partitions(page, broker)
        return page.parts()

    def _answer(self, parts: list[bytes]) -> None:
        self._last = parts
        # It may be large, and is not kept until somebody asks again.
        self._broker.clock.call_later(FRESH_MS, self._forget)
        waiting, self._waiting = self._waiting, []
        end_all((each, parts) for each in waiting)

    def _forget(self) -> None:
        self._last = None

    def _refuse(self, failure: Exception) -> None:
        waiting, self._waiting = self._waiting, []
        end_all(((each, []) for each in waiting), failure)
