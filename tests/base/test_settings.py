import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.settings import (
    Kind,
    Registry,
    Setting,
    SettingError,
    Settings,
    at_least,
    between,
    each_of,
    one_of,
)

FLAG = Setting("flag", False, "A flag.")
COUNT = Setting("count", 5, "A number.", at_least(0))
NARROW = Setting("narrow", 5, "A narrow number.", bits=32)
RATIO = Setting("ratio", 0.5, "A share.", between(0, 1))
WORD = Setting("word", "one", "A word.", one_of("one", "two"))
WORDS = Setting("words", ("one",), "Some words.", each_of("one", "two"))
REGISTRY = Registry("thing", (FLAG, COUNT, NARROW, RATIO, WORD, WORDS))


def test_the_kind_follows_from_the_default() -> None:
    kinds = [setting.kind for setting in REGISTRY]
    assert kinds == [Kind.BOOLEAN, Kind.LONG, Kind.INT, Kind.DOUBLE, Kind.STRING, Kind.LIST]


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        (FLAG, "TRUE", True),
        (FLAG, " false ", False),
        (COUNT, " 12 ", 12),
        (COUNT, "+3", 3),
        (COUNT, str((1 << 63) - 1), (1 << 63) - 1),
        (NARROW, str(-(1 << 31)), -(1 << 31)),
        (RATIO, "1", 1.0),
        (WORD, "two", "two"),
        (WORDS, "two, one", ("two", "one")),
        (WORDS, "", ()),
        (WORDS, "one,,", ("one",)),
    ],
)
def test_text_becomes_a_value(setting, text, value) -> None:
    assert setting.parse(text) == value


@pytest.mark.parametrize(
    ("setting", "text", "said"),
    [
        (FLAG, "yes", "true or false"),
        (COUNT, "-1", "at least 0"),
        (COUNT, "1.5", "whole number"),
        (COUNT, "1_000", "whole number"),
        (COUNT, "٣", "whole number"),
        (COUNT, "", "whole number"),
        (COUNT, "9" * 10_000, "whole number"),
        (COUNT, str(1 << 63), "64 bits"),
        (NARROW, str(1 << 31), "32 bits"),
        (RATIO, "1.01", "from 0 to 1"),
        (RATIO, "nan", "finite"),
        (RATIO, "half", "a number"),
        (WORD, "three", "one, two"),
        (WORDS, "one,three", "one, two"),
        (WORDS, "one,one", "at most once"),
    ],
)
def test_text_that_cannot_be_says_what_would_do(setting, text, said) -> None:
    with pytest.raises(SettingError, match=said) as caught:
        setting.parse(text)
    assert str(caught.value).startswith(f"{setting.name}={text}")


@given(st.sampled_from(list(REGISTRY)), st.data())
def test_what_is_shown_can_be_read_back(setting, data) -> None:
    values = {
        Kind.BOOLEAN: st.booleans(),
        Kind.LONG: st.integers(0, (1 << 63) - 1),
        Kind.INT: st.integers(-(1 << 31), (1 << 31) - 1),
        Kind.DOUBLE: st.floats(0, 1),
        Kind.STRING: st.sampled_from(["one", "two"]),
        Kind.LIST: st.sampled_from([(), ("one",), ("two", "one")]),
    }
    value = data.draw(values[setting.kind])
    assert setting.parse(setting.show(value)) == value


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(SettingError, match=r"unknown thing setting coutn; did you mean count\?"):
        REGISTRY.get("coutn")
    with pytest.raises(SettingError, match=r"zzz$"):
        REGISTRY.get("zzz")


def test_a_registry_keeps_names_apart_and_defaults_within_bounds() -> None:
    with pytest.raises(AssertionError, match="twice"):
        Registry("thing", (FLAG, FLAG))
    with pytest.raises(AssertionError, match="low"):
        Registry("thing", (Setting("low", 1, "", at_least(2)),))


def test_settings_are_what_was_set_else_the_default() -> None:
    settings = Settings.parsed(REGISTRY, {"count": "7", "words": "two"})
    assert (settings[COUNT], settings[WORDS], settings[WORD]) == (7, ("two",), "one")
    assert settings.overrides == {"count": 7, "words": ("two",)}
    with pytest.raises(SettingError):
        Settings.parsed(REGISTRY, {"cuont": "7"})
