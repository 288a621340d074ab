"""Detect that a worker is idle, and report what it waits for.

A wait that may never end is reported: a missing topic, an unreachable cluster, a group that assigns no partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millpond.client.connection import LOG
from millpond.client.consumer import Consumer
from millpond.client.errors import Timeout, UnknownTopic
from millpond.client.options import Options

GROUP_SECONDS_MAX: Final = 60.0
"""The time, on top of the idle time, for the group to assign partitions and the cluster to return their records."""

WAIT_SECONDS: Final = 6.0
"""Longer than a group takes whose members start one by one on a busy machine."""


class IdleTimeout:
    """Ends a run with `until_idle_s`."""

    def __init__(self, idle_s: float, consumer: Consumer, topics: Sequence[str], now: float) -> None:
        self._idle_s = idle_s
        self._consumer = consumer
        self._topics = topics
        self._worked_at = now
        """When a record was last in flight."""
        self._busy_at = now
        """When a record was last in flight or could still have come."""

    def is_over(self, now: float, *, is_working: bool) -> bool:
        """Raises if the wait cannot end: the cluster is unreachable, or a topic is missing."""
        consumer = self._consumer
        if is_working:
            self._worked_at = self._busy_at = now
            return False
        waited_s = now - self._worked_at
        if waited_s >= self._idle_s:
            self._raise_if_hopeless(waited_s)
        has_nothing = consumer.has_joined and not consumer.assignment()
        if not has_nothing and not consumer.is_at_end():
            self._busy_at = now
            return False
        return now - self._busy_at >= self._idle_s

    def _raise_if_hopeless(self, waited_s: float) -> None:
        consumer = self._consumer
        if consumer.reachability.is_down_for(self._idle_s):
            raise Timeout(
                f"cannot reach {consumer.reachability.where()} ({consumer.reachability.reason()}): check the address "
                "in `bootstrap` and that the cluster is up"
            )
        if missing := [topic for topic in consumer.missing_topics() if topic in self._topics]:
            raise UnknownTopic(f"there is no topic {', '.join(missing)}: create it first, or correct its name")
        if waited_s >= self._idle_s + GROUP_SECONDS_MAX and not consumer.is_at_end():
            what = "return all records of its topics" if consumer.has_joined else "admit this worker to its group"
            raise Timeout(f"the cluster did not {what} within {waited_s:.0f} s: see `millpond group describe`")


class GroupWait:
    """Logs why a worker has no partitions yet."""

    def __init__(self, consumer: Consumer, options: Options, now: float) -> None:
        self._consumer = consumer
        self._options = options
        self._since: float | None = now
        self._has_warned = False

    def look(self, now: float) -> None:
        consumer, options = self._consumer, self._options
        if consumer.has_joined:
            if self._has_warned:
                LOG.warning("joined the group %s", options.group)
            self._since, self._has_warned = None, False
            return
        is_explained = bool(consumer.missing_topics()) or consumer.is_waiting_for_instance()
        if self._since is None or is_explained or consumer.reachability.down_seconds():
            # The reason is logged elsewhere, or the wait has only just begun.
            self._since = now
            return
        if not self._has_warned and now - self._since >= WAIT_SECONDS:
            self._has_warned = True
            if options.protocol == "consumer":
                LOG.warning(
                    "waiting for the group %s: it keeps the partitions of a member that ended without leaving for "
                    "consumer.session.timeout.ms (45 s by default), and waits for a busy one",
                    options.group,
                )
                return
            LOG.warning(
                "waiting for the group %s: a member that ended without leaving is removed after session_timeout_s "
                "(%g s here), a busy one is waited for; with instance=… a restarted worker goes on at once",
                options.group,
                options.classic_session_timeout_s,
            )
