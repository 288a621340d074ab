"""Responses: values as JSON, and every error as a sentence with its status."""

from __future__ import annotations

import json
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from millpond.admin.errors import Refused
from millpond.base.errors import RemoteError
from millpond.console.cluster_pool import Busy
from millpond.console.shapes import BadRequest, as_json, sentence
from millpond.remote.errors import Answered, ClientError, Unreachable
from millpond.remote.topics import TopicExists


def encoded(value: Any) -> bytes:
    """As JSON. Large values are encoded on the request's thread, not on the server's loop."""
    return json.dumps(as_json(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def reply(value: Any, status: int = 200) -> Response:
    return reply_encoded(encoded(value), status)


def reply_encoded(data: bytes, status: int = 200) -> Response:
    return Response(data, status, media_type="application/json")


async def refuse(request: Request, fault: Exception) -> Response:
    match fault:
        case BadRequest():
            status = 400
        case Refused() | TopicExists():
            status = 409
        case Busy() | Unreachable():
            status = 503
        case Answered() if not fault.retriable:
            # The cluster refuses the request: the client's fault, not the cluster's.
            status = 409
        case RemoteError():
            return JSONResponse({"error": f"A broker sent an invalid response: {sentence(fault)}"}, 502)
        case _:
            status = 502
    return JSONResponse({"error": sentence(fault)}, status)


FAULTS: Final = dict.fromkeys((BadRequest, ClientError, RemoteError, Busy), refuse)
"""Errors that a handler may raise; anything else is a bug, and is shown as one."""
