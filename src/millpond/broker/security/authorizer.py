"""Kafka's StandardAuthorizer: super users first, then the ACLs of the metadata, deny otherwise.

Decisions are cached until an ACL is added or removed, so most checks cost one dictionary lookup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.base.rights import AclResource, Operation
from millpond.broker.security.access import EVERYBODY, Access
from millpond.broker.security.granted import Asker, Granted
from millpond.config.listeners import listeners_of
from millpond.config.security import ALLOW_EVERYONE_IF_NO_ACL_FOUND, AUTHORIZER_CLASS_NAME, super_users
from millpond.metadata.acls import Ruling
from millpond.metadata.image import INTERNAL_TOPICS

if TYPE_CHECKING:
    from collections.abc import Callable, Set

    from millpond.base.principal import Principal
    from millpond.base.settings import Settings
    from millpond.metadata.acls import Acls
    from millpond.metadata.image import Image

    NoteRefused = Callable[[Principal, str, Operation, AclResource, str], None]

ANSWERS_MAX: Final = 50_000
"""Cached decisions; the cache is cleared when it is full."""

NAME_LENGTH_MAX: Final = 300
"""Decisions on longer names are not cached: such names are rare, except from a client that tries to fill memory."""

OWN: Final = "__"
OF_PROGRAMS: Final = "__millpond"
"""Prefix of the topics in which our own programs keep durable state (`__millpond_spark`), beside Kafka's internal
topics. Changing one of these takes an ACL whose pattern begins with `OWN`: an ACL on all topics does not cover
them."""

CHANGES: Final = frozenset({Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS})
TOPIC: Final = AclResource.TOPIC

GRANTED_MAX: Final = 1_000
"""Topics that a connection caches as writable, and likewise as readable."""

_Question = tuple[str, str, str, int, int, str | None]


class Authorizer:
    """Implements `access.Access` over the image."""

    is_on = True

    def __init__(
        self,
        image: Image,
        super_users: Set[Principal],
        *,
        allows_unnamed: bool,
        note_refused: NoteRefused | None = None,
    ) -> None:
        self.note_refused: NoteRefused = note_refused or _forget_it
        self._image = image
        self._super_users = frozenset((each.kind, each.name) for each in super_users)
        self._allows_unnamed = allows_unnamed
        """Whether resources without any ACL are open to every principal."""
        self._answers: dict[_Question, bool] = {}
        self._asked: Acls | None = None
        self._version = -1
        """The version of the ACLs in `_asked`, from which the cached decisions are."""

    def may(self, principal: Principal, host: str, operation: Operation, resource: AclResource, name: str) -> bool:
        acls = self._image.acls
        if acls is not self._asked or acls.version != self._version:
            self._begin_anew(acls)
        question = principal.kind, principal.name, host, operation, resource, name
        answer = self._answers.get(question)
        if answer is None:
            # CREATE is restricted as well, because the creator of a topic sets its retention. Internal topics need
            # no such rule: clients cannot create them.
            is_change = operation in CHANGES and is_own_topic(name)
            is_own = resource is TOPIC and (is_change or (operation == Operation.CREATE and is_of_programs(name)))
            named_by = OWN if is_own else ""
            ruling = acls.ruling(str(principal), host, operation, resource, name, named_by=named_by)
            answer = self.is_super(principal) or self._may(ruling)
            self._keep(question, answer)
        return answer

    def may_often(self, connection: Asker, operation: Operation, topic: str) -> bool:
        granted, acls = connection.granted, self._image.acls
        if granted is None or not granted.is_from(acls, connection.principal):
            granted = connection.granted = Granted(acls, connection.principal)
        topics = granted.topics[operation]
        if topic in topics:
            return True
        if not self.may(connection.known, connection.host, operation, TOPIC, topic):
            return False
        if len(topics) >= GRANTED_MAX:
            topics.clear()
        topics.add(topic)
        return True

    def may_any(self, principal: Principal, host: str, operation: Operation, resource: AclResource) -> bool:
        acls = self._image.acls
        if acls is not self._asked or acls.version != self._version:
            self._begin_anew(acls)
        question = principal.kind, principal.name, host, operation, resource, None
        answer = self._answers.get(question)
        if answer is None:
            ruling = acls.ruling_of_any(str(principal), host, operation, resource)
            # If resources without ACLs are open to all, there is always one.
            unnamed = self._allows_unnamed and ruling is not Ruling.DENIED
            answer = self.is_super(principal) or unnamed or ruling is Ruling.ALLOWED
            self._keep(question, answer)
        return answer

    def is_super(self, principal: Principal) -> bool:
        return (principal.kind, principal.name) in self._super_users

    def _may(self, ruling: Ruling) -> bool:
        return ruling is Ruling.ALLOWED or (ruling is Ruling.NO_ACLS and self._allows_unnamed)

    def _begin_anew(self, acls: Acls) -> None:
        self._asked, self._version = acls, acls.version
        self._answers.clear()

    def _keep(self, question: _Question, answer: bool) -> None:
        if len(question[-1] or "") > NAME_LENGTH_MAX:
            return
        if len(self._answers) >= ANSWERS_MAX:
            self._answers.clear()
        self._answers[question] = answer


def is_own_topic(name: str) -> bool:
    """Whether the topic holds state of the brokers or of our own programs."""
    return name in INTERNAL_TOPICS or is_of_programs(name)


def is_of_programs(name: str) -> bool:
    """Whether the topic holds state of our own programs."""
    return name.startswith(OF_PROGRAMS)


def _forget_it(principal: Principal, host: str, operation: Operation, resource: AclResource, name: str) -> None:
    pass


def asks_for_rights(settings: Settings) -> bool:
    """Whether an authorizer is configured or any listener authenticates its clients."""
    return bool(settings[AUTHORIZER_CLASS_NAME]) or any(each.authenticates for each in listeners_of(settings))


def access_of(settings: Settings, image: Image, note_refused: NoteRefused | None = None) -> Access:
    """The node's authorizer; EVERYBODY when authorization is off."""
    if not asks_for_rights(settings):
        return EVERYBODY
    return Authorizer(
        image,
        super_users(settings),
        allows_unnamed=settings[ALLOW_EVERYONE_IF_NO_ACL_FOUND],
        note_refused=note_refused,
    )
