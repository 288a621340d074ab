# Part of _values.pyx: values of Avro, as fastavro reads them. What it would not take, or might take otherwise, is
# refused: a negative choice, a boolean that is neither 0 nor 1, a map that has a key twice.

cdef uint64_t[39] TENS_HIGH
cdef uint64_t[39] TENS_LOW

for _digits in range(39):
    TENS_HIGH[_digits] = 10**_digits >> 64
    TENS_LOW[_digits] = 10**_digits & 0xFFFFFFFFFFFFFFFF


cdef inline bint _avro_number(State* state, int64_t* number) noexcept:
    """A 64-bit zigzag varint."""
    cdef uint64_t raw = 0
    cdef uint8_t byte
    cdef int shift = 0
    while state.at < state.end:
        byte = state.at[0]
        state.at += 1
        # The tenth byte has room for one bit only.
        if shift == 63 and byte > 1:
            return False
        raw |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            number[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
            return True
        shift += 7
    return False


cdef int _avro_value(State* state, Node* node) except -1:
    cdef int written = node.branches[0]
    cdef int64_t number
    cdef int index
    if node.is_union:
        if not _avro_number(state, &number) or not 0 <= number < node.branch_count:
            return 0
        written = node.branches[number]
    if written == AVRO_RECORD:
        for index in range(node.first, node.first + node.count):
            if not _avro_value(state, &state.nodes[index]):
                return 0
        node.rows += 1
        return 1
    if written == AVRO_NUMBER:
        return _avro_integer(state, node)
    if written == AVRO_BYTES:
        if not _avro_number(state, &number) or number < 0:
            return 0
        return _avro_bytes(state, node, number)
    if written == AVRO_NULL:
        _append_null(state.nodes, node)
        return 1
    if written == AVRO_DOUBLE or written == AVRO_FLOAT:
        return _avro_float(state, node, written)
    if written == AVRO_ENUM:
        if not _avro_number(state, &number) or not 0 <= number < node.symbol_count:
            return 0
        index = node.symbol_first + <int>number
        return _append_text(node, state.symbols[index].start, state.symbols[index].size)
    if written == AVRO_BOOLEAN:
        if state.at >= state.end or state.at[0] > 1:
            return 0
        _append_boolean(node, state.at[0])
        state.at += 1
        return 1
    if written == AVRO_FIXED:
        return _avro_bytes(state, node, node.size)
    return _avro_blocks(state, node)


cdef inline int _avro_integer(State* state, Node* node) except -1:
    cdef int64_t number
    if not _avro_number(state, &number):
        return 0
    if node.factor != 1:
        if not -node.factor_limit <= number <= node.factor_limit:
            return 0
        number *= node.factor
    return _append_integer(node, number)


cdef int _avro_float(State* state, Node* node, int written) except -1:
    """In a union of both, the column has the wider type."""
    cdef double wide
    cdef float narrow
    cdef Py_ssize_t size = sizeof(double) if written == AVRO_DOUBLE else sizeof(float)
    if state.end - state.at < size:
        return 0
    if written == AVRO_DOUBLE:
        memcpy(&wide, state.at, sizeof(double))
    else:
        memcpy(&narrow, state.at, sizeof(float))
        wide = narrow
    state.at += size
    if node.kind == DOUBLE:
        (<double*>_room(node))[0] = wide
    else:
        (<float*>_room(node))[0] = <float>wide
    return 1


cdef inline int _avro_bytes(State* state, Node* node, int64_t size) except -1:
    cdef const uint8_t* start = state.at
    if size > state.end - state.at:
        return 0
    state.at += size
    if node.kind == DECIMAL:
        return _avro_decimal(node, start, size)
    if node.kind == STRING and not _is_utf8(start, size):
        return 0
    return _append_text(node, start, size)


cdef int _avro_decimal(Node* node, const uint8_t* start, Py_ssize_t size) except -1:
    """A big-endian number in two's complement. Zero and more than 16 bytes are left to the plain reader."""
    cdef uint64_t high, low
    cdef bint negative
    cdef Py_ssize_t index
    if not 1 <= size <= DECIMAL_BYTES:
        return 0
    negative = start[0] >= 0x80
    high = low = 0xFFFFFFFFFFFFFFFFULL if negative else 0
    for index in range(size):
        high = high << 8 | low >> 56
        low = low << 8 | start[index]
    if negative:
        low = ~low + 1
        high = ~high + (low == 0)
    if high > TENS_HIGH[node.precision] or (high == TENS_HIGH[node.precision] and low >= TENS_LOW[node.precision]):
        return 0
    return _append_wide(node, high, low, negative)


cdef int _avro_blocks(State* state, Node* node) except -1:
    """A list or map: counted blocks up to an empty one."""
    cdef int64_t count, size
    cdef Node* child = &state.nodes[node.first]
    cdef Py_ssize_t first = child.rows
    while True:
        if not _avro_number(state, &count):
            return 0
        if count == 0:
            break
        if count < 0:
            if count == INT64_MIN or not _avro_number(state, &size):
                return 0
            count = -count
        # Null takes no bytes.
        if count > state.end - state.at:
            return 0
        for _ in range(count):
            if not _avro_value(state, child):
                return 0
            if node.kind == MAP and not (_is_new_key(child, first) and _avro_value(state, child + 1)):
                return 0
    _end_list(state.nodes, node)
    return 1
