"""SASL settings of a node. Names that Kafka also has mean the same here."""

from __future__ import annotations

from typing import Final

from millpond.base.settings import AnySetting, Setting, at_least, between, each_of, one_of

SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS: Final = ("PLAIN", *SCRAM, "OAUTHBEARER")
DAY_MS: Final = 24 * 60 * 60 * 1000

SASL_ENABLED_MECHANISMS = Setting(
    "sasl.enabled.mechanisms",
    SCRAM,
    "How clients of a SASL listener may log in. PLAIN shows the password to whoever can listen: only with SASL_SSL.",
    each_of(*MECHANISMS),
)
SASL_SERVER_MAX_RECEIVE_SIZE = Setting(
    "sasl.server.max.receive.size",
    64 << 10,
    "The largest request of a client that has not logged in.",
    between(1 << 10, 1 << 20),
    bits=32,
)
LOGIN_TIMEOUT_MS = Setting(
    "login.timeout.ms",
    10_000,
    "How long a client may take to log in, from the moment that it connects.",
    at_least(100),
    bits=32,
    live=True,
)
LOGIN_MAX_CONNECTIONS = Setting(
    "login.max.connections",
    1_000,
    "How many connections may be there that have not logged in. With one more the oldest of them has to go.",
    at_least(1),
    bits=32,
    live=True,
)
FAILED_AUTHENTICATION_DELAY_MS = Setting(
    "connection.failed.authentication.delay.ms",
    100,
    "How long a failed login waits for its answer; with many of them from one address within a minute it is longer.",
    between(0, 10_000),
    bits=32,
    live=True,
)
CONNECTIONS_MAX_REAUTH_MS = Setting(
    "connections.max.reauth.ms",
    0,
    "After so long a client has to log in again, on the same connection; 0 for never.",
    at_least(0),
    live=True,
)

SASL_MECHANISM_INTER_BROKER = Setting(
    "sasl.mechanism.inter.broker.protocol",
    "SCRAM-SHA-512",
    "How nodes log in to each other where their listener has a login.",
    one_of(*SCRAM),
)
INTER_BROKER_USERNAME = Setting(
    "inter.broker.sasl.username",
    "",
    "The user by whom nodes log in to each other. It needs no credentials in the metadata, and has to be one of "
    "`super.users`.",
)
INTER_BROKER_PASSWORD = Setting(
    "inter.broker.sasl.password", "", "The password of that user, the same on all nodes; better in a file."
)
INTER_BROKER_PASSWORD_FILE = Setting(
    "inter.broker.sasl.password.file", "", "A file with that password and nothing else, readable by the node alone."
)
INITIAL_USERS_FILE = Setting(
    "initial.users.file",
    "",
    "A file with the users that a cluster begins with, read until the first user is created and never again. "
    "`millpond up --secure` makes one "
    "(`security/initial.users`): a line has a name, a mechanism and what SCRAM keeps of a password, `alice "
    "SCRAM-SHA-512 salt=…,stored_key=…,server_key=…,iterations=8192`, in base 64. More users come by `millpond "
    "user`.",
)

DELEGATION_TOKEN_SECRET_KEY = Setting(
    "delegation.token.secret.key",
    "",
    "The secret by which delegation tokens are made and checked, the same on all nodes. Empty takes one that the "
    "nodes share since there are users.",
)
DELEGATION_TOKEN_MAX_LIFETIME_MS = Setting(
    "delegation.token.max.lifetime.ms",
    7 * DAY_MS,
    "How long a delegation token can live, however often it is renewed.",
    at_least(1),
)
DELEGATION_TOKEN_EXPIRY_TIME_MS = Setting(
    "delegation.token.expiry.time.ms",
    DAY_MS,
    "How long a delegation token lives when it is not renewed.",
    at_least(1),
)
DELEGATION_TOKEN_EXPIRY_CHECK_INTERVAL_MS = Setting(
    "delegation.token.expiry.check.interval.ms",
    3_600_000,
    "How often tokens that have had their time are forgotten.",
    at_least(100),
)

OAUTH_JWKS_URL = Setting(
    "sasl.oauthbearer.jwks.endpoint.url",
    "",
    "Where the keys are that signed the tokens of OAUTHBEARER (JWKS): an https or file URL.",
)
OAUTH_JWKS_REFRESH_MS = Setting(
    "sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000, "How often these keys are read anew.", at_least(1_000)
)
OAUTH_AUDIENCE = Setting(
    "sasl.oauthbearer.expected.audience",
    (),
    "The audiences (aud) a token may be for. Required unless `sasl.oauthbearer.unrestricted` is set.",
)
OAUTH_ISSUER = Setting(
    "sasl.oauthbearer.expected.issuer",
    "",
    "The issuer (iss) of the tokens. Required unless `sasl.oauthbearer.unrestricted` is set.",
)
OAUTH_UNRESTRICTED = Setting(
    "sasl.oauthbearer.unrestricted",
    False,
    "Accept tokens for any audience where no audience is set, and from any issuer where none is set: every token "
    "that the keys have signed, for whichever service, then logs in here.",
)
OAUTH_SUPER_USERS = Setting(
    "sasl.oauthbearer.super.users.enable",
    False,
    "Accept tokens that name one of `super.users`. The user of the nodes is never accepted by token.",
)
OAUTH_CLOCK_SKEW_SECONDS = Setting(
    "sasl.oauthbearer.clock.skew.seconds",
    30,
    "By how much the clock of whoever made a token may differ.",
    between(0, 3600),
    bits=32,
)
OAUTH_SUB_CLAIM = Setting("sasl.oauthbearer.sub.claim.name", "sub", "The claim that names the user.")

SECTION: Final[tuple[AnySetting, ...]] = (
    SASL_ENABLED_MECHANISMS,
    SASL_SERVER_MAX_RECEIVE_SIZE,
    LOGIN_TIMEOUT_MS,
    LOGIN_MAX_CONNECTIONS,
    FAILED_AUTHENTICATION_DELAY_MS,
    CONNECTIONS_MAX_REAUTH_MS,
    SASL_MECHANISM_INTER_BROKER,
    INTER_BROKER_USERNAME,
    INTER_BROKER_PASSWORD,
    INTER_BROKER_PASSWORD_FILE,
    INITIAL_USERS_FILE,
    DELEGATION_TOKEN_SECRET_KEY,
    DELEGATION_TOKEN_MAX_LIFETIME_MS,
    DELEGATION_TOKEN_EXPIRY_TIME_MS,
    DELEGATION_TOKEN_EXPIRY_CHECK_INTERVAL_MS,
    OAUTH_JWKS_URL,
    OAUTH_JWKS_REFRESH_MS,
    OAUTH_AUDIENCE,
    OAUTH_ISSUER,
    OAUTH_UNRESTRICTED,
    OAUTH_SUPER_USERS,
    OAUTH_CLOCK_SKEW_SECONDS,
    OAUTH_SUB_CLAIM,
)
