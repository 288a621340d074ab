"""Metrics of the node in its cluster: the quorum, requests, connections and disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond import __version__
from millpond.base.errors import ErrorCode
from millpond.broker.loop.steps import Steps, in_slices
from millpond.broker.metrics.exposition import Exposition, labels
from millpond.broker.metrics.readiness import unready_reason
from millpond.config.node import DATA_FOLDER
from millpond.metadata.leadership import NO_LEADER

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, MetadataContext, NodeContext, SecurityContext

PARTITIONS_AT_ONCE: Final = 200


def collect_node(
    page: Exposition, node: NodeContext, security: SecurityContext, metadata: MetadataContext, data: DataContext
) -> Steps[None]:
    info = page.gauge("millpond_node_info", "Always 1: who this node is, in its labels.")
    info.add(1, labels(node=node.node_id, version=__version__, cluster=metadata.image.cluster_id or ""))
    ready = page.gauge("millpond_node_ready", "1 while /readyz says that the node is ready, else 0.")
    fenced = page.gauge("millpond_node_fenced", "1 while the controller lets this node lead nothing, else 0.")
    reason = yield from unready_reason(node, metadata, data)
    ready.add(int(reason is None))
    fenced.add(int(metadata.lifecycle.is_fenced))
    open_now = page.gauge("millpond_connections", "Connections that are open.")
    open_now.add(len(node.connections))
    away = page.counter("millpond_connections_turned_away_total", "Connections refused: too many, or too fast.")
    away.add(node.connections.turned_away_total)
    newcomers = page.gauge("millpond_connections_not_logged_in", "Of these, those that have to log in yet.")
    newcomers.add(len(node.connections.newcomers))
    logins = page.counter("millpond_logins_total", "Logins by mechanism, and whether they were right.")
    for (mechanism, is_right), count in sorted(security.logins.counts.items()):
        logins.add(count, labels(mechanism=mechanism, outcome="in" if is_right else "refused"))
    throttled = page.counter("millpond_throttled_requests_total", "Requests whose clients had to wait for a quota.")
    throttled.add(security.quotas.throttled_total)
    waited = page.counter("millpond_throttle_seconds_total", "How long these clients were told to wait.")
    waited.add(security.quotas.throttled_ms_total / 1000)
    met = page.counter("millpond_limits_met_total", "How often somebody was refused because of a limit, by its name.")
    for limit, count in security.limits.counts.items():
        met.add(count, labels(limit=limit))
    _collect_share_letters(page, data)
    yield from _collect_disk(page, node)


def _collect_share_letters(page: Exposition, data: DataContext) -> None:
    """Dead letters that this node writes for share groups, as the leader of their records' partitions."""
    shares = data.shares_in_use()
    written = page.counter("millpond_share_dead_letters_written_total", "Dead letters written for share groups.")
    written.add(0 if shares is None else shares.services.letters.written_total)
    waiting = page.gauge("millpond_share_dead_letters_waiting", "Records whose dead letter is not yet written.")
    waiting.add(0 if shares is None else shares.letters_waiting())
    failing = page.gauge(
        "millpond_share_dead_letters_failing", "Share partitions whose last dead letter could not be written."
    )
    failing.add(0 if shares is None else len(shares.services.letters.failing))


def _collect_disk(page: Exposition, node: NodeContext) -> Steps[None]:
    disk, folder = node.world.disk, node.settings[DATA_FOLDER]
    free = page.gauge("millpond_disk_free_bytes", "What is free on the disk of the data folder.")
    total = page.gauge("millpond_disk_size_bytes", "How large that disk is.")

    def look() -> tuple[int, int] | None:
        try:
            return disk.free_bytes(folder), disk.total_bytes(folder)
        except OSError:
            return None

    found = yield node.workers.run(look)
    if found is not None:
        free.add(found[0])
        total.add(found[1])


def collect_metadata(
    page: Exposition, node: NodeContext, metadata: MetadataContext, data: DataContext
) -> Steps[None]:
    """Cluster metadata as every node knows it. Only the active controller knows the progress of the other nodes."""
    controller, image = metadata.controller, metadata.image
    page.gauge("millpond_controller_active", "1 where this node is the active controller, else 0.").add(
        int(controller.is_active)
    )
    page.gauge("millpond_quorum_leader", "The node that leads the metadata, as this one knows; -1 for none.").add(
        controller.leader_id
    )
    page.gauge("millpond_quorum_epoch", "The epoch of that leadership.").add(controller.leader_epoch)
    page.gauge("millpond_quorum_voters", "Nodes that vote on the metadata.").add(len(controller.host.voters))
    page.gauge("millpond_quorum_committed_offset", "Below it the metadata is committed.").add(
        controller.committed_offset
    )
    page.gauge("millpond_quorum_applied_offset", "So far this node has followed it.").add(controller.applied_offset)
    lag = page.gauge("millpond_quorum_lag_records", "How far each node is behind, as the active controller knows.")
    heard = page.gauge("millpond_quorum_heard_seconds", "How long ago the active controller heard of each node.")
    end_offset = controller.host.log.end_offset
    for state in controller.host.states():
        named = labels(node=state.replica.node_id)
        if state.end_offset >= 0:
            lag.add(max(end_offset - state.end_offset, 0), named)
        if state.fetched_ago_ms is not None:
            heard.add(state.fetched_ago_ms / 1000, named)
    brokers = list(image.brokers.values())
    page.gauge("millpond_cluster_brokers", "Brokers that are registered.").add(len(brokers))
    page.gauge("millpond_cluster_brokers_fenced", "Those that lead nothing: away, or not caught up.").add(
        sum(each.fenced for each in brokers)
    )
    page.gauge("millpond_cluster_topics", "Topics of the cluster.").add(len(image.topics))
    page.gauge("millpond_cluster_partitions", "Partitions of the cluster.").add(image.partitions_total)
    leaderless = page.gauge("millpond_cluster_partitions_leaderless", "Partitions without a leader.")
    unopened = page.gauge(
        "millpond_partitions_offline", "Partitions with a replica on this node whose log is not open, or has failed."
    )
    leaderless_count = unopened_count = seen = 0
    for topic in list(image.topics.values()):
        for index, known in enumerate(list(topic.partitions)):
            leaderless_count += known.leader == NO_LEADER
            if node.node_id in known.replicas:
                replica = data.partitions.by_id(topic.id, index)
                unopened_count += replica is None or replica.log.failed is not None
            seen += 1
            if seen % PARTITIONS_AT_ONCE == 0:
                yield None
    leaderless.add(leaderless_count)
    unopened.add(unopened_count)


def collect_requests(page: Exposition, node: NodeContext) -> Steps[None]:
    names = {api.key: api.name for api in node.apis()}
    counts = node.requests
    received = page.counter("millpond_requests_total", "Requests by API.")
    errors = page.counter(
        "millpond_request_errors_total", "Errors in answers, by API and error: one for each partition that has it."
    )
    times = page.histogram(
        "millpond_request_seconds", "From the arrival of a request to its answer; waiting is part of it, as in Fetch."
    )
    for key, count in counts.received.items():
        if count:
            received.add(count, labels(api=names[key]))
    for (key, code), count in list(counts.errors.items()):
        errors.add(count, labels(api=names[key], error=_error_name(code)))
    for some in in_slices([key for key, each in counts.times.items() if each.count], 20):
        for key in some:
            times.add_histogram(counts.times[key], api=names[key])
        page.seal()
        yield None


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
