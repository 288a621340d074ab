"""`millpond pipeline`: runs pipelines that a small file declares, on Spark."""

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
@click.option("-k", "--kind", "kinds", metavar="KIND", multiple=True, help="A job of this kind; repeatable.")
@click.option("-t", "--topic", help="The topic that it reads; its records are sampled for the schema.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@cluster_options
def init_command(file: Path, kinds: tuple[str, ...], topic: str | None, force: bool, access: Access) -> None:
    """Write an example declaration to FILE (pipeline.toml).

    With --topic, the columns are inferred from up to a thousand records: numbers, times, nested and optional fields.
    A field with mixed types becomes a string, with a comment. Without --topic, or if no cluster answers, the columns
    are an example. Client settings of -X and of a profile are included, except secrets, which become environment
    variables. A file of client settings is referred to.

    \b
    Examples:
      millpond pipeline init
      millpond pipeline init orders.toml --topic orders --kind archive --kind latest
    """
    from millpond.cli.pipeline.example import example
    from millpond.cli.pipeline.sample import sample_topic
    from millpond.remote.cluster import SETTINGS

    if file.exists() and not force:
        raise Failed(f"{file} exists already: name another file, or add --force.")
    if topic is not None and (fault := topic_name_fault(topic)):
        raise click.UsageError(f"--topic: {fault}.")
    bootstrap = access.servers()
    example(file.stem, topic or "orders", kinds)
    sample = sample_topic(access, topic) if topic is not None else None
    settings = {name: value for name, value in access.extras.items() if name in SETTINGS}
    if access.client_file is not None:
        # The source reads the file itself, so no environment variables for secrets are needed.
        settings = {}
    text = example(file.stem, topic or "orders", kinds, bootstrap, sample, settings, access.client_file)
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
    """Check FILE and show what it declares. Nothing is started.

    Without Spark it finds types and SQL that do not parse, columns that do not exist and, if the cluster answers,
    missing topics. The exit code is 2 for an invalid declaration and 1 for a missing topic. Passwords are not shown.
    A file without [source] bootstrap is checked against the cluster of --bootstrap or the profile.

    \b
    Examples:
      millpond pipeline check orders.toml
      millpond pipeline check orders.toml --json | jq .jobs
    """
    from millpond.cli.pipeline.check import check_pipeline

    check_pipeline(file, at_cluster(load(file), access), as_json=as_json)


@command.command("run")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Process what is available now, and stop.")
@click.option("--master", metavar="URL", help="Where Spark runs: local[*] (the default), spark://host:7077, yarn, …")
@click.option("--remote", metavar="URL", help="A Spark Connect server, as sc://host:15002; needs no Java here.")
@click.option("-c", "--conf", metavar="KEY=VALUE", multiple=True, help="A Spark setting; repeatable.")
@click.option("--metrics", metavar="ADDRESS", default="", help="Serve metrics for Prometheus, as 127.0.0.1:9108.")
@click.option("--json", "as_json", is_flag=True, help="Lines of JSON, for programs.")
@click.option("-q", "--quiet", is_flag=True, help="Only print the outcome.")
@click.option("--every", metavar="SECONDS", type=click.FloatRange(1, 3600), help="How often lines are printed.")
@click.option(
    "--log-level",
    type=click.Choice(["error", "warn", "info", "debug"]),
    default="error",
    show_default=True,
    help="Spark's log level.",
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
    """Run the pipeline that FILE declares, until Ctrl-C; the next run continues where this one ends.

    A table on a terminal, or lines elsewhere, show rates, lag and the duration of batches. SIGTERM and Ctrl-C give
    the current batch a moment to finish; a second signal does not wait. The exit code is 0 when it was stopped or is
    done, 1 if a job failed or a topic is missing, 2 for an invalid declaration. A file without [source] bootstrap
    reads from the cluster of --bootstrap or the profile.

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
        raise click.UsageError("Give either --master or --remote, not both.")
    pipeline = at_cluster(load(file), access)
    if not remote:
        # Before Spark starts, which takes half a minute to fail. A remote Spark may reach the brokers differently.
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
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs; with --watch one line per update.")
@click.option("--watch", is_flag=True, help="Repeat every second, until Ctrl-C.")
def status_command(what: str | None, as_json: bool, watch: bool) -> None:
    """Show the pipelines that run or ran here: start, batches, rates, lag and the last error.

    Without an argument it shows all with state in .millpond/pipelines. A pipeline is dead if its process ended
    unexpectedly; run it again to recover.

    \b
    Examples:
      millpond pipeline status
      millpond pipeline status orders.toml --watch
      millpond pipeline status --json | jq '.[] | select(.condition != "running").name'
    """
    from millpond.cli.pipeline.status import show_statuses

    show_statuses(what, as_json=as_json, watch=watch)
