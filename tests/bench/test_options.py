"""Options of `python -m bench`: a bad one ends it at once, with a line that says which and why."""

from __future__ import annotations

import pytest
from bench.__main__ import parsed, plan_of


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "nothing"], "--only nothing: not a row; choose from floor"),
        (["--peers", "--only", "start"], "--only start: not a row that other brokers can run"),
        (["--slices", "0"], "not a whole number from 1 to 1000"),
        (["--slices", "-1"], "not a whole number"),
        (["--slices", "2.5"], "not a whole number"),
        (["--seconds", "0"], "not a number above 0"),
        (["--seconds", "nan"], "not a number above 0"),
        (["--seconds", "inf"], "not a number above 0"),
        (["--seconds", "soon"], "not a number above 0"),
        (["--backlog-gb", "-3"], "not a number above 0"),
        (["--check", "--store"], "not allowed with"),
        (["--check", "--peers"], "not allowed with"),
        (["--figures", "some.json"], "--figures needs --check or --store"),
        (["--against", "kafka"], "--against needs --peers"),
        (["--peers", "--against", "nobody"], "--against nobody: unknown; choose from"),
        (["--profile", "one", "--check"], "cannot be combined with"),
    ],
)
def test_bad_words(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_quick_run_is_short_and_says_so() -> None:
    quick, full = plan_of(parsed(["--quick"])), plan_of(parsed([]))
    assert (quick.slices, quick.quick) == (1, True)
    assert (full.slices, full.backlog_bytes) == (3, 10_000_000_000)
    assert quick.backlog_bytes < 1_000_000_000
    assert plan_of(parsed(["--slices", "5", "--seconds", "3", "--backlog-gb", "0.5"])).backlog_bytes == 500_000_000


def test_rows_can_be_named_with_every_mode() -> None:
    assert parsed(["--peers", "--only", "one", "--against", "kafka"]).only == ["one"]
    assert parsed(["--check", "--only", "start"]).only == ["start"]
    assert parsed(["--store", "--figures", "some.json"]).figures == "some.json"
