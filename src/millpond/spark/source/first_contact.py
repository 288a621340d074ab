"""The first contact of a reader with its cluster: short, as a wrong address is more likely there than a slow node."""

from __future__ import annotations

from typing import Final

from millpond.remote.cluster import Cluster
from millpond.spark.options import Options

FIRST_CONTACT_SECONDS: Final = 10.0


def connect(options: Options) -> Cluster:
    """A cluster that answers. ClusterError says which address does not."""
    cluster = Cluster(options.kafka)
    try:
        seconds = min(FIRST_CONTACT_SECONDS, cluster.patience_seconds)
        cluster.retrying(f"reach the cluster at {options.bootstrap}", cluster.any, seconds=seconds)
    except BaseException:
        cluster.close()
        raise
    return cluster
