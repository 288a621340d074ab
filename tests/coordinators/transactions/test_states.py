from millpond.coordinators.transactions.states import ALLOWED, BY_LABEL, DECIDED, RESTING, State


def test_the_outcome_once_decided_can_only_be_completed() -> None:
    assert ALLOWED[State.PREPARE_COMMIT] == {State.COMPLETE_COMMIT}
    assert ALLOWED[State.PREPARE_ABORT] == {State.COMPLETE_ABORT}


def test_nothing_leads_from_a_commit_to_an_abort_without_a_new_transaction() -> None:
    reached = {State.PREPARE_COMMIT}
    while True:
        more = reached | {after for state in reached - RESTING - {State.ONGOING} for after in ALLOWED[state]}
        if more == reached:
            break
        reached = more
    assert reached == {State.PREPARE_COMMIT, State.COMPLETE_COMMIT}


def test_every_state_can_be_reached_and_left_except_the_dead() -> None:
    assert {after for afters in ALLOWED.values() for after in afters} == set(State)
    assert [state for state in State if not ALLOWED[state]] == [State.DEAD]


def test_names_are_those_that_tools_know() -> None:
    assert BY_LABEL["PrepareEpochFence"] is State.PREPARE_EPOCH_FENCE
    assert [state.label for state in sorted(DECIDED)] == ["PrepareCommit", "PrepareAbort"]
