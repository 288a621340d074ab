"""A group whose topic is deleted and recreated repeatedly: no offset may apply to a later topic of that name.

Commits and fetches name the topic by its id, so that a late request cannot affect the successor. Now and then
the group's coordinator is killed just before the deletion, so that no coordinator is notified of it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.base.ids import NO_TOPIC_ID
from millpond.sim.clients.client import Client
from millpond.sim.clients.requests import GROUP_KEY, RETRY_MS, find_coordinator
from millpond.sim.clients.script import Script, ScriptRunner, Send, Sleep
from millpond.sim.history.groups import CoordinationHistory
from millpond.sim.world.clock import VirtualClock
from millpond.wire import messages as m

TOPIC = "successor"
GROUP = "successor group"
REST_MS_MAX = 300
STRIKE_SHARE = 0.4
NOT_COMMITTED = -1
OFFSET_STEP = 1_000
"""The offsets of each topic are beyond those of its predecessor."""


class TopicSuccessor:
    def __init__(
        self,
        clock: VirtualClock,
        client: Client,
        history: CoordinationHistory,
        random: Random,
        *,
        replication_factor: int,
        strike: Callable[[str], None],
    ) -> None:
        """`strike` kills the coordinator of a group."""
        self._clock = clock
        self._client = client
        self._history = history
        self._random = random
        self._replication_factor = replication_factor
        self._strike = strike
        self._is_calm = False
        self._runner = ScriptRunner(clock, self._live())

    def start(self) -> None:
        self._runner.start()

    def calm_down(self) -> None:
        """Keep the topic from now on, and kill no coordinator."""
        self._is_calm = True

    def stop(self) -> None:
        self._runner.end()

    def _live(self) -> Script[None]:
        yield from find_coordinator(self._client, GROUP_KEY, GROUP)
        first_offset = 0
        while not self._is_calm:
            topic_id = yield from self._create()
            yield from self._check(topic_id, NOT_COMMITTED)
            offset = first_offset + self._random.randint(1, OFFSET_STEP - 1)
            yield from self._commit(topic_id, offset)
            yield from self._check(topic_id, offset)
            yield Sleep(self._random.randint(0, REST_MS_MAX))
            if self._random.random() < STRIKE_SHARE and not self._is_calm:
                self._strike(GROUP)
            yield from self._delete(topic_id)
            self._history.count("topics replaced")
            first_offset += OFFSET_STEP

    def _create(self) -> Script[UUID]:
        kind = m.CreateTopicsRequest.CreatableTopic
        topic = kind(name=TOPIC, num_partitions=1, replication_factor=self._replication_factor)
        while True:
            reply = yield Send(self._client, m.CreateTopicsRequest(topics=[topic], timeout_ms=2_000), 7)
            if reply is not None and not reply.topics[0].error_code:
                created: UUID = reply.topics[0].topic_id
                return created
            if reply is not None and reply.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
                # An earlier attempt created it.
                topic_id = yield from self._find()
                if topic_id is not None:
                    return topic_id
            yield Sleep(RETRY_MS)

    def _find(self) -> Script[UUID | None]:
        named = m.MetadataRequest.MetadataRequestTopic(name=TOPIC)
        reply = yield Send(self._client, m.MetadataRequest(topics=[named], allow_auto_topic_creation=False), 12)
        if reply is None or reply.topics[0].error_code or reply.topics[0].topic_id == NO_TOPIC_ID:
            return None
        known: UUID = reply.topics[0].topic_id
        return known

    def _delete(self, topic_id: UUID) -> Script[None]:
        topic = m.DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic_id)
        while True:
            reply = yield Send(self._client, m.DeleteTopicsRequest(topics=[topic], timeout_ms=2_000), 6)
            if reply is not None and reply.responses[0].error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID):
                return
            yield Sleep(RETRY_MS)

    def _commit(self, topic_id: UUID, offset: int) -> Script[None]:
        kind = m.OffsetCommitRequest
        part = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topic = kind.OffsetCommitRequestTopic(topic_id=topic_id, partitions=[part])
        while True:
            reply = yield Send(self._client, kind(group_id=GROUP, topics=[topic]), 10)
            if reply is not None and not reply.topics[0].partitions[0].error_code:
                return
            yield Sleep(RETRY_MS)

    def _check(self, topic_id: UUID, wanted: int) -> Script[None]:
        """Repeat the request until there is a response."""
        kind = m.OffsetFetchRequest
        topic = kind.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])
        request = kind(groups=[kind.OffsetFetchRequestGroup(group_id=GROUP, topics=[topic])])
        while True:
            reply = yield Send(self._client, request, 10)
            part = None
            if reply is not None and not reply.groups[0].error_code:
                part = reply.groups[0].topics[0].partitions[0]
            if part is not None and not part.error_code:
                break
            yield Sleep(RETRY_MS)
        if part.committed_offset == wanted:
            return
        finding = f"heard {part.committed_offset}, not {wanted}, for topic {topic_id}"
        if wanted == NOT_COMMITTED:
            finding += ": an offset of an earlier topic of that name applies to it"
        self._history.report(self._clock.now_ms, finding)
