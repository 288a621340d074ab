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
    "The SASL mechanisms that clients may use. PLAIN sends the password unencrypted, so use it only with SASL_SSL.",
    each_of(*MECHANISMS),
)
SASL_SERVER_MAX_RECEIVE_SIZE = Setting(
    "sasl.server.max.receive.size",
    64 << 10,
    "The maximum size of a request before the client has logged in.",
    between(1 << 10, 1 << 20),
    bits=32,
)
LOGIN_TIMEOUT_MS = Setting(
    "login.timeout.ms",
    10_000,
    "How long a client may take to log in after connecting.",
    at_least(100),
    bits=32,
    live=True,
)
LOGIN_MAX_CONNECTIONS = Setting(
    "login.max.connections",
    1_000,
    "The maximum number of connections that have not logged in. Above it, the oldest one is closed.",
    at_least(1),
    bits=32,
    live=True,
)
FAILED_AUTHENTICATION_DELAY_MS = Setting(
    "connection.failed.authentication.delay.ms",
    100,
    "How long to delay the response to a failed login. The delay grows with repeated failures from one address "
    "within a minute.",
    between(0, 10_000),
    bits=32,
    live=True,
)
CONNECTIONS_MAX_REAUTH_MS = Setting(
    "connections.max.reauth.ms",
    0,
    "Clients must log in again on the same connection after this time; 0 means never.",
    at_least(0),
    live=True,
)

SASL_MECHANISM_INTER_BROKER = Setting(
    "sasl.mechanism.inter.broker.protocol",
    "SCRAM-SHA-512",
    "The mechanism that nodes use to log in to each other, if their listener uses SASL.",
    one_of(*SCRAM),
)
INTER_BROKER_USERNAME = Setting(
    "inter.broker.sasl.username",
    "",
    "The user as which nodes log in to each other. It needs no credentials in the metadata, but must be one of "
    "`super.users`.",
)
INTER_BROKER_PASSWORD = Setting(
    "inter.broker.sasl.password",
    "",
    "The password of `inter.broker.sasl.username`, the same on all nodes. Preferably, put it in a file.",
)
INTER_BROKER_PASSWORD_FILE = Setting(
    "inter.broker.sasl.password.file", "", "A file that contains only that password, readable only by the node."
)
INITIAL_USERS_FILE = Setting(
    "initial.users.file",
    "",
    "A file with the first users of a cluster, read until the first user is created and never again. `millpond up "
    "--secure` writes one (`security/initial.users`). Each line has a name, a mechanism and the SCRAM credential "
    "in base64: `alice SCRAM-SHA-512 salt=…,stored_key=…,server_key=…,iterations=8192`. Add more users with "
    "`millpond user`.",
)

DELEGATION_TOKEN_SECRET_KEY = Setting(
    "delegation.token.secret.key",
    "",
    "The secret that signs delegation tokens, the same on all nodes. If empty, the nodes use one that they have "
    "shared since the first user was created.",
)
DELEGATION_TOKEN_MAX_LIFETIME_MS = Setting(
    "delegation.token.max.lifetime.ms",
    7 * DAY_MS,
    "The maximum lifetime of a delegation token, including renewals.",
    at_least(1),
)
DELEGATION_TOKEN_EXPIRY_TIME_MS = Setting(
    "delegation.token.expiry.time.ms",
    DAY_MS,
    "How long a delegation token is valid unless it is renewed.",
    at_least(1),
)
DELEGATION_TOKEN_EXPIRY_CHECK_INTERVAL_MS = Setting(
    "delegation.token.expiry.check.interval.ms",
    3_600_000,
    "How often expired delegation tokens are deleted.",
    at_least(100),
)

OAUTH_JWKS_URL = Setting(
    "sasl.oauthbearer.jwks.endpoint.url",
    "",
    "The https or file URL of the keys (JWKS) that sign OAUTHBEARER tokens.",
)
OAUTH_JWKS_REFRESH_MS = Setting(
    "sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000, "How often the keys are reloaded.", at_least(1_000)
)
OAUTH_AUDIENCE = Setting(
    "sasl.oauthbearer.expected.audience",
    (),
    "The accepted audiences (aud) of tokens. Required unless `sasl.oauthbearer.unrestricted` is set.",
)
OAUTH_ISSUER = Setting(
    "sasl.oauthbearer.expected.issuer",
    "",
    "The accepted issuer (iss) of tokens. Required unless `sasl.oauthbearer.unrestricted` is set.",
)
OAUTH_UNRESTRICTED = Setting(
    "sasl.oauthbearer.unrestricted",
    False,
    "Accept tokens for any audience if no audience is set, and from any issuer if no issuer is set. Every token "
    "signed with one of the keys then logs in here, even one issued for another service.",
)
OAUTH_SUPER_USERS = Setting(
    "sasl.oauthbearer.super.users.enable",
    False,
    "Accept tokens that name one of `super.users`. Tokens never log in as the user of the nodes.",
)
OAUTH_CLOCK_SKEW_SECONDS = Setting(
    "sasl.oauthbearer.clock.skew.seconds",
    30,
    "The maximum difference between this node's clock and that of the token issuer.",
    between(0, 3600),
    bits=32,
)
OAUTH_SUB_CLAIM = Setting("sasl.oauthbearer.sub.claim.name", "sub", "The claim that contains the user name.")

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
