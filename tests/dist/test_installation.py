"""The output of an installation."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("installation", ROOT / "tools/installation.py")
assert _spec is not None
assert _spec.loader is not None
installation: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(installation)

SAID = """\
Obtaining file:///home/ann/millpond
  Installing build dependencies: started
  Installing build dependencies: finished with status 'done'
  Checking if build backend supports build_editable: started
  Preparing editable metadata (pyproject.toml): started
Collecting click>=8.1 (from millpond==0.1.0)
  Downloading click-8.1.8-py3-none-any.whl.metadata (2.3 kB)
Requirement already satisfied: crc32c>=2.7 in ./lib (from millpond==0.1.0) (2.7.1)
Collecting uvicorn>=0.30 (from millpond==0.1.0)
  Using cached uvicorn-0.34.0-py3-none-any.whl.metadata (6.5 kB)
Downloading click-8.1.8-py3-none-any.whl (98 kB)
Downloading confluent_kafka-2.12.0-cp311-cp311-manylinux_2_28_x86_64.whl (4.0 MB)
Using cached uvicorn-0.34.0-py3-none-any.whl (62 kB)
Building wheels for collected packages: millpond
  Building editable for millpond (pyproject.toml): started
  Building editable for millpond (pyproject.toml): finished with status 'done'
Successfully built millpond
Installing collected packages: click, confluent-kafka, uvicorn, millpond
Successfully installed click-8.1.8 confluent-kafka-2.12.0 millpond-0.1.0 uvicorn-0.34.0
"""
STEPS = """\
  downloading build dependencies …
  downloading click (98 kB) …
  downloading confluent_kafka (4.0 MB) …
  building millpond …
  installing 4 packages …
"""


def test_each_step_is_printed(capfd: Any) -> None:
    assert installation.run_showing_steps([sys.executable, "-c", f"print({SAID!r})"]) == 0
    assert capfd.readouterr() == (STEPS, "")


def test_pips_output_is_printed_if_it_fails(capfd: Any) -> None:
    ends = "import sys; print('Collecting click'); sys.exit('ERROR: nobody is there')"
    assert installation.run_showing_steps([sys.executable, "-u", "-c", ends]) == 1
    assert capfd.readouterr() == ("", "Collecting click\nERROR: nobody is there\n")
