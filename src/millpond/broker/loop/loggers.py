"""The level of the node's one logger, `root`, as Kafka's tools describe and alter it.

Every level includes what an operator should know. DEBUG adds connections and refused batches. The level is reset
when the node restarts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millpond.base.errors import ErrorCode, Refused
from millpond.base.settings import Setting
from millpond.base.words import quoted
from millpond.config.effective import Effective, Layer, Source
from millpond.metadata.configs import ConfigChange, Operation

ROOT: Final = "root"
LEVELS: Final = ("FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE")
DETAILED: Final = ("DEBUG", "TRACE")


class Loggers:
    def __init__(self) -> None:
        self._level = "INFO"

    @property
    def are_detailed(self) -> bool:
        return self._level in DETAILED

    def settings(self) -> list[Effective]:
        about = f"Log level: {', '.join(LEVELS)}. DEBUG adds connections and refused batches."
        setting = Setting(ROOT, "INFO", about)
        return [Effective(setting, (Layer(ROOT, self._level, self._level, Source.DYNAMIC_BROKER_LOGGER),))]

    def change(self, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
        """Set all levels, or none if one of them is refused."""
        if len({change.name for change in changes}) < len(changes):
            raise Refused(ErrorCode.INVALID_REQUEST, "a logger appears more than once in the request")
        for change in changes:
            _check(change)
        if not validate_only:
            for change in changes:
                self._level = (change.value or "").upper()


def _check(change: ConfigChange) -> None:
    if change.name != ROOT:
        raise Refused(ErrorCode.INVALID_CONFIG, f"there is no logger {quoted(change.name)}, only {ROOT!r}")
    if change.operation != Operation.SET:
        raise Refused(ErrorCode.INVALID_REQUEST, f"the level of {ROOT!r} can only be set")
    if (change.value or "").upper() not in LEVELS:
        raise Refused(
            ErrorCode.INVALID_CONFIG, f"{quoted(change.value or '')} is no level: use one of {', '.join(LEVELS)}"
        )
