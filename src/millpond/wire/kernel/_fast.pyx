# cython: language_level=3
"""Scans of batches and records, compiled: the twin of `plain`, with the same results and errors.

Every read goes through `_varint`, `_varlong` or a length that has been checked against the remaining bytes; nothing
else moves the pointer.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy

from millpond.wire.checksum import crc32c

from millpond.base.errors import MalformedMessage
from millpond.wire.batch import CorruptBatch
from millpond.wire.kernel.plain import ScannedBatch

cdef enum:
    RECORD_BYTES_MIN = 7
    HEADER_BYTES_MIN = 2
    AFTER_HEAD_BYTES_MIN = 3
    BATCH_HEADER_BYTES = 61
    SHORT_KEY_BYTES = 16
    WALKED_AT_ONCE = 4096
    MAGIC = 2

include "_big_endian.pxi"
include "_varints.pxi"


cdef struct Head:
    Py_ssize_t end
    int64_t timestamp_delta
    Py_ssize_t after_timestamp
    int32_t offset_delta


def scan(buffer, Py_ssize_t position, Py_ssize_t end, bint verify=False):
    """See `plain.scan`."""
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        return _scan(buffer, <const uint8_t*>view.buf, position, min(end, view.len), verify)
    finally:
        PyBuffer_Release(&view)


def decode_records(payload, int64_t count, int64_t base_offset, int64_t base_timestamp, append_time=None):
    """See `plain.decode_records`."""
    cdef Py_buffer view
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        return _decode_records(_opened(&view, count), count, base_offset, base_timestamp, append_time)
    finally:
        PyBuffer_Release(&view)


def record_keys(payload, int64_t count):
    """See `plain.record_keys`."""
    cdef Py_buffer view
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        return _record_keys(_opened(&view, count), count)
    finally:
        PyBuffer_Release(&view)


def keyless_records(payload, int64_t count, int64_t most):
    """See `plain.keyless_records`."""
    cdef Py_buffer view
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        return _keyless_records(_opened(&view, count), count, most)
    finally:
        PyBuffer_Release(&view)


def records_outside(
    payload, int64_t count, int64_t base_timestamp, int64_t oldest, int64_t newest, int64_t most
):
    """See `plain.records_outside`."""
    cdef Py_buffer view
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        return _records_outside(_opened(&view, count), count, base_timestamp, oldest, newest, most)
    finally:
        PyBuffer_Release(&view)


def first_not_older(payload, int64_t count, int64_t base_timestamp, int64_t timestamp, int64_t from_delta):
    """See `plain.first_not_older`."""
    cdef Py_buffer view
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        return _first_not_older(_opened(&view, count), count, base_timestamp, timestamp, from_delta)
    finally:
        PyBuffer_Release(&view)


def latest_record(payload, int64_t count, int64_t base_timestamp, int64_t from_delta):
    """See `plain.latest_record`."""
    cdef Py_buffer view
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        return _latest_record(_opened(&view, count), count, base_timestamp, from_delta)
    finally:
        PyBuffer_Release(&view)


def note_keys(payload, int64_t count, int64_t base_offset, dict offsets, digest):
    """See `plain.note_keys`."""
    cdef Py_buffer view
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        _check_base(base_offset)
        # A batch that cannot be read to its end yields nothing.
        _count_keyless(_opened(&view, count), count)
        _note_keys(_opened(&view, count), count, base_offset, offsets, digest)
    finally:
        PyBuffer_Release(&view)


def flag_latest(payload, int64_t count, int64_t base_offset, dict offsets, digest):
    """See `plain.flag_latest`."""
    cdef Py_buffer view
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        _check_base(base_offset)
        return _flag_latest(_opened(&view, count), count, base_offset, offsets, digest)
    finally:
        PyBuffer_Release(&view)


def flagged_records(payload, int64_t count, list flags):
    """See `plain.flagged_records`."""
    cdef Py_buffer view
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        return _flagged_records(_opened(&view, count), count, flags)
    finally:
        PyBuffer_Release(&view)


def record_spans(payload, int64_t count):
    """See `plain.record_spans`."""
    cdef Py_buffer view
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        return _record_spans(_opened(&view, count), count)
    finally:
        PyBuffer_Release(&view)


cdef list _scan(object buffer, const uint8_t* data, Py_ssize_t position, Py_ssize_t end, bint verify):
    cdef list found = []
    cdef Py_ssize_t start = position
    cdef int64_t size, base_offset, last_offset_delta, record_count
    cdef uint8_t magic
    cdef const uint8_t* header
    cdef object fault
    cdef object view = memoryview(buffer)
    if position < 0:
        raise MalformedMessage(f"position {position}")
    while end - position >= BATCH_HEADER_BYTES:
        header = data + position
        size = <int64_t>_int32(header + 8) + 12
        magic = header[16]
        base_offset = _int64(header)
        last_offset_delta = _int32(header + 23)
        record_count = _int32(header + 57)
        fault = None
        if magic != MAGIC or size < BATCH_HEADER_BYTES:
            fault = f"magic {magic} and size {size}"
        elif size > end - position:
            break
        elif base_offset < 0 or not 0 <= record_count <= last_offset_delta + 1:
            fault = f"{record_count} records in {last_offset_delta + 1} offsets"
        elif last_offset_delta < 0 or base_offset > INT64_MAX - 1 - last_offset_delta:
            fault = f"base offset {base_offset}, last offset delta {last_offset_delta}"
        elif verify:
            if <uint32_t>crc32c(view[position + 21 : position + size]) != <uint32_t>_int32(header + 17):
                fault = "the CRC does not match"
        if fault is not None:
            if position == start:
                raise CorruptBatch(f"{fault} at position {position}")
            break
        found.append(
            tuple.__new__(
                ScannedBatch,
                (
                    position,
                    size,
                    base_offset,
                    base_offset + last_offset_delta,
                    _int64(header + 35),
                    _int32(header + 12),
                    _int16(header + 21),
                    _int64(header + 43),
                    _int16(header + 51),
                    _int32(header + 53),
                    record_count,
                ),
            )
        )
        position += size
    return found


cdef list _decode_records(
    Cursor cursor, int64_t count, int64_t base_offset, int64_t base_timestamp, object append_time
):
    cdef Head head
    cdef list found = []
    cdef int32_t header_count
    cdef int64_t timestamp = 0
    cdef bint appended = append_time is not None
    cdef object key, value, headers
    if appended:
        timestamp = append_time
    head.offset_delta = -1
    for _ in range(count):
        _read_head(&cursor, &head)
        key = _nullable(&cursor, head.end)
        value = _nullable(&cursor, head.end)
        header_count = _varint(&cursor)
        if not 0 <= <int64_t>header_count * HEADER_BYTES_MIN <= head.end - cursor.at:
            raise MalformedMessage(f"{header_count} headers in {head.end - cursor.at} bytes")
        headers = _headers(&cursor, head.end, header_count) if header_count else ()
        if cursor.at != head.end:
            raise MalformedMessage(f"a record ends at {head.end}, its fields at {cursor.at}")
        if not appended:
            if _overflows(base_timestamp, head.timestamp_delta):
                raise MalformedMessage("a record's timestamp is beyond 64 bits")
            timestamp = base_timestamp + head.timestamp_delta
        if base_offset > INT64_MAX - head.offset_delta:
            raise MalformedMessage("a record's offset is beyond 64 bits")
        found.append((base_offset + head.offset_delta, timestamp, key, value, headers))
    _check_end(&cursor)
    return found


cdef list _record_keys(Cursor cursor, int64_t count):
    cdef Head head
    cdef list found = []
    cdef int32_t length
    cdef object key
    head.offset_delta = -1
    for _ in range(count):
        _read_head(&cursor, &head)
        key = _nullable(&cursor, head.end)
        length = _value_bytes(&cursor, &head)
        found.append((head.offset_delta, key, length >= 0, head.timestamp_delta))
        cursor.at = head.end
    _check_end(&cursor)
    return found


cdef int64_t _count_keyless(Cursor cursor, int64_t count) except -1:
    cdef Head head
    cdef int32_t length
    cdef int64_t found = 0
    head.offset_delta = -1
    for _ in range(count):
        _read_head(&cursor, &head)
        length = _varint(&cursor)
        if length == -1:
            found += 1
        elif not 0 <= length <= head.end - cursor.at:
            raise MalformedMessage(f"a field of {length} bytes in {head.end - cursor.at}")
        else:
            cursor.at += length
        _value_bytes(&cursor, &head)
        cursor.at = head.end
    _check_end(&cursor)
    return found


cdef list _keyless_records(Cursor cursor, int64_t count, int64_t most):
    cdef Head head
    cdef list found = []
    cdef int64_t index
    cdef int32_t length
    cdef bint is_keyless
    head.offset_delta = -1
    for index in range(count):
        _read_head(&cursor, &head)
        length = _varint(&cursor)
        is_keyless = length == -1
        if not is_keyless:
            if not 0 <= length <= head.end - cursor.at:
                raise MalformedMessage(f"a field of {length} bytes in {head.end - cursor.at}")
            cursor.at += length
        _value_bytes(&cursor, &head)
        if is_keyless:
            found.append(index)
            if len(found) >= most:
                return found
        cursor.at = head.end
        if index % WALKED_AT_ONCE == WALKED_AT_ONCE - 1:
            with nogil:
                pass
    _check_end(&cursor)
    return found


cdef list _records_outside(
    Cursor cursor, int64_t count, int64_t base_timestamp, int64_t oldest, int64_t newest, int64_t most
):
    cdef Head head
    cdef list found = []
    cdef int64_t index, timestamp
    head.offset_delta = -1
    for index in range(count):
        _read_head(&cursor, &head)
        timestamp = _timestamp(base_timestamp, head.timestamp_delta)
        if timestamp != -1 and not oldest <= timestamp <= newest:
            found.append((index, timestamp))
            if len(found) >= most:
                return found
        cursor.at = head.end
        if index % WALKED_AT_ONCE == WALKED_AT_ONCE - 1:
            with nogil:
                pass
    _check_end(&cursor)
    return found


cdef object _first_not_older(
    Cursor cursor, int64_t count, int64_t base_timestamp, int64_t timestamp, int64_t from_delta
):
    cdef Head head
    cdef int64_t index, own
    head.offset_delta = -1
    for index in range(count):
        _read_head(&cursor, &head)
        own = _timestamp(base_timestamp, head.timestamp_delta)
        if own >= timestamp and head.offset_delta >= from_delta:
            return head.offset_delta, own
        cursor.at = head.end
        if index % WALKED_AT_ONCE == WALKED_AT_ONCE - 1:
            with nogil:
                pass
    _check_end(&cursor)
    return None


cdef object _latest_record(Cursor cursor, int64_t count, int64_t base_timestamp, int64_t from_delta):
    cdef Head head
    cdef int64_t index, own
    cdef int64_t latest = 0
    cdef int32_t latest_delta = -1
    head.offset_delta = -1
    for index in range(count):
        _read_head(&cursor, &head)
        own = _timestamp(base_timestamp, head.timestamp_delta)
        if head.offset_delta >= from_delta and (latest_delta < 0 or own > latest):
            latest_delta = head.offset_delta
            latest = own
        cursor.at = head.end
        if index % WALKED_AT_ONCE == WALKED_AT_ONCE - 1:
            with nogil:
                pass
    _check_end(&cursor)
    return None if latest_delta < 0 else (latest_delta, latest)


cdef inline int64_t _timestamp(int64_t base_timestamp, int64_t delta) except? -2:
    if _overflows(base_timestamp, delta):
        raise MalformedMessage("a record's timestamp is beyond 64 bits")
    return base_timestamp + delta


cdef int _note_keys(Cursor cursor, int64_t count, int64_t base_offset, dict offsets, object digest) except -1:
    cdef Head head
    cdef object key
    cdef int64_t walked = 0
    head.offset_delta = -1
    for _ in range(count):
        _read_head(&cursor, &head)
        key = _nullable(&cursor, head.end)
        if key is not None:
            if PyBytes_GET_SIZE(key) >= SHORT_KEY_BYTES:
                key = digest(key)
            offsets[key] = base_offset + head.offset_delta
        cursor.at = head.end
        walked += 1
        if walked % WALKED_AT_ONCE == 0:
            # Let other threads have the interpreter.
            with nogil:
                pass
    return 0


cdef tuple _flag_latest(Cursor cursor, int64_t count, int64_t base_offset, dict offsets, object digest):
    cdef Head head
    cdef list flags = []
    cdef int64_t walked = 0
    cdef bint has_tombstone = False
    cdef bint is_latest
    cdef int32_t length
    cdef object key
    cdef PyObject* latest
    head.offset_delta = -1
    for _ in range(count):
        _read_head(&cursor, &head)
        key = _nullable(&cursor, head.end)
        length = _value_bytes(&cursor, &head)
        is_latest = False
        if key is not None:
            if PyBytes_GET_SIZE(key) >= SHORT_KEY_BYTES:
                key = digest(key)
            latest = PyDict_GetItemWithError(offsets, key)
            is_latest = latest == NULL or <int64_t>(<object>latest) <= base_offset + head.offset_delta
        flags.append(is_latest)
        has_tombstone = has_tombstone or (is_latest and length < 0)
        cursor.at = head.end
        walked += 1
        if walked % WALKED_AT_ONCE == 0:
            with nogil:
                pass
    _check_end(&cursor)
    return flags, has_tombstone


cdef tuple _flagged_records(Cursor cursor, int64_t count, list flags):
    cdef Cursor again = cursor
    cdef Head head
    cdef Py_ssize_t start, at
    cdef Py_ssize_t size = 0
    cdef int64_t number = 0
    cdef int64_t latest = 0
    cdef int64_t index
    cdef bytes joined
    cdef char* target
    if len(flags) != count:
        raise ValueError(f"{len(flags)} flags for {count} records")
    head.offset_delta = -1
    for index in range(count):
        start = cursor.at
        _read_head(&cursor, &head)
        if flags[index]:
            size += head.end - start
            if not number or head.timestamp_delta > latest:
                latest = head.timestamp_delta
            number += 1
        cursor.at = head.end
    _check_end(&cursor)
    joined = PyBytes_FromStringAndSize(NULL, size)
    target = PyBytes_AsString(joined)
    at = 0
    head.offset_delta = -1
    for index in range(count):
        start = again.at
        _read_head(&again, &head)
        if flags[index]:
            if head.end - start > size - at:
                raise ValueError("the flags have changed meanwhile")
            memcpy(target + at, again.start + start, head.end - start)
            at += head.end - start
        again.at = head.end
    return joined, number, latest


cdef inline int32_t _value_bytes(Cursor* cursor, Head* head) except? -2:
    """The length of the next value; -1 for null."""
    cdef int32_t length = _varint(cursor)
    if length < -1 or max(length, 0) >= head.end - cursor.at:
        raise MalformedMessage(f"a value of {length} bytes in {head.end - cursor.at}")
    return length


cdef list _record_spans(Cursor cursor, int64_t count):
    cdef Head head
    cdef list found = []
    cdef Py_ssize_t start
    head.offset_delta = -1
    for _ in range(count):
        start = cursor.at
        _read_head(&cursor, &head)
        found.append((start, head.end, head.timestamp_delta, head.after_timestamp))
        cursor.at = head.end
    _check_end(&cursor)
    return found


cdef Cursor _opened(Py_buffer* view, int64_t count) except *:
    cdef Cursor cursor
    if not 0 <= count <= view.len // RECORD_BYTES_MIN:
        raise MalformedMessage(f"{count} records in {view.len} bytes")
    cursor.start = <const uint8_t*>view.buf
    cursor.at = 0
    cursor.size = view.len
    return cursor


cdef int _check_base(int64_t base_offset) except -1:
    if base_offset > INT64_MAX - (<int64_t>1 << 31):
        raise MalformedMessage("a record's offset may be beyond 64 bits")
    return 0


cdef int _check_end(Cursor* cursor) except -1:
    if cursor.at != cursor.size:
        raise MalformedMessage(f"{cursor.size - cursor.at} bytes are left after the last record")
    return 0


cdef int _read_head(Cursor* cursor, Head* head) except -1:
    """The start of the next record. `head` still holds the previous record's offset delta."""
    cdef int32_t length = _varint(cursor)
    cdef int32_t offset_delta
    if not RECORD_BYTES_MIN - 1 <= length <= cursor.size - cursor.at:
        raise MalformedMessage(f"a record of {length} bytes in {cursor.size - cursor.at}")
    head.end = cursor.at + length
    # The attributes byte of a record is unused; the length check above ensures that it exists.
    cursor.at += 1
    head.timestamp_delta = _varlong(cursor)
    head.after_timestamp = cursor.at
    offset_delta = _varint(cursor)
    if offset_delta <= head.offset_delta:
        raise MalformedMessage(f"offset delta {offset_delta} after {head.offset_delta}")
    if head.end - cursor.at < AFTER_HEAD_BYTES_MIN:
        raise MalformedMessage(f"{head.end - cursor.at} bytes for key, value and headers")
    head.offset_delta = offset_delta
    return 0


