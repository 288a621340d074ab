"""librdkafka as the tools use it: common settings, and its errors in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Final, Protocol

from millpond.base.values import dataclass

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer

    from millpond.admin.errors import Refused

ANSWER_SECONDS: Final = 15.0

COMMON: Final[Mapping[str, object]] = {
    "client.id": "millpond",
    "socket.timeout.ms": 10_000,
    "socket.connection.setup.timeout.ms": 5_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    # Errors are returned; librdkafka's log on standard error would only repeat them.
    "log_level": 0,
    "error_cb": lambda _: None,
}
"""Settings of every librdkafka client."""

_WORDS: Final = {
    "INVALID_RECORD": "the topic refuses the record; in a compacted topic each record needs a key (--key-separator).",
    "_TRANSPORT": "the connection was lost; is the node still running?",
    "_ALL_BROKERS_DOWN": "no broker can be reached; is the node still running?",
    "_TIMED_OUT": "no answer came in time; is the node still running?",
    "_MSG_TIMED_OUT": "the record was not acknowledged in time; `millpond status` shows the state of the nodes.",
    "MSG_SIZE_TOO_LARGE": "a record is too large; raise -X message.max.bytes and the topic's max.message.bytes.",
    "_UNSUPPORTED_FEATURE": "the cluster is too old for this command.",
    "_AUTHENTICATION": "the cluster refused the credentials; give others with --client-config FILE",
}
"""librdkafka's errors in words, with advice."""


def reason(error: KafkaError) -> str:
    """The reason of an error, in words; preferably the broker's own message."""
    own = _WORDS.get(error.name())
    if own is not None:
        return own
    text = str(error.str()).removeprefix("Broker: ") or str(error.name())
    return text if text.endswith((".", "?", "!")) else f"{text}."


def refused(what: str, error: KafkaError) -> Refused:
    """`what` could not be done, because of `error`."""
    # Every command imports this module at its start, but few get here.
    from millpond.admin.errors import Refused

    return Refused(f"{what}: {reason(error)}")


class ClientLibrary(Protocol):
    """Makes clients of one cluster."""

    def producer(self, settings: Mapping[str, object]) -> Producer: ...

    def consumer(self, settings: Mapping[str, object]) -> Consumer: ...


@dataclass(frozen=True, slots=True)
class PlainLibrary:
    """Clients with an address and further settings."""

    bootstrap: str
    extras: Mapping[str, str] = field(default_factory=dict, repr=False)

    def producer(self, settings: Mapping[str, object]) -> Producer:
        from confluent_kafka import KafkaException, Producer

        try:
            return Producer(self._all(settings))
        except KafkaException as refusal:
            raise refused("The client library refused a setting", refusal.args[0]) from None

    def consumer(self, settings: Mapping[str, object]) -> Consumer:
        from confluent_kafka import Consumer, KafkaException

        try:
            return Consumer(self._all(settings))
        except KafkaException as refusal:
            raise refused("The client library refused a setting", refusal.args[0]) from None

    def _all(self, settings: Mapping[str, object]) -> dict[str, object]:
        from millpond.remote.client_file import for_librdkafka

        return {**COMMON, "bootstrap.servers": self.bootstrap, **settings, **for_librdkafka(self.extras)}
