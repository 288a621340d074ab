"""A reader's first connection, with a short timeout: a wrong address is likelier than a slow node."""

from __future__ import annotations

from typing import Final

from millpond.remote.cluster import Cluster
from millpond.spark.options import Options

FIRST_CONTACT_SECONDS: Final = 10.0


def connect(options: Options) -> Cluster:
    """Connect; ClusterError names the address that does not answer."""
    cluster = Cluster(options.kafka)
    try:
        seconds = min(FIRST_CONTACT_SECONDS, cluster.patience_seconds)
        cluster.retrying(f"reach the cluster at {options.bootstrap}", cluster.any, seconds=seconds)
    except BaseException:
        cluster.close()
        raise
    return cluster
