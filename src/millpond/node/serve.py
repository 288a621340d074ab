"""One node as a process: the real ports, a broker on them, and the signals that end it."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from millpond.base.errors import RemoteError
from millpond.base.ports import World
from millpond.base.settings import Settings
from millpond.broker.broker import Broker, load_apis, load_coordinators
from millpond.broker.connections.connections import UnknownCertificate
from millpond.broker.loop.journal import Journal
from millpond.broker.peers.node_login import LoginNotTaken
from millpond.broker.requests.replies import UnwritableReply
from millpond.broker.security.login import IllegalLoginState
from millpond.broker.serving.dispatch import UnanswerableRequest
from millpond.config.listeners import listeners_of
from millpond.config.node import DATA_FOLDER, MAX_CONNECTIONS, MAX_PARTITIONS, NETWORK_SENDFILE, cluster_nodes
from millpond.log.open_files import share_for_files
from millpond.node.audit_file import AuditFiles, open_audit
from millpond.node.bugs import leave, watch_for_bugs
from millpond.node.certificate_watch import CertificateWatch
from millpond.node.clock import LoopClock
from millpond.node.collector import Collector
from millpond.node.disk import RealDisk
from millpond.node.entropy import SystemEntropy, boot_id
from millpond.node.journal import LineJournal
from millpond.node.link import SocketLink
from millpond.node.loop_delay import CoreWait, LoopDelay
from millpond.node.monitor import Monitor
from millpond.node.network import WAITING_MAX, SocketNetwork, TooManyWait
from millpond.node.own_certificate import check_own_certificate
from millpond.node.own_rights import check_own_rights
from millpond.node.private_files import guard_data_folder
from millpond.node.process_metrics import ProcessMetrics
from millpond.node.reachability import Reachability
from millpond.node.secure_mark import check_mark, leave_mark
from millpond.node.service import tell_manager
from millpond.node.signals import stop_signals
from millpond.node.tls_contexts import OnReload
from millpond.node.tls_link import TlsRefused
from millpond.node.web import Web
from millpond.node.workers import LOGIN_THREADS, SYNC_THREADS, ThreadWorkers

DESCRIPTORS_RESERVED = 32
"""For files that workers open briefly, and for the process itself."""

LAST_LINES_SECONDS = 1.0
"""How long a node that exits because of a bug waits for its audit log."""

WAITING_SHARE = 20
"""One descriptor in this many may belong to a connection that waits to be served, beyond the first ones."""

FIRST_DESCRIPTORS = 128
"""With hardly more than these, a node needs them for files and existing connections."""

PARTITIONS_PER_FILE = 32
"""How many partitions may share an open file: with more, files would be reopened all the time."""

CONNECTIONS_ENOUGH = 1_000
"""Above this connection limit, no warning suggests raising it."""


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop if it is installed: it answers more than twice as many requests a second."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def load() -> None:
    """Import what a node imports at startup: for a process that waits to become one."""
    load_apis()
    load_coordinators()
    new_loop().close()


def serve(
    settings: Settings, journal: LineJournal, on_ready: Callable[[Broker], None], monitor: Monitor | None = None
) -> None:
    """Run a node until it is asked to stop, then complete what is pending and close its logs."""
    signals = stop_signals()
    notes: list[Callable[[], None]] = []
    # Kept until the node has started: if it cannot start, that reason should be the only output.
    note = lambda event, **facts: notes.append(partial(journal, event, **facts))  # noqa: E731
    descriptors = _raise_descriptor_limit()
    settings = fitted(settings, descriptors, note)
    guard_data_folder(settings[DATA_FOLDER], note)
    check_own_certificate(settings)
    check_own_rights(settings)
    check_mark(settings)
    loop = new_loop()
    workers, sync_workers = ThreadWorkers(loop), ThreadWorkers(loop, SYNC_THREADS)
    login_workers = ThreadWorkers(loop, LOGIN_THREADS)
    world = World(
        clock=LoopClock(loop),
        disk=RealDisk(),
        network=SocketNetwork(
            loop,
            on_fault=fault_reporter(journal),
            sendfile=settings[NETWORK_SENDFILE],
            on_reload=reload_reporter(journal),
            waiting_max=max(waiting_in_all(descriptors) // len(listeners_of(settings)), 1),
        ),
        workers=workers,
        sync_workers=sync_workers,
        login_workers=login_workers,
        entropy=SystemEntropy(),
        boot_id=boot_id(),
        fetch=Web(loop).fetch,
    )
    audit = open_audit(settings, journal)
    broker = Broker(world, settings, journal, audit=audit)
    collector = Collector(world.clock)
    collector.hold()
    watch_for_bugs(loop, journal, lambda _: _leave(journal, broker, audit))
    before = {number: signal.getsignal(number) for number in signals}
    is_clean = False
    core_wait = CoreWait()
    delay = LoopDelay(world.clock, journal, core_wait)
    monitor = monitor or Monitor()
    certificates = CertificateWatch(world.clock, workers, [each.tls for each in listeners_of(settings)], journal)
    try:
        broker.start()
        leave_mark(settings)
        monitor.open(settings, broker, ProcessMetrics(workers, delay, core_wait, journal))
        for tell in notes:
            tell()
        certificates.start()
        collector.calm()
        asked: list[int] = []

        def end() -> None:
            tell_manager("STOPPING=1")
            broker.drain(loop.stop)

        def take_signals() -> None:
            for number in signals:
                loop.add_signal_handler(number, end)
            if asked:
                end()

        for number in signals:
            # Collected until the loop runs, which could lose a signal or be interrupted in its first iteration.
            # Installed before the node reports ready: a stop right then must be clean, too.
            signal.signal(number, lambda number, _: asked.append(number))
        refused: list[Exception] = []

        def give_up(failure: Exception) -> None:
            refused.append(failure)
            broker.drain(loop.stop)

        waiting = Reachability(cluster_nodes(settings), broker.node_id, journal)

        def begin(_: None) -> None:
            waiting.stop()
            on_ready(broker)
            # Not on the loop: the first client would block all others while the code is imported.
            workers.run(load_apis).then(lambda _: None)

        if cluster_nodes(settings):
            waiting.start()
        broker.ready.then(begin)
        broker.lifecycle.shut_out.then(give_up)
        broker.controller.outdated.then(give_up)
        broker.controller.offline.then(lambda error: _end_offline(broker, journal, audit, error))
        delay.start()
        loop.call_soon(take_signals)
        loop.run_forever()
        waiting.stop()
        if refused:
            raise refused[0]
        is_clean = True
    finally:
        monitor.close()
        certificates.stop()
        core_wait.close()
        collector.stop()
        workers.close()
        sync_workers.close()
        login_workers.close()
        broker.close()
        if audit is not None:
            broker.audit.flush()
            audit.close()
        if is_clean:
            # No handlers from here on: another signal must not make a clean exit look like a crash.
            signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        loop.close()
        for number in signals:
            signal.signal(number, signal.SIG_IGN if is_clean else before[number])
        journal.flush()


def _leave(journal: LineJournal, broker: Broker, audit: AuditFiles | None) -> NoReturn:
    """Exit now, but write the audit log first: it may show who caused this."""
    if audit is not None:
        # A failure here is no reason not to exit.
        with contextlib.suppress(Exception):
            broker.audit.flush()
        audit.flush(LAST_LINES_SECONDS)
    leave(journal)


def _end_offline(broker: Broker, journal: LineJournal, audit: AuditFiles | None, error: OSError) -> None:
    """Exit if the node can no longer follow the cluster: it would keep leading partitions that others lead now."""
    if not broker.controller.is_alone:
        journal("metadata log is offline, exiting: restart the node", reason=error)
        _leave(journal, broker, audit)


def fault_reporter(journal: Journal) -> Callable[[SocketLink | None, BaseException], None]:
    """Log the network's errors."""

    def report(link: SocketLink | None, error: BaseException) -> None:
        peer = link.peer if link is not None else "-"
        if isinstance(error, TlsRefused | UnknownCertificate):
            journal("connection closed: TLS handshake failed", peer=peer, reason=error)
        elif isinstance(error, UnanswerableRequest):
            journal("connection closed: a request could not be answered", peer=peer, reason=error)
        elif isinstance(error, UnwritableReply):
            journal(
                "connection closed: the response cannot be encoded in the requested version", peer=peer, reason=error
            )
        elif isinstance(error, IllegalLoginState):
            journal("connection closed: client is not authenticated", peer=peer, reason=error)
        elif isinstance(error, LoginNotTaken):
            journal("another node rejected this node's login", peer=peer, reason=error)
        elif isinstance(error, RemoteError):
            journal("connection closed: protocol error", peer=peer, reason=error)
        elif isinstance(error, TooManyWait):
            journal("connections rejected", reason=error)
        elif link is None:
            journal("cannot open connections for now", reason=error)
        else:
            journal("connection closed: request failed", peer=peer, reason=repr(error))

    return report


