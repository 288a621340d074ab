"""The console beside a node that `millpond up` runs: a process of its own, started once the node is ready.

The socket is opened here, so that what is announced is true: a port that is taken is known before the first line, and
a browser that comes early waits until the console answers. Nothing that goes wrong with it ends the node.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING, Final

import click

from millpond.base.interpreter import PYTHON
from millpond.cli.addresses import shown_address
from millpond.cli.errors import cause

if TYPE_CHECKING:
    import subprocess

    from millpond.node.secure_folder import SecureFolder

DEFAULT: Final = "127.0.0.1:8080"
NEEDS: Final = ("starlette", "uvicorn")
PROGRAM: Final = (*PYTHON, "-m", "millpond.console")
CLIENT_SETTINGS: Final = "MILLPOND_CONSOLE_CLIENT"
"""The variable by which the console gets its settings of a Kafka client, as JSON."""
OFF: Final = ("off", "no", "none", "0")
"""What --console, or MILLPOND_CONSOLE, says to have none."""


def missing_packages() -> list[str]:
    """What the console cannot run without; looked for, not loaded."""
    from importlib.util import find_spec

    return [name for name in NEEDS if find_spec(name) is None]


class ConsoleProcess:
    """None runs without an `address`."""

    def __init__(
        self, address: str | None, password_file: str | None = None, security: SecureFolder | None = None
    ) -> None:
        """The console of a secure node goes to it as its admin, so whoever uses it has to log in, with the admin's
        password if no other is given."""
        self._address = address
        self._security = security
        if password_file is None and security is not None:
            password_file = str(security.password_file)
        self._password_file = password_file
        self._listener: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def open(self) -> list[tuple[str, str]]:
        """Take the port; the row that says where the console is, or why there is none."""
        if self._address is None:
            return []
        if missing := missing_packages():
            return [("console", f"none: it needs {' and '.join(missing)} (pip install {' '.join(missing)})")]
        from millpond.node.loopback import open_listener

        try:
            self._listener = open_listener(self._address, has_login=self._password_file is not None)
        except ValueError as fault:
            # In the words of this command.
            text = str(fault).replace("--password-file", "--console-password-file").replace("--listen", "--console")
            return [("console", f"none: {text}")]
        except OSError as fault:
            return [("console", f"none: {self._address}: {cause(fault)}; choose another with --console HOST:PORT")]
        host, port = self._listener.getsockname()[:2]
        return [("console", f"http://{shown_address(host, port)}")]

    def start(self, bootstrap: str) -> None:
        """On a thread: not even the start of a process shall keep the node's loop waiting."""
        if self._listener is not None:
            threading.Thread(target=self._run, args=(bootstrap,), name="console", daemon=True).start()

    def close(self) -> None:
        """It keeps nothing: it ends at once."""
        with self._lock:
            self._is_closed = True
            process, self._process = self._process, None
        if self._listener is not None:
            self._listener.close()
        if process is not None:
            process.kill()
            process.wait()

    def _run(self, bootstrap: str) -> None:
        # Loaded when the node is ready, not before.
        import subprocess

        assert self._listener is not None
        with self._lock:
            if self._is_closed:
                return
            fd = self._listener.fileno()
            words = [*PROGRAM, "--bootstrap", bootstrap, "--fd", str(fd), "--with-parent"]
            words += [f"--password-file={self._password_file}"] if self._password_file is not None else []
            try:
                # In a session of its own: Ctrl-C is for the node, and the console ends with it.
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[fd],
                    start_new_session=True,
                    env=self._environment(),
                )
            except OSError as fault:
                click.echo(f"The console cannot start: {cause(fault)}. The node goes on.", err=True)
                return
            finally:
                self._listener.close()
            self._process = process
        code = process.wait()
        if not self._is_closed:
            click.echo(f"The console has ended with code {code}. The node goes on without it.", err=True)
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()

    def _environment(self) -> dict[str, str] | None:
        """Not among the words of the process: every user of the machine sees those."""
        if self._security is None or not self._security.client_file.exists():
            return None
        import json

        settings = self._security.client_settings()
        settings.pop("bootstrap.servers", None)
        return {**os.environ, CLIENT_SETTINGS: json.dumps(settings)}


def console_address(given: str | None, *, is_off: bool, is_child: bool) -> str | None:
    """Where the console shall be; None for nowhere. A node that another command runs leaves it to that command."""
    if is_off or is_child or (given or "").lower() in OFF:
        return None
    if given is None:
        return DEFAULT
    return f"127.0.0.1:{given}" if given.isdigit() else given
