"""`millpond up` with its console: where it is, what it is without, and that it ends with the node."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from support.console import until

pytestmark = pytest.mark.boundary

UP = (sys.executable, "-c", "import sys; from millpond.cli import main; sys.exit(main(['up', *sys.argv[1:]]))")
Rows = dict[str, str]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], Rows]]]:
    """Starts a node and reads what it announces."""
    with ExitStack() as running:

        def start(*options: str) -> tuple[subprocess.Popen[str], Rows]:
            words = [*UP, "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", *options]
            process = running.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
            running.callback(process.kill)
            assert process.stdout is not None
            rows: Rows = {}
            while "stop" not in rows:
                line = process.stdout.readline()
                assert line, "the node ended"
                name, _, text = line.strip().partition(" ")
                rows[name] = text.strip()
            return process, rows

        yield start


def about(url: str) -> dict[str, object]:
    with urlopen(f"{url}/api/about", timeout=20) as response:
        return dict(json.load(response))


def is_gone(url: str) -> bool:
    try:
        about(url)
    except (URLError, OSError):
        return True
    return False


def test_the_console_is_there_and_ends_with_its_node(up: Callable[..., tuple[subprocess.Popen[str], Rows]]) -> None:
    process, rows = up("--console", "127.0.0.1:0")
    assert about(rows["console"])["bootstrap"] == rows["listens"].removeprefix("on").strip()
    process.terminate()
    assert process.wait(20) == 0
    assert is_gone(rows["console"])


def test_the_console_of_a_killed_node_ends(up: Callable[..., tuple[subprocess.Popen[str], Rows]]) -> None:
    process, rows = up("--console", "127.0.0.1:0")
    about(rows["console"])
    process.kill()
    until(lambda: is_gone(rows["console"]))


def test_a_taken_port_is_reported_and_the_node_runs(up: Callable[..., tuple[subprocess.Popen[str], Rows]]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        process, rows = up("--console", str(port))
    assert "in use" in rows["console"]
    assert "--console" in rows["console"]
    assert process.poll() is None


@pytest.mark.parametrize("options", [(), ("--no-console", "--console", "127.0.0.1:0")])
def test_there_is_none_where_it_is_turned_off(
    up: Callable[..., tuple[subprocess.Popen[str], Rows]], options: tuple[str, ...]
) -> None:
    """The tests turn it off by the environment."""
    assert "console" not in up(*options)[1]


def test_an_address_that_others_reach_needs_a_password(
    up: Callable[..., tuple[subprocess.Popen[str], Rows]], tmp_path: Path
) -> None:
    refused = up("--console", "0.0.0.0:0")[1]["console"]
    assert refused.startswith("none: Without a login")
    assert "--console-password-file" in refused


def test_with_a_password_the_console_asks_for_it(
    up: Callable[..., tuple[subprocess.Popen[str], Rows]], tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("open sesame\n")
    _, rows = up("--console", "127.0.0.1:0", "--console-password-file", str(tmp_path / "secret"))
    with pytest.raises(HTTPError, match="401"):
        about(rows["console"])
