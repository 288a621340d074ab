"""The /metrics page: built on request, at most once a second, and shared by all concurrent scrapes.

Building pages takes at most a twentieth of the loop's time, whatever the number and rate of scrapes. A page that
costs the loop more than a quarter of a second may exceed that share, because scrapers must not wait more than a few
seconds. A page is served until a few megabytes of it have been sent; later scrapes wait for the next page, so a
client that scrapes without pause gets each page about once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from millpond.base.later import Later, done
from millpond.base.named_tuple import NamedTuple
from millpond.broker.loop.shared_run import SharedRun
from millpond.broker.loop.steps import Steps, run_steps
from millpond.broker.metrics.cluster import collect_metadata, collect_node, collect_requests
from millpond.broker.metrics.exposition import Exposition
from millpond.broker.metrics.groups import GroupMetrics
from millpond.broker.metrics.partitions import collect_partitions, collect_topics
from millpond.broker.metrics.shares import ShareMetrics
from millpond.config.security import METRICS_NAMES

if TYPE_CHECKING:
    from millpond.base.ports import Workers
    from millpond.broker.context import (
        CoordinationContext,
        DataContext,
        MetadataContext,
        NodeContext,
        SecurityContext,
    )

FRESH_MS: Final = 1_000
"""The minimum time between two pages; longer if a page takes more than its share of the loop."""

SHARE: Final = 20
"""Building pages may take one part in this many of the loop's time."""

FRESH_MS_MAX: Final = 5_000
"""No page is served for longer than this, however expensive it was: scrapers have timeouts."""

GIVEN_BYTES_MAX: Final = 8 << 20
"""After this much of one page has been served, scrapes wait for the next: sending takes time of the loop, too."""

ASK_BYTES: Final = 64 << 10
"""The fixed cost of a connection, as the number of bytes that could be sent instead."""

PACK_LEVEL: Final = 1
"""The fastest level already removes nine tenths of the page."""

PACK_BYTES: Final = 256 << 10

GZIP: Final = "gzip"

Collector = Callable[[Exposition], Steps[None]]


class Body(NamedTuple):
    """The body of a response and its Content-Encoding; "" means not compressed."""

    parts: list[bytes]
    encoding: str = ""


class Page:
    """All metric families at one point in time."""

    def __init__(self, parts: list[bytes], made_ms: int, workers: Workers) -> None:
        self.parts = parts
        self.made_ms = made_ms
        self._given_bytes = 0
        self._packed: Body | None = None
        # On a worker: zlib releases the GIL while it compresses, so the loop is not held up.
        self._packing = SharedRun(lambda: workers.run(partial(_pack, parts)).map(self._keep))

    @property
    def may_be_given(self) -> bool:
        """Whether less than the limit has been served."""
        return self._given_bytes < GIVEN_BYTES_MAX

    def body(self, is_packed: bool) -> Later[Body]:
        """The body, compressed if `is_packed`; compression runs once per page."""
        if not is_packed:
            return done(self._give(Body(self.parts)))
        if self._packed is not None:
            return done(self._give(self._packed))
        return self._packing.ask().map(self._give)

    def _keep(self, packed: bytes) -> Body:
        self._packed = Body([packed], GZIP)
        return self._packed

    def _give(self, body: Body) -> Body:
        self._given_bytes += sum(map(len, body.parts)) + ASK_BYTES
        return body


class PageMaker:
    def __init__(
        self,
        node: NodeContext,
        security: SecurityContext,
        metadata: MetadataContext,
        data: DataContext,
        coordination: CoordinationContext,
        more: Sequence[Collector] = (),
    ) -> None:
        """`more` are collectors for metrics from outside the broker."""
        self._node = node
        self._security = security
        self._metadata = metadata
        self._data = data
        self._coordination = coordination
        self._clock = node.clock
        self._more = more
        self._groups = GroupMetrics(node, metadata, data, coordination)
        self._shares = ShareMetrics(node, metadata, data, coordination, self._groups.bounds)
        self._making = SharedRun(self._begin)
        self._last: Page | None = None
        self._next_ms = self._clock.monotonic_ms()
        self._spent_us = 0

    def page(self) -> Later[Page]:
        """The last page while it may be served, otherwise the next one."""
        if self._last is not None and self._last.may_be_given:
            return done(self._last)
        return self._making.ask()

    def _begin(self) -> Later[Page]:
        wait_ms = self._next_ms - self._clock.monotonic_ms()
        if wait_ms <= 0:
            return self._make()
        waited: Later[None] = Later()
        self._clock.call_later(wait_ms, lambda: waited.finish(None))
        return waited.chain(lambda _: self._make())

    def _make(self) -> Later[Page]:
        self._spent_us = 0
        made = run_steps(self._clock, self._collect(), self._spend)
        return made.map(self._keep).recover(Exception, self._fail)

    def _collect(self) -> Steps[list[bytes]]:
        page = Exposition()
        yield from collect_node(page, self._node, self._security, self._metadata, self._data)
        yield from collect_metadata(page, self._node, self._metadata, self._data)
        yield from collect_requests(page, self._node)
        for collect in self._more:
            yield from collect(page)
        is_named = shows_names(self._node, self._security)
        if is_named:
            yield from self._groups.collect(page)
            yield from self._shares.collect(page)
            yield from collect_topics(page, self._data)
        yield from collect_partitions(page, self._data, is_named=is_named)
        return page.parts()

    def _spend(self, step_us: int) -> None:
        self._spent_us += step_us

    def _keep(self, parts: list[bytes]) -> Page:
        page = self._last = Page(parts, self._clock.monotonic_ms(), self._node.workers)
        # It may be large: release it once it is stale, even if there is no further scrape.
        self._clock.call_later(self._rest(), lambda: self._forget(page))
        return page

    def _fail(self, failure: Exception) -> NoReturn:
        """A failed page delays the next one as a complete page would."""
        self._rest()
        raise failure

    def _rest(self) -> int:
        """Schedule the earliest start of the next page; return the delay in milliseconds."""
        rest_ms = min(max(self._spent_us * (SHARE - 1) // 1000, FRESH_MS), FRESH_MS_MAX)
        self._next_ms = self._clock.monotonic_ms() + rest_ms
        return rest_ms

    def _forget(self, page: Page) -> None:
        if self._last is page:
            self._last = None


def shows_names(node: NodeContext, security: SecurityContext) -> bool:
    """Whether topics and groups are named. Scrapers are not authenticated, so ACLs turn this off by default."""
    wanted = node.settings[METRICS_NAMES]
    return wanted == "on" or (wanted == "auto" and not security.access.is_on)


def _pack(parts: Sequence[bytes]) -> bytes:
    """Compress on a worker. Small parts are joined first, because each call takes the GIL once."""
    packer = zlib.compressobj(PACK_LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    packed: list[bytes] = []
    some: list[bytes] = []
    some_bytes = 0
    for part in parts:
        some.append(part)
        some_bytes += len(part)
        if some_bytes >= PACK_BYTES:
            packed.append(packer.compress(b"".join(some)))
            some, some_bytes = [], 0
    return b"".join((*packed, packer.compress(b"".join(some)), packer.flush()))
