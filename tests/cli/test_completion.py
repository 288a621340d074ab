"""What a shell completes, as the shell asks for it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import click
import pytest

from millpond.admin.settings import REGISTRIES
from millpond.cli.completion.name import Name
from millpond.cli.completion.names import PATIENCE_SECONDS
from support.node import eventually


def complete(millpond: Any, *words: str, **variables: str) -> list[str]:
    """The words that are offered for the last one."""
    before = millpond.environment
    millpond.environment = before | {
        "_MILLPOND_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("millpond", *words)),
        "COMP_CWORD": str(len(words)),
        **variables,
    }
    try:
        done = millpond()
    finally:
        millpond.environment = before
    assert (done.code, done.err) == (0, "")
    return [line.partition(",")[2] for line in done.lines if line]


def test_names_of_the_cluster_are_completed(millpond: Any, quick: Any, read_as: Any, topic: str) -> None:
    read_as("completed-group", topic)
    for words, offered in (
        (("topic", "describe", topic[:-1]), [topic]),
        (("consume", "__consumer_off"), ["__consumer_offsets"]),
        (("config", "get", "topic", topic[:-1]), [topic]),
        (("node", "describe", ""), ["1"]),
        (("config", "get", "node", ""), ["1", "all"]),
        (("group", "describe", "completed"), ["completed-group"]),
    ):
        # Once more where the machine was too busy for an answer in time: then nothing is offered.
        assert eventually(lambda words=words, offered=offered: complete(millpond, *words) == offered), words


def test_what_needs_no_cluster_is_completed_without_one(lonely: Any, tmp_path: Path) -> None:
    lonely.environment |= {"XDG_CONFIG_HOME": str(tmp_path)}
    lonely.succeeds("profile", "add", "production", "--bootstrap", "127.0.0.1:1")
    assert complete(lonely, "-p", "prod") == ["production"]
    assert complete(lonely, "pro") == ["produce", "profile"]
    assert complete(lonely, "config", "set", "topic", "x", "retention.m") == ["retention.ms="]
    assert complete(lonely, "topic", "alter", "x", "--unset", "retention.m") == ["retention.ms"]
    assert "--until-end" in complete(lonely, "consume", "x", "--unt")
    assert set(complete(lonely, "config", "get", "group", "x", "")) == {each.name for each in REGISTRIES["group"]}


def test_what_a_shell_would_carry_out_is_not_offered() -> None:
    class Group(Name):
        def candidates(self, ctx: click.Context, incomplete: str) -> list[str]:
            return ["a-b.c:1/2@x", "größe", "$(date)", "`date`", "--yes", "a b", "a;b", "a\nb", "*", "~", "'", "x=1"]

    context = click.Context(click.Command("c"))
    offered = Group().shell_complete(context, click.Argument(["name"]), "")
    assert [each.value for each in offered] == ["a-b.c:1/2@x", "größe", "x=1"]


def test_without_an_answer_nothing_is_offered_soon(lonely: Any) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        assert complete(lonely, "topic", "describe", "--bootstrap", address, "") == []
        # The rest is Python's start, on a machine that may be busy.
        assert time.monotonic() - began < PATIENCE_SECONDS + 10
    assert complete(lonely, "topic", "describe", "", MILLPOND_BOOTSTRAP="127.0.0.1:1") == []
    assert complete(lonely, "topic", "describe", "", MILLPOND_PROFILE="none") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_can_read_its_script(lonely: Any, shell: str, tmp_path: Path) -> None:
    script = lonely.succeeds("completion", shell)
    assert "_MILLPOND_COMPLETE" in script.out
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell} here")
    (tmp_path / "script").write_text(script.out)
    subprocess.run([program, "-n", str(tmp_path / "script")], check=True, timeout=60)
