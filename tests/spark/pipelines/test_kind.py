"""What every job has, whatever its kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from millpond.spark.pipelines.tables import Job
from millpond.spark.pipelines.values import DeclarationError, value, whole


@dataclass(frozen=True, kw_only=True)
class Fill(Job):
    kind: ClassVar[str] = "fill"

    litres: int = value("How much.", whole(1, 9))


def test_a_job_is_called_as_its_kind_unless_it_has_a_name() -> None:
    assert Fill(litres=1).name == "fill"
    assert Fill(litres=1, name="pond").name == "pond"


def test_fields_of_a_kind_are_checked_with_those_of_every_job() -> None:
    assert Fill(litres=1, trigger="60 s").trigger == "1 minute"
    for wrong in ({"litres": 10}, {"litres": 1, "name": "a b"}, {"litres": 1, "trigger": "x"}):
        with pytest.raises(DeclarationError):
            Fill(**wrong)  # type: ignore[arg-type]
