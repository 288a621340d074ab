"""The audit log: who did what or was refused it, when and from where, as one JSON object per event.

Secrets are left out: byte fields of a request (salts, keys, tokens) are never written, and neither is the value of a
setting whose name marks it as secret. Every change is written, to a file separate from events that changed nothing.
Those are written once and then counted while they repeat, as with a client that is refused a thousand times a second.
A line every `REPEAT_MS` has the count, or a later one if the client that caused it is over its budget.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from millpond.base.errors import ErrorCode
from millpond.base.rights import AclResource, Operation, PatternType, Permission
from millpond.base.secret_names import HIDDEN, shown
from millpond.base.values import dataclass
from millpond.broker.audit.audit_budget import AuditBudget, Source, source_of
from millpond.config.node import NODE
from millpond.wire.model import Struct

if TYPE_CHECKING:
    from millpond.base.ports import Clock
    from millpond.base.principal import Principal
    from millpond.broker.requests.call import Call

    Sink = Callable[[str, "Chapter"], None]
    """Takes a line without its newline, and its chapter; never blocks."""

K = TypeVar("K")

REPEAT_MS: Final = 10_000
REPEATED_MAX: Final = 1_000
FROM_ONE_MAX: Final = 100
"""Limits on the distinct repeating events of one kind, in total and per source; events beyond them are only counted.
A client that tries a thousand names must not hide later events behind them, nor fill the files."""

KEPT_BYTES: Final = 160 << 20
"""The default total size of a chapter's files."""

ITEMS_MAX: Final = 100
"""Items per line. A change with more takes several lines; a failed request is truncated."""
ITEMS_TOLD_MAX: Final = 10_000
"""More than the number of items in a request that is handled in one slice."""
ERRORS_TOLD_APART: Final = 5
"""Failures that differ only in errors beyond these count as the same event."""
TEXT_MAX: Final = 255
"""The longest text from a client that is written in full."""

CHANGE_APIS: Final = frozenset(
    {19, 20, 21, 30, 31, 33, 34, 37, 38, 39, 40, 42, 43, 44, 45, 47, 49, 51, 57, 64, 80, 81}
)
"""The keys of all APIs that change something other than records, offsets and memberships."""

OF_NODES: Final = frozenset({27, 56, 58, 62, 63})
"""Requests that nodes send each other all the time and an admin may send too: transaction markers, ISR changes,
envelopes, broker registrations, and heartbeats that fence or remove a node."""

BY_ANYBODY: Final = frozenset({38, 39, 40})
"""Changes that need no ACL: any authenticated user may create, renew and expire its own tokens, without limit."""

PERHAPS_DONE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_CONTROLLER,
    }
)
"""Errors after which a change may have been made anyway."""

_UNTOLD: Final = frozenset({"timeout_ms", "assignments", "cluster_id", "voter_directory_id", "listeners"})
_ACL_APIS: Final = (30, 31)
_CONFIG_APIS: Final = (33, 44)
_BROKER: Final = 4
_WORDS: Final[Mapping[str, type[Operation | AclResource | PatternType | Permission]]] = {
    "operation": Operation,
    "permission_type": Permission,
    "resource_type": AclResource,
    "resource_type_filter": AclResource,
    "resource_pattern_type": PatternType,
    "pattern_type_filter": PatternType,
}
"""The enums behind the numeric fields of ACL requests."""

_CONFIG_KINDS: Final = {2: "topic", 4: "broker", 8: "broker-logger", 16: "client-metrics", 32: "group"}
_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


class Chapter(StrEnum):
    """The separate logs, each with its own files, so that events of one cannot rotate out those of another."""

    CHANGES = "audit"
    """Every change made by an authorized client."""
    TOKENS = "audit.tokens"
    """Every change to a delegation token, kept apart because any authenticated user can make them without limit."""
    ACCESS = "audit.access"
    """Logins, refusals and failed requests: events that any client can cause."""


@dataclass(slots=True)
class _Counted:
    """An event that occurred more often than it was written."""

    source: Source
    first_ms: int
    last_ms: int
    times: int = 0
    """Occurrences not written yet."""
    is_told: bool = False
    """Whether its first occurrence was written."""

    def add(self, wall_ms: int) -> None:
        if not self.times:
            self.first_ms = wall_ms
        self.times += 1
        self.last_ms = wall_ms

    def take_in(self, other: _Counted) -> None:
        self.first_ms = min(self.first_ms, other.first_ms) if self.times else other.first_ms
        self.last_ms = max(self.last_ms, other.last_ms)
        self.times += other.times

    def as_facts(self) -> dict[str, Any]:
        more = self.times if self.is_told else self.times - 1
        return {"times_more": more, "first": _time(self.first_ms), "last": _time(self.last_ms)} if more else {}


