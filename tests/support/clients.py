"""Four real clients behind one interface: each writes messages to a partition and reads them back."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

SECONDS_MAX = 60.0
ACKS = ("0", "1", "all")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Sent:
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None


@dataclass(frozen=True)
class Got:
    offset: int
    timestamp: int
    timestamp_type: int
    """0: the producer's time; 1: the broker's."""
    key: bytes | None
    value: bytes | None
    headers: Headers


class Refused(Exception):
    """The broker rejected a message; `code` is the protocol's."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Client(Protocol):
    name: str
    stamps: bool
    """Whether the client lets its user choose timestamps."""

    def write(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Sent],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        bytes_max: int = 1_000_000,
    ) -> list[int] | None:
        """Write all messages and wait for them; returns their offsets if the client gets them."""
        ...

    def read(self, bootstrap: str, topic: str, count: int, *, partition: int = 0, start: int = 0) -> list[Got]:
        """`count` messages from an offset on."""
        ...


class Confluent:
    name = "confluent-kafka"
    stamps = True

    def write(self, bootstrap, topic, messages, *, partition=0, codec="none", acks="all", idempotent=False,
              bytes_max=1_000_000):  # fmt: skip
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "acks": acks,
                "enable.idempotence": idempotent,
                "message.max.bytes": bytes_max,
                "linger.ms": 2,
            }
        )
        offsets: list[int] = []
        failed: list[Any] = []

        def delivered(error, message):
            if error is not None:
                failed.append(error)
            else:
                offsets.append(message.offset())

        for each in messages:
            producer.produce(
                topic,
                value=each.value,
                key=each.key,
                partition=partition,
                headers=list(each.headers),
                timestamp=each.timestamp or 0,
                on_delivery=delivered,
            )
        assert producer.flush(SECONDS_MAX) == 0, "messages are left undelivered"
        if failed:
            raise Refused(failed[0].code(), failed[0].str())
        return None if acks == "0" else offsets

    def read(self, bootstrap, topic, count, *, partition=0, start=0):
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                "auto.offset.reset": "error",
                "check.crcs": True,
            }
        )
        consumer.assign([TopicPartition(topic, partition, start)])
        result: list[Got] = []
        while len(result) < count:
            polled = consumer.consume(count - len(result), timeout=SECONDS_MAX)
            assert polled, f"{len(result)} of {count} came"
            for each in polled:
                assert each.error() is None, each.error()
                kind, stamp = each.timestamp()
                headers = tuple(each.headers() or ())
                result.append(Got(each.offset(), stamp, kind - 1, each.key(), each.value(), headers))
        consumer.close()
        return result


class KafkaPython:
    name = "kafka-python"
    stamps = True

    def write(self, bootstrap, topic, messages, *, partition=0, codec="none", acks="all", idempotent=False,
              bytes_max=1_000_000):  # fmt: skip
        from kafka import KafkaProducer
        from kafka.errors import KafkaError

        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            max_request_size=bytes_max,
            linger_ms=2,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=each.value,
                    key=each.key,
                    headers=list(each.headers),
                    partition=partition,
                    timestamp_ms=each.timestamp,
                )
                for each in messages
            ]
            producer.flush(SECONDS_MAX)
            offsets = [future.get(SECONDS_MAX).offset for future in futures]
        except KafkaError as error:
            raise Refused(getattr(error, "errno", -1), repr(error)) from error
        finally:
            producer.close(SECONDS_MAX)
        return None if acks == "0" else offsets

    def read(self, bootstrap, topic, count, *, partition=0, start=0):
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            fetch_max_wait_ms=100,
            auto_offset_reset="none",
        )
        topic_partition = TopicPartition(topic, partition)
        consumer.assign([topic_partition])
        consumer.seek(topic_partition, start)
        result: list[Got] = []
        while len(result) < count:
            polled = consumer.poll(timeout_ms=int(SECONDS_MAX * 1000), max_records=count - len(result))
            assert polled, f"{len(result)} of {count} came"
            for each in polled[topic_partition]:
                headers = tuple((name, value) for name, value in each.headers)
                result.append(Got(each.offset, each.timestamp, each.timestamp_type, each.key, each.value, headers))
        consumer.close()
        return result


class AioKafka:
    name = "aiokafka"
    stamps = True

    def write(self, *given, **wanted):
        return asyncio.run(self._write(*given, **wanted))

    async def _write(self, bootstrap, topic, messages, *, partition=0, codec="none", acks="all", idempotent=False,
                     bytes_max=1_000_000):  # fmt: skip
        from aiokafka import AIOKafkaProducer
        from aiokafka.errors import KafkaError

        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            max_request_size=bytes_max,
            linger_ms=2,
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic,
                    value=each.value,
                    key=each.key,
                    headers=list(each.headers),
                    partition=partition,
                    timestamp_ms=each.timestamp,
                )
                for each in messages
            ]
            answers = await asyncio.wait_for(asyncio.gather(*futures), SECONDS_MAX)
        except KafkaError as error:
            raise Refused(getattr(error, "errno", -1), repr(error)) from error
        finally:
            await producer.stop()
        return None if acks == "0" else [each.offset for each in answers]

    def read(self, bootstrap, topic, count, *, partition=0, start=0):
        return asyncio.run(self._read(bootstrap, topic, count, partition, start))

    async def _read(self, bootstrap, topic, count, partition, start):
        from aiokafka import AIOKafkaConsumer, TopicPartition

        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            fetch_max_wait_ms=100,
            auto_offset_reset="none",
        )
        await consumer.start()
        try:
            topic_partition = TopicPartition(topic, partition)
            consumer.assign([topic_partition])
            consumer.seek(topic_partition, start)
            result: list[Got] = []
            while len(result) < count:
                polled = await consumer.getmany(topic_partition, timeout_ms=int(SECONDS_MAX * 1000))
                assert polled, f"{len(result)} of {count} came"
                result += [
                    Got(each.offset, each.timestamp, each.timestamp_type, each.key, each.value, tuple(each.headers))
                    for each in polled[topic_partition]
                ]
            return result[:count]
        finally:
            await consumer.stop()


