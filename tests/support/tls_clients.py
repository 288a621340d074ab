"""Real clients over TLS: each writes values to a topic and reads them back, with or without a client certificate."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from support.jars import class_path, java_command

SECONDS_MAX: Final = 90.0


class TlsClient:
    """Writes and reads with one library. `authority` is what it trusts, `own` its key and certificate."""

    def __init__(self, authority: Path, own: Path | None) -> None:
        self.authority = authority
        self.own = own

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority))
        if self.own is not None:
            context.load_cert_chain(str(self.own))
        return context

    def write_and_read(self, bootstrap: str, topic: str, values: Sequence[bytes]) -> list[bytes]:
        raise NotImplementedError


class Librdkafka(TlsClient):
    def settings(self, bootstrap: str) -> dict[str, Any]:
        names = () if self.own is None else ("ssl.certificate.location", "ssl.key.location")
        return {
            "bootstrap.servers": bootstrap,
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.authority),
            **{name: str(self.own) for name in names},
        }

    def write_and_read(self, bootstrap: str, topic: str, values: Sequence[bytes]) -> list[bytes]:
        from confluent_kafka import Consumer, Producer

        producer = Producer(self.settings(bootstrap))
        for value in values:
            producer.produce(topic, value)
        assert producer.flush(SECONDS_MAX) == 0
        consumer = Consumer({**self.settings(bootstrap), "group.id": topic, "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])
        try:
            result: list[bytes] = []
            while len(result) < len(values):
                (message,) = consumer.consume(1, SECONDS_MAX) or (None,)
                assert message is not None, "nothing came"
                assert message.error() is None, message.error()
                result.append(message.value())
            return result
        finally:
            consumer.close()


class KafkaPython(TlsClient):
    def write_and_read(self, bootstrap: str, topic: str, values: Sequence[bytes]) -> list[bytes]:
        from kafka import KafkaConsumer, KafkaProducer

        how = {"bootstrap_servers": bootstrap, "security_protocol": "SSL", "ssl_context": self.context()}
        producer = KafkaProducer(**how)
        for value in values:
            producer.send(topic, value)
        producer.flush(SECONDS_MAX)
        producer.close()
        consumer = KafkaConsumer(
            topic, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=int(SECONDS_MAX * 1000), **how
        )
        try:
            return [next(consumer).value for _ in values]
        finally:
            consumer.close()


class Aiokafka(TlsClient):
    def write_and_read(self, bootstrap: str, topic: str, values: Sequence[bytes]) -> list[bytes]:
        return asyncio.run(asyncio.wait_for(self._write_and_read(bootstrap, topic, values), SECONDS_MAX))

    async def _write_and_read(self, bootstrap: str, topic: str, values: Sequence[bytes]) -> list[bytes]:
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

        how = {"bootstrap_servers": bootstrap, "security_protocol": "SSL", "ssl_context": self.context()}
        async with AIOKafkaProducer(**how) as producer:
            for value in values:
                await producer.send_and_wait(topic, value)
        async with AIOKafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **how) as consumer:
            return [(await consumer.getone()).value for _ in values]


class JavaTools(TlsClient):
    """Kafka's own console producer and consumer."""

    def properties(self, folder: Path) -> Path:
        lines: Mapping[str, str] = {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            **({} if self.own is None else {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.own)}),
        }
        path = folder / "java.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        return path

    def write_and_read(self, bootstrap: str, topic: str, values: Sequence[bytes]) -> list[bytes]:
        config = str(self.properties(self.authority.parent))
        reach = ("--bootstrap-server", bootstrap, "--topic", topic)
        self.tool("ConsoleProducer", *reach, "--command-config", config, said=b"\n".join(values) + b"\n")
        read = self.tool(
            "ConsoleConsumer",
            *reach,
            *("--command-config", config, "--from-beginning", "--max-messages", str(len(values))),
            *("--timeout-ms", str(int(SECONDS_MAX * 1000))),
        )
        return read.splitlines()

    def tool(self, name: str, *words: str, said: bytes = b"") -> bytes:
        archives = ":".join((class_path("broker"), class_path("tools")))
        place = {"ConsoleConsumer": "consumer.ConsoleConsumer"}.get(name, name)
        command = [java_command(), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", archives]
        done = subprocess.run(
            [*command, f"org.apache.kafka.tools.{place}", *words],
            input=said,
            capture_output=True,
            check=False,
            timeout=SECONDS_MAX * 2,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:].decode(errors="replace")
        return done.stdout


CLIENTS: Final = (Librdkafka, KafkaPython, Aiokafka, JavaTools)