cdef object _nullable(Cursor* cursor, Py_ssize_t end):
    cdef int32_t length = _varint(cursor)
    cdef Py_ssize_t at = cursor.at
    if length == -1:
        return None
    if not 0 <= length <= end - at:
        raise MalformedMessage(f"a field of {length} bytes in {end - at}")
    cursor.at = at + length
    return PyBytes_FromStringAndSize(<const char*>cursor.start + at, length)


cdef tuple _headers(Cursor* cursor, Py_ssize_t end, int32_t count):
    cdef list found = []
    cdef int32_t length
    cdef Py_ssize_t at
    cdef object name
    for _ in range(count):
        length = _varint(cursor)
        at = cursor.at
        if not 0 <= length <= end - at:
            raise MalformedMessage(f"a header name of {length} bytes in {end - at}")
        cursor.at = at + length
        # Clients may write any bytes: an undecodable name must not make the whole batch unreadable.
        name = PyUnicode_DecodeUTF8(<const char*>cursor.start + at, length, b"replace")
        found.append((name, _nullable(cursor, end)))
    return tuple(found)


# Produce: a request for one partition, and its response.

cdef enum:
    SHORT_BYTES_MAX = 2097152
    # Up to this size, a table is faster than calling the processor's CRC instruction through Python.
    TABLE_BYTES_MAX = 512
    FLEXIBLE_FROM = 9
    TOPIC_IDS_FROM = 13
    OLDEST = 3
    NEWEST = 13
    ZSTD = 4
    ZSTD_FROM = 7
    # Attributes: the broker's time, transactional, control, delete horizon.
    NOT_SHORT = 0x78


