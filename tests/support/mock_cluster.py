"""librdkafka's mock cluster with its controls: several brokers, leaders that move, brokers that go down.

confluent-kafka ships the library; the functions are those of its public mock interface.
"""

from __future__ import annotations

import ctypes
import glob
import os
from ctypes import c_char_p, c_int, c_int32, c_size_t, c_void_p
from pathlib import Path
from types import TracebackType

import confluent_kafka
import pytest

PRODUCER = 0
BROKERS = 3

_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "rd_kafka_conf_new": (c_void_p, []),
    "rd_kafka_conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "rd_kafka_new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "rd_kafka_destroy": (None, [c_void_p]),
    "rd_kafka_handle_mock_cluster": (c_void_p, [c_void_p]),
    "rd_kafka_mock_cluster_bootstraps": (c_char_p, [c_void_p]),
    "rd_kafka_mock_topic_create": (c_int, [c_void_p, c_char_p, c_int, c_int]),
    "rd_kafka_mock_partition_set_leader": (c_int, [c_void_p, c_char_p, c_int32, c_int32]),
    "rd_kafka_mock_broker_set_down": (c_int, [c_void_p, c_int32]),
    "rd_kafka_mock_broker_set_up": (c_int, [c_void_p, c_int32]),
    "rd_kafka_mock_coordinator_set": (c_int, [c_void_p, c_char_p, c_char_p, c_int32]),
}


def _library() -> ctypes.CDLL:
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    paths = glob.glob(os.path.join(folder, "librdkafka-*.so*"))
    if not paths:
        pytest.skip("confluent-kafka has no librdkafka of its own here")
    library = ctypes.CDLL(paths[0])
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class MockCluster:
    """Brokers 1 to 3; every partition has a leader and two followers."""

    def __init__(self) -> None:
        self._library = _library()
        complaint = ctypes.create_string_buffer(512)
        settings = self._library.rd_kafka_conf_new()
        for name, text in {b"test.mock.num.brokers": b"%d" % BROKERS, b"log_level": b"0"}.items():
            self._library.rd_kafka_conf_set(settings, name, text, complaint, len(complaint))
        self._holder = self._library.rd_kafka_new(PRODUCER, settings, complaint, len(complaint))
        assert self._holder, complaint.value
        self._mock = self._library.rd_kafka_handle_mock_cluster(self._holder)
        self.bootstrap: str = self._library.rd_kafka_mock_cluster_bootstraps(self._mock).decode()

    def __enter__(self) -> MockCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._library.rd_kafka_destroy(self._holder)

    def create_topic(self, name: str, leaders: list[int]) -> None:
        """A topic with one partition for each of these leaders."""
        self._check(self._library.rd_kafka_mock_topic_create(self._mock, name.encode(), len(leaders), BROKERS))
        for partition, leader in enumerate(leaders):
            self.move(name, partition, leader)

    def move(self, name: str, partition: int, leader: int) -> None:
        self._check(self._library.rd_kafka_mock_partition_set_leader(self._mock, name.encode(), partition, leader))

    def move_coordinator(self, kind: str, key: str, broker: int) -> None:
        """Kinds are group and transaction."""
        self._check(self._library.rd_kafka_mock_coordinator_set(self._mock, kind.encode(), key.encode(), broker))

    def down(self, broker: int) -> None:
        """Close its connections and refuse new ones."""
        self._check(self._library.rd_kafka_mock_broker_set_down(self._mock, broker))

    def up(self, broker: int) -> None:
        self._check(self._library.rd_kafka_mock_broker_set_up(self._mock, broker))

    def _check(self, code: int) -> None:
        assert code == 0, f"the mock cluster refuses: {code}"
