"""The console of `millpond up`: a separate process, started once the node is ready.

The socket is opened here: a port that is taken is known before the first line of output, and a browser that connects
early waits until the console answers. No failure of the console stops the node.
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
"""The variable with the console's Kafka client settings, as JSON."""
OFF: Final = ("off", "no", "none", "0")
"""Values of --console and MILLPOND_CONSOLE that turn it off."""


def missing_packages() -> list[str]:
    """Packages that the console needs and that are missing; they are not imported."""
    from importlib.util import find_spec

    return [name for name in NEEDS if find_spec(name) is None]


class ConsoleProcess:
    """Without an `address` there is no console."""

    def __init__(
        self, address: str | None, password_file: str | None = None, security: SecureFolder | None = None
    ) -> None:
        """The console of a secure node acts as its admin, so its users have to log in, with the admin's password
        unless another is given."""
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
        """Opens the port; the row with the console's address, or the reason why there is none."""
        if self._address is None:
            return []
        if missing := missing_packages():
            return [("console", f"none: it needs {' and '.join(missing)} (pip install {' '.join(missing)})")]
        from millpond.node.loopback import open_listener

        try:
            self._listener = open_listener(self._address, has_login=self._password_file is not None)
        except ValueError as fault:
            # In terms of this command's options.
            text = str(fault).replace("--password-file", "--console-password-file").replace("--listen", "--console")
            return [("console", f"none: {text}")]
        except OSError as fault:
            return [("console", f"none: {self._address}: {cause(fault)}; choose another with --console HOST:PORT")]
        host, port = self._listener.getsockname()[:2]
        return [("console", f"http://{shown_address(host, port)}")]

    def start(self, bootstrap: str) -> None:
        """Starts it on a thread, because even starting a process would hold up the node's loop."""
        if self._listener is not None:
            threading.Thread(target=self._run, args=(bootstrap,), name="console", daemon=True).start()

    def close(self) -> None:
        """Kills it: it has no state to save."""
        with self._lock:
            self._is_closed = True
            process, self._process = self._process, None
        if self._listener is not None:
            self._listener.close()
        if process is not None:
            process.kill()
            process.wait()

    def _run(self, bootstrap: str) -> None:
        # Imported once the node is ready, not before.
        import subprocess

        assert self._listener is not None
        with self._lock:
            if self._is_closed:
                return
            fd = self._listener.fileno()
            words = [*PROGRAM, "--bootstrap", bootstrap, "--fd", str(fd), "--with-parent"]
            words += [f"--password-file={self._password_file}"] if self._password_file is not None else []
            try:
                # In a new process group: Ctrl-C goes to the node, and the console ends with it.
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[fd],
                    start_new_session=True,
                    env=self._environment(),
                )
            except OSError as fault:
                click.echo(f"The console cannot start: {cause(fault)}. The node keeps running.", err=True)
                return
            finally:
                self._listener.close()
            self._process = process
        code = process.wait()
        if not self._is_closed:
            click.echo(f"The console exited with code {code}. The node keeps running.", err=True)
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()

    def _environment(self) -> dict[str, str] | None:
        """In the environment, because every user of the machine can see the command line."""
        if self._security is None or not self._security.client_file.exists():
            return None
        import json

        settings = self._security.client_settings()
        settings.pop("bootstrap.servers", None)
        return {**os.environ, CLIENT_SETTINGS: json.dumps(settings)}


def console_address(text: str | None, *, is_off: bool, is_child: bool) -> str | None:
    """The address of the console, or None. A node that another command runs has none by default."""
    if is_off or is_child or (text or "").lower() in OFF:
        return None
    if text is None:
        return DEFAULT
    return f"127.0.0.1:{text}" if text.isdigit() else text
