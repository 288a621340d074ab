"""Requests to a web server that a test has started."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any


def post(address: str, body: object, seconds: float = 60.0) -> tuple[int, Any]:
    """The status and the JSON of the response; waits for a server that is not up yet."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{address}", data, {"content-type": "application/json"})
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refusal:
            return refusal.code, json.load(refusal)
        except urllib.error.URLError:
            assert time.monotonic() < deadline, f"{address} does not answer"
            time.sleep(0.05)
