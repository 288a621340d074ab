# cython: language_level=3
"""Rows of columns into records, compiled: the twin of `rows`, with the same results and errors.

A column is opened once: its buffers are held and seen to be long enough for the rows. Every offset is compared with
the bytes that are there before it is followed. What is written was measured first.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy

from millpond.wire.kernel.rows import NULL_KEY, RECORD_BYTES_MAX, ROWS_MAX, EncodedRows

cdef enum:
    MURMUR_SEED = 0x9747B28C
    MURMUR_MULTIPLIER = 0x5BD1E995

cdef int64_t LENGTH_MAX = RECORD_BYTES_MAX
cdef Py_ssize_t ENTRY_MAX = ROWS_MAX
cdef int32_t NO_PARTITION = NULL_KEY

include "_held.pxi"


cdef struct Spans:
    # An array from its entry `start` on, whose offsets divide `size` bytes or entries into spans.
    bint there
    const uint8_t* offsets
    const uint8_t* validity
    const uint8_t* data
    Py_ssize_t start
    Py_ssize_t size


cdef struct Field:
    # A length of -1 is null.
    int32_t begin
    int32_t length


cdef struct Record:
    # `length` counts everything after the length itself.
    int64_t length
    int64_t timestamp_delta
    int64_t offset_delta
    Field key
    Field value
    Field headers


@cython.final
cdef class Table:
    """The columns of `RowColumns`, with their lengths checked."""

    cdef list held
    cdef Py_ssize_t count
    cdef Spans key
    cdef Spans value
    cdef Spans lists
    cdef Spans names
    cdef Spans header_values
    cdef Spans times
    cdef int64_t timestamp_ms

    def __cinit__(self, Py_ssize_t count, int64_t timestamp_ms=0):
        # Cython zeroes all fields, so no column is set yet.
        self.held = []
        self.count = count
        self.timestamp_ms = timestamp_ms

    cdef int open(self, rows) except -1:
        cdef Py_ssize_t structs = 0
        if rows.key is not None:
            self.open_binary(&self.key, rows.key, self.count)
        if rows.value is not None:
            self.open_binary(&self.value, rows.value, self.count)
        headers = rows.headers
        if headers is not None:
            self.open_spans(&self.lists, headers, self.count)
            if self.count:
                # Only the last offset tells how many structs there are.
                structs = max(_int32(self.lists.offsets, self.lists.start + self.count), 0)
            self.lists.size = structs
            self.open_binary(&self.names, headers.names, structs)
            self.open_binary(&self.header_values, headers.values, structs)
        if rows.timestamps is not None:
            self.open_times(rows.timestamps)
        return 0

    cdef int open_binary(self, Spans* spans, column, Py_ssize_t count) except -1:
        self.open_spans(spans, column, count)
        spans.data = self.bytes_of(column.data, &spans.size)
        return 0

    cdef int open_spans(self, Spans* spans, column, Py_ssize_t count) except -1:
        cdef Py_ssize_t size
        self.open_validity(spans, column, count)
        spans.offsets = self.bytes_of(column.offsets, &size)
        if count and size // <Py_ssize_t>sizeof(int32_t) - 1 < spans.start + count:
            raise ValueError(f"{size} bytes of offsets for {spans.start + count} rows")
        return 0

    cdef int open_times(self, column) except -1:
        cdef Py_ssize_t size
        self.open_validity(&self.times, column, self.count)
        self.times.data = self.bytes_of(column.data, &size)
        if size // <Py_ssize_t>sizeof(int64_t) < self.times.start + self.count:
            raise ValueError(f"{size} bytes of timestamps for {self.times.start + self.count} rows")
        return 0

    cdef int open_validity(self, Spans* spans, column, Py_ssize_t count) except -1:
        cdef Py_ssize_t size
        spans.there = True
        spans.start = column.start
        if not 0 <= spans.start <= ENTRY_MAX or not 0 <= count <= ENTRY_MAX:
            raise ValueError(f"{count} rows from {spans.start}")
        if column.validity is not None:
            spans.validity = self.bytes_of(column.validity, &size)
            if size < (spans.start + count + 7) // 8:
                raise ValueError(f"{size} bytes of validity for {spans.start + count} rows")
        return 0

    cdef inline int64_t timestamp(self, Py_ssize_t row) noexcept:
        cdef int64_t timestamp
        cdef Py_ssize_t entry = self.times.start + row
        if not self.times.there or not _has(self.times.validity, entry):
            return self.timestamp_ms
        memcpy(&timestamp, self.times.data + entry * sizeof(int64_t), sizeof(int64_t))
        return timestamp

    cdef const uint8_t* bytes_of(self, buffer, Py_ssize_t* size) except? NULL:
        """Arrow omits empty buffers."""
        cdef Held held = Held(b"" if buffer is None else buffer)
        self.held.append(held)
        size[0] = held.view.len
        return <const uint8_t*>held.view.buf


def key_partitions(key, Py_ssize_t count, int32_t partitions):
    """See `rows.key_partitions`."""
    cdef Table table = Table(count)
    cdef Field field
    cdef Py_ssize_t row
    cdef int32_t partition
    cdef uint8_t* found
    if partitions < 1:
        raise ValueError(f"{partitions} partitions")
    table.open_binary(&table.key, key, count)
    answer = PyBytes_FromStringAndSize(NULL, count * sizeof(int32_t))
    found = <uint8_t*>PyBytes_AsString(answer)
    for row in range(count):
        _read(&table.key, row, &field)
        partition = NO_PARTITION
        if field.length >= 0:
            partition = (_murmur2(table.key.data + field.begin, field.length) & 0x7FFFFFFF) % <uint32_t>partitions
        memcpy(found + row * sizeof(int32_t), &partition, sizeof(int32_t))
    return answer


def encode_rows(rows, selection, Py_ssize_t at, int64_t bytes_max, int64_t timestamp_ms):
    """See `rows.encode_rows`."""
    cdef Table table = Table(rows.count, timestamp_ms)
    cdef Held held = Held(selection)
    cdef const uint8_t* chosen = <const uint8_t*>held.view.buf
    cdef Py_ssize_t selected = held.view.len // <Py_ssize_t>sizeof(int32_t)
    cdef Py_ssize_t taken = 0
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t index
    cdef int64_t base_timestamp, max_timestamp, length
    cdef Record record
    cdef uint8_t* out
    if held.view.len % sizeof(int32_t) or not 0 <= at < selected:
        raise ValueError(f"nothing is selected at {at} in {held.view.len} bytes")
    table.open(rows)
    chosen += at * sizeof(int32_t)
    base_timestamp = max_timestamp = table.timestamp(_row(table, chosen, 0))
    for index in range(selected - at):
        _measure(table, _row(table, chosen, index), base_timestamp, index, &record)
        length = _varint_bytes(record.length) + record.length
        if taken and size + length > bytes_max:
            break
        size += length
        taken += 1
        max_timestamp = max(max_timestamp, base_timestamp + record.timestamp_delta)
    payload = PyBytes_FromStringAndSize(NULL, size)
    out = <uint8_t*>PyBytes_AsString(payload)
    for index in range(taken):
        _measure(table, _row(table, chosen, index), base_timestamp, index, &record)
        out = _write(out, table, &record)
    assert out == <uint8_t*>PyBytes_AsString(payload) + size
    return EncodedRows(payload, taken, base_timestamp, max_timestamp)


cdef inline Py_ssize_t _row(Table table, const uint8_t* chosen, Py_ssize_t index) except -1:
    cdef int32_t row = _int32(chosen, index)
    if not 0 <= row < table.count:
        raise ValueError(f"row {row} of {table.count} was selected")
    return row


cdef inline int _measure(
    Table table, Py_ssize_t row, int64_t base_timestamp, Py_ssize_t offset_delta, Record* record
) except -1:
    cdef int64_t timestamp = table.timestamp(row)
    if _too_far(timestamp, base_timestamp):
        raise OverflowError("the timestamps of one batch are too far apart")
    record.timestamp_delta = timestamp - base_timestamp
    record.offset_delta = offset_delta
    _read(&table.key, row, &record.key)
    _read(&table.value, row, &record.value)
    _read(&table.lists, row, &record.headers)
    record.length = (
        1
        + _varint_bytes(record.timestamp_delta)
        + _varint_bytes(offset_delta)
        + _field_bytes(&record.key)
        + _field_bytes(&record.value)
        + 1
    )
    if record.headers.length > 0:
        record.length += _header_bytes(table, row, &record.headers) - 1
    if record.length > LENGTH_MAX:
        raise OverflowError(f"row {row} is a record of {record.length} bytes; {LENGTH_MAX} is the most")
    return 0


cdef int64_t _header_bytes(Table table, Py_ssize_t row, Field* headers) except -1:
    cdef Field name, value
    cdef Py_ssize_t entry
    cdef int64_t length = _varint_bytes(headers.length)
    for entry in range(headers.begin, headers.begin + headers.length):
        _read(&table.names, entry, &name)
        if name.length < 0:
            raise ValueError(f"row {row} has a header without a name")
        _read(&table.header_values, entry, &value)
        length += _field_bytes(&name) + _field_bytes(&value)
    return length


cdef inline uint8_t* _write(uint8_t* out, Table table, Record* record) except NULL:
    out = _write_varint(out, record.length)
    out[0] = 0
    out = _write_varint(out + 1, record.timestamp_delta)
    out = _write_varint(out, record.offset_delta)
    out = _write_field(out, &table.key, &record.key)
    out = _write_field(out, &table.value, &record.value)
    if record.headers.length <= 0:
        out[0] = 0
        return out + 1
    return _write_headers(out, table, &record.headers)


cdef uint8_t* _write_headers(uint8_t* out, Table table, Field* headers) except NULL:
    cdef Field field
    cdef Py_ssize_t entry
    out = _write_varint(out, headers.length)
    for entry in range(headers.begin, headers.begin + headers.length):
        _read(&table.names, entry, &field)
        out = _write_field(out, &table.names, &field)
        _read(&table.header_values, entry, &field)
        out = _write_field(out, &table.header_values, &field)
    return out


cdef inline int _read(Spans* spans, Py_ssize_t row, Field* field) except -1:
    """The start and length of the row's span. The row is within the range for which the column was opened."""
    cdef Py_ssize_t entry = spans.start + row
    cdef int32_t begin, end
    if not spans.there or not _has(spans.validity, entry):
        field.length = -1
        return 0
    begin = _int32(spans.offsets, entry)
    end = _int32(spans.offsets, entry + 1)
    if not 0 <= begin <= end <= spans.size:
        raise ValueError(f"offsets {begin} and {end} in {spans.size}")
    field.begin = begin
    field.length = end - begin
    return 0


