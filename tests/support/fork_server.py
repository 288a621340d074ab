"""Forks nodes from a process that has already imported them: a real process each time, without 0.3 s of imports.

The tests start one server per process, with their first node. It has no threads and no event loop. After a fork, the
child runs the node and exits as any other interpreter does. Nodes end with the server, the server with the tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO

REQUEST_BYTES_MAX = 1 << 18
"""The environment and the settings of one node; a datagram of this size fits the default buffers of Linux."""

_STATUS = struct.Struct("=i")
_PID = struct.Struct("=i")


class ForkedProcess:
    """The part of `subprocess.Popen` that tests of nodes use, for a child of the server."""

    def __init__(self, server: ForkServer, pid: int, stdout: IO[bytes], status: int) -> None:
        self._server = server  # ends, with all of its nodes, when it is no longer referenced
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"node {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            # The server reaps a child at once, so it may be gone since the poll.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, seconds: float | None) -> int | None:
        """The exit code, once the server has reported it: it reaps its children at once."""
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._status, select.POLLIN)
            if waiting.poll(None if seconds is None else seconds * 1000):
                answer = os.read(self._status, _STATUS.size)
                # A server that is gone has taken its children with it.
                self.returncode = _STATUS.unpack(answer)[0] if answer else -signal.SIGKILL
                os.close(self._status)
        return self.returncode


class ForkServer:
    """The tests' side. One per process."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.environment = _own_variables()
        self._turn = threading.Lock()
        self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            command = [sys.executable, "-P", __file__, str(other.fileno())]
            # Kept: an object that is collected while its process runs warns.
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[other.fileno()])

    def is_alike(self) -> bool:
        """Whether a child would have been imported in this environment, by this process."""
        return self.owner == os.getpid() and self.environment == _own_variables() and self._process.poll() is None

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes]) -> ForkedProcess:
        request = json.dumps({"arguments": list(arguments), "environment": dict(environment), "cwd": os.getcwd()})
        text = request.encode()
        assert len(text) <= REQUEST_BYTES_MAX, f"{len(text)} bytes of settings and environment"
        out_read, out_write = os.pipe()
        status_read, status_write = os.pipe()
        try:
            with self._turn:
                socket.send_fds(self._control, [text], [out_write, stderr.fileno(), status_write])
                answer = self._control.recv(_PID.size)
        finally:
            os.close(out_write)
            os.close(status_write)
        assert answer, "the server that forks nodes has ended"
        return ForkedProcess(self, _PID.unpack(answer)[0], os.fdopen(out_read, "rb"), status_read)


_server: ForkServer | None = None
_server_turn = threading.Lock()


def fork_server() -> ForkServer:
    """The server of this process; a new one if the process or its environment has changed."""
    global _server
    with _server_turn:
        if _server is None or not _server.is_alike():
            _server = ForkServer()
        return _server


def _own_variables() -> dict[str, str]:
    """Variables that a node's modules may read on import."""
    return {name: text for name, text in os.environ.items() if name.startswith(("MILLPOND", "PYTHON", "LD_"))}


def _serve(control: socket.socket) -> dict[str, object] | None:
    """Fork until the tests are gone. Returns each child's instructions in the child, and None in the server."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    reports: dict[int, int] = {}
    waiting = select.poll()
    waiting.register(control, select.POLLIN)
    waiting.register(wake_read, select.POLLIN)
    while True:
        ready = {number for number, _ in waiting.poll()}
        if wake_read in ready:
            os.read(wake_read, 4096)
            _report(reports)
        if control.fileno() not in ready:
            continue
        text, handles, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, 3)
        if not text:
            return None
        out, err, status = handles
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, interrupt)
            os.dup2(out, 1)
            os.dup2(err, 2)
            for number in (out, err, status, wake_read, wake_write, *reports.values()):
                os.close(number)
            control.close()
            return json.loads(text)  # type: ignore[no-any-return]
        os.close(out)
        os.close(err)
        reports[pid] = status
        control.send(_PID.pack(pid))


def _report(reports: dict[int, int]) -> None:
    """Reap every child that has exited, and report its status."""
    while reports:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        to = reports.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(to, _STATUS.pack(os.waitstatus_to_exitcode(status)))
        os.close(to)


def main() -> None:
    # Both sides import this file; what only the server needs is imported here.
    from millpond.config.node import node_settings
    from millpond.node.journal import LineJournal
    from millpond.node.serve import load, serve

    load()
    gc.collect()
    gc.freeze()
    wanted = _serve(socket.socket(fileno=int(sys.argv[1])))
    if wanted is None:
        return
    with contextlib.suppress(OSError, AttributeError):
        # A node must not outlive the tests that started it, however they end.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    os.environ.clear()
    os.environ.update(wanted["environment"])  # type: ignore[call-overload]
    os.chdir(wanted["cwd"])  # type: ignore[arg-type]
    texts = dict(each.split("=", 1) for each in wanted["arguments"])  # type: ignore[attr-defined]
    serve(node_settings(texts), LineJournal(), lambda _: print("ready", flush=True))


if __name__ == "__main__":
    main()
