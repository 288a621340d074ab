"""ACLs of a cluster: finds, adds and removes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from millpond.base.rights import CLUSTER_NAME, AclResource, Operation, PatternType, Permission
from millpond.remote.cluster import Cluster
from millpond.remote.errors import check
from millpond.wire import messages as m


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    principal: str
    """For example `User:alice`; `User:*` matches every user."""
    resource: AclResource
    name: str
    pattern: PatternType
    operation: Operation
    permission: Permission = Permission.ALLOW
    host: str = "*"

    def as_filter(self) -> AclFilter:
        """Matches exactly this binding."""
        return AclFilter(
            self.principal, self.resource, self.name, self.pattern, self.operation, self.permission, self.host
        )


@dataclass(frozen=True, slots=True)
class AclFilter:
    """None and ANY match anything. The pattern MATCH finds all ACLs that apply to a name."""

    principal: str | None = None
    resource: AclResource = AclResource.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY
    host: str | None = None


def list_acls(cluster: Cluster, acl_filter: AclFilter = AclFilter()) -> list[Acl]:
    def ask() -> list[Acl]:
        response = cluster.any().ask(m.DescribeAclsRequest(**_fields(acl_filter)), m.DescribeAclsResponse)
        check(response.error_code, "the ACLs cannot be listed", response.error_message)
        return sorted(
            _acl(each, resource.resource_type, resource.resource_name, resource.pattern_type)
            for resource in response.resources
            for each in resource.acls
        )

    return cluster.retrying("ask for the ACLs", ask)


def add_acls(cluster: Cluster, acls: Sequence[Acl]) -> None:
    """Adds them; existing ones are kept."""
    request = m.CreateAclsRequest(
        creations=[
            m.CreateAclsRequest.AclCreation(
                resource_type=each.resource,
                resource_name=each.name,
                resource_pattern_type=each.pattern,
                principal=each.principal,
                host=each.host,
                operation=each.operation,
                permission_type=each.permission,
            )
            for each in acls
        ]
    )

    def ask() -> None:
        response = cluster.controller().ask(request, m.CreateAclsResponse)
        for each, result in zip(acls, response.results, strict=False):
            check(result.error_code, f"{each.principal} was not granted {each.operation.name}", result.error_message)

    cluster.retrying("add ACLs", ask)


def remove_acls(cluster: Cluster, filters: Iterable[AclFilter]) -> list[Acl]:
    """Removes all that match a filter, and returns them."""
    request = m.DeleteAclsRequest(filters=[m.DeleteAclsRequest.DeleteAclsFilter(**_fields(each)) for each in filters])

    def ask() -> list[Acl]:
        response = cluster.controller().ask(request, m.DeleteAclsResponse)
        removed = []
        for result in response.filter_results:
            check(result.error_code, "the ACLs were not removed", result.error_message)
            for each in result.matching_acls:
                check(each.error_code, "an ACL was not removed", each.error_message)
                removed.append(_acl(each, each.resource_type, each.resource_name, each.pattern_type))
        return sorted(set(removed))

    return cluster.retrying("remove ACLs", ask)


def producer_acls(
    principal: str, topics: Sequence[tuple[str, PatternType]], *, transactional_id: str | None
) -> list[Acl]:
    """The ACLs for writing to these topics, and creating them if missing."""
    acls = [
        Acl(principal, AclResource.TOPIC, name, pattern, operation)
        for name, pattern in topics
        for operation in (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
    ]
    if transactional_id is not None:
        pattern = PatternType.LITERAL
        acls += [
            Acl(principal, AclResource.TRANSACTIONAL_ID, transactional_id, pattern, operation)
            for operation in (Operation.WRITE, Operation.DESCRIBE)
        ]
    return acls


def consumer_acls(
    principal: str, topics: Sequence[tuple[str, PatternType]], groups: Sequence[tuple[str, PatternType]]
) -> list[Acl]:
    """The ACLs for reading these topics as a member of these groups."""
    return [
        *(
            Acl(principal, AclResource.TOPIC, name, pattern, operation)
            for name, pattern in topics
            for operation in (Operation.READ, Operation.DESCRIBE)
        ),
        *(Acl(principal, AclResource.GROUP, name, pattern, Operation.READ) for name, pattern in groups),
    ]


def on_cluster(principal: str, operation: Operation) -> Acl:
    return Acl(principal, AclResource.CLUSTER, CLUSTER_NAME, PatternType.LITERAL, operation)


def _fields(acl_filter: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": acl_filter.resource,
        "resource_name_filter": acl_filter.name,
        "pattern_type_filter": acl_filter.pattern,
        "principal_filter": acl_filter.principal,
        "host_filter": acl_filter.host,
        "operation": acl_filter.operation,
        "permission_type": acl_filter.permission,
    }


def _acl(each: Any, resource: int, name: str, pattern: int) -> Acl:
    return Acl(
        each.principal,
        AclResource(resource),
        name,
        PatternType(pattern),
        Operation(each.operation),
        Permission(each.permission_type),
        each.host,
    )
