"""DescribeConfigs (32), versions 1-4: settings of topics and brokers, where each value comes from, what it means.

1 sources and synonyms · 3 types and documentation · 4 flexible. Gap: groups, client metrics and broker loggers have
no settings yet; their resources are answered with INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import topic_name_fault
from millpond.broker.api import Api, Call, Outcome
from millpond.config.effective import Effective, Source
from millpond.config.node import NODE
from millpond.config.topic import TOPIC
from millpond.metadata.records import ResourceType
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.broker import Broker


def handle(broker: Broker, call: Call, request: m.DescribeConfigsRequest) -> Outcome:
    return m.DescribeConfigsResponse(
        results=[
            _describe(broker, resource, request.include_synonyms, request.include_documentation)
            for resource in request.resources
        ]
    )


def _describe(
    broker: Broker, resource: m.DescribeConfigsRequest.DescribeConfigsResource, synonyms: bool, docs: bool
) -> m.DescribeConfigsResponse.DescribeConfigsResult:
    result = m.DescribeConfigsResponse.DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name, configs=[]
    )
    try:
        found = _effective(broker, resource.resource_type, resource.resource_name)
    except Refused as refused:
        result.error_code, result.error_message = refused.code, refused.message
        return result
    wanted = None if resource.configuration_keys is None else frozenset(resource.configuration_keys)
    for effective, read_only in found:
        if wanted is None or effective.setting.name in wanted:
            result.configs.append(_one(effective, read_only, synonyms, docs))
    return result


def _effective(broker: Broker, kind: int, name: str) -> Iterable[tuple[Effective, bool]]:
    """Every setting of the resource with its value, and whether it can be changed while running."""
    layers = broker.layers
    if kind == ResourceType.TOPIC:
        fault = topic_name_fault(name)
        if fault:
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        if name not in broker.image.topics:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        overrides: Mapping[str, str] = broker.image.topic_config(name)
        return [(layers.effective_for_topic(setting, overrides), False) for setting in TOPIC]
    if kind == ResourceType.BROKER:
        if name == "":
            # The defaults for all brokers: only what has been set for them.
            every = [layers.effective(setting) for setting in NODE]
            return [(each, False) for each in every if each.source == Source.DYNAMIC_DEFAULT_BROKER]
        if name != str(broker.node_id):
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"this is broker {broker.node_id}: ask broker {name!r} for its own settings",
            )
        return [(layers.effective(setting), not setting.live) for setting in NODE]
    raise Refused(ErrorCode.INVALID_REQUEST, f"resources of type {kind} have no settings here")


def _one(
    effective: Effective, read_only: bool, synonyms: bool, docs: bool
) -> m.DescribeConfigsResponse.DescribeConfigsResourceResult:
    setting = effective.setting
    return m.DescribeConfigsResponse.DescribeConfigsResourceResult(
        name=setting.name,
        value=effective.text,
        read_only=read_only,
        config_source=effective.source,
        config_type=setting.kind.value,
        documentation=setting.doc if docs else None,
        synonyms=[
            m.DescribeConfigsResponse.DescribeConfigsSynonym(name=layer.name, value=layer.text, source=layer.source)
            for layer in (effective.layers if synonyms else ())
        ],
    )


API = Api(key=32, name="DescribeConfigs", versions=(1, 4), handle=handle, lists="resources")
