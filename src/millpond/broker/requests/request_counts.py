"""Request counters: how many arrived, the time from arrival to reply, and errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from millpond.base.histogram import Histogram
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Clock
from millpond.wire import notation
from millpond.wire.model import Message

if TYPE_CHECKING:
    from millpond.broker.requests.replies import Response

ERROR_FIELD = "error_code"
STRUCTURES_MAX = 64
"""How many structures of a response are searched for errors: one with thousands of partitions would take too long."""


class RequestCounts:
    """By API key. A request whose client has disconnected counts as received and has no time."""

    def __init__(self, clock: Clock, keys: Iterable[int] = ()) -> None:
        self.received: dict[int, int] = {}
        self.times: dict[int, Histogram] = {}
        self.errors: Counter[tuple[int, int]] = Counter()
        """By API key and error code: one per topic, partition or group that a response refuses, up to a limit."""
        self._clock = clock
        self.serve(keys)

    def serve(self, keys: Iterable[int]) -> None:
        for key in keys:
            self.received[key] = 0
            self.times[key] = Histogram()

    def on_answer(self, key: int, arrived_us: int, response: Response | None = None) -> None:
        """The request has been answered, or needs no reply."""
        self.times[key].observe(self._clock.monotonic_us() - arrived_us)
        if isinstance(response, Message):
            codes: list[int] = []
            _find(response, _ERRORS_BY_CLASS.get(type(response)) or _errors_of(type(response)), codes, STRUCTURES_MAX)
            for code in codes:
                self.errors[key, code] += 1

    def on_produced(self, key: int, arrived_us: int, topic: Histogram) -> None:
        """A batch is acknowledged; the response has no errors to search for."""
        self.times[key].observe_with(topic, self._clock.monotonic_us() - arrived_us)


class _Errors(NamedTuple):
    """Where a structure has error codes."""

    is_here: bool
    within: tuple[tuple[str, _Errors], ...]
    """Fields with nested structures that have some."""


_ERRORS_BY_CLASS: dict[type[Message], _Errors] = {}


def _errors_of(kind: type[Message]) -> _Errors:
    errors = _ERRORS_BY_CLASS[kind] = _errors_in(kind._schema.root) or _Errors(False, ())
    return errors


def _errors_in(struct: notation.Struct) -> _Errors | None:
    within = []
    for field in struct.fields:
        inner = None if field.struct is None else _errors_in(field.struct)
        if inner is not None:
            within.append((field.name, inner))
    is_here = any(field.name == ERROR_FIELD for field in struct.fields)
    return _Errors(is_here, tuple(within)) if is_here or within else None


def _find(value: Any, errors: _Errors, codes: list[int], left: int) -> int:
    """Append the error codes of a structure to `codes`; return how many more structures may be searched."""
    is_here, within = errors
    if is_here and value.error_code:
        codes.append(int(value.error_code))
    for name, inner in within:
        nested = getattr(value, name)
        if nested is None:
            continue
        some = nested[: max(left, 0)] if isinstance(nested, list) else (nested,)
        left -= len(some)
        if inner.within:
            for each in some:
                left = _find(each, inner, codes, left)
        else:
            codes += [int(each.error_code) for each in some if each.error_code]
    return left
