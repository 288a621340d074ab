"""Reads the file of a pipeline and reports its faults."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.cli.errors import Failed

if TYPE_CHECKING:
    from millpond.cli.access import Access
    from millpond.spark.pipelines.declaration import Pipeline


class Wrong(Failed):
    """The declaration is invalid. Exit code 2."""

    exit_code = 2


def load(file: Path) -> Pipeline:
    from millpond.spark.pipelines.declaration import DeclarationError, Pipeline

    try:
        return Pipeline.load(file)
    except DeclarationError as fault:
        raise Wrong(sentence(str(fault))) from None


def at_cluster(pipeline: Pipeline, access: Access) -> Pipeline:
    """A pipeline without brokers reads the cluster of the command's options or profile."""
    from millpond.remote.client_file import VARIABLE
    from millpond.remote.cluster import SETTINGS

    if access.client_file is not None:
        # Spark's source reads the file, including the login.
        os.environ[VARIABLE] = os.path.abspath(access.client_file)
    source = pipeline.source
    if source is None or source.bootstrap:
        return pipeline
    extras = {} if access.client_file is not None else access.extras
    options = {f"kafka.{name}": text for name, text in extras.items() if name in SETTINGS}
    return replace(pipeline, source=replace(source, bootstrap=access.servers(), options=options | source.options))


def sentence(text: str) -> str:
    """Adds a full stop, unless the text ends with punctuation or something to copy."""
    return text if text.endswith((".", "?", "!", "'", "`")) or "\n" in text else f"{text}."
