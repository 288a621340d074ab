"""Client quotas in the metadata: for users, client ids, both together, or addresses.

An entity has one part or two; a part without a name is the default for its type. `broker/security/quotas.py` defines
what a quota means and which of several applies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from math import isfinite
from types import MappingProxyType
from typing import Final, TypeAlias

from millpond.base.errors import ErrorCode, Refused
from millpond.base.values import dataclass
from millpond.metadata.decision import OK, Decision, Verdict
from millpond.metadata.records import ClientQuotaRecord, QuotaPart

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

LARGEST_OF_CLIENTS: Final[Mapping[str, int | None]] = {
    PRODUCER_BYTE_RATE: (1 << 63) - 1,
    CONSUMER_BYTE_RATE: (1 << 63) - 1,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
"""The quotas of users and client ids, with the largest value of integer ones."""

LARGEST_OF_ADDRESSES: Final[Mapping[str, int | None]] = {CONNECTION_CREATION_RATE: (1 << 31) - 1}

ENTITIES_MAX: Final = 100_000
"""The most entities with quotas: they need not exist, so nothing else limits their number."""

NAME_SHOWN_MAX: Final = 100

Entity: TypeAlias = tuple[QuotaPart, ...]
"""In the order of the types, so that equal ones compare equal."""


@dataclass(slots=True)
class ClientQuotas:
    """The quotas in the image. `replay` alone changes it."""

    of: dict[Entity, dict[str, float]] = field(default_factory=dict)
    version: int = field(default=0, compare=False)
    """Rises with every change."""

    def copy(self) -> ClientQuotas:
        return ClientQuotas({entity: dict(values) for entity, values in self.of.items()}, self.version)

    def replay(self, record: ClientQuotaRecord) -> None:
        entity = entity_of(record.entity)
        self.version += 1
        if not record.remove:
            self.of.setdefault(entity, {})[record.key] = record.value
        elif entity in self.of:
            self.of[entity].pop(record.key, None)
            if not self.of[entity]:
                del self.of[entity]

    def records(self) -> Iterator[ClientQuotaRecord]:
        for entity, values in self.of.items():
            for key, value in values.items():
                yield ClientQuotaRecord(entity, key, value)


_NOTHING: Final[Mapping[str, float]] = MappingProxyType({})


def records_between_quotas(old: ClientQuotas, new: ClientQuotas) -> Iterator[ClientQuotaRecord]:
    """See `snapshot.records_between`."""
    for entity in old.of.keys() | new.of.keys():
        was, now = old.of.get(entity, _NOTHING), new.of.get(entity, _NOTHING)
        for key in was.keys() | now.keys():
            if key not in now:
                yield ClientQuotaRecord(entity, key, remove=True)
            elif was.get(key) != now[key]:
                yield ClientQuotaRecord(entity, key, now[key])


def entity_of(parts: Sequence[QuotaPart]) -> Entity:
    return tuple(sorted(parts, key=lambda part: part.entity_type))


def words_for(entity: Sequence[QuotaPart]) -> str:
    """For display."""
    return " ".join(
        f"{part.entity_type[:NAME_SHOWN_MAX]} "
        + ("<default>" if part.entity_name is None else repr(part.entity_name[:NAME_SHOWN_MAX]))
        for part in entity
    )


# Changing.


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """The new value of one quota of an entity; None removes it."""

    key: str
    value: float | None


@dataclass(frozen=True, slots=True)
class EntityChanges:
    entity: tuple[QuotaPart, ...]
    """The entity as the client sent it, not yet checked."""
    changes: tuple[QuotaChange, ...]


def decide_alter_quotas(
    quotas: ClientQuotas, requests: Sequence[EntityChanges], *, validate_only: bool = False
) -> Decision[tuple[Verdict, ...]]:
    """Change quotas; those of one entity together or not at all. A verdict for each request, in order."""
    times_named = Counter(entity_of(request.entity) for request in requests)
    records: list[ClientQuotaRecord] = []
    verdicts: list[Verdict] = []
    new = 0
    for request in requests:
        try:
            entity = entity_of(request.entity)
            if times_named[entity] > 1:
                raise _wrong(f"{words_for(entity)} appears more than once in the request")
            changes = _changes_of(quotas, entity, request.changes)
            if changes and entity not in quotas.of:
                new += 1
                if len(quotas.of) + new > ENTITIES_MAX:
                    raise Refused(
                        ErrorCode.POLICY_VIOLATION,
                        f"the cluster has reached its limit of {ENTITIES_MAX} entities with quotas",
                    )
            records += changes
            verdicts.append(OK)
        except Refused as refused:
            verdicts.append(Verdict.of(refused))
    return Decision(() if validate_only else tuple(records), tuple(verdicts))


def _changes_of(quotas: ClientQuotas, entity: Entity, changes: Sequence[QuotaChange]) -> list[ClientQuotaRecord]:
    largest_of = _quotas_for(entity)
    repeated = [key for key, times in Counter(change.key for change in changes).items() if times > 1]
    if repeated:
        raise _wrong(f"the quota {repeated[0][:NAME_SHOWN_MAX]!r} appears more than once for {words_for(entity)}")
    own = quotas.of.get(entity, _NOTHING)
    records = []
    for key, value in ((change.key, change.value) for change in changes):
        if value is None:
            if key in own:
                records.append(ClientQuotaRecord(entity, key, remove=True))
            continue
        _check_value(largest_of, key, value)
        if own.get(key) != value:
            records.append(ClientQuotaRecord(entity, key, value))
    return records


def _quotas_for(entity: Entity) -> Mapping[str, int | None]:
    """The quotas that such an entity can have. Refused for an invalid entity."""
    types = [part.entity_type for part in entity]
    if not types:
        raise _wrong("the request names no entity for the quota")
    for at, each in enumerate(types):
        if each not in (USER, CLIENT_ID, IP):
            raise _wrong(f"quotas apply to {USER}, {CLIENT_ID} or {IP}, not to {each[:NAME_SHOWN_MAX]!r}")
        if each in types[:at]:
            raise _wrong(f"{each} appears twice in one entity")
    if IP not in types:
        return LARGEST_OF_CLIENTS
    if len(types) > 1:
        raise _wrong(f"an {IP} quota cannot be combined with {USER} or {CLIENT_ID}")
    address = entity[0].entity_name
    if address is not None:
        check_address(address)
    return LARGEST_OF_ADDRESSES


def check_address(text: str) -> None:
    """Refused unless it is an address. Host names are not allowed, as their addresses change."""
    # Rarely needed, and startup is faster without it.
    from ipaddress import ip_address

    try:
        ip_address(text)
    except ValueError:
        raise _wrong(f"{text[:NAME_SHOWN_MAX]!r} is not an IP address, such as 192.0.2.7 or 2001:db8::7") from None


def _check_value(largest_of: Mapping[str, int | None], key: str, value: float) -> None:
    if key not in largest_of:
        raise _wrong(f"unknown quota {key[:NAME_SHOWN_MAX]!r}; the quotas are {', '.join(largest_of)}")
    largest = largest_of[key]
    if not isfinite(value) or value <= 0:
        raise _wrong(f"{key} must be greater than 0")
    if largest is not None and value > largest:
        raise _wrong(f"{key} must be at most {largest}")
    if largest is not None and value % 1 > 1e-6:
        raise _wrong(f"{key} must be a whole number")


def _wrong(text: str) -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, text)


# Reading.


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selects entities by one of their parts: a name, the default (None), or any of the type."""

    entity_type: str
    name: str | None = None
    is_any: bool = False

    def matches(self, entity: Entity) -> bool:
        return any(
            part.entity_type == self.entity_type and (self.is_any or part.entity_name == self.name) for part in entity
        )


def find_quotas(
    quotas: ClientQuotas, filters: Sequence[Wanted], *, strict: bool
) -> list[tuple[Entity, Mapping[str, float]]]:
    """The entities that have all requested parts, and with `strict` no others. Refused for invalid filters."""
    types = [each.entity_type for each in filters]
    for at, each in enumerate(types):
        if each in types[:at]:
            raise _wrong(f"{each[:NAME_SHOWN_MAX]!r} appears twice")
        if each not in (USER, CLIENT_ID, IP):
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"quotas do not apply to {each[:NAME_SHOWN_MAX]!r}")
    if IP in types and len(types) > 1:
        raise _wrong(f"{IP} cannot be combined with other entity types")
    return [
        (entity, values)
        for entity, values in quotas.of.items()
        if (not strict or len(entity) == len(filters)) and all(each.matches(entity) for each in filters)
    ]
