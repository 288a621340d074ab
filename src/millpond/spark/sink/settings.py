"""Kafka producer settings (`kafka.*`) that the sink supports."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from millpond.remote.writer import ACKS_ALL, BUFFER_BYTES, DELIVERY_SECONDS, IN_FLIGHT
from millpond.spark.options import OptionError
from millpond.wire.compression import CODEC_BY_NAME, CODEC_NAMES

LOG = logging.getLogger("millpond.spark")

BATCH_BYTES: Final = 512 << 10
"""Below the brokers' default limit for one batch, and large enough to be efficient."""

_ACKS: Final = {"all": ACKS_ALL, "-1": ACKS_ALL, "1": 1, "0": 1}


@dataclass(frozen=True, slots=True)
class WriteSettings:
    acks: int = ACKS_ALL
    codec: int = 0
    batch_bytes: int = BATCH_BYTES
    record_bytes_max: int | None = None
    buffer_bytes: int = BUFFER_BYTES
    in_flight: int = IN_FLIGHT
    delivery_seconds: float = DELIVERY_SECONDS


def write_settings(kafka: Mapping[str, str], *, exactly_once: bool) -> WriteSettings:
    """Settings with an effect; others such as `linger.ms` and `retries` are ignored."""
    return WriteSettings(
        acks=_acks(kafka.get("acks", "all"), exactly_once),
        codec=_codec(kafka.get("compression.type", "none")),
        batch_bytes=_number(kafka, "batch.size", BATCH_BYTES),
        record_bytes_max=_number(kafka, "max.request.size", 0) or None,
        buffer_bytes=_number(kafka, "buffer.memory", BUFFER_BYTES),
        in_flight=min(_number(kafka, "max.in.flight.requests.per.connection", IN_FLIGHT), IN_FLIGHT),
        delivery_seconds=_number(kafka, "delivery.timeout.ms", int(DELIVERY_SECONDS * 1000)) / 1000,
    )


def _acks(text: str, exactly_once: bool) -> int:
    acks = _ACKS.get(text.strip().lower())
    if acks is None:
        raise OptionError(f"option kafka.acks cannot be {text!r}: it is one of all, 1")
    if exactly_once and acks != ACKS_ALL:
        raise OptionError("delivery=exactly_once needs kafka.acks=all")
    if text.strip() == "0":
        LOG.warning("kafka.acks=0 counts as 1: a task that ends must know that its rows were taken")
    return acks


def _codec(text: str) -> int:
    codec = CODEC_BY_NAME.get(text.strip().lower())
    if codec is None:
        raise OptionError(f"option kafka.compression.type cannot be {text!r}: it is one of {', '.join(CODEC_NAMES)}")
    return codec


def _number(kafka: Mapping[str, str], name: str, default: int) -> int:
    text = kafka.get(name)
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) == 0:
        raise OptionError(f"option kafka.{name} cannot be {text!r}: it is a whole number above 0")
    return int(text)