cdef inline int64_t _field_bytes(Field* field) noexcept:
    if field.length <= 0:
        return 1
    return _varint_bytes(field.length) + field.length


cdef inline uint8_t* _write_field(uint8_t* out, Spans* spans, Field* field) noexcept:
    out = _write_varint(out, field.length)
    if field.length > 0:
        memcpy(out, spans.data + field.begin, field.length)
        out += field.length
    return out


cdef inline uint64_t _zigzag(int64_t value) noexcept:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


cdef inline int64_t _varint_bytes(int64_t value) noexcept:
    cdef uint64_t raw = _zigzag(value)
    cdef int64_t length = 1
    while raw >= 0x80:
        raw >>= 7
        length += 1
    return length


cdef inline uint8_t* _write_varint(uint8_t* out, int64_t value) noexcept:
    cdef uint64_t raw = _zigzag(value)
    while raw >= 0x80:
        out[0] = <uint8_t>(raw | 0x80)
        out += 1
        raw >>= 7
    out[0] = <uint8_t>raw
    return out + 1


cdef inline bint _too_far(int64_t timestamp, int64_t base) noexcept:
    """Whether the difference overflows 64 bits."""
    if base < 0:
        return timestamp > INT64_MAX + base
    return timestamp < INT64_MIN + base


