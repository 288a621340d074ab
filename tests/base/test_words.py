"""One and many, a and an."""

from __future__ import annotations

from millpond.base.words import counted, with_article


def test_one_is_not_many() -> None:
    assert [counted(number, "record") for number in (0, 1, 2, 1200)] == [
        "0 records",
        "1 record",
        "2 records",
        "1,200 records",
    ]
    assert [counted(1, "try"), counted(2, "try"), counted(2, "key")] == ["1 try", "2 tries", "2 keys"]


def test_the_article_depends_on_the_first_letter() -> None:
    named = [with_article(name) for name in ("Order", "int", "dict", "UUID")]
    assert named == ["an Order", "an int", "a dict", "a UUID"]
