"""A stream of frames, cut anywhere, comes out as the frames that went in."""

from __future__ import annotations

import struct
import time
import weakref
from contextlib import suppress
from errno import ENOMEM
from mmap import mmap

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millpond.base.errors import MalformedMessage
from millpond.wire import frames
from millpond.wire.frames import FrameReader, SpareRoom
from support.cpu import TRIES, slowness

SCRATCH_BYTES = 64


def prefixed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def reader(frame_bytes_max: int = 1 << 20) -> FrameReader:
    return FrameReader(memoryview(bytearray(SCRATCH_BYTES)), frame_bytes_max, SpareRoom(1 << 20))


def feed(target: FrameReader, data: bytes, chunk_sizes: list[int] | None = None) -> list[bytes]:
    """Write `data` as a socket would: at most as much as there is room for, in chunks of the sizes given."""
    sizes = iter(chunk_sizes or [])
    received: list[bytes] = []
    while data:
        room = target.buffer()
        assert len(room) > 0
        count = min(len(room), len(data), next(sizes, len(data)))
        room[:count] = data[:count]
        data = data[count:]
        for frame in target.advance(count):
            assert not frame.readonly
            received.append(bytes(frame))
    return received


@given(st.lists(st.binary(max_size=200), max_size=12), st.lists(st.integers(1, 90), max_size=40))
@example([b"", b"", b""], [1, 1, 1, 1, 5])
@example([b"a" * 60, b"b" * 61, b"c" * 64], [])
def test_any_chunking_gives_the_same_frames(bodies: list[bytes], chunk_sizes: list[int]) -> None:
    target = reader()
    assert feed(target, b"".join(map(prefixed, bodies)), chunk_sizes) == bodies
    assert target.is_idle


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 80)), max_size=60), st.data())
def test_connections_share_one_scratch(turns: list[tuple[int, int]], data: st.DataObject) -> None:
    scratch = memoryview(bytearray(SCRATCH_BYTES))
    bodies = [data.draw(st.lists(st.binary(max_size=100), max_size=6)) for _ in range(3)]
    streams = [b"".join(map(prefixed, each)) for each in bodies]
    spare_room = SpareRoom(1 << 20)
    readers = [FrameReader(scratch, 1 << 20, spare_room) for _ in range(3)]
    received: list[list[bytes]] = [[], [], []]
    rest = [(turn, 1 << 20) for turn in range(3)] * 200
    for turn, size in turns + rest:
        if streams[turn]:
            count = min(size, len(streams[turn]), len(readers[turn].buffer()))
            received[turn] += feed(readers[turn], streams[turn][:count])
            streams[turn] = streams[turn][count:]
    assert received == bodies


def test_small_frames_are_not_copied() -> None:
    scratch = memoryview(bytearray(SCRATCH_BYTES))
    target = FrameReader(scratch, 100, SpareRoom(1 << 20))
    data = prefixed(b"one") + prefixed(b"two")
    target.buffer()[: len(data)] = data
    first, second = target.advance(len(data))
    second[0] = ord("T")
    assert (bytes(first), bytes(second)) == (b"one", b"Two")
    assert bytes(scratch[11:14]) == b"Two"


def test_a_large_frame_is_received_into_its_own_buffer() -> None:
    target = reader()
    assert feed(target, prefixed(b"x" * 500)[:SCRATCH_BYTES]) == []
    assert not target.is_idle
    assert len(target.buffer()) == 504 - SCRATCH_BYTES
    # Nothing beyond the frame's end is taken in, so the next frame starts in the scratch again.
    assert feed(target, b"x" * (504 - SCRATCH_BYTES)) == [b"x" * 500]
    assert len(target.buffer()) == SCRATCH_BYTES


def test_a_huge_frame_gets_its_room_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_ROOM_BYTES_FIRST", 100)
    target = reader()
    body = bytes(range(256)) * 40
    assert feed(target, prefixed(body)[:4]) == []
    assert len(target.buffer()) == 100
    assert feed(target, body[:100]) == []
    assert len(target.buffer()) == 300
    assert feed(target, body[100:]) == [body]
    assert target.is_idle


@pytest.mark.parametrize("length", [-1, -(1 << 31), 101, (1 << 31) - 1])
def test_a_forbidden_length_is_refused_at_once(length: int) -> None:
    target = reader(frame_bytes_max=100)
    with pytest.raises(MalformedMessage):
        feed(target, struct.pack(">i", length))


def test_the_limit_may_change_while_running() -> None:
    target = reader(frame_bytes_max=10)
    assert feed(target, prefixed(b"x" * 10)) == [b"x" * 10]
    target.frame_bytes_max = 20
    assert feed(target, prefixed(b"x" * 20)) == [b"x" * 20]
    target.frame_bytes_max = 10
    with pytest.raises(MalformedMessage):
        feed(target, prefixed(b"x" * 11))


