"""Outcomes on their way to an event loop: all arrive, in order, with few calls of the loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from client.refusal import Refusal
from millpond import SendFailed
from millpond.client.handover import RESOLVED_MAX, AsyncSendFuture, Handover
from millpond.client.pending_reports import PendingReports
from millpond.client.reachability import Reachability


class Report:
    """What librdkafka says of a record."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 0


def expected(handover: Handover, count: int) -> tuple[PendingReports, list[AsyncSendFuture]]:
    pending_reports = PendingReports(Reachability({}))
    records = [handover.future_for("orders", pending_reports) for _ in range(count)]
    pending_reports.records.update(records)
    return pending_reports, records


def report(records: list[AsyncSendFuture]) -> None:
    for n, each in enumerate(records):
        said: Any = Report(n)
        each(None, said)


def test_all_that_other_threads_say_arrives() -> None:
    async def main() -> None:
        handover = Handover(asyncio.get_running_loop())
        calls = 0
        call = handover.loop.call_soon_threadsafe

        def counted(*given: Any) -> Any:
            nonlocal calls
            calls += 1
            return call(*given)

        handover.loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        pending_reports, records = expected(handover, 10_000)
        threads = [threading.Thread(target=report, args=(records[n::4],)) for n in range(4)]
        for thread in threads:
            thread.start()
        found = await asyncio.wait_for(asyncio.gather(*records), 60)
        assert [place.offset for place in found] == [n // 4 for n in range(10_000)]
        assert not pending_reports.records
        assert calls < 10_000, "the loop is not called for each"

    asyncio.run(main())


def test_a_long_queue_lets_others_of_the_loop_run_in_between() -> None:
    async def main() -> None:
        handover = Handover(asyncio.get_running_loop())
        _, records = expected(handover, 3 * RESOLVED_MAX)
        report(records)
        await asyncio.sleep(0)
        assert sum(each.done() for each in records) == RESOLVED_MAX
        handover.resolve()
        assert all(each.done() for each in records)
        await asyncio.sleep(0)
        (more,) = expected(handover, 1)[1]
        report([more])
        assert (await asyncio.wait_for(more, 60)).offset == 0

    asyncio.run(main())


def test_a_failure_is_raised_and_a_cancelled_one_harms_nobody() -> None:
    async def main() -> None:
        handover = Handover(asyncio.get_running_loop())
        _, (cancelled, failed, fine) = expected(handover, 3)
        cancelled.cancel()
        refusal: Any = Refusal()
        nothing: Any = None
        report([cancelled])
        failed(refusal, nothing)
        report([fine])
        with pytest.raises(SendFailed, match=r"too late.*delivery_timeout_s"):
            await failed
        assert (await fine).offset == 0
        assert cancelled.cancelled()

    asyncio.run(main())


def test_a_loop_that_is_closed_hears_nothing_and_nothing_is_kept_for_it() -> None:
    loop = asyncio.new_event_loop()
    handover = Handover(loop)
    pending_reports, records = expected(handover, 3)
    loop.close()
    report(records)
    assert not pending_reports.records
    assert not handover._arrived
