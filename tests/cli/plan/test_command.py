"""`millpond plan` as a user runs it."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.smoke
def test_without_options_it_shows_the_worked_example(lonely: Any) -> None:
    result = lonely.succeeds("plan")
    assert max(map(len, result.lines)) <= 80
    sums = {line.split("=")[0].strip(): line.split("=")[1].strip() for line in result.lines if "=" in line}
    expected = {
        "incoming         1,000,000/s × 1 KB": "1 GB/s",
        "at peak          2 GB/s × 3 replicas": "6 GB/s",
        "outgoing         2 GB/s + 2 GB/s": "4 GB/s",
        "with replicas    605 TB × 3": "1.81 PB",
        "for the disk     1.81 PB ÷ 20 TB": "90.7",
        "each leads       1 GB/s ÷ 91": "11 MB/s",
        "each writes      3 GB/s ÷ 91": "33 MB/s",
        "at least         1 GB/s ÷ 10 MB/s": "100",
        "with headroom    100 × 2": "200",
    }
    assert expected.items() <= sums.items()
    assert result.lines[-1].startswith("91 brokers, 200 partitions, 1.81 PB on disk;")


def test_a_rate_of_data_and_other_units_give_the_same_plan(lonely: Any) -> None:
    by_data = lonely("plan", "--json", "--rate", "1GB/s", "--network", "1.25GB/s", "--retention", "168h")
    assert by_data.objects[0]["plan"] == lonely("plan", "--json").objects[0]["plan"]
    assert by_data.objects[0]["plan"]["stored"] == pytest.approx(1.8144e15)


def test_it_measures_a_node_here(lonely: Any) -> None:
    result = lonely.succeeds("plan", "--measure", "--json", "--rate", "1GB/s")
    engine = result.objects[0]["machine"]["engine"]
    assert engine["write_bytes_per_second"] > 20e6
    assert engine["read_bytes_per_second"] > 20e6
    assert 1_000 < engine["requests_per_second"] < 1e6
    assert result.objects[0]["plan"]["brokers_by"]["cores"] > 0
    assert "Measuring a node here" in result.err


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        ("--rate", "fast", "'fast' is not a rate; write it like 100k/s (messages) or 1GB/s (data)."),
        ("--rate", "0/s", "'0/s' must be more than nothing."),
        ("--size", "1XB", "'1XB' is not a size; write it like 1KB, 1KiB or 20TB."),
        ("--retention", "long", "'long' is not a duration; write it like 7d or 36h."),
        ("--network", "10", "'10' is not a data rate; write it like 10MB/s or 10Gbit/s."),
        ("--peak", "0.5", "0.5 is not in the range x>=1."),
    ],
)
def test_invalid_options_are_refused_in_one_sentence(lonely: Any, option: str, text: str, words: str) -> None:
    lonely.fails("plan", option, text, code=2, error=words)


def test_work_plans_the_workers_of_a_queue(lonely: Any) -> None:
    words = ("plan", "--rate", "500/s", "--work", "3s", "--held", "10")
    lines = lonely.succeeds(*words).lines
    assert lines[-1] == "3,000 workers at peak, on 15 partitions."
    assert any(line.split() == ["workers", "500/s", "×", "3", "s", "=", "1,500"] for line in lines)
    (facts,) = lonely.succeeds(*words, "--json").objects
    assert (facts["queue"]["workers_peak"], facts["queue"]["in_flight"], facts["queue"]["partitions"]) == (
        3_000,
        30_000,
        15,
    )
    lonely.fails("plan", "--work", "0s", code=2, error="--work 0s: it must be more than nothing.")
    lonely.fails(
        "plan", "--work", "long", code=2, error="--work long: 'long' is not a duration; write it like 30s or 5m."
    )
