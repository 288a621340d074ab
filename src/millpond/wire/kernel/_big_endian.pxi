# Part of _fast.pyx and _small.pyx: numbers in the protocol's byte order.


cdef int16_t _int16(const uint8_t* at) noexcept:
    return <int16_t>(<uint16_t>(at[0] << 8 | at[1]))


cdef int32_t _int32(const uint8_t* at) noexcept:
    return <int32_t>(<uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | <uint32_t>at[3])


cdef int64_t _int64(const uint8_t* at) noexcept:
    return <int64_t>(<uint64_t><uint32_t>_int32(at) << 32 | <uint64_t><uint32_t>_int32(at + 4))


cdef uint8_t* _put_byte(uint8_t* at, Py_ssize_t value) noexcept:
    at[0] = <uint8_t>value
    return at + 1


cdef uint8_t* _put_int32(uint8_t* at, Py_ssize_t value) noexcept:
    at[0] = <uint8_t>(value >> 24)
    at[1] = <uint8_t>(value >> 16)
    at[2] = <uint8_t>(value >> 8)
    at[3] = <uint8_t>value
    return at + 4


cdef uint8_t* _put_int64(uint8_t* at, int64_t value) noexcept:
    return _put_int32(_put_int32(at, value >> 32), value & 0xFFFFFFFF)
