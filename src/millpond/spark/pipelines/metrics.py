"""The figures of a run in Prometheus's text format, served on loopback by default."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from millpond.spark.pipelines.progress import JobFigures, Snapshot
from millpond.spark.pipelines.values import DeclarationError

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "millpond_pipeline_"
STATES: Final = ("starting", "running", "waiting", "stopping", "stopped", "finished", "failed")

_JOB: Final[tuple[tuple[str, str, str, Callable[[JobFigures], float | None]], ...]] = (
    ("input_rows_per_second", "gauge", "Rows that arrive each second.", lambda job: job.input_per_second),
    ("processed_rows_per_second", "gauge", "Rows that a batch does each second.", lambda job: job.done_per_second),
    ("lag_records", "gauge", "Records in the topics that are not through the job.", lambda job: job.lag),
    ("batch_id", "gauge", "The number of the last batch.", lambda job: job.batch),
    ("batch_seconds", "gauge", "How long the last batch took.", lambda job: _seconds(job.batch_ms)),
    ("rows_in_total", "counter", "Rows read since the start.", lambda job: job.rows_in),
    ("rows_out_total", "counter", "Rows written since the start.", lambda job: job.rows_out),
    ("bad_records_total", "counter", "Records that did not fit, since the start.", lambda job: job.bad),
    ("late_rows_total", "counter", "Rows behind the watermark, left out.", lambda job: job.late),
    ("state_rows", "gauge", "Rows in the state store.", lambda job: job.state_rows),
)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def text_of(snapshot: Snapshot) -> str:
    """All figures in Prometheus's text format."""
    return "".join(line + "\n" for line in _lines(snapshot))


def _lines(snapshot: Snapshot) -> Iterator[str]:
    whole = {"pipeline": snapshot.name}
    yield from _family("up", "gauge", "1 while the pipeline runs.")
    yield _sample("up", whole, float(snapshot.state in ("starting", "running", "waiting")))
    yield from _family("start_time_seconds", "gauge", "When it was started, in seconds since 1970.")
    yield _sample("start_time_seconds", whole, snapshot.started_ms / 1000)
    yield from _family("job_state", "gauge", "1 for the state that a job is in.")
    for job in snapshot.jobs:
        for state in STATES:
            yield _sample("job_state", _labels(snapshot, job) | {"state": state}, float(job.state == state))
    for name, kind, doc, figure in _JOB:
        samples = [(job, figure(job)) for job in snapshot.jobs]
        if any(number is not None for _, number in samples):
            yield from _family(name, kind, doc)
            for job, number in samples:
                if number is not None:
                    yield _sample(name, _labels(snapshot, job), number)
    yield from _job_figures(snapshot)
    if snapshot.dead_letters:
        yield from _family("dead_letters_total", "counter", "Records that came to a dead-letter topic.")
        for topic, count in snapshot.dead_letters.items():
            yield _sample("dead_letters_total", whole | {"topic": topic}, count)


def _job_figures(snapshot: Snapshot) -> Iterator[str]:
    samples = [
        (job, name, number)
        for job in snapshot.jobs
        for name, number in job.figures.items()
        if isinstance(number, int | float)
    ]
    if samples:
        yield from _family("figure", "gauge", "What a job tells about itself.")
        for job, name, number in samples:
            yield _sample("figure", _labels(snapshot, job) | {"name": name}, number)


def _labels(snapshot: Snapshot, job: JobFigures) -> dict[str, str]:
    return {"pipeline": snapshot.name, "job": job.name, "kind": job.kind}


def _family(name: str, kind: str, doc: str) -> tuple[str, str]:
    return f"# HELP {PREFIX}{name} {doc}", f"# TYPE {PREFIX}{name} {kind}"


def _sample(name: str, labels: dict[str, str], number: float) -> str:
    written = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items())
    return f"{PREFIX}{name}{{{written}}} {number:.15g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def read_address(text: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:9108`, `:9108` or `9108`; loopback if no host is named."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise DeclarationError(f"{text!r} is not an address for metrics; write it like 127.0.0.1:9108")
    return host.strip("[]") or "127.0.0.1", int(port)


class Metrics:
    """Serves the last snapshot at /metrics. A context manager."""

    def __init__(self, address: str) -> None:
        self.snapshot: Snapshot | None = None
        try:
            self._server = ThreadingHTTPServer(read_address(address), _handler(self))
        except OSError as fault:
            raise DeclarationError(f"metrics cannot be served at {address}: {fault.strerror}") from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    @property
    def address(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host if isinstance(host, str) else host.decode()}:{port}/metrics"

    def __enter__(self) -> Metrics:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(metrics: Metrics) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in ("/metrics", "/"):
                self.send_error(404, "the metrics are at /metrics")
                return
            body = text_of(metrics.snapshot).encode() if metrics.snapshot is not None else b""
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Do not log every scrape."""

    return Handler
