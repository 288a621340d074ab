"""`millpond pipeline` without Spark: what it understands, what it refuses, and what it says of runs that were."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millpond.cli.pipeline.example import example
from millpond.columns.inference import Column, Inferred
from millpond.spark.pipelines.kinds import KINDS
from millpond.spark.pipelines.lock import lock_pipeline
from millpond.spark.pipelines.progress import JobFigures, Snapshot
from millpond.spark.pipelines.status import note_folder, write_status

Command = Callable[..., Any]

ORDERS = """
name = "orders"

[source]
topic = "orders"
start = "2026-01-31T08:30:00Z"
group = "billing"
options = { "kafka.sasl.password" = "${PASSWORD:-hush}", maxOffsetsPerTrigger = 500 }

[parse]
format = "json"
schema = "id long, at timestamp, total double"
bad_records = "dead_letters"

[[transform]]
sql = "select * from input where total > 0"

[archive]
table = "lake/orders"

[latest]
table = "lake/now"
key = "id"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "orders.toml"
    path.write_text(ORDERS)
    return path


@pytest.mark.smoke
def test_check_says_what_it_understood_and_hides_passwords(lonely: Command, file: Path) -> None:
    done = lonely.succeeds("pipeline", "check", str(file))
    for text in (
        f"{file.parent}/.millpond/pipelines/orders",
        "orders at 127.0.0.1:9092, first from 2026-01-31T08:30:00Z",
        "kafka.sasl.password = (hidden)",
        "maxOffsetsPerTrigger = 500",
        "json: id long, at timestamp, total double",
        "dead_letters to orders.bad.dlq",
        "select * from input where total > 0",
        f"{file.parent}/lake/orders",
        "The declaration is valid",
    ):
        assert text in done.out
    assert "hush" not in done.out


def test_check_as_json(lonely: Command, file: Path) -> None:
    done = lonely("pipeline", "check", str(file), "--json")
    message = json.loads(done.out)
    assert [job["kind"] for job in message["jobs"]] == ["archive", "latest"]
    assert message["jobs"][0]["table"] == f"{file.parent}/lake/orders"
    assert message["source"]["options"]["kafka.sasl.password"] == "(hidden)"
    assert "hush" not in done.out


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[archive]", "[archvie]", "there is no table 'archvie'; did you mean archive?"),
        ("table = ", "tabel = ", "[archive]: there is no key 'tabel'; did you mean table?"),
        ("maxOffsetsPerTrigger", "maxOffsetPerTrigger", "; did you mean maxOffsetsPerTrigger?"),
        ("${PASSWORD:-hush}", "${PASSWORD}", "[source] options.kafka.sasl.password: the environment has no PASSWORD"),
        ("name = ", "nmae = ", "did you mean name?"),
    ],
)  # fmt: skip
def test_an_invalid_declaration_is_refused_with_its_location(
    lonely: Command, file: Path, old: str, new: str, message: str
) -> None:
    file.write_text(ORDERS.replace(old, new, 1))
    for verb in ("check", "run") if old == "[archive]" else ("check",):
        done = lonely("pipeline", verb, str(file))
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("millpond: ")
        assert message in done.err


def test_run_says_what_spark_lacks_before_it_starts(lonely: Command, file: Path, tmp_path: Path) -> None:
    lonely.environment["JAVA_HOME"] = str(tmp_path)  # type: ignore[attr-defined]
    done = lonely("pipeline", "run", str(file), cwd=file.parent)
    assert (done.code, done.out.splitlines()[:1]) == (1, [done.out.splitlines()[0]])
    assert f"JAVA_HOME is {tmp_path}, but there is no bin/java in it" in done.err
    assert "Traceback" not in done.err
    status = lonely("pipeline", "status", str(file), "--json").out
    assert json.loads(status)[0]["condition"] == "failed"
    assert "Spark cannot run here: JAVA_HOME is" in lonely("pipeline", "check", str(file)).out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--master", "local", "--remote", "sc://a"), "Give either --master or --remote"),
        (("--conf", "spark.x"), "write it as KEY=VALUE"),
        (("--metrics", "nowhere"), "'nowhere' is not an address for metrics"),
        (("--every", "0"), "0"),
    ],
)
def test_run_refuses_invalid_options(lonely: Command, file: Path, arguments: tuple[str, ...], message: str) -> None:
    lonely.fails("pipeline", "run", str(file), *arguments, cwd=file.parent, code=2, error=message)


