# Part of _values.pyx: JSON values, as Python's reader and json_rows read them. Rare or ambiguous input is refused:
# repeated names, names with escapes, deep nesting, endless numbers.

cdef inline void _pass_space(State* state) noexcept:
    """Usually there is none, or one."""
    if state.at < state.end and state.at[0] == c" ":
        state.at += 1
    if state.at < state.end and state.at[0] <= c" ":
        _pass_more_space(state)


cdef void _pass_more_space(State* state) noexcept:
    while state.at < state.end and (
        state.at[0] == c" " or state.at[0] == c"\n" or state.at[0] == c"\r" or state.at[0] == c"\t"
    ):
        state.at += 1


cdef inline bint _pass(State* state, uint8_t character) noexcept:
    if state.at < state.end and state.at[0] == character:
        state.at += 1
        return True
    return False


cdef inline bint _pass_word(State* state, const char* word, Py_ssize_t size) noexcept:
    if state.end - state.at >= size and memcmp(state.at, word, size) == 0:
        state.at += size
        return True
    return False


cdef int _json_document(State* state) except -1:
    if not _is_utf8(state.at, state.end - state.at):
        return 0
    _pass_space(state)
    if not _pass(state, c"{") or not _json_struct(state, state.nodes):
        return 0
    _pass_space(state)
    return state.at == state.end


cdef int _json_struct(State* state, Node* node) except -1:
    """Starts after the brace."""
    cdef Py_ssize_t row = node.rows
    cdef Node* children = state.nodes + node.first
    cdef Node* child = children
    # Usually the next field is the one after the last.
    cdef Node* expected = children
    cdef Node* behind = children + node.count
    cdef Text name
    cdef bint escaped
    cdef int read = 0
    _pass_space(state)
    if not _pass(state, c"}"):
        while True:
            if not _pass(state, c'"'):
                return 0
            if expected < behind and _pass_key(state, expected):
                child = expected
            else:
                if not _json_text(state, &name, &escaped) or escaped:
                    return 0
                child = _named(children, behind, &name)
            _pass_space(state)
            if not _pass(state, c":"):
                return 0
            _pass_space(state)
            if child is NULL:
                if not _json_skip(state, 0):
                    return 0
            else:
                # Once read, a child has one more entry than its struct.
                if child.rows != row or not _json_value(state, child):
                    return 0
                expected = child + 1
                read += 1
            _pass_space(state)
            if _pass(state, c","):
                _pass_space(state)
            elif _pass(state, c"}"):
                break
            else:
                return 0
    if read < node.count and not _without(state, children, behind, row):
        return 0
    node.rows = row + 1
    return 1


cdef int _without(State* state, Node* child, Node* behind, Py_ssize_t row) except -1:
    """Missing fields become null, if they are nullable."""
    while child < behind:
        if child.rows == row:
            if child.required:
                return 0
            _append_null(state.nodes, child)
        child += 1
    return 1


cdef inline bint _pass_key(State* state, Node* node) noexcept:
    """Starts after the quote."""
    cdef uint64_t head
    cdef Py_ssize_t size = node.key.size
    if state.end - state.at < 8 or state.end - state.at < size or not size:
        return False
    memcpy(&head, state.at, 8)
    if head & node.key_mask != node.key_head or (size > 8 and memcmp(state.at + 8, node.key.start + 8, size - 8)):
        return False
    state.at += size
    return True


cdef Node* _named(Node* children, Node* behind, Text* name) noexcept:
    while children < behind:
        if children.name.size == name.size and memcmp(children.name.start, name.start, name.size) == 0:
            return children
        children += 1
    return NULL


cdef int _json_value(State* state, Node* node) except -1:
    cdef uint8_t character
    cdef int kind = node.kind
    if state.at >= state.end:
        return 0
    character = state.at[0]
    if character == c'"':
        state.at += 1
        return _json_from_text(state, node)
    if character <= c"9":
        return _json_from_number(state, node)
    if character == c"{":
        state.at += 1
        if kind == STRUCT:
            return _json_struct(state, node)
        return kind == MAP and _json_map(state, node)
    if character == c"[":
        state.at += 1
        return kind == LIST and _json_list(state, node)
    if character == c"t" or character == c"f":
        return _json_boolean(state, node, character == c"t")
    if character == c"n":
        if node.required or not _pass_word(state, "null", 4):
            return 0
        _append_null(state.nodes, node)
        return 1
    return (kind == DOUBLE or kind == FLOAT) and _json_not_finite(state, node)


