"""Names of hosts are taken as the system's look-up takes them."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from millpond.base.settings import SettingError
from millpond.config.addresses import host_and_port

LABELS = st.text("ab-_é日:[]", max_size=4) | st.integers(60, 66).map(lambda length: "a" * length)


def is_taken(host: str) -> bool:
    try:
        host_and_port(f"{host}:9092")
    except SettingError:
        return False
    return True


def is_encoded(host: str) -> bool:
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


@given(st.lists(LABELS, min_size=1, max_size=4).map(".".join).filter(bool))
@example("a" * 63 + ".b")
@example("a" * 64 + ".b")
@example("a." + "b" * 64)
@example("a.b.")
@example("a..b")
def test_a_name_is_one_if_the_codec_takes_it(host: str) -> None:
    assert is_taken(host) == is_encoded(host)