def test_init_writes_an_example_that_is_in_order(lonely: Command, tmp_path: Path) -> None:
    lonely.succeeds("pipeline", "init", cwd=tmp_path)
    lonely.succeeds("pipeline", "check", "pipeline.toml", cwd=tmp_path)
    kinds = ("archive", "aggregate", "latest", "sessions", "quality", "replay", "skew")
    options = [part for kind in kinds for part in ("--kind", kind)]
    done = lonely("pipeline", "init", "all.toml", "--topic", "sales", *options, cwd=tmp_path)
    assert done.out == "Wrote all.toml. Next: millpond pipeline check all.toml\n"
    checked = lonely.succeeds("pipeline", "check", "all.toml", "--json", cwd=tmp_path)
    message = json.loads(checked.out)
    assert [job["kind"] for job in message["jobs"]] == list(kinds)
    assert (message["name"], message["source"]["topic"]) == ("all", ["sales"])


def test_init_does_not_overwrite_and_knows_its_kinds(lonely: Command, file: Path) -> None:
    done = lonely("pipeline", "init", str(file))
    assert (done.code, file.read_text()) == (1, ORDERS)
    assert "exists already" in done.err
    lonely.succeeds("pipeline", "init", str(file), "--force")
    lonely.fails(
        "pipeline", "init", "--kind", "achive", code=2, error="There is no kind achive; did you mean archive?"
    )


# Runs that were


