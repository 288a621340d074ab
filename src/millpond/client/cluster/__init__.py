"""A cluster spoken to on the wire, batch by batch: what confluent-kafka, which hands out single records, cannot do.

Spark reads and writes through here, and the command line asks what librdkafka has no call for. It speaks to any Kafka
cluster, over TLS and with passwords, in the newest version that both sides know.
"""
