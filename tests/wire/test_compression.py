"""Each codec against the encoders and decoders of others, and against data that wants too much memory."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib
from contextlib import suppress

import cramjam
import pytest
from aiokafka import codec as aiokafka_codec
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import ErrorCode, MalformedMessage, Refused, RemoteError
from millpond.wire.compression import (
    CODEC_BY_NAME,
    CODEC_NAMES,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    compress,
    decompress,
)

CODECS = [NONE, GZIP, SNAPPY, LZ4, ZSTD]
COMPRESSED = CODECS[1:]
SAMPLE = b"".join(b"record %d of a batch that repeats itself; " % number for number in range(3000))

OTHER_ENCODERS = {
    GZIP: aiokafka_codec.gzip_encode,
    SNAPPY: aiokafka_codec.snappy_encode,
    LZ4: aiokafka_codec.lz4_encode,
    ZSTD: aiokafka_codec.zstd_encode,
}
OTHER_DECODERS = {
    GZIP: gzip.decompress,
    SNAPPY: aiokafka_codec.snappy_decode,
    LZ4: aiokafka_codec.lz4_decode,
    ZSTD: aiokafka_codec.zstd_decode,
}


def test_codes_are_those_of_the_protocol() -> None:
    assert CODEC_NAMES == ("none", "gzip", "snappy", "lz4", "zstd")
    assert [CODEC_BY_NAME[name] for name in CODEC_NAMES] == CODECS


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=400), repeats=st.integers(1, 300))
def test_what_goes_in_comes_out_at_exactly_its_size(codec: int, data: bytes, repeats: int) -> None:
    data *= repeats
    packed = compress(codec, memoryview(data))
    assert decompress(codec, memoryview(packed), len(data)) == data
    if data:
        with pytest.raises(Refused) as caught:
            decompress(codec, packed, len(data) - 1)
        assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("data", [b"x", SAMPLE], ids=["one", "sample"])
def test_others_understand_us_and_we_them(codec: int, data: bytes) -> None:
    assert bytes(OTHER_DECODERS[codec](compress(codec, data))) == data
    assert decompress(codec, bytes(OTHER_ENCODERS[codec](data)), 1 << 20) == data
    if len(data) > 1:
        assert len(compress(codec, data)) < len(data) / 3


def test_lz4_frames_are_such_as_java_reads() -> None:
    flags = compress(LZ4, SAMPLE)[4]
    assert flags >> 6 == 1, "version"
    assert flags & 0x20, "independent blocks"
    assert not flags & 0x04, "no content checksum"
    assert not flags & 0x03, "no dictionary, reserved bit clear"


def test_lz4_frames_with_linked_blocks_and_checksum_are_read() -> None:
    packer = cramjam.lz4.Compressor(level=4, content_checksum=True, block_linked=True)
    packer.compress(SAMPLE)
    assert decompress(LZ4, bytes(packer.finish()), 1 << 20) == SAMPLE


def test_snappy_is_written_in_xerial_blocks_and_read_with_or_without_them() -> None:
    packed = compress(SNAPPY, SAMPLE)
    assert packed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    (length,) = struct.unpack_from(">i", packed, 16)
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + length])) == SAMPLE[: 32 << 10]
    assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(SAMPLE)), 1 << 20) == SAMPLE


def test_gzip_members_are_read_as_one_stream() -> None:
    assert decompress(GZIP, gzip.compress(b"one") + gzip.compress(b"two"), 6) == b"onetwo"
    with pytest.raises(Refused):
        decompress(GZIP, gzip.compress(b"one") + gzip.compress(b"two"), 5)


def test_very_many_gzip_members_are_refused_before_each_is_read() -> None:
    """Each takes twenty bytes, and would cost a copy of all the others."""
    with pytest.raises(MalformedMessage, match="more than 16 streams"):
        decompress(GZIP, gzip.compress(b"") * 50_000, 1 << 20)


def test_very_many_snappy_blocks_are_refused_before_each_is_read() -> None:
    block = b"\0\0\0\1" + b"\0"
    head = compress(SNAPPY, b"")
    assert decompress(SNAPPY, head + block * 1000, 100) == b""
    with pytest.raises(MalformedMessage, match="more than 1000 blocks"):
        decompress(SNAPPY, head + block * 1001, 100)


def test_zstd_frames_without_a_content_size_and_in_sequence_are_read() -> None:
    packer = cramjam.zstd.Compressor(level=1)
    packer.compress(SAMPLE)
    unsized = bytes(packer.finish())
    sized = compress(ZSTD, SAMPLE)
    assert decompress(ZSTD, unsized + sized + unsized, 1 << 20) == SAMPLE * 3


def bomb(codec: int) -> bytes:
    zeros = bytes(64 << 20)
    if codec == SNAPPY:
        return compress(codec, zeros)
    if codec == GZIP:
        return zlib.compress(zeros, 9, wbits=31)
    return compress(codec, zeros)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_meets_the_limit_before_the_memory(codec: int) -> None:
    packed = bomb(codec)
    tracemalloc.start()
    try:
        with pytest.raises(Refused):
            decompress(codec, packed, 1 << 20)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 << 20


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (SNAPPY, b"\xff\xff\xff\x7f" + b"x" * 20),  # a bare block that announces 256 MiB
        (ZSTD, b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 1 << 30) + bytes(20)),  # a frame that announces 1 GiB
    ],
)
def test_an_announced_size_buys_no_memory(codec: int, data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage):
            decompress(codec, data, 2 << 30)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 6 << 20


def test_unknown_codecs_are_refused() -> None:
    with pytest.raises(Refused) as caught:
        decompress(5, b"", 1)
    assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    with pytest.raises(ValueError, match="no codec 5"):
        compress(5, b"")


@pytest.mark.parametrize("codec", COMPRESSED)
def test_cut_off_data_is_malformed(codec: int) -> None:
    packed = compress(codec, SAMPLE)
    for kept in (0, 1, 3, 7, 15, 17, 19, 25, len(packed) // 2, len(packed) - 1):
        with pytest.raises(MalformedMessage):
            decompress(codec, packed[:kept], 1 << 20)


@pytest.mark.parametrize("codec", COMPRESSED)
@given(data=st.data())
def test_mutated_data_only_ever_blames_the_sender(codec: int, data: st.DataObject) -> None:
    packed = bytearray(compress(codec, SAMPLE[:2000]))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RemoteError, Refused):
        assert len(decompress(codec, packed, 4000)) <= 4000


@pytest.mark.parametrize("codec", COMPRESSED)
@given(data=st.binary(max_size=200))
def test_random_bytes_only_ever_blame_the_sender(codec: int, data: bytes) -> None:
    with suppress(RemoteError, Refused):
        assert len(decompress(codec, data, 4000)) <= 4000
