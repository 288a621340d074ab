"""`Pond`: one broker for a test, with helpers for common steps and for faults."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from millpond.testing.clients import Clients, dotted
from millpond.testing.ports import HOST
from millpond.testing.process_node import ProcessNode
from millpond.testing.proxy import Proxy
from millpond.testing.thread_node import ThreadNode

if TYPE_CHECKING:
    from millpond.node.secure_folder import SecureFolder

Mode = Literal["thread", "process"]
Secure = bool | Literal["certificates"]
"""Whether and how clients authenticate: by password or by certificate."""

DEFAULTS: Final[Mapping[str, str]] = {
    # Groups form at once, and internal topics have one partition instead of fifty.
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    # The machine does not lose power: what a killed process wrote survives without a sync.
    "flush.ack": "never",
    # Hundreds of data folders are created, and few ever run out of space.
    "disk.reserve.bytes": "65536",
}
"""Default settings of a test broker."""

JOURNAL_LINES_MAX: Final = 1000


class Pond(Clients):
    """A real broker on the loopback. Also a context manager, for use without pytest.

    `mode="thread"` runs it in this process, `mode="process"` as a child. Without a `folder` it uses a temporary one.
    Names of settings may be written with underscores. A `secure` broker is one of `millpond up --secure`: TLS, a
    login and ACLs; its helpers act as its `admin`. With `secure="certificates"` users authenticate by certificate
    (mutual TLS) instead of a password.
    """

    def __init__(
        self,
        *,
        mode: Mode = "thread",
        settings: Mapping[str, object] | None = None,
        folder: Path | str | None = None,
        secure: Secure = False,
    ) -> None:
        super().__init__()
        self.mode: Mode = mode
        self.journal: list[str] = []
        """The broker's log lines across restarts, with its starts and ends."""
        self._own_folder = None if folder is not None else tempfile.mkdtemp(prefix="millpond-")
        self.folder = Path(folder if folder is not None else self._own_folder or "")
        self.security = secure_folder_of(self.folder) if secure else None
        self.by_certificate = secure == "certificates"
        self._proxy = Proxy()
        texts = {
            **DEFAULTS,
            **secure_texts(self.security, by_certificate=self.by_certificate),
            **dotted(settings or {}),
            "data.folder": str(self.folder),
            "listen": f"{HOST}:0",
            "advertised.listener": self._proxy.bootstrap,
        }
        self._node: ThreadNode | ProcessNode = (ThreadNode if mode == "thread" else ProcessNode)(texts, self._report)

    def __enter__(self) -> Pond:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Pond {self.bootstrap}, {self.mode}, {'running' if self.is_running else 'not running'}>"

    # Lifecycle.

    @property
    def bootstrap(self) -> str:
        """The bootstrap address, unchanged by kills and restarts."""
        return self._proxy.bootstrap

    @property
    def is_running(self) -> bool:
        return self._node.is_running

    def start(self) -> Pond:
        """Start it if it is not running; returns when it serves."""
        if not self._node.is_running:
            self._proxy.open(self._node.start())
            self.forget_clients()
            if self.security is not None:
                self.wait_for_login()
            self._report("pond: started")
        return self

    def stop(self) -> None:
        """Shut down cleanly; acknowledged records are on disk."""
        was_running = self._node.is_running
        self._node.stop()
        self._proxy.shut()
        if was_running:
            self._report("pond: stopped")

    def kill(self) -> None:
        """End it like SIGKILL: connections break and new ones are refused until `start` or `restart`."""
        self._node.kill()
        self._proxy.shut()
        self._report("pond: killed")

    def restart(self) -> Pond:
        """Restart it on the same data and address, after a clean shutdown if it is running."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """End it for good."""
        self.forget_clients()
        # The data is not needed again, so skip the clean shutdown.
        self._node.kill()
        self._proxy.close()
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)

    # Faults.

    def drop_connections(self) -> int:
        """Reset every open connection; returns their number. New ones are accepted."""
        return self._proxy.reset_all()

    def half_open(self) -> int:
        """Silence open connections without closing them, as if a cable were cut; new ones work."""
        return self._proxy.half_open_all()

    def slow_down(self, ms: float) -> ExitStack:
        """Delay every round trip by this much until `speed_up` or the end of the `with` block."""
        self._proxy.delay(ms)
        return _undo(self.speed_up)

    def speed_up(self) -> None:
        self._proxy.delay(0)

    def pause(self) -> ExitStack:
        """Freeze the broker like SIGSTOP until `resume` or the end of the `with` block."""
        self._node.pause()
        return _undo(self.resume)

    def resume(self) -> None:
        self._node.resume()

    def advance(self, seconds: float) -> None:
        """Move the broker's clock forward, as if its machine had been suspended for that long.

        Locks expire, delayed records are due, sessions end. Clients keep their own time. Only with `mode="thread"`.
        """
        if not isinstance(self._node, ThreadNode):
            raise RuntimeError('only a broker with mode="thread" has a clock that a test can move')
        if seconds < 0:
            raise ValueError("a clock only moves forward")
        self._node.advance(round(seconds * 1000))
        self._report("pond: clock moved", seconds=seconds)

    def _report(self, event: str, **facts: object) -> None:
        if len(self.journal) < JOURNAL_LINES_MAX:
            self.journal.append("  ".join([event, *(f"{name}={value}" for name, value in facts.items())]))


def secure_texts(security: SecureFolder | None, *, by_certificate: bool) -> dict[str, str]:
    """Additional settings of a secure broker."""
    if security is None:
        return {}
    if not by_certificate:
        return security.node_texts()
    return {**security.node_texts(), "listen.protocol": "SSL", "ssl.client.auth": "required"}


def secure_folder_of(folder: Path) -> SecureFolder:
    from millpond.node.secure_folder import make_secure_folder

    return make_secure_folder(str(folder), [HOST])


def _undo(action: Any) -> ExitStack:
    stack = ExitStack()
    stack.callback(action)
    return stack