cdef struct Single:
    int acks
    int32_t timeout_ms
    Py_ssize_t topic
    Py_ssize_t topic_length
    int32_t partition
    Py_ssize_t begin
    Py_ssize_t end


cdef uint32_t[8][256] _CRC


cdef int _fill_table() noexcept:
    cdef uint32_t value
    cdef int number, bit
    for number in range(256):
        value = number
        for bit in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        _CRC[0][number] = value
    for number in range(256):
        for bit in range(1, 8):
            _CRC[bit][number] = (_CRC[bit - 1][number] >> 8) ^ _CRC[0][_CRC[bit - 1][number] & 0xFF]
    return 0


_fill_table()


cdef uint32_t _crc_by_table(const uint8_t* at, Py_ssize_t length) noexcept:
    """CRC-32C, eight bytes per step."""
    cdef uint32_t crc = 0xFFFFFFFF
    while length >= 8:
        crc ^= <uint32_t>at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24
        crc = (
            _CRC[7][crc & 0xFF]
            ^ _CRC[6][crc >> 8 & 0xFF]
            ^ _CRC[5][crc >> 16 & 0xFF]
            ^ _CRC[4][crc >> 24]
            ^ _CRC[3][at[4]]
            ^ _CRC[2][at[5]]
            ^ _CRC[1][at[6]]
            ^ _CRC[0][at[7]]
        )
        at += 8
        length -= 8
    while length > 0:
        crc = crc >> 8 ^ _CRC[0][(crc ^ at[0]) & 0xFF]
        at += 1
        length -= 1
    return crc ^ 0xFFFFFFFF


