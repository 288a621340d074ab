"""A client for any Kafka cluster, shared by `client`, `spark`, `admin` and `cli`.

It reads whole batches instead of confluent-kafka's single records, and has requests that librdkafka has no call for;
with TLS and authentication, in the newest version that both sides support.
"""
