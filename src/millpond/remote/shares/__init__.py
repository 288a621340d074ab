"""A consumer of share groups (KIP-932) over the wire, for Millpond and Apache Kafka from 4.2 on."""
