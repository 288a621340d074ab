"""The columns that a query returns, and references to missing ones."""

from __future__ import annotations

import pytest

from millpond.spark.sql.columns import check_expression, check_query

TABLES = {
    "input": ("id", "customer", "region", "total", "at", "items", "_key", "_offset"),
    "prices": ("sku", "price"),
    "open": None,
}


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("select * from input", TABLES["input"]),
        ("select ID, total * 2 as twice, i.region from input i", ("ID", "twice", "region")),
        ("select * except (items, at), 1 as one from input",
         ("id", "customer", "region", "total", "_key", "_offset", "one")),
        ("select i.*, p.price p from input i join prices p on i.id = p.sku", (*TABLES["input"], "p")),
        ("with a as (select id x from input) select x, x + 1 as y from a", ("x", "y")),
        ("with a(b) as (select id from input) select b from a", ("b",)),
        ("select x from (select id as x from input) t", ("x",)),
        ("select y from (select id as x from input) t(y)", ("y",)),
        ("select id from input union select sku from prices", ("id",)),
        ("select customer.name, items[0].sku from input", ("name",)),
        ("select explode(items) from input", None),
        ("select explode(items) as item from input", ("item",)),
        ("select * from open", None),
        ("select id, t.item.sku from input lateral view explode(items) t as item", ("id", "sku")),
        ("select count(*) from input", ()),
        ("select * from range(5)", None),
    ],
)  # fmt: skip
def test_result_columns_of_a_query(text: str, columns: tuple[str, ...] | None) -> None:
    findings = check_query(text, TABLES)
    assert (findings.columns, findings.faults, findings.unknown_tables) == (columns, [], [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("select totl from input", "character 8: there is no column 'totl'; did you mean total?"),
        ("select id from input where nothing > 1",
         "there is no column 'nothing'; there are id, customer, region, total, at, items"),
        ("select i.totl from input i", "there is no column 'i.totl'"),
        ("select input.id from input i", "there is no column 'input.id'"),
        ("select id as x from input where x > 1", "there is no column 'x'"),
        ("select a.x from (select id from input) a", "there is no column 'a.x'"),
        ("select id from input where id in (select skuu from prices)",
         "there is no column 'skuu'; did you mean sku?"),
        ("select transform(items, x -> y + 1) from input", "there is no column 'y'"),
        ("select id from input i join prices p on i.id = p.skuu", "there is no column 'p.skuu'"),
        ("select sum(total) over (partition by regoin order by at) from input", "did you mean region?"),
        ("select id from input order by totl", "there is no column 'totl'"),
        ("select id from inptu", "character 16: there is no table 'inptu'; did you mean input?"),
        ("select case when totl > 0 then 1 end from input", "there is no column 'totl'"),
        ("select id from input union select id from prices", "there is no column 'id'; there are sku, price"),
    ],
)  # fmt: skip
def test_a_missing_column_is_reported(text: str, message: str) -> None:
    (fault,) = check_query(text, TABLES).faults
    assert message in fault


@pytest.mark.parametrize(
    "text",
    [
        "select id as x, x + 1 as y from input group by x having y > 1 order by y, total",
        "select region, count(*) as n from input group by region having n > 1 order by n",
        "select id from input o where exists (select 1 from prices where sku = o.id and total > 0)",
        "select anything, open.other from open, prices",
        "select `count(1)` from (select count(1) from input)",
        "select aggregate(items, 0, (acc, x) -> acc + x.n + id) from input",
        "select datediff(day, at, current_date), timestampadd(HOUR, 1, at) from input",
        "select p from input lateral view posexplode(items) t as p, item",
        "select TOTAL, `Total` from INPUT",
    ],
)
def test_an_existing_column_is_accepted(text: str) -> None:
    assert check_query(text, TABLES).faults == []


def test_a_table_that_is_not_a_step_is_listed() -> None:
    assert check_query("select x from warehouse.customers", TABLES).unknown_tables == ["warehouse.customers"]


def test_expressions() -> None:
    assert check_expression("sum(total) > 0 and `region` = 'eu' as fine", TABLES["input"]).faults == []
    assert check_expression("sum(anything)", None).faults == []
    (fault,) = check_expression("sum(totl)", TABLES["input"]).faults
    assert fault == "character 5: there is no column 'totl'; did you mean total?"
