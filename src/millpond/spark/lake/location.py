"""A table's location: a local folder, or a URL with object store options."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow.fs import FileSystem

STAGING_FOLDER = "_millpond_staging"


def path_in_log(written: str) -> str:
    """A file's path in the table's folder, from its URL-encoded form in the log."""
    return unquote(written)


@dataclass(frozen=True)
class Location:
    uri: str
    """An absolute path for a local folder, else a URL."""
    storage: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, path: str, storage: Mapping[str, str] | None = None) -> Location:
        """The location for `path`: relative paths and file: URLs become absolute paths."""
        if path.startswith("file:"):
            path = unquote(urlsplit(path).path)
        uri = path.rstrip("/") if "://" in path else os.path.abspath(path)
        return cls(uri, tuple(sorted((storage or {}).items())))

    @property
    def is_local(self) -> bool:
        return "://" not in self.uri

    def table(self) -> DeltaTable | None:
        """The table at its newest version; None if it does not exist."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self.uri, storage_options=dict(self.storage) or None)
        except TableNotFoundError:
            return None

    def files(self) -> FileSystem:
        """The files in the table's folder, by relative path."""
        from pyarrow.fs import LocalFileSystem, PyFileSystem, SubTreeFileSystem

        if self.is_local:
            return SubTreeFileSystem(self.uri, LocalFileSystem())
        # The same store and options as for the log, so that either both work or neither.
        from deltalake.fs import DeltaStorageHandler

        return PyFileSystem(DeltaStorageHandler(self.uri, dict(self.storage)))

    def make_folder(self, path: str) -> None:
        """Object stores have no folders."""
        if self.is_local:
            os.makedirs(os.path.join(self.uri, path), exist_ok=True)

    def remove(self, paths: Iterable[str]) -> None:
        """Delete files that may already be gone."""
        files = self.files()
        for path in paths:
            try:
                files.delete_file(path)
            except FileNotFoundError:
                continue

    def remove_folder(self, path: str) -> None:
        """Delete a folder, if it exists, with its contents."""
        try:
            self.files().delete_dir(path)
        except FileNotFoundError:
            return