@given(st.binary(max_size=300))
def test_any_bytes_give_frames_or_blame_the_sender(data: bytes) -> None:
    with suppress(MalformedMessage):
        for frame in feed(reader(frame_bytes_max=100), data):
            assert len(frame) <= 100


def large(target: FrameReader, body: bytes) -> memoryview:
    """The view of a frame that did not arrive in one piece."""
    data = prefixed(body)
    target.buffer()[:SCRATCH_BYTES] = data[:SCRATCH_BYTES]
    assert target.advance(SCRATCH_BYTES) == []
    data = data[SCRATCH_BYTES:]
    while True:
        room = target.buffer()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        if frames_now := target.advance(count):
            return frames_now[0]


def test_the_buffer_of_a_released_frame_is_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_ROOM_BYTES_FIRST", 100)
    target = reader()
    first = large(target, b"a" * 500)
    second = large(target, b"b" * 500)
    assert first == b"a" * 500, "somebody still has it"
    assert second.obj is not first.obj
    room = first.obj
    part = first[10:20]
    del first
    assert large(target, b"c" * 400).obj is not room, "nor while there is a view of a part of it"
    del part
    third = large(target, b"d" * 300)
    assert third == b"d" * 300
    assert third.obj is room
    del third
    # A small one does not take it, nor one that is larger than all there is.
    assert large(target, b"e" * 90).obj is not room
    assert large(target, b"f" * (300 << 10)) == b"f" * (300 << 10)


def test_spare_buffers_are_limited() -> None:
    spare_room = SpareRoom(200 << 10)
    rooms = [bytearray(90 << 10) for _ in range(3)]
    for room in rooms:
        spare_room.keep(room)
    spare_room.keep(bytearray(201 << 10))
    assert spare_room.take(100 << 10) is None
    assert [spare_room.take(1), spare_room.take(1), spare_room.take(1)] == [rooms[1], rooms[2], None]
    assert spare_room.take(1) is None


def test_a_large_frame_is_mapped_once_and_never_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_ROOM_BYTES_FIRST", 100)
    monkeypatch.setattr(frames, "MAPPED_FROM_BYTES", 1_000)
    target = reader()
    body = bytes(range(256)) * 200
    at = SCRATCH_BYTES - 4
    assert feed(target, prefixed(body)[:SCRATCH_BYTES]) == []
    rooms = []
    held = []
    received: list[bytes] = []
    while not received:
        rooms.append(target.buffer().obj)
        held.append(target.held_bytes)
        received = feed(target, body[at : at + 50])
        at += 50
    assert received == [body]
    mapped = [room for room in rooms if isinstance(room, mmap)]
    assert len(mapped) > 900, "all but its beginning"
    assert len({id(room) for room in mapped}) == 1
    assert max(now for now, arrived in zip(held, range(60, at, 50), strict=True) if arrived < 500) <= 2_000
    assert held == sorted(held)
    assert held[-1] == len(body), "what has yet to arrive is not held"


def test_mapped_room_is_reused_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAPPED_FROM_BYTES", 300 << 10)
    target = FrameReader(memoryview(bytearray(SCRATCH_BYTES)), 1 << 20, SpareRoom(8 << 20))
    body = bytes(range(256)) * (3 << 10)
    first = large(target, body)
    room = first.obj
    assert isinstance(room, mmap)
    assert large(target, body).obj is not room, "somebody still has it"
    part = first[5:9]
    del first
    assert large(target, body).obj is not room, "nor while there is a view of a part of it"
    del part
    again = large(target, body)
    assert again == body
    assert again.obj is room
    del again
    reference = weakref.ref(room)
    del room
    target._spare_room._spares.clear()
    assert reference() is None


def test_a_system_that_promises_no_memory_gives_it_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> mmap:
        raise OSError(ENOMEM, "planted")

    monkeypatch.setattr(frames, "MAPPED_FROM_BYTES", 300 << 10)
    monkeypatch.setattr(frames, "mmap", type("Refusing", (mmap,), {"__new__": refuse}))
    body = bytes(range(256)) * (3 << 10)
    assert large(reader(), body) == body


def test_room_for_the_largest_frame_takes_no_long_turn() -> None:
    size, chunk = 96 << 20, bytes(256 << 10)

    def longest_seconds() -> float:
        target = FrameReader(memoryview(bytearray(SCRATCH_BYTES)), size, SpareRoom(0))
        assert feed(target, struct.pack(">i", size)) == []
        arrived, longest = 0, 0.0
        while arrived < size:
            began = time.thread_time()
            room = target.buffer()
            longest = max(longest, time.thread_time() - began)
            count = min(len(room), len(chunk))
            # A page that is first written to costs time, too, but only for as much as one read brings.
            room[:count] = chunk[:count]
            began = time.thread_time()
            target.advance(count)
            longest = max(longest, time.thread_time() - began)
            arrived += count
        return longest

    assert min(longest_seconds() for _ in range(TRIES)) < 0.02 * slowness()
