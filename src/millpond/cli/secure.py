"""`millpond up --secure`: a data folder that is secure from its first start on."""

from __future__ import annotations

import os
from collections.abc import Iterable

import click

from millpond.base.settings import Settings
from millpond.cli.addresses import shown_address
from millpond.cli.errors import Failed
from millpond.cli.folders import in_use, unusable
from millpond.cli.terminal import Row
from millpond.config.listeners import LISTEN_PROTOCOL, LISTENERS, listeners_of
from millpond.config.node import DATA_FOLDER, is_loopback
from millpond.log.names import SECURITY_FOLDER
from millpond.node.private_files import OpenToOthers
from millpond.node.secure_folder import (
    ADMIN,
    KCAT_SETTINGS,
    NODE_SETTINGS,
    PYTHON_SETTINGS,
    CannotSecure,
    SecureFolder,
    is_half_made,
    make_secure_folder,
    secure_folder,
)
from millpond.remote.errors import ConfigError


def make_secure(data: str, hosts: Iterable[str]) -> SecureFolder:
    from millpond.log.store import FolderInUse

    try:
        return make_secure_folder(data, hosts)
    except FolderInUse as fault:
        raise in_use(str(fault)) from None
    except CannotSecure as fault:
        raise Failed(f"The data folder {data} cannot be made secure: {fault}. Nothing was changed.") from None
    except OpenToOthers as fault:
        raise Failed(f"The data folder {data} is not safe: {fault}.") from None
    except OSError as error:
        raise unusable(data, error) from None


def secured(data: str) -> SecureFolder | None:
    """None for a node that is not secure. Raises Failed if its settings are missing: it must not start
    open to everyone."""
    if is_half_made(data):
        raise Failed(
            f"{data} belongs to a secure node, but {SECURITY_FOLDER}/{NODE_SETTINGS} is missing: put it back, or "
            "give --secure to create it again."
        )
    return secure_folder(data)


def check_asks(settings: Settings) -> None:
    """Raises Failed if other settings make a secure node open.

    It would print an admin's password and be open to everyone.
    """
    from millpond.broker.security.authorizer import asks_for_rights

    if not asks_for_rights(settings):
        raise Failed(
            f"{settings[DATA_FOLDER]} belongs to a secure node, but with the given settings (--set, "
            f"--config) no listener needs a login: leave out {LISTENERS.name} and {LISTEN_PROTOCOL.name}, or make "
            "one listener SASL_SSL, or SSL with ssl.client.auth=required."
        )


def warn_if_open(settings: Settings) -> None:
    """Warns on standard error about listeners without a login."""
    from millpond.broker.security.authorizer import asks_for_rights

    open_at = [shown_address(each.host, each.port) for each in listeners_of(settings) if not is_loopback(each.host)]
    if open_at and not asks_for_rights(settings):
        click.echo(
            f"Warning: {' and '.join(open_at)} has no login: anyone who can reach it can read, change and delete "
            "everything. Use --secure, or listen on 127.0.0.1; see `millpond help security`.",
            err=True,
        )


def node_texts(folder: SecureFolder) -> dict[str, str]:
    try:
        return folder.node_texts()
    except ConfigError as fault:
        raise Failed(f"{fault}.") from None


def first_secure_steps(folder: SecureFolder, bootstrap: str) -> list[Row]:
    """The rows of the panel; writes the address to the files for clients."""
    folder.tell_clients(bootstrap)
    # Not to the log of a service manager, which others may read.
    is_shown = folder.is_new and not os.environ.get("JOURNAL_STREAM")
    has_file = folder.password_file.exists() and not is_shown
    where = f"; the password is in {folder.password_file}" if has_file else ""
    rows: list[Row] = [("user", f"{ADMIN}, who may do everything{where}")]
    if is_shown:
        rows.append(("password", f"{folder.password()}  (shown this once)"))
    return [
        *rows,
        ("clients", f"export MILLPOND_CLIENT_CONFIG={folder.client_file}"),
        ("topic", "millpond topic create orders"),
        ("kcat", f"kcat -F {folder.path / KCAT_SETTINGS} -L"),
        ("python", f"the settings in {folder.path / PYTHON_SETTINGS}"),
    ]
