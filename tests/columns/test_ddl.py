"""Spark's notation for schemas, read without Spark."""

from __future__ import annotations

import pytest

from millpond.columns import types
from millpond.columns.ddl import DEPTH_MAX, read_ddl
from millpond.columns.errors import SchemaError

ALL = (
    "a boolean, b byte, c tinyint, d short, e smallint, f int, g integer, h long, i bigint, j float, k real, "
    "l double, m string, n binary, o date, p timestamp, q timestamp_ntz, r decimal, s decimal(7), t decimal(7,3), "
    "u varchar(20), v char(3), w timestamp_ltz"
)
ALL_SIMPLE = (
    "struct<a:boolean,b:tinyint,c:tinyint,d:smallint,e:smallint,f:int,g:int,h:bigint,i:bigint,j:float,k:float,"
    "l:double,m:string,n:binary,o:date,p:timestamp,q:timestamp_ntz,r:decimal(10,0),s:decimal(7,0),t:decimal(7,3),"
    "u:string,v:string,w:timestamp>"
)


def test_every_plain_type() -> None:
    assert read_ddl(ALL).text == ALL_SIMPLE


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("id long, items array<struct<sku:string,n:int>>", "struct<id:bigint,items:array<struct<sku:string,n:int>>>"),
        ("ID Long", "struct<ID:bigint>"),
        ("a: int, b: map<string, array<array<date>>>", "struct<a:int,b:map<string,array<array<date>>>>"),
        ("struct<a:int, b:string>", "struct<a:int,b:string>"),
        ("`order by` int, `with ``ticks``` int", "struct<order by:int,with `ticks`:int>"),
        ("date date, struct struct<x int>", "struct<date:date,struct:struct<x:int>>"),
        ("größe double,\n\t2nd int", "struct<größe:double,2nd:int>"),
    ],
)
def test_notations(text: str, simple: str) -> None:
    assert read_ddl(text).text == simple


def test_not_null_and_comments() -> None:
    result = read_ddl("a int NOT NULL COMMENT 'one, it''s', b string comment \"two\", c struct<d:int not null>")
    assert [each.nullable for each in result] == [False, True, True]
    assert isinstance(result["c"].type, types.StructType)
    assert not result["c"].type["d"].nullable


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the name of a field"),
        ("a", "expected a type"),
        ("a int b int", "character 7: expected a comma or the end of the schema, not 'b'"),
        ("a int,", "the name of a field"),
        ("a strnig", "character 3: expected a type, such as string, not 'strnig'"),
        ("a array<int", "'>'"),
        ("a array int", "'<'"),
        ("a map<string>", "a comma"),
        ("a decimal(39,0)", "1 to 38 digits"),
        ("a decimal(3,4)", "1 to 38 digits"),
        ("a decimal(x)", "expected a number"),
        ("a int, b int, a long", "the field 'a' 2 times"),
        ("a struct<b:int,b:int>", "the field 'b' 2 times"),
        ("a int not", "NULL"),
        ("a int comment x", "the text of the comment"),
        ("a int; b int", "character 6"),
        ("a interval", "expected a type"),
        ("a " + "array<" * (DEPTH_MAX + 2) + "int" + ">" * (DEPTH_MAX + 2), "deep"),
        ("a int, " * 200_000, "characters"),
    ],
)
def test_an_invalid_schema_is_refused(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message.replace("(", r"\(")):
        read_ddl(text)
