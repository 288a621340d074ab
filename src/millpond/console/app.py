"""The console as one application: guard, routes, pages."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final, NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from millpond.console import (
    groups,
    letters,
    login,
    moves,
    nodes,
    overview,
    pipelines,
    plan,
    queues,
    records,
    simulator,
    skew,
    tasks,
    topics,
    trace,
    transactions,
)
from millpond.console.context import ConsoleContext
from millpond.console.guard import Guard
from millpond.console.responses import FAULTS

PAGES: Final = (
    "",
    "topics",
    "groups",
    "queues",
    "letters",
    "transactions",
    "cluster",
    "pipelines",
    "hot",
    "plan",
    "trace",
    "simulator",
)
"""The first path segment of each view."""

SHELL: Final = "index.html"
TYPES: Final = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg+xml"}


class StaticFile(NamedTuple):
    data: bytes
    type: str
    tag: str


def make_app(context: ConsoleContext) -> ASGIApp:
    """The ASGI application."""
    by_path = static_files()

    async def static(request: Request) -> Response:
        return _file(request, by_path.get(request.path_params["path"]))

    async def page(request: Request) -> Response:
        is_page = request.url.path.split("/")[1] in PAGES
        return _file(request, by_path[SHELL], 200 if is_page else 404)

    async def nothing(request: Request) -> Response:
        return JSONResponse({"error": "There is nothing at this address."}, 404)

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        yield
        context.simulators.close()
        context.pool.close()

    app = Starlette(
        routes=[
            *login.routes(context.rules.login),
            *overview.routes(context),
            *records.ROUTES,
            *topics.ROUTES,
            *groups.ROUTES,
            *queues.ROUTES,
            *letters.ROUTES,
            *transactions.ROUTES,
            *nodes.ROUTES,
            *moves.ROUTES,
            *pipelines.ROUTES,
            *skew.ROUTES,
            *plan.ROUTES,
            *trace.ROUTES,
            *simulator.ROUTES,
            *tasks.ROUTES,
            Route("/api/{path:path}", nothing),
            Route("/static/{path:path}", static),
            Route("/{path:path}", page),
        ],
        exception_handlers=FAULTS,
        lifespan=life,
    )
    app.state.context = context
    return Guard(app, context.refused, context.rules)


def static_files() -> dict[str, StaticFile]:
    """All static files, in memory: they are few, and no path from outside ever reaches the disk."""
    by_path: dict[str, StaticFile] = {}

    def walk(folder: Traversable, prefix: str) -> None:
        for each in folder.iterdir():
            if each.is_dir():
                walk(each, f"{prefix}{each.name}/")
            else:
                data = each.read_bytes()
                kind = TYPES.get(each.name.rpartition(".")[2]) or mimetypes.guess_type(each.name)[0] or "text/plain"
                by_path[prefix + each.name] = StaticFile(data, kind, f'"{hashlib.sha256(data).hexdigest()[:20]}"')

    walk(files("millpond.console") / "static", "")
    return by_path


def _file(request: Request, file: StaticFile | None, status: int = 200) -> Response:
    if file is None:
        return JSONResponse({"error": "There is no such file."}, 404)
    headers: dict[str, Any] = {"etag": file.tag, "cache-control": "no-cache"}
    if status == 200 and request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.data, status, headers, file.type)
