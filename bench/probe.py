"""`python -m bench.probe HOST PORT`: sends the cheapest request repeatedly, and reports the longest round trip.

It is a separate process, so that the clients that keep the node busy do not delay it. A line on standard input
requests the longest round trip since the last one, in milliseconds.
"""

from __future__ import annotations

import contextlib
import select
import sys
import time

from bench.raw import RawClient, api_versions_frame

PAUSE_SECONDS = 0.001
CONNECT_SECONDS_MAX = 60.0


def main() -> None:
    host, port = sys.argv[1], int(sys.argv[2])
    question = api_versions_frame()
    print("ready", flush=True)
    client = _connect(host, port)
    longest = 0.0
    while True:
        began = time.perf_counter()
        client.send(question)
        client.skip()
        longest = max(longest, time.perf_counter() - began)
        if select.select([sys.stdin], (), (), PAUSE_SECONDS)[0]:
            if not sys.stdin.readline():
                return
            print(longest * 1000, flush=True)
            longest = 0.0


def _connect(host: str, port: int) -> RawClient:
    deadline = time.monotonic() + CONNECT_SECONDS_MAX
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            return RawClient(host, port)
        time.sleep(PAUSE_SECONDS)
    raise TimeoutError("no server accepts connections")


if __name__ == "__main__":
    main()
