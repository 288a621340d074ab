# Part of _columns.pyx and _values.pyx: growing memory blocks that are handed out. Each file defines BLOCK_BYTES_MIN.


cdef struct Block:
    # `wished` is the size of the block when it was last handed out; the next one starts at that size.
    uint8_t* start
    Py_ssize_t used
    Py_ssize_t capacity
    Py_ssize_t wished


@cython.final
cdef class Memory:
    """The content of one block, on the C heap, exposed through the buffer protocol."""

    cdef uint8_t* start
    cdef Py_ssize_t size

    def __dealloc__(self):
        free(self.start)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.start, self.size, 1, flags)


cdef inline int _reserve(Block* block, Py_ssize_t size) except -1:
    if size > block.capacity:
        _grow(block, size)
    return 0


cdef int _grow(Block* block, Py_ssize_t size) except -1:
    cdef Py_ssize_t capacity = max(size, 2 * block.capacity, block.wished, BLOCK_BYTES_MIN)
    cdef void* start = realloc(block.start, capacity)
    if start is NULL:
        raise MemoryError(f"{capacity} bytes for a column")
    block.start = <uint8_t*>start
    block.capacity = capacity
    return 0


cdef object _taken_block(Block* block, Py_ssize_t size):
    """Take the first `size` bytes of the block, which starts again empty."""
    cdef Memory memory
    if size == 0:
        return b""
    memory = Memory.__new__(Memory)
    memory.start = block.start
    memory.size = size
    block.start = NULL
    block.used = 0
    block.capacity = 0
    block.wished = size
    return PyMemoryView_FromObject(memory)


cdef int _cover(Block* validity, Py_ssize_t rows) except -1:
    """Make room for a bit per row; new bits are 1."""
    cdef Py_ssize_t size = (rows + 7) // 8
    if size > validity.used:
        _reserve(validity, size)
        memset(validity.start + validity.used, 0xFF, validity.capacity - validity.used)
        validity.used = validity.capacity
    return 0
