"""Why records are given up: what a member says about it, or what is known without it."""

from __future__ import annotations

from typing import Final

from millpond.broker.shares.verdicts import AcknowledgeType
from millpond.coordinators.shares.state_batches import Failure

ERROR_TYPE_BYTES_MAX: Final = 200
ERROR_MESSAGE_BYTES_MAX: Final = 1_000
"""Longer texts of members are cut. The window and the share coordinator keep them until the letter is written."""

DETAILED_MAX: Final = 250
"""While more records than this wait for their letters, only the types of further errors are kept, and shorter."""
SHORT_TYPE_BYTES: Final = 60

REJECTED: Final = Failure("Rejected", "")
EXHAUSTED: Final = Failure("DeliveryLimitReached", "")
"""Without a message, because there may be thousands: `described` has it."""


def given_failure(error_type: str, error_message: str) -> Failure | None:
    """The error of an acknowledgement; None if it has none."""
    if not error_type and not error_message:
        return None
    return Failure(_cut(error_type, ERROR_TYPE_BYTES_MAX), _cut(error_message, ERROR_MESSAGE_BYTES_MAX))


def failure_of(kind: AcknowledgeType, given: Failure | None, waiting: int) -> Failure:
    """What to keep of a record that is given up while so many others wait for their letters."""
    if given is None:
        return REJECTED if kind is AcknowledgeType.REJECT else EXHAUSTED
    return given if waiting < DETAILED_MAX else Failure(_cut(given.error_type, SHORT_TYPE_BYTES), "")


def described(failure: Failure | None, deliveries: int) -> Failure:
    """The error of a dead letter."""
    if failure is None or failure == REJECTED:
        return Failure(REJECTED.error_type, "rejected by a member of the share group")
    if failure == EXHAUSTED:
        return Failure(EXHAUSTED.error_type, f"delivered {deliveries} times without being accepted")
    return failure


def _cut(text: str, bytes_max: int) -> str:
    """The beginning of a text, without half a character."""
    if len(text) * 4 <= bytes_max:
        return text
    return text.encode(errors="replace")[:bytes_max].decode(errors="ignore")
