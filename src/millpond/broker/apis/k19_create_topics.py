"""CreateTopics (19), versions 2-7: bring topics into being, or only check whether that would do.

2 throttle time · 4 the broker's defaults (-1) · 5 flexible, the resulting settings · 6 quota errors · 7 topic ids.
The answer comes once the topics are committed and can be written to.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millpond.base.errors import Refused
from millpond.base.later import Later
from millpond.broker.links.to_controller import forward_ms
from millpond.broker.serving.api import Api
from millpond.broker.serving.call import Call
from millpond.broker.serving.replies import Outcome
from millpond.broker.topic_creation import create_topics
from millpond.config.topic import TOPIC
from millpond.metadata.decision import Verdict
from millpond.metadata.image import INTERNAL_TOPICS
from millpond.metadata.topics import CreatedTopic, NewTopic, decide_create_topics, internal_topic_refused
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.services import Services


def handle(broker: Services, call: Call, request: m.CreateTopicsRequest) -> Outcome:
    wanted = [_wanted(topic) for topic in request.topics]
    decided = broker.controller.submit(
        lambda image: decide_create_topics(
            image,
            broker.layers,
            wanted,
            broker.entropy,
            validate_only=request.validate_only,
            by_broker=call.is_from_node,
        )
    )
    return decided.map(partial(_answer, broker, wanted)).recover(
        Refused, lambda refused: _refuse_all(wanted, refused)
    )


def forward(broker: Services, call: Call, request: m.CreateTopicsRequest) -> Later[m.CreateTopicsResponse]:
    """Internal topics are refused here: the controller would think that this node itself wants them."""
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

    return create_topics(broker, sent, call.version, forward_ms(sent)).map(join)


def _wanted(topic: m.CreateTopicsRequest.CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        tuple((each.partition_index, tuple(each.broker_ids)) for each in topic.assignments),
        tuple((each.name, each.value) for each in topic.configs),
    )


def _answer(broker: Services, wanted: list[NewTopic], created: tuple[CreatedTopic, ...]) -> m.CreateTopicsResponse:
    configs = {topic.name: topic.configs for topic in wanted}
    return m.CreateTopicsResponse(topics=[_result(broker, each, configs[each.name]) for each in created])


def _result(
    broker: Services, created: CreatedTopic, configs: tuple[tuple[str, str | None], ...]
) -> m.CreateTopicsResponse.CreatableTopicResult:
    overrides = {name: value for name, value in configs if value is not None}
    return m.CreateTopicsResponse.CreatableTopicResult(
        name=created.name,
        topic_id=created.topic_id,
        error_code=created.verdict.code,
        error_message=created.verdict.message,
        num_partitions=created.num_partitions,
        replication_factor=created.replication_factor,
        configs=_settings(broker, overrides) if created.verdict.ok else [],
    )


def _settings(broker: Services, overrides: dict[str, str]) -> list[m.CreateTopicsResponse.CreatableTopicConfigs]:
    settings = [broker.layers.effective_for_topic(setting, overrides) for setting in TOPIC]
    return [
        m.CreateTopicsResponse.CreatableTopicConfigs(
            name=each.setting.name, value=each.text, config_source=each.source
        )
        for each in settings
    ]


def _refuse_all(wanted: list[NewTopic], refused: Refused) -> m.CreateTopicsResponse:
    return m.CreateTopicsResponse(topics=[_failed(topic.name, Verdict.of(refused)) for topic in wanted])


def _failed(name: str, verdict: Verdict) -> m.CreateTopicsResponse.CreatableTopicResult:
    return m.CreateTopicsResponse.CreatableTopicResult(
        name=name, error_code=verdict.code, error_message=verdict.message, configs=[]
    )


API = Api(
    key=19,
    name="CreateTopics",
    versions=(2, 7),
    handle=handle,
    lists="topics",
    at_controller=True,
    forward=forward,
)
