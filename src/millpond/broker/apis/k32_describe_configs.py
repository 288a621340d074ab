"""DescribeConfigs (32), versions 1-4: settings of topics, brokers, groups, client metrics and loggers.

1 sources and synonyms · 3 types and documentation · 4 flexible. A broker also lists Kafka's names for its settings,
and unknown settings without their values, which may be secrets.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import topic_name_fault
from millpond.base.named_tuple import NamedTuple
from millpond.base.rights import Operation
from millpond.base.secret_names import is_secret
from millpond.base.words import quoted
from millpond.broker.authorization.config_rights import on_settings
from millpond.broker.authorization.required_rights import NOT_AUTHORISED
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.config.client_metrics import CLIENT_METRICS
from millpond.config.effective import Effective, Source
from millpond.config.group import GROUP
from millpond.config.kafka_names import SHOWN_AS_THEY_ARE, kafka_settings, unknown_settings
from millpond.config.node import NODE
from millpond.config.topic import TOPIC
from millpond.metadata.image import Resource
from millpond.metadata.records import ResourceType
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext


AT_ONCE_MAX: Final = 20
"""Up to this many resources are described on the loop: each has dozens of settings, a broker hundreds."""

OWN: Final = (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
"""Kinds with a single resource: it is described on the loop, where it changes."""


def handle(node: NodeContext, metadata: MetadataContext, call: Call, request: m.DescribeConfigsRequest) -> Outcome:
    # A broker named many times would take seconds, and all the memory.
    wanted = {(each.resource_type, each.resource_name): each for each in request.resources}
    describe = partial(_describe, node, metadata, request.include_synonyms, request.include_documentation)
    if len(wanted) <= AT_ONCE_MAX:
        return m.DescribeConfigsResponse(results=[describe(each) for each in wanted.values()])
    own = {key: describe(each) for key, each in wanted.items() if key[0] in OWN}

    def describe_all() -> m.DescribeConfigsResponse:
        return m.DescribeConfigsResponse(results=[own.get(key) or describe(each) for key, each in wanted.items()])

    return node.workers.run(describe_all)


def _describe(
    node: NodeContext,
    metadata: MetadataContext,
    synonyms: bool,
    docs: bool,
    resource: m.DescribeConfigsRequest.DescribeConfigsResource,
) -> m.DescribeConfigsResponse.DescribeConfigsResult:
    result = m.DescribeConfigsResponse.DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name, configs=[]
    )
    try:
        settings = _effective(node, metadata, resource.resource_type, resource.resource_name)
    except Refused as refused:
        result.error_code, result.error_message = refused.code, refused.message
        return result
    wanted = None if resource.configuration_keys is None else frozenset(resource.configuration_keys)
    for each in settings:
        if wanted is None or each.effective.setting.name in wanted:
            result.configs.append(_one(each, synonyms, docs))
    return result


class _Shown(NamedTuple):
    effective: Effective
    is_read_only: bool = False
    is_secret: bool = False


def _effective(node: NodeContext, metadata: MetadataContext, kind: int, name: str) -> Iterable[_Shown]:
    """Every setting of the resource with its value."""
    layers = node.layers
    own = metadata.image.config_of(Resource(kind, name))
    match kind:
        case ResourceType.TOPIC:
            if fault := topic_name_fault(name):
                raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
            if name not in metadata.image.topics:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
            return [_Shown(layers.effective_for_topic(setting, own)) for setting in TOPIC]
        case ResourceType.GROUP | ResourceType.CLIENT_METRICS if not name:
            raise Refused(ErrorCode.INVALID_REQUEST, "groups and subscriptions have no common settings; name one")
        case ResourceType.GROUP:
            return [_Shown(layers.effective_for_group(setting, own)) for setting in GROUP]
        case ResourceType.CLIENT_METRICS:
            return [_Shown(layers.effective_for_client_metrics(setting, own)) for setting in CLIENT_METRICS]
        case ResourceType.BROKER if not name:
            # The defaults for all brokers: only those that have been set.
            every = [_Shown(layers.effective(setting)) for setting in NODE] + _unknown(node)
            return [each for each in every if each.effective.source == Source.DYNAMIC_DEFAULT_BROKER]
        case ResourceType.BROKER:
            _check_is_this_broker(node, name)
            kafkas = kafka_settings(layers, node.listeners.texts())
            return [
                *(
                    _Shown(layers.effective(setting), not setting.live, is_secret(setting.name))
                    for setting in NODE
                    if setting.name not in SHOWN_AS_THEY_ARE
                ),
                *(_Shown(each, is_read_only=True) for each in kafkas),
                *_unknown(node),
            ]
        case ResourceType.BROKER_LOGGER:
            _check_is_this_broker(node, name)
            return [_Shown(each) for each in node.loggers.settings()]
        case _:
            raise Refused(ErrorCode.INVALID_REQUEST, f"resources of type {kind} have no settings here")


def _check_is_this_broker(node: NodeContext, name: str) -> None:
    if name != str(node.node_id):
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"this is broker {node.node_id}: ask broker {quoted(name)} for its own settings",
        )


def _unknown(node: NodeContext) -> list[_Shown]:
    return [_Shown(each, is_secret=True) for each in unknown_settings(node.layers)]


def _one(each: _Shown, synonyms: bool, docs: bool) -> m.DescribeConfigsResponse.DescribeConfigsResourceResult:
    effective = each.effective
    setting = effective.setting
    return m.DescribeConfigsResponse.DescribeConfigsResourceResult(
        name=setting.name,
        value=None if each.is_secret else effective.text,
        read_only=each.is_read_only,
        is_sensitive=each.is_secret,
        config_source=effective.source,
        config_type=setting.kind.value,
        documentation=setting.doc if docs else None,
        synonyms=[
            m.DescribeConfigsResponse.DescribeConfigsSynonym(
                name=layer.name, value=None if each.is_secret else layer.text, source=layer.source
            )
            for layer in (effective.layers if synonyms else ())
        ],
    )


def _refuse(
    resource: m.DescribeConfigsRequest.DescribeConfigsResource, code: ErrorCode
) -> m.DescribeConfigsResponse.DescribeConfigsResult:
    return m.DescribeConfigsResponse.DescribeConfigsResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_code=code,
        error_message=NOT_AUTHORISED,
        configs=[],
    )


API = Api(
    key=32,
    name="DescribeConfigs",
    versions=(1, 4),
    handle=handle,
    lists="resources",
    is_large=lambda response: len(response.results) > AT_ONCE_MAX,
    pieces=(
        way("resources", "results", once=lambda each: (each.resource_type, each.resource_name), one_by_one=True),
    ),
    rights=on_settings(Operation.DESCRIBE_CONFIGS, _refuse, "results"),
)
