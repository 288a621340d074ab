"""`millpond sql` as a user runs it: formats, files, and sentences instead of tracebacks."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from threading import Timer

import pytest

pytest.importorskip("duckdb", reason="pip install 'millpond[sql]'")

from millpond import write_arrow
from millpond.cli import main
from millpond.testing import Pond
from support.node import eventually

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(pond: Pond, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("MILLPOND_BOOTSTRAP", pond.bootstrap)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["sql", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture(scope="module")
def sales(pond: Pond) -> str:
    topic = pond.create_topic("sales")
    rows = [
        {"shop": "a,b", "n": 1, "tags": ["x"]},
        {"shop": "ü", "n": 2, "tags": None},
        {"shop": None, "n": 30, "tags": []},
    ]
    write_arrow(topic, rows, bootstrap=pond.bootstrap)
    return topic


def test_a_table(sales: str, run: Run) -> None:
    code, out, err = run("select shop, n, tags from sales order by n")
    assert (code, err) == (0, "")
    assert out.splitlines() == ["shop  n   tags", 'a,b    1  ["x"]', "ü      2  –", "–     30  []"]


def test_a_long_table_is_cut(sales: str, run: Run) -> None:
    code, out, err = run("select range as n from range(50)", "--rows", "5")
    assert (code, len(out.splitlines())) == (0, 6)
    assert "The first 5 rows: --rows shows more" in err


def test_lines_of_json_and_csv(sales: str, run: Run) -> None:
    _, out, _ = run("select shop, n, tags, n as n from sales order by n", "--format", "json")
    assert next(json.loads(line) for line in out.splitlines()) == {"shop": "a,b", "n": 1, "tags": ["x"], "n_2": 1}
    _, out, _ = run("select shop, sum(n) s, tags from sales group by all order by s", "--format", "csv")
    assert list(csv.reader(io.StringIO(out))) == [
        ["shop", "s", "tags"],
        ["a,b", "1", '["x"]'],
        ["ü", "2", ""],
        ["", "30", "[]"],
    ]


def test_files(sales: str, run: Run, tmp_path: Path) -> None:
    from pyarrow.parquet import read_table

    code, out, err = run("select * from sales", "-o", "sales.parquet")
    assert (code, out, err.strip()) == (0, "", "3 rows written to sales.parquet.")
    assert sorted(read_table(tmp_path / "sales.parquet")["n"].to_pylist()) == [1, 2, 30]
    run("select n from sales order by n", "-o", "sales.jsonl")
    assert (tmp_path / "sales.jsonl").read_text() == '{"n":1}\n{"n":2}\n{"n":30}\n'
    code, _, err = run("select 1", "-o", "missing/file.csv")
    assert (code, err) == (1, "millpond: missing/file.csv cannot be written: no such file or directory.\n")


def test_explain_and_stats(sales: str, run: Run) -> None:
    code, out, _ = run("select n from sales where _offset > 1", "--explain")
    assert code == 0
    assert out.splitlines()[:3] == [
        "sales: 1 of 3 offsets would be read, columns _offset, n, values are parsed",
        "  partition 0: 2 to 2",
        "  filter: (_offset > 1)",
    ]
    assert "SCAN" in out
    _, _, err = run("select count(*) from sales", "--stats")
    assert err.startswith("sales: 3 of 3 offsets read, columns ")
    _, _, err = run("select 1", "--stats")
    assert err == "No topic was read.\n"


def test_bounds_forms_and_standard_input(sales: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("select count(*) as n from sales", "--from", "-2", "--format", "json")[1] == '{"n":2}\n'
    assert run("select count(*) as n from sales", "--to", "1", "--format", "json")[1] == '{"n":1}\n'
    _, out, _ = run("select n from sales order by n", "--value", "sales=n string", "--format", "json")
    assert out.splitlines()[0] == '{"n":"1"}'
    monkeypatch.setattr("sys.stdin", io.StringIO("select 7 as n"))
    assert run("-", "--format", "json")[1] == '{"n":7}\n'


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["select * from salse"], 1, "millpond: There is no topic salse; did you mean sales?"),
        (["selct"], 1, "millpond: Parser Error: syntax error"),
        (["select * from sales", "--from", "soon"], 1, "start='soon': give an offset"),
        (["select * from sales", "--value", "sales=avro"], 1, 'value="avro" needs schema='),
        (["select * from sales", "--value", "sales"], 2, "--value sales: give it as name=value."),
        (["select 1", "--format", "parquet"], 2, "--format parquet needs --output FILE."),
        (["select 1", "-o", "file.xls"], 2, "say with --format what to write"),
        (["select 1", "-o", "file.csv", "--format", "table"], 2, "A table is for the terminal"),
        (["  "], 2, "The query is empty."),
        (["select interval 1 day as d", "--format", "json"], 1, "column d of type month_day_nano_interval"),
        (["select 1", "--bootstrap", "127.0.0.1:1"], 1, "Nothing listens on 127.0.0.1:1"),
    ],
)
def test_what_goes_wrong(sales: str, run: Run, arguments: list[str], code: int, message: str) -> None:
    result, out, err = run(*arguments)
    assert (result, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


def test_ctrl_c_ends_a_query_without_end(sales: str, run: Run) -> None:
    Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    code, out, err = run("select count(*) from range(100000000000) a, sales b where a.range % 7 = b._offset")
    assert (code, out, err) == (130, "", "The query was cancelled.\n")


def test_a_table_that_is_cut_ends_its_read(sales: str, run: Run) -> None:
    code, out, _ = run("select _offset from sales order by all", "--rows", "1")
    assert (code, out.split()) == (0, ["_offset", "0"])
    assert eventually(lambda: not any(each.name.startswith("millpond-read") for each in threading.enumerate()))


def test_without_duckdb(sales: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    code, _, err = run("select 1")
    assert (code, err) == (1, "millpond: this needs the package 'duckdb': pip install 'millpond[sql]'.\n")
