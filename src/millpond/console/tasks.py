"""Long tasks over HTTP: their progress, the running ones, and stopping one."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millpond.console.context import context_of
from millpond.console.responses import reply
from millpond.console.shapes import words


async def running(request: Request) -> Response:
    return reply([each.shape() for each in context_of(request).jobs.running(words(request, "kind"))])


async def job(request: Request) -> Response:
    return reply(context_of(request).jobs.get(request.path_params["job"]).shape())


async def stop(request: Request) -> Response:
    task = context_of(request).jobs.get(request.path_params["job"])
    task.stop.set()
    return reply(task.shape())


ROUTES: Final = [
    Route("/api/jobs", running),
    Route("/api/jobs/{job}", job),
    Route("/api/jobs/{job}/stop", stop, methods=["POST"]),
]