cdef bint _read_single(
    const uint8_t* frame, Py_ssize_t position, Py_ssize_t end, int version, Single* single
) noexcept:
    """Whether the body from `position` on is for one partition; if so, `single` has the positions of its parts."""
    if position > end:
        return False
    if version < FLEXIBLE_FROM:
        return _single_inflexible(frame, position, end, single)
    return _single_flexible(frame, position, end, version, single)


cdef bint _single_inflexible(const uint8_t* frame, Py_ssize_t position, Py_ssize_t end, Single* single) noexcept:
    cdef Py_ssize_t length, name_end, begin, size
    if end - position < 14 or _int16(frame + position) != -1 or _int32(frame + position + 8) != 1:
        return False
    length = _int16(frame + position + 12)
    name_end = position + 14 + length
    if length < 0 or end - name_end < 12 or _int32(frame + name_end) != 1:
        return False
    size = _int32(frame + name_end + 8)
    begin = name_end + 12
    if size < 0 or begin + size != end:
        return False
    single.acks = _int16(frame + position + 2)
    single.timeout_ms = _int32(frame + position + 4)
    single.topic = position + 14
    single.topic_length = length
    single.partition = _int32(frame + name_end + 4)
    single.begin = begin
    single.end = end
    return True


cdef bint _single_flexible(
    const uint8_t* frame, Py_ssize_t position, Py_ssize_t end, int version, Single* single
) noexcept:
    cdef Py_ssize_t length, begin, name_end, at
    cdef uint64_t size = 0
    cdef int shift = 0
    if end - position < 9 or frame[position] != 0 or frame[position + 7] != 2:
        return False
    begin = position + 8
    if version >= TOPIC_IDS_FROM:
        length = 16
    else:
        length = <Py_ssize_t>frame[begin] - 1
        if length < 0 or length >= 127:
            return False
        begin += 1
    name_end = begin + length
    if end - name_end < 6 or frame[name_end] != 2:
        return False
    at = name_end + 5
    while True:
        if at >= end or shift >= 35:
            return False
        size |= <uint64_t>(frame[at] & 0x7F) << shift
        at += 1
        if frame[at - 1] < 0x80:
            break
        shift += 7
    if size < 1 or <uint64_t>(end - at) != size + 2:
        return False
    if frame[end - 3] or frame[end - 2] or frame[end - 1]:
        return False
    single.acks = _int16(frame + position + 1)
    single.timeout_ms = _int32(frame + position + 3)
    single.topic = begin
    single.topic_length = length
    single.partition = _int32(frame + name_end + 1)
    single.begin = at
    single.end = end - 3
    return True


