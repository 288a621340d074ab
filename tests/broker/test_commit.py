"""Decide, commit, then answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.commit import commit
from millpond.metadata.decision import Decision
from millpond.metadata.image import Image
from millpond.metadata.records import NoOpRecord


class Controller:
    """Takes one decision, and commits it when told to."""

    def submit(self, decide: Any, done: Any, failed: Any) -> None:
        self.decision = decide(Image())
        self.done, self.failed = done, failed


class Play:
    def __init__(self) -> None:
        self.controller = Controller()
        self.heard: list[Any] = []
        self.wait = commit(
            SimpleNamespace(controller=self.controller),  # type: ignore[arg-type]
            lambda image: Decision((NoOpRecord(),), f"{len(image.topics)} topics"),
            lambda reply: f"answer: {reply}",  # type: ignore[arg-type,return-value]
            lambda refused: f"refused: {refused.code.name}",  # type: ignore[arg-type,return-value]
        )
        self.wait.then(self.heard.append)


@pytest.fixture
def play() -> Play:
    return Play()


def test_the_answer_waits_for_the_commit(play: Play) -> None:
    assert play.controller.decision.records == (NoOpRecord(),)
    assert play.heard == []
    play.controller.done(play.controller.decision.reply)
    assert play.heard == ["answer: 0 topics"]


def test_what_cannot_be_committed_is_refused_in_the_apis_own_words(play: Play) -> None:
    play.controller.failed(Refused(ErrorCode.NOT_CONTROLLER))
    assert play.heard == ["refused: NOT_CONTROLLER"]


def test_nobody_is_told_whose_connection_is_gone(play: Play) -> None:
    play.wait.cancel()
    play.controller.done("too late")
    assert play.heard == []
