"""Reading the file of a pipeline, and saying what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from millpond.cli.errors import Failed

if TYPE_CHECKING:
    from millpond.spark.pipelines.declaration import Pipeline


class Wrong(Failed):
    """A declaration that cannot be: the file must be changed. Exit code 2."""

    exit_code = 2


def load(file: Path) -> Pipeline:
    from millpond.spark.pipelines.declaration import DeclarationError, Pipeline

    try:
        return Pipeline.load(file)
    except DeclarationError as fault:
        raise Wrong(sentence(str(fault))) from None


def sentence(text: str) -> str:
    """With a full stop, unless it ends in a sign or in something to copy."""
    return text if text.endswith((".", "?", "!", "'", "`")) or "\n" in text else f"{text}."
