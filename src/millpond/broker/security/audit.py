"""Who did or was refused what, when, from where: one object an event, for a log that is kept.

Only what was named is told: bytes of a request (salts, keys, tokens) never are, and of a setting whose name says that
it is secret, only the name. What comes again and again (a client that asks a thousand times a second for what it may
not) is told once, and then counted: a line every `REPEAT_MS` says how often.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from millpond.base.errors import ErrorCode
from millpond.base.rights import AclResource, Operation, PatternType, Permission
from millpond.base.secret_names import HIDDEN, shown
from millpond.config.node import NODE
from millpond.wire.model import Struct

if TYPE_CHECKING:
    from millpond.base.ports import Clock
    from millpond.base.principal import Principal
    from millpond.broker.serving.call import Call

    Sink = Callable[[str], None]
    """Takes a line without its end; never waits."""

REPEAT_MS: Final = 10_000
REPEATED_MAX: Final = 1_000
FROM_ONE_MAX: Final = 100
"""So many different events of a kind are told apart while they repeat, in all and from one address; what comes on top
is counted. Whoever tries a thousand names must not hide by them what he or another does next, nor fill the files
with them."""

ITEMS_MAX: Final = 100
TEXT_MAX: Final = 255
"""Of a text that somebody else chose."""

DEEDS: Final = frozenset({19, 20, 21, 30, 31, 33, 34, 37, 38, 39, 40, 42, 43, 44, 45, 47, 49, 51, 57, 64, 80, 81})
"""The keys of all APIs that change something other than records, offsets and memberships."""

OF_NODES: Final = frozenset({27, 58, 62})
"""What nodes ask each other all the time, and an admin may ask, too: markers, envelopes, registrations."""

BY_ANYBODY: Final = frozenset({38, 39, 40})
"""Those of them that need no right: whoever has logged in may make, renew and end own tokens, all day long."""

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
"""What the numbers in ACLs mean."""

_CONFIG_KINDS: Final = {2: "topic", 4: "broker", 8: "broker-logger", 16: "client-metrics", 32: "group"}
_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


class Audit:
    """Writes what happens into `sink`; without one nothing is noted, and nobody need ask."""

    def __init__(self, sink: Sink | None, clock: Clock, node_id: int) -> None:
        self.is_on = sink is not None
        self._sink = sink
        self._clock = clock
        self._node_id = node_id
        self._repeated: dict[tuple[str, str], int] = {}
        """What was told in this interval, as JSON by its kind, and how often it came again."""
        self._told: Counter[tuple[str, str]] = Counter()
        """How many were told, by kind and address, and by kind alone."""
        self._beyond: Counter[tuple[str, str, str]] = Counter()
        """How many were not: by kind, address and who it was."""
        self._is_timed = False

    def logged_in(self, principal: Principal, host: str, listener: str, by: str) -> None:
        """`by` is how: a mechanism, or a certificate."""
        self._note_often("login", principal=str(principal), host=host, listener=listener, by=by)

    def not_logged_in(self, name: str | None, host: str, listener: str, by: str, reason: str) -> None:
        """`name` is who they said they are, if they did."""
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
        """A connection that was not taken, or ended because of a limit."""
        self._note_often("turned_away", host=host, reason=_cut(reason))

    def deed(self, call: Call, key: int, name: str, request: Struct) -> Callable[[Any], None]:
        """Note a change that is about to be made; the result wants the response to it, and then tells of both."""
        facts = _plain(request, key, [ITEMS_MAX])
        principal, host = str(call.principal), call.client_host
        client_id = _cut(call.client_id or "")

        def tell(response: Any) -> None:
            errors = _errors(response)
            who = {"principal": principal, "host": host, "client_id": client_id, "api": name}
            if errors:
                self._note_often("failed", {"asked": facts}, **who, errors=errors)
            elif key in BY_ANYBODY:
                self._note_often("changed", {"asked": facts}, **who)
            else:
                self._write("changed", {**who, "asked": facts})

        return tell

    def flush(self) -> None:
        """Tell what was only counted so far; for the end."""
        counted, self._repeated = self._repeated, {}
        beyond, self._beyond = self._beyond, Counter()
        self._told.clear()
        for (event, facts), times in counted.items():
            if times:
                self._write(event, {**json.loads(facts), "times_more": times})
        for (event, host, principal), times in beyond.items():
            who = {"principal": principal} if principal else {}
            self._write("others", {"of": event, "host": host, **who, "times_more": times})

    def _note_often(self, event: str, once: Mapping[str, Any] | None = None, /, **facts: Any) -> None:
        """`once` is told beside the facts the first time that these come."""
        if not self.is_on:
            return
        key = (event, json.dumps(facts))
        times = self._repeated.get(key)
        if times is not None:
            self._repeated[key] = times + 1
            return
        host = facts.get("host", "")
        if self._told[event, ""] >= REPEATED_MAX or self._told[event, host] >= FROM_ONE_MAX:
            beyond = (event, host, facts.get("principal", ""))
            self._beyond[beyond if len(self._beyond) < REPEATED_MAX else (event, "", "")] += 1
            return
        self._told[event, ""] += 1
        self._told[event, host] += 1
        self._repeated[key] = 0
        self._write(event, facts | dict(once or {}))
        if not self._is_timed:
            self._is_timed = True
            self._clock.call_later(REPEAT_MS, self._turn)

    def _turn(self) -> None:
        self._is_timed = False
        self.flush()

    def _write(self, event: str, facts: Mapping[str, object]) -> None:
        if self._sink is None:
            return
        at = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)
        time = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        # In ASCII: whatever somebody called a topic, a line stays a line.
        self._sink(json.dumps({"time": time, "node": self._node_id, "event": event, **facts}))


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"


def _plain(value: Any, key: int, left: list[int], field: str = "") -> Any:
    """A part of a request as JSON knows it, without what is secret. `left` is how many items may still be told."""
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
    """What nobody knows may be a secret, as to DescribeConfigs."""
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
    """What went wrong in a response, by what it was about."""
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


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
