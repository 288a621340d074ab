"""Passes each frame to its API's handler and encodes the outcome: dispatches to the APIs in `apis/__init__.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from millpond.base.errors import Refused, RemoteError, TooManyItems
from millpond.base.later import Later, done, gather
from millpond.base.ports import Clock, ReplyPart
from millpond.base.principal import USER, Principal
from millpond.broker.audit.audit import CHANGE_APIS, OF_NODES
from millpond.broker.authentication.logins import API_VERSIONS, AUTHENTICATE, BEFORE_LOGIN, HANDSHAKE
from millpond.broker.forwarding.repeated_changes import RepeatedChanges
from millpond.broker.peers.controller_channel import forward_ms, say_instead
from millpond.broker.peers.peers import change_id_of
from millpond.broker.requests.call import Call, is_of_node
from millpond.broker.requests.connection import LaterReply
from millpond.broker.requests.replies import (
    Outcome,
    Response,
    encode_reply,
    encode_reply_in_steps,
    encoded,
    encoded_in_steps,
)
from millpond.broker.requests.request_counts import RequestCounts
from millpond.broker.security.login import IllegalLoginState
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import Indivisible, Pieces, weight
from millpond.config.node import MAX_REQUEST_ITEMS, MAX_REQUEST_PLAIN_BYTES, MAX_REQUEST_TOPICS
from millpond.wire import messages
from millpond.wire.header import NAMES, WITHOUT_SCHEMA, decode_request_header

if TYPE_CHECKING:
    from millpond.broker.context import Contexts
    from millpond.broker.loop.steps import Steps
    from millpond.broker.requests.connection import Connection
    from millpond.broker.security.quotas import Charge
    from millpond.wire.header import RequestHeader
    from millpond.wire.messages import Message

Encode = Callable[[Response], list[ReplyPart]]
AuditCallback = Callable[[Any], None]

LARGE_BYTES: Final = 1 << 20
"""Smaller requests skip the size check. A larger one without records is handled in slices however short its lists
are: names of 32 KB each take a few milliseconds per megabyte."""

AUDITED_APIS: Final = CHANGE_APIS | OF_NODES
"""The API keys that the audit log records."""

EARLY_MS_MAX: Final = 5_000
"""How long a request waits on a node that does not know its cluster yet; then the client should try another node."""


class UnanswerableRequest(RemoteError):
    """No response can be sent; the connection closes.

    The API key or version was never advertised, so that the shape of a response is unknown; or the request is too
    large; or this node does not know its cluster yet.
    """


class _Entry:
    """An API with its request class, which is built on first use to keep start-up short."""

    __slots__ = ("api", "decode")

    def __init__(self, api: Api) -> None:
        self.api = api
        self.decode: Callable[[memoryview, int, int, int], tuple[Any, int]] | None = None


class Dispatcher:
    def __init__(self, clock: Clock, load_apis: Callable[[], Iterable[Api]]) -> None:
        """`load_apis` returns the table of APIs, whose code is read at the first call."""
        self.clock = clock
        self._load_apis = load_apis
        self._entries: dict[int, _Entry] = {}
        self.requests = RequestCounts(clock)
        self._repeated_changes = RepeatedChanges(clock)
        self._knows_cluster = False

    def begin(self, contexts: Contexts) -> None:
        """Set the contexts of the handlers; no request is served before."""
        self._contexts = contexts
        self._node = contexts.node
        self._security = contexts.security
        self._metadata = contexts.metadata

    def load(self) -> None:
        """Import all APIs at the first call, which must come before the first request."""
        if self._entries:
            return
        self._entries |= {api.key: _Entry(api.bound(self._contexts)) for api in self._load_apis()}
        self.requests.serve(self._entries)

    def all_apis(self) -> Sequence[Api]:
        self.load()
        return [entry.api for entry in self._entries.values()]

    def find_api(self, key: int) -> Api | None:
        self.load()
        entry = self._entries.get(key)
        return None if entry is None else entry.api

    def handle(self, connection: Connection, frame: memoryview) -> None:
        """Serve one request. Raises RemoteError when the connection cannot go on."""
        if connection.must_log_in and self._is_login(connection, frame):
            return
        if self._knows_cluster and not self._security.quotas.is_on and len(frame) > 1:
            known = self._entries.get(frame[0] << 8 | frame[1])
            if known is not None and (short := known.api.short) is not None and short(connection, frame):
                self.requests.received[known.api.key] += 1
                return
        header = decode_request_header(frame)
        entry = self._entries.get(header.api_key)
        if entry is None:
            name = NAMES.get(header.api_key) or WITHOUT_SCHEMA.get(header.api_key, "an unknown API")
            raise UnanswerableRequest(f"{name} (API key {header.api_key}) is not served")
        api = entry.api
        version = header.api_version
        if not api.serves(version):
            connection.reply(
                self._refusal(api, version, frame[header.body_position :]), partial(encode_reply, header)
            )
            return
        if not self._knows_cluster and self._is_early(connection, header):
            connection.hold(frame, self._once_known())
            return
        if len(frame) > LARGE_BYTES and not api.has_records:
            self._check_size(api, len(frame))
        self.requests.received[header.api_key] += 1
        charge = self._charge(connection, api, header, frame) if self._security.quotas.is_on else None
        decode = entry.decode
        if decode is None:
            decode = entry.decode = getattr(messages, api.name + "Request").decode
        items_max = self._node.settings[MAX_REQUEST_ITEMS]
        arrived_us = connection.arrived_us
        meter = None if charge is None else charge.meter
        call = Call(connection, version, header.client_id, arrived_us, self._security.access, meter)
        if len(frame) > LARGE_BYTES and not api.has_records:
            self._begin_steps(api, call, header, frame, charge)
            return
        try:
            request, _ = decode(
                frame, version, header.body_position, items_max if items_max < api.at_once else api.at_once
            )
        except TooManyItems:
            if items_max <= api.at_once:
                raise
            self._begin_steps(api, call, header, frame, charge)
            return
        if api.lists is not None:
            self._check_count(api, request)
        if api.is_heavy is not None and api.is_heavy(call, request):
            self._begin_steps(api, call, header, frame, charge)
            return
        outcome = self._outcome(api, call, request)
        encode: Encode = partial(self._encode, header, arrived_us)
        if charge is not None:
            outcome = self._charged(connection, charge, outcome)
        if api.is_large is not None and isinstance(outcome, Later):
            outcome = outcome.chain(partial(self._encode_apart, api, call))
        if outcome is None:
            self.requests.on_answer(header.api_key, arrived_us)
        else:
            connection.reply(outcome, encode)

    def _outcome(self, api: Api, call: Call, request: Any) -> Outcome:
        if api.at_controller and is_of_node(call.client_id) and call.is_from_node:
            call.change_id = change_id_of(call.client_id)
            if call.change_id is not None:
                attempt = f"{call.change_id}-{call.piece_number}"
                return self._repeated_changes.once(attempt, partial(self._execute, api, call, request))
        return self._execute(api, call, request)

    def _execute(self, api: Api, call: Call, request: Any) -> Outcome:
        """Handle the parts of a request that the client is authorized for, and refuse the rest."""
        rights = api.rights
        screened = rights.screen(self._metadata, call, request) if call.access.is_on and rights.screen else None
        callback: AuditCallback | None = None
        if self._security.audit.is_on and api.key in AUDITED_APIS and not self._is_of_node_itself(api, call):
            callback = self._audit_callback(api, call, request if screened is None else screened.request)
        if screened is not None:
            outcome: Outcome = screened.served(partial(self._serve, api, call))
        elif api.at_controller:
            outcome = self._serve(api, call, request)
        else:
            # The most frequent case takes the direct path.
            outcome = api.handle(call, request)
        return outcome if callback is None else _audited(callback, outcome)

    def _is_of_node_itself(self, api: Api, call: Call) -> bool:
        """Whether the audit log skips a request from a node: the node that forwarded it has logged it already.

        A super user that poses as a node must not escape the audit log. If nodes have a user of their own, only that
        user counts as a node here; if they have none, forwarded requests are logged twice.
        """
        if not call.is_from_node:
            return False
        node = self._security.node_user
        if node is None:
            return api.key in OF_NODES
        return call.principal == Principal(USER, node.name)

    # Large requests: all work per item is spread over several turns of the loop.

    def _begin_steps(
        self, api: Api, call: Call, header: RequestHeader, frame: memoryview, charge: Charge | None
    ) -> None:
        frame = call.connection.lasting(frame)
        steps = self._handle_in_steps(api, call, header, frame, charge)
        call.connection.reply_in_steps(steps, frame, partial(self._on_step, charge))

    def _handle_in_steps(
        self, api: Api, call: Call, header: RequestHeader, frame: memoryview, charge: Charge | None
    ) -> Steps[list[ReplyPart] | LaterReply | None]:
        request = yield from self._decode_in_steps(api, header, frame)
        if api.lists is not None:
            self._check_count(api, request)
        if api.waits:
            prepared = None if api.prepare is None else api.prepare(call, request)
            if prepared is not None:
                yield prepared
            return self._later_reply(api, call, header, charge, self._outcome(api, call, request))
        applicable_pieces = (each for each in api.pieces if getattr(request, each.of[0]))
        response: Any = yield from self._serve_in_pieces(api, call, request, next(applicable_pieces, None))
        if response is None:
            self.requests.on_answer(api.key, call.arrived_us)
            return None
        if charge is not None:
            self._settle(call.connection, charge, response)
        self.requests.on_answer(api.key, call.arrived_us, response)
        parts = yield from encode_reply_in_steps(header, response)
        return parts

    def _later_reply(
        self, api: Api, call: Call, header: RequestHeader, charge: Charge | None, outcome: Outcome
    ) -> LaterReply:
        if charge is not None:
            outcome = self._charged(call.connection, charge, outcome)
        later = outcome if isinstance(outcome, Later) else done(outcome)
        if api.is_large is not None:
            later = later.chain(partial(self._encode_apart, api, call))
        return LaterReply(later, partial(self._encode, header, call.arrived_us))

    def _decode_in_steps(self, api: Api, header: RequestHeader, frame: memoryview) -> Steps[Any]:
        items_max = self._node.settings[MAX_REQUEST_ITEMS]
        most = items_max if api.pieces else min(items_max, api.whole_max)
        kind = messages.request_class(api.key)
        try:
            request, _ = yield from kind.decode_in_steps(frame, header.api_version, header.body_position, most)
        except TooManyItems:
            if most == items_max:
                raise
            raise Indivisible(
                f"{api.name} with more than {most} items in its lists, which are handled as one"
            ) from None
        return request

    def _serve_in_pieces(self, api: Api, call: Call, request: Any, pieces: Pieces | None) -> Steps[Any]:
        if pieces is None:
            cut: Iterable[tuple[Any, int]] = [(request, 0)]
            if api.pieces and weight(request) > api.whole_max:
                raise Indivisible(
                    f"{api.name} with more than {api.whole_max} items, and none of its lists can be split"
                )
        else:
            cut = pieces.cut(request, api.whole_max)
            call.is_piece = True
        asked: list[Later[Any]] = []
        shared_counts: list[int] = []
        for piece, shared_count in cut:
            prepared = None if api.prepare is None else api.prepare(call, piece)
            if prepared is not None:
                yield prepared
            call.piece_number = len(asked)
            outcome = self._outcome(api, call, piece)
            asked.append(outcome if isinstance(outcome, Later) else done(outcome))
            shared_counts.append(shared_count)
            is_forwarded = api.at_controller and not self._metadata.controller.is_active
            if is_forwarded or (pieces is not None and pieces.one_by_one):
                asked[-1] = done((yield asked[-1]))
            yield None
        answers = yield gather(asked)
        if len(answers) == 1 or answers[0] is None or pieces is None:
            return answers[0]
        return pieces.join(list(zip(answers, shared_counts, strict=True)))

    def _on_step(self, charge: Charge | None, took_us: int) -> None:
        if charge is not None:
            charge.take_step(took_us, self.clock.monotonic_us())

    def _audit_callback(self, api: Api, call: Call, request: Message | None) -> AuditCallback | None:
        """Writes the result to the audit log. None if the request was refused as a whole: that is logged already."""
        return None if request is None else self._security.audit.begin_change(call, api.key, api.name, request)

    def _charge(self, connection: Connection, api: Api, header: RequestHeader, frame: memoryview) -> Charge | None:
        """Charge the request to the client's quota, if it has one. Nodes have none."""
        if connection.may_be_node and is_of_node(header.client_id):
            return None
        quotas = self._security.quotas
        meter = quotas.meter_of(connection, header.client_id)
        if meter is None:
            return None
        return quotas.begin(meter, api.key, len(frame), changes_partitions=api.mutations is not None)

    def _charged(self, connection: Connection, charge: Charge, outcome: Outcome) -> Outcome:
        """The outcome; a client over its quota gets a throttle time and is muted for that long."""
        settle = partial(self._settle, connection, charge)
        if isinstance(outcome, Later):
            # Mute now, not at the response: the client may send requests without waiting for responses.
            wait_ms = self._security.quotas.wait_ms(charge)
            if wait_ms:
                connection.mute(wait_ms)
            return outcome.map(settle)
        settled: Outcome = settle(outcome)
        return settled

    def _settle(self, connection: Connection, charge: Charge, response: Any) -> Any:
        wait_ms = self._security.quotas.settle(charge, response)
        if wait_ms:
            connection.mute(wait_ms)
            if "throttle_time_ms" in getattr(response, "_names", ()):
                response.throttle_time_ms = wait_ms
        return response

    def _is_login(self, connection: Connection, frame: memoryview) -> bool:
        """Handle a login message without a header. Before a login, only the APIs that it needs are served."""
        if connection.login is not None and connection.login.takes_raw:
            if self._knows_cluster or self._metadata.lifecycle.knows_itself:
                self._security.logins.hear_raw(connection, frame)
            else:
                connection.hold(frame, self._once_known())
            return True
        api_key = decode_request_header(frame).api_key
        if api_key not in BEFORE_LOGIN:
            raise IllegalLoginState(f"{NAMES.get(api_key, 'an unknown API')} before a login")
        return False

    def _serve(self, api: Api, call: Call, request: Message) -> Outcome:
        mutations = None if call.meter is None else call.meter.mutations
        # The controller enforces this quota: see `ask_for_client`.
        if mutations is not None and api.mutations is not None and self._metadata.controller.is_active:
            screened = api.mutations.screen(self._node, self._metadata, call, mutations, request)
            if screened is not None:
                outcome: Outcome = screened.served(partial(self._serve_allowed, api, call))
                return outcome
        return self._serve_allowed(api, call, request)

    def _serve_allowed(self, api: Api, call: Call, request: Message) -> Outcome:
        if api.at_controller and not self._metadata.controller.is_active and not call.is_from_node:
            return self._forward(api, call, request)
        return api.handle(call, request)

    def _encode(self, header: RequestHeader, arrived_us: int, response: Response) -> list[ReplyPart]:
        self.requests.on_answer(header.api_key, arrived_us, response)
        return encode_reply(header, response)

    def _encode_apart(self, api: Api, call: Call, response: Any) -> Later[Any]:
        """Encode a large response on a worker, or in steps if it has file ranges."""
        if api.is_large is None or not api.is_large(response):
            return done(response)
        if api.has_ranges:
            return call.connection.run_in_turns(encoded_in_steps(response, call.version, lambda: call.is_wanted))
        return self._node.workers.run(lambda: encoded(response, call.version))

    def _is_early(self, connection: Connection, header: RequestHeader) -> bool:
        """Whether a client's request arrives before this node knows its cluster.

        The image is empty or out of date: topics and other nodes would seem not to exist. librdkafka forgets all
        brokers after an empty list, and cannot recover.
        """
        self._knows_cluster = self._metadata.lifecycle.knows_itself
        # Nodes can log in without the metadata; the credentials of all other users are in it.
        may_be_node = connection.may_be_node or header.api_key == AUTHENTICATE
        is_from_node = may_be_node and is_of_node(header.client_id)
        return not self._knows_cluster and header.api_key not in (API_VERSIONS, HANDSHAKE) and not is_from_node

    def _once_known(self) -> Later[None]:
        lifecycle = self._metadata.lifecycle

        def check(_: None) -> None:
            if not lifecycle.knows_itself:
                raise UnanswerableRequest("this node has not found most of the others yet")

        return self._metadata.once_shown(lambda: lifecycle.knows_itself, EARLY_MS_MAX).map(check)

    def ask(self, request: Message, version: int, change_id: str | None = None) -> Later[Any]:
        """Send a request of this node to its own handler, which answers as it would a client."""
        assert request.API_KEY is not None
        self.load()
        return self._ask(self._entries[request.API_KEY].api, Call(None, version, None, change_id=change_id), request)

    def _ask(self, api: Api, call: Call, request: Message) -> Later[Any]:
        outcome = api.handle(call, request)
        return outcome if isinstance(outcome, Later) else done(outcome)

    def _forward(self, api: Api, call: Call, request: Message) -> Later[Any]:
        """Forward to the controller. Without one, the local handler builds the response, which then gets the
        error."""
        if api.forward is None:
            here = partial(self._ask, api, call, request)
            answered = self._metadata.controller_channel.ask(request, call.version, forward_ms(request), here)
        else:
            answered = api.forward(call, request)

        def answer_here(refused: Refused) -> Later[Any]:
            def put_error(response: Any) -> Any:
                say_instead(response, refused)
                return response

            return self._ask(api, call, request).map(put_error)

        return answered.map(done).recover(Refused, answer_here).chain(lambda last: last)

    def report(self, connection: Connection, error: RemoteError) -> None:
        """Log that a delayed request closed its connection; for other requests the link logs it."""
        self._node.journal(
            "connection closed: a request could not be answered", peer=connection.link.peer, reason=error
        )

    def _check_size(self, api: Api, size: int) -> None:
        most = self._node.settings[MAX_REQUEST_PLAIN_BYTES]
        if size > most:
            raise UnanswerableRequest(
                f"{api.name} request of {size} bytes exceeds {MAX_REQUEST_PLAIN_BYTES.name} ({most})"
            )

    def _check_count(self, api: Api, request: Any) -> None:
        count = len(getattr(request, api.lists or "") or ())
        most = self._node.settings[MAX_REQUEST_TOPICS]
        if count > most:
            raise UnanswerableRequest(
                f"{api.name} request with {count} topics or resources exceeds {MAX_REQUEST_TOPICS.name} ({most})"
            )

    def _refusal(self, api: Api, version: int, body: memoryview) -> Response:
        low, high = api.advertised or (0, version)
        if api.refuse is not None and low <= version <= high:
            return api.refuse(version, body)
        low, high = api.versions
        raise UnanswerableRequest(f"{api.name} version {version} is not served, only {low} to {high}")


def _audited(callback: AuditCallback, outcome: Outcome) -> Outcome:
    """The outcome, which is written to the audit log in any case.

    A request is carried out even if its client disconnects. The connection can cancel only the returned `Later`: the
    original one runs to its end and is logged.
    """
    if not isinstance(outcome, Later):
        callback(outcome)
        return outcome
    answer: Later[Any] = Later()

    def use(response: Any) -> None:
        callback(response)
        answer.finish(response)

    outcome.then(use, answer.fail)
    return answer
