"""The levels of a cluster's features: supported, finalized, and changes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millpond import __version__
from millpond.base.errors import RemoteError
from millpond.metadata.features import FEATURES, Levels, UpgradeType
from millpond.remote.cluster import Cluster
from millpond.remote.errors import ClientError, check
from millpond.wire import messages as m

SOFTWARE = "millpond"


@dataclass(frozen=True, slots=True)
class FeatureFacts:
    """One feature of a cluster."""

    name: str
    final: int
    """0 if it is not used."""
    nodes: Mapping[int, Levels | None]
    """The levels that each node supports; None if it does not know the feature."""
    silent: tuple[int, ...] = ()
    """Nodes that did not answer."""

    @property
    def newest(self) -> int:
        """The newest level that all answering nodes support."""
        return min((levels.newest if levels else 0 for levels in self.nodes.values()), default=0)

    @property
    def can_be_raised(self) -> bool:
        """Whether an upgrade of all features includes this one."""
        feature = FEATURES.get(self.name)
        return self.newest > self.final and not (feature is not None and feature.is_for_good)

    @property
    def brings(self) -> tuple[str, ...]:
        """The benefits of raising it to the newest level."""
        feature = FEATURES.get(self.name)
        texts = feature.brings if feature is not None else {}
        return tuple(text for level, text in sorted(texts.items()) if self.final < level <= self.newest)


@dataclass(frozen=True, slots=True)
class _NodeFeatures:
    supported: Mapping[str, Levels]
    final: Mapping[str, int]
    epoch: int


def describe_features(cluster: Cluster) -> tuple[FeatureFacts, ...]:
    """Every supported or finalized feature. The finalized levels come from the node with the newest metadata."""
    answers: dict[int, _NodeFeatures] = {}
    silent = []
    for node_id in sorted(cluster.addresses()):
        try:
            answers[node_id] = _ask(cluster, node_id)
        except (ClientError, RemoteError):
            silent.append(node_id)
    if not answers:
        return ()
    final = max(answers.values(), key=lambda each: each.epoch).final
    names = {*final, *(name for each in answers.values() for name in each.supported)}
    order = [*FEATURES, *sorted(names - FEATURES.keys())]
    return tuple(
        FeatureFacts(
            name,
            final.get(name, 0),
            {node_id: each.supported.get(name) for node_id, each in answers.items()},
            tuple(silent),
        )
        for name in order
        if name in names
    )


def _ask(cluster: Cluster, node_id: int) -> _NodeFeatures:
    request = m.ApiVersionsRequest(client_software_name=SOFTWARE, client_software_version=__version__)
    response = cluster.broker(node_id).ask(request, m.ApiVersionsResponse)
    check(response.error_code, f"node {node_id} does not report its features")
    return _NodeFeatures(
        {each.name: Levels(each.min_version, each.max_version) for each in response.supported_features},
        {each.name: each.max_version_level for each in response.finalized_features},
        response.finalized_features_epoch,
    )


def update_features(
    cluster: Cluster, levels: Mapping[str, int], upgrade_type: UpgradeType, *, is_dry: bool = False
) -> None:
    """Finalizes these levels, all or none. A refusal has the cluster's message."""
    request = m.UpdateFeaturesRequest(
        feature_updates=[
            m.UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=upgrade_type)
            for name, level in levels.items()
        ],
        validate_only=is_dry,
    )

    def ask() -> None:
        response = cluster.any().ask(request, m.UpdateFeaturesResponse)
        check(response.error_code, "the feature levels were not changed", response.error_message)
        for result in response.results:
            check(result.error_code, f"{result.feature} was not changed", result.error_message)

    cluster.retrying("change the levels of features", ask)
