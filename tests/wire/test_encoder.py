from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from millpond.wire import messages as m


def test_tagged_fields_are_sent_only_when_they_differ(tagged: Any) -> None:
    assert tagged(plain=9).encode(1) == b"\x09\0"
    assert tagged(plain=9, number=5).encode(1) == b"\x09\1\1\4\0\0\0\5"


def test_tagged_fields_go_in_the_order_of_their_tags(tagged: Any) -> None:
    value = tagged(text="t", number=0, items=[tagged.Item(name="n", deep=4)], place=tagged.Place(x=1), flag=False)
    assert value.encode(1) == (
        b"\0\5"
        + b"\1\4\0\0\0\0"
        + b"\2\7\2\2n\1\0\1\4"
        + b"\3\2\2t"
        + b"\4\x09\0\0\0\1\xff\xff\xff\xff\0"
        + b"\7\1\0"
    )
    assert tagged.decode(value.encode(1), 1)[0] == value
    value = tagged(perhaps=tagged.Perhaps(z=3), where=UUID(int=1))
    assert value.encode(1) == b"\0\2" + b"\5\3\1\3\0" + b"\6\x10" + bytes(15) + b"\1"
    assert tagged.decode(value.encode(1), 1)[0] == value


def test_fields_that_a_version_lacks(ignoring: Any) -> None:
    assert ignoring(timeout=5).encode(0) == ignoring().encode(0) == b"\0\0\0\0\0\0\0\0"
    assert ignoring.decode(b"\0\0\0\1\0\0\0\0", 0)[0] == ignoring(old=1, timeout=60)
    assert ignoring(names=[], place=ignoring.Place(), id=UUID(int=0)).encode(1) == b"\0\0\0\x3c\0\0\0\0"


@pytest.mark.parametrize(
    ("field", "value"),
    [("old", 1), ("only", True), ("names", ["a"]), ("names", None), ("id", UUID(int=1))],
)
def test_values_that_would_be_lost_are_refused(field: str, value: object, ignoring: Any) -> None:
    with pytest.raises(ValueError, match=f"Ignoring v1 {field}: this version cannot carry"):
        ignoring(**{field: value}).encode(1)


def test_structures_that_would_be_lost_are_refused(ignoring: Any) -> None:
    with pytest.raises(ValueError, match="Ignoring v1 place"):
        ignoring(place=ignoring.Place(x=3)).encode(1)
    with pytest.raises(ValueError, match=r"Ignoring v0 entry\.late"):
        ignoring(entry=[ignoring.Entry(late=1)]).encode(0)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"a_string": None}, "a_string"),
        ({"a_string": b"x"}, "a_string"),
        ({"an_array": [1 << 40]}, "an_array"),
        ({"an_int8": 300}, "a_bool to a_string"),
        ({"a_uuid": "no"}, "a_bool to a_string"),
        ({"one": None}, "one"),
        ({"strings": [None]}, "strings"),
        ({"a_string": "\ud800"}, "a_string"),
        ({"many": [3]}, "many.z"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, object], field: str, all_types: Any) -> None:
    for version in (0, 1):
        with pytest.raises(ValueError, match=f"All v{version} {field}"):
            all_types(**values).encode(version)


def test_records_are_parts_and_are_not_copied(with_records: Any) -> None:
    first, second = b"first", [memoryview(b"se"), b"cond"]
    parts = with_records(first=first, number=7, second=second).encode_parts(0)
    assert parts == [b"\0\0\0\5", b"first", b"\7\0\0\0\6", b"se", b"cond"]
    assert parts[1] is first
    assert parts[3] is second[0]
    assert with_records(first=first, number=7, second=second).encode_parts(1) == [
        b"\6",
        b"first",
        b"\7\7",
        b"se",
        b"cond",
        b"\0",
    ]
    assert with_records(first=None, second=b"").encode(0) == b"\xff\xff\xff\xff\0\0\0\0\0"
    assert with_records(first=b"", second=[]).encode(1) == b"\1\0\1\0"


def test_the_message_of_an_error_is_cut_to_what_can_be_sent() -> None:
    for character in ("x", "é", "\U0001f986"):
        response = m.ConsumerGroupHeartbeatResponse(error_message=character * 40_000)
        sent, _ = m.ConsumerGroupHeartbeatResponse.decode(response.encode(1), 1)
        assert sent.error_message is not None
        assert sent.error_message == character * len(sent.error_message)
        assert len(sent.error_message) > 8_000
