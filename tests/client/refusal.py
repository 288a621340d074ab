"""What librdkafka says of a record that failed."""

from __future__ import annotations


class Refusal:
    """Of one that came too late."""

    def name(self) -> str:
        return "_MSG_TIMED_OUT"

    def str(self) -> str:
        return "too late"

    def code(self) -> int:
        return -192

    def retriable(self) -> bool:
        return True
