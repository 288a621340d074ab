"""A compacted topic that is written in transactions: after compaction it still is the table that was committed."""

from __future__ import annotations

import random

import pytest
from confluent_kafka import Producer

from support.node import eventually
from support.raw import Raw, batch
from support.raw_transactions import READ_COMMITTED, NODE_SETTINGS, end_offset, fetch
from support.transactions import END

from millpond.wire.batch import walk
from millpond.wire.records import decode_batch

TOPIC = "table"
KEYS = 40
TRANSACTIONS = 60
SETTINGS = {**NODE_SETTINGS, "log.cleaner.backoff.ms": "100"}


def write(node, model, dice, name, transactions=TRANSACTIONS):
    """Transactions of puts and deletes, a third of them aborted; only committed ones change the model."""
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(20.0)
    for turn in range(transactions):
        changed = {}
        producer.begin_transaction()
        for _ in range(dice.randrange(1, 40)):
            key = b"key-%d" % dice.randrange(KEYS)
            value = None if dice.random() < 0.2 else b"%s-%d-" % (name.encode(), turn) + dice.randbytes(30)
            producer.produce(TOPIC, value, key, 0)
            changed[key] = value
        producer.flush(20.0)
        if dice.random() < 0.33:
            producer.abort_transaction(20.0)
        else:
            producer.commit_transaction(20.0)
            model.update(changed)


def table(raw):
    """The topic as a reader of committed records sees it, and how many records that took."""
    found, count, offset = {}, 0, fetch(raw, TOPIC).log_start_offset
    end = end_offset(raw, TOPIC, READ_COMMITTED)
    while offset < end:
        reply = fetch(raw, TOPIC, offset)
        assert not reply.error_code
        aborts = sorted((each.first_offset, each.producer_id) for each in reply.aborted_transactions or ())
        aborting = set()
        before = offset
        for position, header in walk(reply.records):
            while aborts and aborts[0][0] < header.next_offset:
                aborting.add(aborts.pop(0)[1])
            if header.is_control:
                aborting.discard(header.producer_id)
            elif header.producer_id not in aborting or not header.is_transactional:
                for record in decode_batch(reply.records, position):
                    if record.offset >= offset:
                        found[record.key] = record.value
                        count += 1
            before = header.next_offset
        assert before > offset, f"nothing at {offset}"
        offset = before
    return {key: value for key, value in found.items() if value is not None}, count


def alive(model):
    return {key: value for key, value in model.items() if value is not None}
