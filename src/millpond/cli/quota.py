"""`millpond quota`: quotas of users, client ids and addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from millpond.admin.quotas import ADDRESS, CLIENT_ID, LIMITS, USER
from millpond.base.units import show_bytes
from millpond.cli.access import Access, cluster_options
from millpond.cli.errors import Failed
from millpond.cli.options import AS_JSON, YES
from millpond.cli.terminal import confirm, print_json, print_list
from millpond.cli.text import safe

if TYPE_CHECKING:
    from millpond.admin.quotas import Quota

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT: Final = "<default>"
"""In place of a name: the default for all without a quota."""

_OPTIONS: Final = {
    "producer_byte_rate": "--produce",
    "consumer_byte_rate": "--fetch",
    "request_percentage": "--request",
    "controller_mutation_rate": "--mutations",
    "connection_creation_rate": "--connections",
}


def _rate(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """Bytes per second, as 1048576, 10MB or 10MB/s."""
    if text is None:
        return None
    from millpond.base.units import read_bytes

    try:
        # A plain number is in bytes, as in Kafka's tool.
        return read_bytes(text.removesuffix("/s"))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a rate; write it like 10MB/s.") from None


def _entity(function: F) -> F:
    for add in (
        click.option("--user", metavar="NAME", help=f"Of this user; {DEFAULT} for users without a quota."),
        click.option("--client-id", metavar="ID", help="Of this client id; with --user, of the combination."),
        click.option("--ip", "address", metavar="ADDRESS", help="Of connections from this address."),
    ):
        function = add(function)
    return function


def _limits(function: F) -> F:
    number = click.FloatRange(0, min_open=True)
    for add in (
        click.option("--produce", metavar="RATE", callback=_rate, help="Write rate, as 10MB/s."),
        click.option("--fetch", metavar="RATE", callback=_rate, help="Read rate."),
        click.option("--request", metavar="PERCENT", type=number, help="Request time, in percent of a core."),
        click.option("--mutations", metavar="N", type=number, help="Partitions created or deleted per second."),
        click.option("--connections", metavar="N", type=number, help="New connections per second, for an --ip."),
    ):
        function = add(function)
    return function


@click.group("quota")
def command() -> None:
    """Quotas of users, client ids and addresses: list, add, change and remove them.

    Clients over their quota are throttled. The most specific quota applies: user and client id before user, user
    before client id, each before the default of its kind.

    \b
    Examples:
      millpond quota add --user alice --produce 10MB/s --fetch 20MB/s
      millpond quota add --user '<default>' --produce 1MB/s
      millpond quota list
      millpond quota change --user alice --produce 20MB/s
      millpond quota remove --user alice
    """


@command.command("add")
@_entity
@_limits
@AS_JSON
@cluster_options
def add_command(
    user: str | None, client_id: str | None, address: str | None, as_json: bool, access: Access, **limits: Any
) -> None:
    """Add limits to a user, client id or address. Its other limits stay.

    \b
    Examples:
      millpond quota add --user alice --produce 10MB/s
      millpond quota add --client-id reports --fetch 5MB/s --request 50
      millpond quota add --ip 10.0.0.7 --connections 20
    """
    _set(_who(user, client_id, address), _limits_from(limits), as_json, access, "Added", must_be=False)


@command.command("change")
@_entity
@_limits
@AS_JSON
@cluster_options
def change_command(
    user: str | None, client_id: str | None, address: str | None, as_json: bool, access: Access, **limits: Any
) -> None:
    """Change existing limits; limits that are not named stay.

    \b
    Example:
      millpond quota change --user alice --produce 20MB/s
    """
    _set(_who(user, client_id, address), _limits_from(limits), as_json, access, "Changed", must_be=True)


def _set(
    entity: dict[str, str | None],
    limits: dict[str, float],
    as_json: bool,
    access: Access,
    done: str,
    *,
    must_be: bool,
) -> None:
    from millpond.admin.quotas import Quota, alter_quota, list_quotas

    if not limits:
        raise click.UsageError(f"Give a limit: {', '.join(_OPTIONS.values())}.")
    with access.open() as cluster:
        if must_be and not list_quotas(cluster, entity):
            raise Failed(f"There is no quota of {_named(entity)}: add one with `millpond quota add`.")
        alter_quota(cluster, entity, limits)
    quota = Quota(entity, limits)
    if as_json:
        print_json(_as_json(quota))
    else:
        click.echo(f"{done} the quota of {_named(entity)}: {_limits_of(quota)}.")


@command.command("list")
@_entity
@AS_JSON
@cluster_options
def list_command(user: str | None, client_id: str | None, address: str | None, as_json: bool, access: Access) -> None:
    """List all quotas, or those of one user, client id or address.

    \b
    Examples:
      millpond quota list
      millpond quota list --user alice --json
    """
    from millpond.admin.quotas import list_quotas

    entity = _who(user, client_id, address, must=False)
    with access.open() as cluster:
        quotas = list_quotas(cluster, entity or None)
    print_list(
        [_as_json(each) for each in quotas],
        ("User", "Client id", "Address", "Limits"),
        [
            (*(safe(_name(each.entity, kind), in_line=True) for kind in (USER, CLIENT_ID, ADDRESS)), _limits_of(each))
            for each in quotas
        ],
        as_json=as_json,
        otherwise="There are no quotas.",
        words=4,
    )


@command.command("remove")
@_entity
@click.option(
    "--limit",
    "names",
    type=click.Choice([each.removeprefix("--") for each in _OPTIONS.values()]),
    multiple=True,
    help="Only this limit; may be repeated.",
)
@YES
@cluster_options
def remove_command(
    user: str | None, client_id: str | None, address: str | None, names: tuple[str, ...], yes: bool, access: Access
) -> None:
    """Remove a quota, or some of its limits.

    \b
    Examples:
      millpond quota remove --user alice
      millpond quota remove --user alice --limit fetch --yes
    """
    from millpond.admin.quotas import alter_quota, list_quotas

    entity = _who(user, client_id, address)
    with access.open() as cluster:
        quotas = list_quotas(cluster, entity)
        limits = [
            each
            for quota in quotas
            for each in quota.limits
            if not names or _OPTIONS.get(each, each).removeprefix("--") in names
        ]
        if not limits:
            raise Failed(f"There is no such quota of {_named(entity)}.")
        confirm(f"Remove the quota of {_named(entity)}?", yes=yes, to_do="remove it without asking")
        alter_quota(cluster, entity, {}, limits)
    click.echo(f"Removed from the quota of {_named(entity)}: {', '.join(limits)}.")


# What was given, and how it is shown.


def _who(user: str | None, client_id: str | None, address: str | None, *, must: bool = True) -> dict[str, str | None]:
    names_by_kind = {USER: user, CLIENT_ID: client_id, ADDRESS: address}
    entity = {kind: None if name == DEFAULT else name for kind, name in names_by_kind.items() if name is not None}
    if must and not entity:
        raise click.UsageError("Name --user, --client-id, both, or --ip.")
    if ADDRESS in entity and len(entity) > 1:
        raise click.UsageError("--ip cannot be combined with --user or --client-id.")
    return entity


def _limits_from(limits: Mapping[str, float | None]) -> dict[str, float]:
    by_option = {option.removeprefix("--"): name for name, option in _OPTIONS.items()}
    return {by_option[option]: value for option, value in limits.items() if value is not None}


def _name(entity: Mapping[str, str | None], kind: str) -> str:
    return (entity[kind] or DEFAULT) if kind in entity else ""


def _named(entity: Mapping[str, str | None]) -> str:
    words = {USER: "user", CLIENT_ID: "client id", ADDRESS: "address"}
    return " and ".join(f"{words[kind]} {name or DEFAULT}" for kind, name in entity.items())


def _limits_of(quota: Quota) -> str:
    shown = []
    for name, value in quota.limits.items():
        word = _OPTIONS.get(name, name).removeprefix("--")
        shown.append(f"{word} {show_bytes(int(value))}/s" if name.endswith("byte_rate") else f"{word} {value:g}")
    return ", ".join(shown)


def _as_json(quota: Quota) -> dict[str, object]:
    return {
        "user": _name(quota.entity, USER) or None,
        "client_id": _name(quota.entity, CLIENT_ID) or None,
        "ip": _name(quota.entity, ADDRESS) or None,
        "limits": dict(quota.limits),
    }


assert _OPTIONS.keys() == LIMITS.keys()
