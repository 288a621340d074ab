"""`millpond config`: settings of topics, nodes and groups of any Kafka cluster."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millpond.base.secret_names import HIDDEN
from millpond.cli.access import Access, cluster_options
from millpond.cli.completion.names import HolderName, SettingName
from millpond.cli.errors import Failed
from millpond.cli.options import AS_JSON, pair, setting_value
from millpond.cli.terminal import print_json, print_list
from millpond.cli.text import NOTHING, can_show, safe

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.admin.settings import Change, SettingFacts, Subject

F = TypeVar("F", bound="Callable[..., Any]")

KINDS = ("topic", "node", "group")
WHAT = click.argument("what", metavar="topic|node|group", type=click.Choice(KINDS))
NAME = click.argument("name", type=HolderName())


@click.group("config")
def command() -> None:
    """Settings of topics, nodes and groups: list, explain and change them.

    A node is named by its number; `all` sets the default of all nodes. Changes take effect at once and are kept.
    Settings that only apply at start-up are given with `millpond up --set NAME=VALUE`.

    \b
    Examples:
      millpond config list topic                     all settings that a topic has
      millpond config list topic orders              what differs from the defaults
      millpond config get topic orders retention.ms
      millpond config set topic orders retention.ms=86400000
      millpond config set node all log.retention.ms=86400000
    """


@command.command("list")
@WHAT
@click.argument("name", required=False, type=HolderName())
@click.option("-a", "--all", "show_all", is_flag=True, help="Include defaults.")
@AS_JSON
@cluster_options
def list_command(what: str, name: str | None, show_all: bool, as_json: bool, access: Access) -> None:
    """List the settings of one topic, node or group; without a NAME, explain all that exist.

    Without a NAME no cluster is asked: it lists what this version of Millpond declares.

    \b
    Examples:
      millpond config list topic
      millpond config list node 1 --all
      millpond config list group billing --json
    """
    from millpond.admin.settings import read_settings

    if name is None:
        _list_declared(what, as_json)
        return
    subject = _subject(what, name)
    with access.open() as cluster:
        settings = read_settings(cluster, subject)
    shown = [each for each in settings if show_all or not each.is_default]
    print_list(
        [asdict(each) for each in shown],
        ("Setting", "Value", "From"),
        [(safe(each.name, in_line=True), _value_of(each), each.source) for each in shown],
        as_json=as_json,
        otherwise=_nothing(subject),
        words=3,
    )


@command.command("get")
@WHAT
@NAME
@click.argument("settings", metavar="SETTING...", nargs=-1, required=True, type=SettingName())
@click.option("--value", "only_value", is_flag=True, help="Print only the value, for scripts.")
@AS_JSON
@cluster_options
def get_command(
    what: str, name: str, settings: tuple[str, ...], only_value: bool, as_json: bool, access: Access
) -> None:
    """Show the value, source and meaning of SETTINGs.

    \b
    Examples:
      millpond config get topic orders retention.ms
      millpond config get node 1 num.partitions --value
    """
    from millpond.admin.settings import find_settings

    with access.open() as cluster:
        chosen = find_settings(cluster, _subject(what, name), settings)
    if as_json:
        print_json([asdict(each) for each in chosen])
        return
    if only_value:
        _print_values(chosen)
        return
    for at, facts in enumerate(chosen):
        if at:
            click.echo()
        _print_facts(facts)


@command.command("set")
@WHAT
@NAME
@click.argument("assignments", metavar="SETTING=VALUE...", nargs=-1, required=True, type=SettingName(suffix="="))
@click.option("--dry-run", is_flag=True, help="Only let the cluster say whether it would.")
@AS_JSON
@cluster_options
def set_command(
    what: str, name: str, assignments: tuple[str, ...], dry_run: bool, as_json: bool, access: Access
) -> None:
    """Set values: all of them, or none if one is refused.

    \b
    Examples:
      millpond config set topic orders retention.ms=7d cleanup.policy=compact,delete
      millpond config set node all log.retention.ms=86400000
      millpond config set group billing consumer.session.timeout.ms=50000
    """
    from millpond.admin.settings import change_settings

    to_set: dict[str, str] = {}
    for text in assignments:
        setting, value = pair(text, f"SETTING=VALUE {text}: give it as name=value.")
        if setting in to_set:
            raise click.UsageError(f"{setting} is given twice.")
        to_set[setting] = setting_value(setting, value)
    with access.open() as cluster:
        changes = change_settings(cluster, _subject(what, name), to_set, dry=dry_run)
    _print_changes(changes, dry_run, as_json)


@command.command("unset")
@WHAT
@NAME
@click.argument("settings", metavar="SETTING...", nargs=-1, required=True, type=SettingName())
@click.option("--dry-run", is_flag=True, help="Only let the cluster say whether it would.")
@AS_JSON
@cluster_options
def unset_command(
    what: str, name: str, settings: tuple[str, ...], dry_run: bool, as_json: bool, access: Access
) -> None:
    """Remove values that were set, so that the default applies again.

    \b
    Example:
      millpond config unset topic orders retention.ms
    """
    from millpond.admin.settings import change_settings

    with access.open() as cluster:
        changes = change_settings(cluster, _subject(what, name), {}, list(dict.fromkeys(settings)), dry=dry_run)
    _print_changes(changes, dry_run, as_json)


def _subject(what: str, name: str) -> Subject:
    from millpond.admin.settings import EVERY_NODE, Subject

    if what == "node" and name != EVERY_NODE and not name.isdecimal():
        raise click.UsageError(f"Give a node's number, or `{EVERY_NODE}` for all nodes, not {name!r}.")
    return Subject(what, name)  # type: ignore[arg-type]  # It is one of KINDS.


# Showing.


def _list_declared(what: str, as_json: bool) -> None:
    """The settings that this version declares."""
    from millpond.admin.settings import REGISTRIES, kind_name

    declared = [each for each in REGISTRIES[what] if not each.internal]  # type: ignore[index]  # One of KINDS.
    if as_json:
        print_json(
            [
                {
                    "name": each.name,
                    "kind": kind_name(each.kind.value),
                    "default": each.show(each.default),
                    "inherits": each.inherits,
                    "is_fixed": not each.live and what == "node",
                    "meaning": each.doc,
                }
                for each in declared
            ]
        )
        return
    for each in declared:
        default = each.show(each.default) or "empty"
        inherits = f", from the node's {each.inherits}" if each.inherits else ""
        at_start = ", only at start-up" if not each.live and what == "node" else ""
        click.secho(each.name, bold=True, nl=False)
        click.echo(f" ({kind_name(each.kind.value)}; default {default}{inherits}{at_start})")
        click.echo(_indented(each.doc))


def _print_values(chosen: list[SettingFacts]) -> None:
    """One value per line, empty if there is none."""
    for facts in chosen:
        if facts.is_secret:
            raise Failed(f"{facts.name} is a secret: the cluster does not disclose it.")
    for facts in chosen:
        value = facts.value or ""
        click.echo(safe(value, in_line=True) if sys.stdout.isatty() else value)


def _print_facts(facts: SettingFacts) -> None:
    click.secho(f"{facts.name} = {_value_of(facts)}", bold=True)
    source = facts.source
    if facts.is_own and facts.otherwise is not None:
        source += f"; unset it would be {safe(facts.otherwise, in_line=True) or 'empty'}"
    click.echo(f"  from: {source}")
    click.echo(f"  type: {facts.kind}" + ("; only at start-up" if facts.is_fixed else ""))
    if facts.meaning:
        click.echo(_indented(safe(facts.meaning)))


def _print_changes(changes: list[Change], is_dry: bool, as_json: bool) -> None:
    if as_json:
        print_json([asdict(each) for each in changes])
        return
    arrow = "→" if can_show("→") else "->"
    for each in changes:
        change = HIDDEN if each.is_secret else f"{_shown(each.before)} {arrow} {_shown(each.after)}"
        click.echo(f"{safe(each.name, in_line=True)}: {change}")
    if is_dry:
        click.echo("Nothing was changed; the cluster would accept it.", err=True)


def _value_of(facts: SettingFacts) -> str:
    return HIDDEN if facts.is_secret else _shown(facts.value)


def _shown(value: str | None) -> str:
    return NOTHING if value is None else safe(value, in_line=True) or "(empty)"


def _indented(text: str) -> str:
    return click.wrap_text(text, width=78, initial_indent="  ", subsequent_indent="  ")


def _nothing(subject: Subject) -> str:
    if subject.is_every_node:
        return "Nothing is set for all nodes; `millpond config list node` lists the settings."
    return f"{subject.what.capitalize()} {subject.name} has only defaults: --all shows them."
