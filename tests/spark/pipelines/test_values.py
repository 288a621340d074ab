"""Values are read equally from TOML and Python; errors say what to write."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from millpond.spark.pipelines import values as v
from millpond.spark.pipelines.values import DeclarationError, Duration, arguments_of, read_fields, value


@dataclass(frozen=True, kw_only=True)
class Inner:
    at: str = value("A path.", v.PATH)
    from_: int = value("A number.", v.whole(1, 5), 1)

    def __post_init__(self) -> None:
        read_fields(self)


@dataclass(frozen=True, kw_only=True)
class Outer:
    every: Duration = value("How often.", v.DURATION, Duration(1000))
    names: tuple[str, ...] = value("Names.", v.NAMES, ())
    inner: Inner | None = value("A table.", v.table_of(Inner), None)
    given: dict[str, str] = value("Settings.", v.SETTINGS, {})

    def __post_init__(self) -> None:
        read_fields(self)


def test_every_form_of_a_value_is_equal() -> None:
    written = Outer(every="90 s", names="a, b", inner={"at": "x", "from": 3}, given={"n": 5, "on": True})
    meant = Outer(
        every=timedelta(seconds=90),
        names=["a", "b"],
        inner=Inner(at=Path("x"), from_=3),
        given={"n": "5", "on": "true"},
    )
    assert written == meant
    assert written.every == Duration(90_000)
    assert written.names == ("a", "b")


def test_defaults_are_not_shared() -> None:
    assert Outer().given is not Outer().given


@pytest.mark.parametrize(
    ("text", "ms", "shown"),
    [
        ("10 minutes", 600_000, "10 minutes"),
        ("1h30m", 5_400_000, "90 minutes"),
        ("1 minute", 60_000, "1 minute"),
        ("500 ms", 500, "500 milliseconds"),
        ("1.5 s", 1500, "1500 milliseconds"),
        ("2 Days", 172_800_000, "2 days"),
        ("0 s", 0, "0 seconds"),
    ],
)
def test_durations(text: str, ms: int, shown: str) -> None:
    assert v.read_duration(text) == Duration(ms)
    assert str(Duration(ms)) == shown


@pytest.mark.parametrize("text", ["", "10", "ten minutes", "10 parsecs", "-5 s", "5 s later!", "4000 days", 7, None])
def test_invalid_durations_are_refused(text: Any) -> None:
    with pytest.raises(ValueError):
        v.read_duration(text)


@pytest.mark.parametrize(
    ("text", "size"), [("128 MB", 128_000_000), ("1GiB", 1 << 30), (4096, 4096), ("1.5k", 1500), ("7", 7)]
)
def test_sizes(text: Any, size: int) -> None:
    assert v.read_size(text) == size


@pytest.mark.parametrize("text", ["", "many", "5 XB", -1, True, "1e9", None])
def test_invalid_sizes_are_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="a size is written like"):
        v.read_size(text)


def test_timestamps_are_utc_on_every_machine() -> None:
    at = datetime(2026, 1, 31, 8, 30, tzinfo=UTC)
    assert v.read_moment("2026-01-31T08:30:00Z") == at
    assert v.read_moment("2026-01-31T08:30") == at
    assert v.read_moment(datetime(2026, 1, 31, 9, 30, tzinfo=timezone(timedelta(hours=1)))) == at
    with pytest.raises(ValueError, match="a moment is written like"):
        v.read_moment("yesterday")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Outer(every="soon"), "every = 'soon': a length of time is written like"),
        (lambda: Outer(names=["a", "a"]), "a name is in it twice"),
        (lambda: Outer(names=5), "names = 5: write a list of names"),
        (lambda: Outer(inner={"at": "x", "form": 3}), "inner: there is no key 'form'; did you mean from?"),
        (lambda: Outer(inner={}), "inner: at is missing: A path."),
        (lambda: Outer(inner={"at": ""}), "inner: at = '': it is empty"),
        (lambda: Outer(inner={"at": "x", "from": 9}), "inner: from = 9: it must be from 1 to 5"),
        (lambda: Outer(inner={"at": "x", "from": True}), "write a whole number"),
        (lambda: Outer(inner=3), "write a table"),
        (lambda: Outer(given={"a": []}), "a must be a text, a number, true or false"),
        (lambda: Outer(given="a=b"), "write a table"),
    ],
)
def test_an_error_names_its_key(made: Any, message: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        made()
    assert message in str(caught.value)


def test_readers_refuse_other_values() -> None:
    for reader, wrong in [
        (v.TEXT, 5),
        (v.TEXT, "x" * (v.LENGTH_MAX + 1)),
        (v.NAME, "a b"),
        (v.NAME, "a/../b"),
        (v.NAME, "x" * 201),
        (v.FLAG, 1),
        (v.TEXTS, {"a": 1}),
        (v.number(0, 1), 1.5),
        (v.number(0, 1), "1"),
        (v.one_of("left", "right"), "lefft"),
        (v.TRIGGER, "sometimes"),
    ]:
        with pytest.raises(ValueError):
            reader.read(wrong)


def test_a_trigger_is_one_of_two_words_or_an_interval() -> None:
    assert [v.read_trigger(each) for each in ("available_now", "continuous", "1 m")] == [
        "available_now",
        "continuous",
        "1 minute",
    ]


def test_an_unknown_key_is_reported_with_the_nearest() -> None:
    with pytest.raises(DeclarationError, match="no key 'evry'; did you mean every"):
        arguments_of(Outer, {"evry": "1 s"})
    with pytest.raises(DeclarationError, match="no key 'zzz'; there are every, names, inner, given"):
        arguments_of(Outer, {"zzz": 1})
