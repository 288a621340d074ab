"""From a frame to its handler and from the handler's outcome to bytes: the one table of APIs and versions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from millpond.base.errors import Refused, RemoteError
from millpond.base.later import Later, done
from millpond.base.ports import Clock, ReplyPart
from millpond.broker.apis import APIS
from millpond.broker.links.to_controller import forward_ms, say_instead
from millpond.broker.serving.api import Api
from millpond.broker.serving.call import Call, is_of_node
from millpond.broker.serving.replies import Outcome, Response, encode_reply
from millpond.broker.serving.request_counts import RequestCounts
from millpond.config.node import MAX_REQUEST_ITEMS, MAX_REQUEST_TOPICS
from millpond.wire import messages
from millpond.wire.header import NAMES, WITHOUT_SCHEMA, decode_request_header

if TYPE_CHECKING:
    from millpond.broker.services import Services
    from millpond.broker.serving.connection import Connection
    from millpond.wire.header import RequestHeader
    from millpond.wire.messages import Message

API_VERSIONS: Final = 18

EARLY_MS_MAX: Final = 5_000
"""So long a client waits for a node that does not know its cluster yet; then it had better look for another one."""


class UnservedRequest(RemoteError):
    """A key or version that was never advertised: the reply's shape is unknown, so the connection ends."""


class _Entry:
    """An API with its request class, which is built on first use to keep start-up short."""

    __slots__ = ("api", "decode")

    def __init__(self, api: Api) -> None:
        self.api = api
        self.decode: Callable[[memoryview, int, int, int], tuple[Any, int]] | None = None


class Dispatcher:
    def __init__(self, broker: Services, clock: Clock) -> None:
        self.clock = clock
        self._broker = broker
        self.apis = APIS
        self._entries = {api.key: _Entry(api) for api in APIS}
        self.requests = RequestCounts(clock, self._entries)
        self._knows_cluster = False

    def handle(self, connection: Connection, frame: memoryview) -> None:
        """Serve one request. Raises RemoteError when the connection cannot go on."""
        header = decode_request_header(frame)
        entry = self._entries.get(header.api_key)
        if entry is None:
            name = NAMES.get(header.api_key) or WITHOUT_SCHEMA.get(header.api_key, "an unknown API")
            raise UnservedRequest(f"{name} (API key {header.api_key}) is not served")
        api = entry.api
        version = header.api_version
        if not api.serves(version):
            connection.reply(
                self._refusal(api, version, frame[header.body_position :]), partial(encode_reply, header)
            )
            return
        if not self._knows_cluster and self._is_early(header):
            connection.hold(frame, self._once_known())
            return
        self.requests.received[header.api_key] += 1
        if api.quick is not None and api.quick(self._broker, connection, header, frame):
            return
        decode = entry.decode
        if decode is None:
            decode = entry.decode = getattr(messages, api.name + "Request").decode
        request, _ = decode(frame, version, header.body_position, self._broker.settings[MAX_REQUEST_ITEMS])
        if api.lists is not None:
            self._check_count(api, request)
        arrived_us = connection.arrived_us
        call = Call(connection, version, header.client_id, arrived_us)
        if api.at_controller and not self._broker.controller.is_active and not call.is_from_node:
            outcome: Outcome = self._forward(api, call, request)
        else:
            outcome = api.handle(self._broker, call, request)
        if outcome is None:
            self.requests.on_answer(header.api_key, arrived_us)
        else:
            connection.reply(outcome, partial(self._encode, header, arrived_us))

    def _encode(self, header: RequestHeader, arrived_us: int, response: Response) -> list[ReplyPart]:
        self.requests.on_answer(header.api_key, arrived_us, response)
        return encode_reply(header, response)

    def _is_early(self, header: RequestHeader) -> bool:
        """Whether a client asks a node that has been started and has yet to hear of its cluster.

        Its image is empty or old: topics, and the other nodes, would seem not to exist. librdkafka forgets all nodes
        when it is told of none, and asks nobody any more.
        """
        self._knows_cluster = self._broker.lifecycle.knows_itself
        return not self._knows_cluster and header.api_key != API_VERSIONS and not is_of_node(header.client_id)

    def _once_known(self) -> Later[None]:
        lifecycle = self._broker.lifecycle

        def check(_: None) -> None:
            if not lifecycle.knows_itself:
                raise UnservedRequest("this node has not found most of the others yet")

        return self._broker.once_shown(lambda: lifecycle.knows_itself, EARLY_MS_MAX).map(check)

    def ask(self, request: Message, version: int) -> Later[Any]:
        """What this node asks of itself: the handler answers it as it would answer a client."""
        assert request.API_KEY is not None
        return self._ask(self._entries[request.API_KEY].api, Call(None, version, None), request)

    def _ask(self, api: Api, call: Call, request: Message) -> Later[Any]:
        outcome = api.handle(self._broker, call, request)
        return outcome if isinstance(outcome, Later) else done(outcome)

    def _forward(self, api: Api, call: Call, request: Message) -> Later[Any]:
        """The controller answers; where none can be had our own handler does, and says so in the right shape."""
        if api.forward is None:
            answered = self._broker.to_controller.ask(request, call.version, forward_ms(request))
        else:
            answered = api.forward(self._broker, call, request)

        def answer_here(refused: Refused) -> Later[Any]:
            def tell(response: Any) -> Any:
                say_instead(response, refused)
                return response

            return self._ask(api, call, request).map(tell)

        return answered.map(done).recover(Refused, answer_here).chain(lambda last: last)

    def report(self, connection: Connection, error: RemoteError) -> None:
        """A connection ends by a request that was not answered at once: say so, as its link does of others."""
        self._broker.journal(
            "connection closed: a request could not be answered", peer=connection.link.peer, reason=error
        )

    def _check_count(self, api: Api, request: Any) -> None:
        count = len(getattr(request, api.lists or "") or ())
        most = self._broker.settings[MAX_REQUEST_TOPICS]
        if count > most:
            raise UnservedRequest(f"{api.name} names {count} topics or resources, at most {most} are served at once")

    def _refusal(self, api: Api, version: int, body: memoryview) -> Response:
        if api.refuse is not None:
            return api.refuse(self._broker, version, body)
        low, high = api.versions
        raise UnservedRequest(f"{api.name} version {version} is not served, only {low} to {high}")
