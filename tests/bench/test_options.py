"""What `python -m bench` is told: bad words end it at once, with a line that says which and why."""

from __future__ import annotations

import pytest
from bench.__main__ import parsed, plan_of


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "nothing"], "--only nothing: not a row; there are floor"),
        (["--peers", "--only", "start"], "--only start: not a row that others can run"),
        (["--slices", "0"], "no whole number from 1 to 1000"),
        (["--slices", "-1"], "no whole number"),
        (["--slices", "2.5"], "no whole number"),
        (["--seconds", "0"], "no number above 0"),
        (["--seconds", "nan"], "no number above 0"),
        (["--seconds", "inf"], "no number above 0"),
        (["--seconds", "soon"], "no number above 0"),
        (["--backlog-gb", "-3"], "no number above 0"),
        (["--check", "--store"], "not allowed with"),
        (["--check", "--peers"], "not allowed with"),
        (["--figures", "some.json"], "--figures goes with --check or --store"),
        (["--against", "kafka"], "--against goes with --peers"),
        (["--peers", "--against", "nobody"], "--against nobody: not known; there are"),
        (["--profile", "one", "--check"], "goes with none of"),
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
