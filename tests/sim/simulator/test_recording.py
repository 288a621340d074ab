"""Links: they come back as they went, and whatever is no link of ours is refused with a sentence."""

from __future__ import annotations

import json
import zlib
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.sim.simulator.actions import (
    KINDS,
    Action,
    AddConsumer,
    BadAction,
    CreateTopic,
    Heal,
    Produce,
    as_json,
    describe,
    from_json,
    in_words,
)
from millpond.sim.simulator.lessons.catalogue import LESSONS
from millpond.sim.simulator.recording import (
    ACTIONS_MAX,
    LINK_SIGNS_MAX,
    RUN_MS_MAX,
    BadLink,
    CampaignSeed,
    Move,
    Recording,
    decode,
    encode,
    recording_of,
)


def pack(shape: Any) -> str:
    return "1." + urlsafe_b64encode(zlib.compress(json.dumps(shape).encode())).decode().rstrip("=")


def actions() -> st.SearchStrategy[Action]:
    """Any action of ours, with any values that its fields allow."""

    def value(one: dict[str, Any]) -> st.SearchStrategy[Any]:
        match one["kind"]:
            case "number":
                return st.integers(one["lowest"], one["highest"])
            case "flag":
                return st.booleans()
            case "choice":
                return st.sampled_from(one["choices"])
            case "keys":
                return st.lists(st.text(max_size=10), max_size=4)
            case "text":
                return st.text(max_size=20)
        return st.text("abc.-_1", min_size=1, max_size=10).filter(lambda text: text not in (".", ".."))

    def of(kind: type[Action]) -> st.SearchStrategy[Action]:
        shape = describe(kind)
        fields = st.fixed_dictionaries({}, optional={one["name"]: value(one) for one in shape["fields"]})
        return fields.map(lambda given: from_json([shape["word"], given]))

    return st.one_of([of(kind) for kind in KINDS])


STEPS = st.lists(st.tuples(st.integers(0, 1_000), actions()), max_size=6)


@settings(max_examples=30, deadline=None)
@given(STEPS, st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_a_tape_comes_back_from_its_link(steps: list[tuple[int, Action]], seed: int, nodes: int) -> None:
    tape = recording_of([each for step in steps for each in step], seed=seed, nodes=nodes)
    link = encode(tape)
    assert decode(link) == tape
    assert encode(tape) == link
    assert set(link) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")
    assert all(in_words(move.action) for move in tape.moves)


def test_every_lesson_has_a_link_that_an_address_can_hold() -> None:
    for lesson in LESSONS.values():
        link = encode(lesson.tape)
        assert len(link) < 1_500, lesson.name
        assert decode(f"http://127.0.0.1:8080/simulator?lesson=x&tape={link}&at=3") == lesson.tape
        assert 0 < lesson.question_ms <= lesson.tape.end_ms
        assert lesson.question.endswith("?")
        assert lesson.claims


def test_a_campaign_has_a_link() -> None:
    assert decode("campaign.moves.17") == CampaignSeed("moves", 17)
    assert CampaignSeed("moves", 17).link == "campaign.moves.17"


def test_a_tape_is_cut_and_gone_on_with() -> None:
    tape = recording_of((CreateTopic(), 100, Produce(), 100))
    assert tape.cut(50).moves == tape.moves[:1]
    assert tape.cut(50).begins(tape)
    assert not tape.begins(tape.cut(50))
    longer = tape.until(300).then(Heal())
    assert tape.begins(longer)
    assert longer.moves[-1] == Move(300, Heal())
    other = tape.cut(50).then(Heal()).until(500)
    assert not tape.begins(other)


BOMB = "1." + urlsafe_b64encode(zlib.compress(b"[" * 50_000_000, 9)).decode()


@pytest.mark.parametrize(
    "link",
    [
        "",
        "hello",
        "2.abc",
        "1.",
        "1.!!!!",
        "1.é",
        "1.AAAA",
        encode(recording_of((CreateTopic(), 100)))[:-6],
        BOMB[:LINK_SIGNS_MAX],
        BOMB,
        "1." + "A" * 1_000_000,
        pack("text"),
        pack([1, 3, 0]),
        pack([1, 3, 0, [1]]),
        pack([1, 3, 0, [[0]]]),
        pack([1.5, 3, 0, []]),
        pack([True, 3, 0, []]),
        pack([-1, 3, 0, []]),
        pack([1, 0, 0, []]),
        pack([1, 99, 0, []]),
        pack([1, 3, RUN_MS_MAX + 1, []]),
        pack([1, 3, 10, [[20, "heal"]]]),
        pack([1, 3, 10, [[-20, "heal"]]]),
        pack([1, 3, 0, [[0, "heal"]] * (ACTIONS_MAX + 1)]),
        pack([1, 3, 0, [[0, "no such thing"]]]),
        pack([1, 3, 0, [[0, "topic", {"partitions": 1_000_000}]]]),
        pack([1, 3, 0, [[0, "topic", {"topic": "../../etc"}]]]),
        pack([1, 3, 0, [[0, "topic", {"topic": {}}]]]),
        pack([1, 3, 0, [[0, "topic", {"no such field": 1}]]]),
        pack([1, 3, 0, [[0, "topic", []]]]),
        pack([1, 3, 0, [[0, "produce", {"count": 10**9}]]]),
        pack([1, 3, 0, [[0, "produce", {"keys": ["k"] * 1_000}]]]),
        "campaign.",
        "campaign.moves",
        "campaign.moves.-1",
        "campaign.moves.99999999999999999999",
        "campaign.__import__('os').1",
    ],
)
def test_hostile_links_are_refused_with_a_sentence(link: str) -> None:
    with pytest.raises(BadLink) as refused:
        decode(link)
    assert str(refused.value).endswith((".", "?"))
    assert len(str(refused.value)) < 300


def test_a_nested_link_is_refused() -> None:
    deep = "1." + urlsafe_b64encode(zlib.compress(b"[" * 60_000, 9)).decode()
    with pytest.raises(BadLink, match="damaged"):
        decode(deep)


def test_a_tape_cannot_grow_for_ever() -> None:
    tape = Recording()
    for _ in range(ACTIONS_MAX):
        tape = tape.then(Heal())
    with pytest.raises(BadLink, match="200 actions"):
        tape.then(Heal())
    with pytest.raises(BadLink, match="10 minutes"):
        tape.until(RUN_MS_MAX + 1)


def test_only_what_differs_is_written() -> None:
    assert as_json(CreateTopic()) == ["topic"]
    assert as_json(AddConsumer(work_ms=7)) == ["consumer", {"work_ms": 7}]
    with pytest.raises(BadAction):
        from_json("topic")
