"""Records that were to be read and are gone: an error that says what to do, or a warning, as failOnDataLoss says."""

from __future__ import annotations

import logging

from millpond.base.errors import ErrorCode
from millpond.client.errors import ClientError, UnknownTopic

LOG = logging.getLogger("millpond.spark")

_ADVICE = (
    "To go on with what there is, set failOnDataLoss=false; to read all of it anew, start with a new checkpoint. "
    "A longer retention.ms keeps records until a slow query comes for them."
)


class DataLost(ClientError):
    """Some records of the query are gone. The text names topic, partition and offsets."""


def is_topic_gone(fault: ClientError) -> bool:
    """Whether the cluster does not know the topic or partition."""
    return isinstance(fault, UnknownTopic) or fault.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def report_loss(what: str, *, fails: bool) -> None:
    """Raise DataLost, or warn."""
    if fails:
        raise DataLost(f"records are lost: {what}. {_ADVICE}")
    LOG.warning("records are lost: %s. The query goes on, as failOnDataLoss=false asks.", what)
