"""Lost records: an error or a warning, depending on failOnDataLoss."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.base.ids import NO_TOPIC_ID
from millpond.client.errors import ClientError, UnknownTopic

LOG = logging.getLogger("millpond.spark")

LOSS_TRIES: Final = 4
LOSS_PAUSE_SECONDS: Final = 0.25

T = TypeVar("T")

_ADVICE = (
    "To go on with what there is, set failOnDataLoss=false; to read all of it again, start with a new checkpoint. "
    "A longer retention.ms keeps records until a slow query comes for them."
)


class DataLost(ClientError):
    """Some records of the query are gone. The message names topic, partition and offsets."""


def may_be_gone(fault: ClientError) -> bool:
    """Whether the error means an unknown topic or partition. Only the metadata shows that it is gone."""
    return isinstance(fault, UnknownTopic) or fault.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def was_recreated(before: UUID, now: UUID) -> bool:
    """Whether the topic was recreated. Old clusters have no topic ids."""
    return NO_TOPIC_ID not in (before, now) and before != now


def confirm(look: Callable[[], T], is_whole: Callable[[T], bool]) -> T:
    """The result of `look`, repeated if something seems to be missing.

    Right after an election a leader may report a lower end than its log has, and a broker that was away may have
    outdated metadata.
    """
    for _ in range(LOSS_TRIES - 1):
        try:
            result = look()
        except ClientError as fault:
            if not may_be_gone(fault):
                raise
        else:
            if is_whole(result):
                return result
        time.sleep(LOSS_PAUSE_SECONDS)
    return look()


def report_loss(what: str, *, fails: bool) -> None:
    """Raise DataLost, or warn."""
    if fails:
        raise DataLost(f"records are lost: {what}. {_ADVICE}")
    LOG.warning("records are lost: %s. The query goes on, as failOnDataLoss=false asks.", what)
