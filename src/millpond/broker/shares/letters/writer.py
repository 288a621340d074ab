"""Writes the dead letters of one share partition, in the order of the records, and then archives these.

The records wait as ranges of the window. In a turn, the first of them are read from the log on a worker, written as
one batch, and archived once it is committed; the next turn begins when that is written down. What fails is repeated,
with growing delays and one line in the journal for each reason, until it succeeds: a letter is never given up. A
crash between the letter and its archiving makes the next leader write it again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from millpond.base.errors import ErrorCode, MalformedMessage, Refused
from millpond.base.later import Later
from millpond.broker.requests.replies import release_ranges
from millpond.broker.shares.letters.letter import Sender, Shortening
from millpond.broker.shares.letters.log_letters import Due, Letters, letters_in_log
from millpond.wire.batch import CorruptBatch

if TYPE_CHECKING:
    from millpond.base.clock import Timer
    from millpond.base.ports import Clock, Workers
    from millpond.broker.replication.partitions import Partition
    from millpond.broker.shares.letters.office import LetterOffice
    from millpond.broker.shares.read_settings import ShareReadSettings
    from millpond.broker.shares.slots import Change
    from millpond.broker.shares.window import ShareWindow

LETTERS_AT_ONCE: Final = 200
"""Letters of one batch; to archive them takes the loop a few milliseconds."""
READ_BYTES: Final = 1 << 20
"""Of the log, in one turn; more if its first batch is larger."""
RETRY_MS: Final = 200
RETRY_MS_MAX: Final = 10_000
"""How long to wait after a failure; the delay doubles each time."""

REASONS_MAX: Final = 10

TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class LetterWriter:
    def __init__(
        self,
        partition: Partition,
        group_id: str,
        window: ShareWindow,
        office: LetterOffice,
        clock: Clock,
        workers: Workers,
        journal: Callable[..., None],
        *,
        settings: Callable[[], ShareReadSettings],
        write: Callable[[Change], Later[ErrorCode]],
        on_idle: Callable[[], None],
    ) -> None:
        """`write` writes a change down, `settings` are those of the group now; `on_idle` is called when no letter is
        left."""
        self._partition = partition
        self._group_id = group_id
        self._window = window
        self._office = office
        self._clock = clock
        self._workers = workers
        self._journal = journal
        self._settings = settings
        self._write = write
        self._on_idle = on_idle
        self._is_busy = False
        self._is_stopped = False
        self._timer: Timer | None = None
        self._retry_ms = RETRY_MS
        self._topic = ""
        self._is_unwanted = False
        """Whether the journal says that there is no topic any longer."""
        self._letters_max = LETTERS_AT_ONCE
        self._shortening = Shortening.WHOLE
        self._reasons: set[str] = set()
        """Why letters have failed since the last one was written; the journal has each."""
        self._lost = 0
        """Records without a letter that the journal has mentioned."""

    def look(self) -> None:
        """There may be letters to write."""
        self._report_lost()
        if not self._is_busy and not self._is_stopped and self._window.archiving_count:
            self._is_busy = True
            self._office.enter(self)

    def stop(self) -> None:
        """The leader has ended; a write that has begun may still succeed."""
        self._is_stopped = True
        self._office.failing.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    # One turn.

    def begin(self) -> None:
        if self._is_stopped:
            self._office.leave(self)
            return
        settings, name = self._settings(), self._partition.name
        topic = settings.letters_of(name.topic)
        if topic != self._topic:
            self._topic, self._shortening, self._retry_ms = topic, Shortening.WHOLE, RETRY_MS
            self._is_unwanted = False
        self._window.advance_start(self._partition.log.start_offset)
        self._report_lost()
        due = [
            Due(first, last, slot.deliveries, slot.failure)
            for first, last, slot in self._window.letters_due(LETTERS_AT_ONCE)
        ]
        if not due:
            # What is left is being written down, and `look` comes then.
            self._end()
            return
        if not topic:
            self._report_unwanted()
            self._archive(due, due[-1].last)
            return
        sender = Sender(name.topic, name.partition, self._group_id, settings.copies_records)
        self._read(due, sender).then(partial(self._send, topic, due), self._fail)

    def _read(self, due: list[Due], sender: Sender) -> Later[Letters]:
        try:
            # No further than the log goes: what follows a record shows that it was removed, and is not only unread.
            ranges, _ = self._partition.read(due[0].first, READ_BYTES, at_least_one_batch=True)
        except Refused as refused:
            failure: Later[Letters] = Later()
            failure.fail(refused)
            return failure
        job = partial(
            letters_in_log,
            *(ranges, due, sender, self._clock.wall_ms()),
            letters_max=self._letters_max,
            shortening=self._shortening,
        )

        def release(letters: Letters) -> Letters:
            release_ranges(ranges)
            return letters

        def fail(failure: Exception) -> Letters:
            release_ranges(ranges)
            raise failure

        return self._workers.run(job).map(release).recover(Exception, fail)

    def _send(self, topic: str, due: list[Due], letters: Letters) -> None:
        if self._is_stopped:
            self._office.leave(self)
        elif letters.last < due[0].first:
            text = f"nothing could be read at offset {due[0].first} of {self._partition.name}"
            self._fail(Refused(ErrorCode.KAFKA_STORAGE_ERROR, text))
        elif letters.batch is None:
            self._archive(due, letters.last)
        else:
            self._office.target.write(topic, self._partition.name.partition, letters.batch).then(
                partial(self._on_sent, due, letters), partial(self._on_unsent, letters)
            )

    def _on_sent(self, due: list[Due], letters: Letters, _: None) -> None:
        self._office.written_total += letters.letter_count
        self._letters_max = min(2 * self._letters_max, LETTERS_AT_ONCE)
        self._shortening = Shortening.WHOLE
        self._retry_ms = RETRY_MS
        self._office.failing.discard(self)
        if self._reasons:
            self._reasons.clear()
            self._journal(
                "dead letters of a share group are written again",
                group=self._group_id,
                partition=str(self._partition.name),
            )
        self._archive(due, letters.last)

    def _archive(self, due: list[Due], last: int) -> None:
        if self._is_stopped:
            self._office.leave(self)
            return
        ranges = [(each.first, min(each.last, last)) for each in due if each.first <= last]
        # A write with an unknown outcome goes on: its records are not due again.
        self._write(self._window.archive(ranges)).then(lambda _: self._end())

    def _end(self) -> None:
        self._is_busy = False
        self._office.leave(self)
        if self._is_stopped:
            return
        if self._window.archiving_count:
            # Soon, not now: the next turn may be that of another.
            self._clock.call_soon(self.look)
        else:
            self._on_idle()

    # Failures.

    def _on_unsent(self, letters: Letters, failure: Exception) -> None:
        if isinstance(failure, Refused) and failure.code in TOO_LARGE and self._make_smaller(letters):
            self._end()
        else:
            self._fail(failure)

    def _make_smaller(self, letters: Letters) -> bool:
        """Write fewer letters at once, or a single one with less in it. False if nothing more can be left out."""
        if letters.letter_count > 1:
            self._letters_max = letters.letter_count // 2
        elif self._shortening < Shortening.WITHOUT_HEADERS:
            self._shortening = Shortening(self._shortening + 1)
        else:
            # The limit of the topic may be raised.
            self._shortening = Shortening.WHOLE
            return False
        return True

    def _fail(self, failure: Exception) -> None:
        if not isinstance(failure, Refused | OSError | CorruptBatch | MalformedMessage):
            raise failure
        self._office.leave(self)
        if self._is_stopped:
            return
        self._office.failing.add(self)
        reason = str(failure)
        if reason not in self._reasons and len(self._reasons) < REASONS_MAX:
            self._reasons.add(reason)
            self._journal(
                "dead letters of a share group cannot be written, and wait",
                group=self._group_id,
                partition=str(self._partition.name),
                topic=self._topic,
                waiting=self._window.archiving_count,
                reason=reason,
            )
        self._timer = self._clock.call_later(self._retry_ms, self._again)
        self._retry_ms = min(2 * self._retry_ms, RETRY_MS_MAX)

    def _again(self) -> None:
        self._timer = None
        self._office.enter(self)

    def _report_unwanted(self) -> None:
        if not self._is_unwanted:
            self._is_unwanted = True
            self._journal(
                "records of a share group are archived without dead letters: it has no dead-letter topic any longer",
                group=self._group_id,
                partition=str(self._partition.name),
                records=self._window.archiving_count,
            )

    def _report_lost(self) -> None:
        lost, self._lost = self._window.lost_letters - self._lost, self._window.lost_letters
        if lost:
            self._journal(
                "records of a share group were deleted before their dead letters were written: keep them longer",
                group=self._group_id,
                partition=str(self._partition.name),
                records=lost,
            )
