"""The small clients of brokers that do not speak our protocol count answers however they are cut to pieces."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from bench.load_foreign import VALUE, TokenCounter
from bench.load_rabbitmq import PUBLISH_CONFIRM, Frames, frame
from bench.load_redis import command
from hypothesis import given
from hypothesis import strategies as st

ACKNOWLEDGED = b'MSG answers.1 1 26\r\n{"stream":"RACE","seq":12}\r\n'


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[first:last] for first, last in pairwise(at)]


@given(st.integers(0, 20), st.lists(st.integers(0, 1200), max_size=30))
def test_every_answer_counts_once(count: int, cuts: list[int]) -> None:
    counter = TokenCounter(b'"seq":', b'"error"')
    assert sum(counter.count(piece) for piece in pieces(ACKNOWLEDGED * count, cuts)) == count


@given(st.lists(st.integers(0, 100), max_size=8))
def test_a_refusal_is_seen_in_any_pieces(cuts: list[int]) -> None:
    counter = TokenCounter(b'"seq":', b'"error"')
    said = b'MSG answers.1 1 30\r\n{"error":{"code":503}}\r\n'
    with pytest.raises(RuntimeError, match="refused"):
        sum(counter.count(piece) for piece in pieces(ACKNOWLEDGED + said, cuts))


@given(st.lists(st.integers(1, 50), max_size=10), st.lists(st.integers(0, 600), max_size=20))
def test_frames_come_out_whole(sizes: list[int], cuts: list[int]) -> None:
    sent = [frame(PUBLISH_CONFIRM, struct.pack(">BI", 0, size) + bytes(8 * size)) for size in sizes]
    frames = Frames()
    found = [each for piece in pieces(b"".join(sent), cuts) for each in frames.take(piece)]
    assert found == sent


def test_a_command_of_redis() -> None:
    assert command("XADD", "one", "*", 7) == b"*4\r\n$4\r\nXADD\r\n$3\r\none\r\n$1\r\n*\r\n$1\r\n7\r\n"


def test_a_message_is_counted_by_a_byte_that_it_has_once() -> None:
    assert len(VALUE) == 100
    assert VALUE.count(b"\0") == 1