cdef class ShortProduce:
    """See `produce.ShortProduce`."""

    cdef readonly int version
    cdef readonly int32_t correlation_id
    cdef readonly object client_id
    cdef readonly int acks
    cdef readonly int32_t timeout_ms
    cdef readonly bytes key
    cdef readonly object records
    cdef readonly int32_t size
    cdef readonly int32_t record_count
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t producer_id

    def __init__(self):
        raise TypeError("`short_produce` makes them")

    def stamp(self, int64_t offset, int32_t leader_epoch):
        """See `produce.ShortProduce.stamp`."""
        cdef Py_buffer view
        PyObject_GetBuffer(self.records, &view, PyBUF_WRITABLE)
        _put_int64(<uint8_t*>view.buf, offset)
        _put_int32(<uint8_t*>view.buf + 12, leader_epoch)
        PyBuffer_Release(&view)

    def release(self):
        """See `produce.ShortProduce.release`."""
        self.records = None

    def reply(self, int64_t offset, int64_t append_time_ms, int64_t start_offset):
        """See `produce.ShortProduce.reply`."""
        cdef const uint8_t* key = <const uint8_t*>PyBytes_AsString(self.key)
        cdef Py_ssize_t topic_length = len(self.key) - 4
        cdef int version = self.version
        # Length, correlation id, counts, index, error, offset, time; then by version.
        cdef Py_ssize_t size = 4 + 4 + topic_length + 4 + 2 + 8 + 8 + 4
        cdef bytes made
        cdef uint8_t* at
        if version >= FLEXIBLE_FROM:
            # Tags of the header, both counts, start offset, errors and message, tags of partition, topic and all.
            size += 1 + 2 + 8 + 2 + 3 + (0 if version >= TOPIC_IDS_FROM else 1)
        else:
            size += 4 + 2 + 4 + (8 if version >= 5 else 0) + (6 if version >= 8 else 0)
        made = PyBytes_FromStringAndSize(NULL, size)
        at = <uint8_t*>PyBytes_AsString(made)
        at = _put_int32(at, size - 4)
        at = _put_int32(at, self.correlation_id)
        if version >= FLEXIBLE_FROM:
            at = _put_byte(at, 0)
            at = _put_byte(at, 2)
            if version < TOPIC_IDS_FROM:
                at = _put_byte(at, topic_length + 1)
        else:
            at = _put_int32(at, 1)
            at = _put_byte(at, topic_length >> 8)
            at = _put_byte(at, topic_length & 0xFF)
        memcpy(at, key, topic_length)
        at += topic_length
        at = _put_byte(at, 2) if version >= FLEXIBLE_FROM else _put_int32(at, 1)
        memcpy(at, key + topic_length, 4)
        at += 4
        at = _put_byte(_put_byte(at, 0), 0)
        at = _put_int64(at, offset)
        at = _put_int64(at, append_time_ms)
        if version >= 5:
            at = _put_int64(at, start_offset)
        if version >= FLEXIBLE_FROM:
            at = _put_byte(_put_byte(_put_byte(_put_byte(at, 1), 0), 0), 0)
            at = _put_int32(at, 0)
            at = _put_byte(at, 0)
        else:
            if version >= 8:
                at = _put_int32(at, 0)
                at = _put_byte(_put_byte(at, 0xFF), 0xFF)
            at = _put_int32(at, 0)
        assert at - <uint8_t*>PyBytes_AsString(made) == size
        return made


