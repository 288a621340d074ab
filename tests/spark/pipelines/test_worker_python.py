"""The Python of the workers; its launcher removes only pyspark's zip from the path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millpond.spark.pipelines.worker_python import be_sparks_python, choose_python, launcher


@pytest.mark.parametrize(
    ("master", "conf", "before", "python"),
    [
        ("local[*]", {}, {}, sys.executable),
        ("spark://127.0.0.1:7077", {}, {}, sys.executable),
        ("spark://localhost:7077", {}, {}, sys.executable),
        ("local[*]", {}, {"PYSPARK_PYTHON": "/mine"}, "/mine"),
        ("local[*]", {"spark.pyspark.python": "/theirs"}, {"PYSPARK_PYTHON": "/mine"}, "/theirs"),
        ("spark://10.0.0.5:7077", {}, {}, None),
        ("yarn", {"spark.pyspark.python": "/theirs"}, {}, "/theirs"),
    ],
)
def test_local_workers_run_in_this_python(
    master: str, conf: dict[str, str], before: dict[str, str], python: str | None
) -> None:
    environment = dict(before)
    choose_python({"spark.master": master} | conf, environment=environment)
    assert environment.get("PYSPARK_PYTHON") == python
    assert environment["PYSPARK_DRIVER_PYTHON"] == sys.executable


def test_importing_the_package_sets_this_python_for_spark() -> None:
    environment: dict[str, str] = {}
    be_sparks_python(environment)
    assert environment == {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    choose_python({"spark.master": "spark://10.0.0.5:7077"}, environment=environment)
    assert "PYSPARK_PYTHON" not in environment, "on a cluster elsewhere it is the cluster's own"
    for chosen in ({"PYSPARK_PYTHON": "/mine"}, {"PYSPARK_GATEWAY_PORT": "1"}):
        environment = dict(chosen)
        be_sparks_python(environment)
        assert environment.get("PYSPARK_PYTHON") == chosen.get("PYSPARK_PYTHON")


def test_an_import_is_enough() -> None:
    code = "import os, millpond.spark; print(os.environ['PYSPARK_PYTHON'], os.environ['PYSPARK_DRIVER_PYTHON'])"
    ran = subprocess.run([sys.executable, "-c", code], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert ran.stdout.split() == [sys.executable, sys.executable], ran.stderr


def test_the_launcher_starts_this_python_without_the_zip(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    choose_python({"spark.master": "local[2]"}, tmp_path / "a folder", environment)
    code = "import sys; print(sys.executable, sys.argv[1:], sys.path[:3], sep='\\n')"
    ran = subprocess.run(
        [environment["PYSPARK_PYTHON"], "-c", code, "an argument"],
        env={
            "PYTHONPATH": "/first:/spark/python/lib/pyspark.zip:/spark/python/lib/py4j.zip:/last",
            "PATH": "/usr/bin:/bin",
        },
        capture_output=True,
        text=True,
    )
    assert ran.stdout.splitlines() == [
        sys.executable,
        "['an argument']",
        str(["/first", "/spark/python/lib/py4j.zip", "/last"]),
    ], ran.stderr


def test_each_session_has_its_own_launcher(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    for name in ("one", "two"):
        choose_python({"spark.master": "local[2]"}, tmp_path / name, environment)
    assert environment["PYSPARK_PYTHON"] == str(tmp_path / "two" / "python")


def test_without_a_writable_folder_python_itself_is_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert launcher(tmp_path / "file") == sys.executable
