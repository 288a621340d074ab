"""`millpond acl`: access control lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from millpond.base.ids import topic_name_fault
from millpond.base.rights import CLUSTER_NAME, WILDCARD, AclResource, Operation, PatternType, Permission
from millpond.cli.access import Access, cluster_options
from millpond.cli.completion.names import GroupName, TopicName
from millpond.cli.options import AS_JSON, YES
from millpond.cli.terminal import confirm, print_json, print_list
from millpond.cli.text import counted, safe

if TYPE_CHECKING:
    from millpond.admin.acls import Acl, AclFilter

F = TypeVar("F", bound=Callable[..., Any])

OPERATIONS = tuple(each.name.lower().replace("_", "-") for each in Operation if each is not Operation.ANY)

ONLY_DENIED = "Only ACLs that deny."

Named = tuple[AclResource, str, PatternType]


@dataclass(frozen=True)
class Selection:
    """The options that all commands share."""

    users: tuple[str, ...]
    principals: tuple[str, ...]
    topics: tuple[str, ...]
    groups: tuple[str, ...]
    transactions: tuple[str, ...]
    tokens: tuple[str, ...]
    is_cluster: bool
    prefixed: bool
    operations: tuple[str, ...]
    deny: bool
    host: str | None

    def who(self, *, must: bool = True) -> list[str]:
        """The principals."""
        for each in self.principals:
            if ":" not in each:
                raise click.UsageError(f"--principal {each}: give it as User:name, or use --user {each}.")
        who = [*(f"User:{each}" for each in self.users), *self.principals]
        if must and not who:
            raise click.UsageError("Name the user with --user NAME.")
        return who

    def named(self, *, must: bool = True) -> list[Named]:
        """The resources."""
        by_kind = {
            AclResource.TOPIC: self.topics,
            AclResource.GROUP: self.groups,
            AclResource.TRANSACTIONAL_ID: self.transactions,
            AclResource.DELEGATION_TOKEN: self.tokens,
        }
        named = [
            # All of them, in Kafka, is the literal name `*`.
            (kind, name, PatternType.PREFIXED if self.prefixed and name != WILDCARD else PatternType.LITERAL)
            for kind, names in by_kind.items()
            for name in names
        ]
        if self.is_cluster:
            named.append((AclResource.CLUSTER, CLUSTER_NAME, PatternType.LITERAL))
        if must and not named:
            raise click.UsageError("Name a resource: --topic, --group, --transactional-id, --token or --cluster.")
        return named

    def check(self) -> None:
        """Refuses names that never match anything. Like Kafka, nodes accept any text, and a deny would have no
        effect."""
        if self.host is not None and self.host != WILDCARD:
            try:
                ip_address(self.host.removeprefix("[").removesuffix("]"))
            except ValueError:
                raise click.UsageError(
                    f"--host {self.host}: give an IP address; nodes do not resolve host names."
                ) from None
        for each in self.topics:
            if each != WILDCARD and WILDCARD in each:
                raise click.UsageError(
                    f"--topic {each}: no topic has a * in its name. For all topics with a prefix, give the prefix "
                    "and --prefixed."
                )
            if not self.prefixed and each != WILDCARD and (fault := topic_name_fault(each)) is not None:
                raise click.UsageError(f"--topic {each}: {fault}.")


def _who_and_what(
    *,
    prefixed: str = "The names are prefixes.",
    deny: str = "Deny, whatever other ACLs allow.",
) -> Callable[[F], F]:
    """Adds the shared options to a command, which gets them together as `selection`."""

    def decorate(function: F) -> F:
        @click.option(
            "--user", "users", metavar="NAME", multiple=True, help="The user; `*` for everyone. Repeatable."
        )
        @click.option("--principal", "principals", metavar="USER:NAME", multiple=True, hidden=True)
        @click.option("--cluster", "is_cluster", is_flag=True, help="On the cluster itself.")
        @click.option("--token", "tokens", metavar="ID", multiple=True, help="On this delegation token.")
        @click.option("--transactional-id", "transactions", metavar="ID", multiple=True, help="On this id.")
        @click.option("--group", "groups", metavar="NAME", type=GroupName(), multiple=True, help="On this group.")
        @click.option("--topic", "topics", metavar="NAME", type=TopicName(), multiple=True, help="On this topic.")
        @click.option("--prefixed", is_flag=True, help=prefixed)
        @click.option(
            "-o",
            "--operation",
            "operations",
            type=click.Choice(OPERATIONS, case_sensitive=False),
            multiple=True,
            help="The operation; may be repeated.",
        )
        @click.option("--deny", is_flag=True, help=deny)
        @click.option("--host", metavar="ADDRESS", help="Only from this address. [default: anywhere]")
        @wraps(function)
        def run(**options: Any) -> Any:
            selection = Selection(**{each.name: options.pop(each.name) for each in fields(Selection)})
            return function(selection=selection, **options)

        return cast(F, run)

    return decorate


@click.group("acl")
def command() -> None:
    """Access control lists: list, add, change and remove them.

    Only what an ACL allows is permitted, except to super users (`super.users`). Deny takes precedence over allow;
    read, write, delete and alter include describe. The name `*` matches all.

    \b
    Examples:
      millpond acl add --user alice --topic orders --operation read --operation write
      millpond acl add --user billing --topic orders --group billing --consumer
      millpond acl list --user alice
      millpond acl change --user alice --topic orders --operation read
      millpond acl remove --user alice --topic orders
    """


@command.command("add")
@_who_and_what()
@click.option("--producer", is_flag=True, help="Everything needed to write to these topics.")
@click.option("--consumer", is_flag=True, help="Everything needed to read these topics in these groups.")
@AS_JSON
@cluster_options
def add_command(selection: Selection, producer: bool, consumer: bool, as_json: bool, access: Access) -> None:
    """Allow operations to users, or deny them with --deny.

    \b
    Examples:
      millpond acl add --user alice --topic orders --operation read
      millpond acl add --user shop --topic shop. --prefixed --producer
      millpond acl add --user billing --topic orders --group billing --consumer
      millpond acl add --user '*' --topic payroll --operation all --deny
    """
    from millpond.admin.acls import add_acls, consumer_acls, producer_acls

    selection.check()
    named = selection.named()
    who = selection.who()
    permission = Permission.DENY if selection.deny else Permission.ALLOW
    if not selection.operations and not producer and not consumer:
        raise click.UsageError("Name the operation: --operation read, or --producer, or --consumer.")
    if (producer or consumer) and (selection.deny or selection.operations):
        raise click.UsageError("--producer and --consumer cannot be combined with --operation or --deny.")
    if (producer or consumer) and not selection.topics:
        raise click.UsageError("Name the topics with --topic.")
    if consumer and not selection.groups:
        raise click.UsageError("Consumers read in a group: name it with --group, or --group '*'.")
    acls: list[Acl] = []
    for principal in who:
        by_kind = {kind: [(name, pattern) for each, name, pattern in named if each is kind] for kind in AclResource}
        if producer:
            acls += producer_acls(
                principal,
                by_kind[AclResource.TOPIC],
                transactional_id=selection.transactions[0] if selection.transactions else None,
            )
        if consumer:
            acls += consumer_acls(principal, by_kind[AclResource.TOPIC], by_kind[AclResource.GROUP])
        acls += _acls(principal, named, selection.operations, permission, WILDCARD)
    acls = [replace(each, host=selection.host or WILDCARD) for each in dict.fromkeys(acls)]
    with access.open() as cluster:
        add_acls(cluster, acls)
    if as_json:
        print_json([_as_json(each) for each in acls])
    else:
        click.echo(f"Added {counted(len(acls), 'ACL')}.")


@command.command("list")
@_who_and_what(prefixed="Only ACLs on prefixes.", deny=ONLY_DENIED)
@click.option("--match", is_flag=True, help="All ACLs that apply to the name: prefixes and `*`, too.")
@AS_JSON
@cluster_options
def list_command(selection: Selection, match: bool, as_json: bool, access: Access) -> None:
    """List ACLs: all of them, or those of a user or on a resource.

    \b
    Examples:
      millpond acl list
      millpond acl list --user alice --json
      millpond acl list --topic orders --match
    """
    from millpond.admin.acls import list_acls

    pattern = PatternType.MATCH if match else PatternType.PREFIXED if selection.prefixed else PatternType.ANY
    permission = Permission.DENY if selection.deny else Permission.ANY
    filters = _filters(
        selection.who(must=False),
        selection.named(must=False),
        selection.operations,
        permission,
        selection.host,
        pattern,
    )
    with access.open() as cluster:
        acls = sorted({acl for each in filters for acl in list_acls(cluster, each)})
    print_list(
        [_as_json(each) for each in acls],
        ("Principal", "Permission", "Operation", "Resource", "Name", "Host"),
        [_row(each) for each in acls],
        as_json=as_json,
        otherwise="There are no such ACLs.",
        words=6,
    )


@command.command("change")
@_who_and_what()
@YES
@AS_JSON
@cluster_options
def change_command(selection: Selection, yes: bool, as_json: bool, access: Access) -> None:
    """Set the operations of users on these resources: adds missing ACLs and removes the others.

    \b
    Example:
      millpond acl change --user alice --topic orders --operation read
    """
    from millpond.admin.acls import add_acls, list_acls, remove_acls

    if not selection.operations:
        raise click.UsageError("Name the operations with --operation; `millpond acl remove` removes all.")
    selection.check()
    named = selection.named()
    permission = Permission.DENY if selection.deny else Permission.ALLOW
    at = selection.host or WILDCARD
    who = selection.who()
    target = {acl for each in who for acl in _acls(each, named, selection.operations, permission, at)}
    filters = _filters(who, named, (), permission, at, None)
    with access.open() as cluster:
        current = {acl for each in filters for acl in list_acls(cluster, each)}
        added, removed = sorted(target - current), sorted(current - target)
        if removed:
            confirm(f"Remove {counted(len(removed), 'ACL')}?", yes=yes, to_do="remove them without asking")
        if added:
            add_acls(cluster, added)
        if removed:
            remove_acls(cluster, [each.as_filter() for each in removed])
    if as_json:
        print_json({"added": [_as_json(each) for each in added], "removed": [_as_json(each) for each in removed]})
    else:
        click.echo(f"Added {counted(len(added), 'ACL')}, removed {counted(len(removed), 'ACL')}.")


@command.command("remove")
@_who_and_what(deny=ONLY_DENIED)
@YES
@AS_JSON
@cluster_options
def remove_command(selection: Selection, yes: bool, as_json: bool, access: Access) -> None:
    """Remove ACLs: of a user, on a resource, or of a user on a resource.

    \b
    Examples:
      millpond acl remove --user alice
      millpond acl remove --user alice --topic orders --operation write --yes
    """
    from millpond.admin.acls import list_acls, remove_acls

    who = selection.who(must=False)
    named = selection.named(must=False)
    if not who and not named:
        raise click.UsageError("Name a user with --user, or a resource with --topic or the like.")
    permission = Permission.DENY if selection.deny else Permission.ANY
    filters = _filters(who, named, selection.operations, permission, selection.host, None)
    with access.open() as cluster:
        acls = sorted({acl for each in filters for acl in list_acls(cluster, each)})
        if acls:
            confirm(f"Remove {counted(len(acls), 'ACL')}?", yes=yes, to_do="remove them without asking")
            acls = remove_acls(cluster, [each.as_filter() for each in acls])
    if as_json:
        print_json([_as_json(each) for each in acls])
    else:
        click.echo(f"Removed {counted(len(acls), 'ACL')}.")


def _operations(names: Sequence[str]) -> list[Operation]:
    return [Operation[each.upper().replace("-", "_")] for each in names]


def _acls(
    principal: str, named: Sequence[Named], operations: Sequence[str], permission: Permission, host: str
) -> list[Acl]:
    from millpond.admin.acls import Acl

    return [
        Acl(principal, kind, name, pattern, operation, permission, host)
        for kind, name, pattern in named
        for operation in _operations(operations)
    ]


def _filters(
    who: Sequence[str],
    named: Sequence[Named],
    operations: Sequence[str],
    permission: Permission,
    host: str | None,
    pattern: PatternType | None,
) -> list[AclFilter]:
    """One binding per combination; `pattern` overrides the patterns of the names."""
    from millpond.admin.acls import AclFilter

    return [
        AclFilter(principal, kind, name, pattern or own, operation, permission, host)
        for principal in who or (None,)
        for kind, name, own in named or ((AclResource.ANY, None, PatternType.ANY),)
        for operation in _operations(operations) or (Operation.ANY,)
    ]


# Showing.


def _row(acl: Acl) -> tuple[str, ...]:
    name = acl.name + ("…" if acl.pattern is PatternType.PREFIXED else "")
    return (
        safe(acl.principal, in_line=True),
        acl.permission.name.lower(),
        _word(acl.operation.name),
        _word(acl.resource.name),
        safe(name, in_line=True),
        safe(acl.host, in_line=True),
    )


def _as_json(acl: Acl) -> dict[str, str]:
    return {
        "principal": acl.principal,
        "permission": acl.permission.name.lower(),
        "operation": _word(acl.operation.name),
        "resource": _word(acl.resource.name),
        "name": acl.name,
        "pattern": acl.pattern.name.lower(),
        "host": acl.host,
    }


def _word(name: str) -> str:
    return name.lower().replace("_", "-")
