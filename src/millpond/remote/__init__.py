"""Any Kafka cluster on the wire: the one cluster client that `client`, `spark`, `admin` and `cli` share.

Batches instead of the single records that confluent-kafka hands out, and every question that librdkafka has no call
for; over TLS and with passwords, in the newest version that both sides know.
"""
