"""UpdateFeatures (57), versions 0-2: raise or lower the levels of features, or only validate that.

1 kinds of downgrades, validate only · 2 top-level error only. A request is carried out whole or not at all. Versions
0 and 1 also have a result per feature; their top-level error is set whenever one of them was refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done
from millpond.base.rights import Operation
from millpond.broker.authorization.required_rights import on_cluster
from millpond.broker.forwarding.change_relay import relay_change
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.metadata.decision import OK, Verdict
from millpond.metadata.features import KRAFT_VERSION, FeatureUpdate, UpgradeType, decide_update_features
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext

KINDS_FROM = 1
ONE_ERROR_FROM = 2


NOT_AT_FAULT = ErrorCode.FEATURE_UPDATE_FAILED
"""The message for features that were not changed because another one was refused."""


def handle(node: NodeContext, metadata: MetadataContext, call: Call, request: m.UpdateFeaturesRequest) -> Outcome:
    updates = [
        FeatureUpdate(each.feature, each.max_version_level, _upgrade_type(each, call.version))
        for each in request.feature_updates
    ]
    controller = metadata.controller

    def decide(*, is_dry: bool) -> Later[tuple[Verdict, ...]]:
        kraft_version = controller.kraft_version
        return controller.submit(
            lambda image: decide_update_features(
                image, updates, controller.supported, kraft_version=kraft_version, is_dry=is_dry
            )
        )

    def go_on(verdicts: tuple[Verdict, ...]) -> Later[tuple[Verdict, ...]]:
        """Raises the quorum's own level first: if that fails, nothing else is changed."""
        if request.validate_only or not all(each.ok for each in verdicts):
            return done(verdicts)
        if not _raises_quorum(updates, controller.kraft_version):
            return decide(is_dry=False)
        raised = controller.raise_kraft_version()
        return raised.chain(lambda raised: decide(is_dry=False) if raised.ok else done((raised,) * len(updates)))

    def answer(verdicts: tuple[Verdict, ...]) -> m.UpdateFeaturesResponse:
        worst = next((each for each in verdicts if each.code not in (ErrorCode.NONE, NOT_AT_FAULT)), OK)
        if worst.ok and not request.validate_only:
            for each in updates:
                node.journal("the level of a feature is final", feature=each.name, level=each.level)
        if call.version >= ONE_ERROR_FROM or not updates:
            return m.UpdateFeaturesResponse(error_code=worst.code, error_message=worst.message, results=[])
        return m.UpdateFeaturesResponse(
            error_code=worst.code,
            error_message=worst.message,
            results=[
                m.UpdateFeaturesResponse.UpdatableFeatureResult(
                    feature=each.name, error_code=verdict.code, error_message=verdict.message
                )
                for each, verdict in zip(updates, verdicts, strict=True)
            ],
        )

    return (
        decide(is_dry=True)
        .chain(go_on)
        .map(answer)
        .recover(
            Refused,
            lambda refused: m.UpdateFeaturesResponse(
                error_code=refused.code, error_message=refused.message, results=[]
            ),
        )
    )


def forward(metadata: MetadataContext, call: Call, request: m.UpdateFeaturesRequest) -> Later[Any]:
    """Forwards to the active controller, unless that is too old to answer."""
    known = metadata.image.brokers.get(metadata.controller.leader_id)
    if known is None or known.features:
        return relay_change(metadata, call, request)
    text = (
        f"node {known.id}, the active controller, has not said what it supports: it runs an older version, and has "
        "to be upgraded first, or it has just become the controller"
    )
    return done(
        m.UpdateFeaturesResponse(
            error_code=ErrorCode.INVALID_UPDATE_VERSION,
            error_message=text,
            results=[],
        )
    )


def _raises_quorum(updates: Sequence[FeatureUpdate], kraft_version: int) -> bool:
    return any(each.name == KRAFT_VERSION and each.level > kraft_version for each in updates)


def _upgrade_type(update: m.UpdateFeaturesRequest.FeatureUpdateKey, version: int) -> int:
    if version >= KINDS_FROM:
        return update.upgrade_type
    return UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE


API = Api(
    key=57,
    name="UpdateFeatures",
    versions=(0, 2),
    handle=handle,
    lists="feature_updates",
    at_controller=True,
    forward=forward,
    rights=on_cluster(Operation.ALTER),
)
