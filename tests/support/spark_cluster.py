"""A standalone Spark cluster on loopback, from the files of the pip package: a master and a worker of two cores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from support.node import HOST, free_port
from support.spark_child import QUICK_START

START_SECONDS_MAX = 150.0
STOP_SECONDS_MAX = 60.0
CORES = 2
MEMORY = "1200m"
EXECUTOR = {"spark.executor.memory": "512m", "spark.executor.cores": str(CORES), "spark.cores.max": str(CORES)}
"""What a job requests to get one executor with all resources."""


class SparkCluster:
    """Starts on entry; on exit both processes end, and the executors with the worker."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root = root
        self._port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        return f"spark://{HOST}:{self._port}"

    def __enter__(self) -> SparkCluster:
        try:
            self._start("master.Master", "--port", str(self._port), ready="I have been elected leader")
            room = ("--cores", str(CORES), "--memory", MEMORY, "--work-dir", str(self._root / "work"))
            self._start("worker.Worker", *room, self.master, ready="Successfully registered with master")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def executors(self) -> int:
        """How many executors the worker has been asked to launch so far."""
        return self._log_path("worker.Worker").read_text(errors="replace").count("Asked to launch executor")

    def stop(self) -> None:
        # The worker first: it ends its executors.
        while self._processes:
            process = self._processes.pop()
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _log_path(self, program: str) -> Path:
        return self._root / f"{program}.txt"

    def _start(self, program: str, *words: str, ready: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        with self._log_path(program).open("wb") as log:
            process = subprocess.Popen(
                [
                    str(home / "bin" / "spark-class"),
                    f"org.apache.spark.deploy.{program}",
                    *("--host", HOST, "--webui-port", str(free_port())),
                    *words,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={
                    **os.environ,
                    **QUICK_START,
                    "SPARK_HOME": str(home),
                    "SPARK_LOCAL_IP": HOST,
                    "SPARK_DAEMON_MEMORY": "256m",
                    "PYSPARK_PYTHON": sys.executable,
                },
            )
        self._processes.append(process)
        deadline = time.monotonic() + START_SECONDS_MAX
        while ready not in self._log_path(program).read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > deadline:
                told = self._log_path(program).read_text(errors="replace")[-2000:]
                raise AssertionError(f"Spark's {program} was not ready: {told}")
            time.sleep(0.1)