NOW_MS = time.time_ns() // 1_000_000
JOB = JobFigures("archive", "archive", "running", 12, 1204.4, 15300.2, 320, 1234, 120_000, 119_988, 12)
RUN = Snapshot(
    "orders", "running", 17, NOW_MS - 90_000, NOW_MS, (JOB, replace(JOB, name="latest", late=7, figures={"hot": 5}))
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / ".millpond" / "pipelines"
    for name in ("orders", "refunds"):
        (home / name).mkdir(parents=True)
    write_status(home / "orders", replace(RUN, state="stopped"))
    failed = replace(RUN, name="refunds", state="failed", error="archive failed: no topic")
    write_status(home / "refunds", failed)
    return home


def test_status_of_all_pipelines_here(lonely: Command, home: Path, tmp_path: Path) -> None:
    done = lonely.succeeds("pipeline", "status", cwd=tmp_path)
    assert done.lines[0].split() == [
        "Pipeline", "Condition", "Job", "State", "Batch", "In/s", "Done/s", "Lag", "Took", "Rows", "out", "Bad",
    ]  # fmt: skip
    assert done.lines[1].split() == [
        "orders", "stopped", "archive", "stopped", "12", "–", "–", "320", "1.2s", "119,988", "12",
    ]  # fmt: skip
    assert "orders, latest: late 7  hot 5" in done.lines
    assert done.lines[-1] == "refunds: archive failed: no topic"


def test_a_run_is_alive_only_with_its_process(lonely: Command, home: Path, tmp_path: Path) -> None:
    write_status(home / "orders", RUN)

    def conditions(*what: str) -> list[str]:
        return [
            each["condition"] for each in json.loads(lonely("pipeline", "status", "--json", *what, cwd=tmp_path).out)
        ]

    assert conditions() == ["dead", "failed"]
    with lock_pipeline(home / "orders", "orders"):
        assert conditions() == ["running", "failed"]
        assert conditions("orders") == conditions(str(home / "orders")) == ["running"]
        done = lonely("pipeline", "status", "orders", cwd=tmp_path)
        assert "1,204" in done.out


def test_status_of_what_is_not_there(lonely: Command, home: Path, file: Path, tmp_path: Path) -> None:
    for what, message in (
        ("ordres", "There is no pipeline ordres in .millpond/pipelines; did you mean orders?"),
        (str(tmp_path / "no.toml"), "there is no such file"),
        (str(home.parent.parent / "lake"), "There is no pipeline"),
    ):
        done = lonely("pipeline", "status", what, cwd=tmp_path)
        assert done.code in (1, 2)
        assert message in done.err
    (home / "orders" / "status.json").unlink()
    assert "orders has not run yet: start it with" in lonely("pipeline", "status", str(file)).err
    assert "No pipeline has run here" in lonely("pipeline", "status", cwd=home).err


def test_the_overview_knows_it_and_loads_nothing_of_it(lonely: Command) -> None:
    assert "pipeline  " in lonely("--help").out
    assert "Examples:" in lonely("pipeline", "run", "--help").out


def test_check_tells_all_faults_at_once(lonely: Command, file: Path) -> None:
    wrong = ORDERS.replace("total double", "total doubel").replace('key = "id"', 'key = "id"\ndelete_when = "id >"')
    file.write_text(wrong.replace("select *", "selct *"))
    done = lonely("pipeline", "check", str(file))
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[0] == f"millpond: {file} has 3 faults:"
    for message in (
        "  [parse] schema: character 30: expected a type, such as double, not 'doubel'",
        "  [[transform]] 1 sql: character 1: expected a query (SELECT or WITH), not 'selct'",
        "  [latest] delete_when = 'id >': expected a value, but the text ends.",
    ):
        assert message in done.err
    message = json.loads(lonely("pipeline", "check", str(file), "--json").out)
    assert (len(message["faults"]), message["missing"]) == (3, [])


def test_init_looks_at_the_records_of_a_topic(millpond: Command, tmp_path: Path) -> None:
    topic = "shop.sales"
    millpond.succeeds("topic", "create", topic)
    lines = [json.dumps({"id": each, "price": each / 2, "sold_at": "2026-01-31T08:30:00Z"}) for each in range(20)]
    millpond.succeeds("produce", topic, stdin_data="\n".join(lines))
    done = millpond("pipeline", "init", "sales.toml", "--topic", topic, "--kind", "aggregate", cwd=tmp_path)
    assert done.out.splitlines()[0] == f"Sampled 20 records of {topic}."
    text = (tmp_path / "sales.toml").read_text()
    assert 'schema = """\n  id long,\n  price double,\n  sold_at timestamp"""' in text
    assert 'time = "sold_at"' in text
    assert "sum(price)" in text
    millpond.succeeds("pipeline", "check", "sales.toml", cwd=tmp_path)
    missing = millpond("pipeline", "init", "no.toml", "--topic", "shop.sale", cwd=tmp_path)
    assert (missing.code, (tmp_path / "no.toml").exists()) == (1, False)
    assert "did you mean shop.sales?" in missing.err


def test_the_summary_of_a_run_counts_bad_records() -> None:
    from millpond.cli.pipeline.run import last_words

    ended = replace(RUN, state="finished", dead_letters={"orders.dlq": 3, "orders.other": 0})
    assert last_words(ended).splitlines() == [
        "orders is done after 1m 30s: 240,000 rows read.",
        "3 bad records are in orders.dlq: see `millpond dlq show orders.dlq`.",
    ]
    assert last_words(replace(ended, dead_letters={})).splitlines()[1:] == [
        "archive left out 12 bad records.",
        "latest left out 12 bad records.",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--topic", 'a"b'), "may only have ASCII letters"),
        (("--topic", "\udcff"), "may only have ASCII letters"),
        (("--topic", ""), "a topic name cannot be empty"),
        (("-b", "nowhere:port"), "of the form host:port"),
        (("--topic", "orders", "-b", "127.0.0.1:1", "--kind", "nope"), "There is no kind nope"),
    ],
)
def test_init_refuses_names_that_would_break_the_file(
    lonely: Command, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = lonely("pipeline", "init", "a.toml", *arguments, cwd=tmp_path)
    assert (done.code, list(tmp_path.iterdir())) == (2, [])
    assert message in done.err


def test_init_with_strange_names_of_topics_files_and_columns(lonely: Command, tmp_path: Path) -> None:
    from millpond.cli.pipeline.example import example
    from millpond.columns.inference import infer
    from millpond.spark.pipelines.declaration import Pipeline

    # Digits behind a group of a pattern are another group; what a record names is anybody's choice.
    names = ["\\g<9>", 'q"uote', "tab\there", "bell\x07", "new\nline", "`tick`", "${HOME}", "", "é"]
    values = [json.dumps(dict.fromkeys(names, "2026-01-31T08:30:00Z") | {"n": 1.5}).encode()]
    path = tmp_path / "2026.toml"
    path.write_text(example("2026", "2026-orders", list(KINDS), 'h"o\\st:1', infer(values)), encoding="utf-8")
    made = Pipeline.load(path, {})
    assert made.source is not None
    assert (made.source.topic, made.source.bootstrap) == (("2026-orders",), 'h"o\\st:1')
    for name in names[:-2]:
        assert f"`{name.replace('`', '``')}`" in made.parse.schema
    lonely.environment["PYTHONIOENCODING"] = "latin-1"  # type: ignore[attr-defined]
    assert lonely("pipeline", "init", "ł.toml", cwd=tmp_path).out.startswith("Wrote ?.toml.")
    assert (tmp_path / "ł.toml").exists()
    done = lonely("pipeline", "init", "a b.toml", cwd=tmp_path)
    assert done.out == "Wrote a b.toml. Next: millpond pipeline check 'a b.toml'\n"
    assert lonely("pipeline", "init", "no/such/a.toml", cwd=tmp_path).err == (
        "millpond: no/such/a.toml cannot be written: no such file or directory.\n"
    )


def test_init_says_how_to_log_in_and_keeps_secrets_out_of_the_file(lonely: Command, tmp_path: Path) -> None:
    settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "${me}"}
    extras = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    lonely.succeeds(
        "pipeline", "init", "a.toml", "-b", "a.example", *extras, "-X", "sasl.password=hunter2", cwd=tmp_path
    )
    text = (tmp_path / "a.toml").read_text()
    assert "hunter2" not in text
    message = lonely("pipeline", "check", "a.toml", cwd=tmp_path)
    assert (message.code, "the environment has no SASL_PASSWORD" in message.err) == (2, True)
    from millpond.spark.pipelines.declaration import Pipeline

    source = Pipeline.load(tmp_path / "a.toml", {"SASL_PASSWORD": "hunter2"}).source
    assert source is not None
    assert source.bootstrap == "a.example:9092"
    assert source.options == {f"kafka.{name}": value for name, value in settings.items()} | {
        "kafka.sasl.password": "hunter2"
    }


