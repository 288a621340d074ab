"""`millpond token`: delegation tokens, with which programs log in as a user without the password."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from millpond.cli.access import Access, cluster_options
from millpond.cli.options import AS_JSON, YES, span
from millpond.cli.terminal import confirm, panel, print_json, print_list
from millpond.cli.text import safe
from millpond.cli.times import show_time

if TYPE_CHECKING:
    from millpond.admin.tokens import Token


def _span(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return span(text)
    except ValueError as fault:
        raise click.BadParameter(f"{fault}.") from None


@click.group("token")
def command() -> None:
    """Delegation tokens: create one for a program, renew it, end it.

    A program logs in by SCRAM with the token's id and password, and `tokenauth="true"` in `sasl.jaas.config`. It has
    the owner's rights, but cannot create tokens. When the token ends, its connections are closed.

    \b
    Examples:
      millpond token add --max-lifetime 7d
      millpond token list
      millpond token change ID --renew 1d
      millpond token remove ID
    """


@command.command("add")
@click.option("--user", metavar="NAME", help="The owner. [default: you]")
@click.option(
    "--renewer", "renewers", metavar="NAME", multiple=True, help="Another user who may renew it; may be repeated."
)
@click.option("--max-lifetime", metavar="SPAN", callback=_span, help="Its maximum lifetime, as 7d.")
@AS_JSON
@cluster_options
def add_command(
    user: str | None, renewers: tuple[str, ...], max_lifetime: int | None, as_json: bool, access: Access
) -> None:
    """Create a token and show its password.

    \b
    Example:
      millpond token add --user billing --renewer ops --max-lifetime 7d
    """
    from millpond.admin.tokens import create_token

    with access.open() as cluster:
        token = create_token(cluster, user, renewers, -1 if max_lifetime is None else max_lifetime)
    if as_json:
        print_json(_as_json(token) | {"password": token.password})
        return
    rows = [
        ("id", token.token_id),
        ("password", f"{token.password}  (as good as the owner's)"),
        ("owner", token.owner),
        ("expires", show_time(token.expires_ms)),
        ("at the latest", show_time(token.lasts_until_ms)),
    ]
    click.echo(panel("Delegation token", rows))


@command.command("list")
@click.option("--user", "users", metavar="NAME", multiple=True, help="Only tokens of this user; may be repeated.")
@AS_JSON
@cluster_options
def list_command(users: tuple[str, ...], as_json: bool, access: Access) -> None:
    """List the tokens that you may see, without their passwords.

    \b
    Example:
      millpond token list --user billing
    """
    from millpond.admin.tokens import list_tokens

    with access.open() as cluster:
        tokens = list_tokens(cluster, users or None)
    print_list(
        [_as_json(each) for each in tokens],
        ("Id", "Owner", "Renewers", "Expires", "At the latest"),
        [
            (
                each.token_id,
                safe(each.owner, in_line=True),
                safe(", ".join(each.renewers), in_line=True),
                show_time(each.expires_ms),
                show_time(each.lasts_until_ms),
            )
            for each in tokens
        ],
        as_json=as_json,
        otherwise="There are no tokens that you may see.",
        words=5,
    )


@command.command("change")
@click.argument("token_id", metavar="ID")
@click.option("--renew", metavar="SPAN", callback=_span, help="How long from now. [default: the cluster's]")
@AS_JSON
@cluster_options
def change_command(token_id: str, renew: int | None, as_json: bool, access: Access) -> None:
    """Renew a token.

    \b
    Example:
      millpond token change ID --renew 1d
    """
    from millpond.admin.tokens import find_token, renew_token

    with access.open() as cluster:
        until_ms = renew_token(cluster, find_token(cluster, token_id), -1 if renew is None else renew)
    if as_json:
        print_json({"id": token_id, "expires_ms": until_ms})
    else:
        click.echo(f"Renewed {token_id}; it expires {show_time(until_ms)}.")


@command.command("remove")
@click.argument("token_id", metavar="ID")
@YES
@cluster_options
def remove_command(token_id: str, yes: bool, access: Access) -> None:
    """End a token now, and close the connections that use it.

    \b
    Example:
      millpond token remove ID
    """
    from millpond.admin.tokens import expire_token, find_token

    with access.open() as cluster:
        token = find_token(cluster, token_id)
        confirm(f"End token {token_id} of {token.owner}?", yes=yes, to_do="end it without asking")
        expire_token(cluster, token)
    click.echo(f"Ended token {token_id}.")


def _as_json(token: Token) -> dict[str, object]:
    return {
        "id": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issued_ms": token.issued_ms,
        "expires_ms": token.expires_ms,
        "lasts_until_ms": token.lasts_until_ms,
    }
