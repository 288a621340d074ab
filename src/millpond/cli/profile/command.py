"""`millpond profile`: names for clusters, so that `-p prod` is enough to connect."""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from millpond.cli.access import Access
from millpond.cli.errors import Failed
from millpond.cli.options import AS_JSON, pairs
from millpond.cli.profile.file import (
    NAME,
    Profile,
    Profiles,
    profiles_path,
    read_profiles,
    warn_of_readers,
    write_profiles,
)
from millpond.cli.profile.name import ProfileName
from millpond.cli.terminal import print_json, print_list
from millpond.cli.text import counted

PROFILE = click.argument("name", type=ProfileName())
NONE_YET = "There are no profiles yet: add one with `millpond profile add NAME --bootstrap HOST:PORT`."


@click.group("profile")
def command() -> None:
    """Names for clusters: the address, client settings and secrets of each.

    `millpond -p NAME COMMAND` uses one, as do `millpond COMMAND --profile NAME` and the variable MILLPOND_PROFILE;
    `millpond profile use NAME` makes it the default. `millpond help profiles` explains the precedence.

    \b
    Examples:
      millpond profile add prod --bootstrap a.example:9092,b.example:9092
      millpond -p prod topic list
      millpond profile use prod
    """


@command.command("add")
@click.argument("name")
@click.option("-b", "--bootstrap", metavar="HOST:PORT", required=True, help="Nodes of the cluster, with commas.")
@click.option(
    "-X", "extras", metavar="NAME=VALUE", multiple=True, help="A setting for the client library; repeatable."
)
@click.option("--ask", "prompts", metavar="SETTING", multiple=True, help="Prompt for its value, hidden.")
@click.option("--replace", "may_replace", is_flag=True, help="Replace a profile of this name.")
@click.option("--use", "is_used", is_flag=True, help="Make it the default.")
def add_command(
    name: str, bootstrap: str, extras: tuple[str, ...], prompts: tuple[str, ...], may_replace: bool, is_used: bool
) -> None:
    """Add the profile NAME, without connecting to the cluster.

    Use --ask for secrets: a shell keeps its command lines in a history. Without a terminal the value is read from a
    line of standard input.

    \b
    Examples:
      millpond profile add here --bootstrap 127.0.0.1:9092
      millpond profile add prod --bootstrap a.example:9093 -X security.protocol=SASL_SSL \\
          -X sasl.mechanism=SCRAM-SHA-512 -X sasl.username=me --ask sasl.password
    """
    if not NAME.fullmatch(name):
        raise click.UsageError(f"{name!r} cannot be a profile's name: use letters, digits, dots, - and _.")
    profiles = read_profiles()
    if name in profiles.by_name and not may_replace:
        raise Failed(f"The profile {name} exists already: add --replace to replace it.")
    settings = pairs(extras, "-X") | {each: _secret(each) for each in prompts}
    access = Access(bootstrap, settings)
    access.check()
    by_name = {**profiles.by_name, name: Profile(name, bootstrap, settings)}
    path = write_profiles(Profiles(by_name, name if is_used else profiles.in_use))
    click.echo(f"{'Replaced' if name in profiles.by_name else 'Added'} profile {name} in {path}.")


def _secret(setting: str) -> str:
    if sys.stdin.isatty():
        return str(click.prompt(setting, hide_input=True, err=True))
    line = sys.stdin.readline()
    if not line:
        # An empty secret would only be refused later, by the cluster.
        raise Failed(f"Standard input ended before a line for {setting}; nothing was written.")
    return line.rstrip("\r\n")


@command.command("list")
@AS_JSON
def list_command(as_json: bool) -> None:
    """List the profiles; the one in use has a mark.

    \b
    Example:
      millpond profile list
    """
    profiles = read_profiles()
    warn_of_readers(profiles.by_name.values())
    print_list(
        [_as_object(each, profiles) for each in profiles.by_name.values()],
        ("Profile", "In use", "Bootstrap", "Settings"),
        [
            (each.name, "yes" if each.name == profiles.in_use else "", each.bootstrap, len(each.settings))
            for each in profiles.by_name.values()
        ],
        as_json=as_json,
        otherwise=NONE_YET,
        words=3,
    )


@command.command("show")
@click.argument("name", required=False, type=ProfileName())
@AS_JSON
def show_command(name: str | None, as_json: bool) -> None:
    """Show the profile NAME, or the one in use; secrets are not shown.

    \b
    Example:
      millpond profile show prod
    """
    profiles = read_profiles()
    if name is None and profiles.in_use is None:
        raise Failed("No profile is in use: name one." if profiles.by_name else NONE_YET)
    profile = profiles.get(name or profiles.in_use or "", "millpond profile show")
    warn_of_readers([profile])
    if as_json:
        print_json(_as_object(profile, profiles))
        return
    click.secho(f"{profile.name}{' (in use)' if profile.name == profiles.in_use else ''}", bold=True)
    click.echo(f"  bootstrap  {profile.bootstrap}")
    for setting, value in profile.shown_settings().items():
        click.echo(f"  -X {setting}={value}")


def _as_object(profile: Profile, profiles: Profiles) -> dict[str, object]:
    return {
        "name": profile.name,
        "in_use": profile.name == profiles.in_use,
        "bootstrap": profile.bootstrap,
        "settings": profile.shown_settings(),
    }


@command.command("remove")
@PROFILE
def remove_command(name: str) -> None:
    """Remove the profile NAME. The cluster is not changed.

    \b
    Example:
      millpond profile remove old
    """
    profiles = read_profiles()
    profiles.get(name, "millpond profile remove")
    by_name = {each: profile for each, profile in profiles.by_name.items() if each != name}
    was_in_use = profiles.in_use == name
    write_profiles(Profiles(by_name, None if was_in_use else profiles.in_use))
    click.echo(f"Removed profile {name}" + ("; none is in use now." if was_in_use else "."))


@command.command("use")
@click.argument("name", required=False, type=ProfileName())
@click.option("--none", "is_none", is_flag=True, help="Have no default profile.")
def use_command(name: str | None, is_none: bool) -> None:
    """Make the profile NAME the default.

    \b
    Examples:
      millpond profile use prod
      millpond profile use --none
    """
    if (name is None) != is_none:
        raise click.UsageError("Name a profile, or give --none for no profile.")
    profiles = read_profiles()
    if name is not None:
        profiles.get(name, "millpond profile use")
    write_profiles(replace(profiles, in_use=name))
    left = counted(len(profiles.by_name), "profile")
    click.echo(f"Profile {name} is in use." if name else f"No profile is in use; {left} in {profiles_path()}.")
