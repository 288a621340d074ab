# cython: language_level=3
"""A client library's raw messages into message objects, compiled: the twin of `messages`, with the same results."""

from cpython.object cimport PyObject, PyTypeObject

from millpond.wire.kernel.messages import SLOTS, repaired_headers

cdef extern from "Python.h":
    object PyType_GenericAlloc(PyTypeObject* kind, Py_ssize_t items)
    void* PyType_GetSlot(PyTypeObject* kind, int slot)
    int Py_tp_descr_set
    PyObject* PyErr_Occurred()

ctypedef int (*Put)(PyObject* slot, PyObject* made, PyObject* value) except -1


cdef int _raise_pending() except -1:
    return -1 if PyErr_Occurred() is not NULL else 0


cdef object _headers(object headers_of, object raw):
    """See `messages.read_headers`."""
    try:
        found = headers_of(raw)
        # If a name is not UTF-8, confluent-kafka returns a list and leaves an exception set.
        _raise_pending()
    except (UnicodeDecodeError, SystemError) as fault:
        return repaired_headers(raw, fault)
    return tuple(found) if found else ()


def read_messages(list raws, type kind, list into):
    """See `messages.read_messages`."""
    cdef list events = []
    cdef Py_ssize_t index
    cdef object raw, made, topic, partition, found
    cdef object offset = None, run_topic = None, run_partition = None
    cdef object raw_kind = None
    cdef object error_of, topic_of, partition_of, offset_of, timestamp_of, key_of, value_of, headers_of
    assert kind.__slots__ == SLOTS, f"{kind} has other slots than {SLOTS}"
    topic_slot, partition_slot, offset_slot, timestamp_slot, key_slot, value_slot, headers_slot = [
        kind.__dict__[name] for name in SLOTS
    ]
    # A frozen class refuses assignments in __setattr__, but its slots do not. All slots have the same type.
    cdef object slot_kind = type(topic_slot)
    cdef Put put = <Put>PyType_GetSlot(<PyTypeObject*>slot_kind, Py_tp_descr_set)
    for index in range(len(raws)):
        raw = raws[index]
        # Freed one by one: the number of objects stays constant, so the garbage collector is not triggered.
        raws[index] = None
        if type(raw) is not raw_kind:
            # Looking up eight methods takes longer than calling them.
            raw_kind = type(raw)
            error_of, topic_of, partition_of = raw_kind.error, raw_kind.topic, raw_kind.partition
            offset_of, timestamp_of, key_of = raw_kind.offset, raw_kind.timestamp, raw_kind.key
            value_of, headers_of = raw_kind.value, raw_kind.headers
        if error_of(raw) is not None:
            if run_topic is not None:
                events.append((run_topic, run_partition, offset + 1))
                run_topic = None
            events.append(raw)
            continue
        topic, partition = topic_of(raw), partition_of(raw)
        if run_topic is None or partition != run_partition or topic != run_topic:
            if run_topic is not None:
                events.append((run_topic, run_partition, offset + 1))
            run_topic, run_partition = topic, partition
        offset = offset_of(raw)
        made = PyType_GenericAlloc(<PyTypeObject*>kind, 0)
        put(<PyObject*>topic_slot, <PyObject*>made, <PyObject*>run_topic)
        put(<PyObject*>partition_slot, <PyObject*>made, <PyObject*>run_partition)
        put(<PyObject*>offset_slot, <PyObject*>made, <PyObject*>offset)
        found = timestamp_of(raw)[1]
        put(<PyObject*>timestamp_slot, <PyObject*>made, <PyObject*>found)
        found = key_of(raw)
        put(<PyObject*>key_slot, <PyObject*>made, <PyObject*>found)
        found = value_of(raw)
        put(<PyObject*>value_slot, <PyObject*>made, <PyObject*>found)
        found = _headers(headers_of, raw)
        put(<PyObject*>headers_slot, <PyObject*>made, <PyObject*>found)
        into.append(made)
    if run_topic is not None:
        events.append((run_topic, run_partition, offset + 1))
    raws.clear()
    return events
