"""Names that a shell completes: of topics, groups, nodes and settings.

The user waits for the completion: if the cluster does not answer within a moment, nothing is offered. Errors are not
reported, because there is no place to print them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import click

from millpond.cli.access import DEFAULT_BOOTSTRAP, access_of
from millpond.cli.completion.name import Name
from millpond.cli.options import pairs

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from millpond.remote.cluster import Cluster

PATIENCE_SECONDS: Final = 1.0
INTERNAL: Final = "__"


class TopicName(Name):
    """A topic; internal ones only once their prefix is typed."""

    def candidates(self, ctx: click.Context, incomplete: str) -> Iterable[str]:
        names = ask(ctx, lambda cluster: list(cluster.topics()))
        return [each for each in names if incomplete.startswith(INTERNAL) or not each.startswith(INTERNAL)]


class GroupName(Name):
    def candidates(self, ctx: click.Context, incomplete: str) -> Iterable[str]:
        def groups(cluster: Cluster) -> list[str]:
            from millpond.admin.groups import list_groups

            return [each.group for each in list_groups(cluster)]

        return ask(ctx, groups)


class ShareGroupName(Name):
    def candidates(self, ctx: click.Context, incomplete: str) -> Iterable[str]:
        def groups(cluster: Cluster) -> list[str]:
            from millpond.admin.queues.find import share_groups

            return share_groups(cluster)

        return ask(ctx, groups)


class NodeNumber(click.IntRange):
    """The number of a node."""

    def __init__(self) -> None:
        super().__init__(0)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[Any]]:
        return _NodeName().shell_complete(ctx, param, incomplete)


class _NodeName(Name):
    def candidates(self, ctx: click.Context, incomplete: str) -> Iterable[str]:
        return ask(ctx, lambda cluster: [str(each) for each in cluster.addresses()])


class HolderName(Name):
    """A resource of the kind that the previous argument names."""

    def candidates(self, ctx: click.Context, incomplete: str) -> Iterable[str]:
        match ctx.params.get("what"):
            case "topic":
                return TopicName().candidates(ctx, incomplete)
            case "group":
                return GroupName().candidates(ctx, incomplete)
            case "node":
                return ["all", *_NodeName().candidates(ctx, incomplete)]
            case _:
                return []


class SettingName(Name):
    """A setting of the kind that a previous argument names; `suffix` is appended."""

    def __init__(self, what: str | None = None, suffix: str = "") -> None:
        self._what = what
        self._suffix = suffix

    def candidates(self, ctx: click.Context, incomplete: str) -> Iterable[str]:
        from millpond.admin.settings import REGISTRIES

        what = self._what or ctx.params.get("what")
        registries = [registry for name, registry in REGISTRIES.items() if name == what]
        return [f"{each.name}{self._suffix}" for each in chain(*registries) if not each.internal]


def ask(ctx: click.Context, question: Callable[[Cluster], list[str]]) -> list[str]:
    """The answer of the cluster that the command line names; nothing if it does not answer soon."""
    from threading import Thread

    answers: list[str] = []

    def attempt() -> None:
        # Any error: there is no place to report it.
        try:
            answers.extend(_answer(ctx, question))
        except Exception:
            return

    # A thread, because not everything has a timeout: resolving a host name has none.
    thread = Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    return list(answers)


def _answer(ctx: click.Context, question: Callable[[Cluster], list[str]]) -> list[str]:
    from millpond.remote.cluster import Cluster

    params = ctx.params
    extras = pairs(params.get("extras") or (), "-X")
    access = access_of(
        ctx,
        params.get("bootstrap") or DEFAULT_BOOTSTRAP,
        params.get("profile"),
        extras,
        params.get("client_config"),
    )
    patience_ms = str(round(PATIENCE_SECONDS * 1000))
    settings = {
        "bootstrap.servers": access.servers(),
        "request.timeout.ms": patience_ms,
        "default.api.timeout.ms": patience_ms,
        **access.extras,
    }
    with Cluster(settings) as cluster:
        return question(cluster)
