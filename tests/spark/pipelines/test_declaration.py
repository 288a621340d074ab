"""Declarations: TOML and Python are equal, and errors name file, table and key."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from millpond.spark.pipelines import kinds
from millpond.spark.pipelines.declaration import (
    DeclarationError,
    Parse,
    Pipeline,
    Source,
    SparkSettings,
    Transform,
)
from millpond.spark.pipelines.kind import Kind
from support.spark_drip import KIND as DRIP
from support.spark_drip import Drip


class Reads(Drip):
    kind = "reads"
    reads_source = True


READS = Kind(name="reads", doc="Reads topics.", job=Reads, plan=DRIP.plan)


@pytest.fixture(autouse=True)
def _two_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "KINDS", {"drip": DRIP, "reads": READS})


Load = Callable[..., Pipeline]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def made(text: str, **environment: str) -> Pipeline:
        path = tmp_path / "orders.toml"
        path.write_text(text)
        return Pipeline.load(path, environment)

    return made


WHOLE = """
name = "orders"
checkpoint = "state"
trigger = "10 s"

[source]
topic = ["orders", "refunds"]
bootstrap = "${BROKERS:-127.0.0.1:9092}"
start = 2026-01-31T08:30:00Z
group = "orders-${STAGE}"
options = { maxOffsetsPerTrigger = 1000, failOnDataLoss = false, "kafka.sasl.password" = "$${not}" }

[parse]
format = "json"
schema = "id long, at timestamp"
bad_records = "dead_letters"
dead_letters = "orders.bad"

[[transform]]
name = "large"
sql = "select * from input where id > 5"

[[transform]]
sql = "select id from large"

[spark]
master = "local[2]"
conf = { "spark.ui.enabled" = true }

[reads]
rows_per_second = 7
input = "large"
trigger = "1 minute"

[[drip]]
name = "one"

