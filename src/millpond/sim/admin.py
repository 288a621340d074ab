"""A simulated administrator: one metadata change at a time, and its possible outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.sim.clients.client import Client
from millpond.sim.history.records import History, TopicFacts, TopicIdPartition
from millpond.sim.world.clock import VirtualClock
from millpond.wire import messages as m
from millpond.wire.messages import Message

RETRY_MS = 100
TOPIC = 2
GROUP = 32
SET = 0

OUTCOME_UNKNOWN = (
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.INVALID_PARTITIONS,
)
"""Errors after which the change may have been made: the controller did not answer in time, or an earlier attempt of
the node made the change."""

Then = Callable[[], None]


class SimAdmin:
    """Each operation ends by calling `then`, after it has recorded the possible outcomes in the history.

    A lost reply leaves both outcomes possible, until the topic is described the next time. A refusal that contradicts
    what is certain is a violation: it came from old metadata, and clients that retry take it for success.
    """

    def __init__(self, client: Client, clock: VirtualClock, history: History) -> None:
        self._client = client
        self._clock = clock
        self._history = history

    def create(
        self, name: str, partitions: int, configs: Mapping[str, str], then: Then, *, replication_factor: int = 1
    ) -> None:
        """Try until the topic exists."""
        facts = self._history.topics.setdefault(name, TopicFacts())
        facts.ids = facts.ids or {None: None}
        may_exist = set(facts.ids) != {None}
        request = m.CreateTopicsRequest(
            topics=[
                m.CreateTopicsRequest.CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=replication_factor,
                    assignments=[],
                    configs=[
                        m.CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                        for key, value in configs.items()
                    ],
                )
            ]
        )

        def created(topic_id: UUID) -> None:
            facts.ids = {topic_id: None}
            facts.partition_counts = {partitions: None}
            facts.configs = {key: {value: None} for key, value in configs.items()}
            self._note(f"{name} is {topic_id}")
            then()

        def on_reply(reply: m.CreateTopicsResponse | None) -> None:
            nonlocal may_exist
            result = reply.topics[0] if reply is not None else None
            if result is not None and result.error_code == ErrorCode.NONE:
                created(result.topic_id)
            elif result is not None and result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
                # An earlier attempt, whose reply was lost, created it: nothing else uses this name.
                if not may_exist:
                    self._blame(f"{name} was said to exist already")
                self._find_id(name, created)
            else:
                may_exist = True
                facts.ids[None] = None
                self._later(lambda: self._send(request, 7, on_reply))

        self._send(request, 7, on_reply)

    def _find_id(self, name: str, on_id: Callable[[UUID], None]) -> None:
        request = m.MetadataRequest(
            topics=[m.MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
        )

        def on_reply(reply: m.MetadataResponse | None) -> None:
            if reply is None or reply.topics[0].error_code:
                self._later(lambda: self._send(request, 12, on_reply))
            else:
                on_id(reply.topics[0].topic_id)

        self._send(request, 12, on_reply)

    def delete(self, name: str, then: Then) -> None:
        """Try until the topic is deleted."""
        facts = self._history.topics[name]
        request = m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.DeleteTopicState(name=name)], timeout_ms=1000)

        def on_reply(reply: m.DeleteTopicsResponse | None) -> None:
            code = reply.responses[0].error_code if reply is not None else None
            if code is not None:
                self._check_unknown(name, code)
            if code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                self._history.forgotten_ids.update({known: None for known in facts.ids if known is not None})
                facts.ids = {None: None}
                facts.configs = {}
                self._note(f"{name} is deleted")
                then()
            else:
                facts.ids[None] = None
                self._later(lambda: self._send(request, 6, on_reply))

        self._send(request, 6, on_reply)

    def add_partitions(self, name: str, count: int, then: Then) -> None:
        """Grow the topic to `count` partitions; the outcome stays open when the reply is lost."""
        facts = self._history.topics[name]
        request = m.CreatePartitionsRequest(
            topics=[m.CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)],
            timeout_ms=1000,
        )

        def on_reply(reply: m.CreatePartitionsResponse | None) -> None:
            if reply is None or reply.results[0].error_code in OUTCOME_UNKNOWN:
                facts.partition_counts[count] = None
            elif reply.results[0].error_code == ErrorCode.NONE:
                facts.partition_counts = {count: None}
                self._note(f"{name} has {count} partitions")
            else:
                self._check_unknown(name, reply.results[0].error_code)
            then()

        self._send(request, 2, on_reply)

    def set_config(self, name: str, key: str, value: str, then: Then) -> None:
        facts = self._history.topics[name]
        request = m.IncrementalAlterConfigsRequest(
            resources=[
                m.IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=TOPIC,
                    resource_name=name,
                    configs=[
                        m.IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=SET, value=value)
                    ],
                )
            ]
        )

        def on_reply(reply: m.IncrementalAlterConfigsResponse | None) -> None:
            known = facts.configs.setdefault(key, {None: None})
            if reply is None or reply.responses[0].error_code in OUTCOME_UNKNOWN:
                known[value] = None
            elif reply.responses[0].error_code == ErrorCode.NONE:
                facts.configs[key] = {value: None}
                self._note(f"{name} has {key}={value}")
            else:
                self._check_unknown(name, reply.responses[0].error_code)
            then()

        self._send(request, 1, on_reply)

    def set_group_config(self, group: str, key: str, value: str, then: Callable[[str | None], None]) -> None:
        """Change a setting of a group; `then` gets the error, if any. The history keeps nothing of groups."""
        kind = m.IncrementalAlterConfigsRequest
        changed = kind.AlterableConfig(name=key, config_operation=SET, value=value)
        resource = kind.AlterConfigsResource(resource_type=GROUP, resource_name=group, configs=[changed])

        def on_reply(reply: m.IncrementalAlterConfigsResponse | None) -> None:
            if reply is None:
                then("no response")
                return
            (outcome,) = reply.responses
            then(outcome.error_message or ErrorCode(outcome.error_code).name if outcome.error_code else None)

        self._send(kind(resources=[resource]), 1, on_reply)

    def delete_records(self, partition: TopicIdPartition, offset: int, then: Then) -> None:
        asked = self._history.requested_deletes
        asked[partition] = max(asked.get(partition, 0), offset)
        request = m.DeleteRecordsRequest(
            topics=[
                m.DeleteRecordsRequest.DeleteRecordsTopic(
                    name=partition.topic,
                    partitions=[
                        m.DeleteRecordsRequest.DeleteRecordsPartition(
                            partition_index=partition.partition_index, offset=offset
                        )
                    ],
                )
            ],
            timeout_ms=1000,
        )

        def on_reply(reply: m.DeleteRecordsResponse | None) -> None:
            result = reply.topics[0].partitions[0] if reply is not None else None
            if result is not None and result.error_code == ErrorCode.NONE:
                before = self._history.deleted_before.get(partition, 0)
                self._history.deleted_before[partition] = max(before, offset)
                self._history.deleted_at_ms[partition] = self._clock.now_ms
                self._note(f"{partition} begins at {offset}")
            then()

        self._send(request, 1, on_reply)

    def describe(
        self, names: list[str], on_described: Callable[[m.MetadataResponse, m.DescribeConfigsResponse], None]
    ) -> None:
        """Describe topics, as soon as the node answers."""
        metadata = m.MetadataRequest(
            topics=[m.MetadataRequest.MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=False,
        )
        configs = m.DescribeConfigsRequest(
            resources=[
                m.DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=TOPIC, resource_name=name, configuration_keys=None
                )
                for name in names
            ]
        )

        def on_metadata(known: m.MetadataResponse | None) -> None:
            if known is None:
                self._later(lambda: self._send(metadata, 12, on_metadata))
            else:
                self._send(configs, 2, lambda told: on_configs(known, told))

        def on_configs(known: m.MetadataResponse, told: m.DescribeConfigsResponse | None) -> None:
            if told is None:
                self._later(lambda: self._send(metadata, 12, on_metadata))
            else:
                on_described(known, told)

        self._send(metadata, 12, on_metadata)

    def _send(self, request: Message, version: int, on_reply: Callable[[Any], None]) -> None:
        self._client.send(request, version, on_reply)

    def _later(self, again: Then) -> None:
        self._clock.call_later(RETRY_MS, again)

    def _check_unknown(self, name: str, code: int) -> None:
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and None not in self._history.topics[name].ids:
            self._blame(f"{name} exists and was said to be unknown")

    def _blame(self, line: str) -> None:
        self._note(line)
        self._history.violations.append(f"admin: {line}")

    def _note(self, line: str) -> None:
        self._history.note(self._clock.now_ms, f"admin: {line}")
