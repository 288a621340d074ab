"""`millpond work`: the command, and the parent of its processes."""

from __future__ import annotations

import json
import os
import queue
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import click

from millpond.cli.access import Access, cluster_options
from millpond.cli.cluster.children import CannotRun, Child, Event, Supervisor
from millpond.cli.errors import Failed
from millpond.cli.options import option
from millpond.cli.stop import Stop, stop_on
from millpond.cli.text import counted
from millpond.cli.work.child import STATS, run_child
from millpond.cli.work.specs import find_workers
from millpond.node.signals import stop_signals

if TYPE_CHECKING:
    from millpond.admin.lag import LagWatch
    from millpond.client.worker import Worker

RELOAD_SECONDS: Final = 0.5
FIGURES: Final = ("processed", "retried", "dead", "skipped", "expired")


@click.command("work")
@click.argument("specs", metavar="MODULE[:WORKER]...", nargs=-1, required=True)
@option("--processes", type=click.IntRange(1, 1000), default=1, help="Number of processes, each with all workers.")
@click.option("--reload", is_flag=True, help="Restart when a file of the program changes.")
@option(
    "--every", type=click.FloatRange(0.1), default=5.0, meta="SECONDS", help="The interval between two status lines."
)
@click.option("--child", is_flag=True, hidden=True)
@cluster_options
def command(specs: tuple[str, ...], processes: int, reload: bool, every: float, child: bool, access: Access) -> None:
    """Run workers until Ctrl-C or SIGTERM: all of a module, or the named ones.

    A process that dies is restarted, with a growing delay. On a stop, all finish and commit what they are running.
    Every few seconds a line shows how much was done and how much is unread.

    The cluster is --bootstrap, unless a worker names its own.

    \b
    Examples:
      millpond work billing
      millpond work billing:charge shop.mail:send --processes 4
      millpond work billing --reload
    """
    # Before the modules are imported, which may read it.
    os.environ["MILLPOND_BOOTSTRAP"] = access.bootstrap
    if access.client_file is not None:
        os.environ["MILLPOND_CLIENT_CONFIG"] = os.path.abspath(access.client_file)
    workers = find_workers(specs)
    if child:
        run_child(workers)
        return
    run = _Run(workers, specs, processes, access, every)
    with stop_on(*stop_signals()) as stop:
        in_time = run.until(stop, _Files() if reload else None)
    click.echo(f"Stopped after {run.summary()}.")
    if not in_time:
        raise Failed("Some did not stop in time and were killed: the records they were handling run again.")


class _Run:
    def __init__(
        self, workers: Sequence[Worker], specs: Sequence[str], processes: int, access: Access, every: float
    ) -> None:
        self._workers = workers
        self._access = access
        self._every = every
        events: queue.Queue[Event] = queue.Queue()
        arguments = ("work", "--child", "--bootstrap", access.bootstrap, *specs)
        children = {number: Child(number, arguments, events) for number in range(1, processes + 1)}
        self._supervisor = Supervisor("process", children, events, self._say)
        self._finished = dict.fromkeys(FIGURES, 0)
        """Counts of processes that have ended."""
        self._current: dict[int, dict[str, int]] = {}
        """Counts of the current process of each child."""

    def until(self, stop: Stop, files: _Files | None) -> bool:
        """Whether all stopped in time."""
        names = ", ".join(f"{worker.__name__} ({worker.options.group})" for worker in self._workers)
        children = list(self._supervisor.children.values())
        self._line(f"{names}: {len(children)} {'process' if len(children) == 1 else 'processes'}")
        self._supervisor.start()
        shown_at, before, is_compared = time.monotonic(), 0, False
        with ExitStack() as stack:
            lag = _Lag(self._access, self._workers, stack)
            try:
                while not stop.is_requested:
                    self._supervisor.turn()
                    if not is_compared and self._supervisor.is_ready:
                        is_compared = True
                        for text in lag.idle(len(children)):
                            self._line(text)
                    if files is not None and (changed := files.changed()):
                        self._line(f"{changed} has changed: restarting")
                        self._restart()
                    now = time.monotonic()
                    if now - shown_at >= self._every:
                        done = self._total("processed")
                        self._line(f"{(done - before) / (now - shown_at):,.0f}/s  {self.summary()}{lag.text()}")
                        shown_at, before = now, done
            except CannotRun as fault:
                self._supervisor.end([children])
                raise Failed(str(fault)) from None
            in_time = self._supervisor.end([children])
            # Their final counts.
            self._supervisor.drain()
            return in_time

    def summary(self) -> str:
        more = [f"{self._total(name):,} {name}" for name in FIGURES[1:] if self._total(name)]
        return ", ".join([f"{self._total('processed'):,} done", *more])

    def _total(self, name: str) -> int:
        return self._finished[name] + sum(each.get(name, 0) for each in self._current.values())

    def _restart(self) -> None:
        children = list(self._supervisor.children.values())
        for child in children:
            child.stop()
        for child in children:
            if not child.wait(30):
                child.stop(at_once=True)
                child.wait(5)
        self._supervisor.drain()
        for child in children:
            self._add_to_finished(child.node_id)
            child.start()

    def _add_to_finished(self, number: int) -> None:
        for name, count in self._current.pop(number, {}).items():
            self._finished[name] += count

    def _say(self, child: Child | None, text: str) -> None:
        if child is None:
            self._line(text)
        elif text.startswith(STATS):
            stats = json.loads(text.removeprefix(STATS)).values()
            self._current[child.node_id] = {name: sum(each[name] for each in stats) for name in FIGURES}
        else:
            if text.startswith("ready"):
                self._add_to_finished(child.node_id)
            self._line(f"{child.node_id}: {text}" if len(self._supervisor.children) > 1 else text)

    def _line(self, text: str) -> None:
        click.echo(f"{time.strftime('%H:%M:%S')}  {text}")
        sys.stdout.flush()