def reload_reporter(journal: Journal) -> OnReload:
    """Log certificates that changed while the node runs."""

    def report(path: str, fault: Exception | None) -> None:
        if fault is None:
            journal("certificates reloaded", file=path)
        else:
            journal("cannot use changed certificates, keeping the previous ones", reason=fault)

    return report


def _raise_descriptor_limit() -> int:
    """Raise the descriptor limit as far as the system allows, as every connection and partition needs some; the
    limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def waiting_in_all(descriptors: int) -> int:
    """How many connections may wait to be served, over all listeners: each takes a descriptor."""
    if descriptors == resource.RLIM_INFINITY:
        return WAITING_MAX
    return min(WAITING_MAX, max((descriptors - FIRST_DESCRIPTORS) // WAITING_SHARE, 1))


def fitted(settings: Settings, descriptors: int, journal: Journal) -> Settings:
    """The settings, lowered to what this many descriptors support: some are for files, the rest for connections.

    Logged if a configured limit was lowered, or if the result is small.
    """
    if descriptors == resource.RLIM_INFINITY:
        return settings
    files = share_for_files(descriptors)
    borne = {
        MAX_CONNECTIONS: max(descriptors - files - DESCRIPTORS_RESERVED - waiting_in_all(descriptors), 1),
        MAX_PARTITIONS: files * PARTITIONS_PER_FILE,
    }
    lowered = {setting.name: most for setting, most in borne.items() if settings[setting] > most}
    if not lowered:
        return settings
    if lowered.keys() & settings.overrides.keys() or borne[MAX_CONNECTIONS] < CONNECTIONS_ENOUGH:
        facts = {name.replace(".", "_"): most for name, most in lowered.items()}
        journal("the limit of open files is low; raise `ulimit -n`", descriptors=descriptors, **facts)
    return Settings(settings.registry, {**settings.overrides, **lowered})
