"""One partition in one folder, in Kafka's own on-disk format. Every index can be rebuilt from the log."""
