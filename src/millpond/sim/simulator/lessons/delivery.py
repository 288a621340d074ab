"""Lessons about delivery: at most once, at least once, exactly once; poison; transactions."""

from __future__ import annotations

from typing import Final

from millpond.sim.simulator.actions import (
    AddConsumer,
    CrashConsumer,
    CreateTopic,
    Cut,
    Heal,
    Produce,
    Transact,
)
from millpond.sim.simulator.lessons.lesson import Lesson

LESSONS: Final = (
    Lesson(
        name="at-least-once",
        title="Work, then commit: a crash between makes duplicates",
        about=(
            "A consumer sends a mail for each order, then commits. It is killed between the two, and started again."
        ),
        question="Are mails missing, or sent twice?",
        answer=(
            "Twice: its work was done, and its offset was not committed. Nothing is missing. That is at least once."
        ),
        claims=(
            "Work before commit is at least once: a crash between the two does records again, and loses none.",
            "At least once is the usual choice, and duplicates are a part of it.",
        ),
        before=(
            CreateTopic(partitions=1),
            300,
            AddConsumer("mail-1", "mail", commit="after"),
            1000,
            Produce(count=4, value="mail "),
            600,
            CrashConsumer("mail-1", between=True),
            Produce(count=4, value="late "),
            600,
        ),
        after=(AddConsumer("mail-1", "mail", commit="after"), 4000),
    ),
    Lesson(
        name="at-most-once",
        title="Commit, then work: a crash between loses records",
        about="The same consumer commits first and sends its mails then. It is killed between the two.",
        question="Are mails missing, or sent twice?",
        answer=(
            "Missing, for ever: the offset says that they are done, and they are not read again. No error is "
            "recorded anywhere. That is at most once."
        ),
        claims=("Commit before work is at most once: a crash between the two passes records over for ever.",),
        before=(
            CreateTopic(partitions=1),
            300,
            AddConsumer("mail-1", "mail", commit="before"),
            1000,
            Produce(count=4, value="mail "),
            600,
            CrashConsumer("mail-1", between=True),
            Produce(count=4, value="late "),
            600,
        ),
        after=(AddConsumer("mail-1", "mail", commit="before"), 4000),
    ),
    Lesson(
        name="idempotent-consumer",
        title="Duplicates that do no harm",
        about=(
            "At least once again, but the consumer remembers the id of each order with what it did, outside, and "
            "looks there first."
        ),
        question="What comes of the records that are delivered twice?",
        answer="They are recognised, and nothing is done. At least once with this has the effect of exactly once.",
        claims=(
            "At least once with an idempotent consumer (a key that a write cannot repeat) has each effect once.",
        ),
        before=(
            CreateTopic(partitions=1),
            300,
            AddConsumer("pay-1", "pay", deduplicates=True),
            1000,
            Produce(count=4, value="pay "),
            600,
            CrashConsumer("pay-1", between=True),
            Produce(count=4, value="late "),
            600,
        ),
        after=(AddConsumer("pay-1", "pay", deduplicates=True), 4000),
    ),
    Lesson(
        name="exactly-once",
        title="Exactly once, under a crash",
        about=(
            "A consumer reads orders and writes invoices. Its invoices and its offsets are one transaction. It is "
            "killed with a transaction open, and started again."
        ),
        question="Is there an order without an invoice, or one with two? And what of mails that it sends meanwhile?",
        answer=(
            "Each order has one invoice, as far as readers of committed records see: the open transaction is "
            "aborted, its invoices are never shown, its offsets never count. A mail that was sent in it is sent "
            "again: what is outside is no part of a transaction."
        ),
        claims=(
            "Output and offsets in one transaction are exactly once from topic to topic, whatever crashes.",
            "A reader of committed records never sees records of aborted or open transactions.",
            "Exactly once ends at the edge of the system: an effect outside has to be idempotent by itself.",
            "A producer that comes back with its transactional id ends what the one before left open.",
        ),
        before=(
            CreateTopic(partitions=1),
            CreateTopic("invoices", partitions=2),
            400,
            AddConsumer("invoice-1", "invoice", output="invoices"),
            1500,
            Produce(count=4, value="order "),
            800,
            CrashConsumer("invoice-1", between=True),
            Produce(count=4, value="late "),
            800,
        ),
        after=(AddConsumer("invoice-1", "invoice", output="invoices"), 6000),
    ),
    Lesson(
        name="lost-acknowledgement",
        title="The acknowledgement is lost, the producer tries again",
        about=(
            "Two producers write with acks=all; one numbers its batches (idempotent), the other does not. The way "
            "back from the leader is cut: both have written, and neither gets a response."
        ),
        question="Both send again when the network is back. Whose records are in the log twice?",
        answer=(
            "Those of the producer without numbers. Of the other the broker knows the number already: it says "
            "that it has the batch, and appends nothing."
        ),
        claims=(
            "A retry after a lost acknowledgement writes a record twice.",
            "An idempotent producer's batches have numbers, by which the broker drops what it has already.",
        ),
        before=(
            CreateTopic(partitions=1),
            300,
            Produce(producer="plain", idempotent=False, value="plain 0"),
            Produce(producer="numbered", value="numbered 0"),
            400,
            Cut("leader", "plain", one_way=True),
            Cut("leader", "numbered", one_way=True),
            Produce(producer="plain", idempotent=False, value="plain 1"),
            Produce(producer="numbered", value="numbered 1"),
            1500,
        ),
        after=(Heal(), 4000),
    ),
    Lesson(
        name="poison",
        title="A poison record stops its partition",
        about="One record makes the handler fail, every time. Others follow it in its partition.",
        question="What happens to those behind it, and to the other partitions?",
        answer=(
            "Those behind it wait, for ever: order is kept, so nothing overtakes. The other partitions go on, and "
            "the lag of this one grows silently."
        ),
        claims=(
            "A record that cannot be handled blocks its partition for as long as it is tried.",
            "A slow or stuck record holds up all that is behind it in its partition (head-of-line blocking).",
        ),
        before=(CreateTopic(), 300, AddConsumer("shop-1", "shop"), 1500),
        after=(
            Produce(keys=("bob",), value="poison"),
            20,
            Produce(count=12, keys=("ann", "bob", "cem")),
            3000,
        ),
    ),
    Lesson(
        name="dead-letters",
        title="Dead letters let the partition go on",
        about="The same poison, but the consumer gives a record up after three attempts and writes it to orders.dlq.",
        question="What is lost, and what waits?",
        answer=(
            "Nothing is lost and nothing waits: the record is in orders.dlq with where it came from, and the "
            "partition goes on behind it. An operator can look at it, fix the cause, and send it back."
        ),
        claims=(
            "After some attempts a record goes to a dead-letter topic, with where it came from, and the partition "
            "goes on.",
        ),
        before=(CreateTopic(), 300, AddConsumer("shop-1", "shop", dead_letters=True), 1500),
        after=(
            Produce(keys=("bob",), value="poison"),
            20,
            Produce(count=12, keys=("ann", "bob", "cem")),
            3000,
        ),
    ),
    Lesson(
        name="isolation",
        title="read_committed against read_uncommitted",
        about=(
            "Two groups read the same topic, one of them only what is committed. A transaction writes to all "
            "partitions, stays open for a while, and is aborted; another one is committed."
        ),
        question="Which of the records does each group see, and when?",
        answer=(
            "The careless one sees everything at once, also what never came to be. The other one sees nothing "
            "behind the first open transaction (the last stable offset), and of the aborted one nothing at all."
        ),
        claims=(
            "A transaction's records in several partitions are seen together or not at all by readers of "
            "committed ones.",
            "With read_uncommitted aborted records are seen as any others.",
        ),
        before=(
            CreateTopic(),
            300,
            AddConsumer("careful-1", "careful", read_committed=True),
            AddConsumer("careless-1", "careless"),
            1500,
        ),
        after=(
            Transact(count=3, ending="abort", hold_ms=600),
            1500,
            Transact(count=3, ending="commit", hold_ms=600, producer="cashier-2"),
            2500,
        ),
    ),
    Lesson(
        name="hanging-transaction",
        title="A transaction that hangs holds readers back",
        about=(
            "A producer begins a transaction, writes, and is never heard of again. Others go on writing without one."
        ),
        question="How long does a reader of committed records wait for the others' records?",
        answer=(
            "Until the transaction times out (here 5 s) and the coordinator aborts it. Until then the last stable "
            "offset is before it, and all that is behind waits."
        ),
        claims=("An open transaction holds back readers of committed records, until it ends or times out.",),
        before=(
            CreateTopic(partitions=1),
            300,
            AddConsumer("careful-1", "careful", read_committed=True),
            1500,
            Transact(count=2, ending="hang"),
            800,
        ),
        after=(Produce(count=3, value="behind "), 1500, 6000),
    ),
)
