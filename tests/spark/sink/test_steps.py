"""Steps are told to whom the environment names, and to nobody else."""

from __future__ import annotations

import pytest

from millpond.spark.sink import steps
from millpond.spark.sink.steps import Step, done


def test_nobody_watches_unless_asked() -> None:
    done(Step.DECIDED)


def test_a_witness_hears_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(steps, "_witness", heard.append)
    for step in Step:
        done(step)
    assert heard == [step.value for step in Step]


def test_the_witness_is_found_by_its_name() -> None:
    assert steps._load("os.path:basename") is __import__("os").path.basename
    assert steps._load(None) is None
    with pytest.raises(ImportError):
        steps._load("no_such_module:f")
