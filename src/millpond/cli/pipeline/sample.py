"""Samples a topic for `millpond pipeline init`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from millpond.cli.access import Access
from millpond.cli.errors import Failed, sentence
from millpond.cli.text import counted

if TYPE_CHECKING:
    from millpond.columns.inference import Inferred


def sample_topic(access: Access, topic: str) -> Inferred | None:
    """The types of its values; None, with a message, if they cannot be read. The topic must exist."""
    from millpond.spark.pipelines.session import SessionError, check_python

    try:
        check_python()
    except SessionError as fault:
        _say(f"The records of {topic} were not sampled: {sentence(str(fault))}")
        return None
    try:
        access.probe()
    except Failed as fault:
        _say(f"The records of {topic} were not sampled. {fault.message}")
        return None
    from millpond.admin.topics import find_topic
    from millpond.columns.inference import infer
    from millpond.columns.sample import sample_values

    with access.open() as cluster:
        find_topic(cluster, topic)
        sample = infer(sample_values(cluster, topic))
    if not sample.records:
        _say(f"{topic} has no records yet.")
        return None
    click.echo(f"Sampled {counted(sample.records, 'record')} of {topic}.")
    return sample


def _say(text: str) -> None:
    click.echo(f"{text} The columns are an example: change them.", err=True)
