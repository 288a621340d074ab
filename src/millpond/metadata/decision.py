"""The result of deciding: the records to commit, and the reply that waits for them."""

from __future__ import annotations

from dataclasses import field
from typing import Final, Generic, TypeVar

from millpond.base.errors import ErrorCode, LimitMet, Refused
from millpond.base.values import dataclass
from millpond.metadata.records import Record

MESSAGE_LENGTH_MAX: Final = 500

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Decision(Generic[R_co]):
    """Nothing has changed yet: that happens when the records are committed and replayed."""

    records: tuple[Record, ...]
    reply: R_co


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one item of a request."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    limit_met: LimitMet | None = field(default=None, compare=False)
    """A cluster limit that was reached: it is logged for the operator."""

    @property
    def ok(self) -> bool:
        return self.code is ErrorCode.NONE

    @classmethod
    def of(cls, refused: Refused) -> Verdict:
        """A message may quote long input for each of many items: it is shortened."""
        limit_met = refused if isinstance(refused, LimitMet) else None
        return cls(refused.code, refused.message and refused.message[:MESSAGE_LENGTH_MAX], limit_met)


OK = Verdict()
