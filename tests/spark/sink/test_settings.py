"""Settings of Kafka producers in the sink."""

from __future__ import annotations

import pytest

from millpond.spark.options import OptionError
from millpond.spark.sink.settings import WriteSettings, write_settings
from millpond.wire.compression import LZ4


def test_supported_settings_are_used_and_others_ignored() -> None:
    given = {
        "acks": "1",
        "compression.type": "lz4",
        "batch.size": "1000",
        "max.request.size": "2000",
        "buffer.memory": "3000",
        "delivery.timeout.ms": "4500",
        "max.in.flight.requests.per.connection": "9",
        "linger.ms": "5",
        "retries": "3",
    }
    assert write_settings(given, exactly_once=False) == WriteSettings(1, LZ4, 1000, 2000, 3000, 5, 4.5)
    assert write_settings({}, exactly_once=True) == WriteSettings()


def test_no_acknowledgement_counts_as_one(caplog: pytest.LogCaptureFixture) -> None:
    assert write_settings({"acks": "0"}, exactly_once=False).acks == 1
    assert "counts as 1" in caplog.text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"acks": "2"}, "kafka.acks cannot be '2'"),
        ({"compression.type": "lzma"}, "kafka.compression.type cannot be 'lzma': it is one of none, gzip"),
        ({"batch.size": "0"}, "kafka.batch.size cannot be '0'"),
        ({"delivery.timeout.ms": "1m"}, "kafka.delivery.timeout.ms cannot be '1m'"),
    ],
)
def test_invalid_settings_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        write_settings(given, exactly_once=False)


def test_exactly_once_needs_all_acknowledgements() -> None:
    with pytest.raises(OptionError, match=r"needs kafka\.acks=all"):
        write_settings({"acks": "1"}, exactly_once=True)
