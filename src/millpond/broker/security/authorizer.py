"""Kafka's StandardAuthorizer: super users, then what the ACLs in the metadata say, else no.

What was asked once is remembered until an ACL comes or goes, so that most questions cost one look into a dictionary.
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
"""So many answers are remembered; then it begins anew."""

NAME_LENGTH_MAX: Final = 300
"""Those about longer names are not: there are hardly any, but for whoever wants to fill the memory."""

OWN: Final = "__"
OF_PROGRAMS: Final = "__millpond"
"""So begin the topics in which our own programs keep what they must not lose (`__millpond_spark`), beside those of
brokers. Whoever changes one of them has been given just that, by an ACL whose pattern begins with `OWN`: a right on
all topics is none on these."""

CHANGES: Final = frozenset({Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS})
TOPIC: Final = AclResource.TOPIC

GRANTED_MAX: Final = 1_000
"""Of so many topics a connection remembers that it may write to them, and likewise read them."""

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
        """Whether everybody may do everything to what no ACL is about."""
        self._answers: dict[_Question, bool] = {}
        self._asked: Acls | None = None
        self._version = -1
        """The ACLs that the answers are from, and their version."""

    def may(self, principal: Principal, host: str, operation: Operation, resource: AclResource, name: str) -> bool:
        acls = self._image.acls
        if acls is not self._asked or acls.version != self._version:
            self._begin_anew(acls)
        question = principal.kind, principal.name, host, operation, resource, name
        answer = self._answers.get(question)
        if answer is None:
            # Who makes a topic says how long it keeps its records; those of brokers nobody else can make.
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
            # Where unnamed things are everybody's there is always one.
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
    """Whether the state of brokers or of our own programs is in it."""
    return name in INTERNAL_TOPICS or is_of_programs(name)


def is_of_programs(name: str) -> bool:
    """Whether the state of our own programs is in it."""
    return name.startswith(OF_PROGRAMS)


def _forget_it(principal: Principal, host: str, operation: Operation, resource: AclResource, name: str) -> None:
    pass


def asks_for_rights(settings: Settings) -> bool:
    """As soon as some listener asks who comes, or an authorizer is named."""
    return bool(settings[AUTHORIZER_CLASS_NAME]) or any(each.authenticates for each in listeners_of(settings))


def access_of(settings: Settings, image: Image, note_refused: NoteRefused | None = None) -> Access:
    """Who is asked; everybody may do everything where nobody is."""
    if not asks_for_rights(settings):
        return EVERYBODY
    return Authorizer(
        image,
        super_users(settings),
        allows_unnamed=settings[ALLOW_EVERYONE_IF_NO_ACL_FOUND],
        note_refused=note_refused,
    )
