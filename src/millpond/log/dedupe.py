"""The latest offset of each key, in bounded memory."""

from __future__ import annotations

from hashlib import blake2b

ENTRY_BYTES = 160
"""What one entry costs: the digest, the offset, and their share of the table."""

_DIGEST_BYTES = 16


class OffsetMap:
    """Keys are held as digests; a short key is its own digest, as no digest has its length."""

    __slots__ = ("_offsets", "capacity")

    def __init__(self, bytes_max: int) -> None:
        self.capacity = max(bytes_max // ENTRY_BYTES, 1)
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def has_room_for(self, count: int) -> bool:
        return len(self._offsets) + count <= self.capacity

    def put(self, key: bytes, offset: int) -> None:
        self._offsets[_digest(key)] = offset

    def latest(self, key: bytes) -> int:
        """The latest offset of the key; -1 if it was not seen."""
        return self._offsets.get(_digest(key), -1)


def _digest(key: bytes) -> bytes:
    if len(key) < _DIGEST_BYTES:
        return key
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()
