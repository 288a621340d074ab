"""`millpond cluster features`, `upgrade` and `downgrade`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from millpond.cli.access import Access
from millpond.cli.options import pairs
from millpond.cli.terminal import confirm, print_json, print_table

if TYPE_CHECKING:
    from millpond.admin.features import FeatureFacts
    from millpond.metadata.features import UpgradeType


def show_features(access: Access, *, as_json: bool) -> None:
    from millpond.admin.features import describe_features

    with access.open() as cluster:
        features = describe_features(cluster)
    if as_json:
        print_json(
            [
                {
                    "name": each.name,
                    "final": each.final,
                    "newest": each.newest,
                    "brings": each.brings,
                    "nodes": {
                        str(node_id): None if levels is None else [levels.lowest, levels.newest]
                        for node_id, levels in each.nodes.items()
                    },
                    "silent": each.silent,
                }
                for each in features
            ]
        )
        return
    print_table(
        ("Feature", "Final", "Supported"), [(each.name, each.final, _supported(each)) for each in features], words=3
    )
    for line in _advice(features):
        click.echo(line)


def _supported(feature: FeatureFacts) -> str:
    """`25 to 26`, or the levels per node if they differ."""
    nodes: dict[str, list[int]] = {}
    for node_id, levels in feature.nodes.items():
        nodes.setdefault("nothing" if levels is None else str(levels), []).append(node_id)
    if len(nodes) == 1:
        return next(iter(nodes))
    return ", ".join(f"{levels} (node {', '.join(map(str, ids))})" for levels, ids in nodes.items())


def _advice(features: Sequence[FeatureFacts]) -> list[str]:
    lines = []
    for each in features:
        newest = max((levels.newest for levels in each.nodes.values() if levels), default=0)
        how = "brings" if each.can_be_raised else "is raised automatically when needed"
        lines += [f"{each.name} {each.newest} {how}: {text}." for text in each.brings]
        if newest > max(each.newest, each.final):
            behind = [node_id for node_id, levels in each.nodes.items() if levels is None or levels.newest < newest]
            named = ", ".join(map(str, behind))
            lines.append(f"{each.name} {newest} waits for a newer Millpond on node {named}.")
    if any(each.can_be_raised for each in features):
        lines.append("To upgrade: millpond cluster upgrade")
    if features and features[0].silent:
        lines.append(f"No answer: node {', '.join(map(str, features[0].silent))}.")
    return lines


def raise_levels(access: Access, to: Sequence[str], *, dry_run: bool, yes: bool, as_json: bool) -> None:
    from millpond.admin.features import describe_features
    from millpond.metadata.features import UpgradeType

    levels = _levels(to)
    with access.open() as cluster:
        features = {each.name: each for each in describe_features(cluster)}
    levels = levels or {name: each.newest for name, each in features.items() if each.can_be_raised}
    if not levels:
        if as_json:
            print_json({"is_done": True, "features": []})
        else:
            click.echo("Every feature is at the newest level that all nodes support.")
        return
    how = (UpgradeType.UPGRADE, "Raise them?")
    _change(access, features, levels, *how, dry_run=dry_run, yes=yes, as_json=as_json)


def lower_levels(access: Access, to: Sequence[str], *, unsafe: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    from millpond.admin.features import describe_features
    from millpond.metadata.features import UpgradeType

    with access.open() as cluster:
        features = {each.name: each for each in describe_features(cluster)}
    kind = UpgradeType.UNSAFE_DOWNGRADE if unsafe else UpgradeType.SAFE_DOWNGRADE
    _change(access, features, _levels(to), kind, "Lower them?", dry_run=dry_run, yes=yes, as_json=as_json)


def _levels(texts: Sequence[str]) -> dict[str, int]:
    levels = {}
    for name, text in pairs(texts, "the argument").items():
        if not text.isdecimal():
            raise click.UsageError(f"{name}={text}: a level is a number, such as {name}=1.")
        levels[name] = int(text)
    return levels


def _change(
    access: Access,
    features: Mapping[str, FeatureFacts],
    levels: Mapping[str, int],
    kind: UpgradeType,
    question: str,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Validates the change on the cluster, shows it, asks the user and applies it."""
    from millpond.admin.features import update_features

    rows = [(name, features[name].final if name in features else 0, level) for name, level in levels.items()]
    with access.open() as cluster:
        update_features(cluster, levels, kind, is_dry=True)
        if not as_json:
            _show_change(features, rows)
        if not dry_run:
            confirm(question, yes=yes, to_do="change the levels without asking")
            update_features(cluster, levels, kind)
    if as_json:
        listed = [{"name": name, "before": before, "after": after} for name, before, after in rows]
        print_json({"is_done": not dry_run, "features": listed})
    else:
        click.echo("Nothing was changed." if dry_run else "Done.")


def _show_change(features: Mapping[str, FeatureFacts], rows: Sequence[tuple[str, int, int]]) -> None:
    print_table(("Feature", "From", "To"), rows)
    for name, _, level in rows:
        for text in features[name].brings if name in features and level > features[name].final else ():
            click.echo(f"{name} {level} brings: {text}.")
