"""Answers reach their askers; a late one is ignored; without an answer there is a timeout."""

from __future__ import annotations

from typing import Any

from millpond.testing import Pond


def test_requests_replies_and_timeouts(millpond: Pond, example: Any) -> None:
    millpond.create_topic("requests", 4)
    millpond.create_topic("replies")
    assert example.run("ask.py", "1", "2", "--timeout", "0.3") == ["no answer within 0.3 s", "no answer within 0.3 s"]
    example.start("calculator.py")
    assert example.run("ask.py", "1", "2", "3", "--timeout", "15") == ["6", "7"]
    late = example.run("ask.py", "5", "--slowly", "2.5", "--timeout", "2")
    assert late == ["no answer within 2 s", "6"]
    example.start("calculator.py")
    together = [example.start("ask.py", str(10 * number), "--timeout", "15") for number in range(1, 4)]
    for number, each in enumerate(together, 1):
        assert each.wait_for(lambda lines: len(lines) == 2) == [str(10 * number), str(10 * number + 1)]
