"""The short form of tests/campaigns/fuzz.py, and tests that it finds the bugs it looks for."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from millpond.base.errors import MalformedMessage
from millpond.broker.apis import APIS
from millpond.broker.connections.connections import Connections
from millpond.broker.serving.dispatch import Dispatcher
from millpond.wire import messages
from millpond.wire.header import decode_request_header
from support.fuzz import watch
from support.fuzz.corpus import Corpus
from support.fuzz.frames import FrameMaker
from support.fuzz.pools import Pools
from support.fuzz.recording import load, replay, save
from support.fuzz.scenes import GUEST, OPEN, SCENES, Scene
from support.fuzz.session import SLOW_ONCE, FuzzSession, Outcome
from support.fuzz.target import Target
from support.fuzz.watch import Found
from support.seeds import seeds

FRAMES = 4_000
FRAMES_TO_FIND = 2_000
HANDLES = Dispatcher.handle


@pytest.mark.parametrize("seed", seeds(range(len(SCENES))))
def test_hostile_requests_do_no_harm(seed: int) -> None:
    outcome = FuzzSession(seed, FRAMES, Corpus()).run()
    assert not outcome.findings, f"seed {seed}: {outcome.findings}"
    if not outcome.ended:
        assert outcome.frames >= FRAMES
        assert outcome.answers > FRAMES / 50, "none of them got further than its header"


def test_what_is_made_from_the_schemas_decodes_and_what_is_spoilt_often_does_not() -> None:
    draw = Random(3)
    maker = FrameMaker(draw, Pools(draw), tuple(api.key for api in APIS))
    whole = spoilt = 0
    for _ in range(1000):
        tokens = maker.fresh()
        whole += decodes(b"".join(token[2] for token in tokens))
        spoilt += decodes(maker.bytes_of(maker.spoilt(tokens)))
    # Not all: the filler values include names that are not UTF-8 or are longer than their length field allows.
    assert whole > 850
    assert 200 < spoilt < 800


def decodes(frame: bytes) -> bool:
    try:
        header = decode_request_header(frame)
        _, end = messages.request_class(header.api_key).decode(frame, header.api_version, header.body_position)
    except (MalformedMessage, KeyError):
        return False
    return end == len(frame)


def test_a_corpus_grows_and_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    corpus = Corpus()
    for signature, tokens in FuzzSession(0, 500, corpus).run().kept:
        corpus.append_to(path, signature, tokens)
    again = Corpus()
    again.load(path)
    assert again.requests == corpus.requests
    assert len(again) > 50


def test_a_tape_plays_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(self: Dispatcher, connection: Any, frame: memoryview) -> None:
        HANDLES(self, connection, frame)
        assert frame[:2] != b"\0\x13", "planted"

    decent = Target.prepare

    def prepare(self: Target) -> tuple[object, ...]:
        secrets = decent(self)
        monkeypatch.setattr(Dispatcher, "handle", handle)
        self.node.broker.dispatcher.handle = partial(handle, self.node.broker.dispatcher)  # type: ignore[method-assign]
        return secrets

    monkeypatch.setattr(Target, "prepare", prepare)
    outcome = life(20_000)
    assert "planted" in only_finding(outcome)
    monkeypatch.setattr(Dispatcher, "handle", HANDLES)
    tape = tmp_path / "tape.jsonl"
    save(tape, outcome.seed, outcome.scene, outcome.acts)
    assert "planted" in (replay(*load(tape)) or "")
    monkeypatch.setattr(Target, "prepare", decent)
    monkeypatch.setattr(Dispatcher, "handle", HANDLES)
    assert replay(*load(tape)) is None, "nothing is wrong without the bug"


def test_a_tape_is_replayed_without_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collections would be mistaken for slow turns of the node."""
    collects: list[bool] = []
    monkeypatch.setattr(Target, "pass_time", lambda *_: collects.append(gc.isenabled()))
    monkeypatch.setattr(Target, "prepare", lambda _: collects.clear())
    monkeypatch.setattr(Target, "check_canary", lambda _: None)
    assert replay(0, OPEN, [("time", 1, b"")]) is None
    assert collects == [False]
    assert gc.isenabled()


# Each of these bugs is planted in the node and must be found.


def slow(*_: Any) -> None:
    """Long enough for a machine ten times slower than the reference."""
    began = time.thread_time()
    while time.thread_time() - began < 0.2:
        pass


def greedy(*_: Any) -> None:
    bytearray(150 << 20)[:: 1 << 12] = b"x" * (150 << 8)


def opens(*_: Any) -> None:
    os.listdir("/")


def takes_no_end(*_: Any) -> None:
    while True:
        pass


def crashes(*_: Any) -> None:
    raise AssertionError("planted")


def answers_twice(_: Dispatcher, connection: Any, frame: memoryview) -> None:
    connection.reply_frame(b"\0\0\0\4" + bytes(frame[4:8]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "finding"),
    [
        (slow, "of the loop"),
        (greedy, "MiB of memory"),
        (opens, "went outside"),
        (takes_no_end, "it takes no end"),
        (crashes, "planted"),
        (answers_twice, "answer"),
    ],
)
def test_a_bug_is_found(bug: Callable[..., None], finding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug is in the handling of one request among many, on a node that is already serving."""
    monkeypatch.setattr(watch, "ENDLESS_SECONDS", 2.0)
    served = 0

    def handle(self: Dispatcher, connection: Any, frame: memoryview) -> None:
        nonlocal served
        served += 1
        HANDLES(self, connection, frame)
        if served > 50 and served % 37 == 0:
            bug(self, connection, frame)

    monkeypatch.setattr(Dispatcher, "handle", handle)
    if bug is not slow:
        # On a busy machine a different one is slow as well.
        monkeypatch.setattr(watch, "TURN_SECONDS_MAX", 10.0)
    assert finding in only_finding(life(FRAMES_TO_FIND))


def test_a_node_that_accepts_no_connection_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example a node that counts closed connections."""
    monkeypatch.setattr(Connections, "_forget", lambda *_: None)
    assert "no connection is accepted" in only_finding(
        life(20_000, replace(OPEN, settings={"max.connections": "100"}))
    )


@pytest.mark.slow
@pytest.mark.parametrize("scene", [scene for scene in SCENES if scene.spares_canary], ids=lambda scene: scene.name)
def test_at_the_end_a_decent_client_is_served(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Target) -> None:
        raise Found("planted")

    monkeypatch.setattr(Target, "check_canary", refused)
    assert "planted" in only_finding(life(20, scene))


@pytest.mark.slow
def test_what_a_guest_changes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example where one API forgets to check for permissions."""
    commit = next(api for api in APIS if api.name == "OffsetCommit")
    kind = type(commit.rights)
    screen = kind.__dict__["screen"]
    forgets = property(lambda rights: None if rights is commit.rights else screen.__get__(rights))
    monkeypatch.setattr(kind, "screen", forgets)
    assert "changed" in only_finding(life(20_000, GUEST))


def life(frames: int, scene: Scene | None = None) -> Outcome:
    """A run that a stalled machine did not cut short: a shortened one has not covered everything."""
    for seed in range(0, 10 * len(SCENES), len(SCENES)):
        outcome = FuzzSession(seed, frames, Corpus(), scene).run()
        if outcome.ended != SLOW_ONCE:
            break
    return outcome


def only_finding(outcome: Outcome) -> str:
    assert len(outcome.findings) == 1, outcome
    return outcome.findings[0]