class Audit:
    """Writes events into `sink`. Without one nothing is recorded, and callers can skip the work if not `is_on`."""

    def __init__(self, sink: Sink | None, clock: Clock, node_id: int, kept_bytes: int = KEPT_BYTES) -> None:
        self.is_on = sink is not None
        self._sink = sink
        self._clock = clock
        self._node_id = node_id
        self._budget = AuditBudget(kept_bytes, clock.monotonic_ms())
        self._repeated: dict[tuple[str, str], _Counted] = {}
        """Events of this interval by kind and facts as JSON; kept longer while there is no budget to write them."""
        self._apart: Counter[tuple[str, Source | None]] = Counter()
        """The number of `_repeated` events by kind and source, and by kind alone."""
        self._beyond: dict[tuple[str, str, str], _Counted] = {}
        """Events beyond the limits of `_repeated`, merged by kind, address and principal."""
        self._is_timed = False

    def logged_in(self, principal: Principal, host: str, listener: str, by: str) -> None:
        """`by` is the SASL mechanism, or "certificate"."""
        self._note_often("login", principal=str(principal), host=host, listener=listener, by=by)

    def not_logged_in(self, name: str | None, host: str, listener: str, by: str, reason: str) -> None:
        """`name` is the user that the client claimed to be, if it did."""
        self._note_often(
            "login_failed", claimed=_cut(name or ""), host=host, listener=listener, by=_cut(by), reason=_cut(reason)
        )

    def refused(
        self, principal: Principal, host: str, operation: Operation, resource: AclResource, name: str
    ) -> None:
        self._note_often(
            "refused",
            principal=str(principal),
            host=host,
            operation=operation.name,
            resource=resource.name,
            name=_cut(name),
        )

    def turned_away(self, host: str, reason: str) -> None:
        """A connection was refused, or closed because of a limit."""
        self._note_often("turned_away", host=host, reason=_cut(reason))

    def begin_change(self, call: Call, key: int, name: str, request: Struct) -> Callable[[Any], None]:
        """Capture a request before its change is made; call the result with the response to write the event."""
        facts = _plain_struct(request, key, [ITEMS_TOLD_MAX])
        principal, host = str(call.principal), call.client_host
        client_id = _cut(call.client_id or "")
        chapter = Chapter.TOKENS if key in BY_ANYBODY else Chapter.CHANGES

        def callback(response: Any) -> None:
            errors = _errors(response)
            who = {"principal": principal, "host": host, "client_id": client_id, "api": name}
            if not errors:
                self._write_parts(chapter, "changed", who, facts)
            elif _may_have_changed(response):
                self._write_parts(chapter, "failed", {**who, "errors": errors}, facts)
            else:
                some = dict(list(errors.items())[:ERRORS_TOLD_APART])
                asked = _cut_items(facts, [ITEMS_MAX])
                self._note_often("failed", {"errors": errors, "asked": asked}, **who, errors=some)

        return callback

    def flush(self) -> None:
        """Write all events that were only counted so far; called at shutdown."""
        for key, each in list(self._repeated.items()):
            if each.times:
                self._tell_repeated(key, each)
        for apart, each in self._beyond.items():
            self._tell_beyond(apart, each)
        self._repeated.clear()
        self._apart.clear()
        self._beyond.clear()

    def _note_often(self, event: str, once: Mapping[str, Any] | None = None, /, **facts: Any) -> None:
        """`once` is added to the facts when the event is written right away."""
        if not self.is_on:
            return
        wall_ms = self._clock.wall_ms()
        key = (event, json.dumps(facts))
        counted = self._repeated.get(key)
        if counted is not None:
            counted.add(wall_ms)
            return
        principal, host = facts.get("principal", ""), facts.get("host", "")
        source = source_of(principal, host)
        if self._apart[event, None] >= REPEATED_MAX or self._apart[event, source] >= FROM_ONE_MAX:
            self._beyond_of(event, host, principal, source).add(wall_ms)
        else:
            counted = self._repeated[key] = _Counted(source, wall_ms, wall_ms)
            self._apart[event, None] += 1
            self._apart[event, source] += 1
            if self._may_tell(source):
                counted.is_told = True
                self._spend(source, self._write(Chapter.ACCESS, event, facts | dict(once or {})))
            else:
                counted.add(wall_ms)
        self._set_timer()

    def _beyond_of(self, event: str, host: str, principal: str, source: Source) -> _Counted:
        apart = (event, host if source.is_user else source.name, principal)
        if apart not in self._beyond and len(self._beyond) >= REPEATED_MAX:
            # Users and unauthenticated clients stay separate: neither may use up the budget of the other.
            apart, source = (event, "", "users" if source.is_user else ""), Source("", source.is_user)
        wall_ms = self._clock.wall_ms()
        return self._beyond.setdefault(apart, _Counted(source, wall_ms, wall_ms, is_told=True))

    # Counted events are written periodically.

    def _set_timer(self) -> None:
        if not self._is_timed:
            self._is_timed = True
            self._clock.call_later(REPEAT_MS, self._turn)

    def _turn(self) -> None:
        """Write as much as the budget allows, sources with the most budget left first."""
        self._is_timed = False
        for key in [key for key, each in self._repeated.items() if not each.times]:
            self._forget(key)
        for key, each in self._in_turn(self._repeated):
            if self._may_tell(each.source):
                self._spend(each.source, self._tell_repeated(key, each))
                self._forget(key)
        self._make_room()
        for apart, each in self._in_turn(self._beyond):
            if self._may_tell(each.source):
                self._spend(each.source, self._tell_beyond(apart, each))
                del self._beyond[apart]
        if self._repeated or self._beyond:
            self._set_timer()

    def _make_room(self) -> None:
        """Merge counted events when more than half the table is used, so that one client's events cannot keep those
        of others from being listed separately."""
        for key, each in list(self._repeated.items()):
            event, facts = key
            if self._apart[event, None] > REPEATED_MAX // 2:
                said = json.loads(facts)
                self._beyond_of(event, said.get("host", ""), said.get("principal", ""), each.source).take_in(each)
                self._forget(key)

    def _in_turn(self, counted: dict[K, _Counted]) -> list[tuple[K, _Counted]]:
        now_ms = self._clock.monotonic_ms()
        has_some = {is_user: self._budget.left_together(is_user, now_ms) > 0 for is_user in (True, False)}
        waiting = [(key, each) for key, each in counted.items() if has_some[each.source.is_user]]
        return sorted(waiting, key=lambda item: -self._budget.left(item[1].source, now_ms))

    def _forget(self, key: tuple[str, str]) -> None:
        counted = self._repeated.pop(key)
        for apart in ((key[0], None), (key[0], counted.source)):
            self._apart[apart] -= 1
            if not self._apart[apart]:
                del self._apart[apart]

    def _tell_repeated(self, key: tuple[str, str], counted: _Counted) -> int:
        event, facts = key
        return self._write(Chapter.ACCESS, event, {**json.loads(facts), **counted.as_facts()})

    def _tell_beyond(self, apart: tuple[str, str, str], counted: _Counted) -> int:
        event, host, principal = apart
        who = {"principal": principal} if principal else {}
        return self._write(Chapter.ACCESS, "others", {"of": event, "host": host, **who, **counted.as_facts()})

    def _may_tell(self, source: Source) -> bool:
        return self._budget.left(source, self._clock.monotonic_ms()) > 0

    def _spend(self, source: Source, size: int) -> None:
        self._budget.take(source, size, self._clock.monotonic_ms())

    def _write_parts(self, chapter: Chapter, event: str, who: Mapping[str, object], facts: dict[str, Any]) -> None:
        """Name every resource that was changed, so that none can be hidden behind a hundred others."""
        parts = _parts(facts)
        for number, asked in enumerate(parts, 1):
            part = {"part": number, "parts": len(parts)} if len(parts) > 1 else {}
            self._write(chapter, event, {**who, **part, "asked": asked})

    def _write(self, chapter: Chapter, event: str, facts: Mapping[str, object]) -> int:
        """Write one line and return its size."""
        if self._sink is None:
            return 0
        time = _time(self._clock.wall_ms())
        # ASCII only: no topic name can break a line in two.
        line = json.dumps({"time": time, "node": self._node_id, "event": event, **facts})
        self._sink(line, chapter)
        return len(line)


