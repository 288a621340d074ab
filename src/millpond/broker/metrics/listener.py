"""The monitoring endpoint: /metrics, /healthz and /readyz over HTTP, served by the node's own loop.

Health checks are answered whatever scrapers do: idle connections are dropped in favour of new ones, and scrapes get
only part of the connections and a share of the loop (`page.py`). The endpoint is read-only and exposes no records.

A web page could make a browser send requests to a loopback address. A listener on the loopback therefore requires a
loopback name in the Host header, against DNS rebinding; requests from a page of another origin are always refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from millpond.base.later import Later, done
from millpond.broker.loop.shared_run import SharedRun
from millpond.broker.loop.steps import run_steps
from millpond.broker.metrics.exposition import CONTENT_TYPE
from millpond.broker.metrics.page import Collector, Page, PageMaker
from millpond.broker.metrics.readiness import unready_reason
from millpond.broker.metrics.visit import Answer, Request, Visit, sentence
from millpond.config.node import is_loopback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.base.ports import Link, LinkHandler, Listener, Network
    from millpond.broker.context import (
        CoordinationContext,
        DataContext,
        MetadataContext,
        NodeContext,
        SecurityContext,
    )

VISITS_MAX: Final = 128
SCRAPES_MAX: Final = 32
"""How many connections may wait for or read /metrics; the others are reserved for small requests."""

READ_MS: Final = 10_000
"""A scrape that has been reading for longer is dropped if a new one needs its place."""

PAGES_MAX: Final = 8
"""How many pages are kept in memory for slow readers: each may have megabytes."""

Route = Callable[[Visit, Request], Later[Answer]]


class MetricsListener:
    """Listens from `open` to `close`."""

    def __init__(
        self,
        node: NodeContext,
        security: SecurityContext,
        metadata: MetadataContext,
        data: DataContext,
        coordination: CoordinationContext,
        more: Sequence[Collector] = (),
    ) -> None:
        self._clock = node.clock
        self._node = node
        self._security = security
        self._metadata = metadata
        self._data = data
        self._coordination = coordination
        self._pages = PageMaker(node, security, metadata, data, coordination, more)
        self._readiness: SharedRun[Answer] = SharedRun(
            lambda: run_steps(self._clock, unready_reason(node, metadata, data)).map(_readiness_answer)
        )
        self._visits: dict[Visit, None] = {}
        """Oldest first."""
        self._scrapes: dict[Visit, Page | None] = {}
        """The connections that requested /metrics, and the page that each is reading."""
        self._listener: Listener | None = None
        self._routes: Mapping[str, Route] = {
            "/metrics": self._metrics,
            "/healthz": lambda *_: done(sentence(200, "ok")),
            "/readyz": lambda *_: self._readiness.ask(),
        }

    def open(self, network: Network, host: str, port: int) -> tuple[str, int]:
        """Listen, and return the bound address. Raises OSError if it cannot be bound."""
        self._listener = network.listen(host, port, self._accept)
        return self._listener.host, self._listener.port

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for visit in list(self._visits):
            visit.leave()

    # Limits on connections

    def _accept(self, link: Link) -> LinkHandler | None:
        if self._listener is None:
            return None
        if len(self._visits) >= VISITS_MAX:
            self._turn_out(self._least_wanted())
        visit = Visit(link, self._clock, self._answer, is_loopback(self._listener.host), self._forget)
        self._visits[visit] = None
        return visit

    def _least_wanted(self) -> Visit:
        """The oldest connection without a request, or else the oldest that is not a scrape, which always exists."""
        others = [visit for visit in self._visits if visit not in self._scrapes]
        return next((visit for visit in others if not visit.is_asked), others[0])

    def _make_room_for_scrape(self) -> bool:
        """Whether there is room for another scrape, after dropping the slowest reader if it is over its time."""
        if len(self._scrapes) < SCRAPES_MAX:
            return True
        longest = max(self._scrapes, key=Visit.reading_ms)
        if longest.reading_ms() < READ_MS:
            return False
        self._turn_out(longest)
        return True

    def _let_go_of_old_pages(self) -> None:
        pages = {page for page in self._scrapes.values() if page is not None}
        if len(pages) > PAGES_MAX:
            oldest = min(pages, key=lambda page: page.made_ms)
            for visit in [visit for visit, page in self._scrapes.items() if page is oldest]:
                self._turn_out(visit)

    def _turn_out(self, visit: Visit) -> None:
        # The link reports the close only later; the connection must not count until then.
        self._forget(visit)
        visit.leave()

    def _forget(self, visit: Visit) -> None:
        self._visits.pop(visit, None)
        self._scrapes.pop(visit, None)

    # Responses

    def _answer(self, visit: Visit, request: Request) -> Later[Answer]:
        route = self._routes.get(request.path)
        if route is None:
            known = ", ".join(self._routes)
            return done(sentence(404, f"There is nothing at this address: there are {known}."))
        return route(visit, request).recover(Exception, self._failed)

    def _metrics(self, visit: Visit, request: Request) -> Later[Answer]:
        if not self._make_room_for_scrape():
            return done(sentence(503, f"More than {SCRAPES_MAX} ask for this at once: ask again in a moment."))
        self._scrapes[visit] = None
        return self._pages.page().chain(lambda page: self._give(visit, request, page))

    def _give(self, visit: Visit, request: Request, page: Page) -> Later[Answer]:
        self._scrapes[visit] = page
        self._let_go_of_old_pages()
        return page.body(request.takes_gzip).map(lambda body: Answer(200, body.parts, CONTENT_TYPE, body.encoding))

    def _failed(self, failure: Exception) -> Answer:
        """A bug here must not stop the node: the endpoint is read-only, so nothing is left half done."""
        self._node.journal("monitoring could not be answered: please report this", reason=repr(failure))
        return sentence(500, "This could not be answered; the node's journal says why.")


def _readiness_answer(reason: str | None) -> Answer:
    return sentence(200, "ready") if reason is None else sentence(503, f"not ready: {reason}")
