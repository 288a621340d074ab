"""The cluster checker finds the errors that it is meant to find."""

from __future__ import annotations

import pytest

from support.cluster_check import (
    CLASSES,
    UNTOLD,
    Ack,
    Findings,
    Written,
    check_commits,
    check_copy,
    check_reads,
    check_topic,
    located,
)
from support.cluster_load import ProcessReader

A, B, C = Written(1, 0), Written(1, 1), Written(1, 2)
GOOD = {0: [(0, A), (1, B), (3, C)]}
ACKS = [Ack(0, 0, A), Ack(0, 1, B), Ack(0, 3, C)]


def test_what_is_right_is_found_right() -> None:
    findings = Findings()
    check_topic(ACKS, GOOD, findings)
    check_reads("g", ACKS, [(0, 0), (0, 1), (0, 1), (0, 3)], findings)
    check_commits("g", [(0, 1), (1, 5), (0, 1), (0, 3)], findings)
    check_copy(3, [[(0, 0), (0, 2)], [(1, 1)]], -1, findings)
    assert not findings, findings
    assert Written.parsed(bytes(B)) == B


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ({0: [(0, A), (1, B)]}, "lost"),
        ({0: [(0, A), (1, B), (2, C)]}, "moved"),
        ({0: [(0, A), (1, B), (3, C), (4, B)]}, "duplicated"),
        ({0: [(0, A), (1, C), (3, B)]}, "reordered"),
    ],
)
def test_a_topic_that_is_not_what_was_acknowledged(log: dict[int, list[tuple[int, Written]]], kind: str) -> None:
    findings = Findings()
    check_topic(ACKS, log, findings)
    assert findings.counts[kind] == 1


def test_what_was_never_acknowledged_may_be_there_or_not() -> None:
    findings = Findings()
    check_topic(ACKS[:1], GOOD, findings)
    check_topic(ACKS[:1], {0: GOOD[0][:1]}, findings)
    assert not findings


def test_what_was_acknowledged_without_an_offset_must_be_somewhere() -> None:
    acks = located([Ack(0, UNTOLD, B), *ACKS[:1]], GOOD)
    assert acks == [Ack(0, 1, B), Ack(0, 0, A)]
    findings = Findings()
    check_topic(located([Ack(0, UNTOLD, B)], {0: [(0, A)]}), {0: [(0, A)]}, findings)
    assert findings.counts == {"lost": 1}


def test_what_a_group_was_not_given_and_what_it_forgot() -> None:
    findings = Findings()
    check_reads("g", ACKS, [(0, 0), (0, 3)], findings)
    check_commits("g", [(0, 5), (1, 2), (0, 4), (0, 5)], findings)
    assert findings.counts == {"skipped": 1, "offset moved back": 1}


def test_a_copy_that_is_wrong() -> None:
    findings = Findings()
    check_copy(4, [[(0, 2), (0, 0), (0, -1)], [(1, 1), (1, 1)]], -1, findings)
    assert findings.counts == {"lost": 1, "duplicated": 1, "aborted but read": 1, "reordered": 1}


def test_every_class_can_be_found() -> None:
    findings = Findings()
    log = {0: [(0, A), (1, C), (3, B), (4, B)], 1: [(0, Written(2, 1)), (1, Written(2, 0))]}
    check_topic([*ACKS, Ack(0, 9, Written(3, 0))], log, findings)
    check_reads("g", ACKS, [(0, 0), (0, 3)], findings)
    check_commits("g", [(0, 5), (0, 4)], findings)
    check_copy(1, [[(0, -1), (0, 0)]], -1, findings)
    reader = ProcessReader.__new__(ProcessReader)
    reader.read, reader.ended = {"g": []}, []
    for line in ("read g 0 7", "gone g nothing is at 8", "ended g for another reason"):
        reader.take(line, findings)
    assert (reader.read, reader.ended) == ({"g": [(0, 7)]}, ["g: for another reason"])
    assert findings.counts.keys() == set(CLASSES)