def short_produce(frame):
    """See `produce.short_produce`."""
    cdef Py_buffer view
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        return _short(frame, <const uint8_t*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef object _short(object frame, const uint8_t* data, Py_ssize_t end):
    cdef Single single
    cdef ShortProduce short
    cdef const uint8_t* batch
    cdef int version
    cdef Py_ssize_t client, position, size
    cdef uint8_t codec
    cdef uint32_t crc
    cdef uint8_t* key
    if end < 10 or end > SHORT_BYTES_MAX or data[0] or data[1]:
        return None
    version = _int16(data + 2)
    client = _int16(data + 8)
    if version < OLDEST or version > NEWEST or client < -1 or client > end - 10:
        return None
    position = 10
    while position < 10 + client:
        if data[position] >= 0x80:
            return None
        position += 1
    if version >= FLEXIBLE_FROM:
        if position >= end or data[position]:
            return None
        position += 1
    if not _read_single(data, position, end, version, &single):
        return None
    size = single.end - single.begin
    if (single.acks != 1 and single.acks != -1) or size < BATCH_HEADER_BYTES:
        return None
    batch = data + single.begin
    codec = batch[22] & 0x07
    if (
        batch[16] != MAGIC
        or <Py_ssize_t>_int32(batch + 8) + 12 != size
        or codec > ZSTD
        or (codec == ZSTD and version < ZSTD_FROM)
        or batch[22] & NOT_SHORT
        or _int32(batch + 57) < 1
        or <int64_t>_int32(batch + 23) != <int64_t>_int32(batch + 57) - 1
        or (not codec and <int64_t>_int32(batch + 57) * RECORD_BYTES_MIN > size - 12)
    ):
        return None
    if size - 21 <= TABLE_BYTES_MAX:
        crc = _crc_by_table(batch + 21, size - 21)
    else:
        crc = <uint32_t>crc32c(frame[single.begin + 21 : single.end])
    if crc != <uint32_t>_int32(batch + 17):
        return None
    short = ShortProduce.__new__(ShortProduce)
    short.version = version
    short.correlation_id = _int32(data + 4)
    short.client_id = None if client < 0 else PyBytes_FromStringAndSize(<const char*>data + 10, client)
    short.acks = single.acks
    short.timeout_ms = single.timeout_ms
    short.key = PyBytes_FromStringAndSize(NULL, single.topic_length + 4)
    key = <uint8_t*>PyBytes_AsString(short.key)
    memcpy(key, data + single.topic, single.topic_length)
    _put_int32(key + single.topic_length, single.partition)
    short.records = frame[single.begin : single.end]
    short.size = <int32_t>size
    short.record_count = _int32(batch + 57)
    short.base_timestamp = _int64(batch + 27)
    short.max_timestamp = _int64(batch + 35)
    short.producer_id = _int64(batch + 43)
    return short
