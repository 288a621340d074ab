"""Values that get a hostile request further than noise would: existing names, allocated ids, limits."""

from __future__ import annotations

import gzip
import struct
from collections import deque
from functools import cache
from random import Random
from typing import Any
from uuid import UUID

from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch

KEPT_PER_FIELD = 24

INTEGER_BITS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
SMALL = (0, 0, 0, 1, 1, 2, 3, 5, 10, 100)
USUAL = {
    "timeout_ms": (0, 1, 100, 1000, 30_000),
    "session_timeout_ms": (6000, 10_000),
    "rebalance_timeout_ms": (0, 100, 1000, 10_000),
    "transaction_timeout_ms": (1000, 60_000),
    "max_wait_ms": (0, 0, 1, 5, 100),
    "min_bytes": (0, 1, 1, 1000),
    "max_bytes": (1, 1000, 1 << 20, 50 << 20),
    "partition_max_bytes": (1, 1000, 1 << 20),
    "acks": (-1, -1, 1, 1, 0),
    "replica_id": (-1, -1, -1, 1, 2),
    "replication_factor": (-1, 1, 1),
    "num_partitions": (-1, 1, 2, 3),
    "count": (1, 2, 3, 5),
    "resource_type": (2, 4, 8, 16, 32),
    "key_type": (0, 1, 2),
    "coordinator_type": (0, 1, 2),
    "config_operation": (0, 1, 2, 3),
    "partition": (0, 0, 0, 1, 2),
    "partition_index": (0, 0, 0, 1, 2),
    "index": (0, 0, 0, 1, 2),
    "partitions": (0, 0, 1, 2),
    "timestamp": (-1, -2, -3, -4, -5, 0, 1_700_000_000_000),
    "session_epoch": (-1, 0, 1),
    "member_epoch": (-2, -1, 0, 1),
    "acknowledge_types": (0, 1, 2, 3),
    "operation": (1, 2, 3, 4, 8),
    "broker_id": (1, 1, 2),
    "node_id": (1, 1, 2),
}
"""What a well-behaved client would send; half of the time a hostile one sends it too."""

TOPICS = (
    "pond",
    "pond",
    "lake",
    "__consumer_offsets",
    "__transaction_state",
    "__cluster_metadata",
    "fresh",
    "fresh2",
)
GROUPS = ("crew", "crew", "guild", "team", "none")
TEXTS: dict[str, tuple[str, ...]] = {
    "name": (*TOPICS, "range", "uniform", "retention.ms", "cleanup.policy", "segment.bytes", "metadata.version"),
    "topic": TOPICS,
    "topics": TOPICS,
    "topic_name": TOPICS,
    "topic_names": TOPICS,
    "subscribed_topic_names": TOPICS,
    "subscribed_topic_regex": ("pond", "p.*", ".*", "(a+)+$", "[", "(?=x)", "\\p{L}", "a{1,1000000}"),
    "resource_name": (*TOPICS, "1", "", "root", "crew"),
    "group_id": GROUPS,
    "group": GROUPS,
    "groups": GROUPS,
    "groups_names": GROUPS,
    "key": (*GROUPS, "txn"),
    "coordinator_keys": (*GROUPS, "txn"),
    "transactional_id": ("txn", "txn", "txn2"),
    "transactional_ids": ("txn", "txn2"),
    "protocol_type": ("consumer", "consumer", "connect", ""),
    "protocol_name": ("range", "roundrobin"),
    "server_assignor": ("uniform", "range", "none"),
    "group_instance_id": ("one", "two"),
    "instance_id": ("one", "two"),
    "mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", ""),
    "states_filter": ("Stable", "Empty", "Ongoing"),
    "types_filter": ("classic", "consumer", "share"),
    "value": ("1", "1000", "delete", "compact", "-1", "true", "9" * 30),
    "client_software_name": ("librdkafka", "kafka-python", " "),
    "client_software_version": ("2.1", "3", ""),
    "host": ("localhost", "127.0.0.1", "evil.example"),
    "config_name": ("retention.ms",),
    "feature": ("metadata.version", "kraft.version", "group.version"),
    "user": ("alice", "admin", ""),
    "principal": ("User:alice", "User:*", "User:"),
    "principal_name": ("alice", "admin"),
    "principal_type": ("User", "Group"),
    "entity_type": ("user", "client-id", "ip", "none"),
    "entity_name": ("alice", "127.0.0.1"),
    "cluster_id": ("", "other"),
}
HOSTILE_TEXTS: tuple[bytes, ...] = (
    b"",
    b".",
    b"..",
    b"../../../etc/passwd",
    b"/etc/passwd",
    b"a/b",
    b"a\0b",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    "ı\u202eé😀".encode(),
    b"%s%n{0}$(id)`id`",
    b"a" * 249,
    b"a" * 250,
    b"x" * 4096,
    b"y" * 0x7FFF,
    b"y" * 0x8000,
    b"\r\n\x1b[2J",
    b"User:ANONYMOUS",
)
CLIENT_IDS = ("fuzz", "fuzz", "fuzz", "millpond-node-1", "millpond-node-2", "", "é", "z" * 300, "a\nb")
NODE_CLIENT_IDS = ("millpond-node-1", "millpond-node-2", "millpond-node--1", "millpond-node-")

