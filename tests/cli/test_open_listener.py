"""A node that anyone on the network can use says so when it starts."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

WARNING = "has no login: anyone who can reach it can read, change and delete everything"


@pytest.fixture
def words_of(lonely: Any, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts the command, stops it once it is ready, and returns its standard error."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*arguments: str) -> str:
        process = lonely.start(*arguments, "--data", str(tmp_path / "data"))
        started.append(process)
        for line in process.stdout:
            if line.split()[:1] == [b"stop"]:
                break
        process.terminate()
        return str(process.communicate(timeout=60)[1].decode())

    yield run
    for each in started:
        each.kill()


@pytest.mark.parametrize("cores", [(), ("--cores", "2")])
def test_every_address_without_a_login_is_warned_of_once(words_of: Callable[..., str], cores: tuple[str]) -> None:
    message = words_of("up", "--no-console", "--metrics", "off", "--listen", "0.0.0.0:0", *cores)
    assert message.count(WARNING) == 1
    assert "0.0.0.0:0 has no login" in message
    assert "--secure" in message


def test_named_listeners_count(words_of: Callable[..., str]) -> None:
    listeners = "listeners=ONE://127.0.0.1:0,TWO://0.0.0.0:0"
    more = ("listener.security.protocol.map=ONE:PLAINTEXT,TWO:PLAINTEXT", "inter.broker.listener.name=ONE")
    sets = [word for each in (listeners, *more) for word in ("--set", each)]
    message = words_of("up", "--no-console", "--metrics", "off", *sets)
    assert "Warning: 0.0.0.0:0 has no login" in message


@pytest.mark.parametrize("arguments", [("--listen", "127.0.0.1:0"), ("--listen", "0.0.0.0:0", "--secure")])
def test_loopback_and_secure_nodes_are_not_warned_of(words_of: Callable[..., str], arguments: tuple[str]) -> None:
    assert WARNING not in words_of("up", "--no-console", "--metrics", "off", *arguments)
