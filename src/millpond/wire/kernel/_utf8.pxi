# Part of _columns.pyx and _values.pyx.


cdef bint _is_utf8(const uint8_t* text, Py_ssize_t size) noexcept:
    """As Python decodes it: shortest forms only, no surrogates, nothing beyond U+10FFFF."""
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t more, index
    cdef uint8_t byte, low, high
    cdef uint64_t eight
    cdef uint64_t[4] eights
    while at < size:
        if size - at >= 32:
            memcpy(eights, text + at, 32)
            if not (eights[0] | eights[1] | eights[2] | eights[3]) & 0x8080808080808080ULL:
                at += 32
                continue
        if size - at >= 8:
            memcpy(&eight, text + at, 8)
            if not eight & 0x8080808080808080ULL:
                at += 8
                continue
        byte = text[at]
        at += 1
        if byte < 0x80:
            continue
        if byte < 0xC2 or byte > 0xF4:
            return False
        more = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
        low = 0xA0 if byte == 0xE0 else 0x90 if byte == 0xF0 else 0x80
        high = 0x9F if byte == 0xED else 0x8F if byte == 0xF4 else 0xBF
        if more > size - at or not low <= text[at] <= high:
            return False
        for index in range(1, more):
            if text[at + index] & 0xC0 != 0x80:
                return False
        at += more
    return True
