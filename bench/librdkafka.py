"""librdkafka, as bundled with confluent-kafka, without a Python call per message.

It has only what a fast producer needs. The functions and the message structure belong to the library's stable binary
interface, so no headers are needed.
"""

from __future__ import annotations

import ctypes
import glob
import os
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p

import confluent_kafka

PRODUCER = 0
COPY = 0x2
ANY_PARTITION = -1
CONFIG_OK = 0
ERROR_TEXT_BYTES = 512


class NoLibrary(Exception):
    """confluent-kafka was installed without a bundled library."""


class Message(ctypes.Structure):
    _fields_ = (
        ("err", c_int),
        ("rkt", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("private", c_void_p),
    )


def library_path() -> str:
    packages = os.path.dirname(os.path.dirname(confluent_kafka.__file__))
    found = glob.glob(os.path.join(packages, "confluent_kafka.libs", "librdkafka-*.so*"))
    if not found:
        raise NoLibrary("no librdkafka beside confluent-kafka")
    return found[0]


def _library() -> ctypes.CDLL:
    lib = ctypes.CDLL(library_path())
    signatures: dict[str, tuple[object, list[object]]] = {
        "rd_kafka_conf_new": (c_void_p, []),
        "rd_kafka_conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
        "rd_kafka_new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
        "rd_kafka_topic_new": (c_void_p, [c_void_p, c_char_p, c_void_p]),
        "rd_kafka_produce_batch": (c_int, [c_void_p, c_int32, c_int, POINTER(Message), c_int]),
        "rd_kafka_poll": (c_int, [c_void_p, c_int]),
        "rd_kafka_flush": (c_int, [c_void_p, c_int]),
        "rd_kafka_outq_len": (c_int, [c_void_p]),
        "rd_kafka_topic_destroy": (None, [c_void_p]),
        "rd_kafka_destroy": (None, [c_void_p]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class Producer:
    """Sends the same values again and again, thousands in one call, to one partition or to any."""

    def __init__(
        self, config: Mapping[str, str], topic: str, values: Sequence[bytes], count: int, partition: int = 0
    ) -> None:
        self._lib = _library()
        text = ctypes.create_string_buffer(ERROR_TEXT_BYTES)
        conf = self._lib.rd_kafka_conf_new()
        for name, setting in config.items():
            if self._lib.rd_kafka_conf_set(conf, name.encode(), setting.encode(), text, len(text)) != CONFIG_OK:
                raise ValueError(text.value.decode())
        self._handle = self._lib.rd_kafka_new(PRODUCER, conf, text, len(text))
        if not self._handle:
            raise ValueError(text.value.decode())
        self._topic = self._lib.rd_kafka_topic_new(self._handle, topic.encode(), None)
        self._partition = partition
        self._values = [ctypes.create_string_buffer(value, len(value)) for value in values]
        self._messages = (Message * count)()
        for place, each in enumerate(self._messages):
            value = self._values[place % len(self._values)]
            each.payload = ctypes.addressof(value)
            each.len = len(value)
            each.partition = partition

    def produce(self, count: int) -> int:
        """Queue up to `count` messages; the number that fit."""
        accepted: int = self._lib.rd_kafka_produce_batch(self._topic, self._partition, COPY, self._messages, count)
        return accepted

    def poll(self, timeout_ms: int) -> None:
        self._lib.rd_kafka_poll(self._handle, timeout_ms)

    def flush(self, timeout_ms: int) -> None:
        """Wait until all queued messages are acknowledged."""
        if self._lib.rd_kafka_flush(self._handle, timeout_ms):
            raise TimeoutError(f"{self._lib.rd_kafka_outq_len(self._handle)} messages are not acknowledged")

    def close(self) -> None:
        self._lib.rd_kafka_topic_destroy(self._topic)
        self._lib.rd_kafka_destroy(self._handle)
