"""`Pond`: one broker for a test, with what a test does most, and the faults that it must survive."""

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
"""Whether a broker asks who comes, and how they show it: by a password, or by a certificate."""

DEFAULTS: Final[Mapping[str, str]] = {
    # Groups form at once, and the topics behind them are made with one partition instead of fifty.
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    # A test's machine does not lose power: what a killed process had written is still there without a sync.
    "flush.ack": "never",
    # Hundreds of folders are made, and most of them are never short of room.
    "disk.reserve.bytes": "65536",
}
"""How a test's broker differs from others, unless the test says otherwise."""

JOURNAL_LINES_MAX: Final = 1000


class Pond(Clients):
    """A real broker on the loopback. Also a context manager, for use without pytest.

    `mode="thread"` runs it in this process, `mode="process"` as a child. Without a `folder` it gets one of its own,
    which goes with it. Names of settings may be written with underscores. A `secure` one is what `millpond up
    --secure` makes: TLS, a login, rights; its own clients are those of its `admin`. With `secure="certificates"`
    users come by certificates (mutual TLS) in place of passwords.
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
        """What the broker reported, over all its lives, and where each of them began and ended."""
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

    # Life.

    @property
    def bootstrap(self) -> str:
        """Where clients connect; stays the same through kills and restarts."""
        return self._proxy.bootstrap

    @property
    def is_running(self) -> bool:
        return self._node.is_running

    def start(self) -> Pond:
        """Start it if it does not run; returns when it serves."""
        if not self._node.is_running:
            self._proxy.open(self._node.start())
            self.forget_clients()
            if self.security is not None:
                self.wait_for_login()
            self._report("pond: started")
        return self

    def stop(self) -> None:
        """End it in order; what clients were told is on disk."""
        was_running = self._node.is_running
        self._node.stop()
        self._proxy.shut()
        if was_running:
            self._report("pond: stopped")

    def kill(self) -> None:
        """End it as SIGKILL would; connections break and new ones are refused until `start` or `restart`."""
        self._node.kill()
        self._proxy.shut()
        self._report("pond: killed")

    def restart(self) -> Pond:
        """Start it again on the same data and address, after an orderly stop if it still runs."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """End it for good."""
        self.forget_clients()
        # Nobody will look at the data again: there is no need to end in order.
        self._node.kill()
        self._proxy.close()
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)

    # Faults.

    def drop_connections(self) -> int:
        """Reset every open connection; how many there were. New ones are welcome."""
        return self._proxy.reset_all()

    def half_open(self) -> int:
        """Open connections stay open but carry nothing more, as if a cable were cut; new ones work."""
        return self._proxy.half_open_all()

    def slow_down(self, ms: float) -> ExitStack:
        """Every round trip takes this much longer, until `speed_up` or the end of a `with` block around it."""
        self._proxy.delay(ms)
        return _undo(self.speed_up)

    def speed_up(self) -> None:
        self._proxy.delay(0)

    def pause(self) -> ExitStack:
        """The broker stands still, as on SIGSTOP, until `resume` or the end of a `with` block around it."""
        self._node.pause()
        return _undo(self.resume)

    def resume(self) -> None:
        self._node.resume()

    def _report(self, event: str, **facts: object) -> None:
        if len(self.journal) < JOURNAL_LINES_MAX:
            self.journal.append("  ".join([event, *(f"{name}={value}" for name, value in facts.items())]))


def secure_texts(security: SecureFolder | None, *, by_certificate: bool) -> dict[str, str]:
    """What a secure broker is told beside all else."""
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
