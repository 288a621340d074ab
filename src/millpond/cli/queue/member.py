"""One member of a share group, for `queue receive`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from millpond.base.resource import Closable
from millpond.cli.access import Access
from millpond.cli.errors import Failed, sentence
from millpond.remote.cluster import SETTINGS
from millpond.remote.errors import ClientError
from millpond.remote.shares.held_record import HeldRecord, Verdict
from millpond.remote.shares.share_consumer import ShareConsumer

ANSWER_SECONDS: Final = 30.0
CLOSE_SECONDS: Final = 10.0

WORDS: Final = {Verdict.ACCEPT: "accepted", Verdict.RELEASE: "released", Verdict.REJECT: "rejected"}


class QueueMember(Closable):
    """Receives records, and acknowledges them all at once."""

    def __init__(self, access: Access, group: str, topic: str) -> None:
        settings = {name: value for name, value in access.extras.items() if name in SETTINGS}
        with _failing():
            self._consumer = ShareConsumer(
                {**settings, "bootstrap.servers": access.servers()}, group, [topic], renews=False
            )
        self._held: list[HeldRecord] = []

    def receive(self, records_max: int, seconds: float) -> list[HeldRecord]:
        """Up to this many records, as soon as there is one, within this time."""
        assert not self._held, "not acknowledged yet"
        with _failing():
            self._held = self._consumer.receive(records_max, seconds)
        return self._held

    def acknowledge(self, verdict: Verdict) -> None:
        """Fails if the cluster does not confirm it: these records may be delivered again."""
        held, self._held = self._held, []
        error_type = "rejected" if verdict is Verdict.REJECT else ""
        with _failing():
            answers = [self._consumer.acknowledge(each, verdict, error_type=error_type) for each in held]
            for each, answer in zip(held, answers, strict=True):
                try:
                    answer.result(ANSWER_SECONDS)
                except TimeoutError:
                    where = f"Offset {each.record.offset} of {each.partition.folder}"
                    raise Failed(
                        f"{where} may not be {WORDS[verdict]}: no answer within {ANSWER_SECONDS:g} s."
                    ) from None

    def close(self) -> None:
        """Leaves the group; what is still held goes to other members."""
        self._consumer.close(CLOSE_SECONDS)


@contextmanager
def _failing() -> Iterator[None]:
    """Errors of the client become failures of the command."""
    try:
        yield
    except ClientError as fault:
        raise Failed(sentence(str(fault))) from fault
