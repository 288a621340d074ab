"""`millpond user`: users who log in with a password."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from millpond.admin.users import ITERATIONS, MECHANISMS
from millpond.cli.access import Access, cluster_options
from millpond.cli.errors import Failed, cause
from millpond.cli.options import AS_JSON, YES, option
from millpond.cli.terminal import confirm, print_json, print_list
from millpond.cli.text import safe

MECHANISM = click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(tuple(MECHANISMS)),
    multiple=True,
    help="Only this mechanism; may be repeated. [default: all]",
)
ROUNDS = option(
    "--iterations",
    default=ITERATIONS,
    type=click.IntRange(4_096, 16_384),
    help="How often the password is hashed; more makes guessing slower.",
)
RANDOM = click.option("--random", "is_random", is_flag=True, help="Generate a password and show it once.")
FILE = click.option("--password-file", metavar="FILE", help="Its first line is the password.")


@click.group("user")
def command() -> None:
    """Users who log in with a password: add, list, change and remove them.

    The password is prompted for, or read from a line of standard input or of a file, because others can see a command
    line. Rights are given with `millpond acl`; users with certificates with `millpond cert`.

    \b
    Examples:
      millpond user add alice
      millpond user add billing --random
      millpond user list
      millpond user change alice
      millpond user remove alice
    """


@command.command("add")
@click.argument("name")
@MECHANISM
@ROUNDS
@RANDOM
@FILE
@AS_JSON
@cluster_options
def add_command(
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    is_random: bool,
    password_file: str | None,
    as_json: bool,
    access: Access,
) -> None:
    """Add the user NAME, without any rights.

    \b
    Examples:
      millpond user add alice
      millpond user add billing --random --json
      millpond user add alice --mechanism SCRAM-SHA-512 --password-file secret.txt
    """
    from millpond.admin.users import list_users

    with access.open() as cluster:
        names = {each.name for each in list_users(cluster)}
    if name in names:
        raise Failed(f"The user {name} exists already: change the password with `millpond user change {name}`.")
    _set(name, mechanisms or tuple(MECHANISMS), iterations, is_random, password_file, as_json, access, "Added")


@command.command("change")
@click.argument("name")
@MECHANISM
@ROUNDS
@RANDOM
@FILE
@AS_JSON
@cluster_options
def change_command(
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    is_random: bool,
    password_file: str | None,
    as_json: bool,
    access: Access,
) -> None:
    """Change the password of the user NAME. Connections that used the old one have to log in again.

    \b
    Examples:
      millpond user change alice
      millpond user change billing --random
    """
    from millpond.admin.users import find_user

    with access.open() as cluster:
        user = find_user(cluster, name)
    chosen = mechanisms or tuple(each for each in user.mechanisms if each in MECHANISMS)
    _set(name, chosen, iterations, is_random, password_file, as_json, access, "Changed")


def _set(
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    is_random: bool,
    file: str | None,
    as_json: bool,
    access: Access,
    done: str,
) -> None:
    from millpond.admin.users import random_password, set_password

    if is_random and file is not None:
        raise click.UsageError("--random generates a password: leave out --password-file.")
    password = random_password() if is_random else _ask_password(f"Password of {name}", file)
    with access.open() as cluster:
        set_password(cluster, name, password, mechanisms, iterations)
    _keep_up(access, name, password, mechanisms)
    if as_json:
        print_json({"user": name, "mechanisms": list(mechanisms)} | ({"password": password} if is_random else {}))
        return
    click.echo(f"{done} user {name} ({', '.join(mechanisms)}).")
    if is_random:
        click.echo(f"Password: {password}")
        click.echo("It is shown only once.", err=True)


def _ask_password(what: str, file: str | None) -> str:
    """The first line of the file, or of a hidden prompt, or of standard input.

    Never from the command line, which every user of the machine can see (`ps`).
    """
    if file is not None:
        try:
            with open(file, encoding="utf-8") as lines:
                password = lines.readline().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise Failed(f"--password-file {file} cannot be read: {cause(error)}.") from None
    elif sys.stdin.isatty():
        password = str(click.prompt(what, hide_input=True, confirmation_prompt=True, err=True))
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise Failed(f"{what} is empty; nothing was changed.")
    return password


def _keep_up(access: Access, name: str, password: str, mechanisms: tuple[str, ...]) -> None:
    """Updates the files of a secure node, if this is its admin."""
    from millpond.node.secure_folder import ADMIN, SecureFolder
    from millpond.node.secure_folder import MECHANISM as OF_FILES

    if name != ADMIN or access.client_file is None or OF_FILES not in mechanisms:
        return
    folder = SecureFolder(Path(access.client_file).absolute().parent)
    if folder.client_file.exists() and folder.password_file.exists():
        folder.change_password(password)
        click.echo(f"Updated the password in {folder.path}, too.", err=True)


@command.command("list")
@AS_JSON
@cluster_options
def list_command(as_json: bool, access: Access) -> None:
    """List the users who log in with a password. The passwords themselves are not stored.

    \b
    Example:
      millpond user list
    """
    from millpond.admin.users import list_users

    with access.open() as cluster:
        users = list_users(cluster)
    print_list(
        [{"user": each.name, "mechanisms": dict(each.mechanisms)} for each in users],
        ("User", "Mechanisms", "Iterations"),
        [
            (
                safe(each.name, in_line=True),
                ", ".join(each.mechanisms),
                ", ".join(f"{count:,}" for count in dict.fromkeys(each.mechanisms.values())),
            )
            for each in users
        ],
        as_json=as_json,
        otherwise="There are no users yet: add one with `millpond user add NAME`.",
        words=2,
    )


@command.command("remove")
@click.argument("name")
@MECHANISM
@YES
@cluster_options
def remove_command(name: str, mechanisms: tuple[str, ...], yes: bool, access: Access) -> None:
    """Remove the user NAME, or the password for one mechanism. ACLs and quotas of the user stay.

    The user's connections are closed within a second. With the last password, the user's delegation tokens end, too.

    \b
    Examples:
      millpond user remove alice
      millpond user remove alice --mechanism SCRAM-SHA-256 --yes
    """
    from millpond.admin.users import find_user, remove_user

    with access.open() as cluster:
        find_user(cluster, name)
        confirm(f"Remove user {name}?", yes=yes, to_do="remove them without asking")
        remove_user(cluster, name, mechanisms)
    click.echo(f"Removed {'the password of ' if mechanisms else ''}user {name}.")
