"""The acknowledgements of a ShareAcknowledge or ShareFetch request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from sys import maxsize
from typing import TYPE_CHECKING, Any, Final

from millpond.base.errors import ErrorCode
from millpond.base.later import Later, done, gather
from millpond.broker.loop.steps import in_slices
from millpond.broker.shares.failures import given_failure
from millpond.broker.shares.verdicts import Acknowledgement, AcknowledgeType

if TYPE_CHECKING:
    from millpond.broker.loop.steps import Steps
    from millpond.broker.replication.partitions import Partition
    from millpond.broker.requests.call import Call
    from millpond.broker.shares.manager import ShareManager
    from millpond.broker.shares.sessions import PartitionKey, ShareSession
    from millpond.broker.shares.window import ShareWindow

AT_ONCE_MAX: Final = 300
"""Acknowledge types of one request, or ranges of a window with one type, that are applied in one turn of the loop;
each takes up to 30 microseconds."""

ORDERED_AT_ONCE: Final = 5_000
"""Acknowledgements whose order is checked in one turn of the loop."""

Codes = dict["PartitionKey", ErrorCode]


def acknowledged_in(topics: Iterable[Any]) -> list[tuple[PartitionKey, list[Acknowledgement]]]:
    """The acknowledgements of a request, by partition."""
    found: dict[PartitionKey, list[Acknowledgement]] = {}
    for topic in topics:
        for partition in topic.partitions:
            if partition.acknowledgement_batches:
                found.setdefault((topic.topic_id, partition.partition_index), []).extend(
                    Acknowledgement(
                        each.first_offset,
                        each.last_offset,
                        each.acknowledge_types,
                        each.delay_ms,
                        given_failure(each.error_type, each.error_message),
                    )
                    for each in partition.acknowledgement_batches
                )
    return list(found.items())


def acknowledge(
    manager: ShareManager,
    call: Call,
    session: ShareSession,
    wanted: Sequence[tuple[PartitionKey, list[Acknowledgement]]],
    *,
    is_renewal: bool,
    may_read: Callable[[PartitionKey, Partition | None], bool],
    absence: Callable[[Any, int], ErrorCode],
) -> Later[Codes]:
    """The results by partition, once everything has been written.

    The acknowledgements of a partition are refused as a whole, unless there are too many for one step.
    """

    def one(key: PartitionKey, acknowledgements: list[Acknowledgement]) -> Later[ErrorCode]:
        partition = manager.partitions.by_id(*key)
        if not may_read(key, partition):
            return done(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if partition is None:
            return done(absence(*key))
        if not partition.is_leader:
            return done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not is_renewal and any(AcknowledgeType.RENEW in each.types for each in acknowledgements):
            return done(ErrorCode.INVALID_REQUEST)
        return session.group.acknowledge(session.holder, partition, acknowledgements)

    def window_of(key: PartitionKey) -> ShareWindow | None:
        leader = session.group.leaders.get(key)
        return None if leader is None else leader.window

    if _is_light(wanted, window_of):
        results = [one(key, some) for key, some in wanted]
        return gather(results).map(partial(_codes, [key for key, _ in wanted]))

    def in_steps() -> Steps[Codes]:
        keys: list[PartitionKey] = []
        pending: list[Later[ErrorCode]] = []
        for key, some in wanted:
            if not (yield from _are_in_order(some)):
                keys.append(key)
                pending.append(done(ErrorCode.INVALID_REQUEST))
                continue
            for part in _parts(some, window_of(key)):
                keys.append(key)
                pending.append(one(key, part))
                yield None
        results: list[ErrorCode] = yield gather(pending)
        return _codes(keys, results)

    return call.connection.run_in_turns(in_steps())


def _is_light(
    wanted: Iterable[tuple[PartitionKey, list[Acknowledgement]]],
    window_of: Callable[[PartitionKey], ShareWindow | None],
) -> bool:
    """Whether all can be applied at once."""
    left = AT_ONCE_MAX
    for key, some in wanted:
        window = window_of(key)
        for each in some:
            left -= len(each.types) if len(each.types) > 1 else max(1, len(_range_ends(window, each, left + 1)))
            if left < 0:
                return False
    return True


def _are_in_order(acknowledgements: Sequence[Acknowledgement]) -> Steps[bool]:
    """Whether no offset is named twice. Otherwise thousands could each be about the whole window."""
    end = -1
    for some in in_slices(acknowledgements, ORDERED_AT_ONCE):
        for each in some:
            first, last = each.first, each.last
            if not end < first <= last:
                return False
            end = last
        yield None
    return True


def _range_ends(window: ShareWindow | None, acknowledgement: Acknowledgement, most: int = maxsize) -> list[int]:
    """The last offsets of the ranges of the window that the acknowledgement is about."""
    if window is None:
        return []
    return [last for _, last, _ in islice(window.slots(acknowledgement.first, acknowledgement.last), most)]


def _parts(
    acknowledgements: Sequence[Acknowledgement], window: ShareWindow | None
) -> Iterator[list[Acknowledgement]]:
    """In groups that are small enough to be applied in one step."""
    part: list[Acknowledgement] = []
    size = 0
    for each, weight in _cut(acknowledgements, window):
        if part and size + weight > AT_ONCE_MAX:
            yield part
            part, size = [], 0
        part.append(each)
        size += weight
    yield part


def _cut(
    acknowledgements: Iterable[Acknowledgement], window: ShareWindow | None
) -> Iterator[tuple[Acknowledgement, int]]:
    """With long ones cut, each with the number of its types or ranges."""
    for each in acknowledgements:
        first, last, types = each.first, each.last, each.types
        if len(types) == 1:
            ends = _range_ends(window, each)
            begin = first
            for index in range(AT_ONCE_MAX, len(ends), AT_ONCE_MAX):
                yield each._replace(first=begin, last=ends[index - 1]), AT_ONCE_MAX
                begin = ends[index - 1] + 1
            yield each._replace(first=begin), max(1, (len(ends) - 1) % AT_ONCE_MAX + 1)
        elif len(types) <= AT_ONCE_MAX or len(types) != last - first + 1:
            yield each, len(types)
        else:
            for begin in range(0, len(types), AT_ONCE_MAX):
                some = types[begin : begin + AT_ONCE_MAX]
                part = each._replace(first=first + begin, last=first + begin + len(some) - 1, types=some)
                yield part, len(some)


def _codes(keys: Sequence[PartitionKey], results: Sequence[ErrorCode]) -> Codes:
    """Of a partition that is named twice, the first error."""
    codes: Codes = {}
    for key, code in zip(keys, results, strict=True):
        if not codes.get(key):
            codes[key] = code
    return codes
