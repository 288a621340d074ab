"""Whether a worker has nothing to do, or waits for something that it should name.

What may never come is not waited for without a word: a topic that is not there, a cluster that nobody reaches, a
group that gives no partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millpond.client.connection import LOG
from millpond.client.consumer import Consumer
from millpond.client.errors import Timeout, UnknownTopic
from millpond.client.options import Options

GROUP_SECONDS_MAX: Final = 60.0
"""So long a group may take to give partitions, and a cluster to hand out what is in them, beside the idle time."""

WAIT_SECONDS: Final = 6.0
"""A group whose members start one by one on a busy machine is ready in less."""


class Idleness:
    """When a run ends that goes on until nothing came for so long."""

    def __init__(self, idle_s: float, consumer: Consumer, topics: Sequence[str], now: float) -> None:
        self._idle_s = idle_s
        self._consumer = consumer
        self._topics = topics
        self._worked_at = now
        """When there was a record in hand last."""
        self._busy_at = now
        """When there was one, or one could have come."""

    def is_over(self, now: float, *, is_working: bool) -> bool:
        """Raises when the end will not come: nobody is there, or not what it reads."""
        consumer = self._consumer
        if is_working:
            self._worked_at = self._busy_at = now
            return False
        has_nothing = consumer.has_joined and not consumer.assignment()
        if not has_nothing and not consumer.is_at_end():
            self._busy_at = now
        waited_s = now - self._worked_at
        if waited_s >= self._idle_s:
            self._raise_if_hopeless(waited_s)
        return now - self._busy_at >= self._idle_s

    def _raise_if_hopeless(self, waited_s: float) -> None:
        consumer = self._consumer
        if consumer.reach.down_seconds() >= self._idle_s:
            raise Timeout(
                f"cannot reach {consumer.reach.where()} ({consumer.reach.reason()}): check the address in "
                "`bootstrap` and that the cluster is up"
            )
        if missing := [topic for topic in consumer.missing_topics() if topic in self._topics]:
            raise UnknownTopic(f"there is no topic {', '.join(missing)}: create it first, or correct its name")
        if waited_s >= self._idle_s + GROUP_SECONDS_MAX and not consumer.is_at_end():
            what = "hand out all that is in its topics" if consumer.has_joined else "let this worker into its group"
            raise Timeout(f"the cluster did not {what} within {waited_s:.0f} s: see `millpond group describe`")


class GroupWait:
    """Says what a worker waits for that has been given nothing to read."""

    def __init__(self, consumer: Consumer, options: Options, now: float) -> None:
        self._consumer = consumer
        self._options = options
        self._since: float | None = now
        self._is_told = False

    def look(self, now: float) -> None:
        consumer, options = self._consumer, self._options
        if consumer.has_joined:
            if self._is_told:
                LOG.warning("the group %s has let this worker in; it goes on", options.group)
            self._since, self._is_told = None, False
            return
        is_explained = bool(consumer.missing_topics()) or consumer.is_waiting_for_instance()
        if self._since is None or is_explained or consumer.reach.down_seconds():
            # Why nothing comes is told elsewhere, or has only just begun.
            self._since = now
            return
        if not self._is_told and now - self._since >= WAIT_SECONDS:
            self._is_told = True
            if options.protocol == "consumer":
                LOG.warning(
                    "waiting for the group %s: it keeps the partitions of a member that ended without leaving for "
                    "its consumer.session.timeout.ms (45 s by default), and waits for one that is busy",
                    options.group,
                )
                return
            LOG.warning(
                "waiting for the group %s: a member that ended without leaving is missed after its session_timeout_s "
                "(%g s here), one that is busy is waited for; with instance=… a restarted worker goes on at once",
                options.group,
                options.classic_session_timeout_s,
            )
