"""Workers: a function run for each record of a topic, with the delivery, retries and dead letters it asks for."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any, Unpack

from millpond.client.arguments import named_arguments
from millpond.client.checks import check_topics
from millpond.client.connection import LOG
from millpond.client.dead_letters import error_name
from millpond.client.engine import Engine, Stats
from millpond.client.errors import ConfigError, Timeout
from millpond.client.handler import Handler
from millpond.client.options import Options, OptionsKwargs, WorkerKwargs, check
from millpond.client.payloads import Decoder, Serializer, encode
from millpond.client.retry import NO_RETRY, as_retry

if TYPE_CHECKING:
    from millpond.client.queue_engine import QueueEngine

JOIN_SECONDS = 60.0

_is_importing = False
"""Whether a module is being imported only to find its workers."""


class Worker:
    """A handler with its options. `run` works until stopped; calling the worker calls the handler, for tests.

    Options describes the arguments besides topics and group.
    """

    @named_arguments("Worker", OptionsKwargs.__annotations__)
    def __init__(
        self,
        handler: Callable[..., Any],
        topics: str | Sequence[str],
        *,
        group: str,
        bootstrap: str | None = None,
        payload: Any = None,
        decoder: Decoder | None = None,
        serializer: Serializer = encode,
        **options: Unpack[OptionsKwargs],
    ) -> None:
        self.function = handler
        self.bootstrap = bootstrap
        self._handler = Handler(handler, payload=payload, decoder=decoder, serializer=serializer)
        options["retries"] = as_retry(options.get("retries", NO_RETRY))
        self.options = Options(
            [topics] if isinstance(topics, str) else check_topics(topics),
            group,
            **options,  # type: ignore[arg-type]  # Its retries are no longer a number.
        )
        check(self.options, self._handler)
        self._engine: Engine | QueueEngine | None = None
        self._thread: Thread | None = None
        self._failure: BaseException | None = None
        self.__name__ = self._handler.name
        self.__doc__ = handler.__doc__ or type(self).__doc__

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.function(*arguments, **keywords)

    @property
    def stats(self) -> Stats:
        """Counts since the last start."""
        return self._engine.stats if self._engine else Stats()

    def run(self, bootstrap: str | None = None, *, until_idle_s: float | None = None) -> None:
        """Work until SIGTERM, SIGINT, `stop` or a failure; with `until_idle_s`, until no record came for that long.

        Stops gracefully: running handlers finish, offsets are committed, the worker leaves the group. Signals are
        handled only on the main thread.
        """
        engine = self._make_engine(bootstrap)
        with _stopping_on_signals(engine.stop):
            engine.run(until_idle_s)

    def start(self, bootstrap: str | None = None) -> Worker:
        """Work on a background thread until `stop`."""
        engine = self._make_engine(bootstrap)
        self._failure = None

        def work() -> None:
            try:
                engine.run()
            except BaseException as error:
                LOG.error("the worker %s has ended: %s", self.__name__, error_name(error))
                self._failure = error

        self._thread = Thread(target=work, name=f"millpond-worker-{self.__name__}", daemon=True)
        self._thread.start()
        return self

    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def stop(self, timeout_s: float = JOIN_SECONDS) -> None:
        """Stop gracefully. After `start` this waits and raises the worker's failure, except inside a handler."""
        if self._engine is not None:
            self._engine.stop()
        if self._engine is not None and self._engine.is_inside():
            return  # A handler cannot wait for the end of its own run.
        thread, self._thread = self._thread, None
        if thread is not None and thread is not current_thread():
            thread.join(timeout_s)
            if thread.is_alive():
                raise Timeout(f"the worker still runs after {timeout_s:g} s: a handler does not return")
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def __enter__(self) -> Worker:
        return self.start()

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def _make_engine(self, bootstrap: str | None) -> Engine | QueueEngine:
        if _is_importing:
            raise ConfigError(
                f"importing the module runs {self.__name__}: put `{self.__name__}.run()` under "
                '`if __name__ == "__main__":`'
            )
        if self.is_running():
            raise ConfigError("this worker is already running: create another one")
        if self.options.mode == "queue":
            from millpond.client.queue_engine import QueueEngine

            self._engine = QueueEngine(self.options, self._handler, bootstrap or self.bootstrap)
        else:
            self._engine = Engine(self.options, self._handler, bootstrap or self.bootstrap)
        return self._engine


@named_arguments("worker", WorkerKwargs.__annotations__)
def worker(
    topics: str | Sequence[str], *, group: str, **options: Unpack[WorkerKwargs]
) -> Callable[[Callable[..., Any]], Worker]:
    """Turn the function below into a worker: `@worker("orders", group="billing", dead_letters="orders.dlq")`."""
    return lambda handler: Worker(handler, topics, group=group, **options)


@contextmanager
def importing_for_workers() -> Iterator[None]:
    """While a module is imported to find its workers, none of them may run: the import would never return."""
    global _is_importing
    _is_importing = True
    try:
        yield
    finally:
        _is_importing = False


def run_workers(*workers: Worker, bootstrap: str | None = None) -> None:
    """Run several workers in one process until a signal. If one fails, all stop and its failure is raised."""
    ended = Event()
    with _stopping_on_signals(ended.set):
        for each in workers:
            each.start(bootstrap)
        while not ended.wait(0.1) and all(each.is_running() for each in workers):
            pass
        failures: list[BaseException] = []
        for each in workers:
            try:
                each.stop()
            except BaseException as failure:
                failures.append(failure)
        if failures:
            raise failures[0]


@contextmanager
def _stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call `stop`; a second SIGINT raises KeyboardInterrupt as usual."""
    if current_thread() is not main_thread():
        yield
        return

    def on_signal(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
