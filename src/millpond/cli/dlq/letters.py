"""The output of `millpond dlq show` and `stats`: single letters, and charts of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import click

from millpond.admin.dead_letters.letters import Letter
from millpond.admin.dead_letters.topics import LetterCounts
from millpond.cli.json_lines import shown_data, shown_headers
from millpond.cli.text import can_show, counted, safe
from millpond.cli.times import now_ms, show_span, show_time
from millpond.client.dead_letters import own_headers

PREVIEW_SIGNS_MAX: Final = 300
BAR_SIGNS: Final = 40
ROWS_MAX: Final = 12

# One letter.


def as_object(letter: Letter, is_redriven: bool | None) -> dict[str, Any]:
    message, facts = letter.message, letter.facts
    shown: dict[str, Any] = {
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp_ms,
        "is_redriven": is_redriven,
        "key": shown_data(message.key),
        "value": shown_data(message.value),
        "headers": shown_headers(list(own_headers(message.headers))),
    }
    if facts is not None:
        shown["origin"] = {
            "topic": facts.origin.topic,
            "partition": facts.origin.partition,
            "offset": facts.origin.offset,
            "timestamp": facts.origin.timestamp_ms,
        }
        shown["group"] = facts.group
        shown["attempts"] = facts.attempts
        shown["redriven"] = facts.redriven
        shown["error"] = {
            "type": facts.error_type,
            "message": facts.error_message,
            "traceback": facts.error_traceback,
        }
    return shown


def print_letter(letter: Letter, is_redriven: bool | None, *, whole: bool) -> None:
    """Whether it was redriven may be unknown."""
    message = letter.message
    state = "redriven or waiting" if is_redriven is None else "redriven" if is_redriven else "waiting"
    when = f"{show_time(message.timestamp_ms)}, {show_age(message.timestamp_ms)} ago"
    click.echo(click.style(str(letter.id), bold=True) + f"  {when}  {state}")
    for name, text in _facts(letter, whole):
        click.echo(f"  {name:<9} {text}")
    if whole and letter.facts and letter.facts.error_traceback:
        click.echo("  traceback")
        for line in letter.facts.error_traceback.rstrip().splitlines():
            click.echo(f"    {safe(line)}")


def _facts(letter: Letter, whole: bool) -> Iterator[tuple[str, str]]:
    message, facts = letter.message, letter.facts
    if facts is None:
        yield "from", "unknown: it has no worker's headers"
    else:
        came = f"{safe(str(facts.origin))}"
        yield "from", came + (f", read by {safe(facts.group)}" if facts.group else "")
        error = safe(facts.error_type) + (f": {safe(facts.error_message)}" if facts.error_message else "")
        yield "error", _preview(error, whole)
        yield "attempts", f"{facts.attempts}" + (f", redriven {facts.redriven} before" if facts.redriven else "")
    yield "key", _text(message.key, whole)
    own = own_headers(message.headers)
    if own:
        yield "headers", ", ".join(f"{safe(name)}={_text(value, whole)}" for name, value in own)
    yield "value", _text(message.value, whole)


def _text(data: bytes | None, whole: bool) -> str:
    return "(null)" if data is None else _preview(safe(data.decode("utf-8", "backslashreplace")), whole)


def _preview(text: str, whole: bool) -> str:
    if whole or len(text) <= PREVIEW_SIGNS_MAX:
        return text
    return f"{text[:PREVIEW_SIGNS_MAX]}… ({len(text):,} characters; --full shows all)"


# Many letters.


def print_counts(topic: str, counts: LetterCounts) -> None:
    waiting = "redriven unknown" if counts.waiting is None else f"{counts.waiting:,} not redriven"
    click.secho(f"{topic}: {counted(counts.records, 'dead letter')}, {waiting}", bold=True)
    for title, each in (
        ("By error", counts.errors),
        ("By original topic", counts.origins),
        ("By group", counts.groups),
    ):
        if title != "By group" or any(counts.groups):
            _print_chart(title, _largest(each))
    times = {show_time(moment)[:19].replace("T", " "): count for moment, count in counts.over_time().items()}
    _print_chart("Over time (UTC)", times)


def _largest(counts: Counter[str]) -> dict[str, int]:
    largest = {safe(name) or "-": count for name, count in counts.most_common(ROWS_MAX)}
    rest = counts.total() - sum(largest.values())
    return largest | ({"others": rest} if rest else {})


def _print_chart(title: str, counts: Mapping[str, int]) -> None:
    click.echo(f"\n{title}")
    names = max((len(name) for name in counts), default=0)
    numbers = max((len(f"{count:,}") for count in counts.values()), default=0)
    for name, bar, count in zip(counts, bars(counts.values()), counts.values(), strict=True):
        click.echo(f"  {name:<{names}}  {count:>{numbers},}  {bar}".rstrip())


def bars(counts: Iterable[int]) -> list[str]:
    """A bar for each count; any count above zero is visible."""
    values = list(counts)
    largest = max(values, default=0)
    sign = "█" if can_show("█") else "#"
    return [sign * max(1, round(value / largest * BAR_SIGNS)) if value else "" for value in values]


def show_age(moment_ms: int | None) -> str:
    return "-" if moment_ms is None else show_span(max(0, now_ms() - moment_ms))
