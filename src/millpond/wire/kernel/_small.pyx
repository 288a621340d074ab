# cython: language_level=3
"""Small requests of consumers and members, compiled; `fetch` and `group_requests` declare them.

Every read comes after a comparison with the bytes left.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy

cdef enum:
    SMALL_BYTES_MAX = 1024
    HEADER_BYTES = 10
    REPLY_HEAD_BYTES = 20
    REPLY_TAIL_BYTES = 3

    FETCH = 1
    FETCH_OLDEST = 12
    FETCH_NEWEST = 18
    FETCH_TOPIC_IDS_FROM = 13
    FETCH_REPLICA_STATE_FROM = 15
    READ_COMMITTED = 1

    HEARTBEAT = 12
    HEARTBEAT_STATIC_FROM = 3
    HEARTBEAT_FLEXIBLE_FROM = 4
    HEARTBEAT_NEWEST = 4

    CONSUMER_HEARTBEAT = 68
    CONSUMER_HEARTBEAT_REGEX_FROM = 1
    CONSUMER_HEARTBEAT_NEWEST = 1

    COMMIT = 8
    COMMIT_STATIC_FROM = 7
    COMMIT_FLEXIBLE_FROM = 8
    COMMIT_NEWEST = 9

include "_big_endian.pxi"


cdef struct Cursor:
    const uint8_t* data
    Py_ssize_t at
    Py_ssize_t end
    bint is_flexible
    bint is_unusual


cdef uint8_t* _put_unsigned(uint8_t* at, uint64_t value) noexcept:
    while value >= 0x80:
        at[0] = <uint8_t>(value & 0x7F | 0x80)
        at += 1
        value >>= 7
    at[0] = <uint8_t>value
    return at + 1


cdef Py_ssize_t _unsigned_bytes(uint64_t value) noexcept:
    cdef Py_ssize_t count = 1
    while value >= 0x80:
        value >>= 7
        count += 1
    return count


cdef Py_ssize_t _after_header(const uint8_t* data, Py_ssize_t end, bint is_flexible) noexcept:
    """The position of the body of a request whose header has no tags and an ASCII client id; -1 for others."""
    cdef Py_ssize_t client = _int16(data + 8)
    cdef Py_ssize_t at = HEADER_BYTES
    if client < -1 or client > end - HEADER_BYTES:
        return -1
    while at < HEADER_BYTES + client:
        if data[at] >= 0x80:
            return -1
        at += 1
    if not is_flexible:
        return at
    if at >= end or data[at]:
        return -1
    return at + 1


cdef object _client_id(const uint8_t* data):
    cdef Py_ssize_t client = _int16(data + 8)
    return None if client < 0 else PyBytes_FromStringAndSize(<const char*>data + HEADER_BYTES, client)


# Fetch.

cdef class ShortFetch:
    """See `fetch.ShortFetch`."""

    cdef readonly int version
    cdef readonly int32_t correlation_id
    cdef readonly object client_id
    cdef readonly int32_t max_wait_ms
    cdef readonly int32_t min_bytes
    cdef readonly int32_t max_bytes
    cdef readonly int isolation_level
    cdef readonly int32_t session_id
    cdef readonly int32_t session_epoch
    cdef readonly object key
    cdef readonly int32_t leader_epoch
    cdef readonly int64_t fetch_offset
    cdef readonly int32_t bytes_max

    def __init__(self):
        raise TypeError("`short_fetch` makes them")

    cdef uint8_t* _put_head(self, uint8_t* at, Py_ssize_t length, int responses) noexcept:
        at = _put_int32(at, length)
        at = _put_int32(at, self.correlation_id)
        # No tags, no throttle time, no error.
        at = _put_byte(at, 0)
        at = _put_int32(at, 0)
        at = _put_byte(_put_byte(at, 0), 0)
        at = _put_int32(at, self.session_id)
        return _put_byte(at, responses)

    def reply(
        self,
        bytes topic,
        int32_t partition,
        int64_t high_watermark,
        int64_t stable_offset,
        int64_t start_offset,
        Py_ssize_t size,
    ):
        """See `fetch.ShortFetch.reply`."""
        cdef Py_ssize_t topic_length = len(topic)
        cdef bint is_id = self.version >= FETCH_TOPIC_IDS_FROM
        cdef Py_ssize_t whole = REPLY_HEAD_BYTES + topic_length + 1 + 4 + 2 + 24 + 1 + 4 + _unsigned_bytes(size + 1)
        cdef bytes made
        cdef uint8_t* at
        if not is_id:
            whole += _unsigned_bytes(topic_length + 1)
        made = PyBytes_FromStringAndSize(NULL, whole)
        at = <uint8_t*>PyBytes_AsString(made)
        at = self._put_head(at, whole - 4 + size + REPLY_TAIL_BYTES, 2)
        if not is_id:
            at = _put_unsigned(at, topic_length + 1)
        memcpy(at, PyBytes_AsString(topic), topic_length)
        at = _put_byte(at + topic_length, 2)
        at = _put_int32(at, partition)
        at = _put_byte(_put_byte(at, 0), 0)
        at = _put_int64(at, high_watermark)
        at = _put_int64(at, stable_offset)
        at = _put_int64(at, start_offset)
        at = _put_byte(at, 1 if self.isolation_level == READ_COMMITTED else 0)
        at = _put_int32(at, -1)
        at = _put_unsigned(at, size + 1)
        assert at - <uint8_t*>PyBytes_AsString(made) == whole
        return made

    def reply_nothing(self):
        """See `fetch.ShortFetch.reply_nothing`."""
        cdef bytes made = PyBytes_FromStringAndSize(NULL, REPLY_HEAD_BYTES + 1)
        cdef uint8_t* at = self._put_head(<uint8_t*>PyBytes_AsString(made), REPLY_HEAD_BYTES - 3, 1)
        _put_byte(at, 0)
        return made


def short_fetch(frame):
    """See `fetch.short_fetch`."""
    cdef Py_buffer view
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        return _short_fetch(<const uint8_t*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef object _short_fetch(const uint8_t* data, Py_ssize_t end):
    cdef ShortFetch short
    cdef Py_ssize_t at, asked, topic = 0, length = 16
    cdef int version
    cdef const uint8_t* partition = NULL
    cdef uint8_t* key
    if end < HEADER_BYTES or end > SMALL_BYTES_MAX or _int16(data) != FETCH:
        return None
    version = _int16(data + 2)
    if version < FETCH_OLDEST or version > FETCH_NEWEST:
        return None
    at = _after_header(data, end, True)
    if at < 0:
        return None
    if version < FETCH_REPLICA_STATE_FROM:
        if end - at < 4 or _int32(data + at) != -1:
            return None
        at += 4
    asked = at
    if end - at < 22:
        return None
    at += 22
    if data[at - 1] == 2:
        if version < FETCH_TOPIC_IDS_FROM:
            if at >= end:
                return None
            length = <Py_ssize_t>data[at] - 1
            at += 1
            if length < 0 or length >= 127:
                return None
        topic = at
        # The partition count, one partition, its tags and the topic's tags.
        if end - at < length + 1 + 32 + 2 or data[at + length] != 2:
            return None
        partition = data + at + length + 1
        if partition[32] or partition[33]:
            return None
        at += length + 1 + 32 + 2
    elif data[at - 1] != 1:
        return None
    if end - at != 3 or data[at] != 1 or data[at + 1] != 1 or data[at + 2]:
        return None
    short = ShortFetch.__new__(ShortFetch)
    short.version = version
    short.correlation_id = _int32(data + 4)
    short.client_id = _client_id(data)
    short.max_wait_ms = _int32(data + asked)
    short.min_bytes = _int32(data + asked + 4)
    short.max_bytes = _int32(data + asked + 8)
    short.isolation_level = <int><signed char>data[asked + 12]
    short.session_id = _int32(data + asked + 13)
    short.session_epoch = _int32(data + asked + 17)
    if partition == NULL:
        short.key = None
        short.leader_epoch = -1
        short.fetch_offset = short.bytes_max = 0
        return short
    short.key = PyBytes_FromStringAndSize(NULL, length + 4)
    key = <uint8_t*>PyBytes_AsString(short.key)
    memcpy(key, data + topic, length)
    memcpy(key + length, partition, 4)
    short.leader_epoch = _int32(partition + 4)
    short.fetch_offset = _int64(partition + 8)
    # In between: the epoch of the last record read and a follower's log start offset, which consumers do not send.
    short.bytes_max = _int32(partition + 28)
    return short


# Groups.

cdef Py_ssize_t _string(Cursor* cursor, const uint8_t** begin) noexcept:
    """The position and length of the next string; -1 for null. Long, truncated and non-ASCII strings are unusual."""
    cdef Py_ssize_t length, at
    begin[0] = cursor.data
    if cursor.is_unusual:
        return -1
    if cursor.is_flexible:
        if cursor.at >= cursor.end:
            cursor.is_unusual = True
            return -1
        length = <Py_ssize_t>cursor.data[cursor.at] - 1
        cursor.at += 1
        if length >= 127:
            cursor.is_unusual = True
            return -1
    else:
        if cursor.end - cursor.at < 2:
            cursor.is_unusual = True
            return -1
        length = _int16(cursor.data + cursor.at)
        cursor.at += 2
    if length < -1 or length > cursor.end - cursor.at:
        cursor.is_unusual = True
        return -1
    for at in range(cursor.at, cursor.at + length):
        if cursor.data[at] >= 0x80:
            cursor.is_unusual = True
            return -1
    begin[0] = cursor.data + cursor.at
    if length > 0:
        cursor.at += length
    return length


cdef object _text(Cursor* cursor):
    """The next string; None if it is null, which is unusual."""
    cdef const uint8_t* begin
    cdef Py_ssize_t length = _string(cursor, &begin)
    if length < 0:
        cursor.is_unusual = True
        return None
    return PyUnicode_DecodeUTF8(<const char*>begin, length, NULL)


cdef object _text_or_none(Cursor* cursor):
    cdef const uint8_t* begin
    cdef Py_ssize_t length = _string(cursor, &begin)
    return None if length < 0 else PyUnicode_DecodeUTF8(<const char*>begin, length, NULL)


cdef int32_t _next_int32(Cursor* cursor) noexcept:
    if cursor.end - cursor.at < 4:
        cursor.is_unusual = True
        return 0
    cursor.at += 4
    return _int32(cursor.data + cursor.at - 4)


cdef bint _has_one(Cursor* cursor) noexcept:
    """Whether the next list has one item."""
    if cursor.is_flexible:
        cursor.at += 1
        return cursor.at <= cursor.end and cursor.data[cursor.at - 1] == 2
    return _next_int32(cursor) == 1 and not cursor.is_unusual


cdef bint _is_over(Cursor* cursor, int tags) noexcept:
    """Whether only the empty tags of this many structures are left."""
    cdef int number
    if cursor.is_unusual:
        return False
    if not cursor.is_flexible:
        return cursor.at == cursor.end
    if cursor.end - cursor.at != tags:
        return False
    for number in range(tags):
        if cursor.data[cursor.at + number]:
            return False
    return True


cdef bint _open(Cursor* cursor, const uint8_t* data, Py_ssize_t end, int key, int oldest, int newest, int flexible):
    """Read the request header; false if the request is for another API."""
    cdef int version
    if end < HEADER_BYTES or end > SMALL_BYTES_MAX or _int16(data) != key:
        return False
    version = _int16(data + 2)
    if version < oldest or version > newest:
        return False
    cursor.data = data
    cursor.end = end
    cursor.is_flexible = version >= flexible
    cursor.is_unusual = False
    cursor.at = _after_header(data, end, cursor.is_flexible)
    return cursor.at >= 0


cdef object _client_text(const uint8_t* data):
    cdef Py_ssize_t client = _int16(data + 8)
    return "" if client <= 0 else PyUnicode_DecodeUTF8(<const char*>data + HEADER_BYTES, client, NULL)


cdef class _Short:
    cdef readonly int version
    cdef readonly int32_t correlation_id
    cdef readonly str client_id
    cdef readonly str group_id
    cdef readonly str member_id

    def __init__(self):
        raise TypeError("they are read from frames")

    cdef int _take_header(self, const uint8_t* data) except -1:
        self.version = _int16(data + 2)
        self.correlation_id = _int32(data + 4)
        self.client_id = _client_text(data)
        return 0


cdef class ShortHeartbeat(_Short):
    """See `group_requests.ShortHeartbeat`."""

    cdef readonly int32_t generation

    def reply(self):
        """See `group_requests.ShortHeartbeat.reply`."""
        cdef bint is_flexible = self.version >= HEARTBEAT_FLEXIBLE_FROM
        cdef Py_ssize_t whole = 16 if is_flexible else 14
        cdef bytes made = PyBytes_FromStringAndSize(NULL, whole)
        cdef uint8_t* at = <uint8_t*>PyBytes_AsString(made)
        at = _put_int32(at, whole - 4)
        at = _put_int32(at, self.correlation_id)
        if is_flexible:
            at = _put_byte(at, 0)
        # No throttle time, no error.
        at = _put_int32(at, 0)
        at = _put_byte(_put_byte(at, 0), 0)
        if is_flexible:
            _put_byte(at, 0)
        return made


cdef class ShortConsumerHeartbeat(_Short):
    """See `group_requests.ShortConsumerHeartbeat`."""

    cdef readonly int32_t epoch

    def reply(self, int32_t interval_ms):
        """See `group_requests.ShortConsumerHeartbeat.reply`."""
        cdef Py_ssize_t length = 0
        cdef const char* member = PyUnicode_AsUTF8AndSize(self.member_id, &length)
        cdef Py_ssize_t whole = 16 + 1 + length + 4 + 4 + 1 + 1
        cdef bytes made = PyBytes_FromStringAndSize(NULL, whole)
        cdef uint8_t* at = <uint8_t*>PyBytes_AsString(made)
        at = _put_int32(at, whole - 4)
        at = _put_int32(at, self.correlation_id)
        at = _put_byte(at, 0)
        # No throttle time, no error, no message.
        at = _put_int32(at, 0)
        at = _put_byte(_put_byte(_put_byte(at, 0), 0), 0)
        at = _put_byte(at, length + 1)
        memcpy(at, member, length)
        at = _put_int32(at + length, self.epoch)
        at = _put_int32(at, interval_ms)
        # No assignment, no tags.
        at = _put_byte(_put_byte(at, -1), 0)
        assert at - <uint8_t*>PyBytes_AsString(made) == whole
        return made


cdef class ShortCommit(_Short):
    """See `group_requests.ShortCommit`."""

    cdef readonly int32_t generation
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly int64_t offset
    cdef readonly int32_t leader_epoch
    cdef readonly str metadata

    def reply(self):
        """See `group_requests.ShortCommit.reply`."""
        cdef bint is_flexible = self.version >= COMMIT_FLEXIBLE_FROM
        cdef Py_ssize_t length = 0
        cdef const char* topic = PyUnicode_AsUTF8AndSize(self.topic, &length)
        # Length, correlation id, throttle time, name, partition, error; then tags and counts.
        cdef Py_ssize_t whole = 12 + length + 6 + (1 + 3 + 3 if is_flexible else 4 + 2 + 4)
        cdef bytes made = PyBytes_FromStringAndSize(NULL, whole)
        cdef uint8_t* at = <uint8_t*>PyBytes_AsString(made)
        at = _put_int32(at, whole - 4)
        at = _put_int32(at, self.correlation_id)
        if is_flexible:
            at = _put_byte(at, 0)
        at = _put_int32(at, 0)
        if is_flexible:
            at = _put_byte(_put_byte(at, 2), length + 1)
        else:
            at = _put_int32(at, 1)
            at = _put_byte(_put_byte(at, length >> 8), length & 0xFF)
        memcpy(at, topic, length)
        at += length
        at = _put_byte(at, 2) if is_flexible else _put_int32(at, 1)
        at = _put_int32(at, self.partition)
        at = _put_byte(_put_byte(at, 0), 0)
        if is_flexible:
            at = _put_byte(_put_byte(_put_byte(at, 0), 0), 0)
        assert at - <uint8_t*>PyBytes_AsString(made) == whole
        return made


def short_heartbeat(frame):
    """See `group_requests.short_heartbeat`."""
    cdef Py_buffer view
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        return _short_heartbeat(<const uint8_t*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef object _short_heartbeat(const uint8_t* data, Py_ssize_t end):
    cdef Cursor cursor
    cdef ShortHeartbeat short
    cdef const uint8_t* begin
    if not _open(
        &cursor, data, end, HEARTBEAT, HEARTBEAT_STATIC_FROM, HEARTBEAT_NEWEST, HEARTBEAT_FLEXIBLE_FROM
    ):
        return None
    short = ShortHeartbeat.__new__(ShortHeartbeat)
    short.group_id = _text(&cursor)
    short.generation = _next_int32(&cursor)
    short.member_id = _text(&cursor)
    if _string(&cursor, &begin) >= 0 or not _is_over(&cursor, 1):
        return None
    short._take_header(data)
    return short


def short_consumer_heartbeat(frame):
    """See `group_requests.short_consumer_heartbeat`."""
    cdef Py_buffer view
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        return _short_consumer_heartbeat(<const uint8_t*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef object _short_consumer_heartbeat(const uint8_t* data, Py_ssize_t end):
    cdef Cursor cursor
    cdef ShortConsumerHeartbeat short
    cdef int number
    if not _open(&cursor, data, end, CONSUMER_HEARTBEAT, 0, CONSUMER_HEARTBEAT_NEWEST, 0):
        return None
    short = ShortConsumerHeartbeat.__new__(ShortConsumerHeartbeat)
    short.group_id = _text(&cursor)
    short.member_id = _text(&cursor)
    short.epoch = _next_int32(&cursor)
    # No instance id, no rack, no timeout, no topic names.
    if cursor.is_unusual or cursor.end - cursor.at < 7:
        return None
    for number in range(7):
        if data[cursor.at + number] != (0xFF if 2 <= number < 6 else 0):
            return None
    cursor.at += 7
    # No pattern (from version 1 on), no assignor, no partitions, no tags.
    if not _is_over(&cursor, 4 if _int16(data + 2) >= CONSUMER_HEARTBEAT_REGEX_FROM else 3):
        return None
    short._take_header(data)
    return short


def short_commit(frame):
    """See `group_requests.short_commit`."""
    cdef Py_buffer view
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        return _short_commit(<const uint8_t*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef object _short_commit(const uint8_t* data, Py_ssize_t end):
    cdef Cursor cursor
    cdef ShortCommit short
    cdef const uint8_t* begin
    if not _open(&cursor, data, end, COMMIT, COMMIT_STATIC_FROM, COMMIT_NEWEST, COMMIT_FLEXIBLE_FROM):
        return None
    short = ShortCommit.__new__(ShortCommit)
    short.group_id = _text(&cursor)
    short.generation = _next_int32(&cursor)
    short.member_id = _text(&cursor)
    if _string(&cursor, &begin) >= 0 or cursor.is_unusual or not _has_one(&cursor):
        return None
    short.topic = _text(&cursor)
    if cursor.is_unusual or not _has_one(&cursor) or cursor.end - cursor.at < 16:
        return None
    short.partition = _int32(data + cursor.at)
    short.offset = _int64(data + cursor.at + 4)
    short.leader_epoch = _int32(data + cursor.at + 12)
    cursor.at += 16
    short.metadata = _text_or_none(&cursor)
    if not _is_over(&cursor, 3):
        return None
    short._take_header(data)
    return short
