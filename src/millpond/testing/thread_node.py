"""A node on a thread of this process, ready within tens of milliseconds."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from millpond.base.ports import World
from millpond.base.tls import ServerTls
from millpond.broker.broker import Broker
from millpond.broker.loop.journal import Journal
from millpond.config.node import NETWORK_SENDFILE, node_settings
from millpond.node.audit_file import open_audit
from millpond.node.bugs import watch_for_bugs
from millpond.node.disk import RealDisk
from millpond.node.entropy import SystemEntropy, boot_id
from millpond.node.network import Accept, SocketListener, SocketNetwork
from millpond.node.serve import fault_reporter, reload_reporter
from millpond.node.web import Web
from millpond.node.workers import LOGIN_THREADS, SYNC_THREADS, ThreadWorkers
from millpond.testing.loop_thread import LoopThread
from millpond.testing.movable_clock import MovableClock


class ThreadNode:
    """One node, restartable. `texts` are its settings; `journal` receives its log lines."""

    def __init__(self, texts: Mapping[str, str], journal: Journal) -> None:
        self.texts = texts
        self._journal = journal
        self._running: _Running | None = None
        self._paused: threading.Event | None = None
        self._ahead_ms = 0
        """How far its clock was moved, over all runs."""

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def start(self) -> int:
        """Start, wait until it serves, and return its port."""
        assert self._running is None, "the node runs already"
        running = _Running(self.texts, self._journal, self._ahead_ms)
        try:
            running.thread.call(running.broker.start)
        except BaseException:
            running.crash()
            raise
        self._running = running
        return running.broker.address[1]

    def stop(self) -> None:
        """Shut down cleanly: it answers pending requests and closes its logs."""
        self.resume()
        running, self._running = self._running, None
        if running is not None:
            running.end()

    def kill(self) -> None:
        """End it like SIGKILL: nothing is answered or written, and the folder is not marked clean."""
        running, self._running = self._running, None
        if running is not None:
            # A frozen node must not resume before it dies.
            running.is_dying = True
            self.resume()
            running.crash()

    def pause(self) -> None:
        """Freeze it like SIGSTOP: connections stay open, requests go unanswered."""
        if self._running is None or self._paused is not None:
            return
        running, paused, frozen = self._running, threading.Event(), threading.Event()

        def freeze() -> None:
            frozen.set()
            paused.wait()
            if running.is_dying:
                running.let_go()

        self._paused = paused
        running.thread.tell(freeze)
        frozen.wait()

    def advance(self, ms: int) -> None:
        """Move its clock forward; a node that does not run finds the later time when it starts."""
        self._ahead_ms += ms
        if self._running is not None:
            clock = self._running.clock
            self._running.thread.call(lambda: clock.advance(ms))

    def resume(self) -> None:
        if self._paused is not None:
            self._paused.set()
            self._paused = None


class _Running:
    """The parts of one run of a node."""

    is_dying = False

    def __init__(self, texts: Mapping[str, str], journal: Journal, ahead_ms: int) -> None:
        settings = node_settings(texts)
        self.thread = LoopThread("millpond-node")
        loop = self.thread.loop
        self.clock = MovableClock(loop, ahead_ms)
        self.workers, self.sync_workers = ThreadWorkers(loop), ThreadWorkers(loop, SYNC_THREADS)
        self.login_workers = ThreadWorkers(loop, LOGIN_THREADS)
        self.bug: BaseException | None = None
        watch_for_bugs(loop, journal, self._end_by_bug)
        self.network = _Network(
            loop,
            on_fault=fault_reporter(journal),
            sendfile=settings[NETWORK_SENDFILE],
            on_reload=reload_reporter(journal),
        )
        world = World(
            *(self.clock, RealDisk(), self.network, self.workers, self.sync_workers, self.login_workers),
            *(SystemEntropy(), boot_id()),
            fetch=Web(loop).fetch,
        )
        self.audit = open_audit(settings, journal)
        self.broker = Broker(world, settings, journal, audit=self.audit)

    def end(self) -> None:
        self.thread.tell(lambda: self.broker.drain(self.thread.loop.stop))
        self.thread.join()
        self._close_workers()
        if self.bug is None:
            self.broker.close()
        else:
            self.broker.store.abandon()
        self._close_audit()
        self.thread.loop.close()
        if self.bug is not None:
            raise RuntimeError("the node has ended because of a bug in it") from self.bug

    def _end_by_bug(self, bug: BaseException) -> None:
        """A failure ends the node at once, as it would the process; `stop` raises it."""
        if self.bug is None:
            self.bug = bug
            self.let_go()

    def _close_workers(self) -> None:
        for workers in (self.workers, self.sync_workers, self.login_workers):
            workers.close()

    def crash(self) -> None:
        self.thread.tell(self.let_go)
        self.thread.join()
        self._close_workers()
        self.broker.store.abandon()
        self._close_audit()
        self.thread.loop.close()

    def _close_audit(self) -> None:
        if self.audit is not None:
            self.broker.audit.flush()
            self.audit.close()

    def let_go(self) -> None:
        """Close sockets as the kernel does for a dead process. Runs on the loop."""
        for listener in self.network.listeners:
            listener.close()
        self.broker.connections.drop_all()
        # The links close their sockets on the loop's next round.
        self.thread.loop.call_soon(self.thread.loop.stop)


class _Network(SocketNetwork):
    """Tracks its listeners, which the kernel closes for a dead process but not for a thread."""

    listeners: tuple[SocketListener, ...] = ()

    def listen(
        self, host: str, port: int, accept: Accept, tls: ServerTls | None = None, name: str = ""
    ) -> SocketListener:
        listener = super().listen(host, port, accept, tls, name)
        self.listeners += (listener,)
        return listener
