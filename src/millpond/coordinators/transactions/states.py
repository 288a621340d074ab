"""The states of a transactional ID, numbered as in the log, and all transitions."""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    """The outcome is final; the markers are being written."""
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """Expired; a tombstone in the log."""
    PREPARE_EPOCH_FENCE = 7
    """Before PREPARE_ABORT with a raised epoch; never written to the log."""

    @property
    def label(self) -> str:
        """The name that tools show."""
        return "".join(word.capitalize() for word in self.name.split("_"))


ALLOWED: dict[State, frozenset[State]] = {
    # Aborting a transaction without partitions goes straight to PREPARE_ABORT (transactions v2).
    State.EMPTY: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.ONGOING: frozenset(
        {State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT, State.PREPARE_EPOCH_FENCE},
    ),
    State.PREPARE_COMMIT: frozenset({State.COMPLETE_COMMIT}),
    State.PREPARE_ABORT: frozenset({State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.COMPLETE_ABORT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.DEAD: frozenset(),
    State.PREPARE_EPOCH_FENCE: frozenset({State.PREPARE_ABORT}),
}
assert ALLOWED.keys() == set(State)

DECIDED = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
"""The outcome is decided, but not written everywhere."""

RESTING = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
"""No transaction is open: the ID may begin one, get a new epoch, or expire."""

BY_LABEL = {state.label: state for state in State}
