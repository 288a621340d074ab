"""The table of kinds: every kind is complete, its example is valid, and Spark is loaded on use only."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import millpond.spark
from millpond.spark.pipelines.declaration import Pipeline, read
from millpond.spark.pipelines.kinds import KINDS

EXAMPLES = Path(__file__).parents[4] / "examples"
SOURCE = 'name = "p"\n[source]\ntopic = "orders"\n'


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_complete(name: str) -> None:
    kind = KINDS[name]
    assert (kind.name, kind.job.kind) == (name, name)
    assert kind.doc.endswith(".")
    assert getattr(millpond.spark, kind.job.__name__) is kind.job
    (job,) = read(tomllib.loads(SOURCE + kind.example), "example", Path("/work"), {}).jobs
    assert isinstance(job, kind.job)
    assert job.name == name
    if kind.outputs is not None:
        assert kind.outputs(job)


def test_every_kind_has_an_example() -> None:
    files = sorted((EXAMPLES / "pipelines").glob("*.toml"))
    result = {path.stem: {job.kind for job in Pipeline.load(path, {}).jobs} for path in files}
    assert result == {name: {name} for name in KINDS}
    page = (EXAMPLES / "pipelines" / "README.md").read_text()
    assert all(f"({name}.toml)" in page for name in KINDS)


def test_the_declarations_do_not_load_spark() -> None:
    requests = (
        "import sys, millpond.spark.pipelines.kinds; print(sorted({'pyspark', 'pyarrow'} & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", requests], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "[]\n"
