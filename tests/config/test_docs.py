"""The page of settings says what the declarations say."""

import subprocess
import sys
from pathlib import Path

from millpond.config.client_metrics import CLIENT_METRICS
from millpond.config.group import GROUP
from millpond.config.node import NODE
from millpond.config.topic import TOPIC

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    check = [sys.executable, str(ROOT / "tools" / "config_docs.py"), "--check"]
    assert subprocess.run(check, check=False).returncode == 0


def test_the_page_names_every_setting_with_what_it_does() -> None:
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    for setting in (*NODE, *TOPIC, *GROUP, *CLIENT_METRICS):
        assert f"| `{setting.name}` |" in page
        assert setting.doc in page
