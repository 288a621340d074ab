"""The simulator over HTTP: each request names a tape and a moment, and changes only its process's memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millpond.console.context import context_of
from millpond.console.shapes import BadRequest, flag, number, parsed, words
from millpond.console.simulators import ANSWER_SECONDS, CAMPAIGN_SECONDS
from millpond.console.streams import until_gone

TAPE_SIGNS_MAX: Final = 6_000
MOMENT_MAX: Final = 1 << 31
NODES_MAX: Final = 5
GONE: Final = 499
"""The usual status code for a client that closed the request."""


async def put(request: Request, question: Mapping[str, Any], seconds: float = ANSWER_SECONDS) -> Response:
    """Ask a simulator process while the client waits: an abandoned run must not occupy one of the few processes."""
    answer = asyncio.ensure_future(context_of(request).simulators.ask(words(request, "session"), question, seconds))
    # Wait concurrently: polling would cancel the guard's `receive` before anything has arrived.
    gone = asyncio.ensure_future(until_gone(request.receive))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            await asyncio.wait({answer})
            return Response(status_code=GONE)
        return Response(answer.result(), media_type="application/json")
    finally:
        answer.cancel()
        gone.cancel()


def _tape(request: Request) -> str:
    text = request.query_params.get("tape", "")
    if len(text) > TAPE_SIGNS_MAX:
        raise BadRequest(f"The link is too long: the limit is {TAPE_SIGNS_MAX:,} characters.")
    return text


def _added(request: Request) -> Any:
    text = request.query_params.get("add", "")
    return parsed(text.encode()) if text else None


async def catalogue(request: Request) -> Response:
    return await put(request, {"ask": "catalogue"})


async def look(request: Request) -> Response:
    tape = _tape(request)
    question = {
        "ask": "look",
        "tape": tape,
        "at_ms": number(request, "at", -1, -1, MOMENT_MAX),
        "since_ms": number(request, "since", -1, -1, MOMENT_MAX),
        "line": number(request, "line", 0, 0, MOMENT_MAX),
        "seed": number(request, "seed", 1, 0, (1 << 32) - 1),
        "nodes": number(request, "nodes", 3, 1, NODES_MAX),
        "steps": flag(request, "step"),
        "add": _added(request),
    }
    seconds = CAMPAIGN_SECONDS if tape.startswith("campaign.") else ANSWER_SECONDS
    return await put(request, question, seconds)


async def flight(request: Request) -> Response:
    question = {
        "ask": "flight",
        "tape": _tape(request),
        "at_ms": number(request, "at", 0, 0, MOMENT_MAX),
        "number": number(request, "number", 0, 0, MOMENT_MAX),
    }
    return await put(request, question)


ROUTES: Final = [
    Route("/api/simulator", catalogue),
    Route("/api/simulator/look", look),
    Route("/api/simulator/flight", flight),
]