[[drip]]
name = "two"
"""


def test_toml_and_python_give_equal_declarations(load: Load, tmp_path: Path) -> None:
    result = load(WHOLE, STAGE="test")
    assert result == Pipeline(
        name="orders",
        checkpoint=str(tmp_path / "state"),
        trigger="10 seconds",
        source=Source(
            bootstrap="127.0.0.1:9092",
            topic=["orders", "refunds"],  # type: ignore[arg-type]
            start=datetime(2026, 1, 31, 8, 30, tzinfo=UTC),
            group="orders-test",
            options={
                "maxOffsetsPerTrigger": 1000,  # type: ignore[dict-item]
                "failOnDataLoss": "false",
                "kafka.sasl.password": "${not}",
            },
        ),
        parse=Parse(
            format="json", schema="id long, at timestamp", bad_records="dead_letters", dead_letters="orders.bad"
        ),
        transforms=[  # type: ignore[arg-type]
            Transform(name="large", sql="select * from input where id > 5"),
            Transform(sql="select id from large"),
        ],
        spark=SparkSettings(master="local[2]", conf={"spark.ui.enabled": "true"}),
        jobs=[  # type: ignore[arg-type]
            Reads(rows_per_second=7, input="large", trigger="60 s"),
            Drip(name="one"),
            Drip(name="two"),
        ],
    )
    assert [each.name for each in result.jobs] == ["reads", "one", "two"]
    assert result.folder == tmp_path / "state"


def test_the_smallest_declaration(load: Load, tmp_path: Path) -> None:
    result = load('name = "a"\n[drip]\n')
    assert result.checkpoint == str(tmp_path / ".millpond/pipelines/a")
    assert (result.trigger, result.source, result.parse.format) == ("continuous", None, "raw")


def test_paths_in_python_are_relative_to_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Pipeline(name="a", jobs=(Drip(),)).folder == tmp_path / ".millpond/pipelines/a"


def test_lock_and_status_are_local_if_the_checkpoint_is_remote(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = load('name = "a"\ncheckpoint = "s3a://lake/a"\n[drip]')
    assert result.checkpoint == "s3a://lake/a"
    assert result.folder == tmp_path / ".millpond/pipelines/a"
    assert load('name = "a"\ncheckpoint = "file:///tmp/a"\n[drip]').folder == Path("/tmp/a")


SOURCE = '\n[source]\ntopic = "orders"\n'
PARSED = f'name = "a"{SOURCE}[parse]\nformat = "json"\nschema = "a long"\n'
STEP = f'name = "a"{SOURCE}[[transform]]\n'
MISTAKES = {
    "": "name is missing",
    "name = 5": "name = 5: write a text in quotes",
    'name = "a b"': "a name is made of letters",
    'name = "a"': "there is no job: add a table such as [archive]; the kinds are drip, reads",
    'name = "a"\nnaem = "b"': "there is no key 'naem'; did you mean name?",
    'name = "a"\n[drop]': "there is no table 'drop'; did you mean drip?",
    'name = "a"\ntrigger = "often"\n[drip]': 'trigger = \'often\': it is "available_now", "continuous" or a length',
    'name = "a"\n[drip]\nrows = 5': "[drip]: there is no key 'rows'",
    'name = "a"\n[drip]\nrows_per_secnod = 5': "no key 'rows_per_secnod'; did you mean rows_per_second?",
    'name = "a"\n[drip]\nrows_per_second = "5"': "[drip]: rows_per_second = '5': write a whole number",
    'name = "a"\n[drip]\nrows_per_second = 0': "[drip]: rows_per_second = 0: it must be from 1 to 1,000,000",
    'name = "a"\ndrip = 5': "[drip]: write a table",
    'name = "a"\n[[drip]]\n[[drip]]': "two jobs are called drip: give each a different name",
    'name = "a"\n[reads]': "[source] is missing: reads reads topics",
    'name = "a"\n[source]\n[reads]': "[source]: topic is missing",
    'name = "a"\n[source]\ntopic = "t"\npattern = "t"\n[reads]': "[source]: give topic or pattern, not both",
    'name = "a"\n[source]\npattern = "t("\n[reads]': "[source]: pattern = 't(': it is not a regular expression",
    'name = "a"\n[source]\ntopci = "t"\n[reads]': "[source]: there is no key 'topci'; did you mean topic?",
    'name = "a"\n[source]\ntopic = "t"\nstart = "soon"\n[reads]': "[source]: start = 'soon': it is \"earliest\"",
    'name = "a"\n[source]\ntopic = "t"\noptions = { a = [1] }\n[reads]': "[source]: options",
    f'name = "a"{SOURCE}[parse]\nformat = "jsn"\n[reads]': "[parse]: format = 'jsn': there is no such choice; did",
    f'name = "a"{SOURCE}[parse]\nformat = "json"\n[reads]': "[parse]: schema is missing",
    f'name = "a"{SOURCE}[parse]\nschema = "id long"\n[reads]': '[parse]: a schema needs format = "json" or "avro"',
    PARSED + 'schema_file = "b"\n[reads]': "schema or schema_file",
    PARSED + 'dead_letters = "b"\n[reads]': "[parse]: dead_letters needs",
    STEP + 'sequel = "b"\n[reads]': "[[transform]]: there is no key 'sequel'",
    STEP + 'name = "b"\n[reads]': "[[transform]]: sql is missing",
    STEP + 'name = "b-c"\nsql = "x"\n[reads]': "[[transform]]: name = 'b-c': in SQL",
    STEP + 'name = "input"\nsql = "x"\n[reads]': "this name is taken",
    STEP + 'name = "b"\nsql = "x"\n[reads]\ninput = "bb"': "no such transform; did you mean b?",
    f'name = "a"{SOURCE}[reads]\ninput = "b"': "there is no such transform: no [[transform]] has a name",
    f'name = "a"{SOURCE}[reads]\ntrigger = "now and then"': "[reads]: trigger = 'now and then'",
    'name = "${NOBODY}"\n[drip]': "name: the environment has no NOBODY; set it, or write ${NOBODY:-otherwise}",
    'name = "a"\n[drip]\nwords = "${NOBODY}"': "[drip] words: the environment has no NOBODY",
    "name = ": "it is not valid TOML",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_an_error_names_file_table_and_key(text: str, load: Load, tmp_path: Path) -> None:
    with pytest.raises(DeclarationError) as caught:
        load(text)
    assert str(caught.value).startswith(str(tmp_path / "orders.toml"))
    assert MISTAKES[text] in str(caught.value)


def test_errors_in_python_name_the_key() -> None:
    with pytest.raises(DeclarationError, match="rows_per_second = -1: it must be from 1"):
        Drip(rows_per_second=-1)
    with pytest.raises(DeclarationError, match=r"\[source\] is missing"):
        Pipeline(name="a", jobs=(Reads(),))


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="no such file; `millpond pipeline init`"):
        Pipeline.load(tmp_path / "nothing.toml")
    with pytest.raises(DeclarationError, match="it is a folder"):
        Pipeline.load(tmp_path)
    (tmp_path / "picture.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DeclarationError, match="not UTF-8 text"):
        Pipeline.load(tmp_path / "picture.toml")
    (tmp_path / "large.toml").write_bytes(b"#" * 4_000_001)
    with pytest.raises(DeclarationError, match="it cannot be a declaration"):
        Pipeline.load(tmp_path / "large.toml")


def test_a_schema_file_is_relative_to_the_declaration(load: Load, tmp_path: Path) -> None:
    (tmp_path / "order.ddl").write_text("id long\n")
    text = f'name = "a"{SOURCE}[parse]\nformat = "json"\nschema_file = "order.ddl"\n[reads]'
    assert load(text).parse.schema_text() == "id long"
    (tmp_path / "order.ddl").unlink()
    with pytest.raises(DeclarationError, match="No such file"):
        load(text).parse.schema_text()


def test_every_exported_name_exists() -> None:
    import millpond.spark as room

    assert {"Archive", "Pipeline", "Skew", "make_session"} <= set(room.__all__)
    assert all(getattr(room, name) is not None for name in room.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Pipe'"):
        _ = room.Pipe


def test_reading_a_declaration_needs_no_spark() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from millpond.spark import Pipeline, Source; import millpond.spark.pipelines.runner;"
        "print([m for m in sys.modules if m.split('.')[0] in ('pyspark', 'pyarrow', 'deltalake', 'pandas')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("checkpoint = 5", "checkpoint = 5: write a text in quotes"),
        ("checkpoint = []", "checkpoint = []: write a text in quotes"),
        ('checkpoint = "a\\u0000b"', "no path has a zero byte"),
        (f"x = {'[' * 5000}", "nested too deeply"),
        (f"x = {'9' * 5000}", "it is not valid TOML"),
    ],
)
def test_absurd_values_are_refused(load: Load, line: str, message: str) -> None:
    with pytest.raises(DeclarationError) as fault:
        load(f'name = "orders"\n{line}\n[drip]\n')
    assert message in str(fault.value)


def test_an_unknown_users_home_is_a_plain_folder_name(load: Load, tmp_path: Path) -> None:
    made = load('name = "orders"\ncheckpoint = "~no-such-user/state"\n[drip]\n')
    assert made.checkpoint == str(tmp_path / "~no-such-user/state")


def test_an_error_does_not_show_secrets_of_other_options(load: Load) -> None:
    options = '{ "kafka.sasl.password" = "hunter2", maxOffsetsPerTrigger = [1] }'
    with pytest.raises(DeclarationError) as fault:
        load(f'name = "orders"\n[source]\ntopic = "orders"\noptions = {options}\n[reads]\n')
    assert "maxOffsetsPerTrigger must be a text" in str(fault.value)
    assert "hunter2" not in str(fault.value)
