"""Spark's own SQL parser, in a separate JVM: it starts no session, so it is ready within two seconds."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.jars import NoJars, java_command

_OPENS = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
    "java.util.concurrent", "sun.nio.ch",
)  # fmt: skip


class SparkParser:
    def __init__(self, gateway: Any) -> None:
        # The way Scala stores an object.
        self._parser = getattr(
            getattr(gateway.jvm.org.apache.spark.sql.catalyst.parser, "CatalystSqlParser$"), "MODULE$"
        )

    def fault_of_query(self, text: str) -> str | None:
        return self._fault(self._parser.parsePlan, text)

    def fault_of_expression(self, text: str) -> str | None:
        return self._fault(self._parser.parseExpression, text)

    def _fault(self, parse: Any, text: str) -> str | None:
        from py4j.protocol import Py4JJavaError

        try:
            parse(text)
        except Py4JJavaError as fault:
            return str(fault.java_exception.getMessage()).strip().partition("\n")[0]
        return None


@contextmanager
def spark_parser() -> Iterator[SparkParser]:
    pyspark = pytest.importorskip("pyspark", reason="pip install 'millpond[spark]'")
    from py4j.java_gateway import GatewayParameters, JavaGateway

    try:
        java = java_command()
    except NoJars as reason:
        pytest.skip(str(reason))
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    words = [java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    words += [f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in _OPENS]
    words += ["-cp", str(jars), "py4j.GatewayServer", "--die-on-broken-pipe", "0"]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        yield SparkParser(gateway)
        gateway.shutdown()
    finally:
        process.kill()
        process.communicate()
