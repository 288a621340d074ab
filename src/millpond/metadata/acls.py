"""ACLs: their index, authorization decisions, and how ACLs are created and deleted.

The index makes a check cost the same with ten thousand ACLs: by resource pattern, then by principal and host.
Prefixed patterns are found by the lengths that such prefixes have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from enum import Enum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.base.named_tuple import NamedTuple
from millpond.base.rights import CLUSTER_NAME, WILDCARD, AclResource, Operation, PatternType, Permission
from millpond.base.values import dataclass
from millpond.metadata.decision import OK, Decision, Verdict
from millpond.metadata.records import AccessControlEntryRecord, Record, RemoveAccessControlEntryRecord

if TYPE_CHECKING:
    from millpond.base.ports import Entropy

ACLS_MAX: Final = 100_000
"""The most ACLs: all nodes keep them in memory."""

LOOKS_MAX: Final = 200_000
"""How many times one DeleteAcls request may compare an ACL with a filter, beyond its first filter."""

NAME_LENGTH_MAX: Final = 1_000
"""The limit for a principal, a host or a resource name."""

EVERY_USER: Final = "User:*"

_ALSO_ALLOW: Final = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
ALLOWED_BY: Final = {
    operation: frozenset({operation, Operation.ALL, *_ALSO_ALLOW.get(operation, ())}) for operation in Operation
}
"""Permission to read or change implies permission to describe. Denying one of these denies nothing else."""


class Acl(NamedTuple):
    """One entry, with the numbers of the protocol."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclFilter(NamedTuple):
    """Selects ACLs; None and ANY match all. MATCH selects those that apply to the named resource."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    @property
    def is_of_one_pattern(self) -> bool:
        """Whether it can match only ACLs of one pattern, which are found without scanning."""
        is_whole = self.pattern_type in (PatternType.LITERAL, PatternType.PREFIXED)
        return is_whole and self.resource_name is not None and self.resource_type != AclResource.ANY

    def fits(self, acl: Acl) -> bool:
        return (
            self.resource_type in (AclResource.ANY, acl.resource_type)
            and self.pattern_type in (PatternType.ANY, PatternType.MATCH, acl.pattern_type)
            and self._names(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _names(self, acl: Acl) -> bool:
        name = self.resource_name
        if name is None or name == acl.resource_name:
            return True
        if self.pattern_type != PatternType.MATCH:
            return False
        if acl.pattern_type == PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name == WILDCARD


class Ruling(Enum):
    """The result of a check."""

    ALLOWED = 1
    DENIED = 2
    NOT_NAMED = 3
    """The resource has ACLs, but none that match."""
    NO_ACLS = 4
    """The resource has no ACLs."""


_Key = TypeVar("_Key")

_Pattern: TypeAlias = tuple[int, int, str]
"""Resource type, pattern type, name."""

_Asker: TypeAlias = tuple[str, str]
"""Principal and host, either of which may be a wildcard."""

_ByAsker: TypeAlias = dict[_Asker, dict[Acl, None]]


@dataclass(slots=True)
class Acls:
    """All ACLs. Changed by `replay` alone."""

    by_id: dict[UUID, Acl] = field(default_factory=dict)
    version: int = field(default=0, compare=False)
    """Rises with every change."""
    _ids: dict[Acl, UUID] = field(default_factory=dict, compare=False)
    _patterns: dict[_Pattern, _ByAsker] = field(default_factory=dict, compare=False)
    _prefix_lengths: dict[int, Counter[int]] = field(default_factory=dict, compare=False)
    """How many prefixed patterns of each length there are, by resource type."""
    _allowing: dict[tuple[int, int, _Asker], dict[Acl, None]] = field(default_factory=dict, compare=False)
    """ACLs that allow something, by resource type, operation and principal."""
    _counts: Counter[int] = field(default_factory=Counter, compare=False)
    """The number of ACLs by resource type."""

    def __len__(self) -> int:
        return len(self.by_id)

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._ids

    def copy(self) -> Acls:
        return Acls(
            dict(self.by_id),
            self.version,
            dict(self._ids),
            {key: {asker: dict(acls) for asker, acls in by.items()} for key, by in self._patterns.items()},
            {kind: Counter(lengths) for kind, lengths in self._prefix_lengths.items()},
            {key: dict(acls) for key, acls in self._allowing.items()},
            Counter(self._counts),
        )

    def records(self) -> Iterator[AccessControlEntryRecord]:
        """All of them, for a snapshot."""
        return (AccessControlEntryRecord(acl_id, *acl) for acl_id, acl in self.by_id.items())

    # Changing.

    def replay(self, record: AccessControlEntryRecord | RemoveAccessControlEntryRecord) -> None:
        if isinstance(record, RemoveAccessControlEntryRecord):
            self._remove(record.id)
        else:
            # An ACL with the same id replaces it.
            self._remove(record.id)
            self._add(record)
        self.version += 1

    def _add(self, record: AccessControlEntryRecord) -> None:
        acl = Acl(
            record.resource_type,
            record.resource_name,
            record.pattern_type,
            record.principal,
            record.host,
            record.operation,
            record.permission_type,
        )
        if acl in self._ids:
            # No two ACLs are equal: otherwise one removed by its id would still apply through the other.
            self._remove(self._ids[acl])
        self.by_id[record.id] = acl
        self._ids[acl] = record.id
        pattern = acl.resource_type, acl.pattern_type, acl.resource_name
        if pattern not in self._patterns and acl.pattern_type == PatternType.PREFIXED:
            self._prefix_lengths.setdefault(acl.resource_type, Counter())[len(acl.resource_name)] += 1
        asker = _asker(acl)
        self._patterns.setdefault(pattern, {}).setdefault(asker, {})[acl] = None
        if acl.permission == Permission.ALLOW:
            self._allowing.setdefault((acl.resource_type, acl.operation, asker), {})[acl] = None
        self._counts[acl.resource_type] += 1

    def _remove(self, acl_id: UUID) -> None:
        acl = self.by_id.pop(acl_id, None)
        if acl is None:
            return
        del self._ids[acl]
        pattern = acl.resource_type, acl.pattern_type, acl.resource_name
        by_asker = self._patterns[pattern]
        asker = _asker(acl)
        _take_out(by_asker, asker, acl)
        if acl.permission == Permission.ALLOW:
            _take_out(self._allowing, (acl.resource_type, acl.operation, asker), acl)
        self._counts[acl.resource_type] -= 1
        if not by_asker:
            del self._patterns[pattern]
            if acl.pattern_type == PatternType.PREFIXED:
                lengths = self._prefix_lengths[acl.resource_type]
                lengths[len(acl.resource_name)] -= 1
                if not lengths[len(acl.resource_name)]:
                    del lengths[len(acl.resource_name)]

    # Checks.

    def ruling(
        self, principal: str, host: str, operation: int, resource_type: int, name: str, *, named_by: str = ""
    ) -> Ruling:
        """The ruling for this principal from this host and this operation.

        With `named_by` only ACLs whose pattern has this prefix can allow it; all of them can deny.
        """
        allowed_by = ALLOWED_BY[Operation(operation)]
        askers = _askers(principal, host)
        has_any = is_allowed = False
        for by_asker in self._about(resource_type, name):
            has_any = True
            for asker in askers:
                for acl in by_asker.get(asker, ()):
                    if acl.permission != Permission.ALLOW:
                        if acl.operation in (Operation.ALL, operation):
                            return Ruling.DENIED
                    elif acl.operation in allowed_by and acl.resource_name.startswith(named_by):
                        is_allowed = True
        if is_allowed:
            return Ruling.ALLOWED
        return Ruling.NOT_NAMED if has_any else Ruling.NO_ACLS

    def _about(self, resource_type: int, name: str) -> Iterator[_ByAsker]:
        """The ACLs of every pattern that matches this name."""
        patterns = self._patterns
        for pattern in ((resource_type, PatternType.LITERAL, name), (resource_type, PatternType.LITERAL, WILDCARD)):
            acls = patterns.get(pattern)
            if acls is not None:
                yield acls
        yield from self._beginnings(resource_type, name)

    def _beginnings(self, resource_type: int, name: str) -> Iterator[_ByAsker]:
        """The ACLs of every prefixed pattern that matches this name."""
        for length in self._prefix_lengths.get(resource_type, ()):
            if length <= len(name):
                acls = self._patterns.get((resource_type, PatternType.PREFIXED, name[:length]))
                if acls is not None:
                    yield acls

    def ruling_of_any(self, principal: str, host: str, operation: int, resource_type: int) -> Ruling:
        """Whether there can be a resource of this type on which the operation is allowed: one that no denial
        covers."""
        askers = _askers(principal, host)
        everything = self._patterns.get((resource_type, PatternType.LITERAL, WILDCARD))
        if everything is not None and _denies(everything, askers, operation):
            return Ruling.DENIED
        for asker in askers:
            for allowed in (operation, Operation.ALL):
                for acl in self._allowing.get((resource_type, allowed, asker), ()):
                    if not self._is_covered(acl, askers, operation):
                        return Ruling.ALLOWED
        return Ruling.NOT_NAMED if self._counts[resource_type] else Ruling.NO_ACLS

    def _is_covered(self, acl: Acl, askers: tuple[_Asker, ...], operation: int) -> bool:
        """Whether everything it allows is denied, for the same resource or a prefix of it."""
        pattern = acl.resource_type, acl.pattern_type, acl.resource_name
        if _denies(self._patterns[pattern], askers, operation):
            return True
        if acl.pattern_type == PatternType.LITERAL and acl.resource_name == WILDCARD:
            return False
        beginnings = self._beginnings(acl.resource_type, acl.resource_name)
        return any(_denies(each, askers, operation) for each in beginnings)

    def fitting(self, acl_filter: AclFilter) -> list[tuple[UUID, Acl]]:
        """The ACLs that a filter matches, in creation order."""
        if acl_filter.is_of_one_pattern:
            assert acl_filter.resource_name is not None
            pattern = acl_filter.resource_type, acl_filter.pattern_type, acl_filter.resource_name
            acls_of_pattern = self._patterns.get(pattern, {}).values()
            return [(self._ids[acl], acl) for acls in acls_of_pattern for acl in acls if acl_filter.fits(acl)]
        return [(acl_id, acl) for acl_id, acl in self.by_id.items() if acl_filter.fits(acl)]


def _take_out(index: dict[_Key, dict[Acl, None]], key: _Key, acl: Acl) -> None:
    del index[key][acl]
    if not index[key]:
        del index[key]


def _asker(acl: Acl) -> _Asker:
    return acl.principal, address_of(acl.host)


def _askers(principal: str, host: str) -> tuple[_Asker, ...]:
    """The forms in which ACLs may name the client."""
    address = address_of(host)
    return (principal, WILDCARD), (principal, address), (EVERY_USER, WILDCARD), (EVERY_USER, address)


def _denies(by_asker: _ByAsker, askers: tuple[_Asker, ...], operation: int) -> bool:
    return any(
        acl.permission != Permission.ALLOW and acl.operation in (Operation.ALL, operation)
        for asker in askers
        for acl in by_asker.get(asker, ())
    )


@lru_cache(4096)
def address_of(host: str) -> str:
    """The canonical form of an address, for IPv6 and for IPv4-mapped addresses."""
    try:
        address = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


# Decisions.


@dataclass(frozen=True, slots=True)
class DeletedAcls:
    """The ACLs that one filter deleted; or why it deleted none."""

    verdict: Verdict
    acls: tuple[Acl, ...] = ()


class WithAcls(Protocol):
    """The part of the image that this module uses, to avoid a circular import."""

    acls: Acls


def decide_create_acls(image: WithAcls, acls: Sequence[Acl], entropy: Entropy) -> Decision[tuple[Verdict, ...]]:
    """An ACL that exists already is left as it is, without an error."""
    records: dict[Acl, Record] = {}
    verdicts = []
    for acl in acls:
        fault = fault_of(acl)
        if fault is not None:
            verdicts.append(Verdict(ErrorCode.INVALID_REQUEST, fault))
        elif acl in image.acls or acl in records:
            verdicts.append(OK)
        elif len(image.acls) + len(records) >= ACLS_MAX:
            verdicts.append(
                Verdict(
                    ErrorCode.POLICY_VIOLATION,
                    f"the cluster has reached its limit of {ACLS_MAX} ACLs: delete some first",
                )
            )
        else:
            records[acl] = AccessControlEntryRecord(entropy.uuid(), *acl)
            verdicts.append(OK)
    return Decision(tuple(records.values()), tuple(verdicts))


def decide_delete_acls(image: WithAcls, filters: Sequence[AclFilter]) -> Decision[tuple[DeletedAcls, ...]]:
    """An ACL that several filters match is reported for each of them, and deleted once."""
    gone: dict[UUID, Record] = {}
    deleted = []
    looks = 0
    for acl_filter in filters:
        fault = fault_of_filter(acl_filter)
        if fault is None and looks > LOOKS_MAX:
            fault = f"too many broad filters over {len(image.acls)} ACLs: send fewer of them per request"
        if fault is not None:
            deleted.append(DeletedAcls(Verdict(ErrorCode.INVALID_REQUEST, fault)))
            continue
        looks += 1 if acl_filter.is_of_one_pattern else len(image.acls)
        fitting = image.acls.fitting(acl_filter)
        looks += len(fitting)
        gone |= {acl_id: RemoveAccessControlEntryRecord(acl_id) for acl_id, _ in fitting}
        deleted.append(DeletedAcls(OK, tuple(acl for _, acl in fitting)))
    return Decision(tuple(gone.values()), tuple(deleted))


_RESOURCES: Final = frozenset(AclResource) - {AclResource.ANY}
_OPERATIONS: Final = frozenset(Operation) - {Operation.ANY}


def fault_of(acl: Acl) -> str | None:
    """Why this ACL is invalid."""
    if acl.resource_type not in _RESOURCES:
        return f"ACLs are not supported for resource type {acl.resource_type}"
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return "the pattern type of an ACL must be LITERAL or PREFIXED"
    if acl.operation not in _OPERATIONS:
        return f"unknown operation {acl.operation}"
    if acl.permission not in (Permission.ALLOW, Permission.DENY):
        return "the permission type of an ACL must be ALLOW or DENY"
    if not acl.resource_name:
        return "an ACL must name a resource"
    if acl.resource_type == AclResource.CLUSTER and acl.resource_name not in (CLUSTER_NAME, WILDCARD):
        return f"the cluster resource must be named {CLUSTER_NAME}"
    if max(map(len, (acl.resource_name, acl.principal, acl.host))) > NAME_LENGTH_MAX:
        return f"names in ACLs may have at most {NAME_LENGTH_MAX} characters"
    kind, colon, name = acl.principal.partition(":")
    if not colon or not kind or not name:
        return "a principal must have the form User:name"
    if not acl.host:
        return f"an ACL must name a host, or {WILDCARD}"
    return None


def fault_of_filter(acl_filter: AclFilter) -> str | None:
    if acl_filter.resource_type not in frozenset(AclResource):
        return f"ACLs are not supported for resource type {acl_filter.resource_type}"
    if acl_filter.pattern_type not in frozenset(PatternType):
        return f"unknown pattern type {acl_filter.pattern_type}"
    if acl_filter.operation not in frozenset(Operation):
        return f"unknown operation {acl_filter.operation}"
    if acl_filter.permission not in frozenset(Permission):
        return f"unknown permission type {acl_filter.permission}"
    return None


def grouped(acls: Iterable[Acl]) -> dict[tuple[int, str, int], list[Acl]]:
    """Group ACLs by resource pattern."""
    groups: dict[tuple[int, str, int], list[Acl]] = {}
    for acl in acls:
        groups.setdefault((acl.resource_type, acl.resource_name, acl.pattern_type), []).append(acl)
    return groups
