"""All logins of a node: SASL requests in, an authenticated principal out.

Passwords are hashed off the loop. A refused client gets the same error after the same delay, whatever was wrong; the
reason is only in our own log. A session ends when its lifetime is over (KIP-368), and when its credential is changed
or removed or its token expires.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from millpond.base.errors import ErrorCode
from millpond.base.later import Later, done, failed
from millpond.broker.security.fair_queue import FairQueue
from millpond.broker.security.login import IllegalLoginState, Login, State
from millpond.broker.security.mechanisms import (
    OAUTHBEARER,
    PLAIN,
    Answer,
    Authenticated,
    Conversation,
    LoginRefused,
    OauthBearer,
    Plain,
    Said,
    Scram,
    TokenChecker,
)
from millpond.broker.security.recent_failures import RecentFailures
from millpond.config.listeners import ListenerSettings
from millpond.config.login import (
    CONNECTIONS_MAX_REAUTH_MS,
    FAILED_AUTHENTICATION_DELAY_MS,
    SASL_ENABLED_MECHANISMS,
    SASL_SERVER_MAX_RECEIVE_SIZE,
)
from millpond.config.security import of_listener
from millpond.metadata.records import (
    DelegationTokenRecord,
    Record,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from millpond.metadata.scram import MECHANISMS, Mechanism
from millpond.metadata.tokens import end_ms as token_end_ms
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.base.ports import Clock, Entropy, Workers
    from millpond.base.principal import Principal
    from millpond.base.settings import Settings
    from millpond.broker.requests.connection import Connection
    from millpond.broker.security.mechanisms import Directory

AGAIN_MS: Final = 100
"""The least time between two logins of a connection. Kafka has one second. librdkafka re-authenticates before its
session ends, so it would be refused where sessions are that short, and sends nothing more after that."""

FAREWELL_MS: Final = 1_000
"""How long a connection may still send responses after its credential was changed or removed."""

LIFETIME_MS_MAX: Final = 100 * 24 * 60 * 60 * 1000
"""The longest session, even if the credential is valid for longer."""

HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
AUTHENTICATE: Final = 36
BEFORE_LOGIN: Final = frozenset({HANDSHAKE, API_VERSIONS, AUTHENTICATE})
"""The only APIs served to an unauthenticated client."""

_LENGTH: Final = Struct(">i")


class Witness(Protocol):
    """Records successful and failed logins."""

    def logged_in(self, principal: Principal, host: str, listener: str, by: str) -> None: ...

    def not_logged_in(self, name: str | None, host: str, listener: str, by: str, reason: str) -> None: ...


class Doorkeeper(Protocol):
    """The part of `Connections` that logins use."""

    def identify(self, connection: Connection, principal: Principal | None) -> None: ...

    def __iter__(self) -> Iterator[Connection]: ...


class Logins:
    def __init__(
        self,
        *,
        clock: Clock,
        workers: Workers,
        entropy: Entropy,
        settings: Callable[[], Settings],
        listeners: Iterable[ListenerSettings],
        directory: Callable[[ListenerSettings], Directory],
        checker: Callable[[ListenerSettings], TokenChecker | None],
        connections: Doorkeeper,
        witness: Witness,
        node: Principal | None = None,
    ) -> None:
        """`node` is the node user: its sessions never expire, because nodes do not re-authenticate."""
        self._node = node
        self.queue: Final = FairQueue(workers)
        self.counts: Final[Counter[tuple[str, bool]]] = Counter()
        """Logins by mechanism and success."""
        self._failures = RecentFailures()
        self._clock = clock
        self._entropy = entropy
        self._settings = settings
        self._connections = connections
        self._witness = witness
        self._mechanisms = {
            each.name: self._mechanisms_of(each, directory(each), checker(each))
            for each in listeners
            if each.protocol.has_login
        }

    def _mechanisms_of(
        self, listener: ListenerSettings, directory: Directory, checker: TokenChecker | None
    ) -> Mapping[str, Callable[[], Conversation]]:
        makers: dict[str, Callable[[], Conversation]] = {PLAIN: partial(Plain, directory)}
        for label, mechanism in MECHANISMS.items():
            makers[label] = partial(self._scram, mechanism, directory)
        if checker is not None:
            makers[OAUTHBEARER] = partial(OauthBearer, checker)
        enabled = of_listener(self._settings(), listener.name, SASL_ENABLED_MECHANISMS)
        return {each: makers[each] for each in enabled if each in makers}

    def _scram(self, mechanism: Mechanism, directory: Directory) -> Scram:
        return Scram(mechanism, directory, f"{self._entropy.below(1 << 160):040x}")

    def login_at(self, listener: str) -> Login | None:
        """A new login for a connection to this listener; None when the listener has no SASL."""
        mechanisms = self._mechanisms.get(listener)
        return None if mechanisms is None else Login(mechanisms)

    # Requests of clients.

    def handshake(self, connection: Connection, mechanism: str, *, is_raw: bool) -> Later[m.SaslHandshakeResponse]:
        login = connection.login
        now_ms = self._clock.monotonic_ms()
        if login is None or (login.state is State.IN and now_ms - login.began_ms < AGAIN_MS):
            return done(m.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[]))
        offered = list(login.mechanisms)
        try:
            login.begin(mechanism, is_raw=is_raw)
        except LoginRefused as refused:
            response = m.SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered)
            return self._refuse(connection, mechanism, refused, response)
        login.began_ms = now_ms
        connection.must_log_in = True
        return done(m.SaslHandshakeResponse(error_code=ErrorCode.NONE, mechanisms=offered))

    def authenticate(self, connection: Connection, shown: bytes) -> Later[m.SaslAuthenticateResponse]:
        login = connection.login
        if login is None or login.state is State.IN:
            return done(
                m.SaslAuthenticateResponse(
                    error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="there is nothing to log in to now"
                )
            )
        mechanism = login.mechanism
        refusal = m.SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
            error_message=f"Authentication failed: invalid credentials with SASL mechanism {mechanism}",
        )

        def respond(said: Said) -> m.SaslAuthenticateResponse:
            lifetime_ms = self._take(connection, login, said)
            return m.SaslAuthenticateResponse(auth_bytes=said.text, session_lifetime_ms=lifetime_ms)

        return (
            self._hear(connection, login, shown)
            .map(respond)
            .map(done)
            .recover(LoginRefused, lambda refused: self._refuse(connection, mechanism, refused, refusal))
            .chain(lambda answered: answered)
        )

    def hear_raw(self, connection: Connection, shown: memoryview) -> None:
        """Process a SASL token that has no request header; the response has none either."""
        login = connection.login
        assert login is not None

        def respond(said: Said) -> bytes:
            self._take(connection, login, said)
            return said.text

        answered: Later[bytes] = (
            self._hear(connection, login, shown)
            .map(respond)
            .map(done)
            .recover(LoginRefused, lambda refused: self._refuse(connection, login.mechanism, refused, None))
            .chain(lambda answered: answered)
        )
        connection.reply_later(answered, lambda text: [_LENGTH.pack(len(text)) + text])

    def _hear(self, connection: Connection, login: Login, shown: bytes | memoryview) -> Later[Said]:
        most = self._settings()[SASL_SERVER_MAX_RECEIVE_SIZE]
        if len(shown) > most:
            # A connection that re-authenticates may send large frames, and tokens are parsed on the loop.
            return failed(LoginRefused(f"more than {SASL_SERVER_MAX_RECEIVE_SIZE.name}={most} bytes were shown"))
        try:
            answer = login.hear(bytes(shown))
        except LoginRefused as refused:
            return failed(refused)
        ready: Later[Answer] = answer if isinstance(answer, Later) else done(answer)
        return ready.chain(lambda answer: self._settle(connection, answer))

    def _settle(self, connection: Connection, answer: Answer) -> Later[Said]:
        if isinstance(answer, Said):
            return done(answer)
        return self.queue.run(_host(connection), answer.job).map(answer.then)

    def _take(self, connection: Connection, login: Login, said: Said) -> int:
        """Continue the login or complete it; return the session lifetime, 0 for unlimited."""
        who = said.authenticated
        if who is None:
            login.go_on()
            return 0
        lifetime_ms = self._lifetime_ms(who)
        login.let_in(who)
        login.stop_clock()
        self.counts[login.mechanism, True] += 1
        self._connections.identify(connection, who.principal)
        if lifetime_ms:
            self._expire_after(connection, login, lifetime_ms)
        listener = connection.link.listener
        self._witness.logged_in(who.principal, _host(connection), listener, login.mechanism)
        return lifetime_ms

    def _expire_after(self, connection: Connection, login: Login, lifetime_ms: int) -> None:
        login.expires_ms = self._clock.monotonic_ms() + lifetime_ms
        login.expiry = self._clock.call_later(lifetime_ms, lambda: _expire(connection))

    def _lifetime_ms(self, who: Authenticated) -> int:
        if who.is_node:
            return 0
        longest_ms = 0 if who.principal == self._node else self._settings()[CONNECTIONS_MAX_REAUTH_MS]
        if who.until_ms is None:
            return longest_ms
        left_ms = min(who.until_ms - self._clock.wall_ms(), LIFETIME_MS_MAX)
        if left_ms <= 0:
            raise LoginRefused("what was shown has expired", who.principal.name)
        return min(left_ms, longest_ms) if longest_ms else left_ms

    def _refuse(self, connection: Connection, mechanism: str, refused: LoginRefused, response: Any) -> Later[Any]:
        """Send the response, if there is one, after a delay and close the connection."""
        assert connection.login is not None
        connection.login.give_up()
        connection.must_log_in = True
        self.counts[mechanism if mechanism in MECHANISMS or mechanism in (PLAIN, OAUTHBEARER) else "", False] += 1
        listener = connection.link.listener
        self._witness.not_logged_in(refused.claimed, _host(connection), listener, mechanism, str(refused))
        answer: Later[Any] = Later()

        def end() -> None:
            if answer.ended:
                return
            if response is None:
                answer.fail(IllegalLoginState("a login was refused"))
                return
            answer.finish(response)
            connection.link.close()

        usual_ms = self._settings()[FAILED_AUTHENTICATION_DELAY_MS]
        self._clock.call_later(self._failures.wait_ms(_host(connection), usual_ms, self._clock.monotonic_ms()), end)
        return answer

    # Revoked credentials and tokens.

    def on_records(self, records: Sequence[Record]) -> Later[None]:
        """End the sessions whose credential or token was changed or removed."""
        if self._mechanisms:
            users = {
                (each.name, Mechanism(each.mechanism).label)
                for each in records
                if isinstance(each, UserScramCredentialRecord | RemoveUserScramCredentialRecord)
            }
            tokens = {each.token_id for each in records if isinstance(each, RemoveDelegationTokenRecord)}
            if users or tokens:
                self._end_sessions(users, tokens)
            ends = {each.token_id: token_end_ms(each) for each in records if isinstance(each, DelegationTokenRecord)}
            if ends:
                self._shorten_sessions(ends)
        return done(None)

    def _shorten_sessions(self, ends_ms: Mapping[str, int]) -> None:
        """Shorten sessions whose token now expires earlier: a session never outlives its token."""
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.wall_ms()
        for connection in list(self._connections):
            login = connection.login
            if login is None or login.was is None or not login.was.principal.by_token:
                continue
            end_ms = ends_ms.get(login.was.shown)
            if end_ms is None or login.expires_ms is None:
                continue
            left_ms = max(end_ms - wall_ms, 0)
            if now_ms + left_ms < login.expires_ms:
                login.stop_clock()
                self._expire_after(connection, login, left_ms)

    def _end_sessions(self, users: set[tuple[str, str]], tokens: set[str]) -> None:
        for connection in list(self._connections):
            login = connection.login
            if login is None or login.was is None or login.was.is_node or login.state is State.OVER:
                continue
            who = login.was
            gone = who.shown in tokens if who.principal.by_token else (who.principal.name, who.shown) in users
            if gone:
                login.give_up()
                connection.must_log_in = True
                # A user that changed its own password gets the response first.
                self._clock.call_later(FAREWELL_MS, connection.link.close)


def _expire(connection: Connection) -> None:
    """Serve nothing but a login from now on. The client knows its session lifetime."""
    connection.must_log_in = True


def _host(connection: Connection) -> str:
    return connection.link.peer.rpartition(":")[0]
