"""Write docs/config.md from the declarations of the settings; `--check` fails when it is out of date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from millpond.base.settings import AnySetting
from millpond.config.client_metrics import CLIENT_METRICS
from millpond.config.group import GROUP
from millpond.config.kafka_names import OTHERWISE, WITHOUT_EFFECT
from millpond.config.node import COARSE, SECTIONS
from millpond.config.topic import TOPIC

PAGE = Path(__file__).parent.parent / "docs" / "config.md"

INTRODUCTION = """\
# Settings

`tools/config_docs.py` generates this page from the declarations in `src/millpond/config/`.

A node reads its settings when it starts. Those marked *live* can also be changed while it runs, for one broker or for
all of them; settings of topics and groups can always be changed. Use `millpond config` or any tool with
IncrementalAlterConfigs. The order of precedence is: the topic or group, the running broker, all brokers, the settings
that the node was started with, the default.
"""


def page() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield INTRODUCTION
    yield "## A node's settings"
    for title, settings in SECTIONS.items():
        yield f"\n### {title}\n"
        yield from _table(settings, "Live", lambda setting: "live" if setting.live else "")
    yield "\nLarger units are accepted too; the finest one wins: "
    yield ", ".join(f"`{name}`" for name in COARSE) + "."
    yield "\n## A topic's settings\n"
    yield from _table(TOPIC, "Default comes from", _inherited)
    yield "\n## A group's settings\n"
    yield from _table(GROUP, "Default comes from", _inherited)
    yield "\n## A subscription's settings (client metrics)\n"
    yield from _table(CLIENT_METRICS, "Default comes from", _inherited)
    yield "\n## Kafka's names that a broker reports\n"
    yield "These are read-only, for tools that ask for them.\n"
    for name, own in OTHERWISE.items():
        yield f"- `{name}`: Kafka's name for `{own.name}`."
    yield from (f"- `{setting.name}`: {setting.doc}" for setting in WITHOUT_EFFECT)


def _inherited(setting: AnySetting) -> str:
    return f"`{setting.inherits}`" if setting.inherits else ""


def _table(settings: Iterable[AnySetting], title: str, last: Callable[[AnySetting], str]) -> Iterator[str]:
    yield f"| Setting | Type | Default | Description | {title} |"
    yield "|---|---|---|---|---|"
    for setting in settings:
        if not setting.internal:
            default = f"`{setting.show(setting.default)}`" if setting.show(setting.default) else "empty"
            kind = setting.kind.name.lower()
            yield f"| `{setting.name}` | {kind} | {default} | {setting.doc} | {last(setting)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the page is out of date; write nothing")
    if not parser.parse_args().check:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print("docs/config.md is out of date: run tools/config_docs.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
