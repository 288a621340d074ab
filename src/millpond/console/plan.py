"""Capacity planning over HTTP: numbers in, results and their calculations out."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millpond.admin.plan import Demand, Engine, Machine, make_plan, sums
from millpond.admin.workload import observe_workload
from millpond.console.context import context_of
from millpond.console.responses import reply
from millpond.console.shapes import amount

LARGE: Final = 1e15
LOOK_SECONDS: Final = 2.0


async def plan(request: Request) -> Response:
    demand = Demand(
        messages_per_second=amount(request, "messages_per_second", 1e3, 1e-3, 1e12),
        message_bytes=amount(request, "message_bytes", 1e3, 1, 1e9),
        peak=amount(request, "peak", 2, 1, 1e3),
        replication=round(amount(request, "replication", 3, 1, 10)),
        retention_seconds=amount(request, "retention_seconds", 7 * 86_400, 1, 1e10),
        groups=round(amount(request, "groups", 2, 0, 1e4)),
        partition_bytes_per_second=amount(request, "partition_bytes_per_second", 1e7, 1, 1e12),
        headroom=amount(request, "headroom", 2, 1, 1e3),
        batch_bytes=amount(request, "batch_bytes", 1e5, 1, 1e9),
    )
    machine = Machine(
        disk_bytes=amount(request, "disk_bytes", 20e12, 1, LARGE),
        disk_bytes_per_second=amount(request, "disk_bytes_per_second", 1e8, 1, LARGE),
        network_bytes_per_second=amount(request, "network_bytes_per_second", 1.25e9, 1, LARGE),
        cores=round(amount(request, "cores", 1, 1, 1024)),
        engine=_engine(request),
    )
    result = make_plan(demand, machine)
    return reply(
        {"demand": demand, "machine": machine, "plan": result, "sections": sums(result, demand, machine)},
    )


def _engine(request: Request) -> Engine | None:
    """The performance of one core as `millpond plan --measure` reports it; without it only disks and network are
    considered.
    """
    if not request.query_params.get("core_write_bytes_per_second"):
        return None
    return Engine(
        amount(request, "core_write_bytes_per_second", 3e8, 1, LARGE),
        amount(request, "core_read_bytes_per_second", 1e9, 1, LARGE),
        amount(request, "core_requests_per_second", 2e4, 1, LARGE),
    )


async def workload(request: Request) -> Response:
    """The cluster's current workload, as a starting point for a plan."""
    return reply(
        await context_of(request).pool.recent(
            "workload", LOOK_SECONDS, lambda cluster: observe_workload(cluster, LOOK_SECONDS)
        )
    )


ROUTES: Final = [Route("/api/plan", plan), Route("/api/plan/workload", workload)]