def test_check_of_an_address_that_cannot_be(lonely: Command, file: Path) -> None:
    for address in ("a..b:9092", "127.0.0.1:99999", "nowhere"):
        file.write_text(ORDERS.replace("[source]", f'[source]\nbootstrap = "{address}"'))
        done = lonely("pipeline", "check", str(file))
        assert (done.code, done.out) == (2, "")
        assert f"[source] bootstrap: {address}: '{address}' is not an address" in done.err


CLIENT_FILE = """
bootstrap.servers=127.0.0.1:3
security.protocol=SASL_PLAINTEXT
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="hunter2";
"""


def test_without_bootstrap_it_reads_the_selected_cluster(lonely: Any, file: Path, tmp_path: Path) -> None:
    def reads(*options: str) -> str:
        done = lonely.succeeds("pipeline", "check", str(file), "--json", *options)
        return str(json.loads(done.out)["source"]["bootstrap"])

    (tmp_path / "client.properties").write_text(CLIENT_FILE)
    (tmp_path / "client.properties").chmod(0o600)
    lonely.environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    lonely.succeeds("profile", "add", "shop", "-b", "127.0.0.1:1")
    assert reads() == "127.0.0.1:9092"
    assert reads("--profile", "shop") == "127.0.0.1:1"
    lonely.succeeds("profile", "use", "shop")
    assert reads() == "127.0.0.1:1"
    lonely.environment["MILLPOND_BOOTSTRAP"] = "127.0.0.1:2"
    assert reads() == "127.0.0.1:2"
    del lonely.environment["MILLPOND_BOOTSTRAP"]
    lonely.environment["MILLPOND_CLIENT_CONFIG"] = str(tmp_path / "client.properties")
    assert reads() == "127.0.0.1:3"
    file.write_text(ORDERS.replace("[source]", '[source]\nbootstrap = "127.0.0.1:4"'))
    assert reads() == "127.0.0.1:4"


def test_what_init_writes_for_a_secure_cluster_is_in_order(lonely: Any, tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text(CLIENT_FILE)
    (tmp_path / "client.properties").chmod(0o600)
    lonely.environment["MILLPOND_CLIENT_CONFIG"] = str(tmp_path / "client.properties")
    lonely.succeeds("pipeline", "init", "a.toml", cwd=tmp_path)
    text = (tmp_path / "a.toml").read_text()
    assert "hunter2" not in text
    assert f"# How to log in: MILLPOND_CLIENT_CONFIG={tmp_path}/client.properties" in text
    lonely.succeeds("pipeline", "check", "a.toml", cwd=tmp_path)


def test_run_tells_of_a_missing_topic_before_spark_starts(millpond: Any, tmp_path: Path) -> None:
    file = tmp_path / "absent.toml"
    file.write_text(ORDERS.replace('topic = "orders"', 'topic = "zq77zq77zq"').replace("options = {", "# {"))
    millpond.fails(
        "pipeline",
        "run",
        str(file),
        "--once",
        cwd=file.parent,
        error="has no topic zq77zq77zq; create it with `millpond topic create zq77zq77zq`",
    )
    assert not (tmp_path / ".millpond").exists()


def test_a_pipeline_with_another_checkpoint_folder_is_found(lonely: Any, tmp_path: Path) -> None:
    snapshot = Snapshot("far", "finished", 1, 1000, 2000, (JobFigures("archive", "archive"),))
    write_status(tmp_path / "elsewhere" / "state", snapshot)
    note_folder(tmp_path / ".millpond/pipelines", "far", tmp_path / "elsewhere" / "state")
    for words in ((), ("far",)):
        [message] = json.loads(lonely("pipeline", "status", *words, "--json", cwd=tmp_path).out)
        assert message["name"] == "far"


def test_an_example_groups_by_no_identifier() -> None:
    columns = [Column("id", "string"), Column("at", "timestamp"), Column("shop", "string"), Column("total", "double")]
    assert 'group_by = ["shop"]' in example("a", "orders", ["aggregate"], sample=Inferred(tuple(columns), 10, 0, 0))
    assert '# group_by = ["…"]' in example(
        "a", "orders", ["aggregate"], sample=Inferred((columns[0], *columns[3:]), 10, 0, 0)
    )
