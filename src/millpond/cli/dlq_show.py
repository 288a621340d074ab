"""`millpond dlq show` and `stats`: letters as a person reads them, and what they have in common."""

from __future__ import annotations

import re
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import click

from millpond.cli.connect import Cluster
from millpond.cli.dlq_list import show_age
from millpond.cli.dlq_progress import Redriven, read_redriven
from millpond.cli.dlq_read import Filter, Letter, letter_bounds, letters_between, narrowed
from millpond.cli.json_lines import shown_data, shown_headers
from millpond.cli.offsets import Bounds
from millpond.cli.times import show_time
from millpond.client.dead_letters import own_headers

PREVIEW_SIGNS_MAX: Final = 300
BAR_SIGNS: Final = 40
TIMES_MAX: Final = 24
ROWS_MAX: Final = 12
UNTOLD: Final = "(no headers)"
_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Signs that a terminal would obey instead of showing."""

_STEPS_MS: Final = tuple(
    1000 * seconds
    for seconds in (1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)
)


def last_letters(cluster: Cluster, topic: str, wanted: Filter, limit: int) -> tuple[list[Letter], Redriven]:
    """The latest letters that are meant, oldest first, and which were redriven."""
    admin = cluster.admin()
    bounds = narrowed(admin, letter_bounds(admin, topic), wanted)
    if wanted.is_open:
        # Nothing is passed over but markers: the end is enough.
        reach = 100 + 4 * limit
        bounds = {each: Bounds(max(bound.start, bound.end - reach), bound.end) for each, bound in bounds.items()}
    redriven = read_redriven(cluster, admin, topic)
    found: dict[int, deque[Letter]] = {}
    for letter in letters_between(cluster, bounds):
        if wanted.takes(letter):
            found.setdefault(letter.message.partition, deque(maxlen=limit)).append(letter)
    every = sorted((each for kept in found.values() for each in kept), key=lambda each: each.message.timestamp_ms)
    return every[-limit:], redriven


# One letter.


def as_object(letter: Letter, is_redriven: bool) -> dict[str, Any]:
    message, told = letter.message, letter.told
    facts: dict[str, Any] = {
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp_ms,
        "is_redriven": is_redriven,
        "key": shown_data(message.key),
        "value": shown_data(message.value),
        "headers": shown_headers(list(own_headers(message.headers))),
    }
    if told is not None:
        facts["origin"] = {
            "topic": told.origin.topic,
            "partition": told.origin.partition,
            "offset": told.origin.offset,
            "timestamp": told.origin.timestamp_ms,
        }
        facts["group"] = told.group
        facts["attempts"] = told.attempts
        facts["redriven"] = told.redriven
        facts["error"] = {"type": told.error_type, "message": told.error_message, "traceback": told.error_traceback}
    return facts


def print_letter(letter: Letter, is_redriven: bool, *, whole: bool) -> None:
    message = letter.message
    when = f"{show_time(message.timestamp_ms)}, {show_age(message.timestamp_ms)} ago"
    place = f"{message.partition}:{message.offset}"
    click.echo(click.style(place, bold=True) + f"  {when}  {'redriven' if is_redriven else 'waiting'}")
    for name, text in _facts(letter, whole):
        click.echo(f"  {name:<9} {text}")
    if whole and letter.told and letter.told.error_traceback:
        click.echo("  traceback")
        for line in letter.told.error_traceback.rstrip().splitlines():
            click.echo(f"    {safe(line)}")


def _facts(letter: Letter, whole: bool) -> Iterator[tuple[str, str]]:
    message, told = letter.message, letter.told
    if told is None:
        yield "from", "unknown: it has no headers of a worker"
    else:
        came = f"{safe(str(told.origin))}"
        yield "from", came + (f", read by {safe(told.group)}" if told.group else "")
        error = safe(told.error_type) + (f": {safe(told.error_message)}" if told.error_message else "")
        yield "error", _preview(error, whole)
        yield "attempts", f"{told.attempts}" + (f", redriven {told.redriven} before" if told.redriven else "")
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
    return f"{text[:PREVIEW_SIGNS_MAX]}… ({len(text):,} signs; --full shows all)"


def safe(text: str) -> str:
    """Whoever wrote the record chose these words: a terminal must not obey them."""
    return _UNSAFE.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


# Many letters.


@dataclass(slots=True)
class Stats:
    """What the letters of a topic have in common."""

    records: int = 0
    waiting: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    origins: Counter[str] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    seconds: Counter[int] = field(default_factory=Counter)
    """By the second in which the letter was written."""

    def add(self, letter: Letter, is_redriven: bool) -> None:
        told = letter.told
        self.records += 1
        self.waiting += not is_redriven
        self.errors[told.error_type if told else UNTOLD] += 1
        self.origins[told.origin.topic if told else UNTOLD] += 1
        self.groups[told.group if told else UNTOLD] += 1
        if letter.message.timestamp_ms >= 0:
            self.seconds[letter.message.timestamp_ms // 1000] += 1

    def over_time(self) -> dict[int, int]:
        """Counts by when a span began (milliseconds since 1970), in spans of one length; empty ones too."""
        if not self.seconds:
            return {}
        first, last = min(self.seconds) * 1000, max(self.seconds) * 1000
        step = next((each for each in _STEPS_MS if (last - first) // each < TIMES_MAX - 1), _STEPS_MS[-1])
        counts = dict.fromkeys(range(first // step * step, last + 1, step), 0)
        for second, count in self.seconds.items():
            counts[second * 1000 // step * step] += count
        return counts


def gather(cluster: Cluster, topic: str, wanted: Filter) -> Stats:
    admin = cluster.admin()
    bounds = narrowed(admin, letter_bounds(admin, topic), wanted)
    redriven = read_redriven(cluster, admin, topic)
    stats = Stats()
    for letter in letters_between(cluster, bounds):
        if wanted.takes(letter):
            stats.add(letter, letter.place in redriven)
    return stats


def print_stats(topic: str, stats: Stats) -> None:
    plural = "" if stats.records == 1 else "s"
    click.secho(f"{topic}: {stats.records:,} dead letter{plural}, {stats.waiting:,} not redriven", bold=True)
    for title, counts in (
        ("By error", stats.errors),
        ("By original topic", stats.origins),
        ("By group", stats.groups),
    ):
        if title != "By group" or any(stats.groups):
            _print_chart(title, _largest(counts))
    times = {show_time(moment)[:19].replace("T", " "): count for moment, count in stats.over_time().items()}
    _print_chart("Over time (UTC)", times)


def _largest(counts: Counter[str]) -> dict[str, int]:
    found = {safe(name) or "-": count for name, count in counts.most_common(ROWS_MAX)}
    rest = counts.total() - sum(found.values())
    return found | ({"others": rest} if rest else {})


def _print_chart(title: str, counts: Mapping[str, int]) -> None:
    click.echo(f"\n{title}")
    names = max((len(name) for name in counts), default=0)
    numbers = max((len(f"{count:,}") for count in counts.values()), default=0)
    for name, bar, count in zip(counts, bars(counts.values()), counts.values(), strict=True):
        click.echo(f"  {name:<{names}}  {count:>{numbers},}  {bar}".rstrip())


def bars(counts: Iterable[int]) -> list[str]:
    """A bar for each count; whatever is more than nothing can be seen."""
    values = list(counts)
    largest = max(values, default=0)
    sign = _block()
    return [sign * max(1, round(value / largest * BAR_SIGNS)) if value else "" for value in values]


def _block() -> str:
    try:
        "█".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "#"
    return "█"