class _Lag:
    """The lag of the workers' groups, if the cluster answers."""

    def __init__(self, access: Access, workers: Sequence[Worker], stack: ExitStack) -> None:
        self._access = access
        # A worker with another cluster has its lag there.
        # A queue has neither partitions for each process nor committed offsets.
        self._workers = [each for each in workers if each.bootstrap is None and each.options.mode != "queue"]
        self._groups = sorted({each.options.group for each in self._workers})
        self._stack = stack
        self._watch: LagWatch | None = None

    def idle(self, processes: int) -> Iterator[str]:
        """Workers with more processes than partitions, if the cluster answers."""
        from millpond.remote.errors import ClientError

        try:
            with self._access.open() as cluster:
                infos = cluster.topics({topic for each in self._workers for topic in each.options.topics})
        except (Failed, ClientError):
            # The workers report what is wrong with the cluster.
            return
        for each in self._workers:
            topics = [infos[name] for name in each.options.topics if name in infos]
            partitions = sum(len(topic.partitions) for topic in topics)
            if len(topics) == len(each.options.topics) and partitions < processes:
                spare = processes - partitions
                idle = "1 process" if spare == 1 else f"{spare} processes"
                yield (
                    f"{each.__name__}: {counted(partitions, 'partition')} for {processes} processes, so {idle} "
                    "will be idle; `millpond topic alter` adds partitions"
                )

    def text(self) -> str:
        from millpond.admin.errors import Refused
        from millpond.admin.lag import LagWatch
        from millpond.remote.errors import ClientError

        if not self._groups:
            return ""
        try:
            if self._watch is None:
                cluster = self._stack.enter_context(self._access.open())
                self._watch = LagWatch(cluster, self._groups, sample_seconds=0)
            lags = self._watch.look()
            if all(each.partitions for each in lags):
                return f"  lag {sum(each.lag for each in lags):,}"
            return "  waiting for partitions"
        except Refused:
            # A group begins to exist when its first member joins.
            return "  waiting for partitions"
        except (Failed, ClientError):
            # The workers report what is wrong with the cluster.
            return "  lag unknown"


class _Files:
    """The program's files: modules imported from below the current folder."""

    def __init__(self) -> None:
        self._mtimes = dict(self._times())
        self._look_at = time.monotonic() + RELOAD_SECONDS

    def changed(self) -> str | None:
        """A file that has changed since the last check."""
        if time.monotonic() < self._look_at:
            return None
        self._look_at = time.monotonic() + RELOAD_SECONDS
        now = dict(self._times())
        changed = [path for path, at in now.items() if self._mtimes.get(path) != at]
        self._mtimes = now
        return os.path.relpath(changed[0]) if changed else None

    def _times(self) -> Iterator[tuple[str, int]]:
        home = os.getcwd() + os.sep
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None) or ""
            if path.startswith(home) and os.sep + "site-packages" + os.sep not in path:
                try:
                    yield path, os.stat(path).st_mtime_ns
                except OSError:
                    continue
