"""A Spark session for pipelines. Checks its requirements first; an error is one line with the command that helps.

Spark's log and the output of Java and the Python workers go to a file, so that the terminal stays readable.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from millpond.spark.pipelines.reasons import reason_of
from millpond.spark.pipelines.worker_python import choose_python
from millpond.spark.versions import PYSPARK_LEAST, WrongVersion, check_packages, installed_version, numbers_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_LEAST: Final = 17
LOG_BYTES_MAX: Final = 20_000_000
"""A larger log is rotated before the next run."""

LOCAL: Final = "local[*]"


class SessionError(Exception):
    """Spark cannot be started here. The message says what to do."""


# Requirements


def check_python(version_of: Callable[[str], str | None] | None = None) -> None:
    """Check that pyspark is recent enough, and that it has the packages it needs for Arrow."""
    try:
        check_packages(version_of)
    except WrongVersion as fault:
        raise SessionError(str(fault)) from None


@dataclass(frozen=True, slots=True)
class Java:
    path: str
    version: int


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java that Spark will use: from JAVA_HOME if that is set, otherwise the first on the PATH."""
    environment = os.environ if environment is None else environment
    home = environment.get("JAVA_HOME")
    if home:
        path: str | None = shutil.which("java", path=os.path.join(home, "bin"))
        if path is None:
            raise SessionError(
                f"JAVA_HOME is {home}, but there is no bin/java in it: set it to where Java is, or unset it"
            )
    else:
        path = shutil.which("java", path=environment.get("PATH", ""))
    version = java_version(path) if path is not None else None
    if path is None or version is None:
        raise SessionError(f"Spark needs Java {JAVA_LEAST} or newer, and none was found: {install_line()}")
    if version < JAVA_LEAST:
        raise SessionError(
            f"Spark needs Java {JAVA_LEAST} or newer, and {path} is Java {version}: {install_line()}, "
            "then set JAVA_HOME to it"
        )
    return Java(path, version)


def java_version(path: str) -> int | None:
    """The major version; None if this is not a working Java (macOS has a stub of that name)."""
    release = Path(os.path.realpath(path)).parent.parent / "release"
    try:
        release_text = release.read_text(errors="replace")[:10_000]
    except OSError:
        release_text = ""
    match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release_text, re.MULTILINE)
    if match is None:
        try:
            ran = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = re.search(r'version "(?:1\.)?(\d+)', ran.stderr + ran.stdout)
    return int(match[1]) if match else None


def install_line(system: str | None = None) -> str:
    """The command that installs Java."""
    if (system or platform.system()) == "Darwin":
        return f"brew install openjdk@{JAVA_LEAST}"
    root = "" if getattr(os, "geteuid", lambda: 0)() == 0 else "sudo "
    return f"{root}apt-get install openjdk-{JAVA_LEAST}-jre-headless"


# The session


def default_settings(master: str) -> dict[str, str]:
    """The default Spark settings of pipelines."""
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # RocksDB: state outgrows the heap long before the disk, and stateful jobs with timers require it.
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        # Report the rates and lag of an idle stream every second, not every ten.
        "spark.sql.streaming.noDataProgressEventInterval": "1000",
        # All of them are fetched on every check.
        "spark.sql.streaming.numRecentProgressUpdates": "30",
    }
    if master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # 200 partitions of a small state are 200 small tasks in every batch.
            "spark.sql.shuffle.partitions": str(max(1, _cores(master))),
        }
    return settings


def _cores(master: str) -> int:
    cores = re.search(r"\[(\d+)", master)
    if cores is not None:
        return int(cores[1])
    if master == "local":
        return 1
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def make_session(
    name: str,
    master: str = "",
    conf: Mapping[str, str] | None = None,
    *,
    remote: str = "",
    folder: str | os.PathLike[str] | None = None,
    log_level: str = "ERROR",
) -> SparkSession:
    """A session with pipelines' defaults, which `conf` overrides. Spark's log is `spark.log` in `folder`, if given.

    `remote` is the address of a Spark Connect server (sc://host:15002), which needs no Java here.
    """
    check_python()
    if remote:
        return _connect(name, remote, conf or {})
    find_java()
    master = master or LOCAL
    settings = {"spark.master": master, "spark.app.name": name} | default_settings(master) | dict(conf or {})
    settings = {key: each for key, each in settings.items() if each}
    choose_python(settings, None if folder is None else Path(folder))
    if folder is None:
        return _session(settings, log_level)
    quiet_python()
    with open_log(Path(folder)) as log:
        _log_to_stderr(settings, Path(folder), log_level)
        return _session(settings, log_level, log)


def _connect(name: str, remote: str, conf: Mapping[str, str]) -> SparkSession:
    if installed_version("grpcio") is None:
        raise SessionError("Spark Connect needs grpcio: pip install 'millpond[spark]'")
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    quiet_python()
    builder = SparkSession.builder.remote(remote).appName(name)
    for key, each in {"spark.sql.session.timeZone": "UTC", **conf}.items():
        builder = builder.config(key, each)
    try:
        session = builder.getOrCreate()
        _ = session.version
    except PySparkException as fault:
        raise SessionError(f"{remote} does not answer as a Spark Connect server: {reason_of(fault)}") from fault
    if numbers_of(session.version) < PYSPARK_LEAST:
        least = ".".join(map(str, PYSPARK_LEAST))
        raise SessionError(f"{remote} is Spark {session.version}; pipelines need {least} or newer")
    return session


def _session(settings: Mapping[str, str], log_level: str, log: IO[bytes] | None = None) -> SparkSession:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    conf = SparkConf(loadDefaults=False)
    conf.setAll(list(settings.items()))
    output = {} if log is None else {"stdout": log, "stderr": log}
    gateway: Any = SparkContext._gateway
    try:
        if SparkContext._active_spark_context is None:
            # In its own process session Java does not get Ctrl-C from the terminal, so we can finish the batch.
            gateway = gateway or launch_gateway(  # type: ignore[no-untyped-call]
                conf, popen_kwargs={"start_new_session": True, **output}
            )
            SparkContext(conf=conf, gateway=gateway).setLogLevel(log_level)
        builder = SparkSession.builder
        for key, each in settings.items():
            builder = builder.config(key, each)
        return builder.getOrCreate()
    except (PySparkException, Py4JError) as fault:
        where = f"; Spark's own words are in {log.name}" if log is not None else ""
        raise SessionError(
            f"Spark did not start with master {settings['spark.master']}: {reason_of(fault)}{where}"
        ) from fault


# The log


def log_file(folder: Path) -> Path:
    return folder / "spark.log"


def open_log(folder: Path) -> IO[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    path = log_file(folder)
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        path.replace(path.with_suffix(".log.1"))
    return open(path, "ab")


def quiet_python() -> None:
    """pyspark prints every failed query with Java's stack trace; we report the reason instead."""
    from pyspark.logger import PySparkLogger

    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)


_LOG4J: Final = """\
rootLogger.level = {level}
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}}{{UTC}} %p %c{{1}}: %m%n%ex
"""


def _log_to_stderr(settings: dict[str, str], folder: Path, level: str) -> None:
    """Java's standard error is the log file: log4j writes to it."""
    path = folder / "log4j2.properties"
    path.write_text(_LOG4J.format(level=level.lower()))
    option = f"-Dlog4j2.configurationFile={path.resolve().as_uri()}"
    key = "spark.driver.extraJavaOptions"
    settings[key] = f"{settings[key]} {option}" if key in settings else option
