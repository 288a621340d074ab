"""`millpond quota`: limits of users, client ids and addresses, from the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest


def listed(millpond: Any, *words: str) -> list[dict[str, Any]]:
    result = millpond.succeeds("quota", "list", "--json", *words)
    return json.loads(result.out)


def test_a_quota_is_added_changed_and_removed(millpond: Any) -> None:
    made = millpond("quota", "add", "--user", "alice", "--produce", "10MB/s", "--fetch", "1048576")
    assert (made.code, made.out) == (
        0,
        "Added the quota of user alice: produce 10 MB/s, fetch 1.05 MB/s.\n",
    ), made.err
    millpond.succeeds("quota", "add", "--user", "alice", "--client-id", "reports", "--request", "50")
    millpond.succeeds("quota", "add", "--user", "<default>", "--mutations", "5")
    millpond.succeeds("quota", "add", "--ip", "10.0.0.7", "--connections", "20")
    alice = {"producer_byte_rate": 10e6, "consumer_byte_rate": 1048576.0}
    assert listed(millpond, "--user", "alice") == [{"user": "alice", "client_id": None, "ip": None, "limits": alice}]
    everything = {(each["user"], each["client_id"], each["ip"]): each["limits"] for each in listed(millpond)}
    assert everything == {
        ("alice", None, None): alice,
        ("alice", "reports", None): {"request_percentage": 50.0},
        ("<default>", None, None): {"controller_mutation_rate": 5.0},
        (None, None, "10.0.0.7"): {"connection_creation_rate": 20.0},
    }
    table = millpond("quota", "list")
    assert table.lines[0].split() == ["User", "Client", "id", "Address", "Limits"]
    millpond.succeeds("quota", "change", "--user", "alice", "--produce", "20MB/s")
    (now,) = listed(millpond, "--user", "alice")
    assert now["limits"] == {"producer_byte_rate": 20e6, "consumer_byte_rate": 1048576.0}
    millpond.succeeds("quota", "remove", "--user", "alice", "--limit", "fetch", "--yes")
    assert listed(millpond, "--user", "alice")[0]["limits"] == {"producer_byte_rate": 20e6}
    for whom in (["--user", "alice"], ["--user", "alice", "--client-id", "reports"], ["--user", "<default>"],
                 ["--ip", "10.0.0.7"]):  # fmt: skip
        millpond.succeeds("quota", "remove", *whom, "--yes")
    assert listed(millpond) == []
    assert "There are no quotas" in millpond("quota", "list").err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("add", "--user", "bob"), 2, "Give a limit"),
        (("add", "--produce", "1MB/s"), 2, "Name --user, --client-id"),
        (("add", "--ip", "10.0.0.1", "--user", "bob", "--connections", "1"), 2, "--ip cannot be combined"),
        (("add", "--user", "bob", "--produce", "much"), 2, "is not a rate"),
        (("add", "--user", "bob", "--request", "-1"), 2, "not in the range"),
        (("change", "--user", "bob", "--produce", "1MB/s"), 1, "There is no quota of user bob"),
        (("remove", "--user", "bob", "--yes"), 1, "There is no such quota of user bob"),
        (("add", "--ip", "10.0.0.1", "--produce", "1MB/s"), 1, "the quota was not changed"),
    ],
)
def test_invalid_requests_are_refused(millpond: Any, words: tuple[str, ...], code: int, message: str) -> None:
    millpond.fails("quota", *words, code=code, error=message)
