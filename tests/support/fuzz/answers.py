"""Checks that each response was requested and can be decoded, and learns values from it."""

from __future__ import annotations

import struct
from collections import deque
from typing import Any

from millpond.base.errors import MalformedMessage
from millpond.wire import messages
from millpond.wire.header import decode_request_header, decode_response_header
from millpond.wire.notation import Struct
from millpond.wire.runtime import FIXED
from support.fuzz.pools import Pools
from support.fuzz.watch import Found

LENGTH = struct.Struct(">i")
PRODUCE, SASL_HANDSHAKE, API_VERSIONS = 0, 17, 18
ITEMS_LOOKED_AT = 3
LONG_BYTES = 3_000
LONG_READ_SHARE = 8
"""Of longer responses only one in this many is read to its end: they are lists of similar items."""

TEXT_LEARNT_MAX = 200

Asked = tuple[int, int, int]
"""Key, version and correlation id."""

Signature = tuple[Any, ...]
"""A rough description of a request's outcome: a request with a new one is worth keeping."""


class Answers:
    """The responses of one connection, in request order."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._asked: deque[Asked] = deque()
        self._rest = b""
        self.is_judged = True
        """False once the request stream is noise: what was requested is then unknown."""
        self.signatures: list[Signature] = []
        self.count = 0

    def ask(self, frame: bytes) -> None:
        try:
            header = decode_request_header(frame)
        except MalformedMessage:
            return
        if header.api_key == SASL_HANDSHAKE and header.api_version == 0:
            # What follows has no header, and neither have its responses.
            self.is_judged = False
        self._asked.append((header.api_key, header.api_version, header.correlation_id))

    def take(self, data: bytes) -> None:
        data = self._rest + data
        at = 0
        while len(data) - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(data, at)
            if length < LENGTH.size:
                raise Found(f"an answer of {length} bytes")
            end = at + LENGTH.size + length
            if end > len(data):
                break
            self.count += 1
            if self.is_judged:
                self._judge(data[at + LENGTH.size : end])
            at = end
        self._rest = data[at:]

    def _judge(self, reply: bytes) -> None:
        (number,) = LENGTH.unpack_from(reply)
        skipped: list[Asked] = []
        while self._asked and self._asked[0][2] != number:
            skipped.append(self._asked.popleft())
        # Only a produce request with acks=0 has no response.
        if not self._asked or any(key != PRODUCE for key, _, _ in skipped):
            raise Found(f"an answer to nobody: number {number}, unanswered before it {skipped[:5]}")
        key, version, _ = self._asked.popleft()
        cls = messages.response_class(key)
        if not cls._schema.versions.has(version):
            # Only these two reject an unsupported version with a response in another version.
            if key not in (PRODUCE, API_VERSIONS):
                raise Found(f"a response to API {key} version {version}, which does not exist")
            if key == PRODUCE:
                return
            version = 0
        if len(reply) > LONG_BYTES and number % LONG_READ_SHARE:
            return
        try:
            _, position = decode_response_header(reply, key, version)
            value, end = cls.decode(reply, version, position)
        except MalformedMessage as error:
            raise Found(f"an answer that cannot be read: {error}") from error
        if end != len(reply):
            raise Found(f"{len(reply) - end} bytes follow the answer to API {key} version {version}")
        errors: set[int] = set()
        self._look(value, messages.response_class(key)._schema.root, errors)
        self.signatures.append((key, version, *sorted(errors)))

    def _look(self, value: Any, struct_: Struct, errors: set[int]) -> None:
        codes, learnt, inner = _plan_of(struct_)
        for name in codes:
            errors.add(getattr(value, name))
        for name in learnt:
            result = getattr(value, name)
            if result.__class__ is list:
                result = result[0] if result else None
            if result is not None and (result.__class__ is not str or len(result) < TEXT_LEARNT_MAX):
                self._pools.learn(name, result)
        for name, held in inner:
            items = getattr(value, name)
            if items.__class__ is list:
                for item in items[:ITEMS_LOOKED_AT]:
                    self._look(item, held, errors)
            elif items is not None:
                self._look(items, held, errors)


_Plan = tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, Struct], ...]]
_plans: dict[int, _Plan] = {}


def _plan_of(struct_: Struct) -> _Plan:
    plan = _plans.get(id(struct_))
    if plan is None:
        fields = struct_.fields
        codes = tuple(each.name for each in fields if each.name.endswith("error_code"))
        simple = (*FIXED, "string", "bytes")
        learnt = tuple(
            each.name
            for each in fields
            if each.type in simple
            and each.name not in codes
            and not each.name.endswith(("_message", "throttle_time_ms"))
        )
        inner = tuple((each.name, each.struct) for each in fields if each.struct is not None)
        plan = _plans[id(struct_)] = (codes, learnt, inner)
    return plan
