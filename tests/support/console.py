"""The console in a separate process, and plain requests to it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.data)


class Console:
    """One console process, and plain requests to it."""

    def __init__(self, bootstrap: str, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "millpond.console", "--bootstrap", bootstrap, "--listen", "127.0.0.1:0", *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        self.address = said.partition("http://")[2].split()[0]
        self.url = f"http://{self.address}"

    def ask(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Answer:
        connection = HTTPConnection(self.address, timeout=30)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers or {})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def change(self, method: str, path: str, body: object) -> Answer:
        return self.ask(method, path, body, {"Content-Type": "application/json", "X-Millpond-Console": "1"})

    def first_event(self, path: str, name: str = "look") -> Any:
        """The first event of this name in a live view."""
        return next(self.events(path, name))

    def events(self, path: str, name: str) -> Iterator[Any]:
        connection = HTTPConnection(self.address, timeout=30)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            while line := response.readline():
                event = line.decode().strip().removeprefix("event: ")
                data = response.readline().decode().removeprefix("data: ")
                response.readline()
                if event == name:
                    yield json.loads(data)
        finally:
            connection.close()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Wait for a state, and return it."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.05)
    return result
