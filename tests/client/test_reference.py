"""The page of the client's parameters says what the signatures say."""

import subprocess
import sys
from pathlib import Path

from millpond.client.consumer import ConsumerKwargs
from millpond.client.options import WorkerKwargs
from millpond.client.producer import ProducerKwargs

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    check = [sys.executable, str(ROOT / "tools" / "client_docs.py"), "--check"]
    assert subprocess.run(check, check=False).returncode == 0


def test_the_page_has_every_parameter() -> None:
    page = (ROOT / "docs" / "client_reference.md").read_text(encoding="utf-8")
    for kind in (ProducerKwargs, ConsumerKwargs, WorkerKwargs):
        for name in kind.__annotations__:
            assert f"| `{name}` |" in page