ALIASES = {
    "generation_id_or_member_epoch": "generation_id",
    "v3_and_below_transactional_id": "transactional_id",
    "v3_and_below_producer_id": "producer_id",
    "v3_and_below_producer_epoch": "producer_epoch",
    "current_leader_epoch": "leader_epoch",
    "fetch_offset": "offset",
    "committed_offset": "offset",
    "replica_epoch": "broker_epoch",
}
"""Fields that have another name in the responses they are learned from."""

WITHIN = ("request_data",)
"""Bytes that are a whole request."""

BLOBS: dict[str, tuple[bytes, ...]] = {
    "request_principal": (b"0User:root", b"0User:admin", b"1User:alice", b"0User:", b"0", b"", b"0:x", b"\xff"),
    "client_host_address": (b"\x7f\0\0\1", b"10.0.0.1", b""),
}

UUIDS = (UUID(int=0), UUID(int=1), UUID(int=(1 << 128) - 1), UUID(int=2))
NOW_MS = 1_700_000_000_000


class Pools:
    """Values to fill fields with. `learn` takes from a response what later requests may name."""

    def __init__(self, draw: Random) -> None:
        self.secrets: tuple[Any, ...] = ()
        """What no request may name, although responses do: a client that may delete topics could delete these."""
        self._draw = draw
        self._random = draw.random
        self._learnt: dict[str, deque[Any]] = {}
        self._batches = batches()
        self._blobs = blobs()
        self.frames: deque[bytes] = deque(maxlen=KEPT_PER_FIELD)
        """Requests that were sent, for fields that contain a request."""
        self.is_brief = False
        """Whether long values are unwanted."""

    def learn(self, field: str, value: Any) -> None:
        if value in self.secrets:
            return
        kept = self._learnt.get(field)
        if kept is None:
            kept = self._learnt[field] = deque(maxlen=KEPT_PER_FIELD)
        kept.append(value)

    def last(self, field: str) -> Any:
        """The last value learned under this name."""
        kept = self._learnt.get(field)
        return kept[-1] if kept else None

    def one_of(self, values: Any) -> Any:
        return values[int(self._random() * len(values))]

    def integer(self, field: str, kind: str) -> bytes:
        chance = self._random()
        value = 0
        if chance < 0.35 and field in self._learnt:
            value = self.one_of(self._learnt[field])
            if value.__class__ is not int:
                value = 0
        elif chance < 0.7 and field in USUAL:
            value = self.one_of(USUAL[field])
        elif chance < 0.8:
            value = self.one_of(SMALL)
        else:
            return self.integer_at_limit(kind)
        return fit(value, kind)

    def integer_at_limit(self, kind: str) -> bytes:
        bits = INTEGER_BITS[kind]
        top = 1 << bits
        choice = int(self._random() * 11)
        value = (0, 1, top - 1, top - 2, top >> 1, (top >> 1) - 1, (top >> 1) + 1, 1 << bits // 2, 2, 127, 128)[
            choice
        ]
        return (value % top).to_bytes(bits // 8, "big")

    def text(self, field: str) -> bytes:
        chance = self._random()
        if chance < 0.3 and field in self._learnt:
            value = self.one_of(self._learnt[field])
            if value.__class__ is str:
                return bytes(value.encode())
        if chance < 0.88:
            usual = TEXTS.get(field)
            if usual is not None:
                return bytes(self.one_of(usual).encode())
            return b"text" if chance < 0.6 else b""
        return self.hostile_text()

    def hostile_text(self) -> bytes:
        if self.is_brief:
            return b""
        # The long ones cost most and find least.
        index = int(self._random() * self._random() * len(HOSTILE_TEXTS) * 1.3)
        return HOSTILE_TEXTS[index % len(HOSTILE_TEXTS)]

    def uuid(self, field: str) -> bytes:
        chance = self._random()
        if chance < 0.75:
            for name in (field, "topic_id"):
                if name in self._learnt:
                    value = self.one_of(self._learnt[name])
                    if value.__class__ is UUID:
                        return bytes(value.bytes)
        if chance < 0.9:
            return bytes(self.one_of(UUIDS).bytes)
        return self._draw.randbytes(16)

    def blob(self, field: str) -> bytes:
        chance = self._random()
        if chance < 0.2 and field in self._learnt:
            value = self.one_of(self._learnt[field])
            if value.__class__ is bytes:
                return bytes(value)
        if chance < 0.8:
            if field in WITHIN and self.frames:
                return bytes(self.one_of(self.frames))
            return bytes(self.one_of(BLOBS.get(field) or self._blobs))
        return self._draw.randbytes(int(self._random() * 40))

    def records(self) -> bytes:
        if self.is_brief:
            return self._batches[0]
        data = self.one_of(self._batches)
        chance = self._random()
        if chance < 0.5:
            return bytes(data)
        if chance < 0.55:
            return bytes(data) + bytes(self.one_of(self._batches))
        changed = bytearray(data)
        if chance < 0.6:
            del changed[int(self._random() * len(changed)) :]
            return bytes(changed)
        for _ in range(1 + int(self._random() * 3)):
            spot = self.one_of(_BATCH_FIELDS)
            kind = spot[1]
            value = self.integer_at_limit(kind) if self._random() < 0.6 else self.integer(spot[2], kind)
            changed[spot[0] : spot[0] + len(value)] = value
        if chance < 0.9 and len(changed) >= _CRC_FROM:
            # With a correct CRC the rest is examined.
            changed[17:21] = struct.pack(">I", _crc(bytes(changed[_CRC_FROM:])))
        elif len(changed) > 70:
            changed[int(self._random() * len(changed))] ^= 1 << int(self._random() * 8)
        return bytes(changed)


_CRC_FROM = 21
_RECORDS_FROM = 61
_BATCH_FIELDS = (
    (0, "int64", "fetch_offset"),
    (8, "int32", "length"),
    (12, "int32", "leader_epoch"),
    (16, "int8", "magic"),
    (21, "int16", "attributes"),
    (23, "int32", "last_offset_delta"),
    (27, "int64", "timestamp"),
    (35, "int64", "timestamp"),
    (43, "int64", "producer_id"),
    (51, "int16", "producer_epoch"),
    (53, "int32", "base_sequence"),
    (57, "int32", "count"),
    (61, "int8", "record"),
    (62, "int8", "record"),
    (64, "int8", "record"),
)


def _crc(data: bytes) -> int:
    from crc32c import crc32c

    return int(crc32c(data))


def fit(value: int, kind: str) -> bytes:
    bits = INTEGER_BITS[kind]
    return (value % (1 << bits)).to_bytes(bits // 8, "big")


@cache
def batches() -> tuple[bytes, ...]:
    """Batches as producers send them, of every codec, and some that expand to far more than their size."""
    one = [Record(0, NOW_MS, b"k", b"value")]
    several = [Record(at, NOW_MS + at, None, b"value %d" % at, [("h", b"x")]) for at in range(5)]
    made = [encode_batch(one), encode_batch(several)]
    made += [encode_batch(several, codec=codec) for codec in (1, 2, 3, 4)]
    for pid, epoch, sequence in ((0, 0, 0), (1, 0, 0), (1000, 0, 0), (1000, 0, 5), (1, 1, 0)):
        made.append(encode_batch(one, producer_id=pid, producer_epoch=epoch, base_sequence=sequence))
        made.append(
            encode_batch(several, producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=True)
        )
    made.append(encode_batch(one, control=True, producer_id=1, producer_epoch=0, transactional=True))
    bomb = [Record(0, NOW_MS, b"k", bytes(900_000))]
    made += [encode_batch(bomb, codec=codec) for codec in (1, 2, 3, 4)]
    made += [_compressed(codec, data) for codec, data in _BOMBS]
    made += [b"", bytes(61), b"\0" * 11, b"\xff" * 80]
    # A message set of the old format, which is no longer used.
    made.append(struct.pack(">qiIbbiii", 0, 14, 0, 0, 0, -1, -1, 0))
    return tuple(made)


_BOMBS = (
    # Thousands of empty streams.
    (1, gzip.compress(b"", mtime=0) * 2_000),
    (2, b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + b"\0\0\0\1\0" * 5_000),
    (3, b"\x04\x22\x4d\x18\x60\x40\x82\0\0\0\0" * 1_000),
    (4, b"\x28\xb5\x2f\xfd\0\x58\1\0\0" * 2_000),
    # Lengths that lie.
    (2, b"\xff\xff\xff\xff\x0f\0"),
    (4, b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 8 + bytes(9)),
)
"""Codecs, and bytes that claim or cost more than they contain."""


def _compressed(codec: int, data: bytes) -> bytes:
    """A batch with these bytes as its records, valid or not."""
    batch = bytearray(encode_batch([Record(0, NOW_MS, b"k", b"v")], codec=codec))[:_RECORDS_FROM] + data
    batch[8:12] = struct.pack(">i", len(batch) - 12)
    batch[17:21] = struct.pack(">I", _crc(bytes(batch[_CRC_FROM:])))
    return bytes(batch)


@cache
def blobs() -> tuple[bytes, ...]:
    """What groups carry in bytes fields, and what they do not."""
    subscription, assignment = m.ConsumerProtocolSubscription, m.ConsumerProtocolAssignment
    told = subscription(topics=["pond"], user_data=None, owned_partitions=[])
    given = assignment(
        assigned_partitions=[assignment.TopicPartition(topic="pond", partitions=[0, 1])], user_data=None
    )
    made = [b"\0\1" + told.encode(1), b"\0\3" + told.encode(3), b"\0\0" + given.encode(0)]
    made += [b"", b"\0", b"\0\0\x7f\xff\xff\xff", b"\xff" * 20, bytes(1000)]
    made += [
        b"\0alice\0secret",
        b"\0admin\0",
        b"n,,n=alice,r=abcdefgh",
        b"c=biws,r=abc,p=AAAA",
        b"n,,\x01auth=Bearer x\x01\x01",
        b"\0bob\0secret",
        b"n,,n=bob,r=abcdefgh",
        b"n,,n=bob,r=abcdefgh,tokenauth=true",
    ]
    return tuple(made)
