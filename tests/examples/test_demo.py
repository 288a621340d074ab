"""A small demo exits, passes all of its checks, and draws a chart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import with_time

ROOT = Path(__file__).parent.parent.parent
pytest.importorskip("pyspark", reason="pip install 'millpond[spark,demo]'")
pytest.importorskip("matplotlib", reason="pip install 'millpond[spark,demo]'")


@with_time
@pytest.mark.timeout(400)
def test_the_demo_ends_with_every_check_and_a_chart(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    ran = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--orders", "1500", "--seconds", "4", "--folder", str(folder)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("✓") == 8
    assert "✗" not in ran.stdout
    assert (folder / "orders.png").read_bytes().startswith(b"\x89PNG")
