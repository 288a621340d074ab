"""`millpond pipeline`: what is declared in a small file, run on Spark and watched."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

import click

from millpond.base.ids import topic_name_fault
from millpond.cli.access import Access, cluster_options
from millpond.cli.errors import Failed, cause
from millpond.cli.options import AS_JSON, pair
from millpond.cli.pipeline.file import at_cluster, load

_CONF_FAULT: Final = "--conf {}: write it as KEY=VALUE, as spark.executor.memory=4g."


@click.group("pipeline")
def command() -> None:
    """Pipelines: topics into tables and topics, exactly once, on Spark.

    A pipeline is declared in a small TOML file: what it reads, how it parses, SQL in between, and jobs such as
    archive, aggregate and latest. Spark comes with pip install 'millpond[spark]', and needs Java.

    \b
    Examples:
      millpond pipeline init orders.toml
      millpond pipeline check orders.toml
      millpond pipeline run orders.toml
      millpond pipeline run orders.toml --once --json
      millpond pipeline status --watch
    """


@command.command("init")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default="pipeline.toml")
@click.option("-k", "--kind", "wanted", metavar="KIND", multiple=True, help="A job of this kind; repeatable.")
@click.option("-t", "--topic", help="The topic that it reads; its records are looked at for the schema.")
@click.option("--force", is_flag=True, help="Over a file that is there.")
@cluster_options
def init_command(file: Path, wanted: tuple[str, ...], topic: str | None, force: bool, access: Access) -> None:
    """Write a declaration to begin with, in FILE (pipeline.toml).

    With --topic, up to a thousand of the topic's records say what the columns are: numbers, times, what is nested and
    what may be missing. What is not always of one kind becomes a string, with a comment. Without it, or where no
    cluster answers, the columns are an example. What -X and a profile say of the cluster is written too, but for
    secrets: those are variables of the environment. A file of client settings stays where it is.

    \b
    Examples:
      millpond pipeline init
      millpond pipeline init orders.toml --topic orders --kind archive --kind latest
    """
    from millpond.cli.pipeline.example import example
    from millpond.cli.pipeline.sight import look_at_topic
    from millpond.remote.cluster import SETTINGS

    if file.exists() and not force:
        raise Failed(f"{file} is there already: name another file, or add --force.")
    if topic is not None and (fault := topic_name_fault(topic)):
        raise click.UsageError(f"--topic: {fault}.")
    bootstrap = access.servers()
    example(file.stem, topic or "orders", wanted)
    seen = look_at_topic(access, topic) if topic is not None else None
    settings = {name: value for name, value in access.extras.items() if name in SETTINGS}
    if access.client_file is not None:
        # The source reads the file by itself; a variable for what is secret in it would be one more thing to set.
        settings = {}
    text = example(file.stem, topic or "orders", wanted, bootstrap, seen, settings, access.client_file)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failed(f"{file} cannot be written: {cause(error)}.") from None
    name = click.format_filename(file)
    click.echo(f"Wrote {name}. Next: millpond pipeline check {shlex.quote(name)}")


@command.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@AS_JSON
@cluster_options
def check_command(file: Path, as_json: bool, access: Access) -> None:
    """Say what FILE declares, and what is wrong with it. Nothing is started.

    Found without Spark: types and SQL that do not parse, columns that do not exist, and, where the cluster answers,
    topics that are not there. It ends with 2 when the declaration is wrong, with 1 when a topic is missing. Passwords
    are not shown. A file without [source] bootstrap is checked against the cluster of --bootstrap or the profile.

    \b
    Examples:
      millpond pipeline check orders.toml
      millpond pipeline check orders.toml --json | jq .jobs
    """
    from millpond.cli.pipeline.check import check_pipeline

    check_pipeline(file, at_cluster(load(file), access), as_json=as_json)


@command.command("run")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Take what is there now, and end.")
@click.option("--master", metavar="URL", help="Where Spark runs: local[*] (the default), spark://host:7077, yarn, …")
@click.option("--remote", metavar="URL", help="A Spark Connect server, as sc://host:15002; needs no Java here.")
@click.option("-c", "--conf", metavar="KEY=VALUE", multiple=True, help="A setting of Spark; repeatable.")
@click.option("--metrics", metavar="ADDRESS", default="", help="Serve metrics for Prometheus, as 127.0.0.1:9108.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON each time, for programs.")
@click.option("-q", "--quiet", is_flag=True, help="Only say how it ended.")
@click.option("--every", metavar="SECONDS", type=click.FloatRange(1, 3600), help="How often lines are printed.")
@click.option(
    "--log-level",
    type=click.Choice(["error", "warn", "info", "debug"]),
    default="error",
    show_default=True,
    help="How much Spark writes into its log.",
)
@cluster_options
def run_command(
    file: Path,
    once: bool,
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
    metrics: str,
    as_json: bool,
    quiet: bool,
    every: float | None,
    log_level: str,
    access: Access,
) -> None:
    """Run the pipeline that FILE declares, until Ctrl-C; the next run goes on from where this one ends.

    On a terminal a table shows how it goes: rates, lag, and the time a batch takes; elsewhere lines do. SIGTERM and
    Ctrl-C let the batch that is under way end for a moment; a second one does not wait. It ends with 0 when it was
    stopped or is done, with 1 when a job failed or a topic is missing, with 2 when the declaration is wrong. A file
    without [source] bootstrap reads the cluster of --bootstrap or the profile.

    \b
    Examples:
      millpond pipeline run orders.toml
      millpond pipeline run orders.toml --once
      millpond pipeline run orders.toml --metrics 127.0.0.1:9108
      millpond pipeline run orders.toml --master spark://10.0.0.5:7077 -c spark.executor.memory=4g
    """
    from millpond.cli.pipeline.check import refuse_missing_topics
    from millpond.cli.pipeline.run import run_pipeline

    if master and remote:
        raise click.UsageError("--master and --remote are two ways to reach Spark: give one of them.")
    pipeline = at_cluster(load(file), access)
    if not remote:
        # Before Spark, which takes half a minute to say the same. A Spark elsewhere may know the brokers otherwise.
        refuse_missing_topics(file, pipeline)
    run_pipeline(
        pipeline,
        "quiet" if quiet else "json" if as_json else "auto",
        every,
        once=once,
        master=master or "",
        remote=remote or "",
        conf={name: value.strip() for name, value in (pair(text, _CONF_FAULT.format(text)) for text in conf)},
        metrics=metrics,
        log_level=log_level.upper(),
    )


@command.command("status")
@click.argument("what", metavar="[FILE|FOLDER|NAME]", required=False)
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs; with --watch a line each time.")
@click.option("--watch", is_flag=True, help="Again every second, until Ctrl-C.")
def status_command(what: str | None, as_json: bool, watch: bool) -> None:
    """Show the pipelines that run or ran here: since when, batches, rates, lag and the last error.

    Without an argument these are all that keep their state in .millpond/pipelines. A pipeline is dead when its
    process ended without a word; running it again repairs that.

    \b
    Examples:
      millpond pipeline status
      millpond pipeline status orders.toml --watch
      millpond pipeline status --json | jq '.[] | select(.condition != "running").name'
    """
    from millpond.cli.pipeline.status import show_statuses

    show_statuses(what, as_json=as_json, watch=watch)