cdef inline bint _has(const uint8_t* validity, Py_ssize_t entry) noexcept:
    return validity is NULL or validity[entry >> 3] >> (entry & 7) & 1


cdef inline int32_t _int32(const uint8_t* numbers, Py_ssize_t entry) noexcept:
    """In native byte order, aligned or not."""
    cdef int32_t number
    memcpy(&number, numbers + entry * sizeof(int32_t), sizeof(int32_t))
    return number


cdef uint32_t _murmur2(const uint8_t* key, int32_t length) noexcept:
    """See `partitioner.murmur2`."""
    cdef uint32_t value = <uint32_t>MURMUR_SEED ^ <uint32_t>length
    cdef uint32_t word
    while length >= 4:
        word = key[0] | <uint32_t>key[1] << 8 | <uint32_t>key[2] << 16 | <uint32_t>key[3] << 24
        word *= MURMUR_MULTIPLIER
        word = (word ^ word >> 24) * MURMUR_MULTIPLIER
        value = value * MURMUR_MULTIPLIER ^ word
        key += 4
        length -= 4
    if length:
        while length:
            length -= 1
            value ^= <uint32_t>key[length] << (8 * length)
        value *= MURMUR_MULTIPLIER
    value = (value ^ value >> 13) * MURMUR_MULTIPLIER
    return value ^ value >> 15