def _time(wall_ms: int) -> str:
    at = datetime.fromtimestamp(wall_ms / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"


def _parts(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Split a request into parts, each with some of the items of its lists."""
    if _weight(facts) <= ITEMS_MAX:
        return [facts]
    parts: list[dict[str, Any]] = []
    common = {name: each for name, each in facts.items() if not isinstance(each, list)}
    for name, things in facts.items():
        left = 0
        for thing in things if isinstance(things, list) else ():
            weight = 1 + _weight(thing)
            if weight > left:
                parts.append({**common, name: []})
                left = ITEMS_MAX
            parts[-1][name].append(thing)
            left -= weight
    return parts


def _weight(value: Any) -> int:
    """The number of list items, at all levels."""
    if isinstance(value, dict):
        return sum(map(_weight, value.values()))
    return sum(1 + _weight(each) for each in value) if isinstance(value, list) else 0


def _cut_items(value: Any, left: list[int]) -> Any:
    """The value with at most `left` list items."""
    if isinstance(value, dict):
        return {name: _cut_items(each, left) for name, each in value.items()}
    if not isinstance(value, list):
        return value
    told: list[Any] = []
    for each in value:
        if left[0] <= 0:
            told.append(f"and {len(value) - len(told)} more")
            break
        left[0] -= 1
        told.append(_cut_items(each, left))
    return told


def _plain(value: Any, key: int, left: list[int], field: str = "") -> Any:
    """A part of a request as JSON, without secrets. `left` is the number of list items still allowed."""
    match value:
        case Struct():
            return _plain_struct(value, key, left)
        case list() | tuple():
            told: list[Any] = []
            for each in value:
                if left[0] <= 0:
                    told.append(f"and {len(value) - len(told)} more")
                    break
                left[0] -= 1
                told.append(_plain(each, key, left, field))
            return told
        case bytes() | bytearray() | memoryview():
            return "(hidden)"
        case str():
            return _cut(value)
        case int() if not isinstance(value, bool):
            return _word(field, value, key)
        case None | bool() | float():
            return value
        case _:
            return str(value)


def _plain_struct(value: Struct, key: int, left: list[int]) -> dict[str, Any]:
    told = {
        name: _plain(each, key, left, name)
        for name in value._names
        if name not in _UNTOLD and (each := getattr(value, name)) not in (None, [], b"")
    }
    if isinstance(told.get("name"), str) and isinstance(told.get("value"), str):
        told["value"] = shown(told["name"], told["value"])
    if key in _CONFIG_APIS and getattr(value, "resource_type", None) == _BROKER:
        _hide_unknown(told.get("configs", ()))
    return told


def _hide_unknown(configs: Iterable[Any]) -> None:
    """An unknown setting may be a secret; DescribeConfigs hides it too."""
    for each in configs:
        if isinstance(each, dict) and "value" in each and str(each.get("name")) not in NODE:
            each["value"] = HIDDEN


def _word(field: str, number: int, key: int) -> int | str:
    if key in _ACL_APIS and (words := _WORDS.get(field)) is not None:
        try:
            return words(number).name
        except ValueError:
            return number
    if field == "resource_type":
        return _CONFIG_KINDS.get(number, number)
    if field == "mechanism":
        return _MECHANISMS.get(number, number)
    return number


def _errors(response: Any) -> dict[str, str]:
    """The errors of a response, by the resource they concern."""
    found: dict[str, str] = {}
    _collect(response, "", found)
    return found


def _collect(value: Any, about: str, found: dict[str, str]) -> None:
    if len(found) >= ITEMS_MAX or not isinstance(value, Struct):
        return
    names = value._names
    own = next(
        (str(each) for name in names if isinstance(each := getattr(value, name), str) and "message" not in name), ""
    )
    about = _cut(own) or about
    code = getattr(value, "error_code", 0) if "error_code" in names else 0
    if code:
        found.setdefault(about, _error_name(code))
    for name in names:
        each = getattr(value, name)
        if isinstance(each, list):
            for item in each:
                _collect(item, about, found)


def _may_have_changed(response: Any) -> bool:
    """Whether part of the request was carried out, or may have been, despite the errors."""
    codes = list(_codes(response))
    return any(code == ErrorCode.NONE or code in PERHAPS_DONE for code in codes)


def _codes(value: Any) -> Iterator[int]:
    """The error codes of a response: those of its items where it has them and no error of its own, else its own."""
    inner = [
        code
        for name in value._names
        if isinstance(each := getattr(value, name), list)
        for item in each
        if isinstance(item, Struct)
        for code in _codes(item)
    ]
    if "error_code" not in value._names:
        yield from inner
    elif value.error_code or not inner:
        yield value.error_code
    else:
        yield from inner


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