cdef int _json_list(State* state, Node* node) except -1:
    """Starts after the bracket."""
    cdef Node* child = state.nodes + node.first
    _pass_space(state)
    if not _pass(state, c"]"):
        while True:
            if not _json_value(state, child):
                return 0
            _pass_space(state)
            if _pass(state, c","):
                _pass_space(state)
            elif _pass(state, c"]"):
                break
            else:
                return 0
    _end_list(state.nodes, node)
    return 1


cdef int _json_map(State* state, Node* node) except -1:
    """Starts after the brace."""
    cdef Node* key = state.nodes + node.first
    cdef Py_ssize_t first = key.rows
    _pass_space(state)
    if not _pass(state, c"}"):
        while True:
            if not _pass(state, c'"') or not _json_string(state, key) or not _is_new_key(key, first):
                return 0
            _pass_space(state)
            if not _pass(state, c":"):
                return 0
            _pass_space(state)
            if not _json_value(state, key + 1):
                return 0
            _pass_space(state)
            if _pass(state, c","):
                _pass_space(state)
            elif _pass(state, c"}"):
                break
            else:
                return 0
    _end_list(state.nodes, node)
    return 1


cdef int _json_boolean(State* state, Node* node, bint value) except -1:
    cdef const uint8_t* start = state.at
    if not (_pass_word(state, "true", 4) if value else _pass_word(state, "false", 5)):
        return 0
    if node.kind == BOOLEAN:
        _append_boolean(node, value)
        return 1
    return node.kind == STRING and _append_text(node, start, state.at - start)


cdef int _json_skip(State* state, int depth) except -1:
    """A value that was not requested. It must be valid all the same."""
    cdef uint8_t character
    cdef uint8_t end
    cdef Text text
    cdef bint escaped
    cdef Number number
    if state.at >= state.end or depth > SKIPPED_DEPTH_MAX:
        return 0
    character = state.at[0]
    if character == c'"':
        state.at += 1
        return _json_text(state, &text, &escaped) and (not escaped or _unescaped(&text, NULL, False) >= 0)
    if character == c"t":
        return _pass_word(state, "true", 4)
    if character == c"f":
        return _pass_word(state, "false", 5)
    if character == c"n":
        return _pass_word(state, "null", 4)
    if character == c"N":
        return _pass_word(state, "NaN", 3)
    if character == c"I":
        return _pass_word(state, "Infinity", 8)
    if character != c"{" and character != c"[":
        return _pass_word(state, "-Infinity", 9) or _json_number(state, &number)
    end = c"}" if character == c"{" else c"]"
    state.at += 1
    _pass_space(state)
    if _pass(state, end):
        return 1
    while True:
        if character == c"{":
            if not _pass(state, c'"') or not _json_text(state, &text, &escaped):
                return 0
            if escaped and _unescaped(&text, NULL, False) < 0:
                return 0
            _pass_space(state)
            if not _pass(state, c":"):
                return 0
            _pass_space(state)
        if not _json_skip(state, depth + 1):
            return 0
        _pass_space(state)
        if _pass(state, c","):
            _pass_space(state)
        else:
            return _pass(state, end)


# Texts.


cdef inline bint _json_text(State* state, Text* text, bint* escaped) noexcept:
    """From after the quote to after the closing one. Escapes are not checked."""
    cdef const uint8_t* at = state.at
    cdef const uint8_t* end = state.end
    text.start = at
    escaped[0] = False
    while True:
        while end - at >= 8 and not _has_special(at):
            at += 8
        # It is among the next eight, or among the last.
        while at < end and at[0] != c'"' and at[0] != c"\\" and at[0] >= 0x20:
            at += 1
        if at >= end or at[0] < 0x20:
            return False
        if at[0] == c'"':
            text.size = at - text.start
            state.at = at + 1
            return True
        if end - at < 2:
            return False
        escaped[0] = True
        at += 2


