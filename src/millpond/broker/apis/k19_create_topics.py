"""CreateTopics (19), versions 2-7: create topics, or only validate the request.

2 throttle time · 4 the broker's defaults (-1) · 5 flexible, the resulting settings · 6 quota errors · 7 topic ids.
The response is sent once the topics are committed and can be written to.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, gather
from millpond.base.rights import AclResource, Operation
from millpond.base.settings import AnySetting
from millpond.broker.administration.topic_creation import once_made, once_placeable
from millpond.broker.authorization.partition_mutations import Mutations, new_partitions
from millpond.broker.authorization.required_rights import (
    NOT_AUTHORISED,
    Need,
    Rights,
    Screened,
    may_by_cluster,
    split,
)
from millpond.broker.forwarding.change_relay import catch_up
from millpond.broker.forwarding.envelope import ask_for_client
from millpond.broker.peers.controller_channel import Attempts
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.config.topic import TOPIC
from millpond.metadata.decision import OK, Verdict
from millpond.metadata.image import INTERNAL_TOPICS
from millpond.metadata.topics import CreatedTopic, NewTopic, decide_create_topics, internal_topic_refused
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext, SecurityContext

LARGE_TOPICS: Final = 100
"""The response has all settings of each topic; a worker encodes it for more topics than this."""

PARTITIONS_AT_ONCE: Final = 1_000
"""Partitions decided on in one turn of the loop; more only if a single topic has more."""


def handle(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    call: Call,
    request: m.CreateTopicsRequest,
) -> Outcome:
    wanted = [_wanted(topic) for topic in request.topics]
    if call.is_from_node:
        decided = _decide(node, security, metadata, call, request, wanted)
    else:
        ready = once_placeable(metadata, request.timeout_ms)
        decided = ready.chain(lambda _: _decide(node, security, metadata, call, request, wanted))
    return decided.recover(Refused, lambda refused: _refuse_all(wanted, refused))


def _decide(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    call: Call,
    request: m.CreateTopicsRequest,
    wanted: list[NewTopic],
) -> Later[m.CreateTopicsResponse]:
    """Creates each topic whole or not at all; many large ones over several turns of the loop."""
    parts = [wanted] if request.validate_only else parts_of(wanted)
    decided: list[Later[tuple[CreatedTopic, ...]]] = []
    answered: Later[m.CreateTopicsResponse] = Later()

    def step(number: int = 0) -> None:
        decided.append(
            metadata.controller.submit(
                lambda image: decide_create_topics(
                    image,
                    node.layers,
                    parts[number],
                    node.entropy,
                    validate_only=request.validate_only,
                    by_broker=call.is_from_node,
                )
            )
        )
        if number + 1 < len(parts):
            node.clock.call_soon(lambda: step(number + 1))
        else:
            gather(decided).map(partial(_answer, node, security, wanted)).then(answered.finish, answered.fail)

    step()
    return answered


def parts_of(wanted: list[NewTopic]) -> list[list[NewTopic]]:
    """Cuts the topics into slices, in order; topics that are named twice stay together."""
    times_named = Counter(topic.name for topic in wanted)
    parts = [[topic for topic in wanted if times_named[topic.name] > 1]]
    partitions = 0
    for topic in wanted:
        if times_named[topic.name] == 1:
            count = max(topic.num_partitions, len(topic.assignments), 1)
            if partitions and partitions + count > PARTITIONS_AT_ONCE:
                parts.append([])
                partitions = 0
            parts[-1].append(topic)
            partitions += count
    return parts


def forward(
    node: NodeContext, metadata: MetadataContext, call: Call, request: m.CreateTopicsRequest
) -> Later[m.CreateTopicsResponse]:
    """Refuses internal topics here: to the controller this node itself would seem to create them."""
    sent = m.CreateTopicsRequest(
        topics=[each for each in request.topics if each.name not in INTERNAL_TOPICS],
        timeout_ms=request.timeout_ms,
        validate_only=request.validate_only,
    )
    refusals = [
        _failed(each.name, Verdict.of(internal_topic_refused(each.name)))
        for each in request.topics
        if each.name in INTERNAL_TOPICS
    ]

    def join(response: m.CreateTopicsResponse) -> m.CreateTopicsResponse:
        response.topics = [*response.topics, *refusals]
        return response

    def ask(_: None) -> Later[m.CreateTopicsResponse]:
        wanted = {each.name: _wanted(each) for each in sent.topics if each.name not in metadata.image.topics}
        attempts = Attempts()
        asked = ask_for_client(metadata, call, sent, attempts=attempts)
        made = once_made(metadata, sent, asked)
        return made.map(
            lambda response: (
                _own_first_attempt(node, metadata, wanted, response) if attempts.is_repeated else response
            )
        )

    # A topic that exists when the request arrives was not created by an earlier attempt of it.
    ready = once_placeable(metadata, request.timeout_ms).chain(lambda _: catch_up(metadata))
    return ready.chain(ask).map(join)


def _own_first_attempt(
    node: NodeContext, metadata: MetadataContext, wanted: dict[str, NewTopic], response: m.CreateTopicsResponse
) -> m.CreateTopicsResponse:
    """The response to a repeated attempt. A topic that did not exist when the request arrived, and now is exactly as
    requested, was created by an attempt whose response was lost."""
    inherited = {each: _setting(node, each, {}) for each in TOPIC}
    for position, each in enumerate(response.topics):
        new, topic = wanted.get(each.name), metadata.image.topics.get(each.name)
        if each.error_code != ErrorCode.TOPIC_ALREADY_EXISTS or new is None or topic is None:
            continue
        replicas = len(topic.partitions[0].replicas)
        configs = {name: value for name, value in new.configs if value is not None}
        if (
            new.num_partitions in (-1, len(topic.partitions))
            and new.replication_factor in (-1, replicas)
            and len(new.assignments) in (0, len(topic.partitions))
            and all(tuple(topic.partitions[index].replicas) == told for index, told in new.assignments)
            and dict(metadata.image.topic_config(each.name)) == configs
        ):
            created = CreatedTopic(each.name, OK, topic.id, len(topic.partitions), replicas)
            response.topics[position] = _result(node, created, new.configs, inherited)
    return response


def _wanted(topic: m.CreateTopicsRequest.CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        tuple((each.partition_index, tuple(each.broker_ids)) for each in topic.assignments),
        tuple((each.name, each.value) for each in topic.configs),
    )


def _answer(
    node: NodeContext, security: SecurityContext, wanted: list[NewTopic], decided: list[tuple[CreatedTopic, ...]]
) -> m.CreateTopicsResponse:
    configs = {topic.name: topic.configs for topic in wanted}
    created = {each.name: each for part in decided for each in part}
    for each in created.values():
        security.limits.note_refused(each.verdict.limit_met)
    inherited = {each: _setting(node, each, {}) for each in TOPIC}
    return m.CreateTopicsResponse(topics=[_result(node, created[name], configs[name], inherited) for name in configs])


def _result(
    node: NodeContext,
    created: CreatedTopic,
    configs: tuple[tuple[str, str | None], ...],
    inherited: dict[AnySetting, m.CreateTopicsResponse.CreatableTopicConfigs],
) -> m.CreateTopicsResponse.CreatableTopicResult:
    overrides = {name: value for name, value in configs if value is not None}
    return m.CreateTopicsResponse.CreatableTopicResult(
        name=created.name,
        topic_id=created.topic_id,
        error_code=created.verdict.code,
        error_message=created.verdict.message,
        num_partitions=created.num_partitions,
        replication_factor=created.replication_factor,
        configs=_settings(node, overrides, inherited) if created.verdict.ok else [],
    )


def _settings(
    node: NodeContext,
    overrides: dict[str, str],
    inherited: dict[AnySetting, m.CreateTopicsResponse.CreatableTopicConfigs],
) -> list[m.CreateTopicsResponse.CreatableTopicConfigs]:
    """Most settings are the same for all topics: each topic computes only those that differ."""
    return [_setting(node, each, overrides) if each.name in overrides else known for each, known in inherited.items()]


def _setting(
    node: NodeContext, setting: AnySetting, overrides: dict[str, str]
) -> m.CreateTopicsResponse.CreatableTopicConfigs:
    effective = node.layers.effective_for_topic(setting, overrides)
    return m.CreateTopicsResponse.CreatableTopicConfigs(
        name=setting.name, value=effective.text, config_source=effective.source
    )


def _refuse_all(wanted: list[NewTopic], refused: Refused) -> m.CreateTopicsResponse:
    return m.CreateTopicsResponse(topics=[_failed(topic.name, Verdict.of(refused)) for topic in wanted])


def _failed(name: str, verdict: Verdict) -> m.CreateTopicsResponse.CreatableTopicResult:
    return m.CreateTopicsResponse.CreatableTopicResult(
        name=name, error_code=verdict.code, error_message=verdict.message, configs=[]
    )


def _beyond_quota(
    topic: m.CreateTopicsRequest.CreatableTopic, code: ErrorCode, text: str
) -> m.CreateTopicsResponse.CreatableTopicResult:
    return _failed(topic.name, Verdict(code, text))


MUTATIONS = Mutations(
    strict_from=6,
    lists=("topics",),
    count=lambda node, metadata, topic: new_partitions(
        node, metadata, topic.name, topic.num_partitions, len(topic.assignments)
    ),
    refuse=_beyond_quota,
    into="topics",
)


def _screen(metadata: MetadataContext, call: Call, request: m.CreateTopicsRequest) -> Screened:
    """A client that may create but not describe settings only learns that the topic was created."""

    def is_allowed(topic: m.CreateTopicsRequest.CreatableTopic) -> bool:
        return may_by_cluster(call, ON_CLUSTER, topic.name) or call.demand(*ON_TOPIC, topic.name)

    def refuse(topic: m.CreateTopicsRequest.CreatableTopic) -> m.CreateTopicsResponse.CreatableTopicResult:
        return _failed(topic.name, Verdict(ON_TOPIC.refusal, NOT_AUTHORISED))

    def hide(response: m.CreateTopicsResponse) -> m.CreateTopicsResponse:
        for each in response.topics:
            is_invalid = each.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            if is_invalid and not _may_see_namesakes(metadata, call, each.name):
                each.error_message = "the name is too much like that of another topic"
            if not each.error_code and not call.may(*SHOWN, each.name):
                each.topic_config_error_code = SHOWN.refusal
                each.num_partitions = each.replication_factor = -1
                each.configs = []
        return response if split_off is None or split_off.adjust is None else split_off.adjust(response)

    split_off = split(request, "topics", is_allowed, refuse, "topics")
    if split_off is not None and split_off.request is None:
        return split_off
    return Screened(request, adjust=hide)


def _may_see_namesakes(metadata: MetadataContext, call: Call, name: str) -> bool:
    """The reason names the other topic, which the client may not be allowed to see."""
    seen = Operation.DESCRIBE, AclResource.TOPIC
    return all(call.may(*seen, each) for each in metadata.image.namesakes(name))


ON_CLUSTER = Need(Operation.CREATE, AclResource.CLUSTER)
ON_TOPIC = Need(Operation.CREATE, AclResource.TOPIC)
SHOWN = Need(Operation.DESCRIBE_CONFIGS, AclResource.TOPIC)

API = Api(
    key=19,
    name="CreateTopics",
    versions=(2, 7),
    handle=handle,
    lists="topics",
    is_large=lambda response: len(response.topics) > LARGE_TOPICS,
    at_controller=True,
    forward=forward,
    mutations=MUTATIONS,
    pieces=(way("topics", "topics"),),
    rights=Rights((ON_CLUSTER, ON_TOPIC, SHOWN), _screen),
)
