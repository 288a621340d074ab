# Part of _columns.pyx and _fast.pyx: varints of records, never read beyond the end.

cdef enum:
    VARINT_BYTES_MAX = 5
    VARLONG_BYTES_MAX = 10


cdef struct Cursor:
    const uint8_t* start
    Py_ssize_t at
    Py_ssize_t size


cdef inline int32_t _varint(Cursor* cursor) except? -2147483648:
    """A 32-bit zigzag varint."""
    cdef uint64_t raw
    if cursor.at < cursor.size and cursor.start[cursor.at] < 0x80:
        raw = cursor.start[cursor.at]
        cursor.at += 1
    else:
        raw = _raw_varint(cursor, VARINT_BYTES_MAX)
        if raw >> 32:
            raise MalformedMessage("a varint is beyond 32 bits")
    return <int32_t>(<uint32_t>(raw >> 1) ^ (0 - <uint32_t>(raw & 1)))


cdef inline int64_t _varlong(Cursor* cursor) except? -9223372036854775807:
    """A 64-bit zigzag varint."""
    cdef uint64_t raw = _raw_varint(cursor, VARLONG_BYTES_MAX)
    return <int64_t>((raw >> 1) ^ (0 - (raw & 1)))


cdef uint64_t _raw_varint(Cursor* cursor, int bytes_max) except? 18446744073709551615ULL:
    cdef uint64_t raw = 0
    cdef uint8_t byte
    cdef int index
    for index in range(bytes_max):
        if cursor.at >= cursor.size:
            raise MalformedMessage("a record is cut off")
        byte = cursor.start[cursor.at]
        cursor.at += 1
        # The tenth byte has room for one bit only.
        if index == 9 and byte & 0x7E:
            raise MalformedMessage("a varint is beyond 64 bits")
        raw |= <uint64_t>(byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return raw
    raise MalformedMessage(f"a varint has more than {bytes_max} bytes")


cdef inline bint _overflows(int64_t base, int64_t delta) noexcept:
    if delta > 0:
        return base > INT64_MAX - delta
    return base < INT64_MIN - delta
