"""Balances as of now, of a time and of an offset."""

from __future__ import annotations

import time
from typing import Any

from millpond.testing import Pond


def test_balances_at_any_time(millpond: Pond, example: Any) -> None:
    millpond.create_topic("bank.events")
    example.run("bank.py", "deposit", "ann", "500")
    (second,) = example.run("bank.py", "deposit", "bob", "200")
    assert second.startswith("event 1 at ")
    time.sleep(0.01)
    example.run("bank.py", "withdraw", "ann", "120")
    assert example.run("bank.py", "show") == ["ann 380", "bob 200"]
    assert example.run("bank.py", "show", "--until", "1") == ["ann 500"]
    assert example.run("bank.py", "show", "--until", "0") == []
    assert example.run("bank.py", "show", "--at", second.removeprefix("event 1 at ")) == ["ann 500", "bob 200"]
    assert example.run("bank.py", "withdraw", "bob", "900", code=1) == ["bob does not have 900 cents"]
    assert example.run("bank.py", "show") == ["ann 380", "bob 200"]
