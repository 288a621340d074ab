"""The acknowledgements for one leader: those that wait, and those of the request that is on its way.

A leader refuses the acknowledgements of a partition as a whole, because of a single lock that has expired. So refused
ones are sent again in halves, until the one at fault is alone. No clock, threads or sockets in here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from millpond.base.named_tuple import NamedTuple
from millpond.remote.shares.held_record import Acknowledgement, PartitionKey, Verdict

PARTS_MAX: Final = 250
"""Parts of one request, so that a leader applies it in one step: as a whole or not at all."""


class AcknowledgementPart(NamedTuple):
    """A range of offsets in a request: one type for all, or one for each."""

    first: int
    last: int
    types: list[int]
    delay_ms: int = 0
    error_type: str = ""
    error_message: str = ""


class AcknowledgementQueue:
    def __init__(self) -> None:
        self._waiting: dict[PartitionKey, list[Acknowledgement]] = {}
        self._sent: dict[PartitionKey, list[Acknowledgement]] = {}
        self._cohorts = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def is_sent(self) -> bool:
        """Whether a request with acknowledgements is on its way."""
        return bool(self._sent)

    def partitions(self) -> Iterable[PartitionKey]:
        return self._waiting.keys()

    def add(self, key: PartitionKey, acknowledgement: Acknowledgement) -> None:
        self._waiting.setdefault(key, []).append(acknowledgement)

    def has_renewal(self) -> bool:
        return any(each.verdict is Verdict.RENEW for some in self._waiting.values() for each in some)

    def take(self) -> dict[PartitionKey, list[AcknowledgementPart]]:
        """The parts for the next request; the rest waits for the one after it."""
        assert not self._sent, "a request is on its way"
        left = PARTS_MAX
        taken: dict[PartitionKey, list[AcknowledgementPart]] = {}
        for key in list(self._waiting):
            chosen = self._choose(key, left)
            if not chosen:
                break
            parts = list(_parts(chosen))
            left -= sum(len(each.types) for each in parts)
            self._sent[key] = chosen
            taken[key] = parts
            if left <= 0:
                break
        return taken

    def _choose(self, key: PartitionKey, most: int) -> list[Acknowledgement]:
        waiting = self._waiting[key]
        cohort = min((each.cohort for each in waiting if each.cohort), default=0)
        chosen = sorted((each for each in waiting if each.cohort == cohort), key=lambda each: each.offset)[:most]
        offsets: set[int] = set()
        # A renewal and the verdict after it, of one record: one request cannot have both.
        chosen = [each for each in chosen if not (each.offset in offsets or offsets.add(each.offset))]  # type: ignore[func-returns-value]
        gone = {id(each) for each in chosen}
        rest = [each for each in waiting if id(each) not in gone]
        if rest:
            self._waiting[key] = rest
        else:
            del self._waiting[key]
        return chosen

    def taken(self, key: PartitionKey) -> list[Acknowledgement]:
        """The leader has taken those of this partition."""
        return self._sent.pop(key, [])

    def refused(self, key: PartitionKey) -> list[Acknowledgement]:
        """The leader has refused those of this partition: returns the one at fault, if it was sent alone."""
        sent = self._sent.pop(key, [])
        if len(sent) <= 1:
            return sent
        half = len(sent) // 2
        for part in (sent[:half], sent[half:]):
            self._cohorts += 1
            for each in part:
                each.cohort = self._cohorts
        self._waiting.setdefault(key, []).extend(sent)
        return []

    def again(self, key: PartitionKey) -> None:
        """Send those of this partition once more: nothing was applied."""
        if sent := self._sent.pop(key, None):
            self._waiting.setdefault(key, []).extend(sent)

    def sent(self) -> Mapping[PartitionKey, list[Acknowledgement]]:
        """Those of the request on its way that have no result yet."""
        return self._sent

    def remove_waiting(self, is_gone: set[int]) -> None:
        """Forget the acknowledgements with these identities."""
        for key, waiting in list(self._waiting.items()):
            left = [each for each in waiting if id(each) not in is_gone]
            if left:
                self._waiting[key] = left
            else:
                del self._waiting[key]

    def waiting(self) -> list[Acknowledgement]:
        return [each for some in self._waiting.values() for each in some]

    def clear(self) -> list[Acknowledgement]:
        """Forget all: the session is gone."""
        gone = [each for some in (*self._sent.values(), *self._waiting.values()) for each in some]
        self._sent.clear()
        self._waiting.clear()
        return gone


def _parts(acknowledgements: list[Acknowledgement]) -> Iterator[AcknowledgementPart]:
    """Runs of offsets, in order; a delay or an error is of a whole part."""
    run: list[Acknowledgement] = []
    for each in acknowledgements:
        if run and not (each.offset == run[-1].offset + 1 and _fits(run[-1], each)):
            yield _part(run)
            run = []
        run.append(each)
    if run:
        yield _part(run)


def _fits(before: Acknowledgement, after: Acknowledgement) -> bool:
    return _tags(before) == _tags(after) and (before.verdict is after.verdict or not any(_tags(before)))


def _tags(each: Acknowledgement) -> tuple[int, str, str]:
    return each.delay_ms, each.error_type, each.error_message


def _part(run: list[Acknowledgement]) -> AcknowledgementPart:
    types = [int(each.verdict) for each in run]
    if len(set(types)) == 1:
        types = types[:1]
    return AcknowledgementPart(run[0].offset, run[-1].offset, types, *_tags(run[0]))
