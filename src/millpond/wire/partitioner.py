"""Which partition a key belongs to, as Java clients decide it."""

from __future__ import annotations

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """The 32-bit murmur2 hash with the seed that Kafka's clients use, unsigned."""
    length = len(key)
    whole = length & ~3
    value = _SEED ^ length
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        value = value * _MULTIPLIER & _MASK ^ word
    if length > whole:
        value = (value ^ int.from_bytes(key[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_for_key(key: bytes, partitions: int) -> int:
    """The default of Java clients, and ours (librdkafka calls it `murmur2`)."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
