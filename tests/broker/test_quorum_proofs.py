"""Until when a quorum leader certainly had its followers."""

from __future__ import annotations

from uuid import UUID

from millpond.broker.quorum.proofs import Proofs
from millpond.quorum.messages import ReplicaKey

VOTER = ReplicaKey(2, UUID(int=2))
EPOCH = 7


def test_a_fetch_proves_that_its_sender_followed_when_the_answer_before_it_left() -> None:
    proofs = Proofs()
    proofs.on_fetch(VOTER, 1, EPOCH)
    assert proofs.followed_ms(VOTER, EPOCH) is None, "it may have been under way for long"
    proofs.on_answer(VOTER, 1, EPOCH, 1_000)
    assert proofs.followed_ms(VOTER, EPOCH) is None, "the answer may never arrive"
    proofs.on_fetch(VOTER, 1, EPOCH)
    assert proofs.followed_ms(VOTER, EPOCH) == 1_000
    # This one waits for new records, and is answered long after it arrived.
    proofs.on_answer(VOTER, 1, EPOCH, 1_500)
    assert proofs.followed_ms(VOTER, EPOCH) == 1_000
    proofs.on_fetch(VOTER, 1, EPOCH)
    assert proofs.followed_ms(VOTER, EPOCH) == 1_500


def test_fetches_that_lay_in_wait_while_the_process_was_stopped_prove_nothing() -> None:
    proofs = Proofs()
    proofs.on_fetch(VOTER, 1, EPOCH)
    proofs.on_answer(VOTER, 1, EPOCH, 1_000)
    # Stopped here. The next fetch was sent before that and abandoned; its sender reconnected.
    proofs.on_fetch(VOTER, 1, EPOCH)
    proofs.on_answer(VOTER, 1, EPOCH, 9_000)
    proofs.on_fetch(VOTER, 2, EPOCH)
    assert proofs.followed_ms(VOTER, EPOCH) == 1_000


def test_what_was_proved_in_another_epoch_counts_no_more() -> None:
    proofs = Proofs()
    for _ in range(2):
        proofs.on_fetch(VOTER, 1, EPOCH)
        proofs.on_answer(VOTER, 1, EPOCH, 1_000)
    assert proofs.followed_ms(VOTER, EPOCH) == 1_000
    assert proofs.followed_ms(VOTER, EPOCH + 1) is None
    proofs.on_fetch(VOTER, 1, EPOCH + 1)
    assert proofs.followed_ms(VOTER, EPOCH + 1) is None, "the answer before it was one of the epoch before"
