"""Moves of partitions over HTTP: shows a plan, and runs it as a long task."""

from __future__ import annotations

import threading
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millpond.admin.balance import shares
from millpond.admin.drain import find_member, mark_drained, still_held
from millpond.admin.errors import Refused
from millpond.admin.members import describe_members
from millpond.admin.moves import elect_first
from millpond.admin.placement import seconds_at, waited_for
from millpond.admin.waves import Outcome, Progress, run_moves
from millpond.base.words import counted
from millpond.console.context import context_of
from millpond.console.jobs import Job
from millpond.console.move_plans import MoveOrder, MovePlan, make_plan
from millpond.console.records import PARTITION_MAX
from millpond.console.responses import reply
from millpond.console.shapes import BadRequest, Body
from millpond.remote.cluster import Cluster

ROWS_MAX: Final = 200
NAMED_MAX: Final = 20
NODES_MAX: Final = 1_000
RATE_MAX: Final = 1 << 40
REPLICAS_MAX: Final = 100


async def move(request: Request) -> Response:
    """With `dry_run` only the plan. With the mark of a plan that was shown, that plan runs as a job, if it still
    fits."""
    body = await Body.read(request)
    order, rate = _order(body), body.number_or_none("rate", 1, RATE_MAX)
    context = context_of(request)
    if body.flag("dry_run"):
        plan = await context.pool.ask(lambda cluster: make_plan(cluster, order))
        context.move_plans.keep(order, plan)
        return reply(_plan_shape(plan, rate))
    agreed = body.text("agreed")
    if context.jobs.running("moves"):
        raise Refused("This console is already moving partitions: wait for that, or stop it")

    def work(job: Job) -> None:
        with context.pool.client() as cluster:
            plan = context.move_plans.agreed(cluster, order, agreed)
            job.total = len(plan.moves)
            try:
                job.result = _run(cluster, order, plan, rate, job)
            finally:
                context.pool.forget()

    return reply(context.jobs.start("moves", str(order), work).shape(), 202)


def _run(cluster: Cluster, order: MoveOrder, plan: MovePlan, rate: int | None, job: Job) -> dict[str, Any]:
    def tell(progress: Progress) -> None:
        job.done = progress.moved
        job.details = {
            "copied_bytes": progress.copied_bytes,
            "bytes_to_copy": progress.bytes_to_copy,
            "under_way": progress.under_way[:NAMED_MAX],
        }

    if order.what == "drain":
        # From now on it gets nothing new, whatever the outcome of the moves.
        mark_drained(cluster, order.nodes, True)
    elect_first(cluster, plan.to_elect)
    outcome = run_moves(cluster, plan.moves, stop=_Stop(job.stop), tell=tell, rate=rate)
    left = sorted(still_held(cluster, order.nodes)) if order.what == "drain" and outcome.is_done else []
    if left:
        raise Refused(f"{counted(len(left), 'partition')} were added to the node in the meantime: drain it again")
    return _outcome_shape(outcome)


class _Stop:
    """Adapts a job's stop flag for a run of moves."""

    def __init__(self, event: threading.Event) -> None:
        self._event = event
        self.is_requested = False

    def wait(self, seconds: float) -> None:
        self.is_requested = self._event.wait(seconds)


def _order(body: Body) -> MoveOrder:
    what = body.text("what")
    match what:
        case "drain":
            return MoveOrder(what, nodes=_numbers(body, "nodes"))
        case "balance" | "leaders":
            return MoveOrder(what)
        case "move":
            partitions = _numbers(body, "partitions") if body.list("partitions") else ()
            return MoveOrder(what, nodes=_numbers(body, "nodes"), topic=body.text("topic"), partitions=partitions)
        case "factor":
            return MoveOrder(what, topic=body.text("topic"), factor=body.number("factor", 1, REPLICAS_MAX))
    raise BadRequest("what must be drain, balance, leaders, move or factor.")


def _numbers(body: Body, name: str) -> tuple[int, ...]:
    numbers = body.list(name)
    if not 0 < len(numbers) <= NODES_MAX or not all(
        type(each) is int and 0 <= each <= PARTITION_MAX for each in numbers
    ):
        raise BadRequest(f"{name} must be a list of whole numbers.")
    return tuple(dict.fromkeys(numbers))


def _plan_shape(plan: MovePlan, rate: int | None) -> dict[str, Any]:
    now, then = shares(plan.placement), shares(plan.placement, plan.moves)
    return {
        "agreed": plan.mark,
        "moves": [
            {"partition": each.partition, "before": each.before, "target": each.target, "bytes": each.bytes_to_copy}
            for each in plan.moves[:ROWS_MAX]
        ],
        "moves_total": len(plan.moves),
        "bytes_to_copy": sum(each.bytes_to_copy for each in plan.moves),
        "seconds": None if rate is None else seconds_at(plan.moves, rate),
        "to_elect": len(plan.to_elect),
        "waits_for": waited_for(plan.placement, plan.moves),
        "shares": [{"node_id": node, "now": now[node], "then": then[node]} for node in now],
    }


def _outcome_shape(outcome: Outcome) -> dict[str, Any]:
    names = ("moved", "waiting", "called_off", "going_on", "overtaken")
    return {name: len(getattr(outcome, name)) for name in names} | {
        "refused": [reason for _, reason in outcome.refused[:NAMED_MAX]],
        "refused_total": len(outcome.refused),
        "is_limited": outcome.is_limited,
    }


async def undrain(request: Request) -> Response:
    body = await Body.read(request)
    node = body.number("node", 0, PARTITION_MAX)

    def work(cluster: Cluster) -> None:
        find_member(describe_members(cluster), node)
        mark_drained(cluster, [node], False)

    await context_of(request).pool.change(work)
    return reply({"node": node})


ROUTES: Final = [
    Route("/api/cluster/moves", move, methods=["POST"]),
    Route("/api/cluster/undrain", undrain, methods=["POST"]),
]
