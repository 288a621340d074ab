"""The active controller's part in logins: it creates the cluster's initial users and removes expired tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from millpond.base.errors import Refused
from millpond.base.later import Later, done
from millpond.config.login import DELEGATION_TOKEN_EXPIRY_CHECK_INTERVAL_MS, INITIAL_USERS_FILE
from millpond.metadata.initial_users import InitialUsersFault, decide_first_users, read
from millpond.metadata.records import FeatureLevelRecord
from millpond.metadata.tokens import decide_remove_expired

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.base.ports import Timer, World
    from millpond.base.settings import Settings
    from millpond.broker.loop.journal import Journal
    from millpond.metadata.decision import Decision
    from millpond.metadata.image import Image
    from millpond.metadata.records import DelegationTokenRecord, Record

    R = TypeVar("R")

EXPIRED_AT_ONCE: Final = 1_000
SECRET_BITS: Final = 512


class Deciding(Protocol):
    @property
    def image(self) -> Image: ...

    def submit(self, decide: Callable[[Image], Decision[R]]) -> Later[R]: ...


class LoginUpkeep:
    def __init__(
        self, world: World, controller: Deciding, settings: Callable[[], Settings], journal: Journal
    ) -> None:
        self._world = world
        self._controller = controller
        self._settings = settings
        self._journal = journal
        self._timer: Timer | None = None

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_records(self, records: Sequence[Record]) -> Later[None]:
        """Create the initial users when a feature upgrade makes users possible in an older cluster."""
        if self._timer is not None and any(isinstance(each, FeatureLevelRecord) for each in records):
            self._make_first_users()
        return done(None)

    def on_role(self, is_active: bool) -> None:
        self.stop()
        if is_active:
            self._sweep_later()
            self._make_first_users()

    # The first users.

    def _make_first_users(self) -> None:
        path = self._settings()[INITIAL_USERS_FILE]
        scram = self._controller.image.scram
        if path and not scram.had_users:
            self._world.workers.run(lambda: self._world.disk.read(path)).then(self._submit_users, self._cannot_read)
        elif path and not scram.users():
            self._journal(
                "initial users not created: all users of this cluster were removed; add one with `millpond user add`",
                setting=INITIAL_USERS_FILE.name,
            )

    def _submit_users(self, data: bytes) -> None:
        secret = self._world.entropy.below(1 << SECRET_BITS).to_bytes(SECRET_BITS // 8)
        try:
            users = read(data.decode())
        except (InitialUsersFault, UnicodeDecodeError) as fault:
            self._tell_fault(fault)
            return
        if not users:
            self._tell_fault("it contains no users")
            return
        made = self._controller.submit(lambda image: decide_first_users(image, users, secret))
        made.then(self._tell_users, self._on_refused)

    def _tell_users(self, count: int) -> None:
        if count:
            self._journal("the cluster has its first users", count=count)

    def _cannot_read(self, failure: Exception) -> None:
        if not isinstance(failure, OSError):
            raise failure
        self._tell_fault(failure)

    def _tell_fault(self, reason: object) -> None:
        file = self._settings()[INITIAL_USERS_FILE]
        self._journal(
            "cannot read the initial users: no user can log in with a password",
            setting=INITIAL_USERS_FILE.name,
            file=file,
            reason=reason,
        )

    def _on_refused(self, failure: Exception) -> None:
        if not isinstance(failure, Refused):
            raise failure
        self._journal("the first users cannot be made", reason=failure)

    # Tokens.

    def _sweep_later(self) -> None:
        delay_ms = self._settings()[DELEGATION_TOKEN_EXPIRY_CHECK_INTERVAL_MS]
        self._timer = self._world.clock.call_later(delay_ms, self._sweep)

    def _sweep(self) -> None:
        self._sweep_later()
        if len(self._controller.image.tokens):
            now_ms = self._world.clock.wall_ms()
            gone: Later[Sequence[DelegationTokenRecord]] = self._controller.submit(
                lambda image: decide_remove_expired(image, now_ms, EXPIRED_AT_ONCE)
            )
            gone.then(lambda _: None, self._on_sweep_refused)

    def _on_sweep_refused(self, failure: Exception) -> None:
        """Nothing to do: the next sweep, here or on the next controller, removes the tokens."""
        if not isinstance(failure, Refused):
            raise failure
