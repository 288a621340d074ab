"""`millpond cert`: a private certificate authority, and certificates for nodes and clients."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from millpond.cli.errors import Failed, cause
from millpond.cli.options import AS_JSON, YES, option
from millpond.cli.terminal import confirm, panel, print_json, print_list
from millpond.cli.text import counted
from millpond.config.node import DATA_FOLDER
from millpond.log.names import SECURITY_FOLDER

if TYPE_CHECKING:
    from millpond.node.authority import Authority, Facts

DAYS: Final = 730
SOON_DAYS: Final = 30
"""`list` warns of certificates that expire within this time."""

FOLDER = option(
    "--folder",
    meta="DIR",
    default=str(Path(DATA_FOLDER.default) / SECURITY_FOLDER),
    help="The folder of the authority and its certificates.",
)
VALID = option("--days", default=DAYS, type=click.IntRange(1, 3650), help="How long it is valid.")


@click.group("cert")
def command() -> None:
    """Certificates for TLS: create an authority; issue, renew and remove certificates of nodes and users.

    `millpond up --secure` creates all of this for a single node. Nodes load a renewed certificate without a restart.
    NAME.pem has a key and its certificate, for `ssl.keystore.location`; ca.pem is what others verify it with, and
    ca.key stays where it is.

    \b
    Examples:
      millpond cert authority --folder tls
      millpond cert add node-1 --host 10.0.0.1 --host mill.example --folder tls
      millpond cert add alice --folder tls
      millpond cert list --folder tls
      millpond cert change node-1 --folder tls
      millpond cert remove alice --folder tls
    """


@command.command("authority")
@FOLDER
@click.option("--name", default="Millpond", help="The name of the authority.")
@option("--days", default=3650, type=click.IntRange(1, 36500), help="How long it is valid.")
@AS_JSON
def authority_command(folder: str, name: str, days: int, as_json: bool) -> None:
    """Create an authority: once per cluster, on a machine that you trust.

    \b
    Example:
      millpond cert authority --folder tls
    """
    from millpond.node.authority import Authority, read_facts

    try:
        made = Authority.create(Path(folder), name, days)
        facts = read_facts(made.path)
    except FileExistsError as error:
        raise Failed(f"{error}: a new authority would invalidate all its certificates.") from None
    except OSError as error:
        raise Failed(f"{folder} cannot be used: {cause(error)}.") from None
    if as_json:
        print_json(_as_json(facts))
    else:
        click.echo(f"Created an authority: share {made.path}, keep {made.folder / 'ca.key'} secret.")


@command.command("add")
@click.argument("name")
@click.option(
    "--host", "hosts", metavar="HOST", multiple=True, help="For a node: its host name or address; repeatable."
)
@VALID
@FOLDER
@AS_JSON
def add_command(name: str, hosts: tuple[str, ...], days: int, folder: str, as_json: bool) -> None:
    """Create a key and its certificate: for the user NAME or, with --host, for a node.

    \b
    Examples:
      millpond cert add alice
      millpond cert add node-1 --host 10.0.0.1 --host mill.example
    """
    from millpond.node.authority import NAME, read_facts

    if not NAME.fullmatch(name) or name == "ca":
        raise click.UsageError(f"{name!r} cannot be a certificate's name: use letters, digits, dots, @, - and _.")
    try:
        path = _authority(folder).issue(name, "node" if hosts else "client", _checked(hosts), days)
    except FileExistsError:
        raise Failed(f"The certificate {name} exists already: renew it with `millpond cert change {name}`.") from None
    except OSError as error:
        raise Failed(f"{folder} cannot be used: {cause(error)}.") from None
    _tell(read_facts(path), as_json, "Made")


@command.command("change")
@click.argument("name")
@click.option("--host", "hosts", metavar="HOST", multiple=True, help="Replaces its hosts; repeatable.")
@VALID
@FOLDER
@AS_JSON
def change_command(name: str, hosts: tuple[str, ...], days: int, folder: str, as_json: bool) -> None:
    """Renew the certificate NAME with a new key: before it expires, or because its hosts have changed.

    \b
    Examples:
      millpond cert change node-1
      millpond cert change node-1 --host 10.0.0.9
    """
    from millpond.node.authority import read_facts

    facts = _find(folder, name)
    if facts.kind == "authority":
        raise Failed("An authority cannot be renewed: all its certificates would become invalid.")
    if hosts and facts.kind == "client":
        raise click.UsageError(f"{name} is the certificate of a user, which has no host: leave out --host.")
    try:
        path = _authority(folder).issue(
            name, "node" if facts.kind == "node" else "client", _checked(hosts) or facts.hosts, days, replace=True
        )
    except OSError as error:
        raise Failed(f"{folder} cannot be used: {cause(error)}.") from None
    _tell(read_facts(path), as_json, "Renewed")


@command.command("list")
@FOLDER
@AS_JSON
def list_command(folder: str, as_json: bool) -> None:
    """List the certificates of a folder, and when they expire.

    \b
    Example:
      millpond cert list
    """
    from millpond.node.authority import list_facts

    certificates = list_facts(Path(folder))
    now = datetime.now(UTC)
    print_list(
        [_as_json(each) for each in certificates],
        ("Name", "Kind", "Subject", "Hosts", "Until", "Days left"),
        [
            (
                each.name,
                each.kind,
                each.subject,
                ", ".join(each.hosts),
                each.not_after.strftime("%Y-%m-%d"),
                each.days_left(now),
            )
            for each in certificates
        ],
        as_json=as_json,
        otherwise=f"There are no certificates in {folder}: create an authority with `millpond cert authority`.",
        words=5,
    )
    for each in certificates:
        if not as_json and each.days_left(now) < SOON_DAYS:
            click.echo(f"{each.name} expires in {counted(max(each.days_left(now), 0), 'day')}.", err=True)


@command.command("show")
@click.argument("file", metavar="NAME|FILE")
@FOLDER
@AS_JSON
def show_command(file: str, folder: str, as_json: bool) -> None:
    """Show a certificate: one of the folder, or any file in PEM format. Keys are not shown.

    \b
    Examples:
      millpond cert show node-1
      millpond cert show /etc/ssl/certs/mill.pem
    """
    from millpond.node.authority import read_facts

    path = Path(file)
    if not path.exists():
        facts = _find(folder, file)
    else:
        try:
            facts = read_facts(path)
        except (OSError, ValueError):
            raise Failed(f"{file} is not a certificate in PEM format.") from None
    if as_json:
        print_json(_as_json(facts))
        return
    rows = [(name.replace("_", " "), _shown(value)) for name, value in _as_json(facts).items()]
    click.echo(panel(facts.name, rows))


@command.command("remove")
@click.argument("name")
@FOLDER
@YES
def remove_command(name: str, folder: str, yes: bool) -> None:
    """Remove the certificate NAME and its key. Copies stay valid until they expire: to revoke the user's rights, use
    `millpond acl remove --user NAME`.

    \b
    Example:
      millpond cert remove alice
    """
    facts = _find(folder, name)
    if facts.kind == "authority":
        raise Failed("The authority cannot be removed: the cluster could issue no more certificates.")
    confirm(f"Remove {facts.path}?", yes=yes, to_do="remove it without asking")
    facts.path.unlink(missing_ok=True)
    click.echo(f"Removed {facts.path}. Copies of it stay valid until {facts.not_after:%Y-%m-%d}.")


def _authority(folder: str) -> Authority:
    from millpond.node.authority import Authority, NoAuthority

    try:
        return Authority.load(Path(folder))
    except NoAuthority as fault:
        raise Failed(f"{fault}; create one with `millpond cert authority --folder {folder}`.") from None


def _find(folder: str, name: str) -> Facts:
    from millpond.admin.errors import unknown
    from millpond.node.authority import list_facts

    certificates = {each.name: each for each in list_facts(Path(folder))}
    if name not in certificates:
        raise Failed(str(unknown("certificate", name, certificates, f"not found in {folder}")))
    return certificates[name]


def _checked(hosts: tuple[str, ...]) -> tuple[str, ...]:
    for host in hosts:
        try:
            host.encode("idna")
        except UnicodeError:
            raise click.UsageError(f"--host {host}: this is not a valid host name.") from None
        if "/" in host or (":" in host and host.count(":") == 1):
            raise click.UsageError(f"--host {host}: give a name or an address, without a port.")
    return hosts


def _tell(facts: Facts, as_json: bool, done: str) -> None:
    if as_json:
        print_json(_as_json(facts))
    else:
        click.echo(f"{done} {facts.path}, valid until {facts.not_after:%Y-%m-%d}.")


def _as_json(facts: Facts) -> dict[str, Any]:
    return {
        "name": facts.name,
        "path": str(facts.path),
        "kind": facts.kind,
        "subject": facts.subject,
        "hosts": list(facts.hosts),
        "not_before": facts.not_before.isoformat(),
        "not_after": facts.not_after.isoformat(),
        "serial": facts.serial,
        "fingerprint": facts.fingerprint,
    }


def _shown(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
