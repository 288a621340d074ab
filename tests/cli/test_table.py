"""Tables for pipes and the sizes in them."""

from __future__ import annotations

import pytest

from millpond.cli.terminal import print_table


def test_a_pipe_gets_aligned_columns_and_plain_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("Topic", "Records"), [("tea", 1234567), ("a longer name", 5)])
    assert capsys.readouterr().out == (
        "Topic          Records\n"
        "tea            1234567\n"
        "a longer name        5\n"
    )  # fmt: skip


def test_an_empty_table_is_its_head(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("Topic", "Records"), [])
    assert capsys.readouterr().out == "Topic  Records\n"
