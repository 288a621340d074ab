# cython: language_level=3
"""Records into columns, compiled: the twin of `columns`, with the same answers and refusals.

Every read goes through `_raw_varint` or a length that was compared with the bytes left; every write goes to room
that `_reserve` has made for it just before.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint32_t, uint64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from millpond.base.errors import MalformedMessage
from millpond.wire.kernel.columns import COLUMN_MAX, BinaryBuffers, Columns, HeaderBuffers

cdef enum:
    RECORD_BYTES_MIN = 7
    HEADER_BYTES_MIN = 2
    AFTER_HEAD_BYTES_MIN = 3
    BLOCK_BYTES_MIN = 1024
    MICROSECONDS_PER_MS = 1000

cdef int64_t TIMESTAMP_MAX_MS = INT64_MAX // MICROSECONDS_PER_MS

include "_blocks.pxi"
include "_utf8.pxi"
include "_varints.pxi"


cdef struct Column:
    # Bits of `validity` from `rows` on are 1, as far as the block has been used.
    Block validity
    Block offsets
    Block data
    Py_ssize_t rows
    Py_ssize_t null_count


cdef struct Mark:
    Py_ssize_t rows
    Py_ssize_t null_count
    Py_ssize_t data_used


cdef struct Head:
    Py_ssize_t end
    int64_t timestamp_delta
    int32_t offset_delta


cdef struct Field:
    # A length of -1 is null.
    const uint8_t* start
    int32_t length


@cython.final
cdef class ColumnBuilder:
    """See `columns.ColumnBuilder`."""

    cdef bint with_headers
    cdef Py_ssize_t column_max
    cdef Py_ssize_t row_count
    cdef Column key
    cdef Column value
    cdef Column lists
    cdef Column names
    cdef Column header_values
    cdef Block offsets
    cdef Block timestamps
    cdef Block types

    def __cinit__(self, bint with_headers=False, column_max=COLUMN_MAX):
        # Cython zeroes all fields, so every block is empty.
        if not 0 <= column_max <= COLUMN_MAX:
            raise ValueError(f"a column of up to {column_max} bytes; Arrow's offsets reach {COLUMN_MAX}")
        self.with_headers = with_headers
        self.column_max = column_max

    def __dealloc__(self):
        _free_column(&self.key)
        _free_column(&self.value)
        _free_column(&self.lists)
        _free_column(&self.names)
        _free_column(&self.header_values)
        free(self.offsets.start)
        free(self.timestamps.start)
        free(self.types.start)

    @property
    def rows(self):
        return self.row_count

    @property
    def data_bytes(self):
        """See `columns.ColumnBuilder.data_bytes`."""
        return self.key.data.used + self.value.data.used + self.names.data.used + self.header_values.data.used

    def add(
        self,
        payload,
        int64_t count,
        int64_t base_offset,
        int64_t base_timestamp,
        append_time,
        int64_t first,
        int64_t end,
    ):
        """See `columns.ColumnBuilder.add`."""
        cdef Py_buffer view
        cdef Cursor cursor
        cdef Py_ssize_t rows = self.row_count
        cdef Mark key = _mark(&self.key)
        cdef Mark value = _mark(&self.value)
        cdef Mark lists = _mark(&self.lists)
        cdef Mark names = _mark(&self.names)
        cdef Mark header_values = _mark(&self.header_values)
        cdef bint appended = append_time is not None
        cdef int64_t timestamp = append_time if appended else base_timestamp
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= count <= view.len // RECORD_BYTES_MIN:
                raise MalformedMessage(f"{count} records in {view.len} bytes")
            cursor = Cursor(<const uint8_t*>view.buf, 0, view.len)
            self._add(&cursor, count, base_offset, timestamp, appended, first, end)
        except:
            self.row_count = rows
            _restore(&self.key, key)
            _restore(&self.value, value)
            _restore(&self.lists, lists)
            _restore(&self.names, names)
            _restore(&self.header_values, header_values)
            raise
        finally:
            PyBuffer_Release(&view)
        return self.row_count - rows

    def take(self):
        """See `columns.ColumnBuilder.take`."""
        cdef Py_ssize_t rows = self.row_count
        # Zero rows still have one offset.
        self._reserve_rows(0)
        headers = self._take_headers() if self.with_headers else None
        self.row_count = 0
        return Columns(
            rows,
            _taken_column(&self.key),
            _taken_column(&self.value),
            _taken_block(&self.offsets, rows * sizeof(int64_t)),
            _taken_block(&self.timestamps, rows * sizeof(int64_t)),
            _taken_block(&self.types, rows * sizeof(int32_t)),
            headers,
        )

    cdef object _take_headers(self):
        cdef Py_ssize_t null_count = self.lists.null_count
        cdef Py_ssize_t count = self.names.rows
        _reserve_offsets(&self.names, 0)
        _reserve_offsets(&self.header_values, 0)
        lists = _taken_column(&self.lists)
        return HeaderBuffers(
            lists.validity,
            null_count,
            lists.offsets,
            count,
            _taken_column(&self.names),
            _taken_column(&self.header_values),
        )

    cdef int _reserve_rows(self, Py_ssize_t count) except -1:
        cdef Py_ssize_t rows = self.row_count + count
        _reserve_offsets(&self.key, count)
        _reserve_offsets(&self.value, count)
        _reserve(&self.offsets, rows * sizeof(int64_t))
        _reserve(&self.timestamps, rows * sizeof(int64_t))
        _reserve(&self.types, rows * sizeof(int32_t))
        if self.with_headers:
            _reserve_offsets(&self.lists, count)
        return 0

    cdef int _add(
        self,
        Cursor* cursor,
        int64_t count,
        int64_t base_offset,
        int64_t base_timestamp,
        bint appended,
        int64_t first,
        int64_t end,
    ) except -1:
        cdef Head head
        cdef Field key, value
        cdef int32_t header_count
        cdef int64_t offset
        cdef int64_t timestamp = base_timestamp
        cdef bint wanted
        self._reserve_rows(count)
        head.offset_delta = -1
        for _ in range(count):
            _read_head(cursor, &head)
            _read_field(cursor, head.end, &key)
            _read_field(cursor, head.end, &value)
            header_count = _varint(cursor)
            if not 0 <= <int64_t>header_count * HEADER_BYTES_MIN <= head.end - cursor.at:
                raise MalformedMessage(f"{header_count} headers in {head.end - cursor.at} bytes")
            if base_offset > INT64_MAX - head.offset_delta:
                raise MalformedMessage("a record's offset is beyond 64 bits")
            offset = base_offset + head.offset_delta
            wanted = first <= offset < end
            if header_count:
                self._read_headers(cursor, head.end, header_count, wanted and self.with_headers)
            if cursor.at != head.end:
                raise MalformedMessage(f"a record ends at {head.end}, its fields at {cursor.at}")
            if not appended:
                if _overflows(base_timestamp, head.timestamp_delta):
                    raise MalformedMessage("a record's timestamp is beyond 64 bits")
                timestamp = base_timestamp + head.timestamp_delta
            if wanted:
                self._add_row(offset, timestamp, appended, &key, &value)
                if self.with_headers:
                    _end_row(&self.lists, self.names.rows, header_count == 0)
        if cursor.at != cursor.size:
            raise MalformedMessage(f"{cursor.size - cursor.at} bytes are left after the last record")
        return 0

    cdef inline int _add_row(
        self, int64_t offset, int64_t timestamp, bint appended, Field* key, Field* value
    ) except -1:
        cdef Py_ssize_t row = self.row_count
        if not -TIMESTAMP_MAX_MS <= timestamp <= TIMESTAMP_MAX_MS:
            raise MalformedMessage("a record's timestamp in microseconds is beyond 64 bits")
        if row >= self.column_max:
            raise _too_large(self.column_max)
        _append(&self.key, key, self.column_max)
        _append(&self.value, value, self.column_max)
        (<int64_t*>self.offsets.start)[row] = offset
        (<int64_t*>self.timestamps.start)[row] = timestamp * MICROSECONDS_PER_MS
        (<int32_t*>self.types.start)[row] = appended
        self.row_count = row + 1
        return 0

    cdef int _read_headers(self, Cursor* cursor, Py_ssize_t end, int32_t count, bint wanted) except -1:
        cdef Field name, value
        cdef bytes replaced
        if wanted:
            if count > self.column_max - self.names.rows:
                raise _too_large(self.column_max)
            _reserve_offsets(&self.names, count)
            _reserve_offsets(&self.header_values, count)
        for _ in range(count):
            _read_field(cursor, end, &name)
            if name.length < 0:
                raise MalformedMessage("a header without a name")
            if not _is_utf8(name.start, name.length):
                # As `decode_records` reads it; `replaced` is alive until the name is copied.
                replaced = PyUnicode_DecodeUTF8(<const char*>name.start, name.length, b"replace").encode()
                name.start = <const uint8_t*>PyBytes_AS_STRING(replaced)
                name.length = <int32_t>len(replaced)
            _read_field(cursor, end, &value)
            if wanted:
                _append(&self.names, &name, self.column_max)
                _append(&self.header_values, &value, self.column_max)
        return 0


cdef object _too_large(Py_ssize_t column_max):
    return OverflowError(f"a column would grow beyond {column_max} bytes: take() what is there first")


cdef inline int _append(Column* column, Field* field, Py_ssize_t column_max) except -1:
    """Append an entry; `_reserve_offsets` has already reserved its offset."""
    cdef Block* data = &column.data
    if field.length > 0:
        if field.length > column_max - data.used:
            raise _too_large(column_max)
        _reserve(data, data.used + field.length)
        memcpy(data.start + data.used, field.start, field.length)
        data.used += field.length
    _end_row(column, data.used, field.length < 0)
    return 0


cdef inline int _end_row(Column* column, Py_ssize_t end, bint is_null) except -1:
    if is_null:
        _cover(&column.validity, column.rows + 1)
        column.validity.start[column.rows >> 3] &= ~(1 << (column.rows & 7))
        column.null_count += 1
    column.rows += 1
    (<int32_t*>column.offsets.start)[column.rows] = <int32_t>end
    return 0


cdef int _reserve_offsets(Column* column, Py_ssize_t count) except -1:
    _reserve(&column.offsets, (column.rows + count + 1) * sizeof(int32_t))
    if column.rows == 0:
        (<int32_t*>column.offsets.start)[0] = 0
    return 0


cdef object _taken_column(Column* column):
    cdef Py_ssize_t rows = column.rows
    cdef Py_ssize_t null_count = column.null_count
    validity = None
    if null_count:
        _cover(&column.validity, rows)
        validity = _taken_block(&column.validity, (rows + 7) // 8)
    column.rows = 0
    column.null_count = 0
    return BinaryBuffers(
        validity,
        _taken_block(&column.offsets, (rows + 1) * sizeof(int32_t)),
        _taken_block(&column.data, column.data.used),
        null_count,
    )


cdef Mark _mark(Column* column) noexcept:
    return Mark(column.rows, column.null_count, column.data.used)


cdef void _restore(Column* column, Mark mark) noexcept:
    cdef Py_ssize_t row
    if column.null_count != mark.null_count:
        for row in range(mark.rows, column.rows):
            if row >> 3 < column.validity.used:
                column.validity.start[row >> 3] |= 1 << (row & 7)
    column.rows = mark.rows
    column.null_count = mark.null_count
    column.data.used = mark.data_used


cdef void _free_column(Column* column) noexcept:
    free(column.validity.start)
    free(column.offsets.start)
    free(column.data.start)


cdef inline int _read_head(Cursor* cursor, Head* head) except -1:
    """The start of the next record. `head` still holds the previous record's offset delta."""
    cdef int32_t length = _varint(cursor)
    cdef int32_t offset_delta
    if not RECORD_BYTES_MIN - 1 <= length <= cursor.size - cursor.at:
        raise MalformedMessage(f"a record of {length} bytes in {cursor.size - cursor.at}")
    head.end = cursor.at + length
    # The attributes byte of a record is unused; the length check above ensures that it exists.
    cursor.at += 1
    head.timestamp_delta = _varlong(cursor)
    offset_delta = _varint(cursor)
    if offset_delta <= head.offset_delta:
        raise MalformedMessage(f"offset delta {offset_delta} after {head.offset_delta}")
    if head.end - cursor.at < AFTER_HEAD_BYTES_MIN:
        raise MalformedMessage(f"{head.end - cursor.at} bytes for key, value and headers")
    head.offset_delta = offset_delta
    return 0


cdef inline int _read_field(Cursor* cursor, Py_ssize_t end, Field* field) except -1:
    cdef int32_t length = _varint(cursor)
    if not -1 <= length <= end - cursor.at:
        raise MalformedMessage(f"a field of {length} bytes in {end - cursor.at}")
    field.start = cursor.start + cursor.at
    field.length = length
    if length > 0:
        cursor.at += length
    return 0


