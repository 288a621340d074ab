# cython: language_level=3, cdivision=True
"""Values of records into columns, compiled; `values` describes input and output.

A value is taken whole or refused whole: what a refused one has left in the columns is cut off again, and its row is
null. Functions that read say 1 for taken and 0 for refused. Every read is within `State.end`; every write goes to
room that `_reserve` has made just before.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AsString
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint32_t, uint64_t, uint8_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset

from threading import Lock

from millpond.wire.kernel import values
from millpond.wire.kernel.values import ValueBuffers

cdef enum:
    # As values.Kind.
    STRUCT = 0
    LIST = 1
    MAP = 2
    STRING = 3
    BINARY = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DECIMAL = 12
    DATE = 13
    TIMESTAMP = 14

cdef enum:
    # As values.Written.
    AVRO_NULL = 0
    AVRO_NUMBER = 1
    AVRO_FLOAT = 2
    AVRO_DOUBLE = 3
    AVRO_BOOLEAN = 4
    AVRO_BYTES = 5
    AVRO_FIXED = 6
    AVRO_ENUM = 7
    AVRO_BLOCKS = 8
    AVRO_RECORD = 9

cdef enum:
    BRANCHES_MAX = 3
    BLOCK_BYTES_MIN = 64
    DECIMAL_BYTES = 16
    MAP_ENTRIES_MAX = 64
    SKIPPED_DEPTH_MAX = 64

assert values.BRANCHES_MAX == BRANCHES_MAX

cdef Py_ssize_t VALUE_BYTES_MAX = values.VALUE_BYTES_MAX
cdef Py_ssize_t RUN_BYTES_MAX = values.RUN_BYTES_MAX
cdef int64_t[15] WIDTHS = [0, 0, 0, 0, 0, 0, 1, 2, 4, 8, 4, 8, DECIMAL_BYTES, 4, 8]

include "_blocks.pxi"
include "_held.pxi"
include "_utf8.pxi"


cdef struct Text:
    const uint8_t* start
    Py_ssize_t size


cdef struct Node:
    # A column. Its children stand side by side from `first` on. Bits of `validity` at and after `rows` are 1, as far
    # as the block was ever used.
    int kind
    int width
    int first
    int count
    bint required
    int precision
    int scale
    # The name as it is written, with the quote that ends it; of no size where it must be written with escapes.
    Text name
    Text key
    uint64_t key_head
    uint64_t key_mask
    bint is_union
    int branch_count
    int[BRANCHES_MAX] branches
    int64_t factor
    int64_t factor_limit
    int64_t size
    int symbol_first
    int symbol_count
    Block validity
    Block offsets
    Block data
    Py_ssize_t rows
    Py_ssize_t null_count


cdef struct State:
    const uint8_t* at
    const uint8_t* end
    Node* nodes
    Text* symbols


@cython.final
cdef class ValueReader:
    """See `values.ValueReader`."""

    cdef bint avro
    cdef Py_ssize_t skipped
    # While Python objects are created from the columns, another thread may run.
    cdef object lock
    cdef list texts
    cdef int node_count
    cdef Node* nodes
    cdef Text* symbols

    def __cinit__(self, shape, bint avro, Py_ssize_t skipped=0):
        self.avro = avro
        self.skipped = skipped
        self.lock = Lock()
        self.texts = []
        shapes, firsts = _laid_out(shape)
        self.node_count = len(shapes)
        self.nodes = <Node*>calloc(len(shapes), sizeof(Node))
        self.symbols = <Text*>calloc(sum([len(each.symbols) for each in shapes]) + 1, sizeof(Text))
        if self.nodes is NULL or self.symbols is NULL:
            raise MemoryError("for a schema")
        self._describe(shapes, firsts)

    def __dealloc__(self):
        cdef int index
        if self.nodes is not NULL:
            for index in range(self.node_count):
                free(self.nodes[index].validity.start)
                free(self.nodes[index].offsets.start)
                free(self.nodes[index].data.start)
        free(self.nodes)
        free(self.symbols)

    cdef int _describe(self, shapes, firsts) except -1:
        cdef Node* node
        cdef int index, symbol_count = 0
        for index, (shape, first) in enumerate(zip(shapes, firsts)):
            node = &self.nodes[index]
            node.kind = shape.kind
            node.width = WIDTHS[node.kind]
            node.first = first
            node.count = len(shape.children)
            node.required = shape.required
            node.precision = shape.precision
            node.scale = shape.scale
            node.name = self._kept(shape.name)
            self._describe_key(node, shape.name)
            node.is_union = shape.is_union
            node.branch_count = len(shape.written)
            if node.branch_count > BRANCHES_MAX or (self.avro and node.branch_count < 1):
                raise ValueError(f"a union of {node.branch_count}")
            for place, written in enumerate(shape.written):
                node.branches[place] = written
            node.factor = shape.factor
            node.factor_limit = INT64_MAX // node.factor
            node.size = shape.size
            node.symbol_first = symbol_count
            node.symbol_count = len(shape.symbols)
            for symbol in shape.symbols:
                self.symbols[symbol_count] = self._kept(symbol)
                symbol_count += 1
        return 0

    cdef int _describe_key(self, Node* node, name) except -1:
        if any([character in '"\\' or character < " " for character in name]):
            return 0
        node.key = self._kept(name + '"')
        head = self._kept((name + '"').encode()[:8] + bytes(8))
        memcpy(&node.key_head, head.start, 8)
        memset(&node.key_mask, 0xFF, min(node.key.size, 8))
        return 0

    cdef Text _kept(self, text):
        encoded = text if isinstance(text, bytes) else text.encode()
        self.texts.append(encoded)
        return Text(<const uint8_t*>PyBytes_AsString(encoded), len(encoded))

    def read(self, Py_ssize_t count, Py_ssize_t start, validity, offsets, data):
        """See `values.ValueReader.read`."""
        with self.lock:
            return self._read(count, start, validity, offsets, data)

    cdef object _read(self, Py_ssize_t count, Py_ssize_t start, validity, offsets, data):
        cdef Held spans = Held(offsets)
        cdef Held content = Held(b"" if data is None else data)
        cdef Held bits = None
        cdef const int32_t* ends = <const int32_t*>spans.view.buf
        cdef const uint8_t* first = <const uint8_t*>content.view.buf
        cdef const uint8_t* valid = NULL
        cdef Py_ssize_t row
        cdef State state
        cdef list refused = []
        if count < 0 or start < 0 or count > spans.view.len // <Py_ssize_t>sizeof(int32_t) - 1 - start:
            raise ValueError(f"{spans.view.len} bytes of offsets for {count} rows from {start}")
        if validity is not None:
            bits = Held(validity)
            valid = <const uint8_t*>bits.view.buf
            if bits.view.len < (start + count + 7) // 8:
                raise ValueError(f"{bits.view.len} bytes of validity for {count} rows from {start}")
        if count > 1 and ends[start + count] - <int64_t>ends[start] > RUN_BYTES_MAX:
            raise ValueError(f"more than {RUN_BYTES_MAX} bytes at once")
        state.nodes = self.nodes
        state.symbols = self.symbols
        self._begin()
        for row in range(start, start + count):
            if not 0 <= ends[row] <= ends[row + 1] <= content.view.len:
                raise ValueError(f"offsets {ends[row]} and {ends[row + 1]} in {content.view.len}")
            if valid is not NULL and not valid[row >> 3] >> (row & 7) & 1:
                _append_null(state.nodes, state.nodes)
                continue
            state.at = first + ends[row]
            state.end = first + ends[row + 1]
            if not self._read_value(&state):
                _cut(state.nodes, state.nodes, row - start)
                _append_null(state.nodes, state.nodes)
                refused.append(row - start)
        return self._taken(0), refused

    cdef inline int _read_value(self, State* state) except -1:
        if state.end - state.at > VALUE_BYTES_MAX:
            return 0
        if not self.avro:
            return _json_document(state)
        if self.skipped:
            if state.end - state.at < self.skipped or state.at[0] != 0:
                return 0
            state.at += self.skipped
        return _avro_value(state, state.nodes) and state.at == state.end

    cdef int _begin(self) except -1:
        """Also after a call that failed."""
        cdef int index
        cdef Node* node
        for index in range(self.node_count):
            node = &self.nodes[index]
            node.rows = 0
            node.null_count = 0
            node.validity.used = 0
            node.data.used = 0
            _reserve(&node.offsets, sizeof(int32_t))
            (<int32_t*>node.offsets.start)[0] = 0
        return 0

    cdef object _taken(self, int index):
        cdef Node* node = &self.nodes[index]
        validity = offsets = data = None
        if node.null_count:
            _cover(&node.validity, node.rows)
            validity = _taken_block(&node.validity, (node.rows + 7) // 8)
        if node.kind in (LIST, MAP, STRING, BINARY):
            offsets = _taken_block(&node.offsets, (node.rows + 1) * sizeof(int32_t))
        if node.kind in (STRING, BINARY):
            data = _taken_block(&node.data, node.data.used)
        elif node.kind == BOOLEAN:
            data = _taken_block(&node.data, (node.rows + 7) // 8)
        elif node.width:
            data = _taken_block(&node.data, node.rows * node.width)
        children = tuple([self._taken(each) for each in range(node.first, node.first + node.count)])
        return ValueBuffers(node.rows, node.null_count, validity, offsets, data, children)


def _laid_out(shape):
    """The shape and everything in it, with the children of each side by side; and the positions of the children."""
    shapes, firsts = [shape], []
    for each in shapes:
        firsts.append(len(shapes))
        shapes.extend(each.children)
    return shapes, firsts


# Columns.


cdef int _append_null(Node* nodes, Node* node) except -1:
    cdef Py_ssize_t row = node.rows
    cdef int index
    _cover(&node.validity, row + 1)
    if node.kind == STRUCT:
        for index in range(node.first, node.first + node.count):
            _append_null(nodes, &nodes[index])
    elif node.kind == LIST or node.kind == MAP:
        _end_list(nodes, node)
    elif node.kind == STRING or node.kind == BINARY:
        _end_text(node)
    elif node.kind == BOOLEAN:
        _append_boolean(node, False)
    else:
        memset(_room(node), 0, node.width)
    node.validity.start[row >> 3] &= ~(1 << (row & 7))
    node.null_count += 1
    node.rows = row + 1
    return 0


cdef inline uint8_t* _room(Node* node) except NULL:
    """Append an entry to a column of numbers; returns its position."""
    cdef Py_ssize_t at = node.rows * node.width
    _reserve(&node.data, at + node.width)
    node.rows += 1
    return node.data.start + at


cdef inline int _append_boolean(Node* node, bint value) except -1:
    cdef Py_ssize_t row = node.rows
    _reserve(&node.data, (row >> 3) + 1)
    if value:
        node.data.start[row >> 3] |= 1 << (row & 7)
    else:
        node.data.start[row >> 3] &= ~(1 << (row & 7))
    node.rows = row + 1
    return 0


cdef inline int _append_text(Node* node, const uint8_t* start, Py_ssize_t size) except -1:
    if size > INT32_MAX - node.data.used:
        return 0
    if size:
        _reserve(&node.data, node.data.used + size)
        memcpy(node.data.start + node.data.used, start, size)
        node.data.used += size
    _end_text(node)
    return 1


cdef inline int _end_text(Node* node) except -1:
    """Close an entry: the data added since the last one."""
    node.rows += 1
    _reserve(&node.offsets, (node.rows + 1) * sizeof(int32_t))
    (<int32_t*>node.offsets.start)[node.rows] = <int32_t>node.data.used
    return 0


cdef inline int _end_list(Node* nodes, Node* node) except -1:
    """Close an entry: the children added since the last one. Each took at least a byte, so 32 bits can count them."""
    node.rows += 1
    _reserve(&node.offsets, (node.rows + 1) * sizeof(int32_t))
    (<int32_t*>node.offsets.start)[node.rows] = <int32_t>nodes[node.first].rows
    return 0


cdef inline int _append_integer(Node* node, int64_t value) except -1:
    if node.kind == INT64 or node.kind == TIMESTAMP:
        (<int64_t*>_room(node))[0] = value
    elif node.kind == INT32 or node.kind == DATE:
        if <int32_t>value != value:
            return 0
        (<int32_t*>_room(node))[0] = <int32_t>value
    elif node.kind == INT16:
        if <int16_t>value != value:
            return 0
        (<int16_t*>_room(node))[0] = <int16_t>value
    else:
        if <int8_t>value != value:
            return 0
        (<int8_t*>_room(node))[0] = <int8_t>value
    return 1


cdef int _append_wide(Node* node, uint64_t high, uint64_t low, bint negative) except -1:
    """A 128-bit number."""
    cdef uint64_t* out = <uint64_t*>_room(node)
    if negative:
        low = ~low + 1
        high = ~high + (low == 0)
    out[0] = low
    out[1] = high
    return 1


cdef int _cut(Node* nodes, Node* node, Py_ssize_t rows) except -1:
    """Truncate to this many rows; some of the inner columns may have one more."""
    cdef Py_ssize_t row, inside = rows
    cdef int index
    for row in range(rows, node.rows):
        if node.null_count and not _is_valid(node, row):
            node.validity.start[row >> 3] |= 1 << (row & 7)
            node.null_count -= 1
    node.rows = rows
    if node.kind == STRING or node.kind == BINARY:
        node.data.used = (<int32_t*>node.offsets.start)[rows]
    elif node.kind == LIST or node.kind == MAP:
        inside = (<int32_t*>node.offsets.start)[rows]
    for index in range(node.first, node.first + node.count):
        _cut(nodes, &nodes[index], inside)
    return 0


cdef inline bint _is_valid(Node* node, Py_ssize_t row) noexcept:
    return row >> 3 >= node.validity.used or node.validity.start[row >> 3] >> (row & 7) & 1


cdef bint _is_new_key(Node* node, Py_ssize_t first) noexcept:
    """Whether the last of the keys from `first` on is new. Maps with too many keys are not checked."""
    cdef const int32_t* ends = <const int32_t*>node.offsets.start
    cdef Py_ssize_t last = node.rows - 1
    cdef int32_t size = ends[last + 1] - ends[last]
    cdef Py_ssize_t row
    if last - first >= MAP_ENTRIES_MAX:
        return False
    for row in range(first, last):
        if ends[row + 1] - ends[row] == size:
            if not size or memcmp(node.data.start + ends[row], node.data.start + ends[last], size) == 0:
                return False
    return True


cdef inline void _multiply(uint64_t left, uint64_t right, uint64_t* high, uint64_t* low) noexcept:
    """The 128-bit product."""
    cdef uint64_t low_low = (left & 0xFFFFFFFF) * (right & 0xFFFFFFFF)
    cdef uint64_t low_high = (left & 0xFFFFFFFF) * (right >> 32)
    cdef uint64_t high_low = (left >> 32) * (right & 0xFFFFFFFF)
    cdef uint64_t middle = (low_low >> 32) + (low_high & 0xFFFFFFFF) + (high_low & 0xFFFFFFFF)
    high[0] = (left >> 32) * (right >> 32) + (low_high >> 32) + (high_low >> 32) + (middle >> 32)
    low[0] = left * right


include "_avro_values.pxi"
include "_json_values.pxi"
include "_json_scalars.pxi"