cdef inline bint _has_special(const uint8_t* at) noexcept:
    """Whether one of eight bytes ends a text, begins an escape or is none of a text: a byte that is to be found is
    made zero, and taking one from that needs the highest bit."""
    cdef uint64_t eight, quotes, slashes
    memcpy(&eight, at, 8)
    quotes = eight ^ 0x2222222222222222ULL
    slashes = eight ^ 0x5C5C5C5C5C5C5C5CULL
    return (
        ((quotes - 0x0101010101010101ULL) & ~quotes)
        | ((slashes - 0x0101010101010101ULL) & ~slashes)
        | ((eight - 0x2020202020202020ULL) & ~eight)
    ) & 0x8080808080808080ULL != 0


cdef int _json_string(State* state, Node* node) except -1:
    """Append a text to a column of texts."""
    cdef Text text
    cdef bint escaped
    cdef Py_ssize_t size
    if not _json_text(state, &text, &escaped):
        return 0
    if not escaped:
        if text.size > 16 or state.end - text.start < 16 or node.data.used > INT32_MAX - 16:
            return _append_text(node, text.start, text.size)
        # A copy of constant size takes a few instructions; the next one overwrites the excess.
        _reserve(&node.data, node.data.used + 16)
        memcpy(node.data.start + node.data.used, text.start, 16)
        node.data.used += text.size
        _end_text(node)
        return 1
    # No character is longer than its escape.
    if text.size > INT32_MAX - node.data.used:
        return 0
    _reserve(&node.data, node.data.used + text.size)
    size = _unescaped(&text, node.data.start + node.data.used, True)
    if size < 0:
        return 0
    node.data.used += size
    _end_text(node)
    return 1


cdef Py_ssize_t _unescaped(Text* text, uint8_t* out, bint whole) noexcept:
    """Write to `out` unless it is NULL; returns the size, or -1. With `whole`, also -1 for half a surrogate pair."""
    cdef const uint8_t* at = text.start
    cdef const uint8_t* end = at + text.size
    cdef Py_ssize_t size = 0
    cdef uint32_t code, half
    cdef uint8_t character
    while at < end:
        if at[0] != c"\\":
            if out is not NULL:
                out[size] = at[0]
            size += 1
            at += 1
            continue
        character = at[1]
        at += 2
        if character == c"u":
            if not _hex(at, end, &code):
                return -1
            at += 4
            if 0xD800 <= code < 0xE000:
                if code < 0xDC00 and end - at >= 6 and at[0] == c"\\" and at[1] == c"u" and _hex(at + 2, end, &half):
                    if 0xDC00 <= half < 0xE000:
                        code = 0x10000 + ((code - 0xD800) << 10) + (half - 0xDC00)
                        at += 6
                if code < 0x10000 and whole:
                    return -1
        elif character == c"n":
            code = 10
        elif character == c'"' or character == c"\\" or character == c"/":
            code = character
        elif character == c"t":
            code = 9
        elif character == c"r":
            code = 13
        elif character == c"b":
            code = 8
        elif character == c"f":
            code = 12
        else:
            return -1
        size += _write_utf8(code, NULL if out is NULL else out + size)
    return size


cdef inline bint _hex(const uint8_t* at, const uint8_t* end, uint32_t* code) noexcept:
    cdef int index
    cdef uint8_t digit
    if end - at < 4:
        return False
    code[0] = 0
    for index in range(4):
        digit = at[index]
        if c"0" <= digit <= c"9":
            digit -= c"0"
        elif c"a" <= digit <= c"f":
            digit -= c"a" - 10
        elif c"A" <= digit <= c"F":
            digit -= c"A" - 10
        else:
            return False
        code[0] = code[0] << 4 | digit
    return True


cdef inline int _write_utf8(uint32_t code, uint8_t* out) noexcept:
    cdef int more = 0 if code < 0x80 else 1 if code < 0x800 else 2 if code < 0x10000 else 3
    cdef int index
    if out is NULL:
        return more + 1
    if more == 0:
        out[0] = <uint8_t>code
        return 1
    for index in range(more, 0, -1):
        out[index] = 0x80 | (code & 0x3F)
        code >>= 6
    out[0] = <uint8_t>(code | (0xFF00 >> (more + 1) & 0xFF))
    return more + 1
