"""The five codecs of a record batch, by code and by name, with a size limit for decompression.

Snappy uses the xerial framing that Java clients write; bare snappy blocks are accepted too. LZ4 frames are written
with independent blocks and without a content checksum, because Java's decoder rejects anything else.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Final

import cramjam

from millpond.base.errors import ErrorCode, MalformedMessage, Refused
from millpond.base.ports import Buffer

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
CODEC_BY_NAME = {name: code for code, name in enumerate(CODEC_NAMES)}

GZIP_LEVEL = 6
LZ4_LEVEL = 1
ZSTD_LEVEL = 3

_FIRST_GUESS_BYTES_MIN = 64 << 10
_TRUSTED_BYTES_MAX = 4 << 20
_GUESS_GROWTH = 4

_GZIP_MEMBERS_MAX = 16
"""A stream can have several, though no client writes more than one; each costs a copy of all that follows it."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEAD = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 << 10
_XERIAL_BLOCK_BYTES_MIN = 8 << 10
_XERIAL_SHORT_BLOCKS_MAX = 1000
"""The limit for blocks shorter than usual. Each block costs ten microseconds, however short."""

_BLOCK_LENGTH = struct.Struct(">i")

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def compress(codec: int, data: Buffer) -> bytes:
    """`data` as the records section of a batch with this codec."""
    match codec:
        case 0:
            return bytes(data)
        case 1:
            return zlib.compress(data, GZIP_LEVEL, wbits=31)
        case 2:
            return _snappy_compress(data)
        case 3:
            packer = cramjam.lz4.Compressor(level=LZ4_LEVEL, content_checksum=False, block_linked=False)
            packer.compress(bytes(data))
            return bytes(packer.finish())
        case 4:
            return bytes(cramjam.zstd.compress(data, level=ZSTD_LEVEL))
    raise ValueError(f"no codec {codec}")


def decompress(codec: int, data: Buffer, limit_bytes: int) -> bytes:
    """The decompressed records; more than `limit_bytes` are refused before memory is allocated."""
    match codec:
        case 0:
            if len(data) > limit_bytes:
                raise _too_large(limit_bytes)
            return bytes(data)
        case 1:
            return _gzip_decompress(data, limit_bytes)
        case 2:
            return _snappy_decompress(data, limit_bytes)
        case 3:
            return _guess_and_grow(cramjam.lz4.decompress_into, data, None, limit_bytes)
        case 4:
            return _guess_and_grow(cramjam.zstd.decompress_into, data, _zstd_content_bytes(data), limit_bytes)
    raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {codec}")


def _too_large(limit_bytes: int) -> Refused:
    return Refused(ErrorCode.MESSAGE_TOO_LARGE, f"the batch decompresses to more than {limit_bytes} bytes")


def _gzip_decompress(data: Buffer, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    room = limit_bytes
    rest: Buffer = data
    for _ in range(_GZIP_MEMBERS_MAX):
        # Java reads concatenated members as one stream, so we do too.
        member = zlib.decompressobj(wbits=31)
        try:
            # One byte more than allowed distinguishes "exactly full" from "too much"; 0 would mean no limit.
            part = member.decompress(rest, room + 1)
        except zlib.error as error:
            raise MalformedMessage(f"gzip: {error}") from None
        if len(part) > room:
            raise _too_large(limit_bytes)
        if not member.eof:
            raise MalformedMessage("gzip: the stream ends early")
        parts.append(part)
        room -= len(part)
        rest = member.unused_data
        if not rest:
            return parts[0] if len(parts) == 1 else b"".join(parts)
    raise MalformedMessage(f"gzip: more than {_GZIP_MEMBERS_MAX} streams in one")


def _snappy_compress(data: Buffer) -> bytes:
    parts = [_XERIAL_HEAD]
    with memoryview(data) as view:
        for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
            block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
            parts += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _snappy_decompress(data: Buffer, limit_bytes: int) -> bytes:
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return bytes(_snappy_block(view, limit_bytes, limit_bytes))
    parts: list[bytearray] = []
    room = limit_bytes
    blocks_max = _XERIAL_SHORT_BLOCKS_MAX + limit_bytes // _XERIAL_BLOCK_BYTES_MIN
    at = len(_XERIAL_HEAD)
    while at < len(view):
        if len(view) - at < _BLOCK_LENGTH.size:
            raise MalformedMessage("snappy: a block length is cut off")
        (length,) = _BLOCK_LENGTH.unpack_from(view, at)
        at += _BLOCK_LENGTH.size
        if not 0 < length <= len(view) - at:
            raise MalformedMessage(f"snappy: a block of {length} bytes in {len(view) - at}")
        if len(parts) == blocks_max:
            raise MalformedMessage(f"snappy: more than {blocks_max} blocks")
        parts.append(_snappy_block(view[at : at + length], room, limit_bytes))
        room -= len(parts[-1])
        at += length
    if at > len(view):
        raise MalformedMessage("snappy: the stream header is cut off")
    return b"".join(parts)


def _snappy_block(block: memoryview, room: int, limit_bytes: int) -> bytearray:
    try:
        length = cramjam.snappy.decompress_raw_len(block)
        if length > room:
            raise _too_large(limit_bytes)
        # A block declares its length; no snappy copy makes more than 64 bytes of 3.
        if length > 32 * len(block):
            raise MalformedMessage(f"snappy: {len(block)} bytes cannot hold {length}")
        out = bytearray(length)
        written = cramjam.snappy.decompress_raw_into(block, out)
    except cramjam.DecompressionError as error:
        raise MalformedMessage(str(error)) from None
    if written != length:
        raise MalformedMessage(f"snappy: {length} bytes announced, {written} found")
    return out


def _guess_and_grow(
    decompress_into: Callable[[Buffer, bytearray], int], data: Buffer, announced_bytes: int | None, limit_bytes: int
) -> bytes:
    """Decompress into a fixed buffer, growing it as needed: a bomb hits the limit, not the memory."""
    guess = max(_FIRST_GUESS_BYTES_MIN, len(data) * _GUESS_GROWTH)
    if announced_bytes is not None:
        if announced_bytes > limit_bytes:
            raise _too_large(limit_bytes)
        # The declared size may be wrong, so it allows only a little more memory than the data itself does.
        guess = min(announced_bytes, max(guess, _TRUSTED_BYTES_MAX))
    size = min(guess, limit_bytes)
    while True:
        out = bytearray(size)
        try:
            written = decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if "write whole buffer" not in str(error):
                raise MalformedMessage(str(error)) from None
        else:
            with memoryview(out) as view:
                return bytes(view[:written])
        if size >= limit_bytes:
            raise _too_large(limit_bytes)
        size = min(max(size * _GUESS_GROWTH, _FIRST_GUESS_BYTES_MIN), limit_bytes)


def _zstd_content_bytes(data: Buffer) -> int | None:
    """The content size in the first frame's header; None if absent."""
    if bytes(data[:4]) != _ZSTD_MAGIC or len(data) < 18:
        return None
    descriptor = data[4]
    single_segment = descriptor & 0x20 != 0
    width = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    if width == 0:
        return None
    at = 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
    return int.from_bytes(data[at : at + width], "little") + (256 if width == 2 else 0)