class Kcat:
    """The command-line tool. It takes one set of headers a run, and treats an empty value as null."""

    name = "kcat"
    stamps = False
    KEY_END = "\x01"
    MESSAGE_END = "\x02"

    def write(self, bootstrap, topic, messages, *, partition=0, codec="none", acks="all", idempotent=False,
              bytes_max=1_000_000):  # fmt: skip
        runs: list[list[Sent]] = []
        for each in messages:
            if not runs or _kcat_run(runs[-1][0]) != _kcat_run(each):
                runs.append([])
            runs[-1].append(each)
        for run in runs:
            self._write_run(bootstrap, topic, run, partition, codec, acks, idempotent, bytes_max)

    def _write_run(self, bootstrap, topic, messages, partition, codec, acks, idempotent, bytes_max):
        options = {
            "acks": acks,
            "compression.codec": codec,
            "message.max.bytes": str(bytes_max),
            "linger.ms": "2",
            "enable.idempotence": "true" if idempotent else "false",
        }
        words = ["kcat", "-P", "-b", bootstrap, "-t", topic, "-p", str(partition), "-Z"]
        words += [word for name, value in options.items() for word in ("-X", f"{name}={value}")]
        headers, has_key = _kcat_run(messages[0])
        words += [word for name, value in headers for word in ("-H", f"{name}={value.decode()}")]
        with TemporaryDirectory() as folder:
            if len(messages) == 1 and not has_key and messages[0].value:
                # A file is one message, whatever its bytes.
                file = Path(folder) / "message"
                file.write_bytes(messages[0].value)
                self._run([*words, str(file)], b"")
                return
        words += ["-D", self.MESSAGE_END] + (["-K", self.KEY_END] if has_key else [])
        end, key_end = self.MESSAGE_END.encode(), self.KEY_END.encode()
        text = b"".join(
            (each.key + key_end if each.key is not None else b"") + (each.value or b"") + end for each in messages
        )
        self._run(words, text)

    def _run(self, words: list[str], text: bytes) -> bytes:
        done = subprocess.run(words, input=text, capture_output=True, timeout=SECONDS_MAX, check=False)
        complaint = done.stderr.decode(errors="replace")
        if "size too large" in complaint:
            raise Refused(10, complaint)
        if done.returncode:
            raise Refused(-1, complaint)
        return done.stdout

    def read(self, bootstrap, topic, count, *, partition=0, start=0):
        words = ["kcat", "-q", "-C", "-b", bootstrap, "-t", topic, "-p", str(partition), "-o", str(start)]
        words += ["-c", str(count), "-X", "fetch.wait.max.ms=100", "-f", "%o|%T|%K|%S|%h\\n%k%s\\n"]
        out = self._run(words, b"")
        result: list[Got] = []
        at = 0
        while at < len(out):
            head_end = out.index(b"\n", at)
            offset, stamp, key_bytes, value_bytes, headers = out[at:head_end].split(b"|", 4)
            key, at = _taken(out, head_end + 1, int(key_bytes))
            value, at = _taken(out, at, int(value_bytes))
            assert out[at : at + 1] == b"\n"
            at += 1
            result.append(Got(int(offset), int(stamp), -1, key, value, _kcat_headers(headers)))
        assert len(result) == count, f"{len(result)} of {count} came"
        return result


def _kcat_run(message: Sent) -> tuple[Headers, bool]:
    """What must be the same for all messages of one run of kcat."""
    return message.headers, message.key is not None


def _taken(out: bytes, at: int, count: int) -> tuple[bytes | None, int]:
    """A field of this length, -1 for null, and where it ends."""
    return (None, at) if count < 0 else (out[at : at + count], at + count)


def _kcat_headers(shown: bytes) -> Headers:
    if not shown:
        return ()
    pairs = [pair.partition(b"=") for pair in shown.split(b",")]
    return tuple((name.decode(), None if value == b"NULL" else value) for name, _, value in pairs)


CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), AioKafka(), Kcat())
HAS_KCAT = shutil.which("kcat") is not None


def clients_here() -> list[Client]:
    """The clients that are installed: all but kcat come with the test dependencies."""
    return [client for client in CLIENTS if HAS_KCAT or not isinstance(client, Kcat)]
