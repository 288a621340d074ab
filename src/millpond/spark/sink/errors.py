"""What can be wrong with a write, in words that say what to do."""

from __future__ import annotations

from millpond.client.errors import ClientError


class SinkError(ClientError):
    """The rows cannot be written as they are."""


class BatchNotWritten(SinkError):
    """Nothing of this batch counts yet, or not all of it. The query starts it again when it is restarted."""


class BatchTorn(SinkError):
    """Part of a batch is in the topic and the rest cannot be added any more without doubling or losing rows."""


class WriteTaken(SinkError):
    """What this write calls itself stands for another one, which is in the topic."""
