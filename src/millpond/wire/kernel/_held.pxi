# Part of _rows.pyx and _values.pyx.


@cython.final
cdef class Held:
    """A buffer that stays in place as long as this object exists."""

    cdef Py_buffer view

    def __cinit__(self, buffer):
        PyObject_GetBuffer(buffer, &self.view, PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.view)
