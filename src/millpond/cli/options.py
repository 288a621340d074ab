"""Options that commands share, and how their values are parsed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import click

from millpond.base.spans import read_span, read_time
from millpond.base.units import read_bytes
from millpond.cli.times import now_ms

F = TypeVar("F", bound=Callable[..., Any])

AS_JSON: Final = click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
YES: Final = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def option(
    *names: str,
    default: object,
    help: str,
    meta: str = "N",
    type: click.ParamType[Any] | None = None,
    read: Callable[[str], Any] | None = None,
) -> Callable[[F], F]:
    """An option whose help shows its default. `read` parses its text; the text of its ValueError is shown."""

    def convert(_: click.Context, __: click.Parameter, text: str) -> Any:
        assert read is not None
        try:
            return read(text)
        except ValueError as fault:
            raise click.BadParameter(f"{fault}.") from None

    callback = convert if read is not None else None
    return click.option(
        *names, default=default, help=help, metavar=meta, callback=callback, type=type, show_default=True
    )


def span(text: str) -> int:
    """Milliseconds of a duration such as `30s`. Raises ValueError."""
    span_ms = read_span(text)
    if span_ms is None:
        raise ValueError(f"{text!r} is not a duration; write it like 30s or 5m")
    return span_ms


def pair(text: str, fault: str) -> tuple[str, str]:
    """Splits `name=value`; `fault` is the error for any other text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.UsageError(fault)
    return name.strip(), value


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """`name=value` texts of a repeated option, as a mapping."""
    return dict(pair(text, f"{option} {text}: give it as name=value.") for text in texts)


def setting_value(name: str, text: str) -> str:
    """The value of a setting in Kafka's unit, which its name ends with: `7d` in milliseconds, `1GiB` in bytes."""
    text = text.strip()
    if name.endswith(".ms") and not text.lstrip("-").isdigit():
        span_ms = read_span(text) if text else None
        return text if span_ms is None else str(span_ms)
    if name.endswith(".bytes") and not text.lstrip("-").isdigit():
        try:
            return str(int(read_bytes(text)))
        except ValueError:
            # The cluster reports the error.
            return text
    return text


def setting_pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """The same for settings of topics and nodes, with durations and sizes such as 7d and 1GiB."""
    return {name: setting_value(name, text) for name, text in pairs(texts, option).items()}


def read_moment(option: str, text: str, at_ms: int | None = None) -> int:
    """The time in an option, in milliseconds since 1970."""
    try:
        return read_time(text, now_ms() if at_ms is None else at_ms)
    except (ValueError, OverflowError):
        raise click.UsageError(f"{option} {text}: give a time as 2026-01-31T08:30 or a duration as 5m.") from None
