"""The name of a profile on the command line, which a shell completes."""

from __future__ import annotations

from collections.abc import Iterable

import click

from millpond.cli.completion.name import Name


class ProfileName(Name):
    def candidates(self, ctx: click.Context, incomplete: str) -> Iterable[str]:
        from millpond.cli.profile.file import read_profiles

        try:
            return read_profiles().by_name
        except click.ClickException:
            return []
