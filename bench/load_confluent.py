"""Loads by real clients: librdkafka, and confluent-kafka on top of it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench import librdkafka
from bench.load_raw import percentiles_ms
from bench.node import HOST
from bench.noise import Measured

CALL_MESSAGES = 10_000
FLUSH_SECONDS = 60
QUEUE_MESSAGES = 500_000
LATENCY_PER_SECOND = 1000
STATES = ("new", "paid", "packed", "sent", "returned")


def _acks(acks: int) -> str:
    return "all" if acks < 0 else str(acks)


def producer_config(port: int, acks: int) -> dict[str, str]:
    return {
        "bootstrap.servers": f"{HOST}:{port}",
        "acks": _acks(acks),
        "linger.ms": "5",
        "batch.num.messages": "10000",
        "queue.buffering.max.messages": str(QUEUE_MESSAGES),
        "queue.buffering.max.kbytes": "1000000",
    }


def orders(value_bytes: int, count: int) -> list[bytes]:
    """JSON values of one size, with the same fields and different contents."""
    dice = random.Random(1)
    found = []
    for _ in range(count):
        text = (
            f'{{"id":"{dice.getrandbits(64):016x}","customer":{dice.randrange(10**6)},'
            f'"state":"{dice.choice(STATES)}","total":{dice.randrange(10**5) / 100},"note":"'
        )
        filling = max(0, value_bytes - len(text) - 2)
        found.append((text + "thank you for your order " * (filling // 25 + 1)).encode()[: value_bytes - 2] + b'"}')
    return found


class ProduceLibrdkafka:
    """librdkafka fed by its own batch call: as fast as it can be driven."""

    def __init__(
        self,
        port: int,
        topic: str,
        acks: int,
        value_bytes: int,
        bytes_max: int,
        partition: int = 0,
        compression: str = "",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """With a compression the values differ, as real ones do."""
        self._value_bytes = value_bytes
        self._messages_max = bytes_max // value_bytes
        values = orders(value_bytes, CALL_MESSAGES) if compression else [b"v" * value_bytes]
        config = {**producer_config(port, acks), **(settings or {})}
        if compression:
            config["compression.type"] = compression
        self._producer = librdkafka.Producer(config, topic, values, CALL_MESSAGES, partition)
        self._producer.produce(CALL_MESSAGES)
        self._producer.flush(FLUSH_SECONDS * 1000)

    def run(self, seconds: float) -> Measured:
        producer = self._producer
        began = time.perf_counter()
        deadline = began + seconds
        messages = 0
        while time.perf_counter() < deadline and messages < self._messages_max:
            accepted = producer.produce(CALL_MESSAGES)
            messages += accepted
            if accepted < CALL_MESSAGES:
                producer.poll(5)
        producer.flush(FLUSH_SECONDS * 1000)
        took = time.perf_counter() - began
        return {"seconds": took, "messages": messages, "bytes": messages * self._value_bytes}


class ProducePython:
    """confluent-kafka in its usual style: one Python call per message."""

    def __init__(self, port: int, topic: str, acks: int, value_bytes: int) -> None:
        self._topic = topic
        self._value = b"v" * value_bytes
        self._producer = Producer(producer_config(port, acks))
        self._producer.produce(topic, self._value)
        self._producer.flush(FLUSH_SECONDS)

    def run(self, seconds: float) -> Measured:
        produce, poll, topic, value = self._producer.produce, self._producer.poll, self._topic, self._value
        began = time.perf_counter()
        deadline = began + seconds
        messages = 0
        while time.perf_counter() < deadline:
            try:
                for _ in range(1000):
                    produce(topic, value)
                    messages += 1
            except BufferError:
                poll(0.005)
            poll(0)
        left = self._producer.flush(FLUSH_SECONDS)
        took = time.perf_counter() - began
        return {"seconds": took, "messages": messages - left, "bytes": (messages - left) * len(value)}


class Consume:
    """confluent-kafka's consumer, ten thousand messages a call, from the start again in every slice."""

    def __init__(self, port: int, topic: str, messages: int, value_bytes: int) -> None:
        self._place = TopicPartition(topic, 0, 0)
        self._messages = messages
        self._value_bytes = value_bytes
        self._consumer = Consumer(
            {
                "bootstrap.servers": f"{HOST}:{port}",
                "group.id": "bench",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                # Otherwise it rests for a second whenever its own queue is full.
                "queued.min.messages": 1_000_000,
                "queued.max.messages.kbytes": 1_000_000,
                "fetch.queue.backoff.ms": 5,
            }
        )

    def run(self, seconds: float) -> Measured:
        consume = self._consumer.consume
        began = time.perf_counter()
        self._consumer.assign([self._place])
        messages = 0
        # To the end: records that were prefetched but not delivered would count as cost without messages.
        while messages < self._messages and time.perf_counter() - began < FLUSH_SECONDS:
            messages += len(consume(min(CALL_MESSAGES, self._messages - messages), 0.2))
        took = time.perf_counter() - began
        self._consumer.unassign()
        return {"seconds": took, "messages": messages, "bytes": messages * self._value_bytes}


class Latency:
    """A message per millisecond; the time until it is acknowledged, and until a consumer has it."""

    def __init__(self, port: int, topic: str, acks: int) -> None:
        servers = f"{HOST}:{port}"
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": servers, "acks": _acks(acks), "linger.ms": 0})
        self._consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False, "fetch.wait.max.ms": 500}
        )
        self._arrivals: list[int] = []
        self._answers: list[int] = []
        self._over = threading.Event()
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._producer.produce(topic, b"0")
        self._producer.flush(FLUSH_SECONDS)
        if self._consumer.poll(FLUSH_SECONDS) is None:
            raise TimeoutError("the first message did not come back")
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._listen, self._serve_answers)]
        for each in self._threads:
            each.start()

    def _listen(self) -> None:
        poll, now = self._consumer.poll, time.perf_counter_ns
        while not self._over.is_set():
            message = poll(0.2)
            if message is not None and message.error() is None:
                self._arrivals.append(now() - int(message.value() or 0))

    def _serve_answers(self) -> None:
        while not self._over.is_set():
            self._producer.poll(0.2)

    def _answered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._answers.append(time.perf_counter_ns() - int(message.value() or 0))

    def run(self, seconds: float) -> Measured:
        self._arrivals.clear()
        self._answers.clear()
        gap = 1 / LATENCY_PER_SECOND
        # The rest of a warm-up may be shorter than one message.
        count = max(int(seconds * LATENCY_PER_SECOND), 1)
        began = time.perf_counter()
        for place in range(count):
            rest = began + place * gap - time.perf_counter()
            if rest > 0:
                time.sleep(rest)
            self._producer.produce(self._topic, b"%d" % time.perf_counter_ns(), on_delivery=self._answered)
        took = time.perf_counter() - began
        waited_until = time.perf_counter() + FLUSH_SECONDS
        while min(len(self._arrivals), len(self._answers)) < count:
            if time.perf_counter() > waited_until:
                raise TimeoutError(f"{count - len(self._arrivals)} of {count} messages did not come back")
            time.sleep(0.01)
        answered = {f"answer_{name}": value for name, value in percentiles_ms(self._answers).items()}
        return {"seconds": took, "messages": count, **percentiles_ms(self._arrivals), **answered}

    def close(self) -> None:
        self._over.set()
        for each in self._threads:
            each.join()
        self._consumer.close()
