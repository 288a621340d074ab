"""Steps are reported to the function named in the environment."""

from __future__ import annotations

import pytest

from millpond.spark.sink import steps
from millpond.spark.sink.steps import Step, done


def test_steps_are_not_observed_by_default() -> None:
    done(Step.DECIDED)


def test_an_observer_gets_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(steps, "_observer", calls.append)
    for step in Step:
        done(step)
    assert calls == [step.value for step in Step]


def test_the_observer_is_imported_by_name() -> None:
    assert steps._load("os.path:basename") is __import__("os").path.basename
    assert steps._load(None) is None
    with pytest.raises(ImportError):
        steps._load("no_such_module:f")
